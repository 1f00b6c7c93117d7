"""Snapshots of the derived state of a log (`dataplane.log.derived.derived_state`): when they are written, and what is
asked of them.

Any thread, for all but `restore_producers`; blocking. All take the lock of the derived state; `snapshot_at` holds
`removing` around it, so that no segment goes whose headers it may have to read. The I/O lock is not needed.

    write_captured, restore_producers   the holder of the lock of the derived state
    snapshot_while_removing             the holder of `removing`
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dataplane.log.derived.log_snapshot import encode_snapshot

if TYPE_CHECKING:
    from dataplane.log.log_reader import LogReader
    from dataplane.log.log_state import LogState
    from wire.types import Offset

_log = logging.getLogger(__name__)


class SnapshotWriter:
    def __init__(self, state: LogState, reading: LogReader) -> None:
        self._state = state
        self._reading = reading

    def write_snapshots(self) -> None:
        """Writes the captured snapshots whose records are durable by now. Blocking, any thread."""
        if self._state.refusal is None:
            with self._state.derived.lock:
                self.write_captured()

    def write_captured(self) -> None:
        state = self._state
        state.derived.write_captured(state.durable_end, [segment.base_offset for segment in state.segments])

    def snapshot_at(self, offset: Offset) -> bytes:
        """The derived state at `offset`, where a batch or a segment begins, as its snapshot lies on disk; it is built,
        and written, where it is missing. The producers of records before the log start are in the snapshots only.

        Blocking, any thread. Raises CorruptData, LogDamaged, TidelogError(OFFSET_BEFORE_LOG): the log begins above it.
        """
        with self._state.removing:
            return self.snapshot_while_removing(offset)

    def snapshot_while_removing(self, offset: Offset) -> bytes:
        state = self._state
        with state.derived.lock:
            content = state.derived.content_at(offset)
            if content is not None:
                return content
            self._reading.check_not_before_log(offset, state.segments)
            snapshot = state.derived.build(offset, state.log_start_offset, state.epochs, self._reading.producer_batches)
            try:
                if offset <= state.durable_end:
                    state.derived.write(snapshot)
            except OSError as error:
                _log.warning("%s: the state at offset %d is not written: %s", state.directory, offset, error)
            return encode_snapshot(snapshot)

    def is_without_past(self) -> bool:
        """Whether the log begins above 0, is empty, and has no snapshot of all producers before its start. Blocking; no
        append may run meanwhile."""
        state = self._state
        start = state.log_start_offset
        with state.derived.lock:
            if not 0 < start == state.log_end_offset:
                return False
            snapshot = state.derived.newest(start, start)
            return snapshot is None or snapshot.producers.is_partial

    def restore_producers(self) -> Offset:
        """From where on headers were read. Raises CorruptData, LogDamaged."""
        state = self._state
        return state.derived.restore(state.log_start_offset, state.log_end_offset, self._reading.producer_batches)
