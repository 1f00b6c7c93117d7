"""1, 100 and 1,000 partitions: total rate, idle CPU and memory of a server, failing over all a dead server led.

A partition of JetStream's is a stream of three replicas of its own. Each number of partitions has a fresh cluster of
each system, once, for any number of rounds; runs that JetStream does not finish in time are named and left out. Records
of 128 B go to all partitions in turn, as requests whose answers are awaited, or as bare publishes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import nats
import nats.errors
import nats.js.errors

from scripts.benchmarks.rig.comparison import Figure
from scripts.benchmarks.rig.publisher import Publisher, Task
from scripts.benchmarks.rig.running import Run, settled, targets, tell
from scripts.benchmarks.rig.systems import (
    Durability,
    JetStream,
    System,
    Tidelog,
    cpu_by_server,
    resident_bytes,
    subjects,
)

PARTITIONS, QUICK_PARTITIONS = (1, 100, 1_000), (1, 100)
COUNT, REQUESTS = 200_000, 20_000
"""Bare publishes, and requests."""
SIZE = 128
WINDOW = 4096
"""Requests that wait for their answers, of all partitions together."""
IDLE_SECONDS, QUICK_IDLE_SECONDS = 10.0, 4.0
QUIET_SECONDS = 3.0
"""Seconds from the last record to the beginning of the idle time."""
RETRY = 0.02
"""Seconds until a refused publish to JetStream is tried again."""
PUBLISH_TIMEOUT = 1.0
FAILOVER_TIMEOUT = 30.0
JETSTREAM_TIMEOUT = 120.0
"""Seconds that all of it may take with one number of partitions."""
RECORD = b"x" * SIZE

FIGURES = tuple(
    figure
    for count in PARTITIONS
    for figure in (
        Figure(
            key=f"spread/{count}/created", what=f"{count:,}: created, all take records", unit="s", less_is_better=True
        ),
        Figure(key=f"spread/{count}/acked", what=f"{count:,}: requests, {WINDOW:,} out", unit="records/s"),
        Figure(key=f"spread/{count}/plain", what=f"{count:,}: bare publishes, committed", unit="records/s"),
        Figure(
            key=f"spread/{count}/lost",
            what=f"{count:,}: bare publishes, lost",
            unit="%",
            less_is_better=True,
            at_most=0.0,
        ),
        Figure(
            key=f"spread/{count}/idle",
            what=f"{count:,}: idle, the busiest broker",
            unit="% of a core",
            statistic="max",
            less_is_better=True,
            at_most=10.0,
            note="JetStream: server",
        ),
        Figure(
            key=f"spread/{count}/idle-nats",
            what=f"{count:,}: idle, nats-server",
            unit="% of a core",
            less_is_better=True,
        ),
        Figure(
            key=f"spread/{count}/memory",
            what=f"{count:,}: memory of the largest broker",
            unit="MB",
            less_is_better=True,
            note="JetStream: server",
        ),
        Figure(
            key=f"spread/{count}/failover",
            what=f"{count:,}: all that a killed leader led acknowledge again",
            unit="ms",
            less_is_better=True,
        ),
    )
)


async def run(run: Run) -> None:
    for partitions in QUICK_PARTITIONS if run.quick else PARTITIONS:
        async with run.fresh(JetStream, Durability.ACCEPTED) as system:
            try:
                async with asyncio.timeout(JETSTREAM_TIMEOUT):
                    await _measure(run, system, partitions)
            except TimeoutError as error:
                missing = (
                    f"JetStream, {partitions:,} partitions: {str(error) or f'not done in {JETSTREAM_TIMEOUT:.0f} s'}"
                )
                run.comparison.about[f"spread/{partitions}"] = missing
                tell(f"    {missing}")
        async with run.fresh(Tidelog, Durability.DURABLE) as system:
            await _measure(run, system, partitions)


async def _measure(run: Run, system: System, partitions: int) -> None:
    tell(f"  {partitions:,} partitions: {system.name}")
    stream, key = "spread", f"spread/{partitions}"
    await system.create("first")  # a fresh cluster may still be electing the leader that creates streams
    began = time.perf_counter()
    await system.create(stream, partitions)
    before = 0
    if isinstance(system, Tidelog):  # its partitions are known some time before all of them take records
        before = partitions
        async with system.client.producer(stream) as producer:
            await asyncio.gather(*(producer.send(RECORD, partition=partition) for partition in range(partitions)))
    run.add(f"{key}/created", system, time.perf_counter() - began)
    everywhere = await targets(system, stream, partitions)
    count, requested = run.scaled(COUNT), REQUESTS

    url = everywhere[0][0]
    requests = [(url, subject) for _, subject in everywhere]
    async with Publisher(Task(targets=requests, count=requested, size=SIZE, window=WINDOW)) as publisher:
        acked = await publisher.go()
    if acked.refused:
        raise RuntimeError(f"{system.name} refused {acked.refused} of {acked.count} records")
    run.add(f"{key}/acked", system, acked.rate)
    before += requested

    async with Publisher(Task(targets=everywhere, count=count, size=SIZE)) as publisher:
        began = time.perf_counter()
        sending = asyncio.create_task(publisher.go())
        committed, ended = await settled(system, stream, before + count, sending)
        await sending
    run.add(f"{key}/plain", system, (committed - before) / (ended - began))
    run.add(f"{key}/lost", system, 100 * (before + count - committed) / count)

    await asyncio.sleep(QUIET_SECONDS)
    await _idle(run, system, key)
    run.add(f"{key}/failover", system, 1e3 * await _failover(system, stream, partitions))


async def _idle(run: Run, system: System, key: str) -> None:
    before, began = cpu_by_server(system), time.perf_counter()
    await asyncio.sleep(QUICK_IDLE_SECONDS if run.quick else IDLE_SECONDS)
    after, seconds = cpu_by_server(system), time.perf_counter() - began
    memory = resident_bytes(system)
    used = {name: 100 * (after[name] - before[name]) / seconds for name in after}
    if "nats-server" in used:
        run.add(f"{key}/idle-nats", system, used.pop("nats-server"))
        del memory["nats-server"]
    run.add(f"{key}/idle", system, max(used.values()))
    run.add(f"{key}/memory", system, max(memory.values()) / 1e6)


async def _failover(system: System, stream: str, partitions: int) -> float:
    """Kills the server that leads most. Seconds until each partition that it led has acknowledged a new record, or
    FAILOVER_TIMEOUT."""
    leaders = await _leaders(system, stream, partitions)
    victim = Counter(filter(None, leaders)).most_common(1)[0][0]
    led = [partition for partition, leader in enumerate(leaders) if leader == victim]
    tell(f"    {system.name}: kill -9 {victim}, which leads {len(led):,}")
    if isinstance(system, Tidelog):
        async with system.client.producer(stream) as producer:
            await asyncio.gather(*(producer.send(RECORD, partition=partition) for partition in range(partitions)))
            began = time.perf_counter()
            system.kill(victim)
            await asyncio.gather(*(producer.send(RECORD, partition=partition) for partition in led))
            return time.perf_counter() - began
    assert isinstance(system, JetStream)
    url = next(url for name, url in zip(system.pids(), system.urls, strict=True) if name != victim)
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    names = subjects(stream, partitions)

    async def publish(subject: str) -> None:
        while True:
            try:
                await jetstream.publish(subject, RECORD, timeout=PUBLISH_TIMEOUT)
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(RETRY)
            else:
                return

    began = time.perf_counter()
    system.kill(victim)
    try:
        async with asyncio.timeout(FAILOVER_TIMEOUT):
            await asyncio.gather(*(publish(names[partition]) for partition in led))
    except TimeoutError:
        tell(f"    {system.name}: not all of them within {FAILOVER_TIMEOUT:.0f} s")
    finally:
        await connection.close()
    return time.perf_counter() - began


async def _leaders(system: System, stream: str, partitions: int) -> Sequence[str | None]:
    if isinstance(system, Tidelog):
        return [each["leader"] for each in (await system.client.describe(stream))["partitions"]]
    return [await system.leader(stream, partition) for partition in range(partitions)]
