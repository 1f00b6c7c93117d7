"""What the tags of messages between brokers cost: the same cluster with them and without, several times in turn.

The brokers are told by a signal to make and check no tags (`scripts/benchmarks/untagged.py`); such a cluster believes
everybody and exists for this measurement only. Two clusters of the same code differ by more than the tags cost, so both
sides are measured in one. A figure is the quotient of two neighbours, with tags over without.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import nats

from scripts.benchmarks.rig.comparison import Figure, tell
from scripts.benchmarks.rig.running import Run, burst, new_stream
from scripts.benchmarks.rig.systems import Durability, Tidelog
from scripts.benchmarks.untagged import WITH_TAGS, WITHOUT_TAGS

TURNS = 6
"""Of each side, in each round."""
PLAIN = {128: 300_000, 1024: 150_000}
"""Records of a burst, by size."""
REQUESTS = 1_000
"""Awaited publishes, one after another."""
SETTLE = 1.0
"""Seconds after a change of sides, in which messages on their way may be refused and sent again."""

FIGURES = (
    *(
        Figure(key=f"tags/plain/{size}", what=f"plain, {size} B: rate", unit="of that without", at_least=0.95)
        for size in PLAIN
    ),
    *(
        Figure(
            key=f"tags/sync/{level.value}",
            what=f"one awaited publish, {level.value}: median",
            unit="of that without",
            less_is_better=True,
            at_most=1.05,
        )
        for level in Durability
    ),
)


async def run(run: Run) -> None:
    for number in range(run.rounds):
        tell(f"  round {number + 1}: with tags and without")
        async with run.fresh(_Switchable, Durability.DURABLE) as system:
            for size, count in PLAIN.items():
                await _compare(run, system, f"tags/plain/{size}", partial(_rate, run, system, count, size))
        for level in Durability:
            async with run.fresh(_Switchable, level) as system, new_stream(system) as stream, _connected(system) as ask:
                await _compare(run, system, f"tags/sync/{level.value}", partial(_median, run, ask, stream))


class _Switchable(Tidelog):
    server_command = (str(Path(__file__).with_name("untagged.py")),)


async def _compare(run: Run, system: Tidelog, key: str, measure: Callable[[], Awaitable[float]]) -> None:
    """Adds the quotients of neighbours. The first measurement warms up and counts for nothing."""
    await measure()
    for turn in range(run.scaled(TURNS)):
        found = {}
        for tagged in (True, False) if turn % 2 else (False, True):
            _switch(system, tagged)
            await asyncio.sleep(SETTLE)
            found[tagged] = await measure()
        tell(f"    {key}: {found[True]:.4g} with, {found[False]:.4g} without")
        run.add(key, system, found[True] / found[False])
    _switch(system, True)


def _switch(system: Tidelog, tagged: bool) -> None:
    for name, pid in system.pids().items():
        if name != "nats-server":
            os.kill(pid, WITH_TAGS if tagged else WITHOUT_TAGS)


async def _rate(run: Run, system: Tidelog, count: int, size: int) -> float:
    """Committed records/s."""
    return (await burst(system, run.scaled(count), size=size)).rate


async def _median(run: Run, ask: Callable[[str, bytes], Awaitable[object]], stream: str) -> float:
    """Milliseconds."""
    times = []
    for _ in range(run.scaled(REQUESTS)):
        began = time.perf_counter()
        await ask(stream, b"x" * 128)
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times)


@asynccontextmanager
async def _connected(system: Tidelog) -> AsyncIterator[Callable[[str, bytes], Awaitable[object]]]:
    connection = await nats.connect(system.urls[0])
    try:
        yield lambda subject, payload: connection.request(subject, payload, timeout=10.0)
    finally:
        await connection.close()
