"""From which replicas a consumer reads, what is in order, and its reaction where records are not there: options as
programs spell them, and `FollowerSources`, which chooses the replica to ask.

A consumer that reads from followers asks an in-sync follower while one serves it, else the leader. One with a rack asks
followers of its rack only, and the leader where that is in the rack.

A follower that refuses, is not there or does not answer is not asked again for `REST_NS`. While all of them rest, the
leader is asked; only an answer of the leader is final. Consumers begin at different followers (`spread`).

Pure: `clock_ns` is the wall clock, ns since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from tidelog.client.base.arguments import bad
from wire.errors import TidelogError
from wire.notation import check_rack
from wire.types import BrokerId


class ReadFrom(Enum):
    """Where records come from; positions are always looked up at the leader."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """In-sync followers, the leader while none serves."""
    NEAREST = "nearest"
    """The replica in sync that is in the consumer's rack, the leader while none serves there."""


class Order(Enum):
    """Which records are handed out in order, besides those of each partition."""

    PARTITION = "partition"
    """Nothing else: partitions that a repartition has made are read beside the others."""
    KEY = "key"
    """The records of each key, also those before and after a repartition."""


class OnGap(Enum):
    """Reaction of a consumer when its next record was removed (by retention) before it was read."""

    RAISE = "raise"
    """OffsetOutOfRange."""
    SKIP = "skip"
    """It goes on where the log begins now, says so in its log, and counts the missed records."""


class OnOutOfRange(Enum):
    """Reaction of a consumer that is to start at an offset outside of a partition's committed log."""

    EARLIEST = "earliest"
    """It starts at the oldest record."""
    LATEST = "latest"
    """It starts at the end of the committed log."""
    FAIL = "fail"
    """OffsetOutOfRange."""


def checked_order(text: str) -> Order:
    """The order, as programs spell it. Raises BadRequest."""
    try:
        return Order(text)
    except ValueError:
        raise bad(f"order={text!r} is none of 'partition' and 'key'") from None


def reading_options(
    read_from: str, rack: str | None, on_gap: str | None, on_out_of_range: str | None
) -> tuple[ReadFrom, str | None, OnGap | None, OnOutOfRange | None]:
    """As programs spell them. Raises BadRequest."""
    try:
        source = ReadFrom(read_from)
    except ValueError:
        raise bad(f"read_from={read_from!r} is none of 'leader', 'follower' and 'nearest'") from None
    if (rack is None) is (source is ReadFrom.NEAREST):
        raise bad(f"read_from={read_from!r} with rack={rack!r}: 'nearest' needs a rack, and the others need none")
    try:
        gap = None if on_gap is None else OnGap(on_gap)
    except ValueError:
        raise bad(f"on_gap={on_gap!r} is none of 'raise' and 'skip'") from None
    try:
        reset = None if on_out_of_range is None else OnOutOfRange(on_out_of_range)
    except ValueError:
        raise bad(f"on_out_of_range={on_out_of_range!r} is none of 'earliest', 'latest' and 'fail'") from None
    try:
        return source, None if rack is None else check_rack(rack), gap, reset
    except TidelogError as error:
        raise bad(error.message) from None


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
