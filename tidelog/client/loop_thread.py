"""An event loop in a thread of its own, for callers that block.

A process that is forked gets neither the thread nor, for its own use, the connections of the loop: whoever calls there
is told so.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidelog.client.errors import Closed
from wire.errors import Code

_T = TypeVar("_T")


class LoopThread:
    """The thread is a daemon: a program ends without it."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Do it on the loop and wait for it, at most `timeout` seconds. It is cancelled when the caller is interrupted.
        Raises Closed, TimeoutError, and what `work` raises."""
        if os.getpid() != self._process:
            work.close()
            raise Closed(
                Code.BAD_REQUEST,
                "this client belongs to the process that this one was forked from; connect again in this process",
            )
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            work.close()
            raise Closed(Code.BAD_REQUEST, "this client is closed, or waits for itself; connect again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], _T]) -> _T:
        """As `run`, of a function that does not wait."""

        async def work() -> _T:
            return function()

        return self.run(work())

    def stop(self, timeout: float | None = None) -> None:
        """Safe to call twice. A loop that is held up for longer than `timeout` seconds is left to end by itself."""
        if self._thread.is_alive() and os.getpid() == self._process:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._loop.close()
