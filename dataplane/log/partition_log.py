"""The log of one partition: batches in segments, byte for byte as they crossed the wire.

    log_start_offset <= high_watermark <= log_end_offset        durable_end <= log_end_offset

An append writes into the page cache and moves `log_end_offset`; `sync` moves `durable_end` up to it. Batches are opaque
here: their headers are read, their bodies are not (except for their CRC at recovery, and to find a timestamp).

Three ends, three orders of writing, which together are the promise that a crash at any point loses nothing below
`durable_end` and invents nothing:

  - `sync`: bytes of segments, then names of new segments, then `durable_end`; then, of what is now durable, leader
    epochs, index entries and finished segments. An epoch never becomes durable before the log in front of it, nor an
    index entry before the epochs in front of it: those behind the last entry are in the batches that an open reads.
  - the offset checkpoint never vouches for more than `durable_end`, and is lowered before anything is cut: the entry
    in the manifest of the data folder (`dataplane.log.storage.manifest`), then the file in the log's folder.
  - `remove_before`: snapshot at the new log start, checkpoint with it, then segments: the rest that a crash leaves is
    removed at open.
  - `truncate`: snapshots, checkpoint, segments from the newest down, index, bytes, epochs. Beginning anew elsewhere:
    see `dataplane.log.derived.installation`.

A failed write or fsync is final: `LogDamaged`, and nothing is written any more. Reading goes on. A full disk is no
failure: `NoSpace`, the log is as it was, and takes the same again when there is room. Only an fsync is final even so.

## Parts

    state       facts of all the parts                  reading     batches, times and headers from the files
    appending   append, roll                            cutting     truncate, install, drop_all, remove_before
    syncing     sync, leader epochs, checkpoint         swapping    work of compaction
    capturing   snapshots of the derived state          checking    looking for damage, cutting it off

The replicas of a partition use `PartitionLog`; compaction and repair, which know its files,
ask `PartitionLog.swapping` and `PartitionLog.checking`.

## Threads

The LOOP thread is the one that appends. WORKERS make the calls that block.

    loop thread only        append, read, sync_small, and between appends: assign_epoch, truncate, drop_all,
                            install, close in a worker
    any thread, any time    sync, begin_sync … end_sync, checkpoint_high_watermark, remove_before, replace_segment,
                            read_from_disk, offset_for_timestamp, check, what snapshots need; all properties

Locks are taken in this order: `removing`, the lock of `dataplane.log.derived.derived_state`, `io_lock`, `replacing`.

  - `io_lock` is held by every call that blocks on writing: sync, assign_epoch, checkpoint, truncate, install, close, so
    these happen one at a time. `append` and `read` take neither it nor the lock of the derived state. A reader takes it
    only to load the index of a cold segment, or to wait for the end of a cut.
  - `append` publishes in this order, and last: bytes, then the segment's size, then `log_end_offset`. `segments` is a
    tuple that is replaced, never changed: by the loop (its end) and by workers (its beginning), under `replacing`,
    which is never held by a thread that blocks. The same goes for the leader epochs.
  - `truncate`, `install` and `replace_segment` make `cuts` odd while they work. A reader from disk that sees it odd,
    or changed when it is done, forgets its bytes and starts again: it never returns bytes that were replaced meanwhile.
    `remove_before` adds 2 once the segments are no longer part of the log and before their files go: a reader that held
    one of them starts again and finds that his offset is before the log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dataplane.log.compacted_segments import CompactedSegments
from dataplane.log.damage_check import DamageCheck
from dataplane.log.derived.derived_state import DerivedState
from dataplane.log.log_reader import LogReader
from dataplane.log.log_state import LogConfig, LogState
from dataplane.log.log_sync import LogSync
from dataplane.log.log_writer import LogWriter
from dataplane.log.recovery.log_recovery import Recovery
from dataplane.log.snapshot_writer import SnapshotWriter
from dataplane.log.storage.checkpoints import NOT_COMPACTED, CompactionPoint
from dataplane.log.storage.files import REAL_FILES, is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.log.storage.pool import LogPool
from dataplane.log.storage.tail import ReadBatches
from dataplane.log.truncation import Truncation
from wire.errors import CorruptData
from wire.types import LeaderEpoch, LogEnd, Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dataplane.log.derived.log_snapshot import Snapshot
    from dataplane.log.recovery.log_recovery import RecoveryReport
    from dataplane.log.segments.segment import Segment
    from dataplane.log.storage.files import FileSystem
    from dataplane.log.storage.manifest import ManifestEntry
    from dataplane.replica.derived.epochs import LeaderEpochCache
    from dataplane.replica.derived.producer_table import ProducerTable
    from dataplane.replica.derived.transaction_table import TransactionTable
    from wire.batch import BatchHeader
    from wire.types import Buffer

__all__ = ["LogConfig", "PartitionLog"]

_HANDLES_OF_ONE_LOG = 4


class PartitionLog:
    """See the module's text for the invariants and the threads of each call.

    `OSError` does not leave this class or its parts: it becomes NoSpace or LogDamaged. The promise of each method is
    documented where it is done.
    """

    def __init__(self, recovery: Recovery, config: LogConfig, entry: ManifestEntry | None) -> None:
        """Use `open`."""
        self.withheld_below = Offset(0)
        """Consumers are served nothing below it: the log start of a leader. Kept in memory, through all roles of the
        replica."""
        state = self._state = LogState(recovery, config, entry)
        self._appending = LogWriter(state)
        self._syncing = LogSync(state)
        # Called for each batch.
        self.append = self._appending.append
        self.sync_small = self._syncing.sync_small
        self._reading = LogReader(state)
        self._capturing = SnapshotWriter(state, self._reading)
        self.swapping = CompactedSegments(state, self._syncing)
        self._cutting = Truncation(
            state,
            appending=self._appending,
            syncing=self._syncing,
            reading=self._reading,
            capturing=self._capturing,
            swapping=self.swapping,
        )
        self.checking = DamageCheck(
            state, syncing=self._syncing, reading=self._reading, capturing=self._capturing, cutting=self._cutting
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        files: FileSystem = REAL_FILES,
        pool: LogPool | None = None,
        page_cache_survived: bool = False,
        left_in_order: bool = False,
        entry: ManifestEntry | None = None,
    ) -> tuple[PartitionLog, RecoveryReport]:
        """Opens the log in `directory`, or makes an empty one there, and recovers it (see
        `dataplane.log.recovery.log_recovery`).

        `pool`: what many logs share. What is found is durable when this returns, except in a damaged log: there nothing
        is written, and appends are refused until `DamageCheck.cut_damage` or `drop_all`. `page_cache_survived`:
        whatever was written by an earlier life, synced or not, must still be here. `left_in_order`: that life synced
        all of it. `entry`: what the manifest of the data folder says of this log; it is added where it is missing,
        durable with the next write of the manifest.
        Raises LogDamaged when the disk fails, NoSpace when it is full.
        """
        recovery = Recovery(
            files,
            pool or LogPool(files, reading=_HANDLES_OF_ONE_LOG),
            directory,
            config.index_interval_bytes,
            DerivedState(files, directory, config.producers),
            nothing_torn=page_cache_survived and not config.preallocate_bytes,
            expected=entry.committed if entry is not None else None,
            has_entry=entry is not None,
            left_in_order=left_in_order,
        )
        log: PartitionLog | None = None
        try:
            recovery.run()
            log = cls(recovery, config, entry)
            log._start()
            if recovery.is_new:  # after the names in it: the file system may do with one commit
                files.sync_directory(directory.parent)
        except (OSError, LogDamaged, NoSpace) as error:
            for segment in log.segments if log is not None else recovery.segments:
                segment.close()
            if not isinstance(error, OSError):
                raise
            reason = f"the log in {directory} cannot be opened: {error}"
            raise (NoSpace if is_no_space(error) else LogDamaged)(reason) from error
        try:
            replayed_from, damaged = log._capturing.restore_producers(), None
        except CorruptData as error:  # where recovery had no reason to look
            replayed_from, damaged = log.log_start_offset, str(error)
        if entry is not None:
            entry.add()
            log._vouch()
        report = recovery.report()
        return log, replace(report, replayed_from=replayed_from, damaged=report.damaged or damaged)

    def _start(self) -> None:
        state = self._state
        if state.unsound is not None:
            for segment in state.segments:
                segment.synced_size = segment.size
            state.durable_end = state.log_end_offset
            return
        if state.checkpoint is None:
            # Before there is a segment: one without a checkpoint has lost it, or is in no manifest yet.
            self._syncing.write_checkpoint(state.high_watermark, Offset(0))
        if not state.segments:
            state.segments = (state.new_segment(state.log_end_offset),)
        for segment in state.segments:
            was_scanned = segment.index is not None  # it is to be finished, with a whole index
            if was_scanned or segment.size < segment.allocated or segment is state.segments[-1]:
                segment.open_for_writing()
        state.index_due = state.next_index_position()
        if max(state.derived.offsets(), default=0) > state.log_end_offset:
            state.derived.cut(state.log_end_offset)
        with state.io_lock:
            for segment in state.segments:
                segment.rewrite_doubtful()
            self.swapping.cut_compaction_point(state.log_end_offset)
            self._syncing.sync_locked()
            if state.vouched() != state.durable_end:
                self._syncing.write_checkpoint(state.high_watermark, state.durable_end)
            self._appending.put_aside_locked()

    def _vouch(self) -> None:
        """For a log of which the manifest knows nothing, or less than it holds."""
        state = self._state
        with state.io_lock:
            if state.unsound is None:
                state.vouch()

    def close(self) -> None:
        """Syncs, checkpoints, and lets go of all files: the next open has nothing to scan. Raises LogDamaged, NoSpace
        (the files are let go of all the same)."""
        state = self._state
        with state.removing, state.derived.lock, state.io_lock:
            try:
                if state.failure is None and state.unsound is None:
                    self._syncing.sync_locked()
                    self._finish_last()
                    state.derived.capture(state.log_end_offset, state.epochs.entries)
                    self._capturing.write_captured()
                    self._syncing.write_checkpoint(state.high_watermark, state.durable_end)
            finally:
                state.failure = state.failure or f"the log in {state.directory} is closed"
                state.pool.writing.closed(self._appending)
                state.forget_tail()
                for segment in state.segments:
                    segment.close()
                    state.pool.indexes.forget(segment)
                    state.handles.forget(segment.path)

    def _finish_last(self) -> None:
        state = self._state
        try:
            # An epoch that begins at the end has no record, by which an open would find it.
            self._syncing.save_epochs(Offset(state.log_end_offset + 1))
            state.segments[-1].finish(state.log_end_offset)
        except OSError as error:
            raise state.failed(f"closing {state.segments[-1].path} failed: {error}") from error

    # ---- the content

    @property
    def reach(self) -> LogEnd:
        end = self._state.log_end_offset
        return LogEnd(self._state.epochs.epoch_at(Offset(end - 1)) or LeaderEpoch(0), end)

    @property
    def directory(self) -> Path:
        return self._state.directory

    @property
    def files(self) -> FileSystem:
        return self._state.files

    @property
    def config(self) -> LogConfig:
        return self._state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._state.config = config

    @property
    def log_start_offset(self) -> Offset:
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Exclusive: the next offset to be assigned."""
        return self._state.log_end_offset

    @property
    def durable_end(self) -> Offset:
        """Exclusive: everything below it is on stable storage."""
        return self._state.durable_end

    @property
    def high_watermark(self) -> Offset:
        """Exclusive; as last checkpointed, never above the end of the log."""
        return self._state.high_watermark

    @property
    def checkpointed_high_watermark(self) -> Offset:
        """That of the checkpoint on disk, or with the next write of the manifest; -1 where there is none."""
        checkpoint = self._state.checkpoint
        return Offset(-1) if checkpoint is None else checkpoint.high_watermark

    @property
    def tail_holds_encrypted(self) -> bool:
        """The batches of `read` may be encrypted."""
        return self._state.tail.holds_encrypted

    @property
    def known_end(self) -> Offset:
        """Exclusive: records were durable or committed here up to there. Above the log's end in a damaged log only."""
        return self._state.known_end

    @property
    def epochs(self) -> LeaderEpochCache:
        """Changed by `append`, `assign_epoch`, `truncate` and `install` only; read by any thread."""
        return self._state.epochs

    @property
    def producers(self) -> ProducerTable:
        """The producers and their batches, up to the log's end. Changed by `append`, `truncate` and `install` only;
        read by the appending thread."""
        return self._state.derived.producers

    @property
    def transactions(self) -> TransactionTable:
        """Those of `producers`. The same object as long as the log is open."""
        return self._state.derived.producers.transactions

    def last_stable(self, high_watermark: Offset) -> Offset:
        """The last stable offset at that HW (`TransactionTable.last_stable`), in the log."""
        return max(self.transactions.last_stable(high_watermark), self._state.log_start_offset)

    @property
    def compaction_point(self) -> CompactionPoint:
        return self._state.compaction_point

    @property
    def rewrite_epoch(self) -> int:
        """Another number once records were replaced by others (`truncate`, `install`): what was learned of the log
        before that is worth nothing."""
        return self._state.rewrite_epoch

    @property
    def cuts(self) -> int:
        """Another number once a byte position in some segment may mean another place than before."""
        return self._state.cuts

    @property
    def size_bytes(self) -> int:
        """Bytes of its segment files. Known without a look at the disk."""
        return sum(segment.size for segment in self._state.segments)

    def bytes_from(self, offset: Offset) -> int:
        """Returns about how many bytes the batches from `offset` on have; a part of a segment counts by its offsets.
        Known without a look at the disk."""
        size, end = 0, int(self.log_end_offset)
        for segment in reversed(self._state.segments):
            if offset >= end:
                break
            span = end - segment.base_offset
            size += segment.size if offset <= segment.base_offset else segment.size * (end - offset) // max(1, span)
            end = segment.base_offset
        return size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first, to look at; the last one is written to."""
        return self._state.segments

    @property
    def has_unfinished_segments(self) -> bool:
        """Segments before the last that the next `sync` finishes."""
        segments = self._state.segments
        return self._state.refusal is None and len(segments) > 1 and not segments[-2].is_finished

    @property
    def needs_sync(self) -> bool:
        """False also when `sync` could do nothing."""
        state = self._state
        if state.refusal is not None:
            return False
        return state.durable_end < state.log_end_offset

    @property
    def cached_bytes(self) -> int | None:
        """Bytes at the end of the log that its reader may want from memory. What is synced before them is dropped from
        the page cache, some MiB at a time, in the course of `sync`. None, as at first: the system decides."""
        return self._state.cached_bytes

    @cached_bytes.setter
    def cached_bytes(self, cached_bytes: int | None) -> None:
        self._state.cached_bytes = cached_bytes

    @property
    def index_is_due(self) -> bool:
        """Whether `checkpoint_high_watermark` would write index entries."""
        state = self._state
        return state.refusal is None and state.segments[-1].index_due is not None

    @property
    def snapshot_is_due(self) -> bool:
        """Whether `write_snapshots` would write something."""
        state = self._state
        return state.refusal is None and state.derived.is_due(state.durable_end)

    @property
    def refusal(self) -> str | None:
        """Why appends are refused; None while they are not."""
        return self._state.refusal

    # ---- writing

    def put_aside(self) -> bool:
        """See `LogWriter.put_aside`."""
        return self._appending.put_aside()

    def roll(self) -> bool:
        """See `LogWriter.roll`."""
        return self._appending.roll()

    def assign_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """See `LogSync.assign_epoch`."""
        self._syncing.assign_epoch(epoch, start_offset)

    def sync(self) -> Offset:
        """See `LogSync.sync`."""
        return self._syncing.sync()

    def begin_sync(self) -> int | None:
        """See `LogSync.begin_sync`."""
        return self._syncing.begin_sync()

    def end_sync(self, error: OSError | None) -> Offset:
        """See `LogSync.end_sync`."""
        return self._syncing.end_sync(error)

    def checkpoint_at_once(self, high_watermark: Offset) -> bool:
        """See `LogSync.checkpoint_at_once`."""
        return self._syncing.checkpoint_at_once(high_watermark)

    def checkpoint_high_watermark(self, high_watermark: Offset) -> None:
        """See `LogSync.checkpoint_high_watermark`."""
        self._syncing.checkpoint_high_watermark(high_watermark)

    # ---- snapshots

    def write_snapshots(self) -> None:
        """See `SnapshotWriter.write_snapshots`."""
        self._capturing.write_snapshots()

    def snapshot_at(self, offset: Offset) -> bytes:
        """See `SnapshotWriter.snapshot_at`."""
        return self._capturing.snapshot_at(offset)

    def is_without_past(self) -> bool:
        """See `SnapshotWriter.is_without_past`."""
        return self._capturing.is_without_past()

    # ---- reading

    def read(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> list[Buffer] | None:
        """Whole batches from the one that holds `offset`, at least one, up to `max_bytes`, none that ends above
        `end_offset`; [] when there is none. None: they are not in memory, ask `read_from_disk`. Loop thread, never
        blocks.
        """
        end_offset = min(end_offset, self._state.log_end_offset)
        if offset >= end_offset:
            return []
        found = self._state.tail.read(offset, max_bytes, end_offset)
        return None if found is None else found.parts

    def read_batches(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> ReadBatches | None:
        """As `read`, with the offset at which the last of them ends."""
        end_offset = min(end_offset, self._state.log_end_offset)
        if offset >= end_offset:
            return ReadBatches([], offset)
        return self._state.tail.read(offset, max_bytes, end_offset)

    def read_from_disk(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> Buffer:
        """See `LogReader.read_from_disk`."""
        return self._reading.read_from_disk(offset, max_bytes=max_bytes, end_offset=end_offset)

    def offset_for_timestamp(
        self,
        timestamp_ns: int,
        end_offset: Offset,
        *,
        decrypt: Callable[[Buffer], bytes] = bytes,
        read_uncommitted: bool = False,
    ) -> Offset | None:
        """See `LogReader.offset_for_timestamp`."""
        return self._reading.offset_for_timestamp(
            timestamp_ns, end_offset, decrypt=decrypt, read_uncommitted=read_uncommitted
        )

    def span(self, offset: Offset, size: int, end_offset: Offset) -> tuple[Offset, int]:
        """See `LogReader.span`."""
        return self._reading.span(offset, size, end_offset)

    def first_timestamp(self, base_offset: int) -> int | None:
        """See `LogReader.first_timestamp`."""
        return self._reading.first_timestamp(base_offset)

    def appended_by(self, segment: Segment) -> int:
        """See `LogReader.appended_by`."""
        return self._reading.appended_by(segment)

    def producer_batches(self, from_offset: Offset, end_offset: Offset | None = None) -> Iterator[BatchHeader]:
        """See `LogReader.producer_batches`."""
        return self._reading.producer_batches(from_offset, end_offset)

    # ---- cutting

    def truncate(self, offset: Offset) -> Offset:
        """See `Truncation.truncate`."""
        return self._cutting.truncate(offset)

    def drop_all(self, new_start_offset: Offset) -> None:
        """See `Truncation.drop_all`."""
        self._cutting.drop_all(new_start_offset)

    def install(self, snapshot: Snapshot, copied: CompactionPoint = NOT_COMPACTED) -> None:
        """See `Truncation.install`."""
        self._cutting.install(snapshot, copied)

    def remove_before(self, offset: Offset) -> tuple[Segment, ...]:
        """See `Truncation.remove_before`."""
        return self._cutting.remove_before(offset)
