"""A follower that was killed, started again a gigabyte behind: how fast it gets everything.

The leader has the missing records in its page cache. The rate is taken from the first growth of the follower's files
until it is in sync again, without the start of its process; that is in the seconds.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from scripts.benchmarks.read import fill
from scripts.benchmarks.rig.comparison import NOT_SYNCED, Figure
from scripts.benchmarks.rig.running import Run, new_stream
from scripts.benchmarks.rig.systems import Durability, JetStream, System, Tidelog

VOLUME, QUICK_VOLUME = 1 << 30, 128 << 20
"""Bytes of records."""
SIZE = 8 << 10
"""Of a record."""
PIECE = 64 << 20
"""Bytes that the publisher encodes at once."""
WINDOW = 256
GROWN = 1 << 20
"""Bytes by which the follower's files are larger once it copies."""
POLL = 0.005
TIMEOUT = 60.0

FIGURES = (
    Figure(
        key="catchup/rate",
        what="a follower gets what it lacks",
        unit="MB/s",
        at_least=250.0,
        note=NOT_SYNCED,
        drawn_as="Catch-up of a restarted replica",
    ),
    Figure(key="catchup/seconds", what="started to in sync", unit="s", less_is_better=True),
)


async def run(run: Run) -> None:
    volume = QUICK_VOLUME if run.quick else VOLUME

    async def measure(system: System) -> None:
        async with new_stream(system) as stream:
            leader, target = await system.leader(stream), (await system.leader_url(stream), stream)
            await fill(target, PIECE // SIZE, SIZE, WINDOW)
            follower = next(name for name in system.pids() if name not in (leader, "nats-server"))
            system.kill(follower)
            for _ in range(volume // PIECE):
                await fill(target, PIECE // SIZE, SIZE, WINDOW)
            started = time.perf_counter()
            system.restart(follower)
            begun, ended = await _caught_up(system, stream, follower, volume)
            run.add("catchup/rate", system, volume / 1e6 / (ended - begun))
            run.add("catchup/seconds", system, ended - started)

    await run.alternate(measure, tidelog=Durability.DURABLE, jetstream=Durability.ACCEPTED)


async def _caught_up(system: System, stream: str, follower: str, volume: int) -> tuple[float, float]:
    """When it began to copy, and when it was in sync with `volume` bytes of files more."""
    folder = system.data_dir(follower)
    if isinstance(system, JetStream):
        folder = folder / "jetstream" / "$G"  # without the logs of Raft
    least, before, begun = 1 << 62, time.perf_counter(), 0.0
    async with asyncio.timeout(TIMEOUT):
        while True:
            now = time.perf_counter()
            size = _bytes_below(folder)
            least = min(least, size)
            if not begun:
                if size > least + GROWN:
                    begun = before
                before = now
            if size >= least + volume and await _is_in_sync(system, stream, follower):
                return begun or before, time.perf_counter()
            await asyncio.sleep(POLL)


async def _is_in_sync(system: System, stream: str, follower: str) -> bool:
    if isinstance(system, Tidelog):
        return follower in (await system.client.describe(stream))["partitions"][0]["isr"]
    return isinstance(system, JetStream) and await system.committed(stream) is not None


def _bytes_below(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size
