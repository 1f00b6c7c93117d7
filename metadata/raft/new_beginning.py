"""The Raft files of one voter as the beginning of a group that has lost a majority of its voters. Offline.

    journal, snapshot ──every entry, committed or not──> the state ──> the state to begin anew with
           │                                                                        │
           v                                                                        v
    <raft>.before-recovery-N                                      a snapshot, and a journal of two entries

The new snapshot covers entries with an index and a term far beyond all that the group can have had. So a voter or an
observer that comes back with its files of before has nothing that the new beginning lacks, as Raft counts it: it can
lead nobody, and takes the snapshot in place of all that it has.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from metadata.raft.engine import JOURNAL_FILE, SNAPSHOT_FILE
from metadata.raft.files import OS_FILES, write_synced
from metadata.raft.journal import Entry, Journal, SnapshotHead
from metadata.raft.snapshot import decode_snapshot, encode_snapshot
from metadata.raft.types import NO_OP, REGULAR, RaftStorageError

INDEX_STEP = 1_000_000_000
TERM_STEP = 1_000_000
_NEW = ".recovered"
"""Ends the name of the folder in which the new files are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where the history of before ends."""

    index: int
    """The last entry of the journal has it."""
    term: int
    uncommitted: int
    """Entries at the end of which this voter does not know that they were committed; they are taken for that."""


def read(directory: Path, restore: Callable[[bytes], object], apply: Callable[[bytes], object]) -> Beginning:
    """Give all that the Raft directory holds to the methods of a state machine, and change nothing. Raises
    RaftStorageError: nothing is there, or it is damaged."""
    if not (directory / JOURNAL_FILE).exists():
        raise RaftStorageError(f"{directory} holds no Raft journal; give the data folder of a voter.")
    covered = 0
    head = None
    if (directory / SNAPSHOT_FILE).exists():
        head, state = decode_snapshot((directory / SNAPSHOT_FILE).read_bytes(), directory / SNAPSHOT_FILE)
        restore(state)
        covered = head.last.index
    copy = directory.with_name(directory.name + _NEW)
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    try:
        shutil.copy2(directory / JOURNAL_FILE, copy / JOURNAL_FILE)
        journal = Journal(copy / JOURNAL_FILE, snapshot=head, exit_process=_fail)
        if not len(journal):
            raise RaftStorageError(f"{directory} holds an empty Raft journal; give the data folder of another voter.")
        for entry in journal[:]:
            if entry.index > covered and entry.command[0] == REGULAR:
                apply(entry.command[1:])
        last, committed = journal.last, journal.getRaftCommitIndex()
        term = max(last.term, journal.getCurrentTerm())
        journal._destroy()
    finally:
        shutil.rmtree(copy, ignore_errors=True)
    return Beginning(index=last.index, term=term, uncommitted=max(0, last.index - max(committed, covered)))


def begin_anew(directory: Path, beginning: Beginning, state: bytes) -> Path:
    """Put files with that state in the place of those in the Raft directory; returns where those are kept. A crash
    leaves the files of before, in their place or where they are kept. Raises RaftStorageError, OSError."""
    new = directory.with_name(directory.name + _NEW)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    term, index = beginning.term + TERM_STEP, beginning.index + INDEX_STEP
    entries = [Entry(bytes([NO_OP]), index + offset, term) for offset in (0, 1)]
    write_synced(
        OS_FILES, new / SNAPSHOT_FILE, encode_snapshot(SnapshotHead(last=entries[1], before_last=entries[0]), state)
    )
    # No voter that the files are copied to has ever written so many batches: its mark finds no older copy in them.
    journal = Journal(new / JOURNAL_FILE, snapshot=None, exit_process=_fail, after=index)
    for entry in entries:
        journal.add(entry.command, entry.index, entry.term)
    journal.setRaftCommitIndex(entries[1].index)
    journal.setCurrentTerm(term, None)
    journal.mark_joined()
    journal._destroy()
    OS_FILES.sync_directory(new)
    number = 1
    while (kept := directory.with_name(f"{directory.name}.before-recovery-{number}")).exists():
        number += 1
    directory.rename(kept)
    new.rename(directory)
    OS_FILES.sync_directory(directory.parent)
    return kept


def _fail(reason: str) -> NoReturn:
    raise RaftStorageError(reason)
