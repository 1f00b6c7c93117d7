"""What consumers are sent in one turn of the event loop."""

from __future__ import annotations

import asyncio

from dataplane.broker.reading.readable_role import ANSWER_COST, MAX_SERVED_BYTES, ServingTurn


async def test_a_turn_is_over_when_enough_was_sent_and_the_next_one_begins_anew() -> None:
    serving = ServingTurn(asyncio.get_running_loop())
    told = []
    for size in (MAX_SERVED_BYTES - ANSWER_COST - 1, 0):
        serving.spend(size)
        told.append(serving.is_over)
    await asyncio.sleep(0)
    told.append(serving.is_over)
    serving.spend(MAX_SERVED_BYTES)
    told.append(serving.is_over)
    await asyncio.sleep(0)
    told.append(serving.is_over)
    assert told == [False, True, False, True, False]


async def test_small_answers_count() -> None:
    serving = ServingTurn(asyncio.get_running_loop())
    for _ in range(MAX_SERVED_BYTES // ANSWER_COST - 1):
        serving.spend(0)
    before = serving.is_over
    serving.spend(0)
    assert (before, serving.is_over) == (False, True)
