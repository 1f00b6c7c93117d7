"""Whether the disk of a broker hangs: a call that waits for it has been out for too long. Events in, the answer out.

    answers ──a call has been out for longer than `limit`──> hangs ──no call has, for the time of the hold──> answers

A disk that hangs fails nothing: written records are in the page cache, and whatever needs a sync waits. The loop goes
on, so neither the controller's probes nor the followers notice. So a broker reports this of itself: its
leaderships go to others, and no commit waits for it where enough others remain.

Invariants
* A call counts from its beginning, but never from before this process last woke up: a process that stood still had no
  disk to blame.
* The hold is 0 the first time: a disk that answers takes part at once. A disk that hangs again within LONGEST_HOLD is
  held back for longer each time, so that leaders and ISRs do not change at its pace.
"""

from __future__ import annotations

import math

SHORTEST_HOLD = 1.0
LONGEST_HOLD = 30.0
"""Seconds for which a disk that has hung again must answer before it counts as one that answers."""


class DiskGuard:
    """One per broker. Times are monotonic seconds."""

    def __init__(self, *, limit: float, late: float, now: float) -> None:
        """`limit`: of a call. `late`: a look that comes so much later than `interval` proves that the process slept."""
        self.hangs = False
        self.interval = limit / 10
        """The guard is to be asked so often."""
        self.waited = 0.0
        """For how long the oldest call has been out."""
        self._limit = limit
        self._late = late
        self._looked_at = now
        self._awake_since = -math.inf
        self._answers_since = -math.inf
        """-inf: some call has been out for too long."""
        self._ended_at = -math.inf
        self._hold = 0.0

    def on_look(self, oldest: float, now: float) -> bool:
        """`oldest`: when the oldest call that is out began; inf: none is. Returns whether `hangs` has changed."""
        if now - self._looked_at > self.interval + self._late:
            self._awake_since = now
        self._looked_at = now
        self.waited = max(0.0, now - max(oldest, self._awake_since))
        if self.waited > self._limit:
            self._answers_since = -math.inf
            return self._begin(now)
        if not self.hangs:
            return False
        if self._answers_since == -math.inf:
            self._answers_since = now
        if now - self._answers_since < self._hold:
            return False
        self.hangs = False
        self._ended_at = now
        return True

    def _begin(self, now: float) -> bool:
        if self.hangs:
            return False
        self.hangs = True
        again = now - self._ended_at <= LONGEST_HOLD
        self._hold = min(LONGEST_HOLD, max(SHORTEST_HOLD, 2 * self._hold)) if again else 0.0
        return True
