"""Accepted connections that have not proved yet that they know the group's secret.

Anybody can open a connection and send a byte now and then, or a hello and nothing more. So an introduction has a
deadline that no byte puts off, and the places are few. A newcomer always gets one: when they are taken, the oldest
introduction from the address that holds most of them ends. A node of the group is introduced within two round trips,
so a stranger would have to open as many connections as there are places in that time.

Pure: the caller passes the time, and closes what it is told to close.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_INTRODUCTIONS = 64
"""Places."""

_Connection = TypeVar("_Connection", bound=Hashable)


class Introductions(Generic[_Connection]):
    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds that an introduction may take."""
        self._timeout = timeout
        self._open: dict[_Connection, tuple[str, float]] = {}
        """Address, and when it began; oldest first."""
        self.dropped = 0
        """Introductions that were ended before the peer had proved anything: too late, or for a newcomer."""

    def begin(self, connection: _Connection, address: str, now: float) -> _Connection | None:
        """Returns the connection to close for this one."""
        victim = None
        if len(self._open) >= MAX_INTRODUCTIONS:
            held = Counter(of for of, _ in self._open.values())
            most = max(held.values())
            victim = next(known for known, (of, _) in self._open.items() if held[of] == most)
            self._drop(victim)
        self._open[connection] = address, now
        return victim

    def end(self, connection: _Connection) -> None:
        """It is introduced, or closed."""
        self._open.pop(connection, None)

    def overdue(self, now: float) -> list[_Connection]:
        """The connections to close now."""
        late = [known for known, (_, began) in self._open.items() if now - began > self._timeout]
        for connection in late:
            self._drop(connection)
        return late

    def _drop(self, connection: _Connection) -> None:
        del self._open[connection]
        self.dropped += 1
