"""Work in turns: others run between two of them, and JSON that is encoded so is the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import finished
from wire.operations.json_codec import encode, encoding
from wire.turns import LOOKS, Steps, in_turns, pieces


def _work(steps: int, looks: int, seen: list[int]) -> Steps[str]:
    for number in range(steps):
        seen.append(number)
        yield looks
    return "done"


async def test_others_have_their_turn_after_so_many_looks() -> None:
    seen: list[int] = []
    work = asyncio.create_task(_awaited(seen, looks=LOOKS // 4))
    turns = []
    while not work.done():
        await asyncio.sleep(0)
        turns.append(len(seen))
    assert turns[:3] == [4, 8, 12]
    assert (work.result(), len(seen)) == ("done", 20)


async def _awaited(seen: list[int], looks: int) -> str:
    return await in_turns(_work(20, looks, seen))


async def test_little_work_is_one_turn() -> None:
    seen: list[int] = []
    work = asyncio.create_task(_awaited(seen, looks=LOOKS // 40))
    await asyncio.sleep(0)
    assert len(seen) == 20
    assert await work == "done"


async def test_what_the_work_raises_is_raised() -> None:
    def fails() -> Steps[None]:
        yield LOOKS
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_turns(fails())


async def test_work_that_is_cancelled_ends() -> None:
    seen: list[int] = []
    work = asyncio.create_task(_awaited(seen, looks=LOOKS))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(seen) == 1


def test_pieces_hold_all_items_in_their_order() -> None:
    assert [*pieces(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [*pieces([], 2)] == []


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=100) | st.dictionaries(st.text(max_size=4), inner, max_size=100),
    max_leaves=300,
)


@given(_json)
def test_json_that_is_encoded_in_turns_is_the_same(value: Any) -> None:
    assert finished(encoding(value)) == encode(value)
    by_number = {0: [*range(1000)], 1: value}
    assert finished(encoding(by_number)) == encode(by_number)


@pytest.mark.parametrize(
    "value",
    [
        {"streams": [{"name": f"s{n}", "config": {f"k{k}": k for k in range(70)}} for n in range(200)], "left": 1},
        {"bytes": {str(n): n for n in range(5000)}, 'é"': ["\n"] * 100, "none": {}, "nothing": []},
        [[n] * 65 if n % 3 else n for n in range(300)],
        [],
        {},
    ],
)
def test_large_json_is_encoded_in_many_steps(value: Any) -> None:
    steps = [*encoding(value)]
    assert finished(encoding(value)) == json.dumps(value).encode()
    assert len(steps) > len(value) // 70
    assert max(steps) < 200
