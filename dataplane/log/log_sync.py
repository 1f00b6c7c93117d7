"""Makes appended batches durable and records how far they are: sync, checkpoint, leader epochs.

    sync, checkpoint_high_watermark     any thread, any time; they take the I/O lock
    checkpoint_at_once                  any thread, any time; it takes `replacing`
    begin_sync … end_sync               one thread, any time; they hold the I/O lock when it was free
    sync_small                          the loop thread; it takes the I/O lock when it is free
    assign_epoch                        a worker, while no append runs; it takes the I/O lock
    the others                          the holder of the I/O lock

The order in which a sync writes stands in `dataplane.log.partition_log`.

## Leader epochs

An open finds the leader epochs from the last index entry on in the headers of the batches, which it reads anyway
(`dataplane.log.recovery.log_recovery`). So their file is written before an index entry is that lies behind the
beginning of an epoch which the file does not have: once in 64 KiB at most, and never for a log that holds less. An
epoch without a record need not be durable at all: no other replica has an entry of it, the next epoch that begins at
the same offset replaces it, and its leader leads in a later one once it has restarted (R2).
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from dataplane.log.storage.checkpoints import OffsetCheckpoint, write_epochs, write_offsets
from dataplane.log.storage.log_errors import NoSpace
from wire.errors import InvariantViolation
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.log.log_state import LogState
    from dataplane.log.segments.segment import Segment
    from wire.types import LeaderEpoch


MOST_BYTES_TOGETHER = 1 << 20
"""Most unsynced bytes of a log that is synced together with others, which wait until the last of them is durable."""


class LogSync:
    def __init__(self, state: LogState) -> None:
        self._state = state
        self._begun: tuple[Segment, int, Offset] | None = None
        """(segment, its size, end of the log) as `begin_sync` found them. Under the I/O lock."""

    # Keeps R4.
    def assign_epoch(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        """A new leader's first act: everything before `start_offset`, the log's end, is made durable, then the epoch
        begins there.

        Blocking; no append may run meanwhile. Raises LogDamaged, NoSpace, InvariantViolation.
        """
        state = self._state
        with state.io_lock:
            state.check_writable()
            if start_offset != state.log_end_offset:
                raise InvariantViolation(
                    f"leader epoch {epoch} cannot begin at {start_offset}: "
                    f"{state.directory} ends at {state.log_end_offset}"
                )
            self.sync_locked()
            state.epochs.assign(epoch, start_offset)

    # Keeps R12.
    def sync(self) -> Offset:
        """Makes all that is appended now durable. Returns the new `durable_end`.

        Any thread, while appends go on. Raises LogDamaged, and for good: a failed fsync is never tried again.
        """
        state = self._state
        with state.io_lock:
            if state.unsound is None:
                state.check_writable()
                self.sync_locked()
                self._forget_cached()
            return state.durable_end

    def sync_small(self, most_bytes: int) -> Offset | None:
        """As `sync`, where one fdatasync of `most_bytes` or fewer is enough. Returns None, with nothing done, when it
        is not, or when the I/O lock is taken. Loop thread; it waits for the disk. Raises LogDamaged."""
        state = self._state
        last = state.segments[-1]
        if (
            last.size - last.synced_size > most_bytes
            or not self._needs_data_alone()
            or not state.io_lock.acquire(blocking=False)
        ):
            return None
        try:
            state.check_writable()
            self.sync_locked()
        finally:
            state.io_lock.release()
        return state.durable_end

    # Keeps R12.
    def begin_sync(self) -> int | None:
        """The first half of `sync`, for a thread that syncs the files of many logs together: the handle of the file.
        The I/O lock is held until `end_sync`. Returns None, with nothing done, where one fdatasync is not enough,
        where there is much to sync, or when the I/O lock is taken."""
        state = self._state
        if not state.io_lock.acquire(blocking=False):
            return None
        handle = None
        try:
            end = state.log_end_offset  # read before the segments, as in `sync_locked`
            last = state.segments[-1]
            size = last.size
            if (
                state.failure is None
                and 0 < size - last.synced_size <= MOST_BYTES_TOGETHER
                and self._needs_data_alone()
            ):
                with suppress(OSError):  # `sync` meets it again
                    handle = last.handle
                    self._begun = last, size, end
        finally:
            if handle is None:
                state.io_lock.release()
        return handle

    # Keeps R12.
    def end_sync(self, error: OSError | None) -> Offset:
        """The second half, with the outcome of that fdatasync. As `sync`."""
        state = self._state
        if self._begun is None:
            raise InvariantViolation(f"no sync of {state.directory} has begun")
        (segment, size, end), self._begun = self._begun, None
        try:
            if error is not None:
                raise state.failed(f"syncing {state.directory} failed: {error}") from error
            segment.synced_size = size
            state.durable_end = max(state.durable_end, end)
            self._forget_cached()
        finally:
            state.io_lock.release()
        return state.durable_end

    def _needs_data_alone(self) -> bool:
        """Whether the bytes of the last segment are all that is not durable."""
        state = self._state
        segments = state.segments
        last = segments[-1]
        return (
            last.name_synced
            and last.length_synced
            and (len(segments) == 1 or segments[-2].is_finished)
            and state.unsound is None
        )

    def sync_locked(self) -> None:
        state = self._state
        # Read in this order: all records below `end` are in `segments`.
        end = state.log_end_offset
        segments = state.segments
        unfinished = []
        for segment in reversed(segments):
            if segment.is_finished:
                break
            unfinished.append(segment)
        unfinished.reverse()
        try:
            for segment in unfinished:
                size = segment.size
                if not segment.length_synced:
                    segment.length_synced = True  # before the call: an append may cut another write meanwhile
                    state.files.sync_all(segment.handle)
                    segment.synced_size = size
                elif segment.synced_size < size:
                    state.files.sync_data(segment.handle)
                    segment.synced_size = size
            if any(not segment.name_synced for segment in unfinished):
                state.files.sync_directory(state.directory)
                for segment in unfinished:
                    segment.name_synced = True
        except OSError as error:
            raise state.failed(f"syncing {state.directory} failed: {error}") from error
        state.durable_end = max(state.durable_end, end)
        if len(unfinished) < 2:
            return
        try:
            self.save_epochs(Offset(unfinished[-1].base_offset))
            for segment, following in itertools.pairwise(unfinished):
                segment.finish(following.base_offset)
        except NoSpace:
            return  # the next sync finishes them
        except OSError as error:
            raise state.failed(f"finishing a segment of {state.directory} failed: {error}") from error

    def _forget_cached(self) -> None:
        """Drops synced bytes that no reader wants soon from the page cache."""
        state = self._state
        kept = state.cached_bytes
        if kept is None:
            return
        for segment in reversed(state.segments):
            if segment.is_finished or not segment.has_handle:
                break
            with suppress(OSError):  # it is a hint
                segment.forget_cached(segment.size - kept)
            kept = max(0, kept - segment.size)

    # Keeps R4.
    def save_epochs(self, end: Offset) -> None:
        """Before index entries are written for offsets up to `end`, up to which the log is durable: writes the leader
        epochs that begin before it, where the file does not have them. The holder of the I/O lock calls it. Raises
        LogDamaged, NoSpace."""
        state = self._state
        saved = {*state.saved_epochs}
        entries = tuple(entry for entry in state.epochs.entries if entry.start < end or entry in saved)
        if entries != state.saved_epochs:
            try:
                write_epochs(state.files, state.directory, entries)
            except OSError as error:
                raise state.not_replaced(f"writing the leader epochs of {state.directory} failed", error) from error
            state.saved_epochs = entries

    def forget_epochs(self) -> None:
        """After epochs were removed: the file does not name them any more. As `save_epochs`."""
        state = self._state
        if not {*state.saved_epochs}.issubset(state.epochs.entries):
            self.save_epochs(state.durable_end)

    def checkpoint_high_watermark(self, high_watermark: Offset) -> None:
        """Records the high watermark, and how far the log is durable: where the next recovery begins.

        Blocking, any thread. Does nothing in a damaged log, whose checkpoint is the evidence of the damage. Raises
        LogDamaged, NoSpace.
        """
        state = self._state
        with state.io_lock:
            if state.unsound is None:
                state.check_writable()
                state.high_watermark = min(high_watermark, state.log_end_offset)
                self.write_checkpoint(state.high_watermark, state.durable_end)

    def write_checkpoint(self, high_watermark: Offset, recovery_point: Offset) -> None:
        self.replace_checkpoint(OffsetCheckpoint(high_watermark, recovery_point, self._state.log_start_offset))

    def replace_checkpoint(self, checkpoint: OffsetCheckpoint) -> None:
        """Where the manifest holds it, durable with the next write of that; but durable on return where the log start
        moves, or where the one in the log's folder says more."""
        state = self._state
        try:
            self._save_indexes()
            if self._must_be_filed(checkpoint):
                write_offsets(state.files, state.directory, checkpoint)
                state.filed = checkpoint
        except OSError as error:
            raise state.not_replaced(f"writing the checkpoint of {state.directory} failed", error) from error
        state.checkpoint = checkpoint
        state.vouch()

    def _must_be_filed(self, checkpoint: OffsetCheckpoint) -> bool:
        filed = self._state.filed
        if self._state.entry is None:
            return checkpoint != filed
        if filed is None:
            return bool(checkpoint.log_start_offset)
        return (
            checkpoint.log_start_offset != filed.log_start_offset
            or checkpoint.high_watermark < filed.high_watermark
            or checkpoint.recovery_point < filed.recovery_point
        )

    def checkpoint_at_once(self, high_watermark: Offset) -> bool:
        """As `checkpoint_high_watermark`, without waiting for the disk, where the manifest holds the checkpoint and no
        index entries are to be written. Returns whether it was done. `high_watermark`: below `durable_end`."""
        state = self._state
        with state.replacing:
            if state.entry is None or state.cuts % 2 or state.refusal is not None:
                return False
            state.high_watermark = min(high_watermark, state.log_end_offset)
            state.checkpoint = OffsetCheckpoint(state.high_watermark, state.durable_end, state.log_start_offset)
            state.vouch()
        return state.segments[-1].index_due is None

    def _save_indexes(self) -> None:
        """Raises OSError, LogDamaged, NoSpace."""
        due = [(segment, entry.offset) for segment in self._state.segments if (entry := segment.index_due) is not None]
        if due:
            self.save_epochs(Offset(due[-1][1]))
        for segment, _ in due:
            segment.save_index()
