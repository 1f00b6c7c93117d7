"""The NATS connection on a real nats-server: delivery, losses, reconnects, limits, services."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nats import BulkSink
from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats import nats_py
from tidelog.nats.login import NatsLogin
from tidelog.nats.micro import ERROR_CODE_HEADER, ERROR_HEADER, Answer, Endpoint, Service
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_errors import ConnectionClosed, NatsUnavailable
from tidelog.nats.nats_server import EmbeddedNatsServer, NatsPortTaken, NatsServerFailed
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, Transport
from wire.types import Buffer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNatsServer]:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats") as running:
        yield running


# ---- delivery


async def test_messages_arrive_whole_and_in_order(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    transport: Transport = connection
    received: list[Message] = []
    await transport.subscribe("orders.*", received.append)
    assert transport.publish(
        "orders.new", (b"a", bytearray(b"b"), memoryview(b"cd")), reply="answers", headers={"K": "v: w"}
    )
    assert transport.publish("orders.old", ())
    await connection.flush()
    assert received == [
        Message("orders.new", b"abcd", reply="answers", headers={"K": "v: w"}),
        Message("orders.old", b""),
    ]
    await connection.close()


async def test_parts_are_counted_in_bytes_and_copied_at_once(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []
    await connection.subscribe("a", received.append)
    words = memoryview(bytearray(range(16))).cast("Q")
    buffer = bytearray(b"before")
    connection.publish("a", (words, buffer))
    buffer[:] = b"behind"
    await connection.flush()
    assert received[0].data == bytes(range(16)) + b"before"
    await connection.close()


async def test_large_messages_of_many_parts_arrive_whole_whatever_the_socket_takes(server: EmbeddedNatsServer) -> None:
    received: list[Message] = []
    connection = await NatsConnection.connect(server.url)
    await connection.subscribe("a", received.append)
    numbers = array("H", range(1000))
    changing = bytearray(b"c" * 70_000)
    few: list[Buffer] = [b"f" * 3_000_000, changing, memoryview(numbers)]
    many: list[Buffer] = [bytes([i % 251]) * (i % 97) for i in range(5000)]
    small: list[Buffer] = [b"small"]
    sent = []
    server.freeze()
    for parts in (few, many, small, *[few] * 6, many, small[1:], many):
        assert connection.publish("a", parts)
        sent.append(b"".join(bytes(part) for part in parts))
    assert connection.outgoing_bytes, "the socket does not take all of that at once"
    changing[:] = b"d" * len(changing)
    server.thaw()
    await until(lambda: len(received) == len(sent))
    assert [message.data for message in received] == sent
    await connection.close()


async def test_publishes_in_one_turn_of_the_loop_leave_as_one_write(
    server: EmbeddedNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await NatsConnection.connect(server.url)
    seen = BulkSink()
    await connection.subscribe_bulk("a", seen)
    transport = connection._client.link_transport
    assert transport is not None
    writes: list[int] = []
    write = transport.write

    def counted(data: Buffer) -> None:
        writes.append(len(data))
        write(data)

    monkeypatch.setattr(transport, "write", counted)
    for number in range(100):
        connection.publish("a", (b"%d" % number,))
    asyncio.get_running_loop().call_soon(lambda: writes.append(0))  # as a sync that is asked for after them
    assert not writes
    assert connection.outgoing_bytes > 100
    await asyncio.sleep(0)
    assert len(writes) == 2
    assert not writes[1], "they leave before what is asked of the loop after them"
    connection.publish("a", (b"100",))
    connection.publish("a", (b"x" * 100_000,))
    for number in range(102, 200):
        connection.publish("a", (b"%d" % number * 100,))
    await connection.flush()
    assert 3 < len(writes) < 12, "much does not wait for the end of the turn"
    assert [payload[:3] for payload in seen.payloads[100:]] == [b"100", b"xxx", *(b"%d" % n for n in range(102, 200))]
    observer = await NatsConnection.connect(server.url)
    heard = BulkSink()
    await observer.subscribe_bulk("a", heard)
    connection.publish("a", (b"last words",))
    await connection.close()
    await until(lambda: heard.payloads == [b"last words"])
    await observer.close()


async def test_publishes_of_a_read_callback_leave_at_its_end(
    server: EmbeddedNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its own connection, and on the one that goes first."""
    ingest = await NatsConnection.connect(server.url)
    control = await NatsConnection.connect(server.url)
    ingest.give_way_to(control)
    transport = control._client.link_transport
    assert transport is not None
    told: list[Buffer | str] = []
    write = transport.write

    def counted(data: Buffer) -> None:
        told.append(bytes(data))
        write(data)

    def answer(message: Message) -> None:
        asyncio.get_running_loop().call_soon(lambda: told.append("the end of the turn"))
        control.publish("answer", (message.data,))
        control.publish("answer", (message.data,))
        told.append("published")

    await ingest.subscribe("ask", answer)
    await control.subscribe("ask.too", answer)
    answers = await NatsConnection.connect(server.url)
    received: list[bytes] = []
    await answers.subscribe("answer", lambda message: received.append(message.data))
    monkeypatch.setattr(transport, "write", counted)
    for subject in ("ask", "ask.too"):
        answers.publish(subject, (b"x",))
        await until(lambda: len(received) == 2)
        assert told == ["published", b"PUB answer 1\r\nx\r\n" * 2, "the end of the turn"]
        told.clear()
        received.clear()
    control.publish("answer", (b"y",))
    assert not told, "outside a read callback it leaves with the turn"
    await control.flush()
    assert told
    for connection in (ingest, control, answers):
        await connection.close()


async def test_a_bulk_subscription_gets_runs_replies_and_headers(server: EmbeddedNatsServer) -> None:
    publisher = await NatsConnection.connect(server.url)
    connection = await NatsConnection.connect(server.url)
    collector = BulkSink()
    await connection.subscribe_bulk("in", collector)
    block = [b"PUB in r.%04d 8\r\n%08d\r\n" % (index, index) for index in range(3000)]
    assert publisher.publish_raw(block)
    assert publisher.publish("in", (b"with headers",), headers={"A": "b"})
    assert publisher.publish("in", (b"x" * 3_000_000,))
    await publisher.flush()
    await until(lambda: len(collector.payloads) == 3002)
    assert collector.payloads[:3000] == [b"%08d" % index for index in range(3000)]
    assert [delivery.reply for delivery in collector.deliveries[:3000]] == [b"r.%04d" % index for index in range(3000)]
    assert [delivery.headers for delivery in collector.deliveries[3000:]] == [b"NATS/1.0\r\nA: b\r\n\r\n", None]
    assert collector.payloads[3001] == b"x" * 3_000_000
    assert collector.uniform > 1000
    assert collector.chunks >= 1
    counters = connection.counters.read
    assert (counters.messages, counters.uniform_messages) == (3002, collector.uniform)
    assert counters.bytes > 3_000_000 + 3000 * 8
    await publisher.close()
    await connection.close()


async def test_one_message_to_many_reply_subjects_leaves_in_few_writes(server: EmbeddedNatsServer) -> None:
    """Also to subjects that are no text. Subjects for which the server would close the connection are left out."""
    connection = await NatsConnection.connect(server.url)
    receiver = await NatsConnection.connect(server.url)
    received: list[Message] = []
    await receiver.subscribe("r.>", received.append)
    collector = BulkSink()
    await receiver.subscribe_bulk("odd.*", collector)
    subjects = [b"r.%d" % index for index in range(20_000)]
    longest = b"r." + b"x" * (4096 - len(b"HPUB r. 18 22\r\n"))
    headers = {"A": "b"}
    before = connection.counters.messages_out
    left_out = connection.publish_to_each([*subjects, b"odd.\xff\xfe", longest, longest + b"x"], b"body", headers)
    assert left_out == 1
    assert connection.counters.messages_out - before < 20
    assert connection.publish_to_each([], b"body", headers) == 0
    await connection.flush()
    await until(lambda: len(received) == 20_001 and len(collector.payloads) == 1)
    assert [message.subject.encode() for message in received] == [*subjects, longest]
    assert {message.data for message in received} == {b"body", *collector.payloads}
    assert all(message.headers == headers for message in received)
    assert connection.counters.losses == 0
    await receiver.close()
    await connection.close()


async def test_subscribe_returns_when_the_server_knows(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    other = await NatsConnection.connect(server.url)
    received: list[Message] = []
    for index in range(30):
        await connection.subscribe(f"s.{index}", received.append)
        other.publish(f"s.{index}", (b"",))
    await until(lambda: len(received) == 30)
    await connection.close()
    await other.close()


async def test_one_of_a_queue_gets_each_message_also_after_the_server_was_restarted(server: EmbeddedNatsServer) -> None:
    members = [await NatsConnection.connect(server.url) for _ in range(3)]
    received: list[list[Message]] = [[] for _ in members]
    everybody: list[Message] = []
    for member, own in zip(members, received, strict=True):
        await member.subscribe("work", own.append, queue="workers")
    await members[0].subscribe("work", everybody.append)

    async def send() -> None:
        everybody.clear()
        for own in received:
            own.clear()
        for _ in range(60):
            members[0].publish("work", (b"",))
        await until(lambda: len(everybody) >= 60)
        await asyncio.gather(*(member.flush() for member in members))
        assert sum(map(len, received)) == len(everybody) == 60
        assert all(received), "NATS takes them in turns"

    await send()
    server.kill()
    await until(lambda: not any(member.is_connected for member in members))
    await asyncio.to_thread(server.start)
    await until(lambda: all(member.is_connected for member in members))
    await send()
    for member in members:
        await member.close()


async def test_flush_returns_after_everything_before_it_is_delivered(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    collector = BulkSink()
    await connection.subscribe_bulk("in", collector)
    for count in (1, 10, 1000):
        collector.deliveries.clear()
        for _ in range(count):
            connection.publish("in", (b"x",))
        await connection.flush()
        assert len(collector.payloads) == count
    await connection.close()


async def test_nothing_is_delivered_after_unsubscribe(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []
    collector = BulkSink()
    subscriptions = [await connection.subscribe("a", received.append), await connection.subscribe_bulk("b", collector)]
    for subscription in subscriptions:
        connection.publish(subscription.subject, (b"on the way",))
        await subscription.unsubscribe()
        connection.publish(subscription.subject, (b"late",))
    await connection.flush()
    assert (received, collector.payloads) == ([], [])
    await connection.close()


async def test_exceptions_of_handlers_are_counted_and_the_connection_lives(
    server: EmbeddedNatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []

    def broken(message: Message) -> None:
        raise RuntimeError("broken handler")

    class BrokenBulk(BulkSink):
        def on_messages(self, *lists: object) -> None:
            raise RuntimeError("broken bulk handler")

        def chunk_done(self) -> None:
            raise RuntimeError("broken chunk_done")

    await connection.subscribe("a", broken)
    await connection.subscribe_bulk("a", BrokenBulk())
    await connection.subscribe("a", received.append)
    inbox = connection.new_inbox()
    connection.on_inbox(inbox, broken)
    with caplog.at_level(logging.CRITICAL):
        connection.publish("a", (b"x",))
        connection.publish(inbox, (b"x",))
        await connection.flush()
        connection.publish("a", (b"y",))
        await connection.flush()
    assert [message.data for message in received] == [b"x", b"y"]
    assert connection.counters.handler_errors == 7
    assert connection.counters.losses == 0
    await connection.close()


async def test_no_responders_come_back_as_status_503(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    answer = await connection.request("nobody.here", b"?", timeout=LIMIT)
    assert answer.status == NO_RESPONDERS
    await connection.close()


async def test_requests_get_their_own_answers_and_inboxes_any_number(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)

    def echo(message: Message) -> None:
        assert message.reply is not None
        for _ in range(3):
            connection.publish(message.reply, (message.data,), headers=message.headers)

    await connection.subscribe("echo", echo)
    requests = [connection.request("echo", b"%d" % n, timeout=LIMIT, headers={"N": str(n)}) for n in range(100)]
    answers = await asyncio.gather(*requests)
    assert [answer.data for answer in answers] == [b"%d" % n for n in range(100)]
    assert [answer.headers for answer in answers] == [{"N": str(n)} for n in range(100)]

    several: list[Message] = []
    inbox = connection.new_inbox()
    connection.on_inbox(inbox, several.append)
    connection.publish("echo", (b"x",), reply=inbox)
    await until(lambda: len(several) == 3)
    connection.on_inbox(inbox, None)
    connection.publish("echo", (b"x",), reply=inbox)
    await connection.flush()
    assert len(several) == 3
    with pytest.raises(ValueError, match="not an inbox of this connection"):
        connection.on_inbox("_INBOX.other.1", several.append)
    await connection.close()


async def test_a_request_without_answer_times_out(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    await connection.subscribe("silent", lambda _: None)
    with pytest.raises(TimeoutError, match=r"'silent': none came within 0\.05 s"):
        await connection.request("silent", b"", timeout=0.05)
    await connection.close()


# ---- loss and reconnect


async def test_a_killed_server_that_comes_back_finds_everything_restored(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []
    collector = BulkSink()
    changes: list[tuple[bool, bool]] = []
    await connection.subscribe("direct", received.append)
    await connection.subscribe_bulk("bulk", collector)
    connection.on_connection_change(lambda connected: changes.append((connected, connection.is_connected)))
    assert connection.connected_since <= time.monotonic()

    waiting = asyncio.create_task(connection.request("direct", b"never answered", timeout=25))
    await until(lambda: received)
    server.kill()
    with pytest.raises(TimeoutError, match="lost"):
        await waiting
    assert not connection.is_connected
    assert connection.connected_since == float("inf")
    assert connection.publish("direct", (b"not kept",)) is False
    assert connection.publish_raw([b"PUB direct 0\r\n\r\n"]) is False
    assert connection.counters.dropped_publishes == 2
    with pytest.raises(TimeoutError, match="no connection"):
        await connection.request("direct", b"", timeout=25)
    with pytest.raises(TimeoutError, match="no connection"):
        await connection.flush()
    late = asyncio.create_task(connection.subscribe("late", received.append))

    received.clear()
    await asyncio.to_thread(server.start)
    await late
    await until(lambda: connection.is_connected)
    connection.publish("direct", (b"1",))
    connection.publish("bulk", (b"2",))
    connection.publish("late", (b"3",))
    await connection.flush()
    assert [message.data for message in received] == [b"1", b"3"]
    assert collector.payloads == [b"2"]
    assert (await connection.request("nobody", b"", timeout=LIMIT)).status == NO_RESPONDERS
    assert changes == [(False, False), (True, True)]
    assert connection.counters.losses == 1
    await connection.close()


async def test_many_restarts_in_a_row_are_survived(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []
    changes: list[bool] = []
    await connection.subscribe("a", received.append)
    connection.on_connection_change(changes.append)
    for round_ in range(5):
        server.kill()
        await until(lambda: not connection.is_connected)
        await asyncio.to_thread(server.start)
        await until(lambda: connection.is_connected)
        connection.publish("a", (b"%d" % round_,))
        await connection.flush()
    assert [message.data for message in received] == [b"0", b"1", b"2", b"3", b"4"]
    assert changes == [False, True] * 5
    await connection.close()


async def test_a_long_outage_is_waited_out(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url, reconnect_wait=0.005)
    server.kill()
    await until(lambda: connection._client._server_pool[0].reconnects > 20)
    await asyncio.to_thread(server.start)
    await until(lambda: connection.is_connected)
    await connection.close()


async def test_an_idle_connection_is_held_by_pings(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url, ping_interval=1.0)  # a slow machine answers in time
    await until(lambda: connection._client._pongs_received > 3)
    assert connection.counters.losses == 0
    await connection.close()


async def test_the_pings_of_the_server_are_answered(tmp_path: Path) -> None:
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config='ping_interval: "1s"\nping_max: 3') as server:
        connection = await NatsConnection.connect(server.url, ping_interval=60)
        await until(lambda: connection.counters.read.reads > 6 or connection.counters.losses)
        assert connection.counters.losses == 0
        await connection.close()


async def test_a_flush_that_timed_out_does_no_harm_when_its_answer_comes(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url, ping_interval=60)
    server.freeze()
    try:
        with pytest.raises(TimeoutError, match=r"none came within 0\.05 s"):
            await connection.flush(0.05)
    finally:
        server.thaw()
    await connection.flush()
    assert connection.counters.losses == 0
    await connection.close()


async def test_a_frozen_server_is_left_for_another_one_whatever_is_buffered(
    server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """asyncio closes a socket only when its buffer is sent: a frozen server would never take it."""
    with EmbeddedNatsServer(store_dir=tmp_path / "other") as other:
        connection = await NatsConnection.connect(server.url, ping_interval=0.1, connect_timeout=0.5)
        connection._client._setup_server_pool([other.url])
        server.freeze()
        try:
            while connection.outgoing_bytes < 8 << 20:
                connection.publish("a", (bytes(1 << 20),))
            await until(lambda: connection.counters.losses)  # it may be connected again at once
            await until(lambda: connection.is_connected)
            assert connection.server_info["port"] == other.port
        finally:
            server.thaw()
        await connection.close()


@pytest.mark.parametrize("garbage", [b"GARBAGE\r\n", b"PUB a 3\r\ntoo long for that\r\n"])
async def test_an_error_of_the_server_does_not_end_the_connection_for_good(
    server: EmbeddedNatsServer, garbage: bytes
) -> None:
    connection = await NatsConnection.connect(server.url)
    received: list[Message] = []
    await connection.subscribe("b", received.append)
    connection.publish_raw([garbage])
    await until(lambda: connection.counters.losses == 1)
    await until(lambda: connection.is_connected)
    connection.publish("b", (b"again",))
    await connection.flush()
    assert [message.data for message in received] == [b"again"]
    assert connection.counters.server_errors >= 1
    await connection.close()


async def test_a_server_that_does_not_speak_nats_any_more_is_left(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    link = connection._client._link
    assert link is not None
    room = link.get_buffer(-1)
    room[:9] = b"NOT NATS\n"
    room[9:11] = b"\r\n"
    link.buffer_updated(11)
    assert not connection.is_connected
    await until(lambda: connection.is_connected)
    assert (await connection.request("nobody", b"", timeout=LIMIT)).status == NO_RESPONDERS
    await connection.close()


async def test_a_missing_permission_is_counted_and_harms_nothing_else(tmp_path: Path) -> None:
    rules = "authorization { users: [{ user: u, password: p, permissions: { publish: { deny: [secret] } } }] }"
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=rules) as server:
        connection = await NatsConnection.connect(server.url, login=NatsLogin(user="u", password="p"))
        connection.publish("secret", (b"",))
        await connection.flush()
        assert (connection.counters.server_errors, connection.counters.losses) == (1, 0)
        await connection.close()


# ---- limits


async def test_publish_refuses_above_the_outgoing_limit_until_it_is_writable_again(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url, outgoing_limit=4 << 20, ping_interval=60)
    server.freeze()
    try:
        sent = 0
        while connection.publish("a", (bytes(100_000),)):
            sent += 1
            assert sent < 1000
        assert 4 << 20 < connection.outgoing_bytes < (4 << 20) + 200_000
        assert connection.counters.dropped_publishes == 1
        assert connection.is_connected
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.wait_writable()
    finally:
        server.thaw()
    async with asyncio.timeout(LIMIT):
        await connection.wait_writable()
    assert connection.outgoing_bytes <= 1 << 20
    assert connection.publish("a", (b"x",))
    await connection.flush()
    await connection.close()


async def test_messages_for_which_the_server_would_close_the_connection_are_refused(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    assert connection.max_payload == 8 << 20
    for subject in ("", "a b", "a\r\nPUB b 0", "a\x00"):
        with pytest.raises(ValueError, match="cannot be a NATS subject"):
            connection.publish(subject, ())
    for publish in (connection.publish, partial(connection.publish, reply="b", headers={"a": "b"})):
        with pytest.raises(TidelogError, match="larger than max_payload=8388608") as caught:
            publish("a", (bytes((8 << 20) + 1),))
        assert caught.value.code is Code.MESSAGE_TOO_LARGE
    with pytest.raises(TidelogError, match="larger than max_payload=8388608"):
        await connection.request("a", bytes((8 << 20) + 1), timeout=5.0)
    with pytest.raises(ValueError, match="too long"):
        connection.publish("a" * 5000, ())
    received: list[Message] = []
    await connection.subscribe("a", received.append)
    assert connection.publish("a", (bytes(8 << 20),))
    await connection.flush()
    assert len(received[0].data) == 8 << 20
    assert connection.counters.losses == 0
    await connection.close()


async def test_nothing_of_ours_goes_through_nats_pys_own_buffer_or_queues(server: EmbeddedNatsServer) -> None:
    before = len(asyncio.all_tasks())
    connection = await NatsConnection.connect(server.url, ping_interval=0.01)
    connection._client.options["max_outstanding_pings"] = 10_000  # a slow server is not taken for dead
    received: list[Message] = []
    for index in range(50):
        await connection.subscribe(f"s.{index}", received.append)
    connection.publish("s.1", (b"x",))
    await connection.request("nobody", b"", timeout=LIMIT)
    assert connection._client._pending == []
    assert len(received) == 1
    assert len(asyncio.all_tasks()) - before <= 3  # reader, flusher, pings
    await connection.close()


# ---- beginning and end


async def test_no_server_is_said_in_one_sentence() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound but not listening: refuses
        url = f"nats://user:secret@127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(NatsUnavailable) as caught:
            await NatsConnection.connect(url)
    text = str(caught.value)
    assert f"nats://127.0.0.1:{bound_port(url)}" in text
    assert "start one" in text
    assert "secret" not in text


def bound_port(url: str) -> str:
    return url.rsplit(":", 1)[1]


@pytest.mark.parametrize("url", ["ws://127.0.0.1:80", "nats://127.0.0.1:port", ""])
async def test_a_useless_url_is_refused(url: str) -> None:
    with pytest.raises(NatsUnavailable):
        await NatsConnection.connect(url)


async def test_one_of_several_urls_is_enough(server: EmbeddedNatsServer) -> None:
    for _ in range(4):
        connection = await NatsConnection.connect(f"nats://127.0.0.1:1, {server.url}")
        assert connection.server_info["port"] == server.port
        await connection.close()


async def test_a_closed_connection_says_so(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    changes: list[bool] = []
    connection.on_connection_change(changes.append)
    await connection.subscribe("silent", lambda _: None)
    waiting = asyncio.create_task(connection.request("silent", b"", timeout=25))
    await until(lambda: connection.counters.read.messages == 1)
    await connection.close()
    with pytest.raises(TimeoutError, match="closed"):
        await waiting
    assert not connection.is_connected
    assert connection.publish("a", (b"",)) is False
    with pytest.raises(ConnectionClosed):
        await connection.subscribe("a", lambda _: None)
    with pytest.raises(ConnectionClosed):
        await connection.wait_writable()
    assert changes == []
    await connection.close()


async def test_closing_wakes_callers_that_wait_for_a_lost_server(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    server.kill()
    await until(lambda: not connection.is_connected)
    waiting = [
        asyncio.create_task(connection.wait_writable()),
        asyncio.create_task(connection.subscribe("a", lambda _: None)),
    ]
    await asyncio.sleep(0)
    await connection.close()
    async with asyncio.timeout(LIMIT):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionClosed, ConnectionClosed]


async def test_drain_delivers_and_sends_before_it_closes(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    observer = await NatsConnection.connect(server.url)
    own, seen = BulkSink(), BulkSink()
    await connection.subscribe_bulk("a", own)
    await observer.subscribe_bulk("a", seen)
    for _ in range(2000):
        connection.publish("a", (b"x" * 1000,))
    await connection.drain()
    await observer.flush()
    assert (len(own.payloads), len(seen.payloads)) == (2000, 2000)
    await observer.close()


# ---- the embedded server


def test_a_taken_port_is_named_with_the_remedy(server: EmbeddedNatsServer, tmp_path: Path) -> None:
    second = EmbeddedNatsServer(port=server.port, store_dir=tmp_path / "second")
    with pytest.raises(NatsPortTaken, match=rf"port {server.port} on 127.0.0.1 is taken.*another port"):
        second.start()
    assert not second.is_running


def test_a_bad_configuration_is_said(tmp_path: Path) -> None:
    with pytest.raises(NatsServerFailed, match=r"nats-server did not start: .*nonsense"):
        EmbeddedNatsServer(store_dir=tmp_path, config="nonsense: true").start()


def test_the_server_keeps_its_port_over_restarts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    server = EmbeddedNatsServer(store_dir=tmp_path / "nats")
    server.start()
    port, pid = server.port, server.pid
    assert server.url == f"nats://127.0.0.1:{port}"
    server.stop()
    assert (server.is_running, server.pid) == (False, None)
    server.start()
    assert server.port == port
    assert server.pid not in (None, pid)
    server.stop()
    server.stop()
    assert sorted(path.name for path in (tmp_path / "nats").iterdir()) == ["nats-server.conf", "nats-server.log"]


# ---- services


async def test_a_service_is_found_answers_and_counts(server: EmbeddedNatsServer) -> None:
    connection = await NatsConnection.connect(server.url)
    client = await NatsConnection.connect(server.url)

    async def double(message: Message) -> Answer:
        await asyncio.sleep(0)
        return message.data * 2, {"Kind": "double"}

    async def silent(message: Message) -> Answer:
        return None

    async def broken(message: Message) -> Answer:
        raise RuntimeError("no\nluck")

    async def large(message: Message) -> Answer:
        return bytes((8 << 20) + 1), None

    served = {"api.double": double, "api.silent": silent, "api.broken": broken, "api.large": large}
    endpoints = {subject: Endpoint(serve) for subject, serve in served.items()}
    service = Service(connection, "tidelog-api", "1.2.3", "What it does", endpoints)
    await service.start()

    answer = await client.request("api.double", b"ab", timeout=LIMIT)
    assert (answer.data, answer.headers) == (b"abab", {"Kind": "double"})
    with pytest.raises(TimeoutError):
        await client.request("api.silent", b"", timeout=0.05)
    answer = await client.request("api.broken", b"", timeout=LIMIT)
    assert answer.headers is not None
    assert answer.headers[ERROR_CODE_HEADER] == "500"
    assert "no\\nluck" in answer.headers[ERROR_HEADER]
    assert answer.headers["Tidelog-Error"] == json.loads(answer.data)["error"]["code"] == "INTERNAL"
    answer = await client.request("api.large", b"", timeout=LIMIT)
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    assert error.code is Code.MESSAGE_TOO_LARGE
    assert "the answer to api.large takes a message of 8388609 bytes" in error.message
    assert json.loads(answer.data)["error"]["code"] == "MESSAGE_TOO_LARGE"
    assert connection.counters.losses == 0

    async def ask(subject: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await client.request(subject, b"", timeout=LIMIT)).data)
        return found

    for scope in ("", ".tidelog-api", f".tidelog-api.{service.id}"):
        ping = await ask(f"$SRV.PING{scope}")
        assert ping["type"] == "io.nats.micro.v1.ping_response"
        assert (ping["name"], ping["id"], ping["version"]) == ("tidelog-api", service.id, "1.2.3")
    info = await ask("$SRV.INFO.tidelog-api")
    assert info["description"] == "What it does"
    assert {(e["name"], e["subject"], e["queue_group"]) for e in info["endpoints"]} == {
        ("api-double", "api.double", ""),
        ("api-silent", "api.silent", ""),
        ("api-broken", "api.broken", ""),
        ("api-large", "api.large", ""),
    }
    stats = {e["subject"]: e for e in (await ask("$SRV.STATS.tidelog-api"))["endpoints"]}
    assert [stats[f"api.{name}"]["num_requests"] for name in ("double", "silent", "broken")] == [1, 1, 1]
    assert stats["api.broken"]["num_errors"] == 1

    await service.stop()
    assert (await client.request("api.double", b"", timeout=LIMIT)).status == NO_RESPONDERS
    assert (await client.request("$SRV.PING", b"", timeout=LIMIT)).status == NO_RESPONDERS
    await connection.close()
    await client.close()


async def test_every_instance_of_a_service_gets_every_request(server: EmbeddedNatsServer) -> None:
    connections = [await NatsConnection.connect(server.url) for _ in range(3)]

    def answering(text: bytes) -> Callable[[Message], Any]:
        async def endpoint(message: Message) -> Answer:
            return text, None

        return endpoint

    for index, connection in enumerate(connections):
        await Service(connection, "many", "0.1.0", "", {"many.ask": Endpoint(answering(b"%d" % index))}).start()
    answers: list[Message] = []
    inbox = connections[0].new_inbox()
    connections[0].on_inbox(inbox, answers.append)
    connections[0].publish("many.ask", (), reply=inbox)
    await until(lambda: len(answers) == 3)
    assert sorted(message.data for message in answers) == [b"0", b"1", b"2"]
    for connection in connections:
        await connection.close()


async def test_close_ends_the_reconnecting_even_when_its_cancellation_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` of Python 3.11 loses it when an attempt fails at the same moment; brokers hung then."""
    attempted = asyncio.Event()

    async def connect(*_: object) -> None:
        attempted.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionRefusedError from None

    with EmbeddedNatsServer(store_dir=tmp_path) as server:
        connection = await NatsConnection.connect(server.url)
        monkeypatch.setattr(nats_py._TcpTransport, "connect", connect)
    await attempted.wait()
    reconnecting = connection._client._reconnection_task
    assert reconnecting is not None
    await connection.close()
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({reconnecting})


LEFT_UNCLOSED = """
import asyncio, sys
from pathlib import Path

import tidelog
from tidelog.nats import nats_py
from tidelog.nats.nats_server import EmbeddedNatsServer


class Noticed(nats_py._TcpTransport):
    attempted = None

    async def connect(self, *args):
        if Noticed.attempted is not None:
            Noticed.attempted.set()
        await super().connect(*args)


async def main(turns):
    server.start()
    Noticed.attempted = None
    clients = [await tidelog.connect(server.url) for _ in range(12)]
    server.kill()
    while any(client.is_connected for client in clients):
        await asyncio.sleep(0.01)
    Noticed.attempted = asyncio.Event()
    await Noticed.attempted.wait()
    for _ in range(turns):
        await asyncio.sleep(0)


nats_py._TcpTransport = Noticed
server = EmbeddedNatsServer(store_dir=Path(sys.argv[1]))
for turns in range(8):
    asyncio.run(main(turns))
    print("ended", flush=True)
"""


def test_a_program_that_leaves_clients_unclosed_ends_while_nats_is_gone(tmp_path: Path) -> None:
    """`asyncio.run` cancels each task once; on Python 3.11 an attempt to connect that fails meanwhile swallows that."""
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_UNCLOSED, str(tmp_path)],
        timeout=3 * LIMIT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == ["ended"] * 8
