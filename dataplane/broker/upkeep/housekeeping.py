"""Background work on the logs of a broker: one task, one thread of its own.

    every `housekeeping_interval`    a round: each replica is visited once, and of each job that is due there one step
                                     is run in `context.housekeeping`, a single thread that delays no sync, role or read
    for the rest of the interval     replicas with more to do are visited again, in turn, a step each time

So a job that takes hours (compaction) delays the other replicas by one of its steps at most. A job that fails is
logged and counted; the others go on, and it is tried again in the next round. A disk that fails, or damage that is
found, ends the replica as it does anywhere else.

A `Visit` holds all that a job may know. It is made on the loop thread, where roles live; `run` sees nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from dataplane.broker.roles.counters import Counters, counter
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.errors import CorruptData
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext
    from dataplane.log.partition_log import PartitionLog
    from wire.stream_config import StreamConfig
    from wire.types import PartitionKey


_log = logging.getLogger(__name__)

NOTHING_PURGED = Offset(0)


@dataclass
class UpkeepCounters(Counters):
    housekeeping_failures: int = counter("times", "jobs of the housekeeping that failed, and are tried again")
    segments_ended_by_age: int = counter("segments", "newest segments that were ended for their age")
    retention_segments: int = counter(
        "segments",
        "segments that were removed because they had outlived their stream's limits",
    )
    retention_bytes: int = counter("bytes", "bytes of the segments that `retention_segments` counts")
    evicted_segments: int = counter("segments", "segments that were removed early, for want of room")
    evicted_bytes: int = counter("bytes", "bytes of the segments that `evicted_segments` counts")
    scrubbed_bytes: int = counter("bytes", "bytes of logs that were read again, to find damage")
    scrub_passes: int = counter("logs", "logs that were read to the end without damage")
    compaction_passes: int = counter("times", "passes of compaction that ended")
    compaction_overtaken: int = counter(
        "times",
        "passes of compaction that were given up, because the log was cut meanwhile",
    )
    compaction_segments: int = counter("segments", "segments that compaction replaced by smaller ones")
    compaction_records: int = counter(
        "records",
        "records that compaction removed, because there is a newer one of their key",
    )
    compaction_bytes: int = counter("bytes", "bytes that compaction gave back")
    compaction_left_whole: int = counter(
        "batches",
        "batches that compaction could not rewrite without making them larger; counted in each pass that meets them",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One replica as it was when a visit to it began."""

    key: PartitionKey
    log: PartitionLog
    """Open, and taking appends."""
    config: StreamConfig
    high_watermark: Offset
    """Exclusive. The log may be cut meanwhile, but never below it."""
    purged_end: Offset = NOTHING_PURGED
    """Records below it were deleted by an operator (R44)."""
    time_ns: int
    """The wall clock: to be shown, and nothing else."""
    agreed_ns: int | None
    """The time by which this broker may forget, ns since 1970; None: it may not now (R72)."""
    elapsed_ns: int
    """The monotonic clock."""
    stop: threading.Event
    """Set: return as soon as possible, the replica is being closed. Look at it between small pieces of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Result of a step."""

    more: bool = False
    """There is more to do now."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Name of one of `UpkeepCounters` -> what is added to it."""
    then: Callable[[], None] | None = None
    """To be called on the loop thread."""


class Job(Protocol):
    """One kind of work. Its memory of a replica between steps is kept by `Visit.log`, weakly."""

    @property
    def name(self) -> str: ...

    def is_due(self, visit: Visit) -> bool:
        """Loop thread: no disk, and quickly."""
        ...

    def run(self, visit: Visit) -> Progress:
        """One step of bounded length. Blocking, in the housekeeping's thread. Raises LogDamaged, CorruptData (the
        replica withdraws), NoSpace (the disk is full), anything else (logged). The last two are tried again in the next
        round."""
        ...


class Visited(Protocol):
    """A replica as the housekeeping sees it."""

    def visit(self, context: BrokerContext) -> Visit | None:
        """None: there is nothing to work on at present."""
        ...

    def on_log_start(self) -> None:
        """The oldest segments may have been removed."""
        ...

    def on_damage(self, reason: str, context: BrokerContext) -> None: ...

    def fail(self, reason: str, context: BrokerContext) -> None: ...


_VISITED_AT_ONCE: Final = 10
"""Replicas with nothing to do that are visited in one turn of the loop."""


class Housekeeping:
    """`replicas`: a live mapping of the broker's replicas; one that has left it is not visited."""

    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Visited], jobs: Sequence[Job]) -> None:
        self._context = context
        self._replicas = replicas
        self._jobs = tuple(jobs)
        self._task: asyncio.Task[None] | None = None
        self._running: tuple[Visit, asyncio.Future[Progress]] | None = None

    def start(self) -> None:
        self._task = self._context.loop.create_task(self._run_for_ever())

    async def close(self) -> None:
        """Stops the step that is being run, and waits for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._running is not None:
            await self.leave(self._running[0].key)

    async def leave(self, key: PartitionKey) -> None:
        """Nothing is done to a replica that was taken out of `replicas` once this returns."""
        if self._running is not None and self._running[0].key == key:
            visit, step = self._running
            visit.stop.set()
            await asyncio.wait({step})

    async def _run_for_ever(self) -> None:
        loop, interval = self._context.loop, self._context.storage.housekeeping_interval
        while True:
            next_round = loop.time() + interval
            unfinished = await self._visit_all(list(self._replicas), self._jobs_due)
            while unfinished and loop.time() < next_round:
                jobs = dict(unfinished)
                unfinished = await self._visit_all(jobs, lambda visit: jobs[visit.key])  # noqa: B023 - awaited here
            await asyncio.sleep(max(0.0, next_round - loop.time()))

    def _jobs_due(self, visit: Visit) -> list[Job]:
        return [job for job in self._jobs if job.is_due(visit)]

    async def _visit_all(
        self, keys: Iterable[PartitionKey], choose: Callable[[Visit], Sequence[Job]]
    ) -> list[tuple[PartitionKey, list[Job]]]:
        """Replicas with more to do, and their jobs."""
        unfinished = []
        for number, key in enumerate(keys):
            try:
                more = await self._visit(key, choose)
            except Exception:  # noqa: BLE001 - it is logged, and the other replicas are visited
                self._context.the(UpkeepCounters).housekeeping_failures += 1
                _log.exception("partition %s: housekeeping met a bug; it is tried again", key)
                more = []
            if more:
                unfinished.append((key, more))
            if more or number % _VISITED_AT_ONCE == 0:
                await asyncio.sleep(0)  # thousands of replicas with nothing to do do not hold up the loop
        return unfinished

    async def _visit(self, key: PartitionKey, choose: Callable[[Visit], Sequence[Job]]) -> list[Job]:
        """The jobs that have more to do."""
        visit = self._begin_visit(key)
        more = []
        for job in choose(visit) if visit is not None else ():
            visit = self._begin_visit(key)
            if visit is None:
                break
            if await self._step(job, visit):
                more.append(job)
        return more

    def _begin_visit(self, key: PartitionKey) -> Visit | None:
        replica = self._replicas.get(key)
        return replica.visit(self._context) if replica is not None else None

    async def _step(self, job: Job, visit: Visit) -> bool:
        context = self._context
        step = context.loop.run_in_executor(context.housekeeping, job.run, visit)
        self._running = visit, step
        try:
            progress = await asyncio.shield(step)  # cancelled here, the step goes on, and `close` waits for it
            for name, amount in progress.counted.items():
                context.the(UpkeepCounters).add(name, amount)
            if progress.then is not None and not visit.stop.is_set():
                progress.then()
            if (replica := self._replicas.get(visit.key)) is not None:
                replica.on_log_start()
        except (LogDamaged, CorruptData) as error:
            self._fail(job, visit, error)
            return False
        except Exception as error:  # noqa: BLE001 - it is logged
            if isinstance(error, NoSpace) or (isinstance(error, OSError) and is_no_space(error)):
                _log.warning("partition %s: no room for %s; it is tried again: %s", visit.key, job.name, error)
                context.space.look_soon()
            else:
                context.the(UpkeepCounters).housekeeping_failures += 1
                _log.exception("partition %s: housekeeping: %s failed; it is tried again", visit.key, job.name)
            return False
        finally:
            if step.done():
                self._running = None
        return progress.more

    def _fail(self, job: Job, visit: Visit, error: Exception) -> None:
        replica = self._replicas.get(visit.key)
        if replica is None or visit.stop.is_set():
            return  # closed meanwhile: its log takes no more writes
        self._context.the(UpkeepCounters).housekeeping_failures += 1
        if isinstance(error, CorruptData):
            replica.on_damage(f"{job.name}: {error}", self._context)
        else:
            replica.fail(f"{job.name}: {error}", self._context)


class SnapshotJob:
    """Housekeeping of the derived state: a log's captures of it are written down, so that the next open begins
    there."""

    name = "writing snapshots of the derived state"

    def is_due(self, visit: Visit) -> bool:
        return visit.log.snapshot_is_due

    def run(self, visit: Visit) -> Progress:
        visit.log.write_snapshots()
        return Progress()
