"""The question which NATS services listen where: anybody may answer it, with anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from metadata.runtime import foreign_subjects
from metadata.runtime.foreign_subjects import (
    MAX_ANSWER_BYTES,
    MAX_ANSWERS,
    MAX_BYTES_OF_ALL,
    MAX_ENDPOINTS,
    MORE_WAIT_S,
    SERVICES,
    SERVICES_WAIT_S,
    check_subject_unserved,
)
from metadata.runtime.rounds import Rounds
from tests.fake_nats import FakeTransport
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message

SERVED = "prices.get"


class Question:
    """A question that is being asked: `answer` answers it."""

    def __init__(self, subject: str = SERVED) -> None:
        self.transport = FakeTransport()
        self.rounds = Rounds()
        self.task = self.ask(subject)

    def ask(self, subject: str) -> asyncio.Task[None]:
        return asyncio.create_task(check_subject_unserved(self.rounds, self.transport, subject))

    async def begun(self) -> Question:
        async with asyncio.timeout(30):
            while not self.transport.inboxes:  # noqa: ASYNC110 - the condition is another task's state
                await asyncio.sleep(0)
        return self

    def answer(self, *endpoints: str, name: str = "prices", fill: int = 0) -> None:
        body: dict[str, Any] = {"name": name, "endpoints": [{"subject": subject} for subject in endpoints]}
        self.say(json.dumps(body | {"fill": "." * fill}).encode())

    def say(self, data: bytes, status: int | None = None) -> None:
        (inbox,) = self.transport.inboxes
        self.transport.inboxes[inbox](Message(inbox, data, status=status))

    async def is_taken(self) -> bool:
        (error,) = await asyncio.gather(self.task, return_exceptions=True)
        return isinstance(error, TidelogError) and error.code is Code.SUBJECT_TAKEN


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is waited for, however slow the machine is."""
    monkeypatch.setattr(foreign_subjects, "SERVICES_WAIT_S", 30.0)


@pytest.mark.usefixtures("patient")
async def test_a_subject_that_a_service_serves_is_refused() -> None:
    question = await Question().begun()
    question.answer("other", "prices.*", name="p" * 1000)
    with pytest.raises(TidelogError, match=r"the NATS service 'p{80}' serves 'prices\.\*'") as refused:
        await question.task
    assert refused.value.code is Code.SUBJECT_TAKEN
    assert not question.transport.inboxes, "later answers are not read"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("before", "is_read"), [(MAX_ANSWERS - 1, True), (MAX_ANSWERS, False)])
async def test_so_many_answers_are_read(before: int, is_read: bool) -> None:
    question = await Question().begun()
    for _ in range(before):
        question.say(b"{}")
    question.answer(SERVED)
    assert await question.is_taken() == is_read


def _fill(size: int) -> int:
    """So that the answer has `size` bytes."""
    return size - len(json.dumps({"name": "prices", "endpoints": [{"subject": SERVED}], "fill": ""}))


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("size", "is_read"), [(MAX_ANSWER_BYTES, True), (MAX_ANSWER_BYTES + 1, False)])
async def test_an_answer_may_have_so_many_bytes(size: int, is_read: bool) -> None:
    question = await Question().begun()
    question.answer(SERVED, fill=_fill(size))
    assert await question.is_taken() == is_read


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("left", "is_read"), [(1000, True), (999, False)])
async def test_all_answers_together_may_have_so_many_bytes(left: int, is_read: bool) -> None:
    question = await Question().begun()
    pieces, rest = divmod(MAX_BYTES_OF_ALL - left, MAX_ANSWER_BYTES)
    for size in (*[MAX_ANSWER_BYTES] * pieces, rest):
        question.say(b"{}" + b" " * (size - 2))
    question.answer(SERVED, fill=_fill(1000))
    assert await question.is_taken() == is_read


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("before", "is_kept"), [(MAX_ENDPOINTS - 1, True), (MAX_ENDPOINTS, False)])
async def test_so_many_endpoints_are_kept(before: int, is_kept: bool) -> None:
    question = await Question().begun()
    for first in range(0, before, 500):
        question.answer(*(f"e{number}" for number in range(first, min(before, first + 500))))
    question.answer("e0", SERVED)
    assert await question.is_taken() == is_kept


async def test_without_an_answer_the_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    timeout, loop = asyncio.timeout, asyncio.get_running_loop()

    def noted(seconds: float | None) -> asyncio.Timeout:
        if asyncio.get_running_loop() is loop:  # other threads may have loops of earlier tests
            waited.append(seconds)
        return timeout(seconds)

    monkeypatch.setattr("asyncio.timeout", noted)
    question = Question()
    await question.task
    assert waited == [SERVICES_WAIT_S]


@pytest.mark.usefixtures("patient")
async def test_after_the_first_answer_others_have_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    question = await Question().begun()
    waited: list[float] = []
    sleep, loop = asyncio.sleep, asyncio.get_running_loop()

    async def noted(seconds: float) -> None:
        if asyncio.get_running_loop() is not loop:  # another thread may have one of an earlier test
            return await sleep(seconds)
        waited.append(seconds)
        question.answer(SERVED)
        return await sleep(0)

    monkeypatch.setattr("asyncio.sleep", noted)
    question.answer("other")
    assert await question.is_taken()
    assert waited == [MORE_WAIT_S]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 50_000,
        b"3",
        b'{"name": 3, "endpoints": []}',
        b'{"name": "p", "endpoints": [3, {"subject": 4}]}',
    ],
)
async def test_an_answer_that_is_none_counts_for_nothing(data: bytes) -> None:
    question = await Question().begun()
    question.say(data)
    assert not await question.is_taken()


async def test_nobody_answers_where_nats_says_so() -> None:
    question = await Question().begun()
    question.say(b'{"name": "prices", "endpoints": [{"subject": "prices.get"}]}', status=NO_RESPONDERS)
    assert not await question.is_taken()


@pytest.mark.usefixtures("patient")
async def test_streams_that_are_created_at_a_time_share_a_question() -> None:
    question = Question()
    others = [question.ask(f"s{number}") for number in range(100)]
    taken = question.ask(SERVED)
    await question.begun()
    question.answer(SERVED)
    assert await question.is_taken()
    await asyncio.gather(*others)
    with pytest.raises(TidelogError, match="answered twice"):
        await taken
    assert [subject for subject, *_ in question.transport.sent] == [SERVICES]
