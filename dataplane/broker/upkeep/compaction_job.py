"""Housekeeping of one broker: the logs of streams with `compact` are compacted, the dirtiest first, one at a time.

A log is worth it when the share of it that was not compacted yet reaches `compaction_min_dirty_ratio`, when there are
tombstones to remove, or when it has a batch that NATS does not carry, which an older version may have made so large. A
pass goes on from visit to visit, a step of bounded length each time; nothing of it waits in memory but the map of its
keys. It is broken off when its log has not been visited for a while.
"""

from __future__ import annotations

import logging
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dataplane.broker.upkeep.housekeeping import Progress
from dataplane.encryption.bodies import BatchCipher
from dataplane.log.compaction.compaction_pass import Compacted, CompactionPass, dirt_of, tombstones_are_due
from dataplane.log.segments.retention_limits import NS_PER_MS
from dataplane.log.storage.log_errors import NoSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from dataplane.broker.disk.storage_settings import StorageSettings
    from dataplane.broker.upkeep.housekeeping import Visit
    from dataplane.encryption.keyring import Keyring
    from dataplane.log.partition_log import PartitionLog
    from dataplane.log.storage.checkpoints import CompactionPoint

_log = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""Read and written in a step, about."""
ABANDONED_NS = 60 * 1_000_000_000
RETRY_NS = 600 * 1_000_000_000
"""A pass that failed, or found nothing that it could do, is not made again before that."""


@dataclass(slots=True)
class _Active:
    """The pass that is being made."""

    log: PartitionLog
    work: CompactionPass
    steps: Generator[int, None, None]
    point: CompactionPoint
    """When it began."""
    began_ns: int
    visited_ns: int
    counted: Compacted


class Compaction:
    """The job; see the module."""

    name = "compaction"

    def __init__(self, settings: StorageSettings, keyring: Keyring, max_batch_bytes: Callable[[], int]) -> None:
        """`max_batch_bytes`: of a batch that a NATS message has room for."""
        self._settings = settings
        self._keyring = keyring
        self._max_batch_bytes = max_batch_bytes
        self._active: _Active | None = None
        self._ratios: WeakKeyDictionary[PartitionLog, tuple[float, int]] = WeakKeyDictionary()
        """By log: its dirty ratio when last looked at, and the time of that look (ns)."""
        self._not_before: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        """ns"""

    # ---- choosing

    def is_due(self, visit: Visit) -> bool:
        active = self._active
        if active is not None and active.log is visit.log:
            return True
        ratio = self._worth(visit)
        if ratio is None:
            self._ratios.pop(visit.log, None)
            return False
        self._ratios[visit.log] = ratio, visit.elapsed_ns
        if active is not None and not self._is_abandoned(active, visit.elapsed_ns):
            return False
        # A log that is not visited any more, because its replica has failed, holds up no other.
        seen_since = visit.elapsed_ns - ABANDONED_NS
        return ratio >= max(other for other, seen_ns in self._ratios.values() if seen_ns > seen_since)

    def _worth(self, visit: Visit) -> float | None:
        """The share that is dirty; None: leave it."""
        if not visit.config.compact or visit.elapsed_ns < self._not_before.get(visit.log, visit.elapsed_ns):
            return None
        if visit.log.swapping.has_too_large_batch:
            return 1.0
        ratio = dirt_of(visit.log, visit.high_watermark).ratio
        if ratio >= self._settings.compaction_min_dirty_ratio:
            return ratio
        due = tombstones_are_due(visit.log, visit.config.tombstone_retention_ms, _ms(visit.agreed_ns))
        return ratio if due else None

    @staticmethod
    def _is_abandoned(active: _Active, now_ns: int) -> bool:
        return active.log.refusal is not None or now_ns >= active.visited_ns + ABANDONED_NS

    # ---- working

    def run(self, visit: Visit) -> Progress:
        active = self._take_up(visit)
        if active is None:
            return Progress()
        active.visited_ns = visit.elapsed_ns
        worked = 0
        try:
            while worked < STEP_BYTES and not visit.stop.is_set():
                worked += next(active.steps)
        except StopIteration:
            return self._finished(active, visit)
        except NoSpace as error:
            # Room for a second copy of a segment, which records do not need: the disk need not be full for them.
            self._give_up(visit)
            _log.warning("partition %s: is not compacted for a while: %s", visit.key, error)
            return Progress(counted={"housekeeping_failures": 1})
        except Exception:
            self._give_up(visit)
            raise
        if self._settings.compaction_bytes_per_second:
            visit.stop.wait(worked / self._settings.compaction_bytes_per_second)
        return Progress(more=True, counted=self._counted(active))

    def _give_up(self, visit: Visit) -> None:
        self._active = None
        self._ratios.pop(visit.log, None)
        self._not_before[visit.log] = visit.elapsed_ns + RETRY_NS

    def _take_up(self, visit: Visit) -> _Active | None:
        """The pass that goes on here, or a new one; None when the stream is compacted no more."""
        active = self._active
        if active is not None and (active.log is not visit.log or not visit.config.compact):
            active.steps.close()
            active = self._active = None
        if active is None and visit.config.compact:
            visit.log.swapping.has_too_large_batch = False
            work = CompactionPass(
                visit.log,
                visit.high_watermark,
                tombstone_retention_ms=visit.config.tombstone_retention_ms,
                now_ms=_ms(visit.agreed_ns),
                memory=self._settings.compaction_memory,
                max_batch_bytes=self._max_batch_bytes(),
                cipher=BatchCipher(self._keyring, visit.key),
            )
            point = visit.log.compaction_point
            now = visit.elapsed_ns
            active = self._active = _Active(visit.log, work, work.steps(), point, now, now, Compacted())
        return active

    def _finished(self, active: _Active, visit: Visit) -> Progress:
        self._active = None
        self._ratios.pop(visit.log, None)
        done, point = active.work.done, visit.log.compaction_point
        clean_end = point.clean_end
        if active.work.is_overtaken:
            # As long as it has taken, others come first, and half of the reading at most is in vain.
            self._not_before[visit.log] = visit.elapsed_ns + min(visit.elapsed_ns - active.began_ns, RETRY_NS)
            _log.info(
                "partition %s: its log was cut or begun anew while it was compacted; it is compacted again", visit.key
            )
            counted = {"compaction_overtaken": 1, **self._counted(active)}
            return Progress(counted=counted, then=visit.log.swapping.forget_compacted)
        goes_on = clean_end > active.point.clean_end or point.settled_end > active.point.settled_end
        if not goes_on and not done.records:
            self._not_before[visit.log] = visit.elapsed_ns + RETRY_NS
        _log.info(
            "partition %s: compacted to offset %d: %d records removed, %d segments replaced, %d bytes given back",
            visit.key, clean_end, done.records, done.segments, done.bytes,
        )  # fmt: skip
        if done.left_whole:
            _log.warning(
                "partition %s: %d batches at or above offset %d stay as they are, for they would be larger without the"
                " records that should go; nothing from there on counts as compacted, and tombstones stay",
                visit.key, done.left_whole, clean_end,
            )  # fmt: skip
        counted = {"compaction_passes": 1, **self._counted(active)}
        return Progress(counted=counted, then=visit.log.swapping.forget_compacted)

    @staticmethod
    def _counted(active: _Active) -> dict[str, int]:
        """Since it was counted last."""
        done, before = active.work.done, active.counted
        active.counted = Compacted(*astuple(done))
        return {
            "compaction_segments": done.segments - before.segments,
            "compaction_records": done.records - before.records,
            "compaction_bytes": done.bytes - before.bytes,
            "compaction_left_whole": done.left_whole - before.left_whole,
        }


def _ms(agreed_ns: int | None) -> int | None:
    return None if agreed_ns is None else agreed_ns // NS_PER_MS
