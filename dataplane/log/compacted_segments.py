"""The work of compaction on a log (see `dataplane.log.compaction.compaction_pass`): finished segments get another
content, and the log keeps in mind how far that has come.

Any thread, while appends and reads go on; blocking. `replace_segment` and `save_compaction_point` take the I/O lock;
`cut_compaction_point` and `save_point_locked` are called by its holder. `begin_role` takes it too, and belongs to a
worker between two roles. `decided_below` takes the lock of the derived state. `forget_compacted` is the loop thread's.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from dataplane.log.storage.checkpoints import NOT_COMPACTED, CompactionPoint, write_compaction
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.derived.transaction_table import AbortedBatches
from wire.types import Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.log_state import LogState
    from dataplane.log.log_sync import LogSync
    from dataplane.log.segments.index import SparseIndex
    from dataplane.log.segments.segment import Segment
    from wire.types import LeaderEpoch


class CompactedSegments:
    def __init__(self, state: LogState, syncing: LogSync) -> None:
        self._state = state
        self._syncing = syncing
        self.has_too_large_batch = False
        """A reader was sent an error in place of a batch that NATS does not carry. A pass may make it smaller."""

    def finished_below(self, end: Offset) -> list[tuple[Segment, Offset]]:
        """(segment, where the next one begins): the finished ones that lie wholly below `end`
        and on stable storage; oldest first, never the last one."""
        end = min(end, self._state.durable_end)
        return [
            (segment, Offset(following.base_offset))
            for segment, following in itertools.pairwise(self._state.segments)
            if following.base_offset <= end and segment.is_finished and segment.synced_size == segment.size
        ]

    # Keeps R57.
    def decided_below(self, high_watermark: Offset) -> tuple[Offset, AbortedBatches]:
        """The last stable offset at that HW, and the batches below it that belong to aborted transactions. Blocking,
        any thread, while appends and reads go on."""
        state = self._state
        with state.derived.lock:  # after a cut it is restored, and is that of a part of the log meanwhile
            transactions = state.derived.producers.transactions
            end = transactions.last_stable(high_watermark)
            return end, AbortedBatches(transactions.aborted(state.log_start_offset, end))

    def forget_compacted(self) -> None:
        """Compacted batches are read from disk, as it is now, and no longer from memory. Transactions of which they
        were the last records are forgotten. Loop thread, never waits."""
        state = self._state
        clean_end = state.compaction_point.clean_end
        state.tail.drop_before(clean_end)
        if state.derived.lock.acquire(blocking=False):  # else they are forgotten after the next pass
            try:
                state.derived.producers.transactions.forget_aborted(clean_end)
            finally:
                state.derived.lock.release()

    def holds(self, segment: Segment) -> bool:
        return segment in self._state.segments

    def read_segment(self, segment: Segment, size: int, position: int) -> bytes:
        """Up to `size` bytes of the segment's file, which may be another one by then. Blocking, any thread. Raises
        LogDamaged."""
        try:
            with self._state.handles.borrow(segment.path) as handle:
                return self._state.files.read(handle, size, position)
        except OSError as error:
            raise LogDamaged(f"reading {segment.path} failed: {error}") from error

    def replace_segment(
        self, segment: Segment, source: Path, size: int, index: SparseIndex, rewrite_epoch: int
    ) -> bool:
        """A finished segment gets the content of `source`, and that file is gone. False: nothing was done, for the log
        is another one than when `rewrite_epoch` was asked, or the segment was removed.

        Durable on return; a crash leaves the old content or the new. Blocking, any thread, while appends and reads go
        on. Raises LogDamaged.
        """
        state = self._state
        with state.io_lock:
            state.check_writable()
            if rewrite_epoch != state.rewrite_epoch or segment not in state.segments[:-1]:
                return False
            with state.cutting():
                segment.replace(source, size, index)
                state.handles.forget(segment.path)
                state.pool.indexes.used(segment)
            return True

    def save_compaction_point(self, point: CompactionPoint, rewrite_epoch: int) -> bool:
        """Durably; False: nothing was done, as with `replace_segment`.

        The HW on disk is moved above the tombstones that are gone: where the point is damaged, it stands for them.
        Blocking, any thread. Raises LogDamaged, NoSpace.
        """
        state = self._state
        with state.io_lock:
            state.check_writable()
            if rewrite_epoch != state.rewrite_epoch:
                return False
            gone_end = min(point.deletions_end, state.durable_end)
            if gone_end > state.high_watermark:
                state.high_watermark = gone_end
                self._syncing.write_checkpoint(gone_end, state.durable_end)
            self.save_point_locked(point)
            return True

    def is_copy_of_another(self, leader_epoch: LeaderEpoch) -> bool:
        """Whether the log is half a copy of a log other than that of the leader of `leader_epoch`."""
        point = self._state.compaction_point
        return point.in_role(leader_epoch, self._state.log_end_offset) != point

    def begin_role(self, leader_epoch: LeaderEpoch) -> None:
        """See `CompactionPoint.in_role`. Durable on return. Blocking; no thread may append meanwhile. Raises
        LogDamaged, NoSpace."""
        state = self._state
        with state.io_lock:
            state.check_writable()
            state.rewrite_epoch += 1  # a compaction that is at work knows the point as it was
            self.save_point_locked(state.compaction_point.in_role(leader_epoch, state.log_end_offset))

    def cut_compaction_point(self, end: Offset) -> None:
        """The log is about to be cut to `end`, or was found to end there."""
        state = self._state
        point = state.compaction_point
        known_end = max(point.clean_end, state.high_watermark)
        if end < state.log_end_offset:  # a copy is cut: what comes there now is another log's
            known_end = max(known_end, point.deleted_end)
        if end < known_end and point != NOT_COMPACTED:
            self.save_point_locked(point.cut(end))

    def save_point_locked(self, point: CompactionPoint) -> None:
        state = self._state
        try:
            write_compaction(state.files, state.directory, point)
        except OSError as error:
            what = f"writing the compaction point of {state.directory} failed"
            raise state.not_replaced(what, error) from error
        state.compaction_point = point
