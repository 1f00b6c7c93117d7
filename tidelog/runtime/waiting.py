"""Answers that are waited for over a connection, which fail when it is lost or closed, or when NATS refuses what was
asked."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from wire.messaging.violation import Violation

_T = TypeVar("_T")


class PendingAnswers:
    """Futures, each with a text that names the awaited answer."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Any], str] = {}
        self._asked: dict[asyncio.Future[Any], str] = {}
        """Subjects of the messages that are to be answered."""

    def new(self, what: str) -> asyncio.Future[Any]:
        """A future that `fail_all` fails."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = what
        return future

    def new_asked(self, subject: str) -> asyncio.Future[Any]:
        """As `new`, for the answer to a message to `subject`; `fail_not_permitted` fails it, too."""
        future = self.new(f"an answer on {subject!r}")
        self._asked[future] = subject
        return future

    def fail_not_permitted(self, refused: Violation) -> None:
        """Those that wait for an answer to a message which NATS has refused, or for one that cannot arrive."""
        for future, asked in tuple(self._asked.items()):
            if refused.ends(asked) and not future.done():
                future.set_exception(refused.error())
                future.exception()  # as in `fail_all`

    def fail_all(self, reason: str) -> None:
        for future, what in tuple(self._waiting.items()):
            if not future.done():
                future.set_exception(TimeoutError(f"waiting for {what}: {reason}"))
                future.exception()  # if its waiter was cancelled, asyncio would report an exception that was not read
        self._waiting.clear()
        self._asked.clear()

    async def get(self, future: asyncio.Future[_T], timeout: float) -> _T:
        """Wait for one of them, `timeout` seconds at most. Raises TimeoutError, which names the awaited answer."""

        def expire() -> None:
            if not future.done():
                what = self._waiting[future]
                future.set_exception(TimeoutError(f"waiting for {what}: none came within {timeout:g} s"))

        timer = asyncio.get_running_loop().call_later(timeout, expire)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(future, None)
            self._asked.pop(future, None)
