"""What all replicas are told comes in turns, in the order in which it changed, to each of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.broker import OF_REPLICA, ReplicaNews
from tests.views import KEY
from wire.turns import LOOKS

A_TURN = LOOKS // OF_REPLICA
REPLICAS = 10 * A_TURN


class Told:
    """Replicas that note what they are told, as (number, what)."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []
        replicas = {(key := replace(KEY, partition=number)): SimpleNamespace(key=key) for number in range(REPLICAS)}
        self.news = ReplicaNews(asyncio.get_running_loop(), cast(Any, replicas))

    def notify(self, what: str) -> None:
        self.news.notify(lambda replica: self.notes.append((replica.key.partition, what)))

    async def turns(self, most: int = 100) -> list[int]:
        """How many were told in each turn of the loop, until nothing comes any more."""
        found: list[int] = []
        while len(found) < most:
            before = len(self.notes)
            await asyncio.sleep(0)
            if len(self.notes) == before:
                break
            found.append(len(self.notes) - before)
        return found


async def test_very_many_replicas_are_told_in_turns() -> None:
    told = Told()
    told.notify("hangs")
    turns = await told.turns()
    assert max(turns) <= A_TURN
    assert told.notes == [(number, "hangs") for number in range(REPLICAS)]


async def test_each_hears_of_two_changes_in_their_order() -> None:
    """A follower whose append found no room would not ask for the records again if it heard of neither."""
    told = Told()
    told.notify("full")
    await told.turns(3)
    told.notify("room")
    await told.turns()
    assert [what for number, what in told.notes if number == REPLICAS - 1] == ["full", "room"]
    assert [what for number, what in told.notes if number == 0] == ["full", "room"]
    told.notify("full")
    await told.turns()
    assert len(told.notes) == 3 * REPLICAS


async def test_a_replica_that_meets_a_bug_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    def tell(replica: Any) -> None:
        if replica.key.partition == 1:
            raise ValueError("a bug")
        told.notes.append((replica.key.partition, "full"))

    told.news.notify(tell)
    await told.turns()
    assert len(told.notes) == REPLICAS - 1
    assert "s/1 met a bug" in caplog.text


async def test_a_broker_that_ends_tells_nothing_more() -> None:
    told = Told()
    told.notify("full")
    await told.turns(2)
    so_far = len(told.notes)
    told.news.close()
    await told.turns()
    assert len(told.notes) == so_far < REPLICAS
