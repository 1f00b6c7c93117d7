"""Tests of real processes wait for conditions: these are looked at again and again until they hold."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from wire.errors import TidelogError

LIMIT = 30.0
"""Seconds that a test waits for anything: a loaded machine is slow, not wrong."""

_T = TypeVar("_T")


@overload
async def until(condition: Callable[[], Awaitable[_T | None]], what: str = ..., timeout: float = ...) -> _T: ...
@overload
async def until(condition: Callable[[], object], what: str = ..., timeout: float = ...) -> object: ...
async def until(condition: Callable[[], object], what: str = "it", timeout: float = LIMIT) -> object:
    """The first result of `condition`, a function or a coroutine function, that counts as true. An error of the cluster
    counts as false, and so does an answer that does not come in time: a leader may be on its way."""
    deadline = time.monotonic() + timeout
    while True:
        error = None
        try:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
        except (TidelogError, TimeoutError) as e:
            found, error = None, e
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come in {timeout:g} s; the last error: {error}"
        await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], _T], what: str) -> _T:
    """The same where no event loop runs."""
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come in {LIMIT:g} s"
        time.sleep(0.02)
    return found
