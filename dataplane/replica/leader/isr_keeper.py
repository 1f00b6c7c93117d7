"""How a leader keeps the ISR: members that lag or whose disks fail are dropped, followers that have caught up join.

Invariants
* A follower is proposed for the ISR only when it has fetched in this epoch, holds everything to the HW, everything to
  the secondary watermark in that one's way, and everything to this epoch's start, synced (on an `accepted` stream too:
  something may have been acknowledged as synced by all); and only while no other proposal is out. When one is settled
  the followers that fetched meanwhile are looked at again. A member that leaves the ISR has to fetch anew before it can
  return: it may have left because its disk failed.
* Members that have come back in a new life (`PartitionView.returned`) are confirmed when they have fetched in it, and
  hold everything to this epoch's start and to the HW: the ISR as it is is proposed, once for all of them (R71). While
  others are awaited after the loss of a leader, nobody knows how far their logs reach. An expansion confirms those that
  are in sync by then, too, and it waits for a confirmation that is out: of two proposals on one partition epoch the
  later one is refused. After a restart of all, thousands of partitions have both to propose.
* The leader never proposes to drop itself, and judges no lag by a time in which it was itself cut off or asleep.

Full disks. A follower without room says so with each fetch. It holds all that it reported, so nothing is wrong with it,
but nothing may wait for it: it is dropped as long as min ISR members remain, and proposed again when it fetches with
room. Where they do not remain, or the leader itself has no room, the ISR stays and publishes are refused with NO_SPACE
before anything is appended.

Disks that hang. A follower whose disk hangs says so with each fetch. It holds what it reported, but a commit that waits
for its sync waits for as long as the disk hangs: it is dropped as long as min ISR members remain, and not proposed
again before its disk answers. Where they would not remain nothing changes: it fetches as before, and lags as any other.
A leader whose own disk hangs drops no follower for that: it is to hand its leadership over.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Final, assert_never

from dataplane.replica.leader.isr import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from dataplane.replica.leader.leadership import FollowerProgress, Leadership
from dataplane.replica.replica_effects import LeaderEffect, ProposeIsr
from wire.errors import InvariantViolation
from wire.types import BrokerId, Incarnation, IsrChange, IsrMember, PartitionEpoch, PartitionView

_NONE: Final[frozenset[BrokerId]] = frozenset()


class IsrKeeper:
    def __init__(self, state: Leadership) -> None:
        self._state = state
        self._confirm_not_before = -math.inf
        self._confirming: PartitionEpoch | None = None
        """The partition epoch on which members were confirmed last."""

    # ------------------------------------------------------------------ settling
    # Keeps R13.
    def on_view(self, view: PartitionView, now: float) -> None:
        """A view with a higher partition epoch settles the ISR: the proposal has taken effect, or never will."""
        state = self._state
        members = frozenset(view.isr)
        for member in members - state.isr.members:
            if member in state.followers:
                state.followers[member].caught_up_at = max(state.followers[member].caught_up_at, now)
        for member in members ^ state.isr.members:
            if member in state.followers:
                state.followers[member].outside_fetch_at = -math.inf
        proposed = state.isr
        if proposed.maximal != members or proposed.members != members:
            state.history.add(f"ISR {','.join(sorted(members))}, partition epoch {view.epoch}", now)
        state.isr = CommittedIsr(members)
        if isinstance(proposed, PendingExpandIsr) and proposed.added not in members:
            refused = state.followers.get(proposed.added)
            if refused is not None:
                refused.expand_not_before = now + state.settings.alter_isr_retry

    def tick(self, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        isr = state.isr
        match isr:
            case CommittedIsr():
                lagging = self._lagging(isr, now)
                if lagging and state.is_connected:
                    self._propose_shrink(lagging, f"lagging: {', '.join(sorted(lagging))}", now, out)
                else:
                    self.expand_by_any(now, out)
            case PendingExpandIsr(sent_at=sent_at) | PendingShrinkIsr(sent_at=sent_at):
                if now - sent_at >= state.settings.alter_isr_retry:
                    state.isr = (
                        PendingExpandIsr(isr.members, isr.added, isr.change, now)
                        if isinstance(isr, PendingExpandIsr)
                        else PendingShrinkIsr(isr.members, isr.change, now)
                    )
                    self._propose(isr.change, now, out)
            case _:
                assert_never(isr)

    def next_deadline(self, ticked_at: float) -> float:
        """When a proposal is due again, or a follower that was refused may be proposed; inf: neither."""
        state = self._state
        isr = state.isr
        due = math.inf if isinstance(isr, CommittedIsr) else isr.sent_at + state.settings.alter_isr_retry
        for replica, follower in state.followers.items():
            not_before = max(follower.expand_not_before, self._expand_not_before)
            if not_before > ticked_at and self._may_join(replica, follower, ticked_at):
                due = min(due, not_before)
        return due

    def on_fetch(self, replica: BrokerId, follower: FollowerProgress, now: float, out: list[LeaderEffect]) -> None:
        """Takes a fetch or a report of `replica`, which may join the ISR; members may leave it for their disks."""
        state = self._state
        if replica not in state.isr.members:
            follower.outside_fetch_at = now
        self.drop_for_their_disks(now, out)
        if replica not in state.isr.members:
            self.maybe_expand(replica, follower, now, out)
        if state.view.returned:
            self.confirm_returned(now, out)

    # Keeps R17.
    def earliest_lag(self) -> float:
        """Returns before when no member can lag, whatever comes; inf: there is no other member. -inf: `tick` may have
        something to do before."""
        state = self._state
        isr = state.isr
        if not isinstance(isr, CommittedIsr) or len(isr.members) <= len(state.followers) or not state.is_connected:
            return -math.inf
        if state.view.returned:
            return -math.inf
        caught_up = (follower.caught_up_at for follower in state.followers.values())
        return min(caught_up, default=math.inf) + state.settings.replica_max_lag_time

    # ------------------------------------------------------------------ shrinking
    # R17: A member leaves the ISR by time: the leader proposes to drop one that has not been caught up for
    # `replica_max_lag_time`. A member is caught up at t when its acknowledged end has reached the LEO of t, the time
    # of an earlier fetch of its own. The clocks stand while the leader's own connection is down and start anew after
    # that, and after a timer that fired late. The leader never proposes to drop itself.
    # Hazard: A follower is dropped for a time in which the leader itself was cut off or asleep.
    def _lagging(self, isr: CommittedIsr, now: float) -> list[BrokerId]:
        state = self._state
        limit = state.settings.replica_max_lag_time
        return [
            m
            for m in isr.members
            if m != state.broker and (m not in state.followers or now - state.followers[m].caught_up_at > limit)
        ]

    def drop_for_their_disks(self, now: float, out: list[LeaderEffect]) -> None:
        """Members for which nothing may wait leave, if min ISR members remain."""
        state = self._state
        for follower in state.followers.values():  # asked for at every fetch: most often no disk fails
            if follower.no_space or follower.disk_hangs:
                break
        else:
            return
        if isinstance(state.isr, CommittedIsr) and state.is_connected:
            self._drop_without_room(now, out)
        if isinstance(state.isr, CommittedIsr) and state.is_connected and not state.disk_hangs:
            self._drop_hanging(now, out)

    # Keeps R40.
    def _drop_hanging(self, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        hanging = [replica for replica, follower in state.followers.items() if follower.disk_hangs]
        leaving = state.isr.members.intersection(hanging) if hanging else _NONE
        if leaving and self._can_do_without(leaving):
            self._propose_shrink(leaving, f"disk hangs: {', '.join(sorted(leaving))}", now, out)

    # Keeps R38.
    def _drop_without_room(self, now: float, out: list[LeaderEffect]) -> None:
        """All of them while this replica can go on writing, else the members that lack records of this log."""
        full = self._members_without_room()
        if not full:
            return
        state = self._state
        behind = frozenset(m for m in full if state.followers[m].log_end_offset < state.log_end_offset)
        for leaving in (behind,) if state.no_space else (full, behind):
            if leaving and self._can_do_without(leaving):
                self._propose_shrink(leaving, f"without room: {', '.join(sorted(leaving))}", now, out)
                return

    def _can_do_without(self, leaving: frozenset[BrokerId]) -> bool:
        return len(self._state.isr.members - leaving) >= self._state.view.config.min_isr

    def _members_without_room(self) -> frozenset[BrokerId]:
        state = self._state
        full = _NONE
        for replica, follower in state.followers.items():  # no list: this is asked for every publish
            if follower.no_space and replica in state.isr.members:
                full |= {replica}
        return full

    def commits_wait_for_room_of(self) -> list[BrokerId]:
        """The replicas without room that a commit would wait for: this one, and members that cannot be dropped."""
        if self._state.no_space:
            return [self._state.broker]
        full = self._members_without_room()
        return sorted(full) if full and not self._can_do_without(full) else []

    def _propose_shrink(self, leaving: Collection[BrokerId], reason: str, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        change = self._change(state.isr.members - set(leaving), reason)
        state.isr = PendingShrinkIsr(state.isr.members, change, now)
        self._propose(change, now, out)

    # ------------------------------------------------------------------ expanding
    def expand_by_any(self, now: float, out: list[LeaderEffect]) -> None:
        for replica, follower in self._state.followers.items():
            self.maybe_expand(replica, follower, now, out)
        self.confirm_returned(now, out)

    # Keeps R71.
    def confirm_returned(self, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        if not state.view.returned or now < self._confirm_not_before or not isinstance(state.isr, CommittedIsr):
            return
        back = self._back()
        if not back or not all(map(self._is_back_in_sync, back)):
            return
        self._confirm_not_before = now + state.settings.alter_isr_retry
        self._confirming = state.view.epoch
        names = tuple(member.broker for member in back)
        change = self._change(state.isr.members, f"{', '.join(names)} came back in sync")
        self._propose(replace(change, caught_up=names), now, out)

    def _back(self) -> list[IsrMember]:
        state = self._state
        return [m for m in state.view.returned if m.broker in state.isr.members and m.broker != state.broker]

    def _is_back_in_sync(self, member: IsrMember) -> bool:
        state = self._state
        follower = state.followers.get(member.broker)
        return (
            follower is not None
            and follower.incarnation >= member.incarnation
            and state.acknowledged(member.broker) >= max(state.epoch_start, state.high_watermark)
        )

    def maybe_expand(self, replica: BrokerId, follower: FollowerProgress, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        if now < max(follower.expand_not_before, self._expand_not_before):
            return
        if not self._may_join(replica, follower, now):
            return
        if state.acknowledged(replica) < state.high_watermark:
            return
        if state.end_of(replica, is_synced=not state.is_durable) < state.secondary_watermark:
            return
        if follower.durable_end < state.epoch_start:
            return  # all that predecessors committed, or acknowledged as synced by all, lies below the epoch's start
        change = self._change(state.isr.members | {replica}, f"{replica} has caught up")
        if state.view.returned:
            confirmed = (member.broker for member in self._back() if self._is_back_in_sync(member))
            change = replace(change, caught_up=tuple(confirmed))
        state.isr = PendingExpandIsr(state.isr.members, replica, change, now)
        self._propose(change, now, out)

    @property
    def _expand_not_before(self) -> float:
        """When a confirmation that is out is taken for lost; -inf: none is out."""
        return self._confirm_not_before if self._confirming == self._state.view.epoch else -math.inf

    # R18: A follower joins the ISR by offset, never by time. It must have fetched in this LeaderEpoch, since it left
    # the ISR, and lately; acknowledge everything to the HW; hold everything to the secondary watermark in that one's
    # way; have synced everything to the start of the LeaderEpoch; and not lag. Nothing else may be proposed.
    # Hazard: A member that lacks what the leader's predecessor committed.
    def _may_join(self, replica: BrokerId, follower: FollowerProgress, now: float) -> bool:
        state = self._state
        settings = state.settings
        return (
            isinstance(state.isr, CommittedIsr)
            and replica not in state.isr.members
            and not follower.no_space
            and not follower.disk_hangs
            and now - follower.outside_fetch_at <= settings.replica_max_idle_wait + settings.replica_fetch_timeout
            and now - follower.caught_up_at <= settings.replica_max_lag_time
        )

    # ------------------------------------------------------------------ proposals
    def _propose(self, change: IsrChange, now: float, out: list[LeaderEffect]) -> None:
        names = ",".join(member.broker for member in change.new_isr)
        self._state.history.add(
            f"proposes ISR {names} at partition epoch {change.expected_epoch}: {change.reason}", now
        )
        out.append(ProposeIsr(change))

    # Keeps R19.
    def _change(self, members: frozenset[BrokerId], reason: str) -> IsrChange:
        state = self._state
        if state.broker not in members:
            raise InvariantViolation(f"{state.view.key}: leader {state.broker} would leave its own ISR")
        return IsrChange(
            key=state.view.key,
            leader=state.broker,
            leader_epoch=state.leader_epoch,
            expected_epoch=state.view.epoch,
            new_isr=tuple(IsrMember(m, self._incarnation_of(m)) for m in sorted(members)),
            reason=reason,
        )

    def _incarnation_of(self, member: BrokerId) -> Incarnation:
        """The incarnation in which it fetched; 0 for a committed member that has not fetched in this epoch yet."""
        if member == self._state.broker:
            return self._state.incarnation
        follower = self._state.followers.get(member)
        return follower.incarnation if follower is not None else Incarnation(0)
