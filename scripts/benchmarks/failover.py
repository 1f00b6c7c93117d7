"""kill -9 of the leader under load: how long nothing is acknowledged, as a Python client sees it.

A client sends a small record every other millisecond, without waiting for earlier ones, and notes when each is
acknowledged. The outage is the longest time between two acknowledgements, or between the kill and the first one after
it. Then the process is started again; the next kill waits until it is back in sync everywhere. JetStream's client is
connected to a server that goes on: the cost to find another one is not in its figure.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Self

import nats
from nats.aio.msg import Msg

from scripts.benchmarks.rig.comparison import NOT_SYNCED, Figure, tell
from scripts.benchmarks.rig.running import POLL, Run, new_stream
from scripts.benchmarks.rig.systems import JetStream, System, Tidelog
from wire.subjects import Subjects

EVERY = 0.002
"""Seconds from one write to the next."""
WRITE_TIMEOUT = 2.0
"""Timeout of one write to JetStream, s: writes in flight when the leader died are never answered."""
RUN_UP = 0.5
"""Seconds of load before a kill."""
RESUMED = 0.5
"""Writes must be acknowledged so long after a kill before it is over; later pauses do not count."""
TIMEOUT = 60.0
"""Seconds within which writes must be acknowledged again, and within which the process must be back in sync."""
RECORD = b"x" * 128

FIGURES = (
    Figure(
        key="failover/median",
        what="without an acknowledged write, median",
        unit="ms",
        less_is_better=True,
        at_most=100.0,
        note=NOT_SYNCED,
        drawn_as="No acknowledged write after kill -9",
    ),
    Figure(
        key="failover/worst",
        what="without an acknowledged write, worst",
        unit="ms",
        less_is_better=True,
        statistic="max",
        at_most=500.0,
    ),
    Figure(
        key="failover/known",
        what="a client is told who leads now, median",
        unit="ms",
        less_is_better=True,
    ),
    Figure(key="failover/back", what="killed process: started to in sync everywhere", unit="s", less_is_better=True),
)


async def run(run: Run) -> None:
    left = {"tidelog": run.kills, "jetstream": run.kills}
    share = -(-run.kills // run.rounds)

    async def measure(system: System) -> None:
        kills = min(share, left[system.name])
        left[system.name] -= kills
        async with new_stream(system) as stream:
            for _ in range(kills):
                await _kill(run, system, stream)

    await run.alternate(measure)


async def _kill(run: Run, system: System, stream: str) -> None:
    leader = await system.leader(stream)
    assert leader is not None
    async with _successor(system, stream, leader) as known, _writer(system, stream) as write, _Load(write) as load:
        await load.acknowledged(time.monotonic() + RUN_UP)
        moment = time.monotonic()
        system.kill(leader)
        await load.acknowledged(moment + RESUMED)
        outage = load.outage(moment)
        if known is not None:
            run.add("failover/known", system, (await asyncio.wait_for(known, TIMEOUT) - moment) * 1e3)
    run.add("failover/median", system, outage * 1e3)
    run.add("failover/worst", system, outage * 1e3)
    began = time.monotonic()
    system.restart(leader)
    await in_sync(system, stream)
    run.add("failover/back", system, time.monotonic() - began)


@asynccontextmanager
async def _successor(system: System, stream: str, leader: str) -> AsyncIterator[asyncio.Future[float] | None]:
    """Gives the time at which Tidelog pushes another leader than this one to clients; None: JetStream pushes none."""
    if not isinstance(system, Tidelog):
        yield None
        return
    known: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def on_push(message: Msg) -> None:
        if json.loads(message.data)["partitions"][0]["leader"] not in (leader, None) and not known.done():
            known.set_result(time.monotonic())

    connection = await nats.connect(system.urls[0])
    try:
        await connection.subscribe(Subjects().push(stream), cb=on_push)
        await connection.flush()
        yield known
    finally:
        await connection.close()


async def in_sync(system: System, stream: str) -> None:
    """Returns when every replica of the stream is."""
    deadline = time.monotonic() + TIMEOUT
    while await system.committed(stream) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{stream} of {system.name} is not in sync after {TIMEOUT:.0f} s")
        await asyncio.sleep(POLL)


class _Load:
    """Writes that go on until the block ends."""

    def __init__(self, write: Callable[[], Awaitable[object]]) -> None:
        self._write = write
        self._times: list[float] = []
        """Of acknowledgements."""
        self._out: set[asyncio.Future[object]] = set()
        self._sending: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.cancel()
        out = set(self._out)
        for each in out:
            each.cancel()
        await asyncio.gather(self._sending, *out, return_exceptions=True)

    async def acknowledged(self, moment: float) -> None:
        """Returns when something is after `moment`. Raises TimeoutError, and the error that ended the sending."""
        deadline = time.monotonic() + TIMEOUT
        while not self._times or self._times[-1] < moment:
            if self._sending.done():
                self._sending.result()
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was acknowledged for {TIMEOUT:.0f} s")
            await asyncio.sleep(POLL)

    def outage(self, moment: float) -> float:
        """The longest time without an acknowledgement since `moment`, in seconds."""
        times = [moment, *(each for each in self._times if each > moment)]
        return max(after - before for before, after in pairwise(times))

    async def _send(self) -> None:
        while True:
            future = asyncio.ensure_future(self._write())
            self._out.add(future)
            future.add_done_callback(self._ended)
            await asyncio.sleep(EVERY)

    def _ended(self, future: asyncio.Future[object]) -> None:
        self._out.discard(future)
        if not future.cancelled() and future.exception() is None:
            self._times.append(time.monotonic())


@asynccontextmanager
async def _writer(system: System, stream: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Function that writes one record; its result comes when the record is acknowledged."""
    if isinstance(system, Tidelog):
        async with system.client.producer(stream) as producer:
            yield lambda: producer.send_nowait(RECORD)
    elif isinstance(system, JetStream):
        leader = await system.leader_url(stream)
        elsewhere = next(url for url in system.urls if url != leader)
        connection = await nats.connect(elsewhere, error_cb=_told)
        jetstream = connection.jetstream()
        try:
            yield lambda: jetstream.publish(stream, RECORD, timeout=WRITE_TIMEOUT)
        finally:
            await connection.close()


async def _told(error: Exception) -> None:
    tell(f"    nats-py: {error}")
