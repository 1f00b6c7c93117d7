"""Closing: once, whoever is cancelled meanwhile, and everything, whatever raises."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

_log = logging.getLogger(__name__)


class Closing:
    """Carries `close` out once, in a task of its own. Calls that are cancelled no longer wait for it, and it goes on; a
    later call waits for it as well, and returns at once when it is over."""

    def __init__(self, what: str, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`what`: for the log."""
        self._what = what
        self._close = close
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done() and not self._task.cancelled()

    async def run(self) -> None:
        """Raises what `close` raises, where it was not over before."""
        if self.is_over:
            return
        if self._task is None or self._task.cancelled():  # as when the event loop ends
            self._task = asyncio.create_task(self._close())
            self._task.add_done_callback(self._on_done)
        self._waiting += 1
        try:
            await asyncio.shield(self._task)
        finally:
            self._waiting -= 1

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self._waiting:
            _log.warning("%s was closed, with an error that no call waits for: %r", self._what, error)


async def close_all(closers: Iterable[Callable[[], Awaitable[object] | None]]) -> None:
    """Calls one after the other, and raises the first error when all are done."""
    failure: BaseException | None = None
    for close in closers:
        try:
            closing = close()
            if inspect.isawaitable(closing):
                await closing
        except BaseException as error:  # noqa: BLE001 - it is raised when all are closed
            failure = failure or error
    if failure is not None:
        raise failure
