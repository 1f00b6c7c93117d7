"""What has gathered elsewhere leaves with the messages of its turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tidelog.nats.nats_py import MOST_ROUNDS, ReadCallback
from tidelog.nats.outgoing import Outgoing


class _Link:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0


class _Client:
    def __init__(self) -> None:
        self.link_transport = _Link()
        self.link = None
        self.reading = ReadCallback()


class _Counters:
    messages_out = 0
    dropped_publishes = 0
    handler_errors = 0


def outgoing() -> tuple[Outgoing, list[bytes]]:
    up = asyncio.Event()
    up.set()
    client: Any = _Client()
    counters: Any = _Counters()
    return Outgoing(client, up, counters, 1 << 20), client.link_transport.written


def publishing(out: Outgoing, data: bytes) -> Callable[[], None]:
    def publish() -> None:
        out.write([data], len(data))

    return publish


async def test_it_leaves_in_one_write_with_the_rest() -> None:
    out, written = outgoing()
    out.at_turn_end(publishing(out, b"gathered "))
    out.write([b"first "], 6)
    out.at_turn_end(publishing(out, b"too"))
    assert written == []
    await asyncio.sleep(0)
    assert written == [b"first gathered too"]
    await asyncio.sleep(0)
    assert len(written) == 1


async def test_it_leaves_at_the_end_of_the_read_callback() -> None:
    out, written = outgoing()
    out._client.reading.begin()
    out.at_turn_end(publishing(out, b"gathered"))
    assert written == []
    out._client.reading.end()
    assert written == [b"gathered"]


async def test_what_is_gathered_while_the_turn_ends_leaves_with_it() -> None:
    out, written = outgoing()
    out.at_turn_end(lambda: out.at_turn_end(publishing(out, b"late")))
    await asyncio.sleep(0)
    assert written == [b"late"]


async def test_many_bytes_end_the_turn_early() -> None:
    out, written = outgoing()
    out.at_turn_end(publishing(out, bytes(17 << 10)))
    out.write([bytes(17 << 10)], 17 << 10)
    assert sum(map(len, written)) == 34 << 10
    await asyncio.sleep(0)
    assert sum(map(len, written)) == 34 << 10


def fail() -> None:
    raise KeyError("a bug")


async def test_a_bug_in_what_gathers_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    out, written = outgoing()
    out.at_turn_end(fail)
    out.at_turn_end(publishing(out, b"gathered "))
    out.write([b"first "], 6)
    await asyncio.sleep(0)
    assert written == [b"first gathered "]
    out.write([b"later"], 5)
    await asyncio.sleep(0)
    assert written[1:] == [b"later"]
    assert out._counters.handler_errors == 1
    assert "the end of a turn of the event loop" in caplog.text


async def test_a_bug_at_the_end_of_a_read_callback_holds_up_no_other_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, written = outgoing()
    reading = out._client.reading
    reading.begin()
    reading.at_end(fail)
    out.write([b"another's"], 9)
    reading.end()
    assert written == [b"another's"]
    assert "what follows a read callback" in caplog.text


async def test_work_after_a_read_callback_finds_its_messages_gone_and_what_it_publishes_leaves_at_once() -> None:
    out, written = outgoing()
    reading = out._client.reading
    reading.begin()

    def work() -> None:
        assert written == [b"first"]
        out.write([b"second"], 6)

    assert reading.afterwards(work)
    out.write([b"first"], 5)
    reading.end()
    assert written == [b"first", b"second"]
    assert not reading.afterwards(work), "no read callback runs"


async def test_a_bug_in_work_after_a_read_callback_holds_up_no_other_work(caplog: pytest.LogCaptureFixture) -> None:
    out, written = outgoing()
    reading = out._client.reading
    reading.begin()
    reading.afterwards(fail)
    reading.afterwards(publishing(out, b"another's"))
    reading.end()
    assert written == [b"another's"]
    assert "what follows a read callback" in caplog.text


async def test_work_that_makes_more_work_without_end_leaves_the_loop_its_turns() -> None:
    out, _ = outgoing()
    reading = out._client.reading
    reading.begin()
    done = 0

    def work() -> None:
        nonlocal done
        done += 1
        if done < 10 * MOST_ROUNDS:
            reading.afterwards(work)

    reading.afterwards(work)
    reading.end()
    assert done == MOST_ROUNDS
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reading.afterwards(work), "no read callback runs"
