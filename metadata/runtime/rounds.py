"""Questions that many ask at a time: one round of the work answers all requests that came before it began.

    asked          a, b          c, d, e              f
    rounds         |---- a, b ----|---- c, d, e ------|---- f ----

An answer is never older than its question. However many ask, one round of a question is under way and one waits, so
that a flood of requests that cost their sender nothing does not keep brokers from their work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Rounds:
    def __init__(self) -> None:
        self._begun: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        """Rounds that have not begun."""

    async def join(self, question: Hashable, work: Callable[[], Awaitable[_T]]) -> _T:
        """Returns or raises the result of a round of `work` that has not begun yet. Two works with one `question` do
        the same."""
        task: asyncio.Task[_T] | None = self._next.get(question)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._round(question, work, self._begun.get(question)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all that asked may have gone
            self._next[question] = task
        return await asyncio.shield(task)

    async def _round(
        self, question: Hashable, work: Callable[[], Awaitable[_T]], before: asyncio.Task[Any] | None
    ) -> _T:
        try:
            if before is not None:
                await asyncio.wait({before})
        finally:
            self._begun[question] = self._next.pop(question)
        try:
            return await work()
        finally:
            del self._begun[question]
