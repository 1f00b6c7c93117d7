"""The last events of a replica, for finding out how a partition came into its state.

Only transitions and rare events are recorded (a role begins, the ISR changes, a log is cut, a disk fills), never a
record or a batch. A history belongs to a replica and goes on from one role to the next.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

LENGTH: Final = 50
"""Events that are kept; the oldest ones go."""


class HistoryEvent(NamedTuple):
    at: float
    """Monotonic seconds; the last time, if it was repeated."""
    event: str
    times: int = 1
    """How often it happened, with no other event in between."""


class History:
    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: deque[HistoryEvent] = deque(maxlen=LENGTH)

    def add(self, event: str, now: float) -> None:
        newest = self._events[-1] if self._events else None
        if newest is not None and newest.event == event:
            self._events[-1] = HistoryEvent(now, event, newest.times + 1)
        else:
            self._events.append(HistoryEvent(now, event))

    @property
    def events(self) -> tuple[HistoryEvent, ...]:
        """Oldest first."""
        return tuple(self._events)

    def __str__(self) -> str:
        """One line for each event, oldest first, with the seconds between it and the last one."""
        last = self._events[-1].at if self._events else 0.0
        return "\n".join(
            f"  {at - last:+10.3f} s  {event}{f' ({times} times)' if times > 1 else ''}"
            for at, event, times in self._events
        )
