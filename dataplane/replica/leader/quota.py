"""The quota of one partition: how many bytes and records a second its leader takes in.

A token bucket for each of the two rates, filled with the rate, up to what comes in one second. A publish is taken while
both hold something, and takes its whole size out, so that a level may fall below zero: a batch larger than a second's
worth is taken too, and the next publish waits longer for it. Per record nothing is computed.

    taken in any t seconds <= rate * (t + 1) + the last publish
    after as many seconds as a refusal says the next publish is taken

Each leader counts for itself: a new LeaderEpoch begins with a full second.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.types import PartitionKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

BYTE_RATE = "producer_byte_rate"
RECORD_RATE = "producer_record_rate"
"""The settings, as `limit` of a refusal."""
BURST_S = 1.0
"""Seconds for which an idle bucket fills."""


class TokenBucket:
    """`rate`: tokens per second; 0: no limit."""

    __slots__ = ("_at", "level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self.level = rate * BURST_S
        self._at = now

    def change(self, rate: int, now: float) -> None:
        """A level below zero stays; a level above the new burst is cut to it. A bucket that had no limit is full."""
        if rate == self.rate:
            return
        self.fill(now)
        self.level = min(self.level, rate * BURST_S) if self.rate else rate * BURST_S
        self.rate = rate

    def fill(self, now: float) -> None:
        if now > self._at:
            self.level = min(self.rate * BURST_S, self.level + self.rate * (now - self._at))
            self._at = now

    @property
    def is_empty(self) -> bool:
        return self.level <= 0 and self.rate > 0

    @property
    def owed_s(self) -> float:
        """Seconds from the last `fill` until the level is 0; negative while there is something to take."""
        return -self.level / self.rate if self.rate else -math.inf


class Quota:
    def __init__(self, key: PartitionKey, config: StreamConfig, now: float) -> None:
        self._key = key
        self._bytes = TokenBucket(config.producer_byte_rate, now)
        self._records = TokenBucket(config.producer_record_rate, now)
        self.is_set = bool(self._bytes.rate or self._records.rate)
        """Without a quota nothing else here need be asked."""

    def configure(self, config: StreamConfig, now: float) -> None:
        """The stream's settings may have changed."""
        self._bytes.change(config.producer_byte_rate, now)
        self._records.change(config.producer_record_rate, now)
        self.is_set = bool(self._bytes.rate or self._records.rate)

    def refuse(self, now: float) -> TidelogError | None:
        """Why nothing may be taken now; None when something may."""
        if not self.is_set:
            return None
        self._fill(now)
        return self.refusal() if self._bytes.is_empty or self._records.is_empty else None

    def refusal(self) -> TidelogError:
        """For publishes that are left out, by the levels of the last question."""
        owed = max(self._bytes.owed_s, self._records.owed_s, 0.0)
        name, rate, what = (
            (BYTE_RATE, self._bytes.rate, "bytes")
            if self._bytes.owed_s >= self._records.owed_s
            else (RECORD_RATE, self._records.rate, "records")
        )
        return TidelogError(
            Code.BACKPRESSURE,
            f"partition {self._key} takes {rate} {what} a second ({name} of its stream), and more has come; slow down,"
            f" or raise {name}",
            [RETRY_AFTER_MS.of(round(owed * 1000) + 1), LIMIT.of(name)],
        )

    def take(self, records: int, size: int, now: float) -> None:
        """So much is taken, whatever the levels are."""
        if self.is_set:
            self._fill(now)
            self._bytes.level -= size if self._bytes.rate else 0
            self._records.level -= records if self._records.rate else 0

    def take_uniform(self, count: int, each: int, now: float) -> int:
        """Takes the first ones of `count` records of `each` bytes; returns how many."""
        if not self.is_set:
            return count
        self._fill(now)
        taken = self._first_records(count)
        if self._bytes.rate:
            taken = min(taken, math.ceil(max(self._bytes.level, 0.0) / each))
        self.take(taken, taken * each, now)
        return taken

    def take_sizes(self, sizes: NDArray[np.integer[Any]], now: float) -> int:
        """The same for records of these sizes, in bytes."""
        count = len(sizes)
        if not self.is_set:
            return count
        self._fill(now)
        taken = self._first_records(count)
        ends = np.cumsum(sizes, dtype=np.int64)
        if self._bytes.rate:
            fits = int(np.searchsorted(ends, self._bytes.level, "left")) + 1 if self._bytes.level > 0 else 0
            taken = min(taken, fits)
        self.take(taken, int(ends[taken - 1]) if taken else 0, now)
        return taken

    def _first_records(self, count: int) -> int:
        return min(count, math.ceil(max(self._records.level, 0.0))) if self._records.rate else count

    def _fill(self, now: float) -> None:
        self._bytes.fill(now)
        self._records.fill(now)


def is_over_quota(error: TidelogError) -> bool:
    """Whether it is a refusal of this module."""
    return error.code is Code.BACKPRESSURE and (error.detail(LIMIT) or "") in (BYTE_RATE, RECORD_RATE)
