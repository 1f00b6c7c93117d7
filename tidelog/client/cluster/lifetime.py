"""The lifetime of a client, producer or consumer: the event loop in which it was made, where its connection and futures
belong, and its closing: once, whoever is cancelled meanwhile, and everything, whatever raises.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from tidelog.client.base.arguments import bad

_ELSEWHERE = "call it in a coroutine, or use tidelog.sync"


class HomeLoop:
    """The event loop of an object. `owner`: for sentences, such as "this client". Raises BadRequest where none runs."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise bad(f"{owner} is to be made where no event loop runs; {_ELSEWHERE}") from None

    def is_here(self) -> bool:
        """Returns whether the caller runs in this event loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def check(self) -> None:
        """Raises BadRequest for a caller that runs in another event loop: its futures would never be done."""
        if self.is_here():
            return
        if self.loop.is_closed():
            raise bad(
                f"{self._owner} belongs to an event loop that has ended, with an asyncio.run() as a rule; connect again"
                " in each asyncio.run(), or do everything in one"
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise bad(f"{self._owner} is used where no event loop runs; {_ELSEWHERE}") from None
        raise bad(
            f"{self._owner} belongs to another event loop; connect again in this one, or hand the call over with"
            " asyncio.run_coroutine_threadsafe()"
        )


_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Started(Generic[_T]):
    """The producers or consumers of a client that have started, or are about to, and are not closed: the client closes
    them with itself. One that has not started, or failed to, belongs to the program alone.

    They are iterated in the order in which they were started: in that order they are notified of a connection."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        """`check_open`: raises Closed once the client is closed."""
        self._check_open = check_open
        self._started: dict[_T, None] = {}

    def add(self, one: _T) -> None:
        """Adds a producer or consumer. Raises Closed."""
        if one not in self._started:
            self._check_open()
            self._started[one] = None

    def discard(self, one: _T) -> None:
        self._started.pop(one, None)

    def __len__(self) -> int:
        return len(self._started)

    def __iter__(self) -> Iterator[_T]:
        """Iterates over the present ones; others may come and go meanwhile."""
        return iter(tuple(self._started))


class Closing:
    """Carries `close` out once, in a task of its own. Calls that are cancelled no longer wait for it, and it goes on; a
    later call waits for it as well, and returns at once when it is over."""

    def __init__(self, what: str, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`what`: the name of the object, for the log."""
        self._what = what
        self._close = close
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done() and not self._task.cancelled()

    async def run(self) -> None:
        """Closes, or waits for the closing. Raises the error of `close`, unless closing was over before."""
        if self.is_over:
            return
        if self._task is None or self._task.cancelled():  # it is cancelled when the event loop ends
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
    """Calls `closers` one after the other, and raises the first error when all are done."""
    failure: BaseException | None = None
    for close in closers:
        try:
            closing = close()
            if inspect.isawaitable(closing):
                await closing
        except BaseException as error:  # noqa: BLE001 - the first one is raised when all are closed
            failure = failure or error
    if failure is not None:
        raise failure
