"""The snapshot file: written, sent, received, refused."""

# Rules: R28.

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import pytest

from metadata.raft import snapshot as snapshots
from metadata.raft.journal import Entry, SnapshotHead
from metadata.raft.ports import RaftPorts
from metadata.raft.snapshot import SnapshotStore, decode_snapshot, encode_snapshot, offered_entry
from metadata.raft.types import RaftStorageError
from tests.unit.metadata.raft.recorder import ProcessEnded, end, recording
from wire.turns import LOOKS, Steps

HEAD = SnapshotHead(Entry(b"\0last", 42, 3), Entry(b"\0before", 41, 2))


class Machine:
    def __init__(self, state: bytes = b"") -> None:
        self.state = state

    def prepare(self, command: bytes | None) -> bool:
        return True

    def apply(self, command: bytes) -> object:
        raise NotImplementedError(command)

    def snapshot(self) -> Steps[bytes]:
        return self._encoding(self.state)

    def _encoding(self, state: bytes) -> Steps[bytes]:
        yield from repeat(LOOKS, 3)
        return state

    def restore(self, snapshot: bytes) -> Steps[None]:
        yield from repeat(LOOKS, 3)
        self.state = snapshot


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store(
    folder: Path,
    machine: Machine,
    *,
    clock: Clock | None = None,
    may_send: Callable[[object], bool] = lambda _node: True,
) -> SnapshotStore:
    folder.mkdir(exist_ok=True)
    ports = RaftPorts(monotonic=clock or Clock())
    return SnapshotStore(folder / "snapshot", machine, exit_process=end, may_send=may_send, ports=ports)


def take(made: SnapshotStore) -> None:
    made.serialize((None, HEAD.last, HEAD.before_last, None), HEAD.before_last.index)
    assert ended(made) == (snapshots.SUCCESS, HEAD.before_last.index)


def ended(made: SnapshotStore) -> tuple[int, int | None]:
    """How the snapshot ends that was begun."""
    while True:
        found = made.checkSerializing()
        if found[0] != snapshots.SERIALIZING:
            return found
        if made._writing is not None:
            made._writing.join()


def take_up(made: SnapshotStore) -> None:
    made.deserialize()
    while not made.restored():
        pass


def test_a_snapshot_is_restored(tmp_path: Path) -> None:
    made = store(tmp_path, Machine(b"state"))
    assert made.head() is None
    take(made)
    assert made.checkSerializing() == (snapshots.NOT_SERIALIZING, None)
    machine = Machine()
    loaded = store(tmp_path, machine)
    assert loaded.head() == HEAD
    assert loaded.deserialize() == (None, HEAD.last, HEAD.before_last, None)
    assert machine.state == b"state"


def test_it_is_synced_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store(tmp_path, Machine(b"state"))
    steps: list[str] = []
    monkeypatch.setattr(os, "fsync", recording(steps, "sync", os.fsync))
    monkeypatch.setattr(Path, "replace", recording(steps, "rename", Path.replace))
    take(made)
    assert steps == ["sync", "rename", "sync"]


def test_a_full_disk_keeps_the_old_one_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, machine = Clock(), Machine(b"old")
    made = store(tmp_path, machine, clock=clock)
    take(made)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    machine.state = b"new"
    monkeypatch.setattr(os, "fsync", full)
    made.serialize((None, HEAD.last, HEAD.before_last, None), HEAD.before_last.index)
    assert ended(made)[0] == snapshots.FAILED
    assert made.checkSerializing()[0] == snapshots.SERIALIZING, "no attempt in every tick"
    clock.now += snapshots.RETRY_S
    assert made.checkSerializing()[0] == snapshots.NOT_SERIALIZING
    assert decode_snapshot((tmp_path / "snapshot").read_bytes(), tmp_path)[1] == b"old"


@pytest.mark.parametrize("position", [0, 9, 13, 30, 40, -1])
def test_every_damage_is_noticed(tmp_path: Path, position: int) -> None:
    content = bytearray(encode_snapshot(HEAD, b"state"))
    content[position] ^= 1
    (tmp_path / "snapshot").write_bytes(content)
    made = store(tmp_path, Machine())
    with pytest.raises(RaftStorageError, match="damaged or of another version"):
        made.head()
    with pytest.raises(ProcessEnded, match="cannot be loaded"):
        made.deserialize()


def test_a_state_machine_that_refuses_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(b"state")
    made = store(tmp_path, machine)
    take(made)

    def refuse(_snapshot: bytes) -> Steps[None]:
        yield 1
        raise ValueError("version 9")

    monkeypatch.setattr(machine, "restore", refuse)
    with pytest.raises(ProcessEnded, match="version 9"):
        made.deserialize()


def test_it_travels_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, unsynced, received = os.fsync, [], 0

    def measured(descriptor: int) -> None:
        nonlocal received
        size = os.fstat(descriptor).st_size
        if size > received:
            unsynced.append(size - received)
            received = size
        sync(descriptor)

    monkeypatch.setattr(snapshots, "SYNC_BYTES", 2 * snapshots.CHUNK_BYTES)
    state = os.urandom(5 * snapshots.CHUNK_BYTES)
    source, target_machine = store(tmp_path / "source", Machine(state)), Machine()
    take(source)
    target = store(tmp_path / "target", target_machine)
    installed: list[bool] = []
    monkeypatch.setattr(os, "fsync", measured)
    while not installed or not installed[-1]:
        chunk = source.getTransmissionData("node")
        assert chunk is not None
        if chunk[1]:
            assert offered_entry(chunk[0]) == (42, 3)
        installed.append(target.setTransmissionData(chunk))
    assert len(installed) == 7
    assert max(unsynced) == snapshots.SYNC_BYTES, "no sync has to wait for more"
    assert len(unsynced) == 3, "a step of the loop may take in many chunks"
    take_up(target)
    assert target_machine.state == state


def test_a_chunk_that_was_lost_installs_nothing(tmp_path: Path) -> None:
    source = store(tmp_path / "source", Machine(os.urandom(3 * snapshots.CHUNK_BYTES)))
    take(source)
    target = store(tmp_path / "target", Machine(b"old"))
    take(target)
    source.getTransmissionData("node")
    results = []
    for number in range(5):
        chunk = source.getTransmissionData("other")
        results.append(number == 2 or target.setTransmissionData(chunk))
    assert results == [False, False, True, False, False]
    assert decode_snapshot((tmp_path / "target" / "snapshot").read_bytes(), tmp_path)[1] == b"old"


def test_it_is_made_in_turns_of_the_state_at_its_beginning(tmp_path: Path) -> None:
    machine = Machine(b"state")
    made = store(tmp_path, machine)
    made.serialize((None, HEAD.last, HEAD.before_last, None), 41)
    machine.state = b"later"
    for _ in range(3):
        assert made.checkSerializing() == (snapshots.SERIALIZING, 41)
        assert made.takes_turns
        assert made.head() is None, "the old one stays until the new one is whole"
    assert ended(made) == (snapshots.SUCCESS, 41)
    assert decode_snapshot((tmp_path / "snapshot").read_bytes(), tmp_path) == (HEAD, b"state")


def test_a_process_that_ends_half_way_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(b"old")
    made = store(tmp_path, machine)
    take(made)
    machine.state = b"new"
    monkeypatch.setattr(snapshots._Writing, "is_alive", lambda _: True)
    made.serialize((None, HEAD.last, HEAD.before_last, None), 41)
    while made._writing is None:
        made.checkSerializing()
    made.close()
    assert decode_snapshot((tmp_path / "snapshot").read_bytes(), tmp_path)[1] == b"old"
    (tmp_path / "snapshot.tmp").write_bytes(b"torn")
    machine = Machine()
    again = store(tmp_path, machine)
    again.deserialize()
    assert machine.state == b"old"


def test_one_for_which_the_disk_has_no_room_is_given_up_and_taken_when_it_comes_again(tmp_path: Path) -> None:
    """What is smaller than the buffer of a file fails once more when that file is closed."""
    received = encode_snapshot(HEAD, b"new")
    made, incoming = store(tmp_path, Machine()), tmp_path / "snapshot.incoming"
    incoming.symlink_to("/dev/full")
    assert not made.setTransmissionData((received, True, False))
    assert not made.setTransmissionData((b"", False, True))
    assert not incoming.is_symlink(), "it takes no room"
    assert not made.setTransmissionData((received, True, False))
    assert made.setTransmissionData((b"", False, True))
    assert made.head() == HEAD


@pytest.mark.parametrize("turns", [0, 2, 6])
def test_one_that_is_received_meanwhile_stays(tmp_path: Path, turns: int) -> None:
    later = SnapshotHead(Entry(b"\0later", 90, 4), Entry(b"\0before", 89, 4))
    made = store(tmp_path, Machine(b"own"))
    made.serialize((None, HEAD.last, HEAD.before_last, None), 41)
    for _ in range(turns):
        made.checkSerializing()
    for chunk in ((encode_snapshot(later, b"leader's"), True, False), (b"", False, True)):
        made.setTransmissionData(chunk)
    take_up(made)
    assert ended(made) == (snapshots.NOT_SERIALIZING, None)
    assert made.head() == later
    assert not (tmp_path / "snapshot.tmp").exists()


def test_no_snapshot_is_begun_before_a_received_one_is_taken_up(tmp_path: Path) -> None:
    machine = Machine(b"old")
    made = store(tmp_path, machine)
    for chunk in ((encode_snapshot(HEAD, b"new"), True, False), (b"", False, True)):
        made.setTransmissionData(chunk)
    made.deserialize()
    while not made.restored():
        assert made.takes_turns
        assert made.checkSerializing()[0] == snapshots.SERIALIZING
        assert machine.state == b"old"
    assert made.checkSerializing()[0] == snapshots.NOT_SERIALIZING
    assert machine.state == b"new"


def test_at_the_start_it_is_taken_up_in_one_go(tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(encode_snapshot(HEAD, b"state"))
    machine = Machine()
    store(tmp_path, machine).deserialize()
    assert machine.state == b"state"


def test_nothing_is_sent_to_a_node_that_does_not_read(tmp_path: Path) -> None:
    made = store(tmp_path, Machine(b"state"), may_send=lambda _node: False)
    take(made)
    assert made.getTransmissionData("node") is None


def test_without_a_snapshot_nothing_is_sent(tmp_path: Path) -> None:
    assert store(tmp_path, Machine()).getTransmissionData("node") is None


@pytest.mark.parametrize("what", [MemoryError(), ValueError("anything")])
def test_a_file_that_was_not_written_to_its_end_never_takes_the_place_of_a_sound_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Exception
) -> None:
    made = store(tmp_path, Machine(b"first"))
    take(made)
    (tmp_path / "snapshot.tmp").write_bytes(b"left by a crash")

    def fails(head: SnapshotHead, state: bytes) -> bytes:
        raise what

    monkeypatch.setattr(snapshots, "encode_snapshot", fails)
    made.serialize((None, HEAD.last, HEAD.before_last, None), HEAD.before_last.index)
    assert ended(made)[0] == snapshots.FAILED
    assert decode_snapshot((tmp_path / "snapshot").read_bytes(), tmp_path)[1] == b"first"
    assert not (tmp_path / "snapshot.tmp").exists()


def test_without_room_for_a_thread_the_next_attempt_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    made = store(tmp_path, Machine(b"first"))
    monkeypatch.setattr("threading.Thread.start", start)
    made.serialize((None, HEAD.last, HEAD.before_last, None), HEAD.before_last.index)
    assert ended(made)[0] == snapshots.FAILED
