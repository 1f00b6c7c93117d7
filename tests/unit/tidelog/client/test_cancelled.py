"""Each call of the public API, cancelled at each of its steps: it ends as cancelled, or had ended before; nothing stays
behind; what it was called on goes on; and a `close` that was cancelled is completed by another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import FakeBroker, make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.fake_transactions import FakeTransactions
from tidelog.client import client
from tidelog.client.base.exceptions import BadRequest, NoServer, TransactionAborted
from tidelog.client.client import Client
from tidelog.client.cluster import coordinator_link
from tidelog.client.group import group_commits, group_consumer
from tidelog.client.group.group_consumer import GroupConsumer
from wire.operations.api_operations import GROUP_COORDINATOR

LIMIT = 30


@dataclass
class World:
    transport: FakeTransport
    broker: FakeBroker
    groups: FakeCoordinator
    client: Client
    closed: list[FakeTransport]

    def another(self) -> Client:
        transport = FakeTransport(self.transport.hub)
        close = transport.close

        async def closing() -> None:
            await close()
            self.closed.append(transport)

        transport.close = closing  # type: ignore[method-assign]
        return Client(transport, self.broker.subjects, server="nats://fake:4222", name="t", api_timeout=1)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    transport, broker, client = make()
    broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
    transport.listen(broker.subjects.api(GROUP_COORDINATOR.name), lambda m: broker._on_api(GROUP_COORDINATOR.name, m))
    broker.create("s", 2)
    for partition in range(2):
        broker.seed("s", partition, [b"%d" % offset for offset in range(10)])
    FakeTransactions(transport, broker)
    streams = {name: (made["incarnation"], len(made["partitions"])) for name, made in broker.streams.items()}
    yield World(transport, broker, FakeCoordinator(transport, streams), client, [])
    await client.close()


async def settled() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


def steps() -> Iterator[int]:
    """Each, and fewer where a call must be waiting for time to pass."""
    step = 1
    while True:
        yield step
        step = step + 1 if step < 150 else step * 2


async def cancelled_at(step: int, work: Awaitable[Any]) -> bool:
    """Whether it had ended within so many turns of the event loop. If not, it is cancelled then."""
    task = asyncio.ensure_future(work)
    for _ in range(step):
        await asyncio.sleep(0)
        if task.done():
            break
    if task.done():
        await task
        return True
    task.cancel()
    async with asyncio.timeout(LIMIT):
        await asyncio.wait((task,))
    assert task.cancelled(), f"the cancellation in turn {step} was swallowed: {task}"
    return False


Calls = dict[str, Callable[[World], Awaitable[Any]]]


async def _consume(world: World) -> None:
    async with world.client.consume("s", stop="latest") as consumer:
        while await consumer.getone() is not None:
            pass


async def _seek(world: World) -> None:
    async with world.client.consume("s") as consumer:
        await consumer.getmany()
        await consumer.seek(0, 5)
        await consumer.end_offsets()
        await anext(aiter(consumer.batches()))


async def _produce(world: World) -> None:
    async with world.client.producer("s") as producer:
        await producer.send(b"x")
        await producer.send_many([b"y"] * 3)
        producer.send_nowait(b"z")
        await producer.flush()


async def _join(world: World) -> None:
    world.groups.group("g").offsets.clear()
    async with world.client.subscribe("s", group="g") as consumer:
        await consumer.getmany()
        await consumer.commit()
        await consumer.committed()
        await consumer.seek("s", 0, 3)
        await consumer.seek_to_committed()


async def _transact(world: World) -> None:
    async with world.client.producer(transactional_id="t", streams="s") as producer:
        async with producer.transaction():
            await producer.send("s", b"x")
        await producer.begin()
        await producer.send_offsets({("s", 0): 3}, group="other")
        await producer.abort()


async def _ask(world: World) -> None:
    await world.client.streams()
    await world.client.metadata("s")
    await world.client.offsets("s", "latest")
    await world.client.extents("s")
    async for _ in world.client.fetch_batches("s", 0, 2, 5):
        pass
    await world.client.cursor("c").set(b"1")
    await world.client.cursor("c").get()


CALLS: Calls = {
    "consume": _consume,
    "seek": _seek,
    "produce": _produce,
    "join": _join,
    "transact": _transact,
    "ask": _ask,
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_at_any_step_leaves_nothing_behind(world: World, name: str) -> None:
    with suppress(TransactionAborted):
        await CALLS[name](world)  # what is made once
    await settled()
    before = {task for task in asyncio.all_tasks() if not task.done()}
    for step in steps():
        has_ended = await cancelled_at(step, CALLS[name](world))
        await settled()
        assert not world.client._consumers, step
        assert not world.client._producers, step
        left = {task for task in asyncio.all_tasks() if not task.done()} - before
        assert not left, (step, left)
        assert not world.groups.group("g").members, step
        if has_ended:
            break
    assert step > 5


async def test_a_close_that_was_cancelled_is_completed_by_another(world: World) -> None:
    for step in steps():
        revoked: list[set[tuple[str, int]]] = []

        async def revoke(partitions: set[tuple[str, int]], told: list[Any] = revoked) -> None:
            await asyncio.sleep(0)
            told.append(partitions)

        member = world.client.subscribe("s", group="g", on_revoked=revoke)
        await member.getmany(timeout=LIMIT)
        has_ended = await cancelled_at(step, member.aclose())
        await member.aclose()
        assert not world.groups.group("g").members, step
        assert not world.client._consumers
        assert len(revoked) <= 1
        if has_ended:
            break
    assert step > 5


async def test_a_client_whose_close_was_cancelled_is_closed_by_another(world: World) -> None:
    for step in steps():
        client = world.another()
        member = client.subscribe("s", group="g")
        await member.getmany(timeout=LIMIT)
        reader = client.consume("s")
        await reader.start()
        has_ended = await cancelled_at(step, client.close())
        await client.close()
        assert not world.groups.group("g").members, step
        assert not client._consumers
        assert client._transport in world.closed
        if has_ended:
            break
    assert step > 5


async def test_a_client_closes_everything_and_then_raises(world: World) -> None:
    def fails(_: object) -> None:
        raise ValueError("the program's")

    client = world.another()
    one = client.subscribe("s", group="g", on_revoked=fails)
    await one.getmany(timeout=LIMIT)
    reader = client.consume("s")
    await reader.start()
    with pytest.raises(ValueError, match="the program's"):
        await client.close()
    assert not client._consumers
    assert not world.groups.group("g").members
    assert client._transport in world.closed
    await client.close()


async def test_a_task_that_on_assigned_has_begun_cannot_close_its_consumer(world: World) -> None:
    async def close(_: object) -> None:
        async with asyncio.timeout(LIMIT):
            await asyncio.create_task(member.aclose())

    member: GroupConsumer[Any, Any] = world.client.subscribe("s", group="g", on_assigned=close)
    with pytest.raises(BadRequest, match="close it afterwards"):
        await member.getmany(timeout=LIMIT)
    await member.aclose()
    assert not world.groups.group("g").members


async def test_with_all_brokers_stopped_a_commit_and_a_close_take_the_time_that_they_tell(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that is made again and again has begun before, and waits for an answer as well."""
    monkeypatch.setattr(group_commits.GroupCommits.commit, "__defaults__", ("", 1.0))
    monkeypatch.setattr(group_consumer, "COMMIT_TIMEOUT", 600.0)
    monkeypatch.setattr(group_consumer, "_CLOSE_TIMEOUT", 1.0)
    monkeypatch.setattr(coordinator_link, "ATTEMPT_TIMEOUT", 0.3)
    member = world.client.subscribe("s", group="g", auto_commit_interval=0.05)
    await member.getmany(timeout=LIMIT)
    world.groups.kill()
    await member.getmany(timeout=LIMIT)
    assert member._commits is not None
    async with asyncio.timeout(LIMIT):
        while not member._commits._one_at_a_time.locked():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        with pytest.raises(NoServer, match="within 1 s"):
            await member.commit()
        await member.aclose()


async def test_connect_does_not_swallow_a_cancellation() -> None:
    """In Python 3.11, `asyncio.wait_for` returns where it is cancelled as its work ends."""
    closed: list[bool] = []

    class Connection:
        async def close(self) -> None:
            closed.append(True)

    async def connect() -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.001)
        return Connection()

    for step in range(1, 4):
        assert not await cancelled_at(step, client._connected(connect()))
    assert len(closed) >= 2
