"""The question which JetStream streams capture a subject: JetStream answers it, or anybody, or nobody."""

from __future__ import annotations

import asyncio
import json

import pytest

from metadata.runtime import foreign_subjects
from metadata.runtime.foreign_subjects import JETSTREAM as QUESTION
from metadata.runtime.foreign_subjects import MAX_ANSWER_BYTES, check_subject_uncaptured
from metadata.runtime.rounds import Rounds
from tests.fake_nats import FakeTransport
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message


class Question:
    def __init__(self, partitions: int = 1) -> None:
        self.transport = FakeTransport()
        self.task = asyncio.create_task(check_subject_uncaptured(Rounds(), self.transport, "orders", partitions))

    async def answer(self, data: bytes, status: int | None = None) -> None:
        async with asyncio.timeout(30):
            while not self.transport.inboxes:  # noqa: ASYNC110 - the condition is another task's state
                await asyncio.sleep(0)
        (inbox,) = self.transport.inboxes
        self.transport.inboxes[inbox](Message(inbox, data, status=status))
        async with asyncio.timeout(30):
            while inbox in self.transport.inboxes:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def names(self, *streams: str) -> None:
        await self.answer(json.dumps({"total": len(streams), "streams": list(streams) or None}).encode())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_subjects, "JETSTREAM_WAIT_S", 30.0)


async def test_a_captured_subject_is_refused_with_the_remedies() -> None:
    question = Question()
    await question.names("ORDERS" * 100)
    with pytest.raises(
        TidelogError, match=r"stream '(ORDERS){13}OR' captures 'orders' too.*reply_acks=false"
    ) as refused:
        await question.task
    assert refused.value.code is Code.SUBJECT_TAKEN
    assert [(subject, body) for subject, body, _ in question.transport.sent] == [(QUESTION, b'{"subject": "orders"}')]


async def test_the_subjects_of_partitions_are_asked_for_too() -> None:
    question = Question(partitions=3)
    await question.names()
    await question.names("ALL")
    with pytest.raises(TidelogError, match=r"captures 'orders\.\*' too"):
        await question.task


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"streams": 3}',
        b'{"streams": [3]}',
        b'{"error": {}}',
        b"[" * 100_000,
        b'{"streams": ["A"]}' + b" " * MAX_ANSWER_BYTES,
    ],
)
async def test_any_other_answer_is_none(data: bytes) -> None:
    question = Question()
    await question.answer(data)
    await question.task


async def test_without_jetstream_there_is_nothing_to_wait_for() -> None:
    question = Question()
    await question.answer(b"", NO_RESPONDERS)
    await question.task


async def test_without_an_answer_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_subjects, "JETSTREAM_WAIT_S", 0.001)
    question = Question()
    await question.task
    assert not question.transport.inboxes
