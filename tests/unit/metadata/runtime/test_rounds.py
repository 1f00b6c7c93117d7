"""Questions that many ask at a time."""

from __future__ import annotations

import asyncio

import pytest

from metadata.runtime.rounds import Rounds


class Work:
    """`begun`: rounds; each returns its number when it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Semaphore(0)

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go.acquire()
        return number


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_round_answers_all_that_asked_before_it_began_and_no_other() -> None:
    rounds, work = Rounds(), Work()
    first = [asyncio.create_task(rounds.join("q", work)) for _ in range(100)]
    await turns()
    later = [asyncio.create_task(rounds.join("q", work)) for _ in range(100)]
    await turns()
    assert work.begun == 1
    work.go.release()
    assert await asyncio.gather(*first) == [1] * 100
    await turns()
    assert work.begun == 2
    last = asyncio.create_task(rounds.join("q", work))
    await turns()
    work.go.release()
    work.go.release()
    assert await asyncio.gather(*later) == [2] * 100
    assert await last == 3


async def test_other_questions_do_not_wait() -> None:
    rounds, work, other = Rounds(), Work(), Work()
    waiting = asyncio.create_task(rounds.join("q", work))
    other.go.release()
    assert await rounds.join("other", other) == 1
    work.go.release()
    assert await waiting == 1
    assert not rounds._begun
    assert not rounds._next


async def test_all_that_share_a_round_get_its_error_and_the_next_round_is_another() -> None:
    rounds = Rounds()
    answers: list[int | Exception] = [ValueError("first"), 2]

    async def work() -> int:
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    both = await asyncio.gather(rounds.join("q", work), rounds.join("q", work), return_exceptions=True)
    assert [str(each) for each in both] == ["first", "first"]
    assert await rounds.join("q", work) == 2


async def test_one_that_gives_up_takes_nothing_from_the_others() -> None:
    rounds, work = Rounds(), Work()
    one, other = (asyncio.create_task(rounds.join("q", work)) for _ in range(2))
    await turns()
    one.cancel()
    with pytest.raises(asyncio.CancelledError):
        await one
    work.go.release()
    assert await other == 1
