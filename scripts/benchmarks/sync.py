"""One awaited publish after another: p50, p99 and p99.9 of the time until it is acknowledged.

Both systems by the same nats-py request, connected to the server of the leader; and each with its own Python client
(Tidelog's `send`, nats-py's `publish` of JetStream). A record has 128 bytes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import nats

from scripts.benchmarks.rig.comparison import Figure, percentile
from scripts.benchmarks.rig.running import Run, new_stream
from scripts.benchmarks.rig.systems import Durability, System, Tidelog

COUNT = 3_000
WARM_UP = 200
VALUE = b"x" * 128
QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
TARGETS = {Durability.ACCEPTED: {"p50": 1.6, "p99": 1.5}, Durability.DURABLE: {"p50": 1.3, "p99": 1.5}}
"""Of the ratio, for requests: one takes eight passes through sockets in Tidelog, and four in JetStream."""

FIGURES = tuple(
    Figure(
        key=f"sync/{level.value}/{way}/{quantile}",
        what=f"{what}, {level.value}, {quantile}",
        unit="ms",
        less_is_better=True,
        ratio_at_most=of_level.get(quantile) if way == "request" else None,
        drawn_as=f"One awaited publish, {level.value}, median" if way == "request" and quantile == "p50" else "",
    )
    for level, of_level in TARGETS.items()
    for way, what in (("request", "nats-py request"), ("client", "Python client"))
    for quantile in QUANTILES
)


async def run(run: Run) -> None:
    for level in TARGETS:

        async def measure(system: System, level: Durability = level) -> None:
            async with new_stream(system) as stream:
                connection = await nats.connect(await system.leader_url(stream))

                async def request() -> None:
                    await connection.request(stream, VALUE, timeout=10.0)

                await _timed(run, system, f"sync/{level.value}/request", request)
                if isinstance(system, Tidelog):
                    async with system.client.producer(stream) as producer:

                        async def send() -> None:
                            await producer.send(VALUE)

                        await _timed(run, system, f"sync/{level.value}/client", send)
                else:
                    jetstream = connection.jetstream()

                    async def publish() -> None:
                        await jetstream.publish(stream, VALUE, timeout=10.0)

                    await _timed(run, system, f"sync/{level.value}/client", publish)
                await connection.close()

        await run.alternate(measure, tidelog=level, jetstream=level)


async def _timed(run: Run, system: System, key: str, publish: Callable[[], Awaitable[None]]) -> None:
    for _ in range(WARM_UP):
        await publish()
    times = []
    for _ in range(run.scaled(COUNT)):
        began = time.perf_counter()
        await publish()
        times.append(time.perf_counter() - began)
    for name, percent in QUANTILES.items():
        run.add(f"{key}/{name}", system, 1000 * percentile(times, percent))
