"""Commits: the high watermark, the secondary watermark, and the publishes that wait for them.

Invariants
* HW = min of the acknowledged ends over the MAXIMAL ISR; it never moves back, and never while the COMMITTED ISR is
  below min ISR. It starts from this replica's own HW.
* A replica's acknowledged end is the end of its synced log on `durable` streams, else its LEO. The leader's own end
  counts in the same way.
* The secondary watermark serves publishes that wait for the other way of holding a record (`ack_levels`): it is the min
  of the ends in that way over the maximal ISR. It moves only for publishes that wait for it, under the same rules.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from dataplane.replica.consumers import Consumers
from dataplane.replica.leader.ack_levels import AckLevel, WaitingAcks
from dataplane.replica.leader.leadership import FollowerProgress, Leadership
from dataplane.replica.replica_effects import LeaderEffect
from dataplane.replica.replica_settings import ReplicaSettings
from wire.errors import InvariantViolation, require
from wire.types import BrokerId, Offset

MOST_OF_A_CROWD = 32
"""While commits are late, the limit of all is divided by the number of partitions that wait for one, up to this. Each
log is synced by itself: one that is late may make up for it with a single sync, a crowd of them cannot."""
LATE = 0.2
"""A commit that takes longer than this share of `replica_max_lag_time` is late: a follower's lag, as its leader judges
it, is up to twice as long, and more may be on its way."""


class Uncommitted:
    """Counts the uncommitted bytes of all partitions that a broker leads. Publishes above the bounds are refused, so
    that followers stay close enough to their leaders to stay in the ISRs, however much is published to however many
    partitions.

    Partitions share the bounds evenly. One that holds less than its share is refused nothing for the sake of the
    others."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self._settings = settings
        self.size = 0
        """Bytes, of all partitions."""
        self.partitions = 0
        """Led by this broker."""
        self.waiting = 0
        """Partitions among them that have uncommitted bytes."""
        self._moving: OrderedDict[object, float] = OrderedDict()
        """Partition -> when it last moved, the one that has not moved for longest first."""

    def moves(self, partition: object, now: float) -> None:
        """The partition has begun to wait for a commit, or has got one and waits for the next."""
        self._moving[partition] = now
        self._moving.move_to_end(partition)

    def rests(self, partition: object) -> None:
        """The partition waits for no commit."""
        self._moving.pop(partition, None)

    def is_crowd(self, now: float) -> bool:
        """Whether `gather_from` partitions have moved within `gather_time`, and wait for a commit. One that is stuck,
        as below min ISR, costs the others nothing, and counts again when it moves."""
        settings, moving = self._settings, self._moving
        if len(moving) >= settings.gather_from:
            while moving and next(iter(moving.values())) + settings.gather_time <= now:
                moving.popitem(last=False)
        return len(moving) >= settings.gather_from

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


class Commits:
    """Moves the HW of one leader, and completes the publishes that wait for it."""

    def __init__(self, state: Leadership, consumers: Consumers, shared: Uncommitted) -> None:
        """`shared`: the uncommitted bytes of all partitions that this broker leads."""
        self.acks = WaitingAcks()
        self.uncommitted_bytes = 0
        self.shared = shared
        self._state = state
        self._consumers = consumers
        self._uncommitted: list[tuple[Offset, int, float]] = []
        """(exclusive end, bytes, when appended)."""
        shared.partitions += 1

    def gathers_until(self, now: float) -> float:
        """Records that come do well to gather until then, or until all that was appended before is committed, which
        they cannot overtake; 0: they need not. A follower that is slow or silent is waited for once: what comes later
        than this after the oldest uncommitted append does not gather."""
        if not self._uncommitted:
            return 0.0
        until = self._uncommitted[0][2] + self._state.settings.gather_time
        return until if until > now and self.shared.is_crowd(now) else 0.0

    def waited(self, now: float) -> float:
        """Seconds since the oldest uncommitted record was appended."""
        return now - self._uncommitted[0][2] if self._uncommitted else 0.0

    def add(self, end: Offset, size: int, now: float) -> None:
        """`size` bytes that end at `end` were appended."""
        self.uncommitted_bytes += size
        self.shared.size += size
        if not self._uncommitted:
            self.shared.waiting += 1
            self.shared.moves(self, now)
        self._uncommitted.append((end, size, now))

    def on_own_copy(self, out: list[LeaderEffect]) -> None:
        """The leader has appended or synced more."""
        out.extend(self.acks.on_own_copy(self._state.log_end_offset, self._state.durable_end))

    # R12a: A publish may ask for `durable` on an `accepted` stream, or for `accepted` on a `durable` one. Beside the
    # HW the leader keeps a secondary watermark, the minimum of the ends in that other way over the maximal ISR, which
    # moves by the rules of the HW and only while publishes wait for it. A publish with a floor waits, beyond that,
    # until the committed ISR has so many members.
    # Hazard: A follower that joins the ISR without what was acknowledged otherwise than by the HW.
    def reached(self, level: AckLevel) -> Offset:
        """Everything below it is held as the level says."""
        state = self._state
        if level.is_local:
            return state.end_of(state.broker, is_synced=level.is_synced)
        if len(state.isr.members) < level.floor:
            return Offset(0)
        if level.is_synced == state.is_durable:
            return state.high_watermark
        return state.secondary_watermark if level.is_synced else max(state.secondary_watermark, state.high_watermark)

    def sync_wanted_here(self) -> Offset:
        """How far waiting publishes need this replica's own sync, on an `accepted` stream."""
        return max(self.acks.furthest_everywhere(is_synced=True), self.acks.furthest_local_sync)

    # Keeps R12a.
    def sync_wanted_of(self, replica: BrokerId, follower: FollowerProgress) -> Offset:
        """How far a follower of an `accepted` stream is to sync, and to report it; 0: its present end is enough.

        A member syncs for the publishes that wait for it, a follower outside that has caught up so that it can join.
        """
        state = self._state
        if state.is_durable:
            return Offset(0)
        wanted = self.acks.furthest_everywhere(is_synced=True)
        to_join = max(state.epoch_start, state.secondary_watermark)
        if replica not in state.isr.maximal and follower.log_end_offset >= to_join:
            wanted = max(wanted, to_join)
        return wanted if wanted > follower.durable_end else Offset(0)

    # R14: Nothing commits while the committed ISR is smaller than `min_isr`. An acks=all publish is then refused
    # before it is appended (NOT_ENOUGH_REPLICAS), and one that was appended before ends in CONFIRM_TIMEOUT;
    # acks=leader and acks=none are still taken. A change of `min_isr` is one command with its effect on `eligible`,
    # and raises every partition epoch.
    # Hazard: The last replica standing.
    def advance(self, now: float, out: list[LeaderEffect]) -> None:
        """Move the watermarks as far as they go, and complete the publishes and consumers that waited for that."""
        state = self._state
        members = len(state.isr.members)
        if members < state.view.config.min_isr:
            return
        everywhere, end = self.acks.everywhere, state.acknowledged_by_all()
        moved = end > state.high_watermark
        if moved:
            self._move_high_watermark(end, now)
        if everywhere[state.is_durable].waits:
            out.extend(everywhere[state.is_durable].commit(state.high_watermark, members))
        if moved and self._consumers.has_waiting:
            out.extend(self._consumers.on_high_watermark(state.readable()))
        if everywhere[not state.is_durable].waits:
            end = min(state.end_of(member, is_synced=not state.is_durable) for member in state.isr.maximal)
            state.secondary_watermark = max(state.secondary_watermark, end)
            out.extend(everywhere[not state.is_durable].commit(state.secondary_watermark, members))

    # R15: The HW only grows within a role. A follower adopts min(leader's HW, own LEO); after a truncation, and when a
    # log opens with its checkpoint, HW = min(HW, LEO). A new leader answers no `latest` before its HW has reached the
    # start of its LeaderEpoch, below which all lies that its predecessor committed.
    # Hazard: A consumer is told an end below what it has read.
    def _move_high_watermark(self, end: Offset, now: float) -> None:
        state = self._state
        if end > state.log_end_offset:
            raise InvariantViolation(f"{state.view.key}: HW {end} above LEO {state.log_end_offset}")
        state.high_watermark = end
        state.high_watermark_at = now
        state.transactions.on_committed(end)
        done = 0
        for uncommitted_end, size, _ in self._uncommitted:
            if uncommitted_end > end:
                break
            self.uncommitted_bytes -= size
            self.shared.size -= size
            done += 1
        if not done:
            return
        del self._uncommitted[:done]
        if self._uncommitted:
            self.shared.moves(self, now)
        else:
            self.shared.waiting -= 1
            self.shared.rests(self)

    def validate(self) -> None:
        """Raises InvariantViolation."""
        state, waiting = self._state, self._uncommitted
        require(sum(size for _, size, _ in waiting) == self.uncommitted_bytes, "uncommitted bytes add up", waiting)
        require(0 <= self.uncommitted_bytes <= self.shared.size, "all partitions count these bytes", self.shared.size)
        ends = [state.high_watermark, *(end for end, _, _ in waiting)]
        require(all(a < b for a, b in pairwise(ends)), "uncommitted appends lie above the HW, in order", ends)
        require(ends[-1] <= state.log_end_offset, "uncommitted appends are in the log", ends)

    def resign(self, reason: str, out: list[LeaderEffect]) -> None:
        """Leadership is over: waiting publishes end as outcome unknown, and their bytes count no more."""
        out.extend(self.acks.abandon(reason))
        self.shared.partitions -= 1
        self.shared.size -= self.uncommitted_bytes
        self.shared.waiting -= bool(self._uncommitted)
        self.shared.rests(self)
        self.uncommitted_bytes = 0
        self._uncommitted.clear()
