"""Deliveries of a coordinator: sent until they are confirmed, side by side, and one that is not answered holds up
nothing else."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import pytest

from tests.fake_nats import FakeTransport, Hub, delivered
from tidelog.server.coordinators.driver import deliveries as module
from tidelog.server.coordinators.driver.deliveries import Deliveries
from tidelog.server.coordinators.shard import Delivery
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.subjects import Subjects
from wire.types import Buffer


class Note(NamedTuple):
    to: str
    text: str

    def subject(self, subjects: Subjects) -> str:
        return f"{subjects.namespace}.{self.to}"

    def payload(self) -> bytes:
        return self.text.encode()


class Peers(FakeTransport):
    """Requests wait until the test answers them."""

    def __init__(self) -> None:
        super().__init__(Hub())
        self.under_way: list[tuple[str, str, asyncio.Future[Message]]] = []

    async def request(self, subject: str, payload: Buffer, *, timeout: float, **_: object) -> Message:
        assert timeout > 0
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        entry = (subject.removeprefix("tidelog."), bytes(payload).decode(), answer)
        self.under_way.append(entry)
        try:
            return await answer
        finally:
            self.under_way.remove(entry)

    @property
    def asked(self) -> list[str]:
        return [f"{to} {text}" for to, text, _ in self.under_way]

    async def reply(self, what: str = "", *, error: Exception | None = None, message: Message | None = None) -> None:
        """Those whose place or text begins so."""
        for to, text, future in [*self.under_way]:
            if f"{to} {text}".startswith(what) and not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(message or Message("inbox", b""))
        await delivered()


class Scene:
    def __init__(self) -> None:
        self.peers = Peers()
        self.awaited: set[Delivery] = set()
        self.confirmed: list[Delivery] = []
        self.later = 0.0
        self.deliveries = Deliveries(
            "coordinator", self.peers, Subjects(), lambda: self.later, self.awaited.__contains__, self._on_delivered
        )

    def _on_delivered(self, delivery: Delivery) -> None:
        self.awaited.remove(delivery)
        self.confirmed.append(delivery)

    async def add(self, *notes: Note) -> None:
        self.awaited.update(notes)
        self.deliveries.add(notes)
        await delivered()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


async def test_what_is_confirmed_is_told_once() -> None:
    scene = Scene()
    notes = [Note("a", "1"), Note("b", "2")]
    await scene.add(*notes)
    assert scene.peers.asked == ["a 1", "b 2"]
    await scene.peers.reply()
    assert scene.confirmed == notes
    assert not scene.peers.under_way


@pytest.mark.parametrize(
    "failure",
    [
        {"error": TimeoutError()},
        {"error": TidelogError(Code.MESSAGE_TOO_LARGE, "no")},
        {"message": Message("inbox", b"", status=NO_RESPONDERS)},
        {"message": Message("inbox", b"", None, TidelogError(Code.NOT_ENOUGH_REPLICAS, "no").to_headers())},
    ],
    ids=str,
)
async def test_what_is_not_confirmed_is_sent_again(failure: dict[str, object]) -> None:
    scene = Scene()
    await scene.add(Note("a", "1"))
    for _ in range(3):
        await scene.peers.reply(**failure)  # type: ignore[arg-type] # one of its parameters
        assert scene.peers.asked == ["a 1"]
        assert not scene.confirmed
    await scene.peers.reply()
    assert scene.confirmed == [Note("a", "1")]


async def test_what_is_awaited_no_more_is_not_sent_again() -> None:
    scene = Scene()
    await scene.add(Note("a", "1"), Note("b", "2"))
    scene.awaited.clear()
    await scene.peers.reply("a", error=TimeoutError())
    await scene.peers.reply("b")
    assert not scene.peers.under_way
    assert not scene.confirmed


async def test_a_place_that_does_not_answer_has_one_request_under_way_and_the_others_go_on() -> None:
    scene = Scene()
    slow = [Note("slow", str(number)) for number in range(10)]
    await scene.add(slow[0])
    await scene.peers.reply("slow", error=TimeoutError())
    await scene.add(*slow[1:], Note("b", "x"))
    assert scene.peers.asked == ["slow 0", "b x"]
    await scene.peers.reply("b")
    assert scene.confirmed == [Note("b", "x")]
    await scene.peers.reply("slow", error=TimeoutError())
    assert scene.peers.asked == ["slow 1"], "the one that failed goes behind the others"
    await scene.peers.reply("slow")
    assert sorted(scene.peers.asked) == [f"slow {number}" for number in (0, *range(2, 10))]
    await scene.peers.reply()
    assert {*scene.confirmed} == {*slow, Note("b", "x")}


async def test_as_many_are_under_way_as_may_be_and_places_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_ALL", 4)
    monkeypatch.setattr(module, "MOST_OF_LANE", 3)
    scene = Scene()
    notes = [Note(place, str(number)) for place in "ab" for number in range(5)]
    await scene.add(*notes[:5])
    assert scene.peers.asked == ["a 0", "a 1", "a 2"]
    await scene.add(*notes[5:])
    assert scene.peers.asked[3:] == ["b 0"]
    await scene.peers.reply("a 0")
    assert len(scene.peers.asked) == 4
    for _ in range(10):
        await scene.peers.reply()
    assert {*scene.confirmed} == {*notes}
    assert len(scene.confirmed) == len(notes)


async def test_many_places_that_do_not_answer_leave_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_ALL", 6)
    monkeypatch.setattr(module, "MOST_OF_FAILING", 2)
    scene = Scene()
    silent = [Note(f"silent {number}", "x") for number in range(9)]
    await scene.add(*silent)
    for _ in range(2):
        await scene.peers.reply("silent", error=TimeoutError())
    await scene.peers.reply("silent", error=TimeoutError())
    assert len(scene.peers.asked) == 2, "they have all failed"
    await scene.add(*(Note(f"good {number}", "x") for number in range(5)))
    assert sum(asked.startswith("good") for asked in scene.peers.asked) == 4
    await scene.peers.reply("good")
    await scene.peers.reply("good")
    assert len(scene.confirmed) == 5
    for _ in range(9):
        await scene.peers.reply("silent")
    assert len(scene.confirmed) == 14


async def test_given_up_is_given_up() -> None:
    scene = Scene()
    await scene.add(Note("a", "1"), Note("b", "2"))
    await scene.peers.reply("b", error=TimeoutError())
    scene.deliveries.clear()
    await delivered()
    assert not scene.peers.under_way
    await scene.add(Note("c", "3"))
    await scene.peers.reply()
    assert scene.confirmed == [Note("c", "3")]


async def test_a_place_that_answers_nothing_for_long_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    await scene.add(Note("a", "1"))
    await scene.peers.reply(error=TimeoutError())
    assert not caplog.records
    scene.later += module.COMPLAIN_S
    for _ in range(3):
        await scene.peers.reply(error=TimeoutError())
    (line,) = caplog.records
    assert "tidelog.a has confirmed nothing for 10 s, and 1 transactions wait for it: no answer" in line.getMessage()
    await scene.peers.reply()
    assert caplog.records[1].getMessage().endswith("tidelog.a answers again")
    assert {each.levelno for each in caplog.records} == {logging.WARNING}
