"""Housekeeping of one log: segments that are old enough end, and segments beyond their stream's limits go.

A segment ends (and an empty one begins) when its first record is `segment_max_age_ms` old, or when every record of the
log, the last one included, has outlived `retention_max_age_ms`, or was deleted by an operator: so an idle partition's
records go as well, and the log may hold none while its end stays where it was. Records that are old already when they
are written, of an import, end their segments no more often than every `SETTLED_MS`.

## Eviction

Room made on a disk that runs full: the oldest segments of streams with `on_under_capacity=evict_oldest` go early.

It is ordinary retention, before its time: whole segments from the beginning of a log, below the high watermark, never
the last one, and of streams with a retention limit only: retention would remove it sooner or later. Of all the logs of
the broker that may give, the log with the oldest first segment gives it, one segment after the other, until there
is room or nothing is left. Each broker evicts for its own disk, so replicas may begin at different offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from dataplane.broker.upkeep.housekeeping import Progress, UpkeepCounters
from dataplane.log.segments.index import NO_TIMESTAMP
from dataplane.log.segments.retention_limits import NS_PER_MS, Limits, expired, newest_record
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.errors import CorruptData
from wire.stream_config import OnUnderCapacity
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dataplane.broker.roles.broker_context import BrokerContext
    from dataplane.broker.upkeep.housekeeping import Visit
    from dataplane.log.partition_log import PartitionLog
    from dataplane.log.segments.segment import Segment
    from wire.types import PartitionKey

_log = logging.getLogger(__name__)


def oldest(visits: Iterable[Visit]) -> tuple[Visit, Offset] | None:
    """The log that gives its first segment next, and where that ends; None: nothing may go."""
    able: list[tuple[int, Visit, Offset]] = []
    for visit in visits:
        segments = visit.log.segments
        if visit.config.on_under_capacity is not OnUnderCapacity.EVICT_OLDEST or not Limits.of(visit.config):
            continue
        if len(segments) > 1 and segments[1].base_offset <= visit.high_watermark:
            able.append((segments[0].max_timestamp, visit, Offset(segments[1].base_offset)))
    if not able:
        return None
    _, visit, end = min(able, key=lambda each: (each[0], each[1].key))
    return visit, end


class Evictable(Protocol):
    """A replica whose oldest segments may go."""

    @property
    def key(self) -> PartitionKey: ...

    def visit(self, context: BrokerContext) -> Visit | None: ...
    def on_damage(self, reason: str, context: BrokerContext) -> None: ...
    def fail(self, reason: str, context: BrokerContext) -> None: ...
    def on_log_start(self) -> None: ...


class Eviction:
    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Evictable]) -> None:
        self._context = context
        self._replicas = replicas

    async def run(self, wanted: int) -> int:
        """Removes segments of `wanted` bytes together, or all that may go. How many bytes went. Raises NoSpace: none
        did, for want of room to write down where the logs begin."""
        context = self._context
        segments = freed = 0
        touched: set[PartitionKey] = set()
        held_back: set[PartitionKey] = set()
        """Logs that removed nothing when they were asked to."""
        refused: NoSpace | None = None
        while freed < wanted:
            replicas = [replica for replica in self._replicas.values() if replica.key not in held_back]
            visits = (replica.visit(context) for replica in replicas)
            found = oldest(visit for visit in visits if visit is not None)
            if found is None:
                break
            visit, end = found
            try:
                gone = await context.loop.run_in_executor(context.executor, visit.log.remove_before, end)
            except (LogDamaged, CorruptData) as error:
                replica = self._replicas.get(visit.key)
                if replica is not None and replica.visit(context) is not None:  # else it was closed meanwhile
                    if isinstance(error, CorruptData):
                        replica.on_damage(f"evicting: {error}", context)
                    else:
                        replica.fail(f"evicting: {error}", context)
                held_back.add(visit.key)
                continue
            except NoSpace as error:
                refused = error
                held_back.add(visit.key)
                continue
            if not gone:
                held_back.add(visit.key)
                continue
            touched.add(visit.key)
            segments += len(gone)
            freed += sum(segment.size for segment in gone)
            if (replica := self._replicas.get(visit.key)) is not None:
                replica.on_log_start()
        if segments:
            context.the(UpkeepCounters).evicted_segments += segments
            context.the(UpkeepCounters).evicted_bytes += freed
            _log.warning(
                "evicted the oldest %d segments, %d bytes, of %d partitions, for want of room; %d bytes were wanted",
                segments, freed, len(touched), wanted,
            )  # fmt: skip
        elif refused is not None:
            raise refused
        return freed


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
