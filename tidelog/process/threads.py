"""Blocking work beside the event loop, for files on a file system that may be slow or hang."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def in_thread(call: Callable[[], _T]) -> asyncio.Future[_T]:
    """Runs `call` in a thread of its own, which no process waits for at its end; returns its result as a future."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_T] = loop.create_future()
    result.add_done_callback(lambda done: done.cancelled() or done.exception())  # its waiter may have gone

    def settle(settled: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            settled(value)

    def run() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            settled: tuple[Callable[[Any], None], Any] = (result.set_exception, error)
        else:
            settled = (result.set_result, found)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="files", daemon=True).start()
    return result
