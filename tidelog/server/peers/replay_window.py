"""Which messages of one sender have come: each is taken once. Pure.

The sender numbers all its messages. A receiver gets some of them, mostly in order; the window remembers which of the
last `WINDOW` numbers below the highest one have come.

    ....1101111011111111
    ^ top - WINDOW + 1  ^ top
    below: too old to tell, and refused
"""

from __future__ import annotations

from typing import Final

WINDOW: Final = 8192
"""Numbers. NATS keeps the order of one connection; what is overtaken by so many others is lost, as any message may be.
"""
_ALL: Final = (1 << WINDOW) - 1


class ReplayWindow:
    """See the module. Nothing has come yet."""

    __slots__ = ("_seen", "_top")

    def __init__(self) -> None:
        self._top = -1
        self._seen = 0
        """Bit n: the number `top` - n has come."""

    # Keeps R42.
    def take(self, number: int) -> bool:
        """Whether this message is new, and young enough to tell. It counts as come from now on."""
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
