"""Opening a log: which of its bytes are trusted, and which are cut.

Segments before the last are finished: their index ends with an entry at the end of the file that says where the next
segment begins. Where both agree the segment is believed without a look inside. From the first one that has no such end
(a crash came before it was finished) or else in the last segment, the scan begins at the last entry of the index and
reads and checks every batch up to the end. Index entries are written for synced bytes only, at every checkpoint; so the
scan reads the batches since the last checkpoint and one index interval at most.

The scan ends where no sound batch follows. That offset is compared with the end of the records that are known to have
been on stable storage or committed: the recovery point and the high watermark of the checkpoint, and the offsets of the
index entries.

    at or above it     the end that a crash left: zeros (room reserved ahead) or a torn batch. It is cut.
    where the next     the segment is whole. What lies behind is room that was not given back, or the rest of a write
    segment begins     for which there was no room; the next sync cuts it.
    below it           damage: records are missing that this replica has acknowledged. NOTHING is cut or written; the
                       log opens up to the damage, for reading; the replica is unsound and must leave the ISR first.

Retention writes the new log start into the checkpoint before it removes a segment. Segments below the log start were
left by a crash during retention and are removed; a log whose first segment begins above the log start has lost that
segment: damage.

The checkpoint does not cover records that were synced after it was written. Where the page cache has survived (the
process was killed, the operating system was not) every written byte is there, so the log ends with a whole batch or the
beginning of one; anything else is damage. After a loss of power a flipped bit behind the checkpoint cannot be told from
a torn write: see `docs/storage.md`.

The manifest of the data folder says of each log how far it was committed here (`dataplane.log.storage.manifest`). A log
of which nothing is left, that ends before that, or that holds another record there is damaged: its folder was lost,
emptied or replaced by an older copy.

Damage as well: a log of whose offset checkpoint nothing is left, in the manifest or its folder, after a loss of power,
for nothing says how far it reached (one that is empty and that the manifest does not name is new); and a log that
carries the mark of `dataplane.log.recovery.damage`.

Leader epochs come from their checkpoint for the log before the scan, which is written before the index entry at which
the scan begins, and from the batches themselves for the rest; when the checkpoint is missing or damaged, from the
newest snapshot of the derived state and all batches behind it.

## Torn writes

Tells a torn write at the end of a log from damage.

After a loss of power the two cannot be told apart: any part of the bytes that were not synced may be missing. When the
operating system went on (only the process was killed) every byte that it took is still there, so only one thing can
stand at the end of the last segment: the beginning of a batch whose rest was never written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.log.derived import installation
from dataplane.log.derived.installation import INSTALLATION_FILE
from dataplane.log.recovery.damage import MARK_FILE, QUARANTINE, read_mark
from dataplane.log.segments.index import ENTRY_SIZE, IndexEntry, SparseIndex, decode_entries
from dataplane.log.segments.scan import ChainBroken, only_zeros, walk
from dataplane.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from dataplane.log.storage.checkpoints import (
    EPOCHS_FILE,
    OFFSETS_FILE,
    TEMPORARY_SUFFIX,
    OffsetCheckpoint,
    read_epochs,
    read_offsets,
)
from dataplane.log.storage.data_dir import TAKEN_BACK_FILE
from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from wire.batch import HEADER_SIZE, parse_header
from wire.errors import CorruptData, InvariantViolation
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.derived.derived_state import DerivedState
    from dataplane.log.storage.files import FileSystem, ReadHandles
    from dataplane.log.storage.manifest import Committed
    from dataplane.log.storage.pool import LogPool


def is_cut_short(files: FileSystem, handle: int, position: int, end: int, previous_end: int) -> bool:
    """Whether the file holds, from byte `position` to its end, the beginning of a batch and nothing else. The log in
    front of it ends at offset `previous_end`. Raises OSError."""
    if end - position < HEADER_SIZE:
        return True
    try:
        header = parse_header(files.read(handle, HEADER_SIZE, position))
    except CorruptData:
        return False
    return header.base_offset >= previous_end and end - position < header.size


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The result of opening a log."""

    truncated_bytes: int
    """Cut at the end: written, not known to be durable, and torn. Reserved room is not counted."""
    damaged: str | None
    """A sentence that names file, byte and offset: the replica is unsound. None: all is well."""
    scanned_bytes: int
    """Read and checked, body by body."""
    checkpoint_high_watermark: Offset
    """As checkpointed, exclusive; 0 when there is none. Above the log's end only together with `damaged`."""
    known_end: Offset = Offset(0)
    """Exclusive: records were durable or committed here up to there, as far as is known."""
    replayed_from: Offset = Offset(0)
    """Offset from which headers were read to rebuild the producer table: that of a snapshot, or the log start."""
    damaged_snapshots: tuple[str, ...] = ()
    """A sentence for each; older ones, or the log, were taken in their place."""
    has_quarantine: bool = False
    """Something was cut out of the log at some time (`dataplane.log.recovery.damage`)."""
    is_taken_back: bool = False
    """It was set aside, and has not counted as a copy since then (`dataplane.log.storage.data_dir`)."""


@dataclass(slots=True)
class Recovery:
    """The state that a `PartitionLog` starts from."""

    files: FileSystem
    pool: LogPool
    directory: Path
    index_interval: int
    derived: DerivedState
    nothing_torn: bool = False
    """All that was written is there: the page cache has survived, and no room was reserved ahead."""
    expected: Committed | None = None
    """The entry of this log in the manifest; None: the manifest does not name it."""
    has_entry: bool = False
    """The log lies in a data folder: its checkpoint is in the manifest, or will be."""
    left_in_order: bool = False
    """The folder's last process synced all that it had written, and the names of all files."""
    names: frozenset[str] = frozenset()
    """In the folder, as it was found."""
    is_new: bool = False
    """The name of the folder may not be durable yet."""
    segments: list[Segment] = field(default_factory=list)
    beyond: list[Segment] = field(default_factory=list)
    """Segments behind the damage; not part of the log."""
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    saved_epochs: tuple[EpochEntry, ...] | None = None
    checkpoint: OffsetCheckpoint | None = None
    """What the manifest and the file in the log's folder say together; None: nothing is known."""
    filed: OffsetCheckpoint | None = None
    """The one in the log's folder."""
    log_end_offset: Offset = Offset(0)
    truncated_bytes: int = 0
    scanned_bytes: int = 0
    damaged: str | None = None
    is_of_another_history: bool = False
    """Its committed records are others than those that were committed here."""
    _batches: list[tuple[LeaderEpoch, Offset]] = field(default_factory=list)
    """Leader epoch and base offset of scanned batches, one for each run of an epoch."""
    _scanned_from: Offset | None = None
    _vouched: int = 0
    """Every offset below was on stable storage here, or committed."""
    _mark: str | None = None
    """Damage was met by an earlier process: nothing is cut."""

    @property
    def handles(self) -> ReadHandles:
        return self.pool.reading

    def run(self) -> None:
        """Raises OSError."""
        self._find_folder()
        self._find_segments()
        self.filed = read_offsets(self.files, self.directory) if OFFSETS_FILE in self.names else None
        self.checkpoint = self._checkpoint()
        self._mark = read_mark(self.files, self.directory) if MARK_FILE in self.names else None
        if self.checkpoint is not None:
            self._vouched = self.checkpoint.vouched_end
        if self.expected is not None:
            self._vouched = max(self._vouched, self.expected.vouched_end)
        self._check_start()
        self._check_segments()
        self._recover_epochs()
        self._check_history()
        self.damaged = self._mark or self.damaged or self._too_short()

    def _find_folder(self) -> None:
        """Afterwards the names in it are durable, and its own is, unless it `is_new`."""
        self.names = frozenset(self.files.names(self.directory))
        if not self.names and not self.files.is_directory(self.directory):
            self.files.make_directory(self.directory, durably=False)
            self.is_new = True
        elif not self.left_in_order:
            # The process that created or renamed these files may have died before the names were durable.
            self.files.sync_directory(self.directory)
            # Or before the name of this folder was: it is in the manifest only after that.
            self.is_new = self.expected is None
        if INSTALLATION_FILE in self.names:
            installation.finish(self.files, self.directory)
            self.names = frozenset(self.files.names(self.directory))
        self.derived.found(self.names)

    def _checkpoint(self) -> OffsetCheckpoint | None:
        filed, expected = self.filed, self.expected
        if expected is None or expected.recovery_point is None:
            return filed
        if filed is None:
            return OffsetCheckpoint(expected.high_watermark, expected.recovery_point, expected.log_start_offset)
        return OffsetCheckpoint(
            max(filed.high_watermark, expected.high_watermark),
            max(filed.recovery_point, expected.recovery_point),
            filed.log_start_offset,
        )

    def _is_unknown(self) -> bool:
        """Whether the log is in no manifest yet, and so has acknowledged nothing."""
        return self.has_entry and self.expected is None and not any(segment.allocated for segment in self.segments)

    def _check_history(self) -> None:
        """Whether the last record that was committed here is still the same."""
        if self.expected is None or not self._start < self.expected.high_watermark <= self.log_end_offset:
            return
        end, epoch, *_ = self.expected
        found = self.epochs.epoch_at(Offset(end - 1))
        if epoch and found is not None and found != epoch:
            self.is_of_another_history = True
            self.damaged = self.damaged or (
                f"{self.directory} is not the log that was here: its record at offset {end - 1} is of LeaderEpoch "
                f"{found}, and the one that was committed here of LeaderEpoch {epoch}"
            )

    def _too_short(self) -> str | None:
        if self.expected is not None and self.filed is None and not self.segments:
            return (
                f"{self.directory} is missing or empty, but a log was there, "
                f"and its records up to offset {self.expected.vouched_end} were durable or committed"
            )
        if self.log_end_offset < self._vouched:
            return (
                f"{self.directory} ends at offset {self.log_end_offset}, "
                f"but records up to offset {self._vouched} were durable or committed here"
            )
        if self.checkpoint is None and self.segments and not self.nothing_torn and not self._is_unknown():
            return (
                f"{self.directory / OFFSETS_FILE} is missing or damaged, and power was lost: the log is sound up to "
                f"offset {self.log_end_offset}, but nothing says how far it reached"
            )
        return None

    def report(self) -> RecoveryReport:
        return RecoveryReport(
            truncated_bytes=self.truncated_bytes,
            damaged=self.damaged,
            scanned_bytes=self.scanned_bytes,
            checkpoint_high_watermark=self.checkpoint.high_watermark if self.checkpoint else Offset(0),
            known_end=self.known_end,
            damaged_snapshots=tuple(self.derived.damaged.values()),
            has_quarantine=QUARANTINE in self.names,
            is_taken_back=TAKEN_BACK_FILE in self.names,
        )

    @property
    def known_end(self) -> Offset:
        return Offset(max(self.log_end_offset, self._vouched))

    def _find_segments(self) -> None:
        logs = {name.removesuffix(LOG_SUFFIX) for name in self.names if name.endswith(LOG_SUFFIX)}
        for name in sorted(self.names):
            orphan = name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) not in logs
            if orphan or name.endswith(TEMPORARY_SUFFIX):
                self.files.remove(self.directory / name)
        for base in sorted(int(name) for name in logs if name.isdigit()):
            segment = Segment(self.files, self.directory, base)
            with self.handles.borrow(segment.path) as handle:
                segment.size = segment.allocated = self.files.size(handle)
            self.segments.append(segment)

    def _check_start(self) -> None:
        """Leaves no segment below the log start."""
        start = self.checkpoint.log_start_offset if self.checkpoint is not None else None
        if start is None:
            self.log_end_offset = Offset(self.segments[0].base_offset if self.segments else 0)
            return
        below = [segment for segment in self.segments if segment.base_offset < start]
        del self.segments[: len(below)]
        self.log_end_offset = Offset(self.segments[0].base_offset) if self.segments else start
        if self.log_end_offset != start:
            found = self.log_end_offset
            self.damaged = f"{self.directory} begins at offset {found}: the segment that begins at {start} is missing"
            return
        for segment in below:
            remove_segment(self.files, self.handles, segment)

    def _check_segments(self) -> None:
        for number, segment in enumerate(self.segments):
            if number > 0 and segment.base_offset != self.log_end_offset:
                before = self.segments[number - 1]
                reason = f"ends at offset {self.log_end_offset}, the next segment begins at {segment.base_offset}"
                self._end_at(number - 1, ChainBroken(before.size, reason))
                return
            following = self.segments[number + 1].base_offset if number + 1 < len(self.segments) else None
            if following is not None and self._is_finished(segment, following):
                continue
            try:
                self._scan(segment)
            except ChainBroken as broken:
                if self.log_end_offset == following:
                    continue  # room not yet given back, or the rest of a write for which there was no room
                self._end_at(number, broken)
                return

    def _is_finished(self, segment: Segment, following: int) -> bool:
        if self._scanned_from is not None:
            return False
        last = self._last_index_entry(segment)
        if last is None or last[:2] != (following, segment.size):
            return False
        segment.max_timestamp = last.max_timestamp
        segment.synced_size = segment.size
        self.log_end_offset = Offset(following)
        self._vouched = max(self._vouched, following)
        return True

    def _last_index_entry(self, segment: Segment) -> IndexEntry | None:
        if segment.index_path.name not in self.names:
            return None
        handle = self.files.open(segment.index_path)
        try:
            size = self.files.size(handle)
            content = self.files.read(handle, ENTRY_SIZE, max(0, size - ENTRY_SIZE))
        finally:
            self.files.close(handle)
        entries = decode_entries(content) if size % ENTRY_SIZE == 0 else []
        return entries[0] if entries else None

    def _scan(self, segment: Segment) -> None:
        """Leaves the segment with its sound size and a whole index, and the log's end behind its last sound batch."""
        file_size = segment.size
        index, saved = (
            segment.load_index() if segment.index_path.name in self.names else (SparseIndex(segment.base_offset), 0)
        )
        self._vouched = max(self._vouched, index.last.offset)
        start = index.last if self._scanned_from is None else index.entry(0)
        if self._scanned_from is None:
            self._scanned_from = Offset(start.offset)
        segment.use_index(index, saved)
        segment.size = segment.synced_size = start.position
        segment.max_timestamp = start.max_timestamp
        self.log_end_offset = Offset(start.offset)
        synced = max(index.last.offset, self.checkpoint.recovery_point if self.checkpoint is not None else 0)
        with self.handles.borrow(segment.path) as handle:
            for position, header in walk(
                self.files, handle, start.position, file_size, self.log_end_offset, verify=True
            ):
                if position - index.last.position >= self.index_interval:
                    segment.add_index_entry(self.log_end_offset, position)
                if not self._batches or self._batches[-1][0] != header.leader_epoch:
                    self._batches.append((header.leader_epoch, header.base_offset))
                if header.end_offset > synced and segment.doubtful_from is None:
                    segment.doubtful_from = position
                self.log_end_offset = header.end_offset
                self.scanned_bytes += header.size
                segment.size = position + header.size
                segment.max_timestamp = max(segment.max_timestamp, header.last_timestamp)
                if segment.doubtful_from is None:
                    segment.synced_size = segment.size

    def _end_at(self, number: int, broken: ChainBroken) -> None:
        """The log ends in that segment: damage if records below `_vouched` are missing, else the end that a crash
        left."""
        segment = self.segments[number]
        self.beyond = self.segments[number + 1 :]
        del self.segments[number + 1 :]
        if self.damaged is not None or self.log_end_offset < self._vouched:
            self.damaged = self.damaged or (
                f"{segment.path} is damaged {broken}; it is sound up to offset {self.log_end_offset}, "
                f"but records up to offset {self._vouched} were durable or committed here"
            )
            return
        if self._mark is not None:
            return
        if self.beyond and self.beyond[0].base_offset < self.log_end_offset:
            # A crash takes from the end of a segment, and adds nothing to it: this one, or its index, is wrong.
            self.damaged = (
                f"{segment.path} reaches up to offset {self.log_end_offset}, "
                f"and the next segment begins at {self.beyond[0].base_offset}"
            )
            return
        if self.nothing_torn and not self._is_cut_short(segment):
            self.damaged = (
                f"{segment.path} is damaged {broken}; it is sound up to offset {self.log_end_offset}, and what lies "
                f"behind was written before the process was killed"
            )
            return
        if not self._only_reserved_room(segment):
            self.truncated_bytes += segment.allocated - segment.size
        for gone in reversed(self.beyond):
            self.truncated_bytes += gone.size
            remove_segment(self.files, self.handles, gone)
        self.beyond = []
        segment.cut(segment.size, segment.max_timestamp)

    def _is_cut_short(self, segment: Segment) -> bool:
        """Whether the log ends with the beginning of a batch whose rest was never written."""
        if any(behind.size for behind in self.beyond):
            return False
        with self.handles.borrow(segment.path) as handle:
            return is_cut_short(self.files, handle, segment.size, segment.allocated, self.log_end_offset)

    def _only_reserved_room(self, segment: Segment) -> bool:
        """Whether nothing was ever written behind its sound part."""
        with self.handles.borrow(segment.path) as handle:
            return only_zeros(self.files, handle, segment.size, segment.allocated)

    def _recover_epochs(self) -> None:
        self.saved_epochs = read_epochs(self.files, self.directory) if EPOCHS_FILE in self.names else None
        scanned_from = self.log_end_offset if self._scanned_from is None else self._scanned_from
        if self.saved_epochs is not None:
            try:
                self.epochs = LeaderEpochCache.rebuilt(
                    self.saved_epochs, self._batches, scanned_from, self.log_end_offset
                )
            except InvariantViolation:  # the checkpoint contradicts the batches: these are right
                self.saved_epochs = None
            else:
                self.epochs.truncate_before(self._start)
                return
        elif scanned_from == 0:  # the log held less than an index interval, and its epochs were never written
            self.epochs = LeaderEpochCache.rebuilt((), self._batches, scanned_from, self.log_end_offset)
            return
        self._read_all_epochs()

    @property
    def _start(self) -> Offset:
        return Offset(self.segments[0].base_offset) if self.segments else self.log_end_offset

    def _read_all_epochs(self) -> None:
        snapshot = self.derived.newest(self._start, self.log_end_offset)
        self.epochs = LeaderEpochCache(snapshot.epochs if snapshot is not None else ())
        self.epochs.truncate_before(self._start)
        known = snapshot.offset if snapshot is not None else self._start
        for number, segment in enumerate(self.segments):
            if number + 1 < len(self.segments) and self.segments[number + 1].base_offset <= known:
                continue
            begin = segment.load_index()[0].before_offset(known)
            end = Offset(begin.offset)
            epoch = self.epochs.latest if begin.offset >= known else None
            try:
                with self.handles.borrow(segment.path) as handle:
                    for _, header in walk(
                        self.files, handle, begin.position, segment.size, end, verify=False, epoch=epoch or 0
                    ):
                        end = header.end_offset
                        if end > known:
                            self.epochs.assign(header.leader_epoch, header.base_offset)
            except (ChainBroken, InvariantViolation) as error:
                broken = error if isinstance(error, ChainBroken) else ChainBroken(segment.size, str(error))
                segment.size = broken.position
                self.log_end_offset = end
                self.epochs.truncate_from(end)
                self._end_at(number, broken)
                return


def remove_segment(files: FileSystem, handles: ReadHandles, segment: Segment) -> None:
    """Durably, so that segments that go newest first leave a log without a hole whenever the crash comes."""
    segment.remove()
    handles.forget(segment.path)  # not before: a reader would have opened it once more
    files.sync_directory(segment.path.parent)
