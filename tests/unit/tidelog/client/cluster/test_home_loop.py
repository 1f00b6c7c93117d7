"""Clients, producers and consumers that are used outside of the event loop in which they were made say so at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.unit.tidelog.client.fake_broker import make
from tidelog.client.base.exceptions import BadRequest
from tidelog.client.client import Client
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.producer.producer import Producer

USES: dict[str, Callable[[Client, Producer, Consumer], Awaitable[object]]] = {
    "client.streams": lambda client, _, __: client.streams(),
    "client.close": lambda client, _, __: client.close(),
    "producer.send": lambda _, producer, __: producer.send(b"x"),
    "producer.send_many": lambda _, producer, __: producer.send_many([b"x"]),
    "producer.flush": lambda _, producer, __: producer.flush(),
    "producer.close": lambda _, producer, __: producer.close(),
    "consumer.start": lambda _, __, consumer: consumer.start(),
    "consumer.getone": lambda _, __, consumer: consumer.getone(),
    "consumer.seek": lambda _, __, consumer: consumer.seek(0, 0),
}


async def made() -> tuple[Client, Producer, Consumer]:
    _, broker, client = make()
    broker.create("s", 1)
    producer, consumer = client.producer("s"), client.consume("s")
    await producer.start()
    await consumer.start()
    producer.send_nowait(b"never sent: the loop ends in this turn")
    return client, producer, consumer


async def assert_refused(use: str, text: str, given: tuple[Client, Producer, Consumer]) -> None:
    with pytest.raises(BadRequest, match=rf"^this {use.partition('.')[0]}.* {text}"):
        async with asyncio.timeout(30):
            await USES[use](*given)


@pytest.mark.parametrize("use", USES)
def test_after_the_end_of_its_event_loop(use: str) -> None:
    given = asyncio.run(made())
    asyncio.run(assert_refused(use, r"belongs to an event loop that has ended, .* connect again in each", given))


@pytest.mark.parametrize("use", USES)
def test_in_another_event_loop(use: str) -> None:
    with asyncio.Runner() as home:
        given = home.run(made())
        asyncio.run(assert_refused(use, r"belongs to another event loop; connect again in this one", given))


def test_where_no_event_loop_runs() -> None:
    with asyncio.Runner() as home:
        client, producer, _ = home.run(made())
        for use in (lambda: client.producer("s"), lambda: client.consume("s")):
            with pytest.raises(BadRequest, match=r"^this client is used where no event loop runs; call it in a corou"):
                use()
        with pytest.raises(BadRequest, match=r"^this producer for 's' is used where no event loop runs"):
            producer.send_nowait(b"x", key=b"k")
