"""Housekeeping of one log: segments that are old enough end, and segments beyond their stream's limits go.

A segment ends (and an empty one begins) when its first record is `segment_max_age_ms` old, or when every record of the
log, the last one included, has outlived `retention_max_age_ms`, or was deleted by an operator: so an idle partition's
records go as well, and the log may hold none while its end stays where it was. Records that are old already when they
are written, of an import, end their segments no more often than every `SETTLED_MS`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dataplane.broker.housekeeping import Progress
from dataplane.log.index import NO_TIMESTAMP
from dataplane.log.retention import NS_PER_MS, Limits, expired, newest_record
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataplane.broker.housekeeping import Visit
    from dataplane.log.partition_log import PartitionLog
    from dataplane.log.segment import Segment

_log = logging.getLogger(__name__)

REMOVED_IN_A_STEP = 32
"""Segments."""
SETTLED_MS = 600_000


@dataclass(slots=True)
class _Last:
    """The last segment of a log, which holds records."""

    base_offset: int
    since_ns: int
    """When it was first seen, by the monotonic clock."""
    began_ns: int | None = None
    """Timestamp of its first record; None before it was looked up."""


class Retention:
    """The job; see the module."""

    name = "retention"

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[PartitionLog, _Last] = WeakKeyDictionary()

    def is_due(self, visit: Visit) -> bool:
        if visit.log.has_unfinished_segments:
            return True
        if next(self._expired(visit, lambda _: NO_TIMESTAMP), None) is not None:
            return True
        last = self._look_at_last(visit)
        return last is not None and (last.began_ns is None or self._has_ended(visit, last))

    def run(self, visit: Visit) -> Progress:
        partition_log = visit.log
        if partition_log.has_unfinished_segments:
            partition_log.sync()  # the ended segment is complete with its index, and no longer open for writing
        reasons = list(islice(self._expired(visit, partition_log.appended_by), REMOVED_IN_A_STEP + 1))
        if reasons:
            return self._remove(visit, reasons)
        last = self._look_at_last(visit)
        if last is None:
            return Progress()
        if last.began_ns is None:
            last.began_ns = partition_log.first_timestamp(last.base_offset)
        if self._has_ended(visit, last):
            by_age = visit.purged_end < visit.log.log_end_offset
            return Progress(counted={"segments_ended_by_age": 1} if by_age else {}, then=partial(self._end_last, visit))
        return Progress()

    @staticmethod
    def _expired(visit: Visit, appended_by: Callable[[Segment], int]) -> Iterator[str]:
        return expired(
            visit.log.segments,
            Limits.of(visit.config),
            log_end_offset=visit.log.log_end_offset,
            high_watermark=visit.high_watermark,
            purged_end=visit.purged_end,
            now_ns=visit.agreed_ns,
            appended_by=appended_by,
        )

    def _remove(self, visit: Visit, reasons: list[str]) -> Progress:
        partition_log = visit.log
        number = min(len(reasons), REMOVED_IN_A_STEP)
        first = partition_log.log_start_offset
        gone = partition_log.remove_before(Offset(visit.log.segments[number].base_offset))
        if not gone:
            return Progress()  # the producers of their records cannot be written down
        size = sum(segment.size for segment in gone)
        why = ", ".join(f"{len(list(same))} {reason}" for reason, same in groupby(reasons[:number]))
        _log.info(
            "partition %s: removed %d segments of %d bytes, offsets %d to %d (%s); the log starts at %d now",
            visit.key, len(gone), size, first, partition_log.log_start_offset - 1, why, partition_log.log_start_offset,
        )  # fmt: skip
        counted = {"retention_segments": len(gone), "retention_bytes": size}
        return Progress(more=len(reasons) > number, counted=counted)

    def _look_at_last(self, visit: Visit) -> _Last | None:
        """None: it holds no record."""
        segment = visit.log.segments[-1]
        if not segment.size:
            return None
        last = self._last.get(visit.log)
        if last is None or last.base_offset != segment.base_offset:
            last = self._last[visit.log] = _Last(segment.base_offset, visit.elapsed_ns)
        return last

    @staticmethod
    def _has_ended(visit: Visit, last: _Last) -> bool:
        """Nothing before it is left to be removed."""
        now, config = visit.agreed_ns, visit.config
        segments = visit.log.segments
        end = visit.log.log_end_offset
        if len(segments) == 1 and end <= visit.high_watermark:
            if end <= visit.purged_end:
                return True
            if now is None:
                return False
            limits = Limits.of(config)
            # Asking the disk is not for the loop thread: a timestamp in the future waits until the segment is full.
            newest = newest_record(segments[-1], now, lambda segment: segment.max_timestamp)
            if limits.is_too_old(newest, now):
                return True
        if not config.segment_max_age_ms or now is None:
            return False
        seen_for = visit.elapsed_ns - last.since_ns
        age = seen_for if last.began_ns is None or last.began_ns > now else now - last.began_ns
        settled = min(config.segment_max_age_ms, SETTLED_MS) * NS_PER_MS
        return age >= config.segment_max_age_ms * NS_PER_MS and seen_for >= settled

    @staticmethod
    def _end_last(visit: Visit) -> None:
        if visit.log.roll():
            _log.info(
                "partition %s: its last segment is old enough and ends at %d", visit.key, visit.log.log_end_offset
            )
