"""A run of the comparison: fresh clusters of the systems in turn, never two at once; bursts of records into them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from scripts.benchmarks.rig.comparison import Comparison, shown, tell
from scripts.benchmarks.rig.kafka import Kafka
from scripts.benchmarks.rig.publisher import Publisher, Sent, Task
from scripts.benchmarks.rig.systems import Durability, JetStream, System, Tidelog, cpu_by_server, subjects

_S = TypeVar("_S", bound=System)

SETTLE = 1.5
"""Seconds without a further commit after which missing records count as lost."""
SETTLE_TIMEOUT = 60.0
POLL = 0.02
"""Seconds between two reads of the committed end."""


@dataclass(slots=True, kw_only=True)
class Run:
    """Arguments of the workloads: how much to do, where, and where figures go."""

    rounds: int
    quick: bool
    """Fewer records and repetitions, for a first look."""
    folder: Path
    """For the data of the clusters: on the disk that is measured."""
    comparison: Comparison
    kills: int = 10
    """Of a leader, in all rounds together."""
    kafka_libs: Path | None = None
    """Folder of the jars of Kafka; None: Kafka is not measured."""

    def add(self, key: str, system: System, *samples: float, way: str = "") -> None:
        """Of a figure that the workload declares. `way`: of a peer, where it has several to do the same."""
        name = f"{system.name}, {way}" if way else system.name
        self.comparison.add(key, name, *samples)
        tell(f"    {name} {key}: {', '.join(map(shown, samples))} {self.comparison.unit(key)}")

    def scaled(self, count: int) -> int:
        """Of records, or of repetitions."""
        return max(1, count // 5) if self.quick else count

    async def alternate(
        self,
        measure: Callable[[System], Awaitable[None]],
        tidelog: Durability | None = Durability.DURABLE,
        jetstream: Durability | None = Durability.ACCEPTED,
        kafka: Durability | None = None,
    ) -> None:
        """Calls `measure` with a fresh cluster of each system in turn, for all rounds: JetStream first, in every
        other round last. None: that system is left out. Kafka is left out as well where its jars were not given."""
        kinds: list[tuple[str, Callable[[Path, Durability], System], Durability]] = []
        if jetstream is not None:
            kinds.append((JetStream.name, JetStream, jetstream))
        if tidelog is not None:
            kinds.append((Tidelog.name, Tidelog, tidelog))
        if kafka is not None and self.kafka_libs is not None:
            kinds.append((Kafka.name, partial(Kafka, self.kafka_libs), kafka))
        for number in range(self.rounds):
            for name, kind, durability in kinds if number % 2 == 0 else reversed(kinds):
                tell(f"  round {number + 1}: {name}, {durability.value}")
                async with self.fresh(kind, durability) as system:
                    await measure(system)

    @asynccontextmanager
    async def fresh(self, kind: Callable[[Path, Durability], _S], durability: Durability) -> AsyncIterator[_S]:
        """A cluster with nothing in it, gone with its data in the end."""
        folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=self.folder))
        try:
            async with kind(folder, durability) as system:
                yield system
        finally:
            shutil.rmtree(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Records that were published plainly, and their outcome."""

    sent: Sent
    committed: int
    seconds: float
    """From the first byte sent to the last commit on all replicas that was seen."""
    cpu: dict[str, float]
    """Seconds that each server process used meanwhile."""

    @property
    def lost(self) -> int:
        return self.sent.count - self.committed

    @property
    def rate(self) -> float:
        """Committed on all replicas, records/s."""
        return self.committed / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Seconds of all servers together for 10⁶ committed records."""
        return sum(self.cpu.values()) * 1e6 / max(1, self.committed)


async def burst(
    system: System,
    count: int,
    *,
    partitions: int = 1,
    size: int = 128,
    lines: Path | None = None,
    headers: bool = False,
    rate: float | None = None,
    batched: bool = False,
) -> Burst:
    """Into a new stream, which is deleted in the end. `batched`: as JetStream's fast batches."""
    async with new_stream(system, partitions) as stream:
        task = Task(
            targets=await targets(system, stream, partitions),
            count=count,
            size=size,
            lines=None if lines is None else str(lines),
            headers=headers,
            rate=rate,
            batched=batched,
        )
        async with Publisher(task) as publisher:
            before = cpu_by_server(system)
            began = time.perf_counter()
            sending = asyncio.create_task(publisher.go())
            committed, ended = await settled(system, stream, count, sending)
            after = cpu_by_server(system)
            sent = await sending
    used = {name: after[name] - before[name] for name in after}
    return Burst(sent=sent, committed=committed, seconds=ended - began, cpu=used)


async def settled(
    system: System, stream: str, count: int, sending: asyncio.Task[Sent] | None = None
) -> tuple[int, float]:
    """(records committed, time of the last commit that was seen): when `count` are, or when none has been for
    SETTLE seconds after all were sent. Raises TimeoutError when the number stays unknown for SETTLE_TIMEOUT."""
    committed = 0
    ended = known = moving = time.perf_counter()
    while True:
        seen = await system.committed(stream)
        now = time.perf_counter()
        if seen is not None and seen > committed:
            committed, ended = seen, now
        if committed >= count:
            return committed, ended
        if sending is not None and not sending.done():
            known = moving = now
        elif seen is None:
            moving = now
        else:
            known = now
        if now - max(moving, ended) > SETTLE:
            return committed, ended
        if now - known > SETTLE_TIMEOUT:
            raise TimeoutError(f"{system.name} has not brought its replicas together for {SETTLE_TIMEOUT:.0f} s")
        await asyncio.sleep(POLL)


async def targets(system: System, stream: str, partitions: int) -> Sequence[tuple[str, str]]:
    """For a publisher: each partition's server and subject."""
    return [
        (await system.leader_url(stream, partition), subject)
        for partition, subject in enumerate(subjects(stream, partitions))
    ]


@asynccontextmanager
async def new_stream(system: System, partitions: int = 1) -> AsyncIterator[str]:
    """The name of a stream, which is deleted in the end."""
    stream = f"bench{time.monotonic_ns()}"
    await system.create(stream, partitions)
    yield stream
    await system.delete(stream)
