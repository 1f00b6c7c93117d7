"""Reading committed records of 128 B from the start: one object each, and as columns; from the page cache.

Tidelog's records are read with the Python client's consumer; JetStream's with nats-py, in three ways: the ordered
consumer with a callback, the same as an iterator, and a pull consumer that fetches a thousand at once. The fastest of
them is compared with Tidelog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from scripts.benchmarks.rig.comparison import Figure
from scripts.benchmarks.rig.publisher import Publisher, Task
from scripts.benchmarks.rig.running import Run, new_stream
from scripts.benchmarks.rig.systems import Durability, JetStream, System, Tidelog

COUNT, JETSTREAM_COUNT = 1_000_000, 200_000
"""Records read. JetStream's rates do not depend on it, and a million would take it a minute."""
SIZE = 128
WINDOW = 4096
FETCH = 1000
"""Records a pull consumer asks for at once."""

_NOTE = f"JetStream: {JETSTREAM_COUNT:,} records"
FIGURES = (
    Figure(
        key="read/columns",
        what="columns of values",
        unit="records/s",
        ratio_at_least=10.0,
        drawn_as="Reading from the start, in columns",
        note=_NOTE,
    ),
    Figure(key="read/records", what="an object each", unit="records/s", ratio_at_least=10.0, note=_NOTE),
    Figure(
        key="read/group",
        what="an object each, to a member of a group",
        unit="records/s",
        note="from the first record on: joining takes a moment",
    ),
)


async def run(run: Run) -> None:
    async def measure(system: System) -> None:
        count = run.scaled(COUNT if isinstance(system, Tidelog) else JETSTREAM_COUNT)
        async with new_stream(system) as stream:
            await fill((await system.leader_url(stream), stream), count, SIZE)
            if isinstance(system, Tidelog):
                run.add("read/records", system, await _rate(_records, system, stream, count))
                run.add("read/columns", system, await _rate(_columns, system, stream, count))
                run.add("read/group", system, await _group_rate(system, stream, count))
            elif isinstance(system, JetStream):
                for way, reader in (("callback", _callback), ("iterator", _iterator), ("pull", _pull)):
                    connection = await nats.connect(await system.leader_url(stream))
                    rate = await _rate(reader, connection, stream, count)
                    await connection.close()
                    run.add("read/records", system, rate, way=way)
                    run.add("read/columns", system, rate, way=way)

    await run.alternate(measure, tidelog=Durability.ACCEPTED, jetstream=Durability.ACCEPTED)


async def fill(target: tuple[str, str], count: int, size: int, window: int = WINDOW) -> None:
    """Acknowledged records, to a NATS server and a subject. Raises RuntimeError when one is refused."""
    async with Publisher(Task(targets=[target], count=count, size=size, window=window)) as publisher:
        sent = await publisher.go()
    if sent.refused:
        raise RuntimeError(f"{sent.refused} of {sent.count} records were refused")


_Reader = Callable[..., Awaitable[int]]


async def _rate(read: _Reader, source: Tidelog | NatsClient, stream: str, count: int) -> float:
    """Records/s."""
    began = time.perf_counter()
    seen = await read(source, stream, count)
    seconds = time.perf_counter() - began
    if seen < count:
        raise RuntimeError(f"{seen} records of {count} were read")
    return seen / seconds


async def _records(system: Tidelog, stream: str, count: int) -> int:  # noqa: ARG001
    seen = 0
    async for _ in system.client.consume(stream, start="earliest", stop="latest"):
        seen += 1
    return seen


async def _columns(system: Tidelog, stream: str, count: int) -> int:  # noqa: ARG001
    seen = 0
    async for batch in system.client.consume(stream, start="earliest", stop="latest").batches():
        seen += len(batch.values)
    return seen


async def _group_rate(system: Tidelog, stream: str, count: int) -> float:
    """Records/s, with all that a member does: heartbeats, and commits of what is finished."""
    async with system.client.subscribe(stream, group=stream) as member:
        await member.getone(timeout=10)
        began, seen = time.perf_counter(), 1
        async for _ in member:
            seen += 1
            if seen == count:
                break
        return (count - 1) / (time.perf_counter() - began)


async def _callback(connection: NatsClient, stream: str, count: int) -> int:
    seen = 0
    complete = asyncio.Event()

    async def take(_: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            complete.set()

    await connection.jetstream().subscribe(stream, ordered_consumer=True, cb=take)
    await complete.wait()
    return seen


async def _iterator(connection: NatsClient, stream: str, count: int) -> int:
    seen = 0
    subscription = await connection.jetstream().subscribe(stream, ordered_consumer=True)
    async for _ in subscription.messages:
        seen += 1
        if seen == count:
            break
    return seen


async def _pull(connection: NatsClient, stream: str, count: int) -> int:
    seen = 0
    config = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await connection.jetstream().pull_subscribe(stream, config=config)
    while seen < count:
        seen += len(await subscription.fetch(min(FETCH, count - seen)))
    return seen
