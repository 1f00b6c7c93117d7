"""When to try again what has failed. Pure: the caller waits, and knows the time.

The pause after a failure is `first_s`, and `factor` times as long after each further failure in a row, up to
`longest_s`. Chance takes up to half of it away, so that many that have failed together do not come again together
("equal jitter": M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

Chance: TypeAlias = Callable[[], float]
"""Returns a random number in [0, 1), as `random.random` does."""

_MOST_DOUBLINGS = 64
"""Failures in a row beyond these do not make a pause longer; the power stays a finite float."""


class Retry:
    """`longest_s`: None: all pauses are as long as the first. `chance`: None: no jitter, where one process alone asks,
    or a timeout grows. `at_once`: there is no pause after the first failure. `deadline`: on the caller's clock, in
    seconds; no pause ends after it."""

    __slots__ = ("_at_once", "_chance", "_factor", "_first_s", "_longest_s", "deadline", "failures")

    def __init__(
        self,
        first_s: float,
        longest_s: float | None = None,
        *,
        chance: Chance | None,
        factor: float = 2.0,
        at_once: bool = False,
        deadline: float = inf,
    ) -> None:
        self.failures = 0
        """Failures in a row."""
        self.deadline = deadline
        self._first_s = first_s
        self._longest_s = first_s if longest_s is None else longest_s
        self._factor = factor
        self._at_once = at_once
        self._chance = chance

    def pause_s(self) -> float:
        """Returns the pause after one more failure, which is not counted."""
        grown = self.failures - self._at_once
        if grown < 0:
            return 0.0
        pause_s = min(self._first_s * self._factor ** min(grown, _MOST_DOUBLINGS), self._longest_s)
        return pause_s if self._chance is None else pause_s * (1 + self._chance()) / 2

    def failed(self, now: float = 0.0, *, at_least_s: float = 0.0) -> float:
        """Counts a failure and returns the pause until the next attempt. `at_least_s`: what the refusal asked for."""
        pause_s = max(self.pause_s(), at_least_s)
        self.failures += 1
        return min(pause_s, self.left_s(now))

    def succeeded(self) -> None:
        self.failures = 0

    def left_s(self, now: float) -> float:
        """Returns the time until the deadline. 0: give up."""
        return max(0.0, self.deadline - now)
