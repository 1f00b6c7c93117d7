"""The timer of one role. The timers of thousands of idle partitions share their wake-ups of the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

BEAT = 0.02
"""Seconds. A deadline that is not near is met at the next multiple of it: the timers of a thousand idle partitions wake
the loop fifty times a second, and their messages to one leader arrive together."""
NEAR = 0.25
"""Seconds. A deadline that is nearer is met exactly, unless the timer fires within a BEAT anyway."""


class RoleTimer:
    """`next_deadline`: monotonic seconds, `inf` for none. `on_due` is called when it has come; it may not raise."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, next_deadline: Callable[[], float], on_due: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._now = loop.time
        self._next_deadline = next_deadline
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self._stopped = False

    def schedule(self) -> None:
        """Arm the timer for the next deadline. It is called after every message: a timer that fires within a BEAT
        stands, and an earlier deadline is met a BEAT late at most."""
        if self._stopped or (self._handle is not None and self._fires_at - self._now() <= BEAT):
            return
        self._arm(self._next_deadline())

    def stop(self) -> None:
        """Nothing is due any more."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, due: float) -> None:
        if self._handle is not None and due >= self._fires_at:
            return  # it fires early and is armed again then
        if due - self._now() > NEAR and due < math.inf:
            due = math.ceil(due / BEAT) * BEAT
        if self._handle is not None:
            if due >= self._fires_at:
                return
            self._handle.cancel()
            self._handle = None
        if due == math.inf:
            return
        self._fires_at = due
        self._handle = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        if self._stopped:
            return
        due = self._next_deadline()
        if due <= self._now() + 0.0005:
            self._on_due()
            self.schedule()
        else:
            self._arm(due)
