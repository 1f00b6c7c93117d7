from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dataplane.broker.leading import waiting_answers
from dataplane.broker.leading.waiting_answers import WaitingAnswers
from wire.budget import Bound
from wire.errors import Code, TidelogError

TAKEN = TidelogError(Code.INCORRECT_OFFSET, "another record is there")


class Refusals:
    """A leader without a lease until `is_proved`, and what it has answered."""

    def __init__(self) -> None:
        self.is_proved = False
        self.now = 0.0
        self.answered: list[tuple[bytes, Code]] = []
        self.looks: list[Any] = []
        context = SimpleNamespace(
            now=lambda: self.now,
            metadata=SimpleNamespace(led_at=lambda _: self.is_proved),
            loop=SimpleNamespace(call_later=lambda _, look: self.looks.append(look)),
        )
        view = SimpleNamespace(key="s/0", config=SimpleNamespace(confirm_timeout_ms=1000))
        told = SimpleNamespace(bare_error=self.tell)
        role: Any = SimpleNamespace(context=context, view=view, answers=told, ended=False)
        appending: Any = SimpleNamespace(refuse=self.tell)
        core: Any = None
        self.waiting = WaitingAnswers(role, core, appending)

    def tell(self, replies: list[bytes], error: TidelogError) -> None:
        self.answered += [(reply, error.code) for reply in replies]

    def look(self) -> None:
        looks, self.looks = self.looks, []
        for look in looks:
            look()


def test_refusals_that_wait_for_a_proof_are_bounded_and_make_room_when_they_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        waiting_answers, "WAITING_ANSWERS", Bound(on="answers that wait", name="waiting_answers", items=2)
    )
    refusals = Refusals()
    for round_ in range(2):
        for reply in (b"1", b"2", b"3"):
            refusals.waiting._prove(reply, TAKEN)
        assert refusals.answered == [(b"3", Code.BACKPRESSURE)]
        if round_:
            refusals.now += 1.0
        else:
            refusals.is_proved = True
        refusals.look()
        assert refusals.answered[1:] == [(b"1", TAKEN.code), (b"2", TAKEN.code)]
        refusals.answered.clear()
        refusals.is_proved = False
    assert refusals.waiting._proving.items == 0
