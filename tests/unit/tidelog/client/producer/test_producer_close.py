"""The end of producers and of their client: nothing is left behind, and every caller hears of it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import Cluster, api_subject
from tests.unit.tidelog.client.transactions_world import World
from tidelog.client.base.exceptions import Closed, NoServer, UnknownStream
from tidelog.client.client import Client
from wire.errors import Code
from wire.messaging.transport import Message


async def test_closing_the_client_fails_unacknowledged_records(cluster: Cluster) -> None:
    _, broker, client = cluster
    producer = client.producer("s")
    await producer.start()
    broker.swallow = 10
    future = producer.send_nowait(b"a")
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(Closed, match="close the producer first"):
        await future


@pytest.fixture
async def unretrieved() -> AsyncIterator[list[str]]:
    """Messages of asyncio about exceptions that were not read."""
    said: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    yield said
    loop.set_exception_handler(None)


async def asked_for_metadata(transport: FakeTransport) -> Message:
    """The question, which nobody answers."""
    question: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    transport.listen(api_subject("metadata"), question.set_result)
    async with asyncio.timeout(30):
        return await question


async def nobody_answers(transport: FakeTransport, client: Client, work: Coroutine[Any, Any, object]) -> None:
    """`work` asks for metadata that never comes; the client is closed meanwhile."""
    asking = asyncio.create_task(work)
    await asked_for_metadata(transport)
    await client.close()
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(1.2)  # longer than the client's api_timeout
    del asking
    gc.collect()


async def test_closing_the_client_while_a_producer_asks_for_metadata_leaves_no_exception(
    cluster: Cluster, unretrieved: list[str]
) -> None:
    transport, _, client = cluster
    producer = client.producer("s")
    await producer.start()

    async def refresh() -> None:
        producer._upkeep.check_layout()

    await nobody_answers(transport, client, refresh())
    assert unretrieved == []


async def test_closing_the_client_while_a_producer_starts_leaves_no_exception(
    cluster: Cluster, unretrieved: list[str]
) -> None:
    transport, _, client = cluster
    await nobody_answers(transport, client, client.producer("s").start())
    assert unretrieved == []


async def test_a_caller_that_gives_up_on_metadata_leaves_no_exception(cluster: Cluster, unretrieved: list[str]) -> None:
    transport, _, client = cluster
    await client.metadata("s")

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.metadata("s")

    giving_up = asyncio.create_task(give_up())
    await asked_for_metadata(transport)
    await giving_up
    await asyncio.sleep(1.2)  # longer than the client's api_timeout
    gc.collect()
    assert unretrieved == []


async def test_metadata_that_one_gives_up_on_still_comes_for_another(cluster: Cluster) -> None:
    transport, broker, client = cluster
    first = asyncio.create_task(client.metadata("s"))
    second = asyncio.create_task(client.metadata("s"))
    question = await asked_for_metadata(transport)
    first.cancel()
    await asyncio.wait({first})
    broker._on_api("metadata", question)
    assert (await second).name == "s"


async def test_a_start_that_is_overtaken_by_the_end_of_the_client_says_closed(cluster: Cluster) -> None:
    transport, _, client = cluster
    starting = asyncio.create_task(client.producer("s").start())
    await asked_for_metadata(transport)
    await client.close()
    with pytest.raises(Closed):
        await starting


async def test_what_did_not_start_or_was_never_started_is_not_kept_by_the_client(world: World) -> None:
    client, left = world.client, list[weakref.ref[object]]()

    async def fails(made: Any, start: Callable[[Any], Coroutine[Any, Any, object]]) -> None:
        left.append(weakref.ref(made))
        with pytest.raises(UnknownStream):
            await start(made)

    await fails(client.producer("nowhere"), lambda producer: producer.start())
    await fails(client.producer("nowhere"), lambda producer: producer.send(b"v"))
    await fails(client.producer("nowhere"), lambda producer: producer.__aenter__())
    await fails(client.producer(transactional_id="t", streams=["s", "nowhere"]), lambda producer: producer.start())
    await fails(client.consume("nowhere"), lambda consumer: consumer.start())
    left += map(weakref.ref, (client.producer("s"), client.producer(transactional_id="u")))
    left += map(weakref.ref, (client.consume("s"), client.subscribe("s", group="g")))
    await asyncio.sleep(0)
    gc.collect()
    assert [made() for made in left if made() is not None] == []
    assert not client._metadata.updates._watched


async def test_a_member_that_did_not_learn_the_cluster_is_not_kept_and_can_join_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = world.client.subscribe("s", group="g")
    with monkeypatch.context() as nobody:
        nobody.setattr(world.client._link, "cluster_id", AsyncMock(side_effect=NoServer(Code.UNAVAILABLE, "nobody")))
        with pytest.raises(NoServer):
            await consumer.start()
    assert not world.client._consumers
    await consumer.start()
    assert world.client._consumers
    await consumer.aclose()
    assert not world.client._consumers


async def test_a_start_that_was_cancelled_and_then_fails_leaves_nothing(
    cluster: Cluster, unretrieved: list[str]
) -> None:
    transport, broker, client = cluster
    producer = client.producer("nowhere")
    asking = asyncio.create_task(producer.start())
    question = await asked_for_metadata(transport)
    asking.cancel()
    await asyncio.wait({asking})
    broker._on_api("metadata", question)
    starting = producer._starting
    assert starting is not None
    await asyncio.wait({starting})
    left = weakref.ref(producer)
    del producer, starting, asking
    gc.collect()
    assert left() is None
    assert unretrieved == []


async def test_a_producer_that_did_not_start_can_be_started_again(cluster: Cluster) -> None:
    _, broker, client = cluster
    producer = client.producer("later")
    with pytest.raises(UnknownStream):
        await producer.start()
    broker.create("later", 1)
    receipt = await producer.send(b"v")
    assert receipt.offset == 0
    await client.close()
    with pytest.raises(Closed):
        await producer.send(b"w")


async def test_what_was_never_started_cannot_start_when_the_client_is_closed(world: World) -> None:
    client = world.client
    starts = [
        client.producer("s").start,
        client.producer(transactional_id="t").start,
        client.consume("s").start,
        client.subscribe("s", group="g").start,
    ]
    await client.close()
    for start in starts:
        with pytest.raises(Closed):
            await start()
