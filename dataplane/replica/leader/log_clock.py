"""The time of a log, as its leader stamps it on batches (`append_time`): that by which producers, message ids and what
else is a function of the log are forgotten (R33, R45, R73).

It goes on from the newest stamp in the log by the time that has elapsed in this role, and to the time on which most
brokers agree, where that is later and known. So it never goes back; no leader's own clock moves it; and where nothing
is agreed, time in which nobody led is not counted: what is remembered is remembered longer.

A log that has no stamp gets none (0) before a time is agreed; records that were appended until then count from the
first one.

Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STEP_S: Final = 0.01
"""Between two looks at the agreed time."""


class LogClock:
    """One per leader and LeaderEpoch. `newest`: stamp in the log, ns since 1970, 0: none; `now`: monotonic seconds;
    `agreed_ns`: the time on which most brokers agree."""

    def __init__(self, newest: int, now: float, agreed_ns: Callable[[], int | None]) -> None:
        self._time = newest
        self._at = now
        self._agreed_ns = agreed_ns

    # R73: The time of a log goes on by elapsed time. The stamp of a batch (`append_time`), by which producers and
    # message ids are forgotten, is the newest stamp of the log plus the time elapsed since then in this LeaderEpoch by
    # the leader's monotonic clock, or the agreed time if that is later and known. It never goes back.
    # Hazard: A leader whose clock is ahead ends windows early and stores an id twice; after one record of a leader
    # that was an hour ahead no id leaves its window for an hour.
    def time(self, now: float) -> int:
        """ns since 1970; 0: not known."""
        elapsed = now - self._at
        if self._time and elapsed < STEP_S:
            return self._time
        going_on = self._time + int(elapsed * 1e9) if self._time else 0
        self._time = max(going_on, self._agreed_ns() or 0)
        self._at = now
        return self._time
