"""Pipelined acknowledged publishes: from the Python clients, and bare NATS requests from the same program for both.

The Python clients are each used as its users get the most out of it: Tidelog's `send_many`, nats-py's `publish_async`
with its own bound of unacknowledged records. `send_nowait` is the call of Tidelog's that is like `publish_async`: one
call and one future for each record. The bare requests come from the publisher program, 10,000 of them out at once.
"""

from __future__ import annotations

import asyncio
import time

import nats

from scripts.benchmarks.rig.comparison import Figure
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
            what=f"Python client, {level.value}: send_many, publish_async",
            unit="records/s",
            ratio_at_least=40.0,
            drawn_as="Acknowledged, Python client" if level is Durability.DURABLE else "",
        ),
        Figure(
            key=f"acked/{level.value}/single",
            what=f"Python client, {level.value}: send_nowait, publish_async",
            unit="records/s",
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
                rate = await _publish_async(system, run.scaled(ASYNC))
                run.add(f"{key}/client", system, rate)
                run.add(f"{key}/single", system, rate)
            run.add(f"{key}/requests", system, await _requests(system, run.scaled(REQUESTS)))

        await run.alternate(measure, tidelog=level, jetstream=level)


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


async def _requests(system: System, count: int) -> float:
    async with new_stream(system) as stream:
        task = Task(targets=await targets(system, stream, 1), count=count, size=SIZE, window=WINDOW)
        async with Publisher(task) as publisher:
            sent = await publisher.go()
        if sent.refused:
            raise RuntimeError(f"{system.name} refused {sent.refused} of {sent.answered} requests")
        committed, _ = await settled(system, stream, count)
        if committed != count:
            raise RuntimeError(f"{system.name} acknowledged {sent.answered} records and holds {committed}")
        return sent.rate


def _values(count: int) -> list[bytes]:
    return [b"%08x" % i * (SIZE // 8) for i in range(count)]
