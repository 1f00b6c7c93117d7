"""The broker's data folder: its identity, its lock, its proof of a clean stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane.log.storage.data_dir import DataDir, Proof
from dataplane.log.storage.files import RealFiles
from dataplane.log.storage.log_errors import DataDirError
from wire.errors import InvariantViolation
from wire.types import BrokerId, Incarnation, PartitionKey, StreamName

B1 = BrokerId("b1")


class Boots(RealFiles):
    """An operating system that can be started again."""

    def __init__(self) -> None:
        self.boot = "first"

    def boot_id(self) -> str:
        return self.boot


def key(stream: str = "flights", partition: int = 0, incarnation: int = 1) -> PartitionKey:
    return PartitionKey(StreamName(stream), Incarnation(7), partition, Incarnation(incarnation))


def lived(path: Path, files: RealFiles, *, clean: bool) -> None:
    """One life of the broker, registered, that appended; closed properly or killed."""
    data_dir = DataDir.open(path, B1, files=files)
    data_dir.record("cluster-1", Incarnation(5))
    data_dir.mark_dirty()
    if clean:
        data_dir.mark_clean()
    data_dir.close()


def test_a_folder_in_use_is_refused_and_names_the_process(tmp_path: Path) -> None:
    data_dir = DataDir.open(tmp_path / "data", B1)
    with pytest.raises(DataDirError, match=rf"in use by process {os.getpid()}: stop that broker"):
        DataDir.open(tmp_path / "data", B1)
    data_dir.close()
    DataDir.open(tmp_path / "data", B1).close()


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from dataplane.log.storage.data_dir import DataDir;"
        f"held = DataDir.open(Path({str(tmp_path)!r}), 'b1'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(DataDirError, match=f"in use by process {process.pid}"):
            DataDir.open(tmp_path, B1)
        process.kill()
        process.wait()
    DataDir.open(tmp_path, B1).close()


def test_another_brokers_folder_is_refused(tmp_path: Path) -> None:
    DataDir.open(tmp_path, B1).close()
    for _ in range(2):
        with pytest.raises(DataDirError, match="belongs to broker 'b1', not to 'b2'"):
            DataDir.open(tmp_path, BrokerId("b2"))


def test_another_clusters_folder_is_refused(tmp_path: Path) -> None:
    lived(tmp_path, Boots(), clean=True)
    data_dir = DataDir.open(tmp_path, B1)
    assert (data_dir.cluster_id, data_dir.last_incarnation) == ("cluster-1", 5)
    with pytest.raises(DataDirError, match="belongs to cluster cluster-1, but this is cluster other"):
        data_dir.record("other", Incarnation(6))
    assert data_dir.last_incarnation == 5


def test_a_folder_knows_the_lives_that_may_have_been_registered_since_the_last_that_was_recorded(
    tmp_path: Path,
) -> None:
    for life, known in (("x", ()), ("y", ("x",)), ("z", ("x", "y"))):
        data_dir = DataDir.open(tmp_path, B1)
        assert data_dir.lives == known
        data_dir.begin_life(life)
        data_dir.close()
    data_dir = DataDir.open(tmp_path, B1)
    data_dir.begin_life("recorded")
    data_dir.record("cluster-1", Incarnation(5))
    data_dir.close()
    assert DataDir.open(tmp_path, B1).lives == ("recorded",), "it may be declared dead, register again, and be killed"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match="--data-dir"):
        DataDir.open(tmp_path / "file", B1)


@pytest.mark.parametrize("name", ["broker.json", "broker.json.copy"])
def test_a_flipped_bit_of_an_identity_changes_nothing(tmp_path: Path, name: str) -> None:
    directory = DataDir.open(tmp_path, B1)
    directory.begin_life("life 1")
    directory.record("cluster", Incarnation(9))
    directory.mark_dirty()
    directory.close()
    whole = (tmp_path / name).read_bytes()
    for at in range(len(whole)):
        content = bytearray(whole)
        content[at] ^= 1 << (at % 8)
        (tmp_path / name).write_bytes(content)
        again = DataDir.open(tmp_path, B1)
        assert (again.cluster_id, again.last_incarnation) == ("cluster", 9)
        assert again.proof() == (True, True)
        again.mark_clean()
        again.close()
        assert (tmp_path / "broker.json").read_bytes() == (tmp_path / "broker.json.copy").read_bytes()
        (tmp_path / "broker.json").write_bytes(whole)
        (tmp_path / "broker.json.copy").write_bytes(whole)


@pytest.mark.parametrize("name", ["broker.json", "broker.json.copy"])
def test_an_identity_is_in_both_files(tmp_path: Path, name: str) -> None:
    lived(tmp_path, Boots(), clean=True)
    (tmp_path / name).unlink()
    again = DataDir.open(tmp_path, B1)
    assert (again.cluster_id, again.last_incarnation) == ("cluster-1", 5)
    again.begin_life("next")
    again.close()
    assert (tmp_path / "broker.json").read_bytes() == (tmp_path / "broker.json.copy").read_bytes()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 99}'])
def test_an_identity_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    DataDir.open(tmp_path, B1).close()
    (tmp_path / "broker.json").write_text(content)
    (tmp_path / "broker.json.copy").write_text(content)
    with pytest.raises(DataDirError, match=r"broker\.json"):
        DataDir.open(tmp_path, B1)


class TestProof:
    def proof(self, path: Path, files: RealFiles) -> Proof:
        data_dir = DataDir.open(path, B1, files=files)
        data_dir.close()
        return data_dir.proof()

    def test_a_new_or_emptied_folder_proves_nothing(self, tmp_path: Path) -> None:
        assert self.proof(tmp_path, Boots()) == (False, False)
        assert self.proof(tmp_path, Boots()) == (False, False)

    def test_a_killed_process_leaves_the_page_cache(self, tmp_path: Path) -> None:
        files = Boots()
        lived(tmp_path, files, clean=False)
        assert self.proof(tmp_path, files) == (True, True)

    def test_a_new_boot_after_a_kill_has_lost_it(self, tmp_path: Path) -> None:
        files = Boots()
        lived(tmp_path, files, clean=False)
        files.boot = "second"
        assert self.proof(tmp_path, files) == (True, False)

    def test_a_folder_left_in_order_needs_no_page_cache(self, tmp_path: Path) -> None:
        files = Boots()
        lived(tmp_path, files, clean=True)
        files.boot = "second"
        assert self.proof(tmp_path, files) == (True, True)

    def test_an_operating_system_without_a_boot_id_proves_only_by_the_marker(self, tmp_path: Path) -> None:
        files = Boots()
        files.boot = ""
        lived(tmp_path, files, clean=False)
        assert self.proof(tmp_path, files) == (True, False)

    def test_is_of_the_folder_as_it_was_found(self, tmp_path: Path) -> None:
        files = Boots()
        lived(tmp_path, files, clean=False)
        files.boot = "second"
        data_dir = DataDir.open(tmp_path, B1, files=files)
        data_dir.record("cluster-1", Incarnation(6))
        data_dir.mark_dirty()
        data_dir.mark_clean()
        assert data_dir.proof() == (True, False)

    def test_a_life_that_never_registered_does_not_turn_a_loss_into_proof(self, tmp_path: Path) -> None:
        files = Boots()
        lived(tmp_path, files, clean=False)
        files.boot = "second"
        data_dir = DataDir.open(tmp_path, B1, files=files)
        with pytest.raises(InvariantViolation):
            data_dir.mark_dirty()
        data_dir.close()
        assert self.proof(tmp_path, files) == (True, False)


class TestPartitions:
    def test_are_found_by_their_folders(self, tmp_path: Path) -> None:
        data_dir = DataDir.open(tmp_path, B1)
        assert data_dir.partition_directory(key(partition=3)) == tmp_path / "flights-7" / "3-1"
        keys = [key(), key(partition=1), key("a-b-9", 2, 4), key(incarnation=2)]
        for each in keys:
            data_dir.partition_directory(each).mkdir(parents=True)
        for other in ("raft", "flights-7/quarantine", "x-/0-1"):
            (tmp_path / other).mkdir(parents=True)
        (tmp_path / "flights-8").write_text("a file")
        assert data_dir.list_partitions() == sorted(keys)

    def test_removed_ones_are_gone_with_their_stream(self, tmp_path: Path) -> None:
        data_dir = DataDir.open(tmp_path, B1)
        for partition in (0, 1):
            directory = data_dir.partition_directory(key(partition=partition))
            (directory / "quarantine").mkdir(parents=True)
            (directory / "00000000000000000000.log").write_bytes(b"x")
        data_dir.remove_partition(key())
        assert data_dir.list_partitions() == [key(partition=1)]
        data_dir.remove_partition(key(partition=1))
        data_dir.remove_partition(key(partition=1))
        assert not (tmp_path / "flights-7").exists()

    def test_one_half_removed_is_not_listed_and_ends_at_the_next_start(self, tmp_path: Path) -> None:
        class Killed(RealFiles):
            def remove_tree(self, path: Path) -> None:
                raise OSError(5, "Input/output error")

        data_dir = DataDir.open(tmp_path, B1, files=Killed())
        directory = data_dir.partition_directory(key())
        directory.mkdir(parents=True)
        (directory / "00000000000000000000.log").write_bytes(b"x")
        with pytest.raises(DataDirError, match="cannot be removed"):
            data_dir.remove_partition(key())
        assert data_dir.list_partitions() == []
        data_dir.close()
        DataDir.open(tmp_path, B1).close()
        assert not (tmp_path / "flights-7").exists()

    def test_a_stream_folder_without_a_partition_ends_at_the_next_start(self, tmp_path: Path) -> None:
        """A broker was killed between the removal of the last partition and that of the stream's folder, or before the
        first partition had a folder."""
        kept = tmp_path / "flights-8" / "0-1"
        for directory in (tmp_path / "flights-7", kept, tmp_path / "raft"):
            directory.mkdir(parents=True)
        DataDir.open(tmp_path, B1).close()
        assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["flights-8", "raft"]
        assert kept.exists()

    def test_an_empty_stream_folder_that_cannot_be_removed_does_not_keep_a_broker_from_starting(
        self, tmp_path: Path
    ) -> None:
        """As one of another user in a folder with the sticky bit."""

        class Forbidden(RealFiles):
            def remove_empty_directory(self, path: Path) -> None:
                raise PermissionError(1, "Operation not permitted")

        (tmp_path / "flights-7").mkdir()
        data_dir = DataDir.open(tmp_path, B1, files=Forbidden())
        assert data_dir.list_partitions() == []
        data_dir.close()
