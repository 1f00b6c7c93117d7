"""A waiting time that grows from one failure to the next."""

from __future__ import annotations


class Backoff:
    """Seconds. `value` begins at `first`; `grow` doubles it, to `least` at least and `most` at most."""

    __slots__ = ("_first", "_least", "_most", "value")

    def __init__(self, first: float, most: float, *, least: float = 0.0) -> None:
        self.value = self._first = first
        self._least = least
        self._most = most

    def grow(self) -> None:
        self.value = min(max(2 * self.value, self._least), self._most)

    def reset(self) -> None:
        self.value = self._first
