"""From which replica of a partition a consumer reads.

A consumer that reads from followers asks an in-sync follower while one serves it, else the leader. One with a rack asks
followers of its rack only, and the leader where that is in the rack.

A follower that refuses, is not there or does not answer is not asked again for `REST_NS`. While all of them rest, the
leader is asked; only an answer of the leader is final. Consumers begin at different followers (`spread`).

Pure: `clock_ns` is the wall clock, ns since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence

from wire.types import BrokerId

REST_NS = 5_000_000_000


class FollowerSources:
    def __init__(self, followers: Sequence[BrokerId], spread: int) -> None:
        self._spread = spread
        self._followers: tuple[BrokerId, ...] = ()
        self._rests_until: dict[BrokerId, int] = {}
        self._known_at: int | None = None
        self._leader_is_nearest = False
        self.know(followers)

    def know(self, followers: Sequence[BrokerId], *, leader_is_nearest: bool = False) -> None:
        """Sets the followers to choose from, by the newest metadata. `leader_is_nearest`: the leader is asked where
        there are none, and the metadata need not be asked for others."""
        self._leader_is_nearest = leader_is_nearest
        first = self._spread % len(followers) if followers else 0
        self._followers = (*followers[first:], *followers[:first])
        self._rests_until = {f: until for f, until in self._rests_until.items() if f in followers}

    def choose(self, clock_ns: int) -> BrokerId | None:
        """The replica to ask now; None: the leader."""
        for follower in self._followers:
            if not clock_ns < self._rests_until.get(follower, 0) <= clock_ns + REST_NS:  # the clock may be set back
                return follower
        return None

    def rest(self, follower: BrokerId, clock_ns: int) -> None:
        """The follower has not served the consumer: it is not asked again for `REST_NS`."""
        self._rests_until[follower] = clock_ns + REST_NS

    def is_out_of_date(self, clock_ns: int) -> bool:
        """Whether metadata should be asked for, since the leader is read for want of followers: once in `REST_NS`."""
        if self._known_at is None or self._followers or self._leader_is_nearest:
            self._known_at = clock_ns
            return False
        if 0 <= clock_ns - self._known_at < REST_NS:
            return False
        self._known_at = clock_ns
        return True
