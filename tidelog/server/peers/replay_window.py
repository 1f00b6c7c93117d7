"""The messages of one sender that have come: each is taken once. Pure.

The sender numbers all its messages. A receiver gets some of them, mostly in order; the window remembers which of the
last `WINDOW` numbers below the highest one have come.

    ....1101111011111111
    ^ top - WINDOW + 1  ^ top
    below: older than the window, and refused
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 8192
"""Numbers. NATS keeps the order of one connection; a message overtaken by so many others is lost, as any may be."""
_ALL: Final = (1 << WINDOW) - 1


class ReplayWindow:
    """A window of numbers; see the module. It begins empty."""

    __slots__ = ("_seen", "_top")

    def __init__(self) -> None:
        self._top = -1
        self._seen = 0
        """Bit n: the number `top` - n has come."""

    # Keeps R42.
    def take(self, number: int) -> bool:
        """Takes the number of a message. Returns whether it is new, and not older than the window."""
        ahead = number - self._top
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & _ALL if ahead < WINDOW else 1
            self._top = number
            return True
        if ahead <= -WINDOW:
            return False
        bit = 1 << -ahead
        if self._seen & bit:
            return False
        self._seen |= bit
        return True
