"""The share of the loop's time that requests get, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tidelog.nats.pace import ANSWER_BYTES_PER_S, BURST_S, REST, Pace


class Clock:
    """`sleep` in the test's event loop moves it, as all that passes time there does. The loops of other threads, which
    clients of earlier tests may have, sleep as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.slept = 0.0
        self._loop = asyncio.get_running_loop()
        self._sleep = asyncio.sleep
        monkeypatch.setattr("asyncio.sleep", self.sleep)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if asyncio.get_running_loop() is not self._loop:
            return await self._sleep(seconds)
        self.now += seconds
        self.slept += seconds
        return await self._sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_a_request_that_comes_alone_does_not_wait(clock: Clock) -> None:
    pace = Pace(clock, clock)
    for _ in range(10):
        async with pace.turn():
            clock.now += BURST_S / REST
            pace.worked(BURST_S / REST)
        clock.now += BURST_S
    assert clock.slept == 0


async def test_everything_else_has_its_turn_for_so_many_times_as_long(clock: Clock) -> None:
    pace, began = Pace(clock, clock), clock.now
    for _ in range(100):
        async with pace.turn():
            clock.now += 0.01
            pace.worked(0.01)
    worked = 100 * 0.01
    assert clock.now - began == pytest.approx(worked * (1 + REST), rel=0.02)


async def test_a_process_that_stood_still_meanwhile_does_not_rest_for_that(clock: Clock) -> None:
    ran = 0.0
    pace = Pace(clock, lambda: ran)

    async def work() -> str:
        nonlocal ran
        ran += 0.1
        clock.now += 60
        return "done"

    assert await _awaited(pace, work()) == "done"
    async with pace.turn():
        pass
    assert clock.slept == pytest.approx(REST * 0.1 - BURST_S)


async def test_bytes_of_answers_count_as_time(clock: Clock) -> None:
    pace = Pace(clock, clock)
    for _ in range(11):
        async with pace.turn():
            pace.sent(ANSWER_BYTES_PER_S)
    assert clock.slept == pytest.approx(10, abs=0.1)


async def test_the_steps_of_a_work_are_counted_and_what_it_waits_for_is_not(clock: Clock) -> None:
    pace = Pace(clock, clock)

    async def work() -> str:
        clock.now += 0.1
        await clock.sleep(0)
        clock.now += 0.2
        return "done"

    async def meanwhile() -> None:
        clock.now += 50.0

    task = asyncio.ensure_future(_awaited(pace, work()))
    other = asyncio.ensure_future(meanwhile())
    assert await task == "done"
    await other
    ended = clock.now
    async with pace.turn():
        pass
    assert clock.now - ended == pytest.approx(REST * 0.2 - BURST_S), "the rest after the first step is over long ago"


async def _awaited(pace: Pace, work: Awaitable[str]) -> str:
    return await pace.timed(work)


async def test_a_work_that_is_cancelled_or_fails_is_told(clock: Clock) -> None:
    pace = Pace(clock, clock)
    ends: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def fails() -> None:
        await clock.sleep(0)
        raise ValueError("no luck")

    async def run() -> None:
        await pace.timed(waits())

    task = asyncio.create_task(run())
    await clock.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]
    with pytest.raises(ValueError, match="no luck"):
        await pace.timed(fails())
