"""The journal against kills, power cuts and damage: files are cut and changed by hand."""

# Rules: R77.

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from metadata.raft.journal import Entry, Journal, SnapshotHead
from metadata.raft.journal_mark import JournalMark
from metadata.raft.types import InvariantViolation, RaftDamage, RaftStorageError
from tests.unit.metadata.raft.recorder import ProcessEnded, end, recording


def open_journal(path: Path, snapshot: SnapshotHead | None = None) -> Journal:
    return Journal(path, snapshot=snapshot, exit_process=end)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def filled(path: Path, last: int, *, batch: int = 1) -> Journal:
    """Entries 1..last of term 1, synced every `batch` entries."""
    journal = open_journal(path)
    for index in range(1, last + 1):
        journal.add(f"c{index}".encode(), index, 1)
        if index % batch == 0:
            journal.sync()
    return journal


def indexes(journal: Journal) -> list[int]:
    return [entry.index for entry in journal[:]]


def test_everything_synced_is_there_after_a_kill(path: Path) -> None:
    journal = filled(path, 10)
    journal.setCurrentTerm(7, "127.0.0.1:7001")
    journal.setRaftCommitIndex(9)
    journal.mark_joined()
    journal.add(b"c11", 11, 7)
    journal.sync()
    again = open_journal(path)
    assert again[:] == [*(Entry(f"c{index}".encode(), index, 1) for index in range(1, 11)), Entry(b"c11", 11, 7)]
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (7, "127.0.0.1:7001")
    assert again.getRaftCommitIndex() == 9
    assert again.joined


def marked(path: Path) -> Journal:
    return Journal(path, snapshot=None, exit_process=end, mark=JournalMark(path.with_name("mark")))


def test_an_older_copy_of_the_file_is_damage(path: Path) -> None:
    journal = marked(path)
    journal.add(b"c1", 1, 1)
    journal.setCurrentTerm(7, "127.0.0.1:7001")
    older = path.read_bytes()
    journal.setCurrentTerm(8, "127.0.0.1:7001")
    newer = path.read_bytes()
    path.write_bytes(older)
    with pytest.raises(RaftDamage, match=r"is an older copy: it ends with batch 1, and batch 2 was written here"):
        marked(path)
    assert path.read_bytes() == older
    path.write_bytes(newer)
    assert marked(path).getCurrentTerm() == 8


@pytest.mark.parametrize("how", ["missing", "emptied", "torn"])
def test_a_file_that_takes_the_place_of_one_that_was_lost_is_newer_than_any_copy(path: Path, how: str) -> None:
    journal = marked(path)
    journal.add(b"c1", 1, 1)
    journal.sync()
    older = path.read_bytes()
    journal.setCurrentTerm(7, "127.0.0.1:7001")
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if how == "emptied" else older[:20])
    again = marked(path)
    assert (len(again), again.getCurrentTerm(), again.joined) == (0, 0, False)
    again.setCurrentTerm(1, "127.0.0.1:7002")
    content = path.read_bytes()
    assert marked(path).getCurrentTerm() == 1
    path.write_bytes(content[:-1])
    assert marked(path).getCurrentTerm() == 0, "its first batch was torn"
    path.write_bytes(older)
    with pytest.raises(RaftDamage, match="older copy"):
        marked(path)


def test_compaction_moves_the_mark(path: Path) -> None:
    journal = marked(path)
    for index in range(1, 11):
        journal.add(b"command", index, 1)
        journal.sync()
    older = path.read_bytes()
    journal.deleteEntriesTo(5)
    assert indexes(marked(path)) == [6, 7, 8, 9, 10]
    path.write_bytes(older)
    with pytest.raises(RaftDamage, match="older copy"):
        marked(path)


@pytest.mark.parametrize("bit", range(0, 160, 7))
def test_a_damaged_mark_says_nothing(path: Path, bit: int) -> None:
    journal = marked(path)
    journal.add(b"c1", 1, 1)
    journal.sync()
    mark = path.with_name("mark")
    content = bytearray(mark.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    mark.write_bytes(content)
    assert indexes(marked(path)) == [1]


def test_a_new_beginning_is_newer_than_the_files_of_all_others(path: Path) -> None:
    journal = marked(path)
    journal.add(b"c1", 1, 1)
    journal.sync()
    path.unlink()
    recovered = Journal(path, snapshot=None, exit_process=end, after=1_000_000)
    recovered.add(b"c2", 1, 9)
    recovered.sync()
    assert indexes(marked(path)) == [1]


def test_a_mark_that_cannot_be_written_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = marked(path)
    assert journal._mark is not None
    journal._mark.close()
    for term in (1, 2):
        journal.setCurrentTerm(term, None)
    assert caplog.text.count("mark cannot be written") == 1


def test_nothing_is_written_before_sync(path: Path) -> None:
    journal = filled(path, 3)
    size = path.stat().st_size
    journal.add(b"c4", 4, 1)
    assert path.stat().st_size == size
    journal.sync()
    assert path.stat().st_size > size


def test_a_vote_is_synced_when_it_is_set(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(path, 1)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    journal.setCurrentTerm(2, None)
    journal.setCurrentTerm(2, "127.0.0.1:7002")
    journal.setCurrentTerm(2, "127.0.0.1:7002")
    assert len(synced) == 2


def test_every_cut_of_the_last_batch_loses_that_batch_whole_and_nothing_else(path: Path) -> None:
    filled(path, 4, batch=2)
    whole = path.read_bytes()
    two = len(whole) - (len(whole) - 8) // 2
    for cut in range(two, len(whole)):
        path.write_bytes(whole[:cut])
        assert indexes(open_journal(path)) == [1, 2]
        assert path.stat().st_size == two
    path.write_bytes(whole[:two] + os.urandom(len(whole) - two))
    assert indexes(open_journal(path)) == [1, 2]


@pytest.mark.parametrize("cut", range(8))
def test_a_kill_at_the_first_bytes_starts_anew(path: Path, cut: int) -> None:
    open_journal(path)
    path.write_bytes(path.read_bytes()[:cut])
    assert indexes(open_journal(path)) == []
    assert indexes(filled(path, 3)) == [1, 2, 3]


def test_damage_before_sound_data_is_refused(path: Path) -> None:
    filled(path, 5)
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(RaftStorageError, match=r"damaged at byte .* although later data is sound"):
        open_journal(path)
    assert path.read_bytes() == content, "evidence stays"


def open_in_boot(path: Path, boot_id: str) -> Journal:
    return Journal(path, snapshot=None, exit_process=end, boot_id=boot_id)


def filled_in_boot(path: Path, boot_id: str) -> bytes:
    journal = open_in_boot(path, boot_id)
    for index in range(1, 5):
        journal.add(f"c{index}".encode(), index, 1)
        journal.sync()
    return path.read_bytes()


def test_any_flipped_bit_is_damage_while_the_operating_system_runs_on(path: Path) -> None:
    whole = filled_in_boot(path, "boot 1")
    for at in range(8, len(whole)):
        content = bytearray(whole)
        content[at] ^= 1 << (at % 8)
        path.write_bytes(content)
        with pytest.raises(RaftDamage):
            open_in_boot(path, "boot 1")
        assert path.read_bytes() == content, "evidence stays"
    path.write_bytes(whole)
    assert indexes(open_in_boot(path, "boot 1")) == [1, 2, 3, 4]


def test_a_write_that_a_kill_broke_off_is_cut_while_the_operating_system_runs_on(path: Path) -> None:
    whole = filled_in_boot(path, "boot 1")
    last = whole.rindex(b"\xa7RJB")
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        assert indexes(open_in_boot(path, "boot 1")) == [1, 2, 3]


def test_after_a_loss_of_power_the_last_batch_may_be_torn_anywhere(path: Path) -> None:
    whole = filled_in_boot(path, "boot 1")
    path.write_bytes(whole[:-3] + bytes(3))
    assert indexes(open_in_boot(path, "boot 2")) == [1, 2, 3]


def test_the_boot_of_the_last_batch_counts_also_after_a_compaction(path: Path) -> None:
    filled_in_boot(path, "boot 1")
    journal = open_in_boot(path, "boot 2")
    journal.deleteEntriesTo(2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RaftDamage):
        open_in_boot(path, "boot 2")


def test_a_damaged_title_is_damage_and_another_version_is_not(path: Path) -> None:
    whole = filled_in_boot(path, "boot 1")
    path.write_bytes(b"TLRJRNM1" + whole[8:])
    with pytest.raises(RaftDamage):
        open_journal(path)
    path.write_bytes(b"TLRJRNL2" + whole[8:])
    with pytest.raises(RaftStorageError, match="not a Raft journal") as refused:
        open_journal(path)
    assert not isinstance(refused.value, RaftDamage)


def test_another_file_is_refused(path: Path) -> None:
    path.write_bytes(b"PYSYNCOBJ journal")
    with pytest.raises(RaftStorageError, match="not a Raft journal"):
        open_journal(path)


def test_an_entry_that_is_there_keeps_later_entries(path: Path) -> None:
    journal = filled(path, 10)
    journal.deleteEntriesFrom(4)
    journal.add(b"c5", 5, 1)
    assert indexes(journal) == list(range(1, 11))


def test_a_conflict_forgets_later_entries_also_after_a_restart(path: Path) -> None:
    journal = filled(path, 10)
    journal.add(b"other", 5, 2)
    journal.sync()
    assert open_journal(path)[:] == journal[:]
    assert journal[-1] == Entry(b"other", 5, 2)


def test_a_conflict_with_a_committed_entry_is_a_violation(path: Path) -> None:
    journal = filled(path, 10)
    journal.setRaftCommitIndex(5)
    with pytest.raises(InvariantViolation, match="contradicts the committed one"):
        journal.add(b"other", 5, 2)


@pytest.mark.parametrize("index", [0, 12])
def test_a_gap_is_a_violation(path: Path, index: int) -> None:
    journal = filled(path, 10)
    with pytest.raises(InvariantViolation, match="does not fit"):
        journal.add(b"x", index, 1)


def test_compaction_keeps_the_rest_and_never_less_than_two(path: Path) -> None:
    journal = filled(path, 10)
    journal.setCurrentTerm(3, "127.0.0.1:7003")
    journal.mark_joined()
    inode = path.stat().st_ino
    journal.deleteEntriesTo(7)
    assert indexes(journal) == [8, 9, 10]
    assert path.stat().st_ino != inode, "a new file, renamed"
    journal.add(b"c11", 11, 3)
    journal.sync()
    again = open_journal(path)
    assert indexes(again) == [8, 9, 10, 11]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.joined) == (3, "127.0.0.1:7003", True)
    again.deleteEntriesTo(4)
    assert indexes(again) == [10, 11]


def test_a_kill_inside_compaction_leaves_the_old_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(path, 10)

    def killed(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        journal.deleteEntriesTo(7)
    monkeypatch.undo()
    assert indexes(open_journal(path)) == list(range(1, 11))


def test_the_new_journal_is_synced_before_it_replaces_the_old(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(path, 10)
    steps: list[str] = []
    monkeypatch.setattr(os, "fsync", recording(steps, "sync", os.fsync))
    monkeypatch.setattr(Path, "replace", recording(steps, "rename", Path.replace))
    journal.deleteEntriesTo(7)
    assert steps == ["sync", "rename", "sync"]


def test_the_head_is_aligned_with_a_newer_snapshot(path: Path) -> None:
    filled(path, 10)
    head = SnapshotHead(Entry(b"c7", 7, 1), Entry(b"c6", 6, 1))
    assert indexes(open_journal(path, head)) == [6, 7, 8, 9, 10]
    assert indexes(open_journal(path, head)) == [6, 7, 8, 9, 10]


def test_a_snapshot_of_another_history_changes_nothing(path: Path) -> None:
    filled(path, 10)
    head = SnapshotHead(Entry(b"c7", 7, 2), Entry(b"c6", 6, 1))
    assert indexes(open_journal(path, head)) == list(range(1, 11))


def test_a_failed_sync_ends_the_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(path, 1)

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    journal.add(b"c2", 2, 1)
    with pytest.raises(ProcessEnded, match=r"failed \(.*Input/output error\).*this process ends"):
        journal.sync()


def test_the_commit_hint_never_exceeds_the_log(path: Path) -> None:
    journal = filled(path, 10)
    journal.setRaftCommitIndex(99)
    assert journal.getRaftCommitIndex() == 10


def test_the_bytes_of_the_commands_are_counted(path: Path) -> None:
    journal = filled(path, 10)
    assert journal.entry_bytes == 9 * 2 + 3
    journal.add(b"other", 9, 2)
    assert journal.entry_bytes == 8 * 2 + 5
    journal.deleteEntriesTo(7)
    assert journal.entry_bytes == 2 + 5
    journal.clear()
    assert journal.entry_bytes == 0


class FullDisk:
    """os.pwrite, on a disk with so many bytes left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._write = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.write)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        fits = data[: self.room]
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(fits)
        return self._write(descriptor, fits, position)


def test_the_head_is_aligned_with_a_newer_snapshot_also_where_the_disk_has_no_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySyncObj would throw away the log, and with it what was acknowledged after the snapshot."""
    filled(path, 10)
    head = SnapshotHead(Entry(b"c7", 7, 1), Entry(b"c6", 6, 1))
    disk = FullDisk(monkeypatch, 0)
    journal = open_journal(path, head)
    assert indexes(journal) == [6, 7, 8, 9, 10]
    assert journal.entry_bytes == 4 * 2 + 3
    assert indexes(open_journal(path)) == list(range(1, 11)), "the file is as long as it was"
    disk.room = 1 << 20
    journal.add(b"other", 9, 2)
    journal.sync()
    assert indexes(open_journal(path, head)) == [6, 7, 8, 9]


@pytest.mark.parametrize("room", [0, 1, 7, 30])
def test_without_room_records_stay_pending_and_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    journal = filled(path, 3)
    before = path.read_bytes()
    disk = FullDisk(monkeypatch, room)
    journal.add(b"c4", 4, 1)
    journal.sync()
    assert journal.stalled
    assert journal.dirty
    assert path.read_bytes() == before
    journal.add(b"c5", 5, 1)
    journal.sync()
    assert journal.stalled
    disk.room = 1 << 20
    journal.sync()
    journal.add(b"c6", 6, 1)
    journal.sync()
    assert indexes(open_journal(path)) == [1, 2, 3, 4, 5, 6]


def test_a_vote_that_found_no_room_is_kept_once_there_is_some(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = filled(path, 1)
    disk = FullDisk(monkeypatch, 0)
    journal.setCurrentTerm(5, "127.0.0.1:7002")
    assert journal.stalled
    assert open_journal(path).getCurrentTerm() == 0
    disk.room = 1 << 20
    journal.sync()
    again = open_journal(path)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (5, "127.0.0.1:7002")


def test_a_compaction_that_finds_no_room_leaves_the_journal_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(path, 10)
    disk = FullDisk(monkeypatch, 20)
    journal.deleteEntriesTo(5)
    assert indexes(journal) == list(range(1, 11))
    assert not path.with_suffix(".new").exists()
    disk.room = 1 << 20
    journal.add(b"c11", 11, 1)
    journal.sync()
    journal.deleteEntriesTo(5)
    journal.add(b"c12", 12, 1)
    journal.sync()
    assert indexes(open_journal(path)) == list(range(6, 13))


def test_a_failed_sync_ends_the_process_whatever_the_reason_it_gives(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled(path, 1)

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", refuse)
    journal.add(b"c2", 2, 1)
    with pytest.raises(ProcessEnded):
        journal.sync()


def test_the_last_batch_and_the_name_are_on_disk_before_a_life_relies_on_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may know them from its memory only: the sync of that batch failed, or a kill came before that of the
    folder."""
    filled(path, 3)
    content = path.read_bytes()
    steps: list[str] = []
    written: list[tuple[bytes, int]] = []
    pwrite = os.pwrite

    def noted(descriptor: int, data: memoryview, position: int) -> int:
        steps.append("write")
        written.append((bytes(data), position))
        return pwrite(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", noted)
    monkeypatch.setattr(os, "fsync", recording(steps, "sync", os.fsync))
    assert indexes(open_journal(path)) == [1, 2, 3]
    assert steps == ["write", "sync", "sync"], "the batch, the file, the folder"
    ((data, position),) = written
    assert content[position:] == data
    assert data.startswith(b"\xa7RJB")
    assert path.read_bytes() == content
