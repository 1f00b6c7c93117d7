"""Requests that wait for one endpoint of a service; equal requests share the work.

    asked          a a     a b a a           c
    waiting        (a)     (a, 3 times) (b)  ...     a question, with the reply subjects of all that ask it
    in work              |---- a ----|---- a ----|
                                     |-- b --|

A question that is in work is not begun again before it has ended: one round of it is under way and one waits, however
many ask. So an answer is never older than its request. The next question begins when the pace allows it.

Bounded by WAITING_REQUESTS; `at_once` questions are in work. `add` refuses further ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from tidelog.nats.pace import Pace
from wire.budget import Bound, Budget
from wire.messaging.transport import Message

MAX_WAITING_ALIKE: Final = 512
"""Limit of the waiting requests with one question. A flood of a question with a large answer, which takes seconds to
send to all senders, leaves room for others."""
MAX_QUESTIONS_IN_WORK: Final = 4
"""Questions of one endpoint in work at once, where requests share answers."""
WAITING_REQUESTS: Final = Bound(
    on="requests to the API, and questions of `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, that wait",
    name="api_requests",
    per="an operation",
    items=1024,
    bytes=4 << 20,
    limit=f"those that read and ask the same, {MAX_WAITING_ALIKE} at most, wait for one answer, and"
    f" {MAX_QUESTIONS_IN_WORK} different ones of an operation are in work",
    answer="BACKPRESSURE",
    counter="dropped_api_requests",
)
"""Bytes of the questions; a single one may be larger."""


@dataclass(slots=True)
class Asked:
    """One question of one or more requests."""

    question: Hashable
    first: Message
    requests: int = 0
    replies: list[bytes] = field(default_factory=list)
    """The reply subjects of the requests that want an answer."""


def _size(message: Message) -> int:
    return min(len(message.data), WAITING_REQUESTS.bytes)


class RequestQueue:
    """The queue of one endpoint. `question(message)`: equal for equal requests. `work` must not raise."""

    def __init__(
        self,
        pace: Pace,
        question: Callable[[Message], Hashable],
        work: Callable[[Asked], Awaitable[None]],
        *,
        at_once: int,
    ) -> None:
        self._pace = pace
        self._question = question
        self._work = work
        self._at_once = at_once
        self._waiting: dict[Hashable, Asked] = {}
        self._room = Budget(WAITING_REQUESTS, "the endpoint")
        self._in_work: dict[Hashable, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """The work of a question has ended, or a question has come: another one may begin."""
        self._begins: asyncio.Task[None] | None = None
        """The task that begins waiting questions; None while none waits."""

    def add(self, message: Message) -> bool:
        """Returns False when the queue is full: then the message is not even decoded."""
        if self._room.full():
            return False
        question = self._question(message)
        asked = self._waiting.get(question)
        if asked is not None and asked.requests >= MAX_WAITING_ALIKE:
            return False
        size = _size(message) if asked is None else 0
        if self._room.full(size):
            return False
        self._room.take(size)
        if asked is None:
            asked = self._waiting[question] = Asked(question, message)
            self._changed.set()
        asked.requests += 1
        if message.reply is not None:
            asked.replies.append(message.reply.encode())
        if self._begins is None:
            self._begins = asyncio.get_running_loop().create_task(self._begin())
        return True

    async def close(self) -> None:
        """Waiting questions are not begun; those in work are cancelled."""
        tasks = [*self._in_work.values(), *([self._begins] if self._begins is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> None:
        try:
            while self._waiting:
                asked = self._next()
                if asked is None:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                async with self._pace.turn():
                    del self._waiting[asked.question]
                    self._room.release(_size(asked.first), asked.requests)
                    task = asyncio.get_running_loop().create_task(self._carry_out(asked))
                    self._in_work[asked.question] = task
                    await asyncio.sleep(0)  # its first step is counted before the next turn
        finally:
            self._begins = None

    def _next(self) -> Asked | None:
        """Returns the first question that may begin; None: none may."""
        if len(self._in_work) >= self._at_once:
            return None
        return next((asked for question, asked in self._waiting.items() if question not in self._in_work), None)

    async def _carry_out(self, asked: Asked) -> None:
        try:
            await self._pace.timed(self._work(asked))
        finally:
            del self._in_work[asked.question]
            self._changed.set()
