"""Removal of records: truncation at the end, removal at the beginning, and beginning anew elsewhere.

    truncate, drop_all, install   a worker, between appends; they hold `removing`, the lock of the derived state
                                  and the I/O lock, taken in this order
    remove_before                 any thread, while appends and reads go on; it holds `removing`, and within it takes
                                  the I/O lock and the lock of the derived state one after the other
    cut_to                        the holder of all three locks, within `LogState.cutting`

Readers learn of it by `LogState.cuts`. The order in which files are written and removed is told in
`dataplane.log.partition_log`.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from dataplane.log.derived import installation
from dataplane.log.derived.derived_state import without_past
from dataplane.log.derived.log_snapshot import Snapshot
from dataplane.log.recovery.log_recovery import remove_segment
from dataplane.log.segments.index import NO_TIMESTAMP
from dataplane.log.segments.segment import base_offset_of
from dataplane.log.storage.checkpoints import NOT_COMPACTED, CompactionPoint, OffsetCheckpoint
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import NoSpace
from wire.errors import InvariantViolation
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.log.compacted_segments import CompactedSegments
    from dataplane.log.log_reader import LogReader
    from dataplane.log.log_state import LogState
    from dataplane.log.log_sync import LogSync
    from dataplane.log.log_writer import LogWriter
    from dataplane.log.segments.segment import Segment
    from dataplane.log.snapshot_writer import SnapshotWriter


class Truncation:
    def __init__(
        self,
        state: LogState,
        *,
        appending: LogWriter,
        syncing: LogSync,
        reading: LogReader,
        capturing: SnapshotWriter,
        swapping: CompactedSegments,
    ) -> None:
        self._state = state
        self._appending = appending
        self._syncing = syncing
        self._reading = reading
        self._capturing = capturing
        self._swapping = swapping

    def truncate(self, offset: Offset) -> Offset:
        """Removes every record from `offset` on, and the rest of the batch that holds it; epochs that begin there go
        too.

        At the log's end it removes no record, but an epoch without records. Below the log's start, which may just have
        moved, it removes every record. Durable on return; the new end of the log. Blocking; no thread may append
        meanwhile. Raises LogDamaged, NoSpace (the same call goes on where this one stopped), CorruptData (nothing was
        cut), InvariantViolation (the log is damaged: `cut_damage`).
        """
        state = self._state
        with state.removing, state.derived.lock:
            try:
                with state.io_lock:
                    state.check_writable()
                    if state.unsound is not None:
                        raise InvariantViolation(f"{state.directory} is damaged and must not be cut at {offset}")
                    with state.cutting():
                        self.cut_to(*self.cut_point(offset))
            except NoSpace:
                self._capturing.restore_producers()  # the records may be gone already
                raise
            self._capturing.restore_producers()
            return state.log_end_offset

    def cut_to(self, number: int, size: int, new_end: Offset, newest: int) -> None:
        """The arguments are as `cut_point` gives them."""
        state = self._state
        state.vouch_less(new_end)
        self._swapping.cut_compaction_point(new_end)
        state.derived.cut(new_end)
        high_watermark = min(state.high_watermark, new_end)
        start = state.log_start_offset if number >= 0 else new_end
        self._syncing.replace_checkpoint(OffsetCheckpoint(high_watermark, min(state.vouched(), new_end), start))
        if new_end < state.log_end_offset:
            state.rewrite_epoch += 1
        state.forget_tail()
        state.log_end_offset = new_end
        state.durable_end = min(state.durable_end, new_end)
        state.high_watermark = high_watermark
        kept, gone = state.segments[: number + 1], state.segments[number + 1 :]
        state.segments = kept or state.segments
        for segment in reversed(gone):
            remove_segment(state.files, state.handles, segment)
        if not kept:  # now, for it may have the name of one that is gone
            state.segments = (state.new_segment(new_end),)
        last = state.segments[-1]
        if size < last.allocated or last.is_finished:
            last.cut(size, newest)
        state.index_due = state.next_index_position()
        state.epochs.truncate_from(new_end)
        self._syncing.sync_locked()
        self._syncing.forget_epochs()
        self._appending.put_aside_locked()

    def cut_point(self, offset: Offset) -> tuple[int, int, Offset, int]:
        """(number of the segment that becomes the last, its bytes, the log's end, the newest timestamp in it)."""
        state = self._state
        segments, offset = state.segments, max(offset, state.log_start_offset)
        if offset >= state.log_end_offset:
            size, newest = (segments[-1].size, segments[-1].max_timestamp) if segments else (0, NO_TIMESTAMP)
            return len(segments) - 1, size, state.log_end_offset, newest
        number = bisect_right(segments, offset, key=base_offset_of) - 1
        segment = segments[number]
        end = segments[number + 1].base_offset if number + 1 < len(segments) else state.log_end_offset
        start = segment.load(state.handles, end).before_offset(offset)
        size, new_end, newest = start.position, start.offset, start.max_timestamp
        with state.handles.borrow(segment.path) as handle:
            for position, header in self._reading.walk_segment(segment, handle, start, segment.size):
                if header.end_offset > offset:
                    break
                size, new_end = position + header.size, header.end_offset
                newest = max(newest, header.last_timestamp)
        return number, size, Offset(new_end), newest

    def drop_all(self, new_start_offset: Offset) -> None:
        """Removes every record; the log goes on, empty, at `new_start_offset`, which is committed somewhere else, with
        the derived state that a snapshot of its own has there.

        Durable on return. Blocking; no thread may append meanwhile. Raises LogDamaged, NoSpace (the same call goes on
        where this one stopped).
        """
        state = self._state
        with state.removing, state.derived.lock:
            own = state.derived.newest(new_start_offset, new_start_offset)
            self._install(own or without_past(new_start_offset), NOT_COMPACTED)

    # Keeps R8.
    def install(self, snapshot: Snapshot, copied: CompactionPoint = NOT_COMPACTED) -> None:
        """Removes every record; the log goes on, empty, at the snapshot's offset, with its leader epochs and producers,
        and with `copied` as its compaction point: see `CompactionPoint.of_copy`.

        Durable on return, and never half done: see `dataplane.log.derived.installation`. Blocking; no thread may append
        meanwhile. Raises LogDamaged, NoSpace (the same call goes on where this one stopped).
        """
        with self._state.removing, self._state.derived.lock:
            self._install(snapshot, copied)

    def _install(self, snapshot: Snapshot, copied: CompactionPoint) -> None:
        state = self._state
        with state.io_lock:
            state.check_writable()
            with state.cutting():
                state.vouch_less(snapshot.offset, anew=state.unsound is not None)
                state.rewrite_epoch += 1
                point = state.compaction_point
                if point != NOT_COMPACTED:
                    self._swapping.save_point_locked(CompactionPoint(deletions_end=point.deletions_end))
                gone = state.segments
                try:
                    installation.begin(state.files, state.directory, snapshot)
                    state.half_installed = f"{state.directory} is given up for a log from offset {snapshot.offset} on"
                    for segment in gone:
                        segment.close()
                    installation.finish(state.files, state.directory)
                    for segment in gone:
                        state.pool.indexes.forget(segment)
                        state.handles.forget(segment.path)
                    self._begin_at(snapshot)
                    self._appending.put_aside_locked()
                except OSError as error:
                    if is_no_space(error):
                        raise NoSpace(f"{state.directory} cannot begin anew: {error}") from error
                    raise
                state.half_installed = None
                if copied != NOT_COMPACTED or point != NOT_COMPACTED:
                    self._swapping.save_point_locked(copied)

    def _begin_at(self, snapshot: Snapshot) -> None:
        """Nothing but an empty segment is there."""
        state = self._state
        offset = snapshot.offset
        state.derived.look_again()
        state.derived.begin_at(snapshot)
        state.epochs.replace(snapshot.epochs)
        state.epochs.truncate_before(offset)
        state.saved_epochs = state.epochs.entries
        state.forget_tail()
        state.log_end_offset = state.durable_end = state.high_watermark = offset
        state.checkpoint = state.filed = OffsetCheckpoint(offset, offset, offset)
        state.segments = (state.new_segment(offset),)
        state.segments[0].name_synced = True
        state.index_due = state.next_index_position()
        state.unsound = None
        state.is_of_another_history = False
        state.once_known_end = Offset(0)
        state.vouch()

    def remove_before(self, offset: Offset) -> tuple[Segment, ...]:
        """Removes the segments that lie wholly below `offset`, which must be committed; never the last one. They are
        returned, oldest first; `log_start_offset` has moved behind them, durably.

        Nothing happens in a damaged log. Blocking, any thread, while appends and reads go on. Raises LogDamaged.
        """
        state = self._state
        with state.removing:
            segments = state.segments
            number = bisect_right(segments, offset, key=base_offset_of) - 1
            if state.unsound is not None or number <= 0:
                return ()
            self._syncing.sync()
            number = self._with_snapshot(segments, number)
            if number == 0:
                return ()
            with state.io_lock:
                start = Offset(segments[number].base_offset)
                state.high_watermark = max(state.high_watermark, start)
                self._syncing.replace_checkpoint(OffsetCheckpoint(state.high_watermark, state.durable_end, start))
                with state.replacing:
                    state.segments = state.segments[number:]
                    state.epochs.truncate_before(start)
                state.cuts += 2
                with suppress(NoSpace):  # an open drops them as well; so the segments go all the same
                    self._syncing.forget_epochs()
            gone = segments[:number]
            try:
                for segment in gone:
                    segment.remove()
                    state.pool.indexes.forget(segment)
                    state.handles.forget(segment.path)
                with state.derived.lock:
                    state.derived.remove_surplus(segment.base_offset for segment in state.segments)
                state.files.sync_directory(state.directory)
            except OSError as error:
                raise state.failed(f"removing old segments of {state.directory} failed: {error}") from error
            return gone

    def _with_snapshot(self, segments: tuple[Segment, ...], number: int) -> int:
        """The last segment up to `number` at whose beginning there is a snapshot: nothing else knows, once those before
        it are gone, what producers wrote in them. When it cannot be written the disk may be full."""
        self._capturing.snapshot_while_removing(Offset(segments[number].base_offset))
        with self._state.derived.lock:
            while number > 0 and self._state.derived.content_at(Offset(segments[number].base_offset)) is None:
                number -= 1
        return number
