"""How fast the leaders at one broker bring replicas outside the ISR to their ends, so that acknowledged writes keep
their share of the network.

One token bucket for all partitions that the broker leads. It holds the bytes of one second at most. An answer to a
replica outside the maximal ISR is read while the bucket holds more than the answers that are being read may have, and
takes its size out when it is sent, below zero too. Else such a replica is answered with BACKPRESSURE and the time after
which to ask again. Members of the ISR, and the one that is proposed for it, are never charged and never wait.

Only catching up is charged: as many bytes as were appended while a replica fetches are free for it, as they would be
for a member. So the distance to the end never grows for want of budget, however much is published, and each
replica gets to the end; one that has all that is committed, and so is about to join the ISR, does not wait at all.

    caught up in any t seconds <= rate * (t + 1) + one answer, while answers are read within a second
    askers    each that is refused gets a later time than the one before: they do not come back all at once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dataplane.replica.leader.quota import TokenBucket

ASKS_PER_S: Final = 200
"""Replicas that were refused are asked to come back at this rate."""
LONGEST_QUEUE_S: Final = 2.0
"""No replica is asked to come back later than this after the bucket holds something again."""


RATE_LOOK_S: Final = 1.0
"""Pause between looks at the setting, which may be altered at any time."""


class Counted(Protocol):
    """Is counted up."""

    catch_up_bytes: int
    catch_up_waits: int


@dataclass(slots=True)
class Uncounted:
    catch_up_bytes: int = 0
    catch_up_waits: int = 0


class CatchUpBudget:
    """`rate()`: bytes a second; 0: no limit."""

    def __init__(self, rate: Callable[[], int], now: float, counted: Counted | None = None) -> None:
        self._rate = rate
        self._counted = counted or Uncounted()
        self._bucket = TokenBucket(rate(), now)
        self._look_at = now + RATE_LOOK_S
        self._next_ask = now
        """When the next replica that is refused shall come back, at the earliest."""
        self._promised = 0
        """Bytes of answers that are being read, of the largest size; since `_look_at` at the earliest, so that an
        answer which is never sent is not counted for ever."""

    def _fill(self, now: float) -> None:
        if now >= self._look_at:
            self._look_at = now + RATE_LOOK_S
            self._promised = 0
            self._bucket.change(self._rate(), now)
        self._bucket.fill(now)

    # R89: Replicas outside the maximal ISR are brought to the end within the broker's budget,
    # `network_capacity * replication_budget_fraction`. Their fetches and requests for snapshots are answered while the
    # bucket holds something, else with BACKPRESSURE and a time. Members are never charged, nor are as many bytes as
    # were appended while a replica fetches; one that has all that is committed never waits.
    # Hazard: A replica that returns, or is moved, takes the network from the commits of all partitions. A replica that
    # never gets to the end while records come.
    def wait_s(self, now: float, answer_bytes: int) -> float:
        """Seconds until it may be asked again, which counts as a wait; 0: `answer_bytes` at most may be sent now."""
        self._fill(now)
        if not self._bucket.rate:
            return 0.0
        if not self._bucket.is_empty and self._bucket.level > self._promised:
            self._promised += answer_bytes
            return 0.0
        self._counted.catch_up_waits += 1
        soonest = now + max(0.0, self._bucket.owed_s)
        self._next_ask = min(max(self._next_ask + 1 / ASKS_PER_S, soonest), soonest + LONGEST_QUEUE_S)
        return self._next_ask - now

    def charge(self, size: int, now: float, answer_bytes: int = 0) -> None:
        """So many bytes were sent to a replica that catches up, whatever the level is. `answer_bytes`: what
        `wait_s` was told of this answer; 0: it was not asked."""
        self._counted.catch_up_bytes += size
        self._fill(now)
        self._promised = max(0, self._promised - answer_bytes)
        if self._bucket.rate:
            self._bucket.level -= size
