"""Runs work that is made in turns (`wire.turns`) in one go."""

from __future__ import annotations

from typing import TypeVar

from wire.turns import Steps

_T = TypeVar("_T")


def finished(steps: Steps[_T]) -> _T:
    """What it returns, or raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
