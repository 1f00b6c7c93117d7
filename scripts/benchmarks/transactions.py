"""Transactions of about 100 ms beside the same records from an idempotent producer, several times in turn.

Both producers send the same records with `send_many` to a stream of three partitions. The idempotent one gives all of
them in one call. The transactional one gives as many in each transaction as the other had written in 100 ms, and waits
for each commit before it begins the next. A rate is of records that are acknowledged, or committed with their
transaction. A figure is the quotient of two neighbours in one cluster, with transactions over without.
"""

from __future__ import annotations

import statistics
import time

from scripts.benchmarks.rig.comparison import Figure, tell
from scripts.benchmarks.rig.running import Run, new_stream
from scripts.benchmarks.rig.systems import Durability, Tidelog

SIZE = 128
PARTITIONS = 3
COUNT = 1_500_000
"""Records of one measurement."""
TRANSACTION_S = 0.1
TURNS = 5
"""Of each side, in each round."""
SMALL = 100
"""Transactions of one record in each partition, one after another."""

FIGURES = tuple(
    figure
    for level in Durability
    for figure in (
        Figure(
            key=f"transactions/{level.value}/rate",
            what=f"transactions of 100 ms, {level.value}: rate",
            unit="of that without",
            at_least=0.75,
        ),
        Figure(
            key=f"transactions/{level.value}/small",
            what=f"a transaction of {PARTITIONS} records, {level.value}: median",
            unit="ms",
            less_is_better=True,
        ),
    )
)


async def run(run: Run) -> None:
    for number in range(run.rounds):
        for level in Durability:
            tell(f"  round {number + 1}: with transactions and without, {level.value}")
            async with run.fresh(Tidelog, level) as system:
                await _compare(run, system, f"transactions/{level.value}")


async def _compare(run: Run, system: Tidelog, key: str) -> None:
    """The first measurement of each warms up and counts for nothing."""
    values = [b"%08x" % number * (SIZE // 8) for number in range(run.scaled(COUNT))]
    plain = await _idempotent(system, values)
    await _transactional(system, values, max(1, round(plain * TRANSACTION_S)))
    for turn in range(run.scaled(TURNS) + 1):
        if turn % 2:
            found = await _transactional(system, values, max(1, round(plain * TRANSACTION_S)))
            plain = await _idempotent(system, values)
        else:
            plain = await _idempotent(system, values)
            found = await _transactional(system, values, max(1, round(plain * TRANSACTION_S)))
        tell(f"    {key}: {found:,.0f} records/s with, {plain:,.0f} without")
        run.add(f"{key}/rate", system, found / plain)
    run.add(f"{key}/small", system, await _small(run, system))


async def _idempotent(system: Tidelog, values: list[bytes]) -> float:
    """Acknowledged records/s."""
    async with new_stream(system, PARTITIONS) as stream, system.client.producer(stream) as producer:
        began = time.perf_counter()
        await producer.send_many(values)
        return len(values) / (time.perf_counter() - began)


async def _transactional(system: Tidelog, values: list[bytes], each: int) -> float:
    """Committed records/s, with `each` in one transaction."""
    async with (
        new_stream(system, PARTITIONS) as stream,
        system.client.producer(transactional_id="bench", streams=stream) as producer,
    ):
        began = time.perf_counter()
        for first in range(0, len(values), each):
            async with producer.transaction():
                await producer.send_many(stream, values[first : first + each])
        return len(values) / (time.perf_counter() - began)


async def _small(run: Run, system: Tidelog) -> float:
    """Milliseconds, from its begin to its commit."""
    times = []
    async with (
        new_stream(system, PARTITIONS) as stream,
        system.client.producer(transactional_id="bench-small", streams=stream) as producer,
    ):
        for _ in range(run.scaled(SMALL)):
            began = time.perf_counter()
            async with producer.transaction():
                for partition in range(PARTITIONS):
                    producer.send_nowait(stream, b"x" * SIZE, partition=partition)
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)
