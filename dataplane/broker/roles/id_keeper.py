"""The message ids that one replica knows, through all of its roles (R45).

    follower    reads the batches with ids that it has appended once more, some time later, in a worker: when it is
                elected it has little left to read
    leader      reads the rest before the first publish comes, and adds ids itself from then on
    cut         the ids above the new end are forgotten in the same step

A replica that has just been opened knows none. The marks of the log (`dataplane.replica.derived.dedup_window`) say
where the window begins in it, and that nothing is to be read where no batch has ids.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dataplane.replica.derived.dedup_window import MessageIds, kept_form
from wire.batch import RecordBatch, iter_batches, verify_body
from wire.error_details import LOG_START
from wire.errors import Code, CorruptData, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.log.partition_log import PartitionLog
    from wire.batch import BatchHeader
    from wire.types import Buffer

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

READ_BYTES = 4 << 20


class IdKeeper:
    def __init__(self) -> None:
        self.table = MessageIds(0, 0)
        """Used by the leader on its loop, and by `catch_up` while there is no leader here."""
        self.lacks: TidelogError | None = None
        """Why ids of the log are not known: they are encrypted with a key that is not here."""
        self._known_to = Offset(0)
        """The ids of all batches in the window that end at or below it are in the table."""
        self._lock = threading.Lock()
        """Held while the table learns from the log, and while the log is cut."""

    def configure(self, window_ms: int, most: int) -> None:
        """The settings of the newest view."""
        if self.table.is_on or not window_ms:
            self.table.configure(window_ms)
        else:
            self.table = MessageIds(window_ms, most)
            self._known_to = Offset(0)

    def is_current(self, log: PartitionLog) -> bool:
        """There is nothing to be read."""
        return not log.producers.id_marks.marks or (self._known_to == log.log_end_offset and self.lacks is None)

    def on_led(self, log: PartitionLog) -> None:
        """The leader, which knew all, has added all ids up to the end of the log."""
        self._known_to = log.log_end_offset

    def catch_up(self, log: PartitionLog, decrypt: Callable[[Buffer], bytes]) -> None:
        """Learn the ids up to the log's end. Blocking, any thread. Raises LogDamaged, CorruptData (damage)."""
        with self._lock:
            end = log.log_end_offset
            marks = log.producers.id_marks
            begin = marks.begin(self.table.cutoff(log.producers.time)) if self.table.is_on else None
            offset = end if begin is None else max(begin, self._known_to)
            if marks.marks and end > log.log_start_offset:
                offset = min(offset, Offset(end - 1))  # the last record's id is asked for, whatever its age
            self.lacks = None
            try:
                while offset < end:
                    offset = self._learn(log, max(offset, log.log_start_offset), end, decrypt)
            except TidelogError as error:
                if error.code is not Code.NO_KEY:
                    raise
                self.lacks = error
                return
            self._known_to = end

    def _learn(self, log: PartitionLog, offset: Offset, end: Offset, decrypt: Callable[[Buffer], bytes]) -> Offset:
        """From the batches that one read gives; where the next begins."""
        try:
            data = log.read_from_disk(offset, max_bytes=READ_BYTES, end_offset=end)
        except TidelogError as error:
            start = error.detail(LOG_START)
            if error.code is not Code.OFFSET_BEFORE_LOG or start is None:
                raise
            return Offset(start)  # retention took it meanwhile
        if not data:
            return end
        for at, header in iter_batches(data):
            if header.has_message_ids and not header.is_control:
                self._learn_batch(data, at, header, decrypt)
            offset = header.end_offset
        return offset

    def _learn_batch(self, data: Buffer, at: int, header: BatchHeader, decrypt: Callable[[Buffer], bytes]) -> None:
        verify_body(data, at, header)
        try:
            if header.is_encrypted:
                batch = RecordBatch.decode(decrypt(memoryview(data)[at : at + header.size]))
            else:
                batch = RecordBatch.decode(data, at, header=header, verify=False)
            found = batch.message_ids()
        except CorruptData as error:  # it is whole: a newer version wrote it
            _log.warning("the message ids of %s are not known: %s", header, error)
            return
        for offset, message_id in found:
            self.table.learn(kept_form(message_id), Offset(offset), header.append_time)

    def cutting(self, log: PartitionLog, cut: Callable[[], _T], *, begins_anew: bool = False) -> _T:
        """`cut` the log; blocking. The ids above its new end, or all of them, are forgotten with it."""
        with self._lock:
            try:
                return cut()
            finally:
                kept = Offset(0) if begins_anew else min(self._known_to, log.log_end_offset)
                self.table.cut(kept)
                self._known_to = kept
