"""The room that a broker has on its disk, and its measures when there is little. Events in, effects out.

             below 2 x min_free                below min_free, or the file system refuses
    AMPLE ────────────────────────> SHORT ─────────────────────────────────────────────> FULL
      ^                             │   ^                                                 │
      └───── 3 x min_free again ────┘   └─────────────── 2 x min_free again ──────────────┘

    AMPLE    everything as usual
    SHORT    leaderships are handed to replicas that have room; streams that evict let their oldest segments go; records
             are still taken
    FULL     no record is taken any more: a leader refuses publishes, a follower fetches without data. Records in
             the log are served

The last `min_free` bytes are for the files that must be written even then: checkpoints, leader epochs, the Raft
journal. They are kept by counting: between two looks at the disk every record that is written is taken off the free
space seen, so that no burst gets past the limit. Others may fill the disk all the same: then the file system refuses,
and a reserve, a file of its own kept for that moment, is given back to it, for the small files.

Invariants
* A record is admitted only if it leaves `min_free` bytes, as far as is known, and never while FULL.
* There and back again are two different limits, so that nothing flaps.
* Where the file system refuses though it shows room (a quota), the next attempt waits, longer each time.

## A disk that hangs

Whether the disk of a broker hangs: a call that waits for it has been out for too long. Events in, the answer out.

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
from dataclasses import dataclass
from typing import TypeAlias

from wire.types import Room


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

    # R40: A disk that hangs is not waited for. A broker whose sync has not returned for `replica_max_lag_time` says so
    # in probe answers and fetches. As a leader it hands over to a member whose disk answers, and the election drops it
    # from the ISR where `min_isr` live members remain; as a follower it is dropped where they remain. When the disk
    # answers, the replica syncs and R18 takes it back. A leader whose first sync hangs does not subscribe, and its
    # followers report it.
    # Hazard: A leader that keeps its partitions and commits nothing.
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


SHORTEST_HOLD = 1.0
LONGEST_HOLD = 30.0
"""Seconds that a refusal counts for though the disk shows room, and for which a disk that has hung again must answer
before it counts as one that answers."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RoomChanged:
    room: Room


@dataclass(frozen=True, slots=True)
class EvictOldest:
    """Let streams that evict remove so many bytes of their oldest segments."""

    wanted: int


@dataclass(frozen=True, slots=True)
class ReleaseReserve:
    """Give the reserve back to the disk."""


@dataclass(frozen=True, slots=True)
class KeepReserve:
    """Take `size` bytes of the disk aside, unless that is done."""

    size: int


SpaceEffect: TypeAlias = RoomChanged | EvictOldest | ReleaseReserve | KeepReserve


class SpaceGuard:
    """One per broker. Times are monotonic seconds, sizes bytes."""

    def __init__(self, min_free_bytes: int = 0) -> None:
        """`min_free_bytes`: 0 stands for 5 % of the disk, but at least 1 MiB and at most 256 MiB."""
        self._min_free_bytes = min_free_bytes
        self.room = Room.AMPLE
        self.total = 0
        self.free = 0
        """As last seen, less the bytes admitted since."""
        self.min_free = 0
        self._looked = False
        self._hold = 0.0
        self._held_until = 0.0

    def on_look(self, total: int, free: int, now: float) -> list[SpaceEffect]:
        """The disk has `free` bytes of `total`."""
        self.total, self.free = total, free
        self.min_free = self._min_free_bytes or min(256 * MIB, max(MIB, total // 20))
        self._looked = True
        out = self._judge(now)
        if self.room is Room.AMPLE:
            out.append(KeepReserve(min(self.min_free // 4, 16 * MIB)))
        else:
            out.append(EvictOldest(3 * self.min_free - free))
            if free < self.min_free // 8:
                out.append(ReleaseReserve())
        return out

    # R38: A full disk is not a broken one. A follower without room goes on fetching with `no_space`; its leader drops
    # it from the ISR while `min_isr` members remain and does not propose it. Where they would not remain, and where
    # the leader has no room itself, publishes of every kind are refused with NO_SPACE before anything is appended. A
    # leader that runs short hands over first, to a member with more room. With room again, R18 takes the replica back.
    # Hazard: A full disk that costs acknowledged records, or an ISR, or needs a restart.
    def admit(self, size: int, now: float) -> tuple[bool, list[SpaceEffect]]:
        """Whether `size` bytes of records may be written now."""
        if self.room is Room.FULL:
            return False, []
        if not self._looked:
            return True, []
        if self.free - size < self.min_free:
            return False, self._turn(Room.FULL)
        self.free -= size
        return True, self._judge(now)

    def on_refused(self, now: float) -> list[SpaceEffect]:
        """The file system refused to write."""
        if self._looked and self.free >= 2 * self.min_free:
            if now > self._held_until + LONGEST_HOLD:
                self._hold = 0.0
            self._hold = min(LONGEST_HOLD, max(SHORTEST_HOLD, 2 * self._hold))
            self._held_until = now + self._hold
        return [*self._turn(Room.FULL), ReleaseReserve()]

    def _judge(self, now: float) -> list[SpaceEffect]:
        limit, free = self.min_free, self.free
        if self.room is Room.FULL and now < self._held_until:
            return []
        if free < limit:
            return self._turn(Room.FULL)
        if free >= 3 * limit:
            return self._turn(Room.AMPLE)
        if free < 2 * limit:
            return self._turn(Room.SHORT) if self.room is Room.AMPLE else []
        return self._turn(Room.SHORT) if self.room is Room.FULL else []

    def _turn(self, room: Room) -> list[SpaceEffect]:
        if room is self.room:
            return []
        self.room = room
        return [RoomChanged(room)]
