"""What has gathered elsewhere leaves with the messages of its turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidelog.nats.nats_py import ReadCallback
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
