"""The file with the cluster's secrets: its content, the steps of a rotation, and brokers that read it again."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from tests.integration.rig.waiting import until
from tidelog.server.secret_file import SecretFile, SecretWatch, Step, obstacles
from wire.errors import TidelogError
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

OLD, NEW = ClusterSecret(b"the old secret of the cluster"), ClusterSecret(b"the new secret of the cluster")
OLD_ID, NEW_ID = OLD.fingerprint.hex(), NEW.fingerprint.hex()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_bytes(OLD.text)
    return file


def test_the_steps_of_a_rotation(path: Path) -> None:
    steps = []
    held = SecretFile.read(path)
    assert held == SecretFile((OLD,), None)
    for _ in range(3):
        steps.append(held.next_step())
        held = held.after(held.next_step())
        held.write(path)
        assert SecretFile.read(path) == held
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert steps == [Step.ADD, Step.USE, Step.REMOVE]
    assert len(held.secrets) == 1
    assert held.secrets[0] != OLD
    assert len(held.secrets[0].text) == 64
    assert [file.name for file in path.parent.iterdir()] == ["secret"]


def test_two_secrets_of_which_none_is_said_to_be_new(path: Path) -> None:
    path.write_bytes(b"# of the cluster in hall 2\n" + OLD.text + b"\n" + NEW.text)
    with pytest.raises(TidelogError, match=f"# new: {NEW_ID}"):
        SecretFile.read(path).next_step()
    path.write_bytes(f"# new: {NEW_ID}\n".encode() + OLD.text + b"\n" + NEW.text)
    assert SecretFile.read(path).next_step() is Step.USE
    path.write_bytes(f"# new: {OLD_ID}\n".encode() + OLD.text + b"\n" + NEW.text)
    assert SecretFile.read(path).next_step() is Step.REMOVE


@pytest.mark.parametrize(
    ("held", "brokers", "words"),
    [
        ([OLD], {"b1": [OLD_ID], "b2": [OLD_ID]}, []),
        ([OLD], {"b1": [OLD_ID], "b2": [OLD_ID, NEW_ID]}, [f"b2 holds {OLD_ID} and {NEW_ID} already: copy its file"]),
        ([OLD], {"b1": [OLD_ID], "b2": [NEW_ID]}, [f"b2 holds {NEW_ID} already"]),
        ([OLD], {"b1": [OLD_ID], "b2": None}, ["b2 does not tell"]),
        ([OLD], {"b1": [NEW_ID], "b2": None}, ["the file is not of this cluster", OLD_ID, NEW_ID, "--server"]),
        ([NEW], {"b1": [OLD_ID, NEW_ID], "b2": [NEW_ID]}, ["the file is newer than the secrets of b1", OLD_ID]),
        ([NEW], {"b1": [NEW_ID], "b2": [NEW_ID, OLD_ID]}, ["b2 holds", "unless the step remove"]),
        ([OLD, NEW], {"b1": [OLD_ID, NEW_ID], "b2": [OLD_ID, NEW_ID]}, []),
        ([OLD, NEW], {"b1": [OLD_ID, NEW_ID], "b2": [NEW_ID, OLD_ID]}, []),
        ([OLD, NEW], {"b1": [OLD_ID, NEW_ID], "b2": [OLD_ID]}, ["b2 holds", "not yet the new one"]),
        ([NEW, OLD], {"b1": [NEW_ID, OLD_ID], "b2": [NEW_ID]}, []),
        ([NEW, OLD], {"b1": [NEW_ID, OLD_ID], "b2": [OLD_ID, NEW_ID]}, [f"b2 still uses {OLD_ID}"]),
    ],
)
def test_a_step_waits_for_every_live_broker(
    held: list[ClusterSecret], brokers: dict[str, list[str] | None], words: list[str]
) -> None:
    file = SecretFile(tuple(held), NEW_ID if len(held) > 1 else None)
    fault, waits = obstacles(file, file.next_step(), brokers)
    found = "; ".join([fault, *waits] if fault else waits)
    assert bool(found) == bool(words)
    assert bool(fault) == any("the file is" in word for word in words), "waiting mends all other obstacles"
    for word in words:
        assert word in found


async def test_a_changed_file_is_read_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secrets = ClusterSecrets(SecretFile.read(path).secrets)
    watch = SecretWatch(path, secrets, "b1", asyncio.get_running_loop(), interval=0.01)
    try:
        SecretFile((OLD, NEW), NEW_ID).write(path)
        await until(lambda: secrets.fingerprints == [OLD_ID, NEW_ID])
        path.write_bytes(b"short")
        await until(lambda: "goes on with the secrets it has" in caplog.text)
        path.unlink()
        await until(lambda: "cannot be read" in caplog.text)
        assert secrets.fingerprints == [OLD_ID, NEW_ID]
        path.write_bytes(NEW.text)
        await until(lambda: secrets.fingerprints == [NEW_ID])
    finally:
        watch.close()
    assert OLD.text.decode() not in caplog.text


async def test_a_file_that_could_not_be_read_is_read_when_it_can_be(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner or mode was wrong, and neither its time nor its size change when that is put right."""
    secrets = ClusterSecrets(SecretFile.read(path).secrets)
    SecretFile((OLD, NEW), NEW_ID).write(path)
    is_readable = False
    read_bytes = Path.read_bytes

    def read(self: Path) -> bytes:
        if not is_readable:
            raise PermissionError(13, "Permission denied")
        return read_bytes(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    watch = SecretWatch(path, secrets, "b1", asyncio.get_running_loop(), interval=0.01)
    try:
        watch.look()
        await until(lambda: "Permission denied" in caplog.text)
        await asyncio.sleep(0.05)
        is_readable = True
        await until(lambda: secrets.fingerprints == [OLD_ID, NEW_ID])
    finally:
        watch.close()
    assert caplog.text.count("Permission denied") == 1
