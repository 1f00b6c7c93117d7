"""Verifies a partition's folder for an operator while no broker uses it. Nothing is written.

Findings are of three kinds; the first two make a folder unclean:

    DAMAGE       records that this replica has acknowledged cannot be read, or differ from the records written
    REPAIRABLE   a small file contradicts the batches, or is damaged; the next start notices and makes it anew
    NOTE         the torn end that a crash left and the next start cuts, and files kept from an earlier damage

The invariants are those of `dataplane.log.partition_log`, `index`, `checkpoints` and
`dataplane.replica.derived.epochs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from dataplane.encryption.bodies import BatchCipher, key_id_of
from dataplane.log.derived.installation import INSTALLATION_FILE
from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from dataplane.log.offline.inspection import StoredBatch, Unreadable, read_segment
from dataplane.log.recovery.damage import MARK_FILE, QUARANTINE, read_mark
from dataplane.log.segments.index import ENTRY_SIZE, NO_TIMESTAMP, decode_entries
from dataplane.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX
from dataplane.log.storage.checkpoints import (
    COMPACTION_FILE,
    EPOCHS_FILE,
    OFFSETS_FILE,
    is_sound,
    read_epochs,
    read_file,
    read_offsets,
)
from wire.batch import HEADER_SIZE
from wire.errors import CorruptData, TidelogError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dataplane.encryption.keyring import Keyring
    from dataplane.log.derived.log_snapshot import Snapshot
    from dataplane.log.segments.index import IndexEntry
    from dataplane.log.storage.checkpoints import OffsetCheckpoint
    from dataplane.log.storage.files import FileSystem
    from wire.batch import BatchHeader

MAX_FINDINGS: Final = 1000
"""Findings kept per partition; further ones are counted."""


class Kind(Enum):
    DAMAGE = "damage"
    REPAIRABLE = "repairable"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    file: str
    """Its name in the partition's folder."""
    message: str
    position: int | None = None
    """Bytes from the beginning of the file."""
    size: int | None = None


@dataclass(slots=True)
class PartitionReport:
    """The findings in one partition's folder."""

    directory: Path
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    """Exclusive end of the readable records."""
    master_keys: dict[str, int] = field(default_factory=dict)
    """Encrypted batches, by the id of the master key that they need."""
    findings: list[Finding] = field(default_factory=list)
    findings_left_out: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.findings_left_out and all(finding.kind is Kind.NOTE for finding in self.findings)

    def add(self, kind: Kind, file: str, message: str, position: int | None = None, size: int | None = None) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(kind, file, message, position, size))
        else:
            self.findings_left_out += 1


def verify_partition(
    files: FileSystem, directory: Path, *, keyring: Keyring | None = None, on_bytes: Callable[[int], None]
) -> PartitionReport:
    """Verifies everything in the folder. `on_bytes(count)` is called after each read. With `keyring`, encrypted batches
    whose master key is in it are decrypted as well. Raises OSError."""
    return _Verification(files, directory, keyring, on_bytes).run()


class _Verification:
    def __init__(
        self, files: FileSystem, directory: Path, keyring: Keyring | None, on_bytes: Callable[[int], None]
    ) -> None:
        self._files = files
        self._directory = directory
        self._cipher = BatchCipher(keyring, None) if keyring is not None else None
        self._on_bytes = on_bytes
        self._report = PartitionReport(directory)
        self._end = 0
        self._epochs: list[tuple[int, int]] = []
        """(leader epoch, base offset of its first batch)."""
        self._tail: list[tuple[str, Unreadable]] = []
        """Unreadable pieces that no sound batch has followed yet; they may be the end of the log."""
        self._vouched = 0
        self._indexed_end = 0
        """Offset of the last index entry: the file of the leader epochs holds those that begin before it."""

    def run(self) -> PartitionReport:
        report, names = self._report, self._files.names(self._directory)
        if INSTALLATION_FILE in names:
            message = "the log was being begun anew with another replica's state; the next start finishes that"
            report.add(Kind.NOTE, INSTALLATION_FILE, message)
            return report
        checkpoint = self._offset_checkpoint(names)
        start = checkpoint.log_start_offset if checkpoint is not None else None
        if checkpoint is not None:
            self._vouched = checkpoint.vouched_end
        bases = sorted(int(n.removesuffix(LOG_SUFFIX)) for n in names if _is_segment(n))
        for base in [b for b in bases if start is not None and b < start]:
            report.add(Kind.NOTE, _segment(base), f"lies below the log's start {start}; the next start removes it")
        bases = [base for base in bases if start is None or base >= start]
        snapshots = self._snapshots(names)
        self._vouched = max([self._vouched, *(snapshot.offset for _, snapshot in snapshots)])
        self._end = report.log_start_offset = start if start is not None else bases[0] if bases else 0
        if bases and bases[0] != self._end:
            report.add(Kind.DAMAGE, _segment(bases[0]), f"the segment that begins at {self._end} is missing before it")
            self._end = bases[0]
        for base in bases:
            self._segment(base)
        for name in names:
            if name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) + LOG_SUFFIX not in names:
                report.add(Kind.NOTE, name, "an index without its segment; the next start removes it")
        self._judge_tail()
        report.log_end_offset = self._end
        if self._end < self._vouched:
            report.add(
                Kind.DAMAGE,
                _segment(bases[-1]) if bases else OFFSETS_FILE,
                f"the log ends at offset {self._end}, but records up to offset {self._vouched} were durable or "
                "committed here",
            )
        if all(finding.kind is not Kind.DAMAGE for finding in report.findings):
            # Where records are missing, the leader epochs that they had are not known.
            self._leader_epochs(names)
            for name, snapshot in snapshots:
                self._epochs_of_snapshot(name, snapshot)
        if COMPACTION_FILE in names and not is_sound(self._files, self._directory / COMPACTION_FILE):
            report.add(Kind.REPAIRABLE, COMPACTION_FILE, "damaged, or of another version")
        if MARK_FILE in names:
            report.add(
                Kind.DAMAGE, MARK_FILE, f"damage was met while a broker ran: {read_mark(self._files, self._directory)}"
            )
        if QUARANTINE in names:
            held = ", ".join(self._files.names(self._directory / QUARANTINE))
            report.add(Kind.NOTE, QUARANTINE, f"holds what was moved aside from an earlier damage: {held or 'nothing'}")
        return report

    # ---- segments

    def _segment(self, base: int) -> None:
        name, report = _segment(base), self._report
        if base == self._end and all(piece.zeros for _, piece in self._tail):
            self._tail.clear()  # the segment before was full, and its reserved room not yet given back
        if base != self._end:
            report.add(
                Kind.DAMAGE, name, f"begins at offset {base}, but the log before it ends at {self._end}: records miss"
            )
            self._end = max(self._end, base)
        report.segments += 1
        index = _IndexCheck(self._index_entries(base))
        self._vouched = max(self._vouched, index.end_offset)
        self._indexed_end = max(self._indexed_end, index.end_offset)
        newest = NO_TIMESTAMP
        handle = self._files.open(self._directory / name)
        try:
            size = self._files.size(handle)
            for piece in read_segment(self._files, handle, 0, size):
                index.compare(piece.position, self._end, newest)
                if isinstance(piece, StoredBatch):
                    self._batch(name, piece)
                    newest = max(newest, piece.header.last_timestamp)
                    self._on_bytes(piece.header.size)
                else:
                    index.stop()
                    self._tail.append((name, piece))
                    self._on_bytes(piece.size)
        finally:
            self._files.close(handle)
        index.compare(size, self._end, newest)
        if index.contradiction is not None:
            report.add(Kind.REPAIRABLE, _index(base), index.contradiction)
        if index.end_position > size:
            reason = f"has {size} bytes, but its index knows of {index.end_position} that were synced"
            report.add(Kind.DAMAGE, name, reason, size)

    def _batch(self, name: str, stored: StoredBatch) -> None:
        header, report = stored.header, self._report
        missing = f"; offsets {self._end} to {header.base_offset - 1} are missing" * (header.base_offset > self._end)
        for file, piece in self._tail:  # something sound follows: this was no end
            report.add(Kind.DAMAGE, file, piece.reason + missing, piece.position, piece.size)
        self._tail.clear()
        report.batches += 1
        report.records += 0 if header.is_control else header.record_count
        report.bytes += header.size
        place = (stored.position, header.size)
        if header.base_offset < self._end:
            report.add(Kind.DAMAGE, name, f"{header} lies behind offset {self._end - 1}", *place)
        latest = self._epochs[-1][0] if self._epochs else 0
        if header.leader_epoch < latest:
            report.add(
                Kind.DAMAGE, name, f"{header} is of leader epoch {header.leader_epoch}, behind one of {latest}", *place
            )
        elif header.leader_epoch > latest:
            self._epochs.append((header.leader_epoch, header.base_offset))
        fault = stored.fault or self._decryption_fault(header, stored.data)
        if fault is not None:
            report.add(Kind.DAMAGE, name, fault, *place)
        self._end = max(self._end, header.end_offset)

    def _decryption_fault(self, header: BatchHeader, data: bytes) -> str | None:
        if not header.is_encrypted:
            return None
        body = memoryview(data)[HEADER_SIZE:]
        key_id = key_id_of(body)
        keys = self._report.master_keys
        keys[key_id] = keys.get(key_id, 0) + 1
        if self._cipher is None or key_id not in self._cipher.keyring.ids:
            return None
        try:
            self._cipher.decrypt(header, body)
        except (CorruptData, TidelogError) as error:
            return str(error)
        return None

    def _judge_tail(self) -> None:
        """Judges the bytes behind the last sound batch: a torn end that a crash left, unless more records are known to
        have been here."""
        for name, piece in self._tail:
            if self._end < self._vouched:
                self._report.add(Kind.DAMAGE, name, piece.reason, piece.position, piece.size)
            elif not piece.zeros:
                message = f"{piece.reason}; what a crash leaves of a write, as far as is known here"
                self._report.add(Kind.NOTE, name, message, piece.position, piece.size)

    # ---- the small files

    def _index_entries(self, base: int) -> list[IndexEntry]:
        name = _index(base)
        content = read_file(self._files, self._directory / name) or b""
        entries = decode_entries(content)
        if entries and entries[0] != (base, 0, NO_TIMESTAMP):
            self._report.add(Kind.REPAIRABLE, name, f"does not begin at offset {base}")
            return []
        if len(entries) * ENTRY_SIZE != len(content):
            place = len(entries) * ENTRY_SIZE
            self._report.add(Kind.REPAIRABLE, name, "damaged from here on", place, len(content) - place)
        return entries

    def _offset_checkpoint(self, names: list[str]) -> OffsetCheckpoint | None:
        if OFFSETS_FILE not in names:
            return None
        checkpoint = read_offsets(self._files, self._directory)
        if checkpoint is None:
            self._report.add(Kind.REPAIRABLE, OFFSETS_FILE, "damaged, or of another version")
        return checkpoint

    def _leader_epochs(self, names: list[str]) -> None:
        if EPOCHS_FILE not in names:
            if self._epochs and self._indexed_end > self._epochs[0][1]:
                self._report.add(Kind.REPAIRABLE, EPOCHS_FILE, "is missing")
            return
        saved = read_epochs(self._files, self._directory)
        if saved is None:
            self._report.add(Kind.REPAIRABLE, EPOCHS_FILE, "damaged, or of another version")
            return
        starts = {int(entry.epoch): int(entry.start) for entry in saved}
        for number, (epoch, base) in enumerate(self._epochs):
            start = starts.pop(epoch, None)
            if start is None:
                if base < self._indexed_end:
                    self._report.add(
                        Kind.REPAIRABLE, EPOCHS_FILE, f"does not know leader epoch {epoch}, which begins at {base}"
                    )
            elif start != base and (number or start > base):
                message = f"says that leader epoch {epoch} begins at offset {start}; its first batch begins at {base}"
                self._report.add(Kind.REPAIRABLE, EPOCHS_FILE, message)
        for epoch, start in starts.items():
            if self._report.log_start_offset < start < self._end:
                message = f"says that leader epoch {epoch} begins at offset {start}; no batch is of it"
                self._report.add(Kind.REPAIRABLE, EPOCHS_FILE, message)

    def _snapshots(self, names: list[str]) -> list[tuple[str, Snapshot]]:
        """The sound snapshots."""
        found = []
        for name in names:
            base = name.removesuffix(SNAPSHOT_SUFFIX)
            if base == name or not base.isdigit():
                continue
            try:
                snapshot = decode_snapshot(read_file(self._files, self._directory / name) or b"")
            except CorruptData as error:
                self._report.add(Kind.REPAIRABLE, name, str(error))
                continue
            if snapshot.offset == int(base):
                found.append((name, snapshot))
            else:
                self._report.add(Kind.REPAIRABLE, name, f"holds the state at offset {snapshot.offset}")
        return found

    def _epochs_of_snapshot(self, name: str, snapshot: Snapshot) -> None:
        start = self._report.log_start_offset
        said = [(int(epoch), int(base)) for epoch, base in snapshot.epochs if base > start]
        wanted = [(epoch, base) for epoch, base in self._epochs if start < base < snapshot.offset]
        if snapshot.is_whole and said != wanted:
            message = f"says that leader epochs began at {said or 'no offset'}; by the batches they began at {wanted}"
            self._report.add(Kind.REPAIRABLE, name, message)


class _IndexCheck:
    """Compares the entries of an index with the batches of its segment as they are read."""

    def __init__(self, entries: list[IndexEntry]) -> None:
        self._entries = entries
        self._next: int | None = 0
        self.contradiction: str | None = None
        """The first one."""

    @property
    def end_offset(self) -> int:
        return self._entries[-1].offset if self._entries else 0

    @property
    def end_position(self) -> int:
        return self._entries[-1].position if self._entries else 0

    def stop(self) -> None:
        """Ends the comparison: after an unreadable piece the positions of batches are not known."""
        self._next = None

    def compare(self, position: int, end: int, newest: int) -> None:
        """A batch begins at byte `position`, or the segment ends there; the log before it ends at offset `end`, and
        `newest` is the largest timestamp of the segment up to there."""
        if self._next is None or self._next == len(self._entries):
            return
        entry = self._entries[self._next]
        if entry.position > position:
            return
        if entry == (end, position, newest):
            self._next += 1
            return
        self.contradiction = (
            f"says that the log reaches offset {entry.offset} at byte {entry.position} of the segment, with timestamps "
            f"up to {entry.max_timestamp}; by the batches it reaches {end} at byte {position}, with {newest}"
        )
        self.stop()


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit()


def _segment(base: int) -> str:
    return f"{base:020d}{LOG_SUFFIX}"


def _index(base: int) -> str:
    return f"{base:020d}{INDEX_SUFFIX}"
