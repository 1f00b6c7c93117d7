"""Which requests come to a broker's handlers, by the subject on which they are sent and by the reply they name."""

from __future__ import annotations

import asyncio

import pytest

from metadata.runtime.foreign_subjects import SERVICES as QUESTION
from tests.fake_nats import FakeTransport, Hub
from tidelog.server.broker_connection import AnsweringTransport
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import Message
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()
CLIENTS = "_INBOX.abc.1"
BROKERS = "tidelog.inbox.b1.x.1"
STREAM = "orders"


@pytest.mark.parametrize("how", ["decoded", "raw"])
@pytest.mark.parametrize(
    ("subject", "answered", "counted"),
    [
        (SUBJECTS.presence(), CLIENTS, 2),
        (SUBJECTS.api("stream.list"), CLIENTS, 2),
        (SUBJECTS.cluster(), BROKERS, 2),
        (SUBJECTS.topology(), CLIENTS, 2),
        (SUBJECTS.topology("orders"), CLIENTS, 2),
        (SUBJECTS.adopt(BrokerId("b1")), CLIENTS, 2),
        (SUBJECTS.probe(BrokerId("b1")), BROKERS, 2),
        (SUBJECTS.controller(), BROKERS, 2),
        ("tidelog.orders.0.replicate", BROKERS, 2),
        (QUESTION, CLIENTS, 1),
    ],
)
async def test_a_request_comes_with_an_inbox_of_those_who_may_ask(
    how: str, subject: str, answered: str, counted: int
) -> None:
    hub = Hub()
    replies = ReplySubjects(SUBJECTS, lambda: [STREAM], lambda: 1)
    transport = AnsweringTransport(FakeTransport(hub), SUBJECTS, replies)
    heard: list[str | None] = []

    def on_message(message: Message) -> None:
        heard.append(message.reply)

    def on_raw(_: bytes, reply: bytes | None, __: bytes | None, ___: bytes) -> None:
        heard.append(None if reply is None else reply.decode())

    if how == "raw":
        await transport.subscribe_raw(subject, on_raw)
    else:
        await transport.subscribe(subject, on_message)
    sender = FakeTransport(hub)
    for reply in (CLIENTS, BROKERS, STREAM, None):
        sender.publish(subject, [b"x"], reply=reply)
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == [answered, None]
    assert replies.refused == counted, "brokers ask that question, too, and need no answer"
