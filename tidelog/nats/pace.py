"""The share of the event loop's time that requests of clients get.

A request costs its sender nothing, and a loop that does nothing but answer sends no Raft heartbeat and acknowledges no
record. So the work for requests is counted, in CPU time and in bytes of the answers, and the next piece of it waits
until everything else has had REST times as long:

    pieces of work     ##    ##      ####            ##
    everything else      ------------    ------------  ------

A rest of up to BURST_S is put off, so that a request that comes alone never waits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from time import thread_time
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

REST = 3.0
"""Everything else gets at least so many times the time of requests."""
BURST_S = 0.005
"""A rest up to this long is put off."""
ANSWER_BYTES_PER_S = 64 << 20
"""Larger answers a second wait, whatever their CPU time: they fill the buffer through which acknowledgements leave."""


class Pace:
    """Turns for the work on requests. `time()`: the loop's clock, in seconds. `work_time()`: seconds that this thread
    has run. A process that stands still, or waits on a busy machine, does no work for requests meanwhile."""

    def __init__(self, time: Callable[[], float], work_time: Callable[[], float] = thread_time) -> None:
        self.time = time
        self.work_time = work_time
        self._rested_at = -math.inf
        """When everything else will have had its time."""
        self._turns = asyncio.Lock()
        """First come, first served, so that none of several queues waits for ever."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Begins when a piece of work may; the next turn begins after this one."""
        async with self._turns:
            while (wait := self._rested_at - BURST_S - self.time()) > 0:  # noqa: ASYNC110 - work that goes on moves it
                await asyncio.sleep(wait)
            yield

    def worked(self, seconds: float) -> None:
        """Counts work that took `seconds` until now."""
        self._rested_at = max(self._rested_at, self.time() - seconds) + (1 + REST) * seconds

    def sent(self, size: int) -> None:
        """`size`: bytes of answers."""
        self._rested_at = max(self._rested_at, self.time()) + size / ANSWER_BYTES_PER_S

    def timed(self, work: Awaitable[_T]) -> Awaitable[_T]:
        """Returns an awaitable of `work` that counts the time of its steps, not of its waits or of tasks it starts."""
        return _Timed(work, self)


class _Timed(Generic[_T]):
    def __init__(self, work: Awaitable[_T], pace: Pace) -> None:
        self._work = work
        self._pace = pace

    def __await__(self) -> Generator[Any, Any, _T]:
        steps = self._work.__await__()
        step: Callable[[Any], Any] = steps.send
        given: Any = None
        while True:
            began = self._pace.work_time()
            try:
                waits_for = step(given)
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                self._pace.worked(self._pace.work_time() - began)
            try:
                given = yield waits_for
                step = steps.send
            except BaseException as error:  # noqa: BLE001 - passed on to the work, as the loop passed it on
                given, step = error, steps.throw
