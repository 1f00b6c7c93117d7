"""Room made on a disk that runs full: the oldest segments of streams with `on_under_capacity=evict_oldest` go early.

It is ordinary retention, before its time: whole segments from the beginning of a log, below the high watermark, never
the last one, and of streams with a retention limit only: retention would remove it sooner or later. Of all the logs of
the broker that may give, the log with the oldest first segment gives it, one segment after the other, until there
is room or nothing is left. Each broker evicts for its own disk, so replicas may begin at different offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.retention import Limits
from wire.errors import CorruptData
from wire.stream_config import OnUnderCapacity
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.context import BrokerContext
    from dataplane.broker.housekeeping import Visit
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
            context.counters.evicted_segments += segments
            context.counters.evicted_bytes += freed
            _log.warning(
                "evicted the oldest %d segments, %d bytes, of %d partitions, for want of room; %d bytes were wanted",
                segments, freed, len(touched), wanted,
            )  # fmt: skip
        elif refused is not None:
            raise refused
        return freed
