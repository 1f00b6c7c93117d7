"""Work that grows with the amount of data, done in turns, so that it does not hold up the event loop.

Such work is a generator, `Steps`. It yields how many looks it has taken since it yielded last; a look takes some
microseconds. It uses no loop, so that pure modules can be written that way. Its runner decides when other work has its
turn:

    steps     1 0 0 | 4 0 0 | 9 0 0 | 2 0 0 | ...
    turns     |------ LOOKS or more ------| others |-- ...

`in_turns` does so on an event loop. Coordinators of groups and of transactions do so between two settlements, and the
metadata group between two heartbeats (`Turns`).

The data may change between two turns. So `Steps` take a copy of names and values at their beginning, or accept the data
as they find them.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from types import coroutine
from typing import Final, Generic, TypeAlias, TypeVar

_T = TypeVar("_T")

Steps: TypeAlias = Generator[int, None, _T]

LOOKS: Final = 1_000
"""Looks that make a turn, at least. One step may be longer than that."""


def pieces(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """The items, `size` at a time."""
    left = iter(items)
    while piece := [*islice(left, size)]:
        yield piece


class Turns(Generic[_T]):
    """Work whose turns are taken by its owner."""

    def __init__(self, steps: Steps[_T]) -> None:
        self._steps = steps
        self._result: list[_T] = []
        self._error: Exception | None = None

    def turn(self, looks: int) -> bool:
        """Goes on for so many looks, or one step more. Returns whether the work is done. Raises the work's error."""
        if self._error is not None:
            raise self._error
        taken = 0
        while not self._result and taken < looks:
            try:
                taken += next(self._steps)
            except StopIteration as end:
                self._result.append(end.value)
            except Exception as error:
                self._error = error
                raise
        return bool(self._result)

    def finish(self) -> _T:
        """Does the rest of the work now, and returns its result."""
        self.turn(sys.maxsize)
        return self._result[0]


async def in_turns(steps: Steps[_T]) -> _T:
    """Returns or raises the result of the work. Other work of the loop runs between two turns."""
    looks = 0
    while True:
        try:
            looks += next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        if looks >= LOOKS:
            looks = 0
            await _others_have_their_turn()


@coroutine
def _others_have_their_turn() -> Generator[None, None, None]:
    """Yields to the loop once, as `asyncio.sleep(0)` does."""
    yield
