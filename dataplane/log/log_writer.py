"""Appending to a log, and ending its last segment.

The loop thread calls this, and nothing here waits for the disk or for a lock whose holder may block: `append` takes
only `replacing`; `put_aside` takes the I/O lock when it is free, and `roll` the lock of the derived state and the I/O
lock when both are free; otherwise they do nothing. Only `put_aside_locked` is also called by workers, under the I/O
lock, while no append runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.errors import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataplane.log.log_state import LogState
    from dataplane.log.segments.segment import Segment
    from wire.batch import BatchHeader
    from wire.types import Buffer


class LogWriter:
    """Appends to one log. The pool of handles knows the log by this object: see
    `dataplane.log.storage.pool.Writing`."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._holds_handle = False
        """Whether a handle for writing is open, and counted in the pool. The loop thread opens it; only the loop thread
        closes it, or a worker under the I/O lock while no append runs."""
        self.written_to = False

    def append(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Writes whole batches, stamped, to the end of the log, into the page cache.

        `parts` are their bytes, split anywhere; they are kept for `read` and must not be changed afterwards. The first
        batch begins at the log's end, or above it where the log it comes from was compacted. Raises LogDamaged (the log
        takes no more writes), NoSpace and InvariantViolation (nothing was written).
        """
        state = self._state
        if state.refusal is not None:
            raise LogDamaged(state.refusal)
        if not headers:
            return
        total = self._check_chain(parts, headers)
        epochs = state.epochs.entries
        self._assign_epochs(headers)
        segment = state.segments[-1]
        try:
            if segment.size and segment.size + total > state.config.segment_bytes:
                segment = self._roll()
            if not self._holds_handle:
                self._take_handle()
            handle = segment.handle
            self.written_to = True
            if segment.size + total > segment.allocated and state.config.preallocate_bytes:
                self._preallocate(segment, total)
            state.files.write(handle, parts, segment.size)
        except OSError as error:
            with state.replacing:
                state.epochs.take_back(state.log_end_offset, epochs)
            raise self._not_written(segment, error) from error
        self._published(segment, headers)
        self._keep_in_tail(parts, headers, total)
        state.log_end_offset = headers[-1].end_offset
        if state.derived.record(headers, total):
            state.derived.capture(state.log_end_offset, state.epochs.entries)

    def _take_handle(self) -> None:
        self._state.pool.writing.take(self)
        self._holds_handle = True

    def put_aside(self) -> bool:
        """Closes the handle for writing; the next append opens one. Loop thread, never waits. Returns False, with
        nothing done, while something is not synced or the I/O lock is taken."""
        if not self._state.io_lock.acquire(blocking=False):
            return False
        try:
            return self.put_aside_locked()
        finally:
            self._state.io_lock.release()

    def put_aside_locked(self) -> bool:
        if not all(segment.put_aside() for segment in self._state.segments if segment.has_handle):
            return False
        self._holds_handle = False
        self._state.pool.writing.closed(self)
        return True

    def _not_written(self, segment: Segment, error: OSError) -> NoSpace | LogDamaged:
        """Cuts off the part of the failed write that reached the file: the next write begins at the same position."""
        reason = f"writing to {segment.path} failed: {error}"
        if not is_no_space(error):
            return self._state.failed(reason)
        try:
            segment.forget_torn()
        except OSError as failure:
            return self._state.failed(f"{reason}; and so did cutting off what of it was written: {failure}")
        return NoSpace(reason)

    def _check_chain(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> int:
        """Checks that the batches continue the log. Returns the bytes of all batches."""
        state = self._state
        end = state.log_end_offset
        epoch = headers[0].leader_epoch
        total = 0
        for header in headers:
            if header.base_offset < end or header.leader_epoch < epoch:
                raise InvariantViolation(
                    f"{header} of leader epoch {header.leader_epoch} does not continue {state.directory}, "
                    f"which ends at {end} in leader epoch {epoch}"
                )
            end, epoch = header.end_offset, header.leader_epoch
            total += header.size
        given = sum(map(len, parts))
        if given != total:
            raise InvariantViolation(
                f"{given} bytes for batches of {total} bytes, at {headers[0]} in {state.directory}"
            )
        return total

    def _assign_epochs(self, headers: Sequence[BatchHeader]) -> None:
        state = self._state
        latest = state.epochs.latest
        end = state.log_end_offset
        for header in headers:
            if header.leader_epoch != latest:
                with state.replacing:
                    state.epochs.assign(header.leader_epoch, header.base_offset, end)
                latest = header.leader_epoch
            end = header.end_offset

    def _published(self, segment: Segment, headers: Sequence[BatchHeader]) -> None:
        state = self._state
        previous_end: int = state.log_end_offset
        size = segment.size
        for header in headers:
            if size >= state.index_due:
                segment.add_index_entry(previous_end, size)
                state.index_due = size + state.config.index_interval_bytes
            segment.max_timestamp = max(segment.max_timestamp, header.last_timestamp)
            previous_end = header.end_offset
            size += header.size
        segment.size = size
        segment.allocated = max(segment.allocated, size)

    def _keep_in_tail(self, parts: Sequence[Buffer], headers: Sequence[BatchHeader], total: int) -> None:
        tail = self._state.tail
        if len(headers) == 1:
            (header,) = headers
            tail.add(header.base_offset, header.end_offset, total, parts, encrypted=header.is_encrypted)
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

        Loop thread, never waits. Returns False, with nothing done, when the last segment holds no record, the I/O lock
        or the lock of the derived state is taken, the disk is full, or the log takes no appends. Raises LogDamaged.
        """
        state = self._state
        if not state.derived.lock.acquire(blocking=False):
            return False  # the producer table may be being rebuilt: there is no state to capture
        try:
            if not state.io_lock.acquire(blocking=False):
                return False
            try:
                if state.refusal is not None or not state.segments[-1].size:
                    return False
                self._roll()
            except OSError as error:
                if is_no_space(error):
                    return False
                raise state.failed(f"beginning a segment in {state.directory} failed: {error}") from error
            finally:
                state.io_lock.release()
        finally:
            state.derived.lock.release()
        return True

    def _roll(self) -> Segment:
        """Begins a new segment. The next sync finishes the old one: nothing here waits for the disk."""
        state = self._state
        if not self._holds_handle:
            self._take_handle()
        state.derived.capture(state.log_end_offset, state.epochs.entries)
        segment = state.new_segment(state.log_end_offset)
        with state.replacing:
            state.segments = (*state.segments, segment)
        state.index_due = state.next_index_position()
        return segment

    def _preallocate(self, segment: Segment, total: int) -> None:
        room = max(total, self._state.config.preallocate_bytes)
        try:
            self._state.files.preallocate(segment.handle, segment.allocated, room)
        except OSError as error:
            if not is_no_space(error):
                raise
            segment.forget_torn()  # the write itself may still find room
            return
        segment.allocated += room
