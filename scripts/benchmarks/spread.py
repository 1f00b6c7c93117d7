"""1, 100 and 1,000 partitions: the total rate of requests, of a client's records and of bare publishes.

A partition of JetStream's is a stream of three replicas of its own. Each number of partitions has a fresh cluster of
each system, once, for any number of rounds; runs that a peer does not finish in time are named and left out. Records of
128 B go to all partitions in turn, as requests whose answers are awaited, as bare publishes, or from a client: with
Tidelog's `send_many` and `send_nowait`, JetStream's fast batches, one for each partition, and librdkafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.benchmarks.rig.comparison import Figure, tell
from scripts.benchmarks.rig.kafka import Kafka
from scripts.benchmarks.rig.publisher import Publisher, Sent, Task
from scripts.benchmarks.rig.running import Run, settled, targets
from scripts.benchmarks.rig.systems import (
    Durability,
    JetStream,
    System,
    Tidelog,
)

PARTITIONS, QUICK_PARTITIONS = (1, 100, 1_000), (1, 100)
COUNT, REQUESTS = 200_000, 20_000
"""Bare publishes, and requests."""
SIZE = 128
WINDOW = 4096
"""Requests that wait for their answers, of all partitions together."""
PEER_TIMEOUT = 120.0
"""Seconds that a peer may take with one number of partitions."""
AT_ONCE = 1_000
"""Records given to `send_nowait` from one turn of the loop to the next."""
RECORD = b"x" * SIZE

FIGURES = tuple(
    figure
    for count in PARTITIONS
    for figure in (
        Figure(
            key=f"spread/{count}/acked",
            what=f"{count:,}: requests, {WINDOW:,} out",
            unit="records/s",
            ratio_at_least=1.0 if count == 100 else None,
            drawn_as=f"Requests over {count:,} partitions" if count == 100 else "",
        ),
        Figure(
            key=f"spread/{count}/client",
            what=f"{count:,}: a client's batches (Tidelog: send_many)",
            unit="records/s",
        ),
        Figure(
            key=f"spread/{count}/single",
            what=f"{count:,}: one call for each record (Tidelog: send_nowait)",
            unit="records/s",
            ratio_at_least=2.0 if count == 100 else None,
        ),
        Figure(
            key=f"spread/{count}/plain",
            what=f"{count:,}: bare publishes, committed",
            unit="records/s",
            ratio_at_least=2.0 if count == 100 else None,
        ),
        Figure(
            key=f"spread/{count}/lost",
            what=f"{count:,}: bare publishes, lost",
            unit="%",
            less_is_better=True,
            at_most=0.0,
        ),
    )
)


async def run(run: Run) -> None:
    peers: list[Callable[[Path, Durability], System]] = [JetStream]
    if run.kafka_libs is not None:
        peers.append(partial(Kafka, run.kafka_libs))
    for partitions in QUICK_PARTITIONS if run.quick else PARTITIONS:
        for peer in peers:
            async with run.fresh(peer, Durability.ACCEPTED) as system:
                try:
                    async with asyncio.timeout(PEER_TIMEOUT):
                        await _measure(run, system, partitions)
                except TimeoutError as error:
                    why = str(error) or f"not done in {PEER_TIMEOUT:.0f} s"
                    missing = f"{system.name}, {partitions:,} partitions: {why}"
                    run.comparison.about[f"spread/{partitions}"] = missing
                    tell(f"    {missing}")
        async with run.fresh(Tidelog, Durability.DURABLE) as system:
            await _measure(run, system, partitions)


async def _measure(run: Run, system: System, partitions: int) -> None:
    tell(f"  {partitions:,} partitions: {system.name}")
    stream, key = "spread", f"spread/{partitions}"
    await system.create("first")  # a fresh cluster may still be electing the leader that creates streams
    await system.create(stream, partitions)
    before, count = 0, run.scaled(COUNT)
    if isinstance(system, Kafka):
        for row, is_batched in (("client", True), ("single", False)):
            sent, _, _ = await _sent(system, stream, partitions, before, count, batched=is_batched)
            run.add(f"{key}/{row}", system, sent.rate)
            before += count
        return
    if isinstance(system, Tidelog):  # its partitions are known some time before all of them take records
        before = partitions
        async with system.client.producer(stream) as producer:
            await asyncio.gather(*(producer.send(RECORD, partition=partition) for partition in range(partitions)))

    acked, _, _ = await _sent(system, stream, partitions, before, REQUESTS, window=WINDOW)
    run.add(f"{key}/acked", system, acked.rate)
    before += REQUESTS

    if isinstance(system, Tidelog):
        run.add(f"{key}/client", system, await _send_many(system, stream, count))
        run.add(f"{key}/single", system, await _send_nowait(system, stream, partitions, count))
        before += 2 * count
    else:
        batched, committed, seconds = await _sent(system, stream, partitions, before, count, batched=True)
        run.add(f"{key}/client", system, batched.rate, way="fast batches")
        run.add(f"{key}/single", system, batched.rate, way="fast batches")
        run.add(f"{key}/plain", system, committed / seconds, way="fast batches")
        before += count

    _, committed, seconds = await _sent(system, stream, partitions, before, count)
    run.add(f"{key}/plain", system, committed / seconds)
    run.add(f"{key}/lost", system, 100 * (count - committed) / count)


async def _sent(
    system: System,
    stream: str,
    partitions: int,
    before: int,
    count: int,
    *,
    window: int | None = None,
    batched: bool = False,
) -> tuple[Sent, int, float]:
    """Publishes to a stream of `before` records. Returns what was sent, the records committed, and the seconds from the
    first byte to the last commit. Raises RuntimeError when a record is refused."""
    where = await targets(system, stream, partitions)
    if window is not None:  # requests go to one server
        where = [(where[0][0], subject) for _, subject in where]
    task = Task(targets=where, count=count, size=SIZE, window=window, batched=batched)
    async with Publisher(task, program=system.publisher) as publisher:
        began = time.perf_counter()
        sending = asyncio.create_task(publisher.go())
        committed, ended = await settled(system, stream, before + count, sending)
        sent = await sending
    if sent.refused:
        raise RuntimeError(f"{system.name} refused {sent.refused} of {sent.count} records")
    return sent, committed - before, ended - began


async def _send_many(system: Tidelog, stream: str, count: int) -> float:
    """Acknowledged records/s; the client spreads them over the partitions."""
    values = [RECORD] * count
    async with system.client.producer(stream) as producer:
        began = time.perf_counter()
        await producer.send_many(values)
        return count / (time.perf_counter() - began)


async def _send_nowait(system: Tidelog, stream: str, partitions: int, count: int) -> float:
    async with system.client.producer(stream) as producer:
        began = time.perf_counter()
        for start in range(0, count, AT_ONCE):
            for number in range(start, min(count, start + AT_ONCE)):
                producer.send_nowait(RECORD, partition=number % partitions)
            await asyncio.sleep(0)
        await producer.flush()
        return count / (time.perf_counter() - began)
