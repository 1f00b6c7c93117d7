"""The uncommitted bytes of all partitions that a broker leads: publishes above their bounds are refused, so
that followers stay close enough to their leaders to stay in the ISRs, however much is published to however many
partitions.

Partitions share the bounds evenly. One that holds less than its share is refused nothing for the sake of the others.
"""

from __future__ import annotations

from dataplane.replica.replica_settings import ReplicaSettings

MOST_OF_A_CROWD = 32
"""While commits are late, the limit of all is divided by the number of partitions that wait for one, up to this. Each
log is synced by itself: one that is late may make up for it with a single sync, a crowd of them cannot."""
LATE = 0.2
"""A commit that takes longer than this share of `replica_max_lag_time` is late: a follower's lag, as its leader judges
it, is up to twice as long, and more may be on its way."""


class Uncommitted:
    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self.size = 0
        """Bytes, of all partitions."""
        self.partitions = 0
        """Led by this broker."""
        self.waiting = 0
        """Partitions among them that have uncommitted bytes."""

    def why_not(self, own: int, waited: float) -> str | None:
        """Why a partition may append nothing more; None when it may.

        `own`: its uncommitted bytes; `waited`: seconds since the oldest of them were appended.
        """
        settings = self._settings
        if own > settings.max_uncommitted_bytes:
            return f"{own} bytes waiting for their commit"
        limit = settings.max_uncommitted_bytes_of_all
        if waited > LATE * settings.replica_max_lag_time:
            limit //= max(1, min(self.waiting, MOST_OF_A_CROWD))
        if self.size > limit and own * self.partitions > limit:
            return f"{own} bytes waiting for their commit, for {waited:.1f} s, and all that are led here {self.size}"
        return None
