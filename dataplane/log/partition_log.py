"""The log of one partition: batches in segments, byte for byte as they crossed the wire.

    log_start_offset <= high_watermark <= log_end_offset        durable_end <= log_end_offset

An append writes into the page cache and moves `log_end_offset`; `sync` moves `durable_end` up to it. Batches are opaque
here: their headers are read, their bodies are not (except for their CRC at recovery, and to find a timestamp).

Three ends, three orders of writing, which together are the promise that a crash at any point loses nothing below
`durable_end` and invents nothing:

  - `sync`: bytes of segments, then names of new segments, then the leader epochs, then `durable_end`; then, of what is
    now durable, index entries and finished segments. An epoch never becomes durable before the log in front of it.
  - the offset checkpoint never vouches for more than `durable_end`, and is lowered before anything is cut.
  - `remove_before`: snapshot at the new log start, checkpoint with it, then segments: what a crash leaves of them is
    removed at open.
  - `truncate`: snapshots, checkpoint, segments from the newest down, index, bytes, epochs. Beginning anew elsewhere:
    see `dataplane.log.installation`.

A failed write or fsync is final: `LogDamaged`, and nothing is written any more. Reading goes on. A full disk is no
failure: `NoSpace`, the log is as it was, and takes the same again when there is room. Only an fsync is final even so.

## Threads

The LOOP thread is the one that appends. WORKERS do what blocks.

    loop thread only        append, read, and while nobody appends: assign_epoch, truncate, drop_all, install, close in
                            a worker
    any thread, any time    sync, checkpoint_high_watermark, remove_before, replace_segment, read_from_disk,
                            offset_for_timestamp, what snapshots need; all properties

  - `_io_lock` is held by whatever blocks on writing: sync, assign_epoch, checkpoint, truncate, install, close, so
    these happen one at a time. The lock of `dataplane.log.derived_state` is taken before it. `append` and `read` take
    neither. A reader takes it only to load the index of a cold segment.
  - What `append` publishes it publishes last: bytes, then the segment's size, then `_log_end_offset`. `_segments` is a
    tuple that is replaced, never changed: by the loop (its end) and by workers (its beginning), under `_replacing`,
    which nobody holds while he blocks. The same goes for the leader epochs.
  - `truncate`, `install` and `replace_segment` make `_cuts` odd while they work. A reader from disk that sees it odd,
    or changed when it is done, forgets what it read and starts again: it never returns bytes that were replaced
    meanwhile.
    `remove_before` adds 2 once the segments are no longer part of the log and before their files go: who held one of
    them starts again and finds that his offset is before the log.
"""

from __future__ import annotations

import itertools
import logging
import threading
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dataplane.log import installation
from dataplane.log.checkpoints import (
    CompactionPoint,
    OffsetCheckpoint,
    read_compaction,
    write_compaction,
    write_epochs,
    write_offsets,
)
from dataplane.log.damage import Damage, remove_mark
from dataplane.log.derived_state import DerivedState
from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.files import REAL_FILES, is_no_space
from dataplane.log.index import NO_TIMESTAMP
from dataplane.log.pool import LogPool
from dataplane.log.quarantine import Piece, Quarantine
from dataplane.log.recovery import Recovery, remove_segment
from dataplane.log.scan import ChainBroken, only_zeros, walk
from dataplane.log.segment import Segment
from dataplane.log.snapshot import Snapshot, encode_snapshot
from dataplane.log.tail import Tail
from wire.batch import HEADER_SIZE, RecordBatch, parse_header
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dataplane.log.files import FileSystem
    from dataplane.log.index import IndexEntry, SparseIndex
    from dataplane.log.recovery import RecoveryReport
    from dataplane.replica.epochs import EpochEntry, LeaderEpochCache
    from dataplane.replica.producers import ProducerTable
    from wire.batch import BatchHeader
    from wire.transport import Buffer
    from wire.types import LeaderEpoch

logger = logging.getLogger(__name__)

_HANDLES_OF_ONE_LOG = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Sizes in bytes."""

    segment_bytes: int = 256 << 20
    """An append that would take the last segment beyond this begins a new one. A single append may be larger."""
    index_interval_bytes: int = 64 << 10
    tail_bytes: int = 4 << 20
    """Newest batches kept in memory for `read`."""
    preallocate_bytes: int = 0
    """Room reserved ahead of the end of the log, this much at a time, so that fdatasync need not write the length."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What `PartitionLog.check` has read."""

    size: int
    """Bytes, of whole batches."""
    is_whole: bool
    """The segment is read to the end of what is synced, or it is no longer there."""


class PartitionLog:
    """See the module's text for what always holds and which thread may call what.

    `OSError` does not leave this class: it becomes NoSpace or LogDamaged.
    """

    def __init__(self, recovery: Recovery, config: LogConfig) -> None:
        """Use `open`."""
        self.directory = recovery.directory
        self.config = config
        self._files = recovery.files
        self._pool = recovery.pool
        self._handles = recovery.handles
        self._holds_handle = False
        """For writing, counted in the pool. Taken by the loop thread; nobody closes it but the loop, or under the I/O
        lock while nobody appends."""
        self.written_to = False
        self._io_lock = threading.Lock()
        self._replacing = threading.Lock()
        self._removing = threading.Lock()
        """Held while files are removed that are no longer part of the log: none of their names is taken meanwhile."""
        self._cuts = 0
        self._failure: str | None = None
        self._half_installed: str | None = None
        """An installation was begun and found no room to end: the next `install`, or the next open, does."""
        self._unsound = recovery.damaged
        self._segments: tuple[Segment, ...] = tuple(recovery.segments)
        """Oldest first; not empty once opened. The last one is written to."""
        self._beyond = recovery.beyond
        self._known_end = recovery.known_end if recovery.damaged is not None else Offset(0)
        self._log_end_offset = recovery.log_end_offset
        self._durable_end = Offset(0)
        checkpointed = recovery.checkpoint or OffsetCheckpoint(Offset(0), Offset(0))
        self._checkpoint = recovery.checkpoint
        start = Offset(self._segments[0].base_offset if self._segments else 0)
        self._high_watermark = max(start, min(checkpointed.high_watermark, self._log_end_offset))
        self.epochs: LeaderEpochCache = recovery.epochs
        """Changed by `append`, `assign_epoch`, `truncate` and `install` only; read by anybody."""
        self._derived = recovery.derived
        self._saved_epochs: tuple[EpochEntry, ...] = recovery.saved_epochs or ()
        self._histories = 0
        """Counts what replaces records by others (`truncate`, `install`), or is about to (`examine`)."""
        self.compaction_point: CompactionPoint = read_compaction(self._files, self.directory, self._log_end_offset)
        self._tail = Tail(config.tail_bytes)
        self._index_due = 0
        """Byte position in the last segment at which the next index entry is made."""

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        *,
        files: FileSystem = REAL_FILES,
        pool: LogPool | None = None,
        page_cache_survived: bool = False,
    ) -> tuple[PartitionLog, RecoveryReport]:
        """Opens the log in `directory`, or makes an empty one there, and recovers it (see `dataplane.log.recovery`).

        `pool`: what many logs share. What is found is durable when this returns, except in a
        damaged log: there nothing is written, and appends are refused until `cut_damage` or `drop_all`.
        `page_cache_survived`: whatever was written by an earlier life, synced or not, must still be here. Raises
        LogDamaged when the disk fails, NoSpace when it is full.
        """
        recovery = Recovery(
            files,
            pool or LogPool(files, reading=_HANDLES_OF_ONE_LOG),
            directory,
            config.index_interval_bytes,
            DerivedState(files, directory),
            nothing_torn=page_cache_survived and not config.preallocate_bytes,
        )
        log: PartitionLog | None = None
        try:
            installation.finish(files, directory)
            recovery.run()
            log = cls(recovery, config)
            log._start()
        except (OSError, LogDamaged, NoSpace) as error:
            for segment in log.segments if log is not None else recovery.segments:
                segment.close()
            if not isinstance(error, OSError):
                raise
            reason = f"the log in {directory} cannot be opened: {error}"
            raise (NoSpace if is_no_space(error) else LogDamaged)(reason) from error
        try:
            replayed_from, damaged = log._restore_producers(), None
        except CorruptData as error:  # where recovery had no reason to look
            replayed_from, damaged = log.log_start_offset, str(error)
        report = recovery.report()
        return log, replace(report, replayed_from=replayed_from, damaged=report.damaged or damaged)

    def _start(self) -> None:
        if self._unsound is not None:
            for segment in self._segments:
                segment.synced_size = segment.size
            self._durable_end = self._log_end_offset
            return
        if self._checkpoint is None:
            # Before there is a segment: one without a checkpoint has lost it.
            self._write_checkpoint(self._high_watermark, Offset(0))
        if not self._segments:
            self._segments = (self._new_segment(self._log_end_offset),)
        for segment in self._segments:
            if segment.synced_size < segment.size or segment.size < segment.allocated or segment is self._segments[-1]:
                segment.open_for_writing()
        self._index_due = self._next_index_position()
        if max(self._derived.offsets(), default=0) > self._log_end_offset:
            self._derived.cut(self._log_end_offset)
        with self._io_lock:
            for segment in self._segments:
                segment.rewrite_doubtful()
            self._cut_compaction_point(self._log_end_offset)
            self._sync_locked()
            if self._vouched() != self._durable_end:
                self._write_checkpoint(self._high_watermark, self._durable_end)
            self._put_aside()

    # ---- what is there

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self._segments[0].base_offset) if self._segments else self._log_end_offset

    @property
    def log_end_offset(self) -> Offset:
        """Exclusive: the next offset to be assigned."""
        return self._log_end_offset

    @property
    def durable_end(self) -> Offset:
        """Exclusive: everything below it is on stable storage."""
        return self._durable_end

    @property
    def high_watermark(self) -> Offset:
        """Exclusive; as last checkpointed, never above the end of the log."""
        return self._high_watermark

    @property
    def tail_holds_encrypted(self) -> bool:
        """What `read` gives may be encrypted."""
        return self._tail.holds_encrypted

    @property
    def known_end(self) -> Offset:
        """Exclusive: records were durable or committed here up to there. Above the log's end in a damaged log only."""
        return max(self._known_end, self._log_end_offset)

    @property
    def producers(self) -> ProducerTable:
        """Who wrote what, up to the log's end. Changed by `append`, `truncate` and `install` only; read by the
        appending thread."""
        return self._derived.producers

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Oldest first, to look at; the last one is written to."""
        return self._segments

    @property
    def has_unfinished_segments(self) -> bool:
        """Segments before the last that the next `sync` finishes."""
        segments = self._segments
        return self.refusal is None and len(segments) > 1 and not segments[-2].is_finished

    @property
    def needs_sync(self) -> bool:
        """False also when `sync` could do nothing."""
        if self.refusal is not None:
            return False
        return self._durable_end < self._log_end_offset or self.epochs.entries is not self._saved_epochs

    @property
    def refusal(self) -> str | None:
        """Why appends are refused; None while they are not."""
        return self._failure or self._unsound or self._half_installed

    # ---- writing

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches, stamped, to the end of the log, into the page cache.

        `parts` are their bytes, split anywhere; they are kept for `read`, so nobody may change them any more. The first
        batch begins at the log's end, or above it where the log it comes from was compacted. Raises LogDamaged (the log
        takes no more writes), NoSpace and InvariantViolation (nothing was written).
        """
        if self.refusal is not None:
            raise LogDamaged(self.refusal)
        if not headers:
            return
        total = self._check_chain(parts, headers)
        epochs = self.epochs.entries
        self._assign_epochs(headers)
        segment = self._segments[-1]
        try:
            if segment.size and segment.size + total > self.config.segment_bytes:
                segment = self._roll()
            if not self._holds_handle:
                self._take_handle()
            handle = segment.handle
            self.written_to = True
            if segment.size + total > segment.allocated and self.config.preallocate_bytes:
                self._preallocate(segment, total)
            self._files.write(handle, parts, segment.size)
        except OSError as error:
            with self._replacing:
                self.epochs.take_back(self._log_end_offset, epochs)
            raise self._not_written(segment, error) from error
        self._published(segment, headers)
        self._keep_in_tail(parts, headers)
        self._log_end_offset = headers[-1].end_offset
        if self._derived.record(headers, total):
            self._derived.capture(self._log_end_offset, self.epochs.entries)

    def _take_handle(self) -> None:
        self._pool.writing.take(self)
        self._holds_handle = True

    def put_aside(self) -> bool:
        """Closes the handle for writing; the next append opens one. Loop thread, never waits. False, and nothing
        happened: something is not synced, or somebody is busy with the disk."""
        if not self._io_lock.acquire(blocking=False):
            return False
        try:
            return self._put_aside()
        finally:
            self._io_lock.release()

    def _put_aside(self) -> bool:
        if not all(segment.put_aside() for segment in self._segments if segment.has_handle):
            return False
        self._holds_handle = False
        self._pool.writing.closed(self)
        return True

    def _not_written(self, segment: Segment, error: OSError) -> NoSpace | LogDamaged:
        """What of the write reached the file is taken back: it would follow what is written there next."""
        reason = f"writing to {segment.path} failed: {error}"
        if not is_no_space(error):
            return self._failed(reason)
        try:
            segment.forget_torn()
        except OSError as failure:
            return self._failed(f"{reason}; and so did cutting off what of it was written: {failure}")
        return NoSpace(reason)

    def _check_chain(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> int:
        """Bytes of all batches."""
        end = self._log_end_offset
        epoch = headers[0].leader_epoch
        total = 0
        for header in headers:
            if header.base_offset < end or header.leader_epoch < epoch:
                raise InvariantViolation(
                    f"{header} of leader epoch {header.leader_epoch} does not continue {self.directory}, "
                    f"which ends at {end} in leader epoch {epoch}"
                )
            end, epoch = header.end_offset, header.leader_epoch
            total += header.size
        given = sum(map(len, parts))
        if given != total:
            raise InvariantViolation(f"{given} bytes for batches of {total} bytes, at {headers[0]} in {self.directory}")
        return total

    def _assign_epochs(self, headers: Sequence[BatchHeader]) -> None:
        latest = self.epochs.latest
        for header in headers:
            if header.leader_epoch != latest:
                with self._replacing:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
                latest = header.leader_epoch

    def _published(self, segment: Segment, headers: Sequence[BatchHeader]) -> None:
        previous_end: int = self._log_end_offset
        size = segment.size
        for header in headers:
            if size >= self._index_due:
                segment.add_index_entry(previous_end, size)
                self._index_due = size + self.config.index_interval_bytes
            segment.max_timestamp = max(segment.max_timestamp, header.last_timestamp)
            previous_end = header.end_offset
            size += header.size
        segment.size = size
        segment.allocated = max(segment.allocated, size)

    def _keep_in_tail(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        tail = self._tail
        if len(headers) == 1:
            (header,) = headers
            tail.add(header.base_offset, header.end_offset, header.size, parts, encrypted=header.is_encrypted)
            return
        rest = iter(parts)
        part = memoryview(b"")
        for header in headers:
            wanted = header.size
            mine: list[Buffer] = []
            while wanted:
                if not part:
                    part = memoryview(next(rest))
                mine.append(part[:wanted])
                wanted -= len(mine[-1])
                part = part[len(mine[-1]) :]
            tail.add(header.base_offset, header.end_offset, header.size, mine, encrypted=header.is_encrypted)

    def roll(self) -> bool:
        """Ends the last segment, so that it can be removed or compacted; the next sync finishes it.

        Loop thread, never waits. False, and nothing happened: the last segment holds no record, somebody is busy with
        the disk, or with the derived state, the disk is full, or no appends are taken. Raises LogDamaged.
        """
        if not self._derived.lock.acquire(blocking=False):
            return False  # what producers wrote is being learned anew, perhaps: there is no state to capture
        try:
            if not self._io_lock.acquire(blocking=False):
                return False
            try:
                if self.refusal is not None or not self._segments[-1].size:
                    return False
                self._roll()
            except OSError as error:
                if is_no_space(error):
                    return False
                raise self._failed(f"beginning a segment in {self.directory} failed: {error}") from error
            finally:
                self._io_lock.release()
        finally:
            self._derived.lock.release()
        return True

    def _roll(self) -> Segment:
        """The last segment is full. The next sync finishes it: nothing here waits for the disk."""
        if not self._holds_handle:
            self._take_handle()
        self._derived.capture(self._log_end_offset, self.epochs.entries)
        segment = self._new_segment(self._log_end_offset)
        with self._replacing:
            self._segments = (*self._segments, segment)
        self._index_due = self._next_index_position()
        return segment

    def _new_segment(self, base_offset: int) -> Segment:
        segment = Segment(self._files, self.directory, base_offset)
        segment.open_for_writing(create=True)
        return segment

    def _next_index_position(self) -> int:
        index = self._segments[-1].index
        assert index is not None
        return index.last.position + self.config.index_interval_bytes

    def _preallocate(self, segment: Segment, total: int) -> None:
        room = max(total, self.config.preallocate_bytes)
        try:
            self._files.preallocate(segment.handle, segment.allocated, room)
        except OSError as error:
            if not is_no_space(error):
                raise
            segment.forget_torn()  # the write itself may still find room
            return
        segment.allocated += room

    def assign_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """A new leader's first act: everything before `start_offset`, the log's end, is made durable, then the epoch.

        Blocking; nobody may append meanwhile. Raises LogDamaged, NoSpace, InvariantViolation.
        """
        with self._io_lock:
            self._check_writable()
            if start_offset != self._log_end_offset:
                raise InvariantViolation(
                    f"leader epoch {epoch} cannot begin at {start_offset}: "
                    f"{self.directory} ends at {self._log_end_offset}"
                )
            self._sync_locked()
            self.epochs.assign(epoch, start_offset)
            self._save_epochs(self.epochs.entries)

    def sync(self) -> Offset:
        """Makes durable what is appended now, and the leader epochs. The new `durable_end`.

        Any thread, while appends go on. Raises LogDamaged, and for good: a failed fsync is never tried again; NoSpace
        when there is no room for the leader epochs.
        """
        with self._io_lock:
            if self._unsound is None:
                self._check_writable()
                self._sync_locked()
            return self._durable_end

    def _sync_locked(self) -> None:
        # Read in this order: all records below `end` are in `segments`, and so are all before each of `epochs`.
        end = self._log_end_offset
        epochs = self.epochs.entries
        segments = self._segments
        unfinished = []
        for segment in reversed(segments):
            if segment.is_finished:
                break
            unfinished.append(segment)
        unfinished.reverse()
        try:
            for segment in unfinished:
                size = segment.size
                if segment.synced_size < size:
                    self._files.sync_data(segment.handle)
                    segment.synced_size = size
            if any(not segment.name_synced for segment in unfinished):
                self._files.sync_directory(self.directory)
                for segment in unfinished:
                    segment.name_synced = True
        except OSError as error:
            raise self._failed(f"syncing {self.directory} failed: {error}") from error
        self._save_epochs(epochs)
        self._durable_end = max(self._durable_end, end)
        try:
            for segment, following in itertools.pairwise(unfinished):
                segment.finish(following.base_offset)
        except OSError as error:
            raise self._failed(f"finishing a segment of {self.directory} failed: {error}") from error

    def _save_epochs(self, entries: tuple[EpochEntry, ...]) -> None:
        if entries is self._saved_epochs:
            return
        if entries != self._saved_epochs:
            try:
                write_epochs(self._files, self.directory, entries)
            except OSError as error:
                raise self._not_replaced(f"writing the leader epochs of {self.directory} failed", error) from error
        self._saved_epochs = entries

    def checkpoint_high_watermark(self, high_watermark: Offset) -> None:
        """Records the high watermark, and how far the log is durable: where the next recovery begins.

        Blocking, any thread. Nothing happens in a damaged log: what its checkpoint vouches for is the evidence. Raises
        LogDamaged, NoSpace.
        """
        with self._io_lock:
            if self._unsound is None:
                self._check_writable()
                self._high_watermark = min(high_watermark, self._log_end_offset)
                self._write_checkpoint(self._high_watermark, self._durable_end)

    def _write_checkpoint(self, high_watermark: Offset, recovery_point: Offset) -> None:
        self._replace_checkpoint(OffsetCheckpoint(high_watermark, recovery_point, self.log_start_offset))

    def _replace_checkpoint(self, checkpoint: OffsetCheckpoint) -> None:
        if checkpoint != self._checkpoint:
            try:
                for segment in self._segments:
                    segment.save_index()
                write_offsets(self._files, self.directory, checkpoint)
            except OSError as error:
                raise self._not_replaced(f"writing the checkpoint of {self.directory} failed", error) from error
        self._checkpoint = checkpoint

    def close(self) -> None:
        """Syncs, checkpoints, and lets go of all files: the next open has nothing to scan. Raises LogDamaged, NoSpace
        (the files are let go of all the same)."""
        with self._removing, self._derived.lock, self._io_lock:
            try:
                if self._failure is None and self._unsound is None:
                    self._sync_locked()
                    self._finish_last()
                    self._derived.capture(self._log_end_offset, self.epochs.entries)
                    self._write_captured()
                    self._write_checkpoint(self._high_watermark, self._durable_end)
            finally:
                self._failure = self._failure or f"the log in {self.directory} is closed"
                self._pool.writing.closed(self)
                for segment in self._segments:
                    segment.close()
                    self._pool.indexes.forget(segment)
                    self._handles.forget(segment.path)

    def _finish_last(self) -> None:
        try:
            self._segments[-1].finish(self._log_end_offset)
        except OSError as error:
            raise self._failed(f"closing {self._segments[-1].path} failed: {error}") from error

    def _check_writable(self) -> None:
        if self._failure is not None:
            raise LogDamaged(self._failure)

    def _not_replaced(self, what: str, error: OSError) -> NoSpace | LogDamaged:
        """One of the small files, which is as it was: its new content lay in a file beside it."""
        return NoSpace(f"{what}: {error}") if is_no_space(error) else self._failed(f"{what}: {error}")

    def _failed(self, reason: str) -> LogDamaged:
        self._failure = self._failure or f"{reason}; nothing is written to this log any more"
        return LogDamaged(self._failure)

    # ---- snapshots

    @property
    def snapshot_is_due(self) -> bool:
        """Whether `write_snapshots` would write something."""
        return self.refusal is None and self._derived.is_due(self._durable_end)

    def write_snapshots(self) -> None:
        """Writes what of the derived state was captured, and is durable by now. Blocking, any thread."""
        if self.refusal is None:
            with self._derived.lock:
                self._write_captured()

    def _write_captured(self) -> None:
        self._derived.write_captured(self._durable_end, [segment.base_offset for segment in self._segments])

    def snapshot_at(self, offset: Offset) -> bytes:
        """The derived state at `offset`, where a batch or a segment begins, as its snapshot lies on disk; it is built,
        and written, where it is missing. Of what lies before the log's start only the snapshots know the producers.

        Blocking, any thread. Raises CorruptData, LogDamaged, TidelogError(OFFSET_BEFORE_LOG): the log begins above it.
        """
        with self._removing:
            return self._snapshot_at(offset)

    def _snapshot_at(self, offset: Offset) -> bytes:
        with self._derived.lock:
            content = self._derived.content_at(offset)
            if content is not None:
                return content
            self._check_not_before_log(offset, self._segments)
            snapshot = self._derived.build(offset, self.log_start_offset, self.epochs, self.producer_batches)
            try:
                if offset <= self._durable_end:
                    self._derived.write(snapshot)
            except OSError as error:
                logger.warning("%s: the state at offset %d is not written: %s", self.directory, offset, error)
            return encode_snapshot(snapshot)

    def is_without_past(self) -> bool:
        """It begins above 0 and is empty, and nothing says what producers wrote before. Blocking; nobody may append
        meanwhile."""
        start = self.log_start_offset
        with self._derived.lock:
            return 0 < start == self._log_end_offset and self._derived.newest(start, start) is None

    def _restore_producers(self) -> Offset:
        """From where on headers were read. Raises CorruptData, LogDamaged."""
        return self._derived.restore(self.log_start_offset, self._log_end_offset, self.producer_batches)

    # ---- reading

    def read(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> list[Buffer] | None:
        """Whole batches from the one that holds `offset`, at least one, up to `max_bytes`, none that ends above
        `end_offset`; [] when there is none. None: they are not in memory, ask `read_from_disk`. Loop thread, never
        blocks.
        """
        end_offset = min(end_offset, self._log_end_offset)
        if offset >= end_offset:
            return []
        return self._tail.read(offset, max_bytes, end_offset)

    def read_from_disk(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> Buffer:
        """As `read`, from the files; may hold fewer batches than fit. Headers are checked, bodies are for the receiver
        to check.

        Blocking, any thread. Raises TidelogError(OFFSET_BEFORE_LOG), CorruptData (damage), LogDamaged (the disk).
        """
        return self._stable(lambda: self._read_from_disk(offset, max_bytes, end_offset))

    def _stable(self, attempt: Callable[[], T]) -> T:
        """The result of a reading `attempt` during which nothing was cut."""
        while True:
            cuts = self._cuts
            if cuts % 2:
                with self._io_lock:  # until the cut is done
                    continue
            try:
                result = attempt()
            except (OSError, CorruptData) as error:
                if self._cuts != cuts:
                    continue
                if isinstance(error, OSError):
                    raise LogDamaged(f"reading {self.directory} failed: {error}") from error
                raise
            if self._cuts == cuts:
                return result

    def _read_from_disk(self, offset: Offset, max_bytes: int, end_offset: Offset) -> Buffer:
        end_offset = min(end_offset, self._log_end_offset)
        segments = self._segments
        self._check_not_before_log(offset, segments)
        number = bisect_right(segments, offset, key=_base_offset) - 1
        while number < len(segments) and offset < end_offset:
            index = self._index(segments, number)
            found = self._read_segment(segments[number], index.before_offset(offset), offset, max_bytes, end_offset)
            if found is not None:
                return found
            number += 1  # the records behind `offset` were compacted away up to the end of that segment
        return b""

    def _read_segment(
        self, segment: Segment, start: IndexEntry, offset: Offset, max_bytes: int, end_offset: Offset
    ) -> Buffer | None:
        """None: the segment has no record at or above `offset`."""
        size = segment.size
        with self._handles.borrow(segment.path) as handle:
            for position, header in self._walk(segment, handle, start, size):  # noqa: B007 - used where it ends
                if header.end_offset > offset:
                    break
            else:
                return None
            if header.end_offset > end_offset:
                return b""
            block = self._files.read(handle, min(max(max_bytes, header.size), size - position), position)
        whole = header.size
        while whole < len(block):
            if len(block) - whole < HEADER_SIZE:
                break
            header = self._header(segment, block, whole, position)
            if whole + header.size > len(block) or header.end_offset > end_offset:
                break
            whole += header.size
        return block if whole == len(block) else memoryview(block)[:whole]  # not copied: it may be megabytes

    def offset_for_timestamp(
        self, timestamp_ns: int, end_offset: Offset, *, decrypt: Callable[[Buffer], bytes] = bytes
    ) -> Offset | None:
        """The offset of the first record, in order of offset, with a timestamp of at least `timestamp_ns`; None when
        there is none below `end_offset`. Control batches do not count. `decrypt` makes a batch that is encrypted one
        that is not. Blocking, any thread. Raises as `read_from_disk` and `decrypt`."""
        return self._stable(lambda: self._offset_for_timestamp(timestamp_ns, end_offset, decrypt))

    def _offset_for_timestamp(
        self, timestamp: int, end_offset: Offset, decrypt: Callable[[Buffer], bytes]
    ) -> Offset | None:
        end_offset = min(end_offset, self._log_end_offset)
        segments = self._segments
        for number, segment in enumerate(segments):
            if segment.base_offset >= end_offset:
                break
            if segment.max_timestamp < timestamp:
                continue
            start = self._index(segments, number).before_timestamp(timestamp)
            with self._handles.borrow(segment.path) as handle:
                for position, header in self._walk(segment, handle, start, segment.size):
                    if header.base_offset >= end_offset:
                        return None
                    if header.last_timestamp >= timestamp and not header.is_control:
                        found = self._record_at(handle, position, header, timestamp, decrypt)
                        return found if found < end_offset else None
        return None

    def _record_at(
        self,
        handle: int,
        position: int,
        header: BatchHeader,
        timestamp: int,
        decrypt: Callable[[Buffer], bytes],
    ) -> Offset:
        if header.first_timestamp >= timestamp and not header.offset_span:
            return header.base_offset
        stored = self._files.read(handle, header.size, position)
        batch = RecordBatch.decode(decrypt(stored) if header.is_encrypted else stored)
        return Offset(int(batch.offsets[np.argmax(batch.timestamps >= timestamp)]))

    def first_timestamp(self, base_offset: int) -> int | None:
        """ns; of the first record of a segment; None: it has none, or was just cut. Blocking, any thread. Raises as
        `read_from_disk`."""
        return self._stable(lambda: self._first_timestamp(base_offset))

    def _first_timestamp(self, base_offset: int) -> int | None:
        segments = self._segments
        segment = segments[max(0, bisect_right(segments, base_offset, key=_base_offset) - 1)]
        if not segment.size:
            return None
        with self._handles.borrow(segment.path) as handle:
            block = self._files.read(handle, HEADER_SIZE, 0)
        return self._header(segment, block, 0, 0).first_timestamp

    def written_at(self, segment: Segment) -> int:
        """When the file of `segment` was last changed, ns. Blocking, any thread. Raises LogDamaged."""
        try:
            return self._files.written_at(segment.path)
        except OSError as error:
            raise LogDamaged(f"{segment.path} cannot be looked at: {error}") from error

    def producer_batches(self, from_offset: Offset, end_offset: Offset | None = None) -> Iterator[BatchHeader]:
        """Headers of the batches from the one that holds `from_offset` on, up to the one that ends at `end_offset`, to
        rebuild what producers wrote.

        While nobody cuts the log; segments that `remove_before` takes meanwhile are left out. Raises LogDamaged,
        CorruptData.
        """
        segments = self._segments
        number = max(0, bisect_right(segments, from_offset, key=_base_offset) - 1)
        for at in range(number, len(segments)):
            if end_offset is not None and segments[at].base_offset >= end_offset:
                return
            yield from self._headers_between(from_offset, end_offset, segments, at)

    def _headers_between(
        self, offset: Offset, end_offset: Offset | None, segments: tuple[Segment, ...], number: int
    ) -> Iterator[BatchHeader]:
        """Goes on where it was when the segment is replaced meanwhile."""
        segment = segments[number]
        while True:
            cuts = self._cuts
            if cuts % 2:
                with self._io_lock:
                    continue
            try:
                start = self._index(segments, number).before_offset(offset)
                with self._handles.borrow(segment.path) as handle:
                    for _, header in self._walk(segment, handle, start, segment.size):
                        if end_offset is not None and header.end_offset > end_offset:
                            return
                        if header.end_offset > offset:
                            yield header
                            offset = header.end_offset
            except (OSError, CorruptData) as error:
                if segment not in self._segments:
                    return  # removed for its age
                if self._cuts != cuts:
                    continue
                if isinstance(error, OSError):
                    raise LogDamaged(f"reading {self.directory} failed: {error}") from error
                raise
            if self._cuts == cuts:
                return

    def _walk(self, segment: Segment, handle: int, start: IndexEntry, size: int) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from walk(self._files, handle, start.position, size, start.offset, verify=False)
        except CorruptData as error:
            raise CorruptData(f"{segment.path} is damaged {error}") from error

    @staticmethod
    def _header(segment: Segment, block: bytes, at: int, position: int) -> BatchHeader:
        try:
            return parse_header(block, at)
        except CorruptData as error:
            raise CorruptData(f"{segment.path} is damaged at byte {position + at}: {error}") from error

    def _index(self, segments: tuple[Segment, ...], number: int) -> SparseIndex:
        segment = segments[number]
        index = segment.index
        if index is None:
            with self._io_lock:
                present = self._segments  # `segments` may be of a time when it was the last one
                following = bisect_right(present, segment.base_offset, key=_base_offset)
                end = present[following].base_offset if following < len(present) else self._log_end_offset
                index = segment.load(self._handles, end)
        if segment.is_finished:
            self._pool.indexes.used(segment)
        return index

    @staticmethod
    def _check_not_before_log(offset: Offset, segments: tuple[Segment, ...]) -> None:
        start = segments[0].base_offset if segments else 0
        if offset < start:
            raise TidelogError(
                Code.OFFSET_BEFORE_LOG, f"offset {offset} is before the log's start {start}", {"log_start": str(start)}
            )

    # ---- cutting

    def truncate(self, offset: Offset) -> Offset:
        """Removes every record from `offset` on, and the rest of the batch that holds it; epochs that begin there go
        too.

        At the log's end it removes no record, but an epoch without records. Below the log's start, which may just have
        moved, it removes every record. Durable on return; the new end of the log. Blocking; nobody may append
        meanwhile. Raises LogDamaged, NoSpace (the same call goes on where this one stopped), CorruptData (nothing was
        cut), InvariantViolation (the log is damaged: `cut_damage`).
        """
        with self._removing, self._derived.lock:
            try:
                with self._io_lock:
                    self._check_writable()
                    if self._unsound is not None:
                        raise InvariantViolation(f"{self.directory} is damaged and must not be cut at {offset}")
                    with self._cutting():
                        self._cut_to(*self._cut_point(max(offset, self.log_start_offset)))
            except NoSpace:
                self._restore_producers()  # the records may be gone already
                raise
            self._restore_producers()
            return self._log_end_offset

    def _cut_to(self, number: int, size: int, new_end: Offset, newest: int) -> None:
        """The arguments are as `_cut_point` gives them."""
        self._cut_compaction_point(new_end)
        self._derived.cut(new_end)
        high_watermark = min(self._high_watermark, new_end)
        start = self.log_start_offset if number >= 0 else new_end
        self._replace_checkpoint(OffsetCheckpoint(high_watermark, min(self._vouched(), new_end), start))
        if new_end < self._log_end_offset:
            self._histories += 1
        self._tail = Tail(self.config.tail_bytes)
        self._log_end_offset = new_end
        self._durable_end = min(self._durable_end, new_end)
        self._high_watermark = high_watermark
        kept, gone = self._segments[: number + 1], self._segments[number + 1 :]
        self._segments = kept or (self._new_segment(new_end),)
        for segment in reversed(gone):
            remove_segment(self._files, self._handles, segment)
        last = self._segments[-1]
        if size < last.allocated or last.is_finished:
            last.cut(size, newest)
        self._index_due = self._next_index_position()
        self.epochs.truncate_from(new_end)
        self._sync_locked()
        self._put_aside()

    def _cut_point(self, offset: Offset) -> tuple[int, int, Offset, int]:
        """(number of the segment that becomes the last, its bytes, the log's end, the newest timestamp in it)."""
        segments = self._segments
        if offset >= self._log_end_offset:
            size, newest = (segments[-1].size, segments[-1].max_timestamp) if segments else (0, NO_TIMESTAMP)
            return len(segments) - 1, size, self._log_end_offset, newest
        number = bisect_right(segments, offset, key=_base_offset) - 1
        segment = segments[number]
        end = segments[number + 1].base_offset if number + 1 < len(segments) else self._log_end_offset
        start = segment.load(self._handles, end).before_offset(offset)
        size, new_end, newest = start.position, start.offset, start.max_timestamp
        with self._handles.borrow(segment.path) as handle:
            for position, header in self._walk(segment, handle, start, segment.size):
                if header.end_offset > offset:
                    break
                size, new_end = position + header.size, header.end_offset
                newest = max(newest, header.last_timestamp)
        return number, size, Offset(new_end), newest

    def _vouched(self) -> Offset:
        return self._checkpoint.recovery_point if self._checkpoint else Offset(0)

    def drop_all(self, new_start_offset: Offset, *, deleted_end: Offset = Offset(0)) -> None:
        """Removes every record; the log goes on, empty, at `new_start_offset`, which is committed somewhere else, with
        the derived state that a snapshot of its own has there.

        It is to be filled from a log whose `compaction_point` says `deleted_end`. Durable on return. Blocking; nobody
        may append meanwhile. Raises LogDamaged, NoSpace (the same call goes on where this one stopped).
        """
        with self._removing, self._derived.lock:
            own = self._derived.newest(new_start_offset, new_start_offset)
            self._install(own or Snapshot(new_start_offset), deleted_end)

    def install(self, snapshot: Snapshot, *, deleted_end: Offset = Offset(0)) -> None:
        """Removes every record; the log goes on, empty, at the snapshot's offset, with its leader epochs and producers,
        to be filled from a log whose `compaction_point` says `deleted_end`.

        Durable on return, and never half done: see `dataplane.log.installation`. Blocking; nobody may append meanwhile.
        Raises LogDamaged, NoSpace (the same call goes on where this one stopped).
        """
        with self._removing, self._derived.lock:
            self._install(snapshot, deleted_end)

    def _install(self, snapshot: Snapshot, deleted_end: Offset) -> None:
        with self._io_lock:
            self._check_writable()
            with self._cutting():
                self._histories += 1
                point = self.compaction_point
                if point != CompactionPoint():
                    self._save_compaction_point(CompactionPoint(deletions_end=point.deletions_end))
                gone = self._segments
                try:
                    installation.begin(self._files, self.directory, snapshot)
                    self._half_installed = f"{self.directory} is given up for a log from offset {snapshot.offset} on"
                    for segment in gone:
                        segment.close()
                    installation.finish(self._files, self.directory)
                    for segment in gone:
                        self._pool.indexes.forget(segment)
                        self._handles.forget(segment.path)
                    self._begin_at(snapshot)
                    self._put_aside()
                except OSError as error:
                    if is_no_space(error):
                        raise NoSpace(f"{self.directory} cannot begin anew: {error}") from error
                    raise
                self._half_installed = None
                if deleted_end or point != CompactionPoint():
                    self._save_compaction_point(CompactionPoint.of_copy(deleted_end))

    def _begin_at(self, snapshot: Snapshot) -> None:
        """Nothing but an empty segment is there."""
        offset = snapshot.offset
        self._derived.begin_at(snapshot)
        self.epochs.replace(snapshot.epochs)
        self.epochs.truncate_before(offset)
        self._saved_epochs = self.epochs.entries
        self._tail = Tail(self.config.tail_bytes)
        self._log_end_offset = self._durable_end = self._high_watermark = offset
        self._checkpoint = OffsetCheckpoint(offset, offset, offset)
        self._segments = (self._new_segment(offset),)
        self._segments[0].name_synced = True
        self._index_due = self._next_index_position()
        self._unsound = None
        self._known_end = Offset(0)

    def remove_before(self, offset: Offset) -> tuple[Segment, ...]:
        """Removes the segments that lie wholly below `offset`, which must be committed; never the last one. They are
        returned, oldest first; `log_start_offset` has moved behind them, durably.

        Nothing happens in a damaged log. Blocking, any thread, while appends and reads go on. Raises LogDamaged.
        """
        with self._removing:
            segments = self._segments
            number = bisect_right(segments, offset, key=_base_offset) - 1
            if self._unsound is not None or number <= 0:
                return ()
            self.sync()
            number = self._with_snapshot(segments, number)
            if number == 0:
                return ()
            with self._io_lock:
                start = Offset(segments[number].base_offset)
                self._high_watermark = max(self._high_watermark, start)
                self._replace_checkpoint(OffsetCheckpoint(self._high_watermark, self._durable_end, start))
                with self._replacing:
                    self._segments = self._segments[number:]
                    self.epochs.truncate_before(start)
                self._cuts += 2
                with suppress(NoSpace):  # the next sync writes the epochs; without them the segments go all the same
                    self._sync_locked()
            gone = segments[:number]
            try:
                for segment in gone:
                    segment.remove()
                    self._pool.indexes.forget(segment)
                    self._handles.forget(segment.path)
                with self._derived.lock:
                    self._derived.remove_surplus(segment.base_offset for segment in self._segments)
                self._files.sync_directory(self.directory)
            except OSError as error:
                raise self._failed(f"removing old segments of {self.directory} failed: {error}") from error
            return gone

    def _with_snapshot(self, segments: tuple[Segment, ...], number: int) -> int:
        """The last segment up to `number` at whose beginning there is a snapshot: nothing else knows, once those before
        it are gone, what producers wrote in them. When it cannot be written the disk may be full."""
        self._snapshot_at(Offset(segments[number].base_offset))
        with self._derived.lock:
            while number > 0 and self._derived.content_at(Offset(segments[number].base_offset)) is None:
                number -= 1
        return number

    # ---- compaction (see `dataplane.log.compaction`)

    @property
    def histories(self) -> int:
        """Another number once records were replaced by others (`truncate`, `install`): what was learned of the log
        before that is worth nothing."""
        return self._histories

    @property
    def cuts(self) -> int:
        """Another number once a byte position in some segment may mean another place than before."""
        return self._cuts

    @property
    def files(self) -> FileSystem:
        return self._files

    def finished_below(self, end: Offset) -> list[tuple[Segment, Offset]]:
        """(segment, where the next one begins): those that nobody writes to any more and that lie wholly below `end`
        and on stable storage; oldest first, never the last one."""
        end = min(end, self._durable_end)
        return [
            (segment, Offset(following.base_offset))
            for segment, following in itertools.pairwise(self._segments)
            if following.base_offset <= end and segment.is_finished and segment.synced_size == segment.size
        ]

    def forget_compacted(self) -> None:
        """What was compacted is read from disk, as it is now, and no longer from memory. Loop thread."""
        self._tail.drop_before(self.compaction_point.clean_end)

    def holds(self, segment: Segment) -> bool:
        return segment in self._segments

    def read_segment(self, segment: Segment, size: int, position: int) -> bytes:
        """Up to `size` bytes of the segment's file, which may be another one by then. Blocking, any thread. Raises
        LogDamaged."""
        try:
            with self._handles.borrow(segment.path) as handle:
                return self._files.read(handle, size, position)
        except OSError as error:
            raise LogDamaged(f"reading {segment.path} failed: {error}") from error

    def replace_segment(self, segment: Segment, source: Path, size: int, index: SparseIndex, histories: int) -> bool:
        """A finished segment gets the content of `source`, and that file is gone. False: nothing was done, for the log
        is another one than when `histories` was asked, or the segment was removed.

        Durable on return; a crash leaves the old content or the new. Blocking, any thread, while appends and reads go
        on. Raises LogDamaged.
        """
        with self._io_lock:
            self._check_writable()
            if histories != self._histories or segment not in self._segments[:-1]:
                return False
            with self._cutting():
                segment.replace(source, size, index)
                self._handles.forget(segment.path)
                self._pool.indexes.used(segment)
            return True

    def save_compaction_point(self, point: CompactionPoint, histories: int) -> bool:
        """Durably; False: nothing was done, as with `replace_segment`. Blocking, any thread. Raises LogDamaged,
        NoSpace."""
        with self._io_lock:
            self._check_writable()
            if histories != self._histories:
                return False
            self._save_compaction_point(point)
            return True

    def _cut_compaction_point(self, end: Offset) -> None:
        """The log is about to be cut to `end`, or was found to end there."""
        point = self.compaction_point
        if end < point.clean_end or (end < self._high_watermark and point != CompactionPoint()):
            self._save_compaction_point(point.cut(end))

    def _save_compaction_point(self, point: CompactionPoint) -> None:
        try:
            write_compaction(self._files, self.directory, point)
        except OSError as error:
            what = f"writing the compaction point of {self.directory} failed"
            raise self._not_replaced(what, error) from error
        self.compaction_point = point

    # ---- damage

    def check(self, base_offset: int, position: int, max_bytes: int, stop: threading.Event) -> Checked:
        """Reads synced batches of the segment that begins at `base_offset` once more, from the disk, from byte
        `position` (where a batch begins) on, up to about `max_bytes` or until `stop` is set, and checks both CRCs.

        Blocking, any thread, while appends go on. Raises CorruptData (damage), LogDamaged (the disk).
        """
        return self._stable(lambda: self._check(base_offset, position, max_bytes, stop))

    def _check(self, base_offset: int, position: int, max_bytes: int, stop: threading.Event) -> Checked:
        segments = self._segments
        number = next((at for at, each in enumerate(segments) if each.base_offset == base_offset), None)
        if number is None or position >= segments[number].synced_size:
            return Checked(0, is_whole=True)
        segment, end = segments[number], segments[number].synced_size
        is_finished = number + 1 < len(segments) and segment.is_finished
        checked, previous_end = position, base_offset
        with self._handles.borrow(segment.path) as handle:
            self._files.forget_cached(handle, position, max_bytes)
            try:
                for at, header in walk(self._files, handle, position, end, base_offset, verify=True):
                    checked, previous_end = at + header.size, header.end_offset
                    if checked - position >= max_bytes or stop.is_set():
                        break
            except ChainBroken as broken:
                raise CorruptData(f"{segment.path} is damaged {broken}") from broken
            self._files.forget_cached(handle, position, checked - position)
        if checked == end and is_finished and previous_end != (following := segments[number + 1].base_offset):
            raise CorruptData(f"{segment.path} ends at offset {previous_end}, the next segment begins at {following}")
        return Checked(checked - position, is_whole=checked == end)

    def examine(self, *, without_beginning: bool = False) -> Damage:
        """Reads and checks the whole log, body by body: where its sound part ends. In a sound log that is its end; in
        one that has lost its first segments it is the log start, unless `without_beginning`: then it begins where it
        does.

        Blocking; nobody may append meanwhile. Raises LogDamaged (the disk).
        """
        with self._removing:
            with self._io_lock:
                self._histories += 1  # a compaction that is at work replaces no segment any more
            return self._examine(without_beginning)

    def _examine(self, without_beginning: bool) -> Damage:
        end, epoch = int(self.log_start_offset), 0
        if not without_beginning and self._checkpoint is not None and self._checkpoint.log_start_offset is not None:
            end = self._checkpoint.log_start_offset
        file, size = "", 0
        reason = self._unsound or f"{self.directory} was read and is sound"
        try:
            for segment in self._segments:
                if segment.base_offset != end:
                    reason = f"{self.directory} ends at offset {end}, the next segment begins at {segment.base_offset}"
                    break
                file, size = segment.path.name, 0
                with self._handles.borrow(segment.path) as handle:
                    batches = walk(self._files, handle, 0, segment.size, end, verify=True, epoch=epoch)
                    for position, header in batches:
                        end, epoch, size = header.end_offset, header.leader_epoch, position + header.size
        except ChainBroken as broken:
            reason = f"{self.directory / file} is damaged {broken}"
        except OSError as error:
            raise LogDamaged(f"reading {self.directory} failed: {error}") from error
        return Damage(
            file=file,
            first_byte=size,
            sound_end=Offset(end),
            known_end=self.known_end,
            reason=reason,
        )

    def cut_damage(self, damage: Damage, *, when_ns: int, lost: bool) -> dict[str, Any]:
        """Cuts the log where its sound part ends (`examine`), and takes the mark away: it takes appends again. What was
        cut goes into `quarantine/`; the report of that. `lost`: an operator gave up what only this log may hold.

        Only out of the ISR, or by an operator's word. Durable on return. Blocking; nobody may append meanwhile. Raises
        LogDamaged, NoSpace (nothing was cut: what is to be kept finds no room), CorruptData (the disk gives back
        something else than just before).
        """
        with self._removing, self._derived.lock:
            with self._io_lock:
                self._check_writable()
                with self._cutting():
                    report = self._cut_damage(damage, when_ns, lost=lost)
            self._restore_producers()
            return report

    def _cut_damage(self, damage: Damage, when_ns: int, *, lost: bool) -> dict[str, Any]:
        number = next((at for at, each in enumerate(self._segments) if each.path.name == damage.file), -1)
        try:
            report = Quarantine(self._files, self.directory).take(
                damage, self._behind(number, damage.first_byte), when_ns=when_ns, lost=lost
            )
        except OSError as error:
            if is_no_space(error):
                raise NoSpace(f"the damage in {self.directory} cannot be put aside: {error}") from error
            raise
        for segment in reversed(self._beyond):
            remove_segment(self._files, self._handles, segment)
        self._beyond = []
        newest = self._newest_timestamp(number, damage.first_byte, damage.sound_end)
        self._unsound = None
        self._cut_to(number, damage.first_byte, damage.sound_end, newest)
        if self._checkpoint is None:
            self._write_checkpoint(self._high_watermark, self._durable_end)
        self._known_end = Offset(0)
        remove_mark(self._files, self.directory)
        return report

    def _behind(self, number: int, position: int) -> list[Piece]:
        """What lies behind that byte of that segment, in order; room that was reserved and never written does not
        count."""
        pieces = []
        if number >= 0:
            segment = self._segments[number]
            with self._handles.borrow(segment.path) as handle:
                size = self._files.size(handle)
                if not only_zeros(self._files, handle, position, size):
                    pieces.append(Piece(segment.path, position, size, whole=False))
        for segment in (*self._segments[number + 1 :], *self._beyond):
            segment.close()
            self._handles.forget(segment.path)
            pieces.append(Piece(segment.path, 0, max(segment.size, segment.allocated), whole=True))
        return pieces

    def _newest_timestamp(self, number: int, size: int, end: Offset) -> int:
        """Of the first `size` bytes of that segment, which were checked."""
        if number < 0:
            return NO_TIMESTAMP
        segment = self._segments[number]
        with self._handles.borrow(segment.path) as handle:
            batches = walk(self._files, handle, 0, size, segment.base_offset, verify=False)
            found = (header.last_timestamp for _, header in batches if header.end_offset <= end)
            return max(found, default=NO_TIMESTAMP)

    def _cutting(self) -> _Cut:
        return _Cut(self)


class _Cut:
    """Makes `_cuts` odd while something is cut; a failure in between ends all writing."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._log._cuts += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._log._cuts += 1
        if isinstance(error, OSError):
            raise self._log._failed(f"cutting {self._log.directory} failed: {error}") from error


def _base_offset(segment: Segment) -> Offset:
    return Offset(segment.base_offset)
