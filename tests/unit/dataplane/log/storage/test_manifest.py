"""The manifest of a data folder: what it tells of a log that was lost, emptied, or replaced by an older copy, and that
it tells nothing false after a crash (that is in test_log_crash_points.py)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.checkpoints import OFFSETS_FILE, OffsetCheckpoint, write_lines, write_offsets
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.log_errors import NoSpace
from dataplane.log.storage.manifest import MANIFEST_COPY_FILE, MANIFEST_FILE, Committed, Manifest, read_manifest
from tests.simulation.machines.disk import AMPLE, SimDisk
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

if TYPE_CHECKING:
    from dataplane.log.recovery.log_recovery import RecoveryReport
    from tests.unit.dataplane.log.conftest import Batches

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300)
KEY = PartitionKey(StreamName("flights"), Incarnation(7), 0, Incarnation(1))
HOME = Path("/data/flights-7/0-1")


class Folder:
    """A data folder with one log, over several lives of a broker."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.incarnation = 0
        self.begin()

    def begin(self) -> RecoveryReport:
        self.data = DataDir.open(Path("/data"), BrokerId("b1"), files=self.disk)
        survived = self.data.proof().page_cache_survived
        self.log, report = PartitionLog.open(
            HOME, CONFIG, files=self.disk, page_cache_survived=survived, entry=self.data.manifest_entry(KEY)
        )
        self.incarnation += 1
        self.data.write_manifest()
        self.data.record("cluster", Incarnation(self.incarnation))
        self.data.mark_dirty()
        return report

    def commit(self, end: int) -> None:
        self.log.sync()
        self.log.checkpoint_high_watermark(Offset(end))
        self.data.write_manifest()

    def die(self) -> None:
        self.disk.kill_process()

    def restore(self, older: SimDisk) -> None:
        """The log's folder from another disk, the rest as it is."""
        self.disk.remove_tree(HOME)
        for path, size in older.files_below(HOME):
            self.disk.make_directory(path.parent)
            handle = self.disk.open(path, write=True, create=True)
            source = older.open(path)
            self.disk.write(handle, [older.read(source, size, 0)], 0)


@pytest.fixture
def folder(batches: Batches) -> Folder:
    made = Folder()
    batches.fill(made.log, 20)
    made.commit(20)
    return made


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("what", ["missing", "emptied", "stream missing", "files missing"])
def test_a_log_that_was_lost_is_damaged_and_not_a_new_one(folder: Folder, what: str, power_lost: bool) -> None:
    folder.die()
    if power_lost:
        folder.disk.lose_power("nothing", Random(1))
    match what:
        case "missing":
            folder.disk.remove_tree(HOME)
        case "stream missing":
            folder.disk.remove_tree(HOME.parent)
        case _:
            for path, _ in folder.disk.files_below(HOME):
                if what == "emptied" or path.suffix in (".log", ".index"):
                    folder.disk.remove(path)
    report = folder.begin()
    assert report.damaged is not None
    assert "records up to offset 20 were" in report.damaged
    assert report.known_end == 20
    assert folder.log.log_end_offset == 0
    folder.die()
    assert folder.begin().damaged is not None, "the next start forgets nothing"


def test_a_log_that_was_lost_before_anything_was_committed_is_damaged_too() -> None:
    folder = Folder()
    folder.die()
    folder.disk.remove_tree(HOME)
    assert folder.begin().damaged is not None


def test_an_older_copy_that_ends_before_what_was_committed_is_damaged(folder: Folder, batches: Batches) -> None:
    older = folder.disk.copy()
    batches.fill(folder.log, 40)
    folder.commit(40)
    folder.die()
    folder.restore(older)
    report = folder.begin()
    assert report.damaged is not None
    assert "ends at offset 20, but records up to offset 40 were" in report.damaged
    damage = folder.log.checking.examine()
    assert (damage.sound_end, damage.known_end) == (20, 40)


def test_an_older_copy_of_which_the_end_was_cut_and_written_again_is_damaged(folder: Folder, batches: Batches) -> None:
    """It reaches far enough; but its last records were never committed, and others were in their place."""
    batches.fill(folder.log, 40)
    folder.log.sync()
    older = folder.disk.copy()
    folder.log.truncate(Offset(20))
    folder.log.assign_epoch(LeaderEpoch(2), folder.log.log_end_offset)
    while folder.log.log_end_offset < 40:
        batches.append(folder.log, 1, epoch=2)
    folder.commit(40)
    folder.die()
    folder.restore(older)
    report = folder.begin()
    assert report.damaged is not None
    assert "record at offset 39 is of LeaderEpoch 1, and the one that was committed here of LeaderEpoch 2" in (
        report.damaged
    )
    damage = folder.log.checking.examine()
    assert damage.sound_end == 0, "nothing of another history is relied on"
    folder.log.checking.cut_damage(damage, when_ns=1, lost=False)
    folder.data.write_manifest()
    folder.die()
    report = folder.begin()
    assert (report.damaged, folder.log.high_watermark) == (None, 0)


def test_a_log_of_another_history_that_was_repaired_takes_records(folder: Folder, batches: Batches) -> None:
    """Its new segment has the name of the one that goes."""
    batches.fill(folder.log, 40)
    folder.log.sync()
    older = folder.disk.copy()
    folder.log.truncate(Offset(20))
    while folder.log.log_end_offset < 40:
        batches.append(folder.log, 1, epoch=2)
    folder.commit(40)
    folder.die()
    folder.restore(older)
    folder.begin()
    folder.log.checking.cut_damage(folder.log.checking.examine(), when_ns=1, lost=False)
    batches.fill(folder.log, 30, epoch=3)
    folder.commit(30)
    stored = batches.stored(folder.log)
    folder.die()
    assert folder.begin().damaged is None
    assert (folder.log.log_end_offset, batches.stored(folder.log)) == (30, stored)


def test_a_log_that_an_operator_accepts_as_it_is_leads_on(folder: Folder, batches: Batches) -> None:
    older = folder.disk.copy()
    batches.fill(folder.log, 40)
    folder.commit(40)
    folder.die()
    folder.restore(older)
    folder.begin()
    damage = folder.log.checking.examine(without_beginning=True)
    folder.log.checking.cut_damage(damage, when_ns=1, lost=True)
    assert folder.log.log_end_offset == 20
    folder.die()
    assert folder.begin().damaged is None


def test_a_lost_log_that_was_repaired_is_sound_at_the_next_start(folder: Folder, batches: Batches) -> None:
    folder.die()
    folder.disk.remove_tree(HOME)
    folder.begin()
    folder.log.checking.cut_damage(folder.log.checking.examine(), when_ns=1, lost=False)
    folder.die()
    assert folder.begin().damaged is None
    batches.fill(folder.log, 30)
    folder.commit(30)
    folder.die()
    folder.disk.remove_tree(HOME)
    assert folder.begin().damaged is not None


def test_the_manifest_is_lower_before_a_log_is_cut(folder: Folder) -> None:
    seen = []

    def before() -> None:
        if folder.log.log_end_offset == 20:
            entries = read_manifest(folder.disk, Path("/data"))
            seen.append(entries["flights-7/0-1"].high_watermark if entries else None)

    folder.disk.before_call = before
    folder.log.truncate(Offset(7))
    assert seen[0] == 20
    assert seen[-1] == 7


def test_a_cut_above_the_high_watermark_writes_no_manifest(folder: Folder, batches: Batches) -> None:
    batches.fill(folder.log, 30)
    folder.log.truncate(Offset(20))
    assert not folder.data.manifest.is_due


def test_a_log_that_cannot_be_lowered_on_a_full_disk_is_not_cut(folder: Folder) -> None:
    folder.disk.capacity = folder.disk.used
    with pytest.raises(NoSpace):
        folder.log.truncate(Offset(7))
    assert folder.log.log_end_offset == 20
    folder.disk.capacity = AMPLE
    seen = []

    def before() -> None:
        if folder.log.log_end_offset == 20:
            entries = read_manifest(folder.disk, Path("/data"))
            seen.append(entries["flights-7/0-1"].high_watermark if entries else None)

    folder.disk.before_call = before
    assert folder.log.truncate(Offset(7)) == 7
    assert seen[-1] == 7, "the second attempt lowers the manifest, too, before it cuts"


def test_a_folder_of_an_earlier_version_gets_a_manifest_and_loses_no_log(folder: Folder) -> None:
    """One without a manifest, or with one from before the earlier version ran."""
    folder.data.mark_clean()
    identity = folder.data._identity
    for has_stale in (False, True):
        folder.die()
        folder.data._write(replace(identity, manifest=False, clean=not has_stale))
        write_offsets(folder.disk, HOME, OffsetCheckpoint(Offset(20), Offset(20), Offset(0)))
        if not has_stale:
            folder.disk.remove(Path("/data") / MANIFEST_FILE)
            folder.disk.remove(Path("/data") / MANIFEST_COPY_FILE)
        else:
            Manifest(folder.disk, Path("/data"), {"gone-1/0-1": Committed(Offset(9), LeaderEpoch(1))}).write()
        folder.disk.kill_process()
        assert folder.begin().damaged is None
        assert not folder.data.manifest.is_lost
        entries = read_manifest(folder.disk, Path("/data"))
        assert entries == {"flights-7/0-1": Committed(Offset(20), LeaderEpoch(1), Offset(20))}


@pytest.mark.parametrize("own_file", [True, False])
def test_a_manifest_of_the_first_version_counts_with_the_files_of_the_logs(folder: Folder, own_file: bool) -> None:
    """It holds no recovery points."""
    folder.die()
    write_lines(folder.disk, Path("/data") / MANIFEST_FILE, ["flights-7/0-1 20 1"])
    if own_file:
        write_offsets(folder.disk, HOME, OffsetCheckpoint(Offset(20), Offset(20), Offset(0)))
    folder.disk.lose_power("nothing", Random(1))
    report = folder.begin()
    assert (report.damaged is None) is own_file, "without its file nothing says how far the log reached"
    if own_file:
        entries = read_manifest(folder.disk, Path("/data"))
        assert entries == {"flights-7/0-1": Committed(Offset(20), LeaderEpoch(1), Offset(20))}


@pytest.mark.parametrize("harm", ["damaged", "missing", "older"])
@pytest.mark.parametrize("name", [MANIFEST_FILE, MANIFEST_COPY_FILE])
def test_one_of_the_two_files_is_enough(folder: Folder, batches: Batches, name: str, harm: str) -> None:
    path = Path("/data") / name
    older = folder.disk.copy()
    batches.fill(folder.log, 40)
    folder.commit(40)
    folder.die()
    if harm == "damaged":
        folder.disk.flip_bit(path, 30, 3)
    elif harm == "missing":
        folder.disk.remove(path)
    else:
        folder.disk.restore(path, older)
    folder.disk.lose_power("nothing", Random(1))
    assert folder.begin().damaged is None
    assert (folder.data.manifest.is_lost, folder.log.high_watermark) == (False, 40)
    folder.die()
    folder.restore(older)
    assert folder.begin().damaged is not None, "and the next one is whole again"


def test_a_log_whose_first_segment_is_lost_is_damaged_without_a_file_of_its_own(
    folder: Folder, batches: Batches
) -> None:
    """The manifest says where the log starts."""
    batches.fill(folder.log, 60)
    folder.commit(60)
    assert OFFSETS_FILE not in folder.disk.names(HOME)
    first = folder.log.segments[0]
    folder.die()
    folder.disk.remove(first.path)
    report = folder.begin()
    assert report.damaged is not None
    assert "the segment that begins at 0 is missing" in report.damaged


def test_a_log_without_its_own_file_starts_where_retention_left_it(folder: Folder, batches: Batches) -> None:
    batches.fill(folder.log, 60)
    folder.commit(60)
    assert folder.log.remove_before(Offset(40))
    start = folder.log.log_start_offset
    assert OFFSETS_FILE in folder.disk.names(HOME), "durable before the segments go"
    folder.data.write_manifest()
    folder.die()
    folder.disk.remove(HOME / OFFSETS_FILE)
    folder.disk.lose_power("nothing", Random(1))
    assert folder.begin().damaged is None
    assert (folder.log.log_start_offset, folder.log.high_watermark) == (start, 60)


def test_a_new_log_that_no_manifest_names_yet_is_sound(batches: Batches) -> None:
    """It has acknowledged nothing: its entry is durable before its first record."""
    folder = Folder()
    key = replace(KEY, partition=1)
    directory = folder.data.partition_directory(key)

    def begun_again() -> tuple[PartitionLog, str | None]:
        folder.disk.lose_power("nothing", Random(1))
        folder.begin()
        log, report = PartitionLog.open(directory, CONFIG, files=folder.disk, entry=folder.data.manifest_entry(key))
        return log, report.damaged

    assert begun_again()[1] is None
    log, damaged = begun_again()
    assert damaged is None
    batches.fill(log, 5)
    log.sync()
    assert begun_again()[1] is not None, "nothing says how far it reached"


def test_the_high_watermark_is_taken_over_without_a_call_of_the_disk(folder: Folder, batches: Batches) -> None:
    batches.fill(folder.log, 22)
    folder.log.sync()
    calls = folder.disk.calls
    assert folder.log.checkpoint_at_once(Offset(21))
    assert folder.disk.calls == calls
    folder.data.write_manifest()
    entries = read_manifest(folder.disk, Path("/data"))
    assert entries == {"flights-7/0-1": Committed(Offset(21), LeaderEpoch(1), Offset(22))}


def test_nothing_is_taken_over_while_the_log_is_cut(folder: Folder) -> None:
    """Or the manifest would vouch for what is about to go."""
    taken = []
    folder.disk.before_call = lambda: taken.append(folder.log.checkpoint_at_once(Offset(20)))
    folder.log.truncate(Offset(7))
    folder.disk.before_call = lambda: None
    assert taken
    assert not any(taken)
    entries = read_manifest(folder.disk, Path("/data"))
    assert entries == {"flights-7/0-1": Committed(Offset(7), LeaderEpoch(1), Offset(7))}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_manifest_that_was_lost_is_not_written_before_the_metadata_has_heard(folder: Folder, damaged: bool) -> None:
    folder.die()
    for name in (MANIFEST_FILE, MANIFEST_COPY_FILE):
        if damaged:
            folder.disk.flip_bit(Path("/data") / name, 30, 3)
        else:
            folder.disk.remove(Path("/data") / name)
    for _ in range(2):
        report = folder.begin()
        assert report.damaged is None, "the log proves itself"
        assert folder.data.manifest.is_lost, "and nothing says which others there were"
        folder.die()
    folder.data.manifest.settled()
    folder.data.write_manifest()
    folder.die()
    folder.begin()
    assert not folder.data.manifest.is_lost


def test_the_partitions_that_must_be_there_are_known() -> None:
    folder = Folder()
    folder.die()
    folder.disk.remove_tree(HOME.parent)
    folder.data = DataDir.open(Path("/data"), BrokerId("b1"), files=folder.disk)
    assert folder.data.list_partitions() == []
    assert folder.data.known_partitions() == [KEY]
    folder.data.manifest_entry(KEY).remove()
    assert folder.data.known_partitions() == []


def test_one_write_serves_all_that_wait_for_it(tmp_path: Path) -> None:
    """As when thousands of partitions are made at a time."""
    writes, go_on, begun = [], threading.Event(), threading.Event()

    class Slow(SimDisk):
        def sync_all(self, handle: int) -> None:
            writes.append(handle)
            begun.set()
            assert go_on.wait(60)
            super().sync_all(handle)

    disk = Slow()
    manifest = Manifest(disk, Path("/"), {})
    first = threading.Thread(target=manifest.write)
    first.start()
    assert begun.wait(60)
    for number in range(50):
        manifest.entry(f"s-1/{number}-1").add()
    others = [threading.Thread(target=manifest.write) for _ in range(50)]
    for thread in others:
        thread.start()
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert len(writes) == 4, "of both files"
    assert len(read_manifest(disk, Path("/")) or {}) == 50
