"""Pipelined acknowledged publishes: each system's fastest ways, and bare NATS requests from the same program for both.

Each client is used as its users get the most out of it. Tidelog's: `send_many`, and `send_nowait`, which is one call
and one future for each record. JetStream's: fast batches (ADR-50) and bare requests, 10,000 of them out at once, both
from the publisher program, which costs less than any client; and `publish_async` of nats-py, with its own bound of
unacknowledged records. Kafka's, where its jars are given (--kafka-libs): librdkafka, from Python, without a callback
for each record and with one.
"""

from __future__ import annotations

import asyncio
import time

import nats

from scripts.benchmarks.rig.comparison import Figure
from scripts.benchmarks.rig.kafka import Kafka
from scripts.benchmarks.rig.publisher import Publisher, Task
from scripts.benchmarks.rig.running import Run, new_stream, settled, targets
from scripts.benchmarks.rig.systems import Durability, JetStream, System, Tidelog

SIZE = 128
WINDOW = 10_000
MANY = 1_000_000
"""Records of `send_many`."""
SINGLE = 100_000
"""Of `send_nowait`."""
ASYNC = 30_000
"""Of `publish_async`."""
REQUESTS = 300_000
AT_ONCE = 1_000
"""Records given to `send_nowait` from one turn of the loop to the next."""

FIGURES = tuple(
    figure
    for level in (Durability.ACCEPTED, Durability.DURABLE)
    for figure in (
        Figure(
            key=f"acked/{level.value}/client",
            what=f"a client's batches, {level.value} (Tidelog: send_many)",
            unit="records/s",
            ratio_at_least=3.0,
            drawn_as="Acknowledged, a client's batches" if level is Durability.DURABLE else "",
        ),
        Figure(
            key=f"acked/{level.value}/single",
            what=f"one call for each record, {level.value} (Tidelog: send_nowait)",
            unit="records/s",
            ratio_at_least=3.0,
        ),
        Figure(
            key=f"acked/{level.value}/requests",
            what=f"bare requests, {level.value}",
            unit="records/s",
            ratio_at_least=2.0,
            drawn_as="Acknowledged, bare NATS requests" if level is Durability.DURABLE else "",
        ),
    )
)


async def run(run: Run) -> None:
    for level in (Durability.ACCEPTED, Durability.DURABLE):
        key = f"acked/{level.value}"

        async def measure(system: System, key: str = key) -> None:
            if isinstance(system, Tidelog):
                run.add(f"{key}/client", system, await _send_many(system, run.scaled(MANY)))
                run.add(f"{key}/single", system, await _send_nowait(system, run.scaled(SINGLE)))
            elif isinstance(system, JetStream):
                published = await _publish_async(system, run.scaled(ASYNC))
                batched = await _fast_batch(system, run.scaled(REQUESTS))
                for row in ("client", "single"):
                    run.add(f"{key}/{row}", system, published, way="publish_async of nats-py")
                    run.add(f"{key}/{row}", system, batched, way="fast batches")
            elif isinstance(system, Kafka):
                for row, is_batched in (("client", True), ("single", False)):
                    run.add(f"{key}/{row}", system, await _librdkafka(system, run.scaled(MANY), is_batched))
                return
            requests = await _requests(system, run.scaled(REQUESTS))
            run.add(f"{key}/requests", system, requests)
            if isinstance(system, JetStream):
                for row in ("client", "single"):
                    run.add(f"{key}/{row}", system, requests, way="bare requests")

        await run.alternate(measure, tidelog=level, jetstream=level, kafka=level)


async def _send_many(system: Tidelog, count: int) -> float:
    """Acknowledged records/s."""
    values = _values(count)
    async with new_stream(system) as stream, system.client.producer(stream) as producer:
        began = time.perf_counter()
        await producer.send_many(values)
        return count / (time.perf_counter() - began)


async def _send_nowait(system: Tidelog, count: int) -> float:
    values = _values(count)
    async with new_stream(system) as stream, system.client.producer(stream) as producer:
        began = time.perf_counter()
        for start in range(0, count, AT_ONCE):
            for value in values[start : start + AT_ONCE]:
                producer.send_nowait(value)
            await asyncio.sleep(0)
        await producer.flush()
        return count / (time.perf_counter() - began)


async def _publish_async(system: JetStream, count: int) -> float:
    values = _values(count)
    async with new_stream(system) as stream:
        connection = await nats.connect(await system.leader_url(stream))
        jetstream = connection.jetstream()
        began = time.perf_counter()
        acknowledged = await asyncio.gather(*[await jetstream.publish_async(stream, value) for value in values])
        rate = count / (time.perf_counter() - began)
        await connection.close()
        assert len(acknowledged) == count
        return rate


async def _fast_batch(system: JetStream, count: int) -> float:
    return await _published(system, count, batched=True)


async def _librdkafka(system: Kafka, count: int, is_batched: bool) -> float:
    return await _published(system, count, batched=is_batched)


async def _requests(system: System, count: int) -> float:
    return await _published(system, count, window=WINDOW)


async def _published(system: System, count: int, *, batched: bool = False, window: int | None = None) -> float:
    """Returns acknowledged records/s, of the publisher program. Raises RuntimeError when one is refused or missing."""
    async with new_stream(system) as stream:
        where = await targets(system, stream, 1)
        task = Task(targets=where, count=count, size=SIZE, batched=batched, window=window)
        async with Publisher(task, program=system.publisher) as publisher:
            sent = await publisher.go()
        if sent.refused:
            raise RuntimeError(f"{system.name} refused {sent.refused} of {count} records")
        committed, _ = await settled(system, stream, count)
        if committed != count:
            raise RuntimeError(f"{system.name} acknowledged {count} records and holds {committed}")
        return sent.rate


def _values(count: int) -> list[bytes]:
    return [b"%08x" % i * (SIZE // 8) for i in range(count)]
