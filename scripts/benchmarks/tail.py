"""From a bare publish to the consumer's hands, at a steady rate: Python consumers that follow the end of a stream.

The publisher writes the time into each record as it leaves (CLOCK_MONOTONIC, which all processes share). Tidelog's
consumer is the Python client's with its defaults, which gets records once they are committed; JetStream's the ordered
push consumer of nats-py with a callback, on the server that leads the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from scripts.benchmarks.rig.comparison import Figure, percentile
from scripts.benchmarks.rig.publisher import STAMP, Publisher, Task
from scripts.benchmarks.rig.running import POLL, Run, new_stream
from scripts.benchmarks.rig.systems import Durability, JetStream, System, Tidelog

RATES = {"1k": 1_000, "20k": 20_000}
"""Records/s."""
SIZE = 128
SECONDS, QUICK_SECONDS = 4.0, 1.5
WARM_UP = 0.5
"""Seconds of records that are not counted."""
PATIENCE = 3.0
"""Seconds after the last record was sent; a record that has not come by then is missing."""
PERCENTILES = (50.0, 99.0, 99.9)

FIGURES = tuple(
    figure
    for level in Durability
    for rate in RATES
    for figure in (
        *(
            Figure(
                key=f"tail/{level.value}/{rate}/p{p:g}",
                what=f"{level.value}, {rate}/s: p{p:g}",
                unit="ms",
                less_is_better=True,
            )
            for p in PERCENTILES
        ),
        Figure(
            key=f"tail/{level.value}/{rate}/missing",
            what=f"{level.value}, {rate}/s: not there {PATIENCE:g} s after the last was sent",
            unit="%",
            less_is_better=True,
            statistic="max",
        ),
    )
)


async def run(run: Run) -> None:
    for durability in Durability:

        async def measure(system: System, durability: Durability = durability) -> None:
            for name, rate in RATES.items():
                key = f"tail/{durability.value}/{name}"
                sent, delays = await _delays(system, rate, QUICK_SECONDS if run.quick else SECONDS)
                for p in PERCENTILES:
                    if delays:
                        run.add(f"{key}/p{p:g}", system, percentile(delays, p) / 1e6)
                run.add(f"{key}/missing", system, 100 * (sent - len(delays)) / sent)

        await run.alternate(measure, tidelog=durability, jetstream=durability)


async def _delays(system: System, rate: int, seconds: float) -> tuple[int, list[int]]:
    """(records sent, delays in ns of the received ones), both after the warm-up."""
    warm_up, count = int(rate * WARM_UP), int(rate * (WARM_UP + seconds))
    async with new_stream(system) as stream:
        target = (await system.leader_url(stream), stream)
        task = Task(targets=[target], count=count, size=SIZE, rate=rate, stamped=True)
        async with _consumer(system, *target) as delays, Publisher(task) as publisher:
            await publisher.go()
            deadline = time.monotonic() + PATIENCE
            while len(delays) < count and time.monotonic() < deadline:  # noqa: ASYNC110 - no event for each record
                await asyncio.sleep(POLL)
            return count - warm_up, delays[warm_up:count]


@asynccontextmanager
async def _consumer(system: System, url: str, stream: str) -> AsyncIterator[list[int]]:
    """The delay of every record that comes, ns, in their order."""
    delays: list[int] = []
    if isinstance(system, Tidelog):
        async with system.client.consume(stream, start="new") as consumer:

            async def follow() -> None:
                async for record in consumer:
                    assert record.value is not None
                    delays.append(time.monotonic_ns() - int(record.value[: len(STAMP)]))

            following = asyncio.create_task(follow())
            try:
                yield delays
            finally:
                following.cancel()
                await asyncio.wait([following])
    elif isinstance(system, JetStream):

        async def take(message: Msg) -> None:
            delays.append(time.monotonic_ns() - int(message.data[: len(STAMP)]))

        connection = await nats.connect(url)
        try:
            await connection.jetstream().subscribe(
                stream, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW, cb=take
            )
            yield delays
        finally:
            await connection.close()
