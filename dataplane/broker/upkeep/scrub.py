"""Housekeeping of one log: its files are read again, batch by batch, and both CRCs are checked.

So a bit that flips in cold data is found while other replicas still hold the record. Damage ends the replica's
role as damage that a reader meets does (`Replica.on_damage`).

Rate    all logs of a broker share `scrub_bytes_per_second`; an unused share is not saved up beyond one
        step. Read bytes come from the disk and do not stay in the page cache.
Order   a pass reads each log once; the logs that have had the fewest passes go first, each begins at a segment drawn
        at random and goes round. A log's next pass begins `scrub_interval` after the last one at the soonest.
Memory  positions are kept in memory only: after a restart passes begin anew.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dataplane.broker.upkeep.housekeeping import Progress
from wire.errors import CorruptData

if TYPE_CHECKING:
    from random import Random

    from dataplane.broker.disk.storage_settings import StorageSettings
    from dataplane.broker.upkeep.housekeeping import Visit
    from dataplane.log.partition_log import PartitionLog

_log = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
_NS = 1_000_000_000
_ABSENT_NS = 60 * _NS
"""A log that is not visited for so long (it is damaged, or its stream is gone) holds up no other log's next pass."""


@dataclass(slots=True)
class _Pass:
    """Where the scrubber is in one log."""

    seen_ns: int
    """By the monotonic clock, as the next ones."""
    passes: int = 0
    began_ns: int | None = None
    """None: the pass has not begun."""
    ended_ns: int | None = None
    """End of the pass before."""
    shown_ns: int | None = None
    """The same by the wall clock."""
    first: int = 0
    """Base offset of the segment that it began with."""
    segment: int = 0
    """Base offset of the segment that it is in."""
    position: int = 0
    """Bytes of that segment that are read, of whole batches."""
    went_round: bool = False
    cuts: int = 0
    """`PartitionLog.cuts` when `position` was set."""


class Scrubber:
    """The job; see the module."""

    name = "scrub"

    def __init__(self, settings: StorageSettings, rng: Random) -> None:
        self._rate = settings.scrub_bytes_per_second
        self._interval_ns = int(settings.scrub_interval * _NS)
        self._rng = rng
        self._logs: WeakKeyDictionary[PartitionLog, _Pass] = WeakKeyDictionary()
        self._allowed = 0.0
        """Bytes that may be read now; below 0 after a step until the time for it has passed."""
        self._allowed_at_ns: int | None = None
        self._fewest = 0
        """Passes of the logs that have had the fewest."""
        self._fewest_at_ns = 0

    def completed_at_ns(self, partition_log: PartitionLog) -> int | None:
        """When the last pass over that log ended, by the wall clock; None: none has since the process began."""
        found = self._logs.get(partition_log)
        return found.shown_ns if found is not None else None

    def is_due(self, visit: Visit) -> bool:
        if not self._rate:
            return False
        now = visit.elapsed_ns
        found = self._logs.get(visit.log)
        if found is None:
            found = self._logs[visit.log] = _Pass(now, self._fewest)
        found.seen_ns = now
        self._earn(now)
        if self._allowed <= 0:
            return False
        if found.began_ns is None and found.ended_ns is not None and 0 <= now - found.ended_ns < self._interval_ns:
            return False
        return found.passes <= self._count_fewest(now)

    def run(self, visit: Visit) -> Progress:
        """Raises CorruptData, LogDamaged."""
        found = self._logs[visit.log]
        if found.began_ns is None:
            self._begin(found, visit)
        read = 0
        while read < STEP_BYTES and found.began_ns is not None and not visit.stop.is_set():
            cuts = visit.log.cuts
            if cuts != found.cuts:  # the segment may have been cut, or compacted: begin it anew
                found.cuts, found.position = cuts, 0
            try:
                checked = visit.log.checking.check(found.segment, found.position, STEP_BYTES - read, visit.stop)
            except CorruptData:
                if visit.log.cuts != cuts:
                    continue
                raise
            read += checked.size
            found.position += checked.size
            if checked.is_whole or not checked.size:
                self._next_segment(found, visit)
        self._allowed -= read
        done = {"scrubbed_bytes": read, "scrub_passes": int(found.began_ns is None)}
        return Progress(more=found.began_ns is not None and self._allowed > 0, counted=done)

    def _begin(self, found: _Pass, visit: Visit) -> None:
        found.began_ns = visit.elapsed_ns
        found.first = found.segment = self._rng.choice(visit.log.segments).base_offset
        found.position = 0
        found.went_round = False

    def _next_segment(self, found: _Pass, visit: Visit) -> None:
        bases = [segment.base_offset for segment in visit.log.segments]
        following = next((base for base in bases if base > found.segment), None)
        if following is None and not found.went_round:
            found.went_round = True
            following = bases[0]
        if following is None or (found.went_round and following >= found.first):
            found.passes += 1
            found.began_ns, found.ended_ns, found.shown_ns = None, visit.elapsed_ns, visit.time_ns
        else:
            found.segment, found.position = following, 0

    def _earn(self, now_ns: int) -> None:
        if self._allowed_at_ns is not None:
            self._allowed += self._rate * max(0, now_ns - self._allowed_at_ns) / _NS
            self._allowed = min(self._allowed, float(STEP_BYTES))
        else:
            self._allowed = 1.0
        self._allowed_at_ns = now_ns

    def _count_fewest(self, now_ns: int) -> int:
        if abs(now_ns - self._fewest_at_ns) >= _NS:
            self._fewest_at_ns = now_ns
            present = (found.passes for found in self._logs.values() if now_ns - found.seen_ns < _ABSENT_NS)
            self._fewest = min(present, default=0)
        return self._fewest
