"""A micro service whose requests are many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.fake_nats import FakeTransport
from tidelog.nats.micro import ERROR_CODE_HEADER, MAX_BURST_BYTES, MAX_IN_WORK, Answer, Endpoint, Service
from tidelog.nats.request_queue import MAX_WAITING_ALIKE
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.types import Buffer

VERBS = ("PING", "INFO", "STATS")


class Started:
    """A service with a shared endpoint `ask` and one with answers of their own, `take`."""

    def __init__(self, body: bytes = b"answer") -> None:
        self.transport = FakeTransport()
        self.transport.max_payload = 8 << 20
        self.calls = 0
        self.go = asyncio.Event()
        self.go.set()
        self.refused = 0
        self._body = body
        endpoints = {"ask": Endpoint(self._serve, lambda message: message.data), "take": Endpoint(self._serve)}
        self.service = Service(
            self.transport, "many", "1.0.0", "", endpoints, self._on_refused, headers=lambda: {"Whose": "own"}
        )

    async def _serve(self, message: Message) -> Answer:
        self.calls += 1
        await self.go.wait()
        return self._body, {"Kind": "answer"}

    def _on_refused(self) -> None:
        self.refused += 1

    def ask(self, subject: str, reply: str | None, data: bytes = b"") -> None:
        self.transport.subscribed[subject](Message(subject, data, reply))

    @property
    def sent(self) -> list[tuple[str, bytes, Any]]:
        return self.transport.sent


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the condition is the service's state
            await asyncio.sleep(0.001)


async def started(body: bytes = b"answer") -> Started:
    made = Started(body)
    await made.service.start()
    return made


async def test_requests_that_ask_the_same_share_an_answer_and_each_gets_it() -> None:
    many = await started()
    for number in range(500):
        many.ask("ask", f"_INBOX.{number}")
    await until(lambda: len(many.sent) == 500)
    assert many.calls == 1
    assert [reply for reply, *_ in many.sent] == [f"_INBOX.{number}" for number in range(500)]
    assert {body for _, body, _ in many.sent} == {b"answer"}
    many.ask("$SRV.STATS", "_INBOX.stats")
    await until(lambda: len(many.sent) == 501)  # the pace may have it wait for some milliseconds
    (stats,) = (e for e in json.loads(many.sent[-1][1])["endpoints"] if e["subject"] == "ask")
    assert stats["num_requests"] == 500
    await many.service.stop()


async def test_requests_with_answers_of_their_own_share_none_and_so_many_are_in_work() -> None:
    many = await started()
    many.go.clear()
    for number in range(MAX_IN_WORK):
        many.ask("take", f"_INBOX.{number}")
    await until(lambda: many.calls == MAX_IN_WORK)
    for number in range(10):
        many.ask("take", f"_INBOX.late.{number}")
    await turns()
    assert many.calls == MAX_IN_WORK
    many.go.set()
    await until(lambda: len(many.sent) == MAX_IN_WORK + 10)
    assert many.calls == MAX_IN_WORK + 10
    await many.service.stop()


async def test_a_request_that_finds_the_queue_full_is_refused_and_counted() -> None:
    many = await started()
    many.go.clear()
    for number in range(MAX_WAITING_ALIKE + 3):
        many.ask("ask", f"_INBOX.{number}")
    many.ask("ask", None)
    await turns()
    assert many.refused == 4
    assert [reply for reply, *_ in many.sent] == [f"_INBOX.{MAX_WAITING_ALIKE + number}" for number in range(3)]
    assert many.transport.bursts == 1, "refusals leave together"
    _, body, headers = many.sent[0]
    error = TidelogError.from_headers(headers)
    assert error is not None
    assert (error.code, error.detail(LIMIT), error.detail(RETRY_AFTER_MS)) == (Code.BACKPRESSURE, "api_requests", 100)
    assert headers[ERROR_CODE_HEADER] == "503"
    assert headers["Whose"] == "own"
    assert json.loads(body)["error"]["code"] == "BACKPRESSURE"
    many.ask("take", "_INBOX.other")
    many.go.set()
    await until(lambda: ("_INBOX.other", b"answer", {"Kind": "answer"}) in many.sent)
    await until(lambda: len(many.sent) == 3 + MAX_WAITING_ALIKE + 1)
    await many.service.stop()


async def test_a_large_answer_to_many_leaves_in_pieces() -> None:
    many = await started(bytes(MAX_BURST_BYTES // 4 - 100))
    pieces: list[int] = []
    publish = many.transport.publish_to_each

    def publish_to_each(subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        pieces.append(len(subjects))
        return publish(subjects, payload, headers)

    many.transport.publish_to_each = publish_to_each  # type: ignore[method-assign]
    for number in range(10):
        many.ask("ask", f"_INBOX.{number}")
    await until(lambda: len(many.sent) == 10)
    assert pieces == [4, 4, 2]
    await many.service.stop()


async def test_the_questions_of_nats_share_answers_and_are_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    many = await started()
    described = 0
    dumps = json.dumps

    def counted(value: Any) -> str:
        nonlocal described
        described += 1
        return dumps(value)

    monkeypatch.setattr("json.dumps", counted)
    for verb in VERBS:
        before = len(many.sent)
        many.refused = described = 0
        for number in range(MAX_WAITING_ALIKE + 5):
            # What the question says makes no other question of it.
            many.ask(f"$SRV.{verb}", f"_INBOX.{number}", b"%d" % number)
        await until(lambda: len(many.sent) == before + MAX_WAITING_ALIKE + 5)  # noqa: B023 - awaited here
        assert many.refused == 5
        assert described == 2, "the answer, and the refusal"
        answers = {body for _, body, headers in many.sent[before:] if headers is None}
        assert len(answers) == 1
        assert json.loads(answers.pop())["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
    await many.service.stop()
