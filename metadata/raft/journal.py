"""The durable Raft log of one node: entries, term and vote, in one append-only file.

File layout (little endian):

    file   := "TLRJRNL1" batch*
    batch  := "\\xA7RJB" | crc32c u32 | length u32 | sequence u64 | record*      (crc over length, sequence and records)
    record := kind u8 | length u32 | body

    kind  body                          meaning
    E     index u64 | term u64 | bytes  append this entry
    D     index u64                     forget the entries from this index on (a conflict with the leader)
    X     -                             forget all entries (a snapshot was installed)
    M     term u64 | vote               current term, and the voter voted for in it (empty: none)
    C     index u64                     commit index; a hint, never more than was committed
    J     -                             this node may vote: it has synchronised with its group once
    B     text                          boot id of the operating system: in the first batch of a life

One batch is one write and one fdatasync: `add` and the rest only buffer, `sync` writes. Nothing that depends on a
record may leave the node before `sync` returned; the transport sees to that. A batch counts whole or not at all.

Invariants:

* Batch n+1 is written only after batch n was synced. So when a batch cannot be read, it is the unacknowledged end of a
  power cut if nothing readable follows it, and it is cut off; if a later batch follows, synced data was damaged and the
  journal refuses to open. So it does where the operating system has not been started since (the process was killed) and
  unreadable bytes are not the beginning of a batch that the file's end cuts off. After a power cut damage in the last
  batch cannot be told from its torn end.
* After a failed write or fdatasync the process ends: the page cache may have dropped the pages that could not be
  written. The next life finds them in the page cache still, and writes and syncs the last batch, and the file's name,
  before it relies on them.
* A write that found the disk full is no such failure: the written part is cut off, the records stay pending, and
  the journal is `stalled` until a later `sync` finds room. A node whose journal is stalled is as one that stands
  still: it sends nothing, reads nothing and applies nothing of its own (see engine and transport).
* An entry that is already there (same index and term) is kept together with all that follows it, as Raft demands;
  entries are forgotten only where the terms differ, never at or below the commit index, and never because a message
  arrived late.
* Compaction writes a new file, syncs it and renames it over the old one.
* The sequence of batches goes on through compactions, and in a file that takes the place of one that was lost: so a
  file whose last batch is below the mark (`metadata.raft.journal_mark`) is an older copy, which is damage.
"""

from __future__ import annotations

import errno
import logging
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, overload

import crc32c

from metadata.raft.files import OS_FILES, RaftFiles, open_emptied
from metadata.raft.journal_mark import JournalMark
from metadata.raft.types import REGULAR, ExitProcess, InvariantViolation, RaftDamage, RaftStorageError

_log = logging.getLogger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FILE_MAGIC = b"TLRJRNL1"
BATCH_MAGIC = b"\xa7RJB"

_BATCH = struct.Struct("<4sIIQ")
_RECORD = struct.Struct("<cI")
_INDEX = struct.Struct("<Q")
_INDEX_TERM = struct.Struct("<QQ")

_REMEDY = "stop this voter, empty its Raft directory and let it synchronise from the others."

KEPT_ENTRIES = 2
"""The log never gets shorter by compaction: PySyncObj compares its first two entries with the snapshot's."""


class Entry(NamedTuple):
    """One entry of the log; equal to the tuple that PySyncObj handles."""

    command: bytes
    index: int  # type: ignore[assignment] # hides tuple.index, which is never called on an entry
    term: int


class SnapshotHead(NamedTuple):
    """The last two entries that a snapshot covers, in PySyncObj's order."""

    last: Entry
    before_last: Entry


def _record(kind: bytes, body: bytes = b"") -> bytes:
    return _RECORD.pack(kind, len(body)) + body


def _batch(sequence: int, records: bytes) -> bytes:
    checked = struct.pack("<IQ", len(records), sequence) + records
    return _BATCH.pack(BATCH_MAGIC, crc32c.crc32c(checked), len(records), sequence) + records


def _read_batch(data: bytes, position: int) -> tuple[int, bytes] | None:
    """(sequence, records) of the batch at `position`, or None when it is not whole and sound."""
    if position + _BATCH.size > len(data):
        return None
    magic, checksum, length, sequence = _BATCH.unpack_from(data, position)
    end = position + _BATCH.size + length
    if magic != BATCH_MAGIC or end > len(data):
        return None
    records = data[position + _BATCH.size : end]
    if crc32c.crc32c(struct.pack("<IQ", length, sequence) + records) != checksum:
        return None
    return sequence, records


def _sequence_at(data: bytes, position: int) -> int:
    """The bytes at the place of the sequence number of a batch at `position`, as a number; 0 behind the file's end."""
    if position + _BATCH.size > len(data):
        return 0
    sequence: int = _BATCH.unpack_from(data, position)[3]
    return sequence


class Journal:
    """The log object that PySyncObj is given. Camel-case methods are its interface. The class has more than thirty
    methods because PySyncObj 0.3.17 fixes that interface.

    Positions are list positions (0 is the oldest entry kept), indexes are Raft indexes (from 1).
    """

    def __init__(
        self,
        path: Path,
        *,
        snapshot: SnapshotHead | None,
        exit_process: ExitProcess,
        boot_id: str = "",
        mark: JournalMark | None = None,
        after: int = 0,
        files: RaftFiles = OS_FILES,
    ) -> None:
        """Open or create the journal at `path`, cut a torn end and align the head with the snapshot. `mark`: is closed
        with it. `after`: the batches of a new file are numbered from there on.

        Raises RaftStorageError when the file is not a journal or cannot be begun, RaftDamage when synced data in it is
        damaged, or when it is older than the mark.
        """
        self._mark = mark
        self._begins_after = max(after, self._marked)
        self._path = path
        self._files = files
        self._exit_process = exit_process
        self._entries: list[Entry] = []
        self._entry_bytes = 0
        self._term = 0
        self._vote: str | None = None
        self._commit_index = 1
        self._commit_hint_pending = False
        self._joined = False
        self._boot_id = ""
        """Under which the last batch was written."""
        self._present_boot_id = boot_id
        self._pending: list[bytes] = []
        self._sequence = 0
        """Number of the newest synced batch."""
        self._size = 0
        """Bytes of whole batches in the file."""
        self.stalled = False
        """The pending records found no room on the disk."""
        self._handle = files.open(path, write=True, create=True)
        try:
            self._load(has_snapshot=snapshot is not None)
            if snapshot is not None:
                self._align(snapshot)
            if boot_id != self._boot_id:
                self._boot_id = boot_id
                self._pending.append(_record(b"B", boot_id.encode()))  # nothing waits for it: it rides with the next
        except BaseException:
            files.close(self._handle)
            if mark is not None:
                mark.close()
            raise

    # ---------------------------------------------------------------------------- opening

    # Keeps R77.
    def _load(self, *, has_snapshot: bool) -> None:
        """Replay the file; begin it when there is none."""
        data = self._files.read(self._handle, self._files.size(self._handle), 0)
        if len(data) < len(FILE_MAGIC) and FILE_MAGIC.startswith(data):
            # Killed while the very first bytes were written: nothing was ever acknowledged from this file.
            try:
                self._files.truncate(self._handle, 0)
                self._files.write(self._handle, (FILE_MAGIC,), 0)
                self._files.sync_all(self._handle)
                self._files.sync_directory(self._path.parent)
            except OSError as error:
                raise RaftStorageError(
                    f"The Raft journal {self._path} cannot be begun ({error}); repair or free the disk."
                ) from error
            self._size = len(FILE_MAGIC)
            self._sequence = self._begins_after
            return
        if not data.startswith(FILE_MAGIC):
            self._refuse_title(data)
        position, last = len(FILE_MAGIC), 0
        while (batch := _read_batch(data, position)) is not None:
            self._sequence, records = batch
            self._replay(records)
            last, position = position, position + _BATCH.size + len(records)
        self._refuse_unless_torn(data, position, has_snapshot=has_snapshot)
        if position == len(FILE_MAGIC):
            self._sequence = self._begins_after  # nothing was ever synced in this file
        if self._sequence < self._marked:
            raise RaftDamage(
                f"{self._path} is an older copy: it ends with batch {self._sequence}, and batch {self._marked} was"
                f" written here, so this voter has forgotten what it told others since; {_REMEDY}"
            )
        if position < len(data):
            self._files.truncate(self._handle, position)
        self._write_again(data[last:position], last)
        self._files.sync_all(self._handle)
        self._files.sync_directory(self._path.parent)
        self._size = position

    def _write_again(self, batch: bytes, position: int) -> None:
        """What was read may be in memory only: of a batch whose sync failed the system keeps the bytes and counts them
        as written, and a kill inside a compaction leaves a new name that was not synced. Such systems write in place,
        which needs no room."""
        try:
            self._files.write(self._handle, (batch,), position)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise

    def _refuse_title(self, data: bytes) -> NoReturn:
        if data[len(FILE_MAGIC) - 1 : len(FILE_MAGIC)] == FILE_MAGIC[-1:] and _read_batch(data, len(FILE_MAGIC)):
            raise RaftDamage(f"{self._path} is damaged at byte 0: it begins with {data[:8]!r}; {_REMEDY}")
        raise RaftStorageError(
            f"{self._path} is not a Raft journal of this version (it begins with {data[:8]!r}); point the data "
            "directory elsewhere, or move the file away if this voter may start empty."
        )

    def _refuse_unless_torn(self, data: bytes, position: int, *, has_snapshot: bool) -> None:
        """Tells damage of synced batches from the torn end of an unsynced one, which is no error. A file that a
        compaction wrote got its name when it was synced, so its first batch is never torn."""
        if position == len(data):
            return
        candidate = data.find(BATCH_MAGIC, position + 1)
        while candidate >= 0:
            later = _read_batch(data, candidate)
            if later is not None and later[0] > self._sequence + 1:
                raise RaftDamage(
                    f"{self._path} is damaged at byte {position} although later data is sound, so acknowledged "
                    f"commands may be missing; {_REMEDY}"
                )
            candidate = data.find(BATCH_MAGIC, candidate + 1)
        if self._sequence == 0 and (has_snapshot or _sequence_at(data, position) > self._begins_after + 1):
            raise RaftDamage(f"{self._path} is damaged in its first batch, which a compaction wrote; {_REMEDY}")
        if self._boot_id and self._boot_id == self._present_boot_id and not self._is_cut_short(data, position):
            raise RaftDamage(
                f"{self._path} is damaged at byte {position}, in its last batch: the operating system has not been "
                f"started since that was written; {_REMEDY}"
            )

    def _is_cut_short(self, data: bytes, position: int) -> bool:
        """Whether the rest is the beginning of the next batch, whose end was never written."""
        rest = len(data) - position - _BATCH.size
        if rest < 0:
            return BATCH_MAGIC.startswith(data[position : position + len(BATCH_MAGIC)])
        magic, checksum, length, sequence = _BATCH.unpack_from(data, position)
        if magic != BATCH_MAGIC or sequence != (self._sequence or self._begins_after) + 1 or length <= rest:
            return False
        # Or all of it is there, and the length was damaged.
        whole = crc32c.crc32c(struct.pack("<IQ", rest, sequence) + data[position + _BATCH.size :])
        return bool(whole != checksum)

    def _replay(self, records: bytes) -> None:
        position = 0
        while position < len(records):
            kind, length = _RECORD.unpack_from(records, position)
            body = records[position + _RECORD.size : position + _RECORD.size + length]
            position += _RECORD.size + length
            match kind:
                case b"E":
                    index, term = _INDEX_TERM.unpack_from(body)
                    self._append(Entry(body[_INDEX_TERM.size :], index, term))
                case b"D":
                    self._forget_from(_INDEX.unpack(body)[0])
                case b"X":
                    self._forget_all()
                case b"M":
                    self._term = _INDEX.unpack_from(body)[0]
                    self._vote = body[_INDEX.size :].decode() or None
                case b"C":
                    self._commit_index = _INDEX.unpack(body)[0]
                case b"J":
                    self._joined = True
                case b"B":
                    self._boot_id = body.decode()
                case _:
                    raise RaftStorageError(
                        f"{self._path} holds a record of kind {kind!r}, which this version does not know; run the "
                        "version that wrote it."
                    )

    def _align(self, snapshot: SnapshotHead) -> None:
        """Finish a compaction that was killed between the snapshot's rename and the journal's.

        PySyncObj throws away a log whose first two entries are not the snapshot's last two, and with it all that was
        acknowledged after the snapshot.
        """
        if not self._entries:
            return
        position = snapshot.before_last.index - self._entries[0].index
        if position > 0 and tuple(self._entries[position : position + 2]) == (snapshot.before_last, snapshot.last):
            self.deleteEntriesTo(position)
            self._forget_before(snapshot.before_last.index)  # without room for the shorter file, in memory alone

    # ---------------------------------------------------------------------------- memory

    def _append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._entry_bytes += len(entry.command)

    def _forget_from(self, index: int) -> None:
        position = index - self._entries[0].index
        self._entry_bytes -= sum(len(entry.command) for entry in self._entries[position:])
        del self._entries[position:]

    def _forget_before(self, index: int) -> None:
        position = index - self._entries[0].index
        self._entry_bytes -= sum(len(entry.command) for entry in self._entries[:position])
        del self._entries[:position]

    def _forget_all(self) -> None:
        self._entries = []
        self._entry_bytes = 0

    @property
    def last(self) -> Entry:
        return self._entries[-1]

    def holds(self, index: int, term: int) -> bool:
        """Whether this very entry is here, and with it everything before it."""
        return self._term_of(index) == term

    def check_committed(self, index: int, term: int) -> None:
        """Raises InvariantViolation when another entry of that index is here and committed."""
        committed = self._term_of(index)
        if index <= self._commit_index and committed not in (None, term):
            raise InvariantViolation(
                f"Raft entry {index} of term {term} contradicts the committed one of term {committed} in {self._path};"
                " a majority of the voters must have lost their disks."
            )

    def check_end(self, index: int, leader_term: int) -> None:
        """Raises InvariantViolation when the log of the leader of that term ends at `index`, and lacks a committed
        entry. A leader has had the entries of earlier terms since its election; those of its own term it adds later."""
        committed = self._term_of(self._commit_index)
        if index < self._commit_index and committed is not None and committed < leader_term:
            raise InvariantViolation(
                f"The Raft leader's log ends at {index}, which contradicts the committed entry {self._commit_index} of"
                f" term {committed} in {self._path}; a majority of the voters must have lost their disks."
            )

    def _term_of(self, index: int) -> int | None:
        position = index - self._entries[0].index
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    @property
    def entry_bytes(self) -> int:
        """Bytes of all commands in memory, which is the cost of the log."""
        return self._entry_bytes

    @property
    def joined(self) -> bool:
        """False: this node's disk was empty and it has not yet synchronised, so it may have forgotten votes."""
        return self._joined

    @property
    def has_commands(self) -> bool:
        """Whether there is, or was, an entry that is more than a place in the log."""
        return self._entries[0].index > 1 or any(entry.command[0] == REGULAR for entry in self._entries)

    # ---------------------------------------------------------------------------- durability

    @property
    def _marked(self) -> int:
        return 0 if self._mark is None else self._mark.sequence

    def _synced(self) -> None:
        """Another batch is durable."""
        self._sequence += 1
        if self._mark is not None:
            self._mark.write(self._sequence)

    @property
    def dirty(self) -> bool:
        return bool(self._pending)

    def sync(self) -> None:
        """Make everything so far durable: one write, one fdatasync. Does nothing when nothing is pending. On a full
        disk everything stays pending, and the journal is `stalled`.
        """
        if not self._pending:
            return
        if self._commit_hint_pending:
            self._pending.append(_record(b"C", _INDEX.pack(self._commit_index)))
            self._commit_hint_pending = False
        data = _batch(self._sequence + 1, b"".join(self._pending))
        try:
            if not self._write(data):
                return
            self._files.sync_data(self._handle)
        except OSError as error:
            self._exit_process(
                f"Writing the Raft journal {self._path} failed ({error}); what is on disk is unknown now, so this "
                "process ends. "
                f"Repair or free the disk and start again."
            )
        self._synced()
        self._size += len(data)
        self._pending = []
        if self.stalled:
            self.stalled = False
            _log.warning("The Raft journal %s has room again; this node takes part again.", self._path)

    def _write(self, data: bytes) -> bool:
        """False: there is no room, and the file is as it was."""
        try:
            self._files.write(self._handle, (data,), self._size)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._files.truncate(self._handle, self._size)
            if not self.stalled:
                self.stalled = True
                _log.error(
                    "The Raft journal %s has no room (%s); this node stands aside until there is some. Free the disk.",
                    self._path, error,
                )  # fmt: skip
            return False
        return True

    def mark_joined(self) -> None:
        if not self._joined:
            self._joined = True
            self._pending.append(_record(b"J"))

    # -------------------------------------------------------------------------------- PySyncObj's interface

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append the entry; keep it when it is there already; where terms differ replace it and forget the entries
        behind it.

        Raises InvariantViolation for a gap, for an index before the log and for a conflict with a committed entry.
        """
        if self._entries:
            position = idx - self._entries[0].index
            if position < 0 or position > len(self._entries):
                raise InvariantViolation(
                    f"Raft entry {idx} does not fit the log {self._entries[0].index}..{self.last.index} of "
                    f"{self._path}."
                )
            if position < len(self._entries):
                if self._entries[position].term == term:
                    return
                self.check_committed(idx, term)
                self._forget_from(idx)
                self._pending.append(_record(b"D", _INDEX.pack(idx)))
        entry = Entry(bytes(command), idx, term)
        self._append(entry)
        self._pending.append(_record(b"E", _INDEX_TERM.pack(idx, term) + entry.command))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803
        """Nothing: PySyncObj asks for it on every message, matching or not. `add` forgets on a conflict, and only
        then.
        """

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        """Compact: forget the oldest `entryTo` entries, which a durable snapshot covers. Keeps at least
        KEPT_ENTRIES.
        """
        forgotten = min(entryTo, len(self._entries) - KEPT_ENTRIES)
        if forgotten <= 0:
            return
        self.sync()
        if self.stalled:
            return
        kept = self._entries[forgotten:]
        records = [_record(b"M", _INDEX.pack(self._term) + (self._vote or "").encode())]
        records.append(_record(b"C", _INDEX.pack(self._commit_index)))
        if self._joined:
            records.append(_record(b"J"))
        records.append(_record(b"B", self._boot_id.encode()))
        records.extend(_record(b"E", _INDEX_TERM.pack(entry.index, entry.term) + entry.command) for entry in kept)
        data = FILE_MAGIC + _batch(self._sequence + 1, b"".join(records))
        replacement = self._path.with_suffix(".new")
        try:
            handle = self._written_beside(replacement, data)
            if handle is None:
                return
            self._files.rename(replacement, self._path)
            self._files.sync_directory(self._path.parent)
        except OSError as error:
            self._exit_process(
                f"Compacting the Raft journal {self._path} failed ({error}); this process ends. Repair or free the "
                "disk and start again."
            )
        self._synced()
        self._size = len(data)
        self._files.close(self._handle)
        self._handle = handle
        self._entries = kept
        self._entry_bytes = sum(len(entry.command) for entry in kept)
        self._commit_hint_pending = False

    def _written_beside(self, path: Path, data: bytes) -> int | None:
        """The handle of a synced file with this content; None: there is no room for it, and the journal stays as long
        as it is. As after a kill between the snapshot and the compaction."""
        handle = -1
        try:
            handle = open_emptied(self._files, path)
            self._files.write(handle, (data,), 0)
            self._files.sync_all(handle)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            _log.error("The Raft journal %s cannot be compacted (%s); it grows until it can.", self._path, error)
            if handle >= 0:
                self._files.close(handle)
            self._files.remove(path)
            return None
        return handle

    def clear(self) -> None:
        self._forget_all()
        self._pending.append(_record(b"X"))

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Durable on return: the caller sends a vote or a request for votes next."""
        if (term, votedForNodeId) == (self._term, self._vote):
            return
        self._term, self._vote = term, votedForNodeId
        self._pending.append(_record(b"M", _INDEX.pack(term) + (votedForNodeId or "").encode()))
        self.sync()

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self._vote

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Rides with the next batch; nothing waits for it, since a restarted node learns it again from the leader."""
        if raftCommitIndex != self._commit_index:
            self._commit_index = raftCommitIndex
            self._commit_hint_pending = True

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return min(self._commit_index, self.last.index) if self._entries else 1

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing is written on a timer."""

    def _destroy(self) -> None:
        self.sync()
        self._files.close(self._handle)
        if self._mark is not None:
            self._mark.close()

    @overload
    def __getitem__(self, key: int) -> Entry: ...
    @overload
    def __getitem__(self, key: slice) -> list[Entry]: ...
    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __len__(self) -> int:
        return len(self._entries)
