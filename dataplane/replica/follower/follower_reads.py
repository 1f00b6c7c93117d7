"""Consumers that read at a follower.

They are served, below this replica's HW and by the transactions of its own log, only by a member of the ISR that is
fetching, and whose last good fetch in this LeaderEpoch is fresh: its records are committed whenever that was, but a
replica that has lost the leader would keep its consumers waiting for records that others have. A fetch is as old as its
departure: the process may have been stopped between the answer's arrival and now.
"""

from __future__ import annotations

import math

from dataplane.replica.consumers import ConsumerFetch, Consumers, Readable
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.follower.follower_states import Fetching, Idle, Syncing
from dataplane.replica.follower.followership import Followership
from dataplane.replica.replica_effects import FollowerEffect
from dataplane.replica.replica_settings import ReplicaSettings
from wire.error_details import LEADER
from wire.errors import Code, TidelogError
from wire.types import Offset


class FollowerReads:
    def __init__(self, replica: Followership, epochs: LeaderEpochCache, settings: ReplicaSettings) -> None:
        self.fetched_at = -math.inf
        """When the last fetch left that was answered well in this LeaderEpoch, and since the log was cut."""
        self._replica = replica
        self._settings = settings
        self._consumers = Consumers(epochs, settings, leads=False)

    def on_fetch(self, fetch: ConsumerFetch, now: float) -> list[FollowerEffect]:
        return [*self._consumers.on_fetch(fetch, self._readable(now), now)]

    # Keeps R15.
    def adopt(self, high_watermark: Offset, now: float) -> list[FollowerEffect]:
        """The leader's HW: this replica's is never above its own LEO, and only grows."""
        replica = self._replica
        replica.high_watermark = max(replica.high_watermark, min(high_watermark, replica.log_end_offset))
        replica.transactions.on_committed(replica.high_watermark)
        return [*self._consumers.on_high_watermark(self._readable(now))] if self._consumers.has_waiting else []

    def _readable(self, now: float) -> Readable:
        replica = self._replica
        return Readable(
            view=replica.view,
            log_start_offset=replica.first_record,
            log_end_offset=replica.log_end_offset,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            refusal=self.refusal(now),
        )

    # Keeps R34.
    def refusal(self, now: float) -> TidelogError | None:
        """Why consumers should go elsewhere; None while they are served here."""
        replica, view = self._replica, self._replica.view
        if replica.broker not in view.isr:
            why = "is not in sync"
        elif not isinstance(replica.state, (Fetching, Idle, Syncing)):
            why = "is finding out where its log and the leader's part"
        elif self.fetched_at == -math.inf:
            why = f"has not fetched in LeaderEpoch {replica.leader_epoch} yet"
        elif now >= self.fetched_at + self._settings.follower_read_max_age:
            why = f"has no good answer from its leader to what it asked in the last {now - self.fetched_at:.1f} s"
        else:
            return None
        return TidelogError(
            Code.UNAVAILABLE,
            f"the replica of {view.key} on {replica.broker} {why}; read from another one: its leader is"
            f" {view.leader or 'nobody'}, in sync are {', '.join(view.isr)}",
            [LEADER.of(view.leader or "")],
        )

    def refuse_waiting(self, now: float) -> list[FollowerEffect]:
        """Waiting consumers are sent elsewhere, if this replica serves none any more."""
        error = self.refusal(now) if self._consumers.has_waiting else None
        return [] if error is None else self.refuse_all(error)

    def refuse_all(self, error: TidelogError) -> list[FollowerEffect]:
        return [*self._consumers.refuse_all(error)]

    def expire(self, now: float) -> list[FollowerEffect]:
        return [*self._consumers.expire(now, self._readable(now))] if self._consumers.are_due(now) else []

    def next_deadline(self) -> float:
        """inf: no consumer waits."""
        expiry = self._consumers.next_deadline()
        return expiry if expiry == math.inf else min(expiry, self.fetched_at + self._settings.follower_read_max_age)
