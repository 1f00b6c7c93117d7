"""The bound on a producer's memory, and the calls that wait for room."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.client.base.exceptions import BufferFull
from tidelog.client.producer.send_buffer import SendBuffer


def waiting(buffer: SendBuffer, size: int) -> asyncio.Task[None]:
    """A call that waits for room and then takes it."""

    async def call() -> None:
        await buffer.wait_for_room(size)
        buffer.used += size

    return asyncio.create_task(call())


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_get_room_in_order_of_arrival_and_never_more_than_there_is() -> None:
    """Several batches are acknowledged in one turn of the loop, before the first call goes on."""
    buffer = SendBuffer(100, timeout=10, of="'s'")
    buffer.used = 100
    calls = [waiting(buffer, 20) for _ in range(6)]
    await turn()
    for _ in range(3):
        buffer.release(20)
    await turn()
    assert [call.done() for call in calls] == [True] * 3 + [False] * 3
    assert buffer.used == 100
    for call in calls:
        call.cancel()


async def test_room_that_a_cancelled_call_was_given_goes_to_the_next_one() -> None:
    buffer = SendBuffer(100, timeout=10, of="'s'")
    buffer.used = 100
    first, second = waiting(buffer, 80), waiting(buffer, 80)
    await turn()
    buffer.release(100)
    first.cancel()
    await turn()
    assert first.cancelled()
    assert second.done()
    assert buffer.used == 80


async def test_a_call_that_is_cancelled_while_it_waits_lets_the_next_one_pass() -> None:
    buffer = SendBuffer(100, timeout=10, of="'s'")
    buffer.used = 50
    large, small = waiting(buffer, 80), waiting(buffer, 20)
    await turn()
    assert not small.done()
    large.cancel()
    await turn()
    assert small.done()
    assert buffer.used == 70


async def test_a_call_gives_up_in_time() -> None:
    buffer = SendBuffer(100, timeout=0.001, of="'s'")
    buffer.used = 100
    with pytest.raises(BufferFull, match="no room came free"):
        await buffer.wait_for_room(1)
    buffer.release(100)
    assert buffer.used == 0
    assert buffer.has_room(100)
