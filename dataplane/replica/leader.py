"""The leader of one partition during one LeaderEpoch.

It sequences (the driver stamps and appends, and says so with `on_appended`), answers followers, decides what is
committed, keeps the ISR, and lets acknowledgements and consumers go.

    follower                              leader
      │ fetch(offset, epoch, seq) ────────> │ progress: acknowledged end of that follower, grows only
      │ <──────── header + batches          │ offset < LEO
      │ <──────── header alone              │ offset = LEO: caught up; a DATA WAITER is registered
      │                                     │ … something is appended: the waiter fires, once:
      │ <──────── header + batches          │     a second answer on the same inbox, or
      │ <──────── PartitionNotification     │     a notification (repeated until that follower fetches)

What always holds
* HW = min of the acknowledged ends over the MAXIMAL ISR; it never moves back, and never while the COMMITTED ISR is
  below min ISR. It starts from this replica's own HW.
* A replica's acknowledged end is what it has synced on `durable` streams, else what it has appended. The leader's own
  counts in the same way.
* Beside the HW stands the mark of publishes that wait for the other way of holding a record (`ack_levels`): min of
  those ends over the maximal ISR. It moves only for publishes that wait for it, under the same rules.
* Progress of followers is known from fetches of THIS LeaderEpoch only, and per broker incarnation.
* A follower is proposed for the ISR only when it has fetched in this epoch, holds everything to the HW, everything to
  the mark beside it in that mark's way, and everything to this epoch's start, synced (on an `accepted` stream too:
  something may have been acknowledged as synced by all); and only while no other proposal is out. When one is settled
  those who fetched meanwhile are looked at again. Who leaves the ISR has to fetch anew: it may have left because its
  disk failed.
* Nobody is told "latest" before HW >= the epoch's start: a new leader's HW lags behind what its predecessor committed.
* Asked with a LeaderEpoch above its own, it says nothing (it is the zombie); with one below, FENCED with its own.
* It never proposes to drop itself, and never judges anyone's lag by a time in which it was itself cut off or asleep.

Full disks. A follower without room says so with each fetch. It holds all that it reported, so nothing is wrong with it,
but nothing may wait for it: it is dropped as long as min ISR members remain, and proposed again when it fetches with
room. Where they do not remain, or the leader itself has no room, the ISR stays and publishes are refused with NO_SPACE
before anything is appended.

Disks that hang. A follower whose disk hangs says so with each fetch. It holds what it reported, but a commit that waits
for its sync waits for as long as the disk hangs: it is dropped as long as min ISR members remain, and not proposed
again before its disk answers. Where they would not remain nothing changes: it fetches as before, and lags as any other.
A leader whose own disk hangs drops nobody for that: it is to hand its leadership over.

A planned move. Asked to drain, it sequences nothing more and goes on answering followers. When the target's LEO and
acknowledged end, and the HW, are its own LEO, it says so, and waits for the LeaderEpoch in which the target leads: all
that was published at the stream's own level has its answer by then. (Where its own disk hangs the HW stays behind:
then the target's ends are enough, and what waits for its commit ends as outcome unknown.) Should the target not get so
far, or that LeaderEpoch not come, it sequences again after a while. Nothing depends on its waiting: an election that
comes later than that is one like any other.

    sequencing ──drain──> draining ──target has all──> drained ──new LeaderEpoch──> resigned
        ^                    │ timeout, the target       │ timeout, the target
        └────────────────────┴──── left the ISR ─────────┘ left the ISR
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, assert_never

from dataplane.replica.ack_levels import AckLevel, WaitingAcks
from dataplane.replica.consumers import ConsumerFetch, Consumers, Readable
from dataplane.replica.effects import (
    CompleteDrain,
    CompleteProduce,
    LeaderEffect,
    Notify,
    ProposeIsr,
    Refuse,
    RequestSync,
    Respond,
    SendCheckpoint,
    VerifyOwnCopy,
)
from dataplane.replica.epochs import LeaderEpochCache
from dataplane.replica.isr import CommittedIsr, IsrState, PendingExpandIsr, PendingShrinkIsr
from dataplane.replica.refusals import before_log, deletions_gone, fenced
from dataplane.replica.settings import ReplicaSettings
from dataplane.replica.uncommitted import Uncommitted
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import (
    BrokerId,
    Incarnation,
    IsrChange,
    IsrMember,
    LeaderEpoch,
    Offset,
    PartitionView,
)


@dataclass(slots=True, kw_only=True)
class FollowerFetch:
    """A ReplicationRequest, decoded."""

    replica: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    sequence: int
    offset: Offset
    durable_end: Offset | None
    progress_only: bool
    inbox: str
    max_bytes: int = 0
    refused_batch: str = ""
    no_space: bool = False
    """The follower wants no records: its disk is full."""
    disk_hangs: bool = False
    """The follower's disk has not answered for long."""
    deleted_end: Offset = Offset(0)
    """What tombstones below it deleted is not in the follower's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFetch:
    """A CheckpointRequest, decoded."""

    replica: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    offset: Offset | None
    position: int
    inbox: str


@dataclass(slots=True)
class _Follower:
    """Progress of one follower in this LeaderEpoch. Its ends only grow within an incarnation."""

    incarnation: Incarnation = Incarnation(0)
    sequence: int = -1
    log_end_offset: Offset = Offset(-1)
    """-1: it has not fetched in this epoch."""
    durable_end: Offset = Offset(-1)
    """Of what it has synced; never above `log_end_offset`."""
    last_fetch_at: float = -math.inf
    mark: Offset = Offset(0)
    """The LEO of the time of an earlier fetch, `marked_at`: once it is reached, the follower had caught up then."""
    sync_mark: Offset = Offset(0)
    """What it was to sync by then, on an `accepted` stream."""
    marked_at: float = -math.inf
    caught_up_at: float = 0.0
    waiter_inbox: str | None = None
    waiter_max_bytes: int = 0
    """Inbox of the request whose answer was empty, or is put off: its data waiter is registered."""
    answer_due: float | None = None
    """The waiter's request has had no answer; it gets an empty one then, and the waiter stays."""
    notified_at: float | None = None
    """Set from the waiter's firing until the follower fetches."""
    fired_at: float = -math.inf
    """When the waiter last fired."""
    patience: float = 0.0
    """Seconds until it is notified again, if more than `notify_retry`: twice as long as it took to fetch the last time,
    and twice that after each repetition. Brokers that have much to do are not given more."""
    told_high_watermark: Offset = Offset(0)
    no_space: bool = False
    """As its last request said."""
    disk_hangs: bool = False
    """The same."""
    deleted_end: Offset = Offset(0)
    """The same."""
    outside_fetch_at: float = -math.inf
    """Of the last fetch since it is not in the ISR."""
    expand_not_before: float = -math.inf
    """After a refusal (its life is over, it is declared dead) it is not proposed again at once."""


UNCOMMITTED_DELAYS: Final = 10
"""So many times `empty_answer_delay` an empty answer waits for the commit of what its follower has, at most."""

_NOBODY: Final[frozenset[BrokerId]] = frozenset()


@dataclass(slots=True)
class _Drain:
    """Nothing is sequenced, so that `target` can take over."""

    target: BrokerId
    token: object
    timeout: float
    deadline: float
    is_done: bool = False
    """The target has everything, and whoever asked knows it: another leader may have been elected by now."""


class Leader:
    def __init__(
        self,
        *,
        view: PartitionView,
        broker: BrokerId,
        incarnation: Incarnation,
        log_start_offset: Offset,
        log_end_offset: Offset,
        durable_end: Offset,
        high_watermark: Offset,
        epochs: LeaderEpochCache,
        settings: ReplicaSettings,
        now: float,
        no_space: bool = False,
        disk_hangs: bool = False,
        shared: Uncommitted | None = None,
    ) -> None:
        """`shared`: the uncommitted bytes of all partitions that this broker leads."""
        if view.leader != broker:
            raise InvariantViolation(f"{view.key}: {broker} made leader under a view whose leader is {view.leader}")
        self.view = view
        self.broker = broker
        self.incarnation = incarnation
        self.leader_epoch = view.leader_epoch
        self.epoch_start = log_end_offset
        """Exclusive end of what earlier epochs wrote: the first offset of this one."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.durable_end = durable_end
        self.high_watermark = min(high_watermark, log_end_offset)
        self.deletions_end = Offset(0)
        """Tombstones below it may be gone from the log. The driver sets it before it asks."""
        self.isr: IsrState = CommittedIsr(frozenset(view.isr))
        self.settings = settings
        self._epochs = epochs
        self._durable = view.config.is_durable
        self._beside = Offset(0)
        """Everybody in the maximal ISR holds everything below it the other way: in the page cache on a `durable`
        stream, synced on an `accepted` one; as far as publishes waited for that."""
        self._followers = {r: _Follower(caught_up_at=now) for r in view.replicas if r != broker}
        self._acks = WaitingAcks()
        self._drain: _Drain | None = None
        self._no_space = no_space
        """This replica can write no records at present."""
        self._disk_hangs = disk_hangs
        """This replica can sync none at present."""
        self._consumers = Consumers(epochs, settings, leads=True)
        self._high_watermark_at = now
        self._appended_at = -math.inf
        self._connected = True
        self._last_tick = now
        self._shared = shared or Uncommitted(settings)
        self._shared.partitions += 1
        self._uncommitted_bytes = 0
        self._uncommitted: list[tuple[Offset, int, float]] = []
        """(exclusive end, bytes, when appended)."""

    # ------------------------------------------------------------------ begin
    def announce(self) -> list[LeaderEffect]:
        """Everything that is asked of this leader reaches it from now on. Those who asked before, in vain, need not
        wait until they ask again."""
        return [Notify(replica) for replica in self._followers]

    # ------------------------------------------------------------------ admission
    def refuse_publish(self, level: AckLevel | None, *, lease_valid: bool, now: float) -> TidelogError | None:
        """Why a publish may not be appended now; None when it may. Asked before anything is appended. `level`: None for
        one that wants no acknowledgement."""
        view = self.view
        if view.readonly:
            return TidelogError(
                Code.READONLY, f"stream {view.key.stream} is read-only; publish elsewhere or make it writable"
            )
        if view.paused:
            return TidelogError(Code.PAUSED, f"partition {view.key} is paused; resume it first")
        if self._drain is not None:
            return self._refuse_while_draining(self._drain)
        without_room = self._in_the_way()
        if without_room:
            return TidelogError(
                Code.NO_SPACE,
                f"partition {view.key} takes no records: {', '.join(without_room)} has no room on its disk;"
                " make room or try again later",
                {"retry_after_ms": "500"},
            )
        alone = level is None or level.is_local
        needed = 0 if level is None or alone else max(view.config.min_isr, level.floor)
        if len(self.isr.members) < needed:
            return TidelogError(
                Code.NOT_ENOUGH_REPLICAS,
                f"partition {view.key} has {len(self.isr.members)} in-sync replicas and needs {needed}"
                " for this acknowledged publish; bring brokers back",
            )
        if alone and not lease_valid:
            return TidelogError(
                Code.UNAVAILABLE,
                f"{self.broker} has not heard of a controller within its lease"
                f" and may lead {view.key} no more; try again",
            )
        waited = now - self._uncommitted[0][2] if self._uncommitted else 0.0
        too_much = self._shared.why_not(self._uncommitted_bytes, waited)
        if too_much is not None:
            return TidelogError(
                Code.BACKPRESSURE,
                f"partition {view.key} has {too_much}; slow down",
                {"retry_after_ms": "50"},
            )
        return None

    def _in_the_way(self) -> list[BrokerId]:
        """Those without room whom a commit would wait for: this replica, and members that cannot be dropped."""
        if self._no_space:
            return [self.broker]
        full = self._members_without_room()
        return sorted(full) if full and len(self.isr.members - full) < self.view.config.min_isr else []

    def _members_without_room(self) -> frozenset[BrokerId]:
        full = [replica for replica, follower in self._followers.items() if follower.no_space]
        return self.isr.members.intersection(full) if full else _NOBODY

    def _refuse_while_draining(self, drain: _Drain) -> TidelogError:
        moving = f"the leadership of {self.view.key} is moving from {self.broker} to {drain.target}"
        if drain.is_done:  # the new leader may be hearing the same publish: the answer is its
            return TidelogError(Code.NOT_LEADER, f"{moving}; try again")
        return TidelogError(Code.UNAVAILABLE, f"{moving}; try again", {"retry_after_ms": "10"})

    # ------------------------------------------------------------------ appending
    def on_appended(self, end: Offset, size: int, now: float) -> list[LeaderEffect]:
        """The log holds everything below `end` (page cache); `size` bytes wait with it."""
        if end <= self.log_end_offset:
            raise InvariantViolation(f"{self.view.key}: appended up to {end} at LEO {self.log_end_offset}")
        self.log_end_offset = end
        self._appended_at = now
        self._uncommitted_bytes += size
        self._shared.size += size
        self._shared.waiting += not self._uncommitted
        self._uncommitted.append((end, size, now))
        out: list[LeaderEffect] = []
        for replica, follower in self._followers.items():
            if follower.waiter_inbox is not None:
                self._fire_waiter(replica, follower, now, out)
        if self._durable or self._sync_wanted_here() > self.durable_end:
            out.append(RequestSync())
        out.extend(self._acks.on_own_copy(self.log_end_offset, self.durable_end))
        self._advance(now, out)
        return out

    def on_synced(self, durable_end: Offset, now: float) -> list[LeaderEffect]:
        """Everything below `durable_end` is synced here."""
        out: list[LeaderEffect] = []
        if durable_end > self.durable_end:
            self.durable_end = durable_end
            out.extend(self._acks.on_own_copy(self.log_end_offset, self.durable_end))
            self._advance(now, out)
            self._look_at_drain(now, out)
        return out

    def await_ack(self, level: AckLevel, end: Offset, token: object, timeout: float, now: float) -> list[LeaderEffect]:
        """Complete `token` once everything below `end` is held as the level says (at once when it is). A publish is
        announced here before it is appended, so that its followers hear what to sync with its records."""
        if end <= self._reached(level):
            return [CompleteProduce(token)]
        self._acks.add(level, end, now + timeout, token)
        out: list[LeaderEffect] = []
        if not self._durable and level.is_synced and end <= self.log_end_offset:
            # A repetition of what lies here: nothing is appended that would ask for the syncs.
            if self._sync_wanted_here() > self.durable_end:
                out.append(RequestSync())
            for replica, follower in self._followers.items():
                if follower.waiter_inbox is not None and self._sync_wanted_of(replica, follower):
                    self._fire_waiter(replica, follower, now, out)
            self._advance(now, out)
        return out

    def _reached(self, level: AckLevel) -> Offset:
        """Everything below it is held as the level says."""
        if level.is_local:
            return self._end_of(self.broker, is_synced=level.is_synced)
        if len(self.isr.members) < level.floor:
            return Offset(0)
        if level.is_synced == self._durable:
            return self.high_watermark
        return self._beside if level.is_synced else max(self._beside, self.high_watermark)

    def _sync_wanted_here(self) -> Offset:
        """How far publishes that wait need this replica's own sync, on an `accepted` stream."""
        return max(self._acks.furthest_everywhere(is_synced=True), self._acks.furthest_local_sync)

    def _sync_wanted_of(self, replica: BrokerId, follower: _Follower) -> Offset:
        """How far a follower of an `accepted` stream is to sync, and to say so; 0: nobody waits for more than it has.

        A member for publishes that wait for it; who has caught up and is outside, so that it can join.
        """
        if self._durable:
            return Offset(0)
        wanted = self._acks.furthest_everywhere(is_synced=True)
        to_join = max(self.epoch_start, self._beside)
        if replica not in self.isr.maximal and follower.log_end_offset >= to_join:
            wanted = max(wanted, to_join)
        return wanted if wanted > follower.durable_end else Offset(0)

    # ------------------------------------------------------------------ followers
    def on_fetch(self, fetch: FollowerFetch, now: float) -> list[LeaderEffect]:
        if fetch.leader_epoch > self.leader_epoch:
            return []  # we are the zombie
        if fetch.leader_epoch < self.leader_epoch:
            return [Refuse(fetch.inbox, fenced(self.view, fetch.leader_epoch))]
        refused = self._refuse_stranger(fetch.replica, fetch.incarnation)
        if refused is not None:
            return [Refuse(fetch.inbox, refused)]
        follower = self._followers[fetch.replica]
        if fetch.incarnation > follower.incarnation:
            follower = self._followers[fetch.replica] = _Follower(
                incarnation=fetch.incarnation, caught_up_at=follower.caught_up_at
            )
        if fetch.sequence <= follower.sequence:
            return []  # late or repeated
        follower.sequence = fetch.sequence
        if fetch.offset > self.log_end_offset:
            return [
                Refuse(
                    fetch.inbox,
                    TidelogError(
                        Code.OFFSET_AHEAD,
                        f"{fetch.replica} asks for offset {fetch.offset} of {self.view.key}, whose log ends at"
                        f" {self.log_end_offset}; reconcile again",
                    ),
                )
            ]
        out: list[LeaderEffect] = []
        self._record_progress(follower, fetch, now)
        if fetch.refused_batch:
            out.append(VerifyOwnCopy(fetch.offset, fetch.refused_batch))
        self._advance(now, out)
        self._look_at_drain(now, out)
        if fetch.replica not in self.isr.members:
            follower.outside_fetch_at = now
        self._drop_for_their_disks(now, out)
        self._maybe_expand(fetch.replica, follower, now, out)
        if not fetch.progress_only:
            if fetch.offset < self.log_start_offset:
                out.append(Refuse(fetch.inbox, before_log(self.view.key, self.log_start_offset, fetch.offset)))
                return out
            if self.lacks_deletions(fetch.replica, fetch.offset):
                out.append(Refuse(fetch.inbox, deletions_gone(self.view.key, self.log_start_offset, fetch.offset)))
                return out
            self._answer(fetch, follower, now, out)
        return out

    def lacks_deletions(self, replica: BrokerId, offset: Offset) -> bool:
        """Whether the follower, going on from `offset`, may keep for ever what a tombstone deleted that is gone
        here."""
        return max(offset, self._followers[replica].deleted_end) < self.deletions_end

    def _refuse_stranger(self, replica: BrokerId, incarnation: Incarnation) -> TidelogError | None:
        """Only a replica is answered, and not one whose newer life is known."""
        follower = self._followers.get(replica)
        if follower is None:
            return TidelogError(Code.STALE_EPOCH, f"{replica} is no replica of {self.view.key}; refresh the metadata")
        if incarnation < follower.incarnation:
            return TidelogError(
                Code.STALE_EPOCH,
                f"{replica} fetched in life {incarnation}, and life {follower.incarnation} is known here",
            )
        return None

    def _record_progress(self, follower: _Follower, fetch: FollowerFetch, now: float) -> None:
        if fetch.durable_end is not None:
            synced = min(fetch.durable_end, fetch.offset)
        else:
            synced = fetch.offset if self._durable else Offset(0)  # it was not asked, and says nothing of it
        acknowledged = synced if self._durable else fetch.offset
        follower.log_end_offset = max(follower.log_end_offset, fetch.offset)
        follower.durable_end = max(follower.durable_end, synced)
        # Judged by what is acknowledged, not by what was fetched: a follower whose disk hangs holds up every commit. On
        # an `accepted` stream it holds up what waits for syncs, where something does.
        # The mark stands until it is reached: on a busy stream a sync is never through before the next fetch leaves.
        to_sync = Offset(0) if self._durable else self._acks.furthest_everywhere(is_synced=True)
        reached = acknowledged >= follower.mark and follower.durable_end >= follower.sync_mark
        if acknowledged >= self.log_end_offset and follower.durable_end >= to_sync:
            follower.caught_up_at = now
        elif reached:
            follower.caught_up_at = max(follower.caught_up_at, follower.marked_at)
        if reached:
            follower.mark, follower.sync_mark, follower.marked_at = self.log_end_offset, to_sync, now
        follower.last_fetch_at = now
        follower.no_space = fetch.no_space
        follower.disk_hangs = fetch.disk_hangs
        follower.deleted_end = fetch.deleted_end
        if not fetch.progress_only:
            if follower.notified_at is not None:
                follower.patience = 2 * (now - follower.fired_at)
            follower.notified_at = None
            follower.waiter_inbox = None
            follower.answer_due = None

    def _answer(self, fetch: FollowerFetch, follower: _Follower, now: float, out: list[LeaderEffect]) -> None:
        limit = min(fetch.max_bytes or self.settings.fetch_max_bytes, self.settings.fetch_max_bytes)
        sync_to = self._sync_wanted_of(fetch.replica, follower)
        if fetch.no_space:
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, 0, self.high_watermark, sync_to))
        elif fetch.offset < self.log_end_offset:
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, limit, self.high_watermark, sync_to))
        else:
            follower.waiter_inbox = fetch.inbox
            follower.waiter_max_bytes = limit
            delay = 0.0 if sync_to else self._better_later(now)
            if delay:
                follower.answer_due = now + delay
                return
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, 0, self.high_watermark, sync_to))
        follower.told_high_watermark = self.high_watermark

    def _better_later(self, now: float) -> float:
        """For how long an empty answer is put off; 0: not at all. While records come in, as far as the last ones let
        hope, it is work for nothing, and what its follower does with it too. Before they are committed it would have to
        be followed by another one that says so. Where data do not go to waiters, the answer is what makes the follower
        listen to notifications."""
        settings = self.settings
        delay = settings.empty_answer_delay
        if not settings.push_to_waiters or not delay:
            return 0.0
        if self.high_watermark < self.log_end_offset:
            return max(delay, min(UNCOMMITTED_DELAYS * delay, settings.replica_fetch_timeout / 2))
        return delay if now - self._appended_at < delay else 0.0

    def _answer_due_at(self, follower: _Follower) -> float:
        """Of an answer that is put off: sooner when all is committed."""
        due = math.inf if follower.answer_due is None else follower.answer_due
        if self.high_watermark < self.log_end_offset:
            return due
        return min(due, max(self._high_watermark_at, follower.last_fetch_at) + self.settings.empty_answer_delay)

    def _answer_late(self, replica: BrokerId, follower: _Follower, out: list[LeaderEffect]) -> None:
        """No data came; the waiter stays."""
        follower.answer_due = None
        inbox, end = follower.waiter_inbox, follower.log_end_offset
        if inbox is None:
            raise InvariantViolation(f"{self.view.key}: {replica} waits for nothing")
        sync_to = self._sync_wanted_of(replica, follower)
        out.append(Respond(replica, inbox, end, 0, self.high_watermark, sync_to))
        follower.told_high_watermark = self.high_watermark

    def _fire_waiter(self, replica: BrokerId, follower: _Follower, now: float, out: list[LeaderEffect]) -> None:
        """Once: unregistered before anything is sent."""
        inbox, follower.waiter_inbox = follower.waiter_inbox, None
        follower.answer_due = None
        if inbox is None:
            raise InvariantViolation(f"{self.view.key}: no data waiter of {replica} to fire")
        follower.notified_at = follower.fired_at = now
        if self.settings.push_to_waiters:
            limit = follower.waiter_max_bytes if follower.log_end_offset < self.log_end_offset else 0
            sync_to = self._sync_wanted_of(replica, follower)
            out.append(Respond(replica, inbox, follower.log_end_offset, limit, self.high_watermark, sync_to))
            follower.told_high_watermark = self.high_watermark
        else:
            out.append(Notify(replica))

    # ------------------------------------------------------------------ high watermark
    def _end_of(self, member: BrokerId, *, is_synced: bool) -> Offset:
        """How far it holds the log in that way."""
        if member == self.broker:
            return self.durable_end if is_synced else self.log_end_offset
        follower = self._followers.get(member)
        if follower is None:
            return Offset(-1)
        return follower.durable_end if is_synced else follower.log_end_offset

    def _acknowledged(self, member: BrokerId) -> Offset:
        return self._end_of(member, is_synced=self._durable)

    def _acknowledged_by_all(self) -> Offset:
        """Of the maximal ISR. Asked at every fetch: `_acknowledged` of each, without a call for each."""
        end = self.durable_end if self._durable else self.log_end_offset
        for member in self.isr.maximal:
            if member == self.broker:
                continue
            follower = self._followers.get(member)
            if follower is None:
                return Offset(-1)
            end = min(end, follower.durable_end if self._durable else follower.log_end_offset)
        return end

    def _advance(self, now: float, out: list[LeaderEffect]) -> None:
        members = len(self.isr.members)
        if members < self.view.config.min_isr:
            return
        moved = self._move_high_watermark(now)
        out.extend(self._acks.on_everywhere(self.high_watermark, members, is_synced=self._durable))
        if moved and self._consumers.is_anybody_waiting:
            out.extend(self._consumers.on_high_watermark(self._readable()))
        if self._acks.furthest_everywhere(is_synced=not self._durable):
            end = min(self._end_of(member, is_synced=not self._durable) for member in self.isr.maximal)
            self._beside = max(self._beside, end)
            out.extend(self._acks.on_everywhere(self._beside, members, is_synced=not self._durable))

    def _move_high_watermark(self, now: float) -> bool:
        end = self._acknowledged_by_all()
        if end <= self.high_watermark:
            return False
        if end > self.log_end_offset:
            raise InvariantViolation(f"{self.view.key}: HW {end} above LEO {self.log_end_offset}")
        self.high_watermark = end
        self._high_watermark_at = now
        done = 0
        for uncommitted_end, size, _ in self._uncommitted:
            if uncommitted_end > end:
                break
            self._uncommitted_bytes -= size
            self._shared.size -= size
            done += 1
        del self._uncommitted[:done]
        self._shared.waiting -= done > 0 and not self._uncommitted
        return True

    # ------------------------------------------------------------------ ISR
    def on_view(self, view: PartitionView, now: float) -> list[LeaderEffect]:
        """Newer metadata of the same LeaderEpoch and leader. Anything else ends this object's life (`resign`)."""
        if view.leader_epoch != self.leader_epoch or view.leader != self.broker:
            raise InvariantViolation(
                f"{view.key}: view of epoch {view.leader_epoch} given to leader of {self.leader_epoch}"
            )
        if view.epoch < self.view.epoch:
            return []
        moved = view.epoch > self.view.epoch
        self.view = view
        for replica in view.replicas:
            if replica != self.broker and replica not in self._followers:
                self._followers[replica] = _Follower(caught_up_at=now)
        for replica in list(self._followers):
            if replica not in view.replicas:
                del self._followers[replica]
        out: list[LeaderEffect] = []
        if moved:
            for member in frozenset(view.isr) - self.isr.members:
                if member in self._followers:
                    self._followers[member].caught_up_at = max(self._followers[member].caught_up_at, now)
            for member in frozenset(view.isr) ^ self.isr.members:
                if member in self._followers:
                    self._followers[member].outside_fetch_at = -math.inf
            proposed = self.isr
            self.isr = CommittedIsr(frozenset(view.isr))
            if isinstance(proposed, PendingExpandIsr) and proposed.added not in self.isr.members:
                refused = self._followers.get(proposed.added)
                if refused is not None:
                    refused.expand_not_before = now + self.settings.alter_isr_retry
            self._advance(now, out)
            self._look_at_drain(now, out)
            self._drop_for_their_disks(now, out)
            self._expand_by_any(now, out)
        return out

    def on_space(self, no_space: bool, now: float) -> list[LeaderEffect]:
        """This replica's disk has no room for records any more, or has some again."""
        out: list[LeaderEffect] = []
        self._no_space = no_space
        self._drop_for_their_disks(now, out)
        return out

    def on_disk(self, hangs: bool, now: float) -> list[LeaderEffect]:
        """This replica's disk has begun to hang, or answers again."""
        out: list[LeaderEffect] = []
        self._disk_hangs = hangs
        self._drop_for_their_disks(now, out)
        self._look_at_drain(now, out)
        return out

    def _drop_for_their_disks(self, now: float, out: list[LeaderEffect]) -> None:
        """Members for which nothing may wait leave, if min ISR members remain."""
        if isinstance(self.isr, CommittedIsr) and self._connected:
            self._drop_without_room(now, out)
        if isinstance(self.isr, CommittedIsr) and self._connected and not self._disk_hangs:
            self._drop_hanging(now, out)

    def _drop_hanging(self, now: float, out: list[LeaderEffect]) -> None:
        hanging = [replica for replica, follower in self._followers.items() if follower.disk_hangs]
        leaving = self.isr.members.intersection(hanging) if hanging else _NOBODY
        if leaving and len(self.isr.members - leaving) >= self.view.config.min_isr:
            self._propose_shrink(leaving, f"disk hangs: {', '.join(sorted(leaving))}", now, out)

    def _drop_without_room(self, now: float, out: list[LeaderEffect]) -> None:
        """All of them while this replica can go on writing, else those that lack what is here already."""
        full = self._members_without_room()
        if not full:
            return
        behind = frozenset(m for m in full if self._followers[m].log_end_offset < self.log_end_offset)
        for leaving in (behind,) if self._no_space else (full, behind):
            if leaving and len(self.isr.members - leaving) >= self.view.config.min_isr:
                self._propose_shrink(leaving, f"without room: {', '.join(sorted(leaving))}", now, out)
                return

    def _expand_by_any(self, now: float, out: list[LeaderEffect]) -> None:
        for replica, follower in self._followers.items():
            self._maybe_expand(replica, follower, now, out)

    def _maybe_expand(self, replica: BrokerId, follower: _Follower, now: float, out: list[LeaderEffect]) -> None:
        if now < follower.expand_not_before or not self._wants_in(replica, follower, now):
            return
        if self._acknowledged(replica) < self.high_watermark:
            return
        if self._end_of(replica, is_synced=not self._durable) < self._beside:
            return
        if follower.durable_end < self.epoch_start:
            return  # all that predecessors committed, or acknowledged as synced by all, lies below the epoch's start
        change = self._change(self.isr.members | {replica}, f"{replica} has caught up")
        self.isr = PendingExpandIsr(self.isr.members, replica, change, now)
        out.append(ProposeIsr(change))

    def _wants_in(self, replica: BrokerId, follower: _Follower, now: float) -> bool:
        settings = self.settings
        return (
            isinstance(self.isr, CommittedIsr)
            and replica not in self.isr.members
            and not follower.no_space
            and not follower.disk_hangs
            and now - follower.outside_fetch_at <= settings.replica_max_idle_wait + settings.replica_fetch_timeout
            and now - follower.caught_up_at <= settings.replica_max_lag_time
        )

    def _propose_shrink(self, leaving: Collection[BrokerId], reason: str, now: float, out: list[LeaderEffect]) -> None:
        change = self._change(self.isr.members - set(leaving), reason)
        self.isr = PendingShrinkIsr(self.isr.members, change, now)
        out.append(ProposeIsr(change))

    def _change(self, members: frozenset[BrokerId], reason: str) -> IsrChange:
        if self.broker not in members:
            raise InvariantViolation(f"{self.view.key}: leader {self.broker} would leave its own ISR")
        return IsrChange(
            key=self.view.key,
            leader=self.broker,
            leader_epoch=self.leader_epoch,
            expected_epoch=self.view.epoch,
            new_isr=tuple(IsrMember(m, self._incarnation_of(m)) for m in sorted(members)),
            reason=reason,
        )

    def _incarnation_of(self, member: BrokerId) -> Incarnation:
        """The life in which it was seen to fetch; 0 for a committed member that has not fetched in this epoch yet."""
        if member == self.broker:
            return self.incarnation
        follower = self._followers.get(member)
        return follower.incarnation if follower is not None else Incarnation(0)

    # ------------------------------------------------------------------ consumers
    def on_consumer_fetch(self, fetch: ConsumerFetch, now: float) -> list[LeaderEffect]:
        """Committed batches from `fetch.offset` on, now or when there are some."""
        return [*self._consumers.on_fetch(fetch, self._readable(), now)]

    def _readable(self) -> Readable:
        return Readable(
            view=self.view,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self.high_watermark,
        )

    def latest(self) -> Offset | TidelogError:
        """The offset that the next record to be committed will have, or why that is not known yet."""
        if self.high_watermark < self.epoch_start:
            return TidelogError(
                Code.UNAVAILABLE,
                f"the new leader of {self.view.key} does not know yet what is committed; try again",
                {"retry_after_ms": "20"},
            )
        return self.high_watermark

    # ------------------------------------------------------------------ `.offset`
    def on_offset_request(
        self, asked: LeaderEpoch, current: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset] | TidelogError | None:
        """(largest epoch <= asked, its exclusive end), (0, log start) when there is none; None = stay silent."""
        if current > self.leader_epoch:
            return None
        if current < self.leader_epoch:
            return fenced(self.view, current)
        found = self._epochs.end_offset_for(asked, self.log_end_offset)
        return found if found is not None else (LeaderEpoch(0), self.log_start_offset)

    def on_log_start(self, log_start: Offset) -> None:
        """The oldest segments were removed. All of them were committed."""
        self.log_start_offset = log_start

    # ------------------------------------------------------------------ `.checkpoint`
    def on_checkpoint_request(self, fetch: CheckpointFetch) -> list[LeaderEffect]:
        """A follower lacks what lies below the log start: it is told what follows from that. The log start may move on
        while it asks for one piece after the other; then it begins again."""
        if fetch.leader_epoch > self.leader_epoch:
            return []  # we are the zombie
        if fetch.leader_epoch < self.leader_epoch:
            return [Refuse(fetch.inbox, fenced(self.view, fetch.leader_epoch))]
        refused = self._refuse_stranger(fetch.replica, fetch.incarnation)
        if refused is None and fetch.offset is not None and fetch.offset != self.log_start_offset:
            refused = before_log(self.view.key, self.log_start_offset, fetch.offset)
        if refused is not None:
            return [Refuse(fetch.inbox, refused)]
        start = self.log_start_offset
        return [SendCheckpoint(fetch.replica, fetch.inbox, start, fetch.position, self.high_watermark)]

    # ------------------------------------------------------------------ time and connection
    def on_connection(self, connected: bool, now: float) -> None:
        """Lag clocks stand while our own connection is down and begin anew when it is back."""
        self._connected = connected
        if connected:
            self._restart_lag_clocks(now)

    def _restart_lag_clocks(self, now: float) -> None:
        for follower in self._followers.values():
            follower.caught_up_at = now

    def tick(self, now: float) -> list[LeaderEffect]:
        out: list[LeaderEffect] = []
        settings = self.settings
        if now - self._last_tick > max(settings.late_tick, self._tick_interval() + settings.late_tick):
            self._restart_lag_clocks(now)
        self._last_tick = now
        self._advance(now, out)  # a leader without followers learns here what is committed: nobody's fetch tells it
        self._look_at_drain(now, out)
        out.extend(self._acks.expire(now))
        for replica, follower in self._followers.items():
            if follower.notified_at is not None and now - follower.last_fetch_at > settings.replica_max_lag_time:
                follower.notified_at = None  # gone; should it live, it asks after its idle wait anyway
            elif follower.notified_at is not None and now - follower.notified_at >= self._patience(follower):
                follower.patience = 2 * self._patience(follower)
                follower.notified_at = now
                out.append(Notify(replica))
            elif follower.answer_due is not None:
                if now >= self._answer_due_at(follower):
                    self._answer_late(replica, follower, out)
            elif (
                follower.waiter_inbox is not None
                and follower.told_high_watermark < self.high_watermark
                and now - self._high_watermark_at >= settings.high_watermark_notify_delay
            ):
                self._fire_waiter(replica, follower, now, out)
        out.extend(self._consumers.expire(now, self.high_watermark))
        state = self.isr
        match state:
            case CommittedIsr():
                lagging = [
                    m
                    for m in state.members
                    if m != self.broker
                    and (
                        m not in self._followers
                        or now - self._followers[m].caught_up_at > settings.replica_max_lag_time
                    )
                ]
                if lagging and self._connected:
                    self._propose_shrink(lagging, f"lagging: {', '.join(sorted(lagging))}", now, out)
                else:
                    self._expand_by_any(now, out)
            case PendingExpandIsr(sent_at=sent_at) | PendingShrinkIsr(sent_at=sent_at):
                if now - sent_at >= settings.alter_isr_retry:
                    self.isr = (
                        PendingExpandIsr(state.members, state.added, state.change, now)
                        if isinstance(state, PendingExpandIsr)
                        else PendingShrinkIsr(state.members, state.change, now)
                    )
                    out.append(ProposeIsr(state.change))
            case _:
                assert_never(state)
        return out

    def _patience(self, follower: _Follower) -> float:
        settings = self.settings
        return max(settings.notify_retry, min(follower.patience, settings.replica_max_lag_time / 5))

    def _tick_interval(self) -> float:
        return self.settings.replica_max_lag_time / 4

    def next_deadline(self) -> float:
        """When `tick` is due at the latest (monotonic seconds)."""
        due = self._last_tick + self._tick_interval()
        waits_until = self._acks.next_deadline()
        if waits_until is not None and waits_until < due:
            due = waits_until
        for replica, follower in self._followers.items():
            if follower.expand_not_before > self._last_tick and self._wants_in(replica, follower, self._last_tick):
                due = min(due, follower.expand_not_before)
            if follower.notified_at is not None:
                due = min(due, follower.notified_at + self._patience(follower))
            elif follower.answer_due is not None:
                due = min(due, self._answer_due_at(follower))
            elif follower.waiter_inbox is not None and follower.told_high_watermark < self.high_watermark:
                due = min(due, self._high_watermark_at + self.settings.high_watermark_notify_delay)
        due = min(due, self._consumers.next_deadline())
        if self._drain is not None:
            due = min(due, self._drain.deadline)
        if not isinstance(self.isr, CommittedIsr):
            due = min(due, self.isr.sent_at + self.settings.alter_isr_retry)
        return due

    # ------------------------------------------------------------------ planned moves
    def drain(self, target: BrokerId, token: object, timeout: float, now: float) -> list[LeaderEffect]:
        """Sequence nothing more until `target` has everything, then complete `token`; see the module. `timeout`
        bounds the way there, and again the wait for the new LeaderEpoch. A newer request replaces an older one."""
        out: list[LeaderEffect] = []
        if self._drain is not None:
            self._end_drain(f"a later request names {target}", out)
        self._drain = _Drain(target, token, timeout, now + timeout)
        self._look_at_drain(now, out)
        return out

    def _look_at_drain(self, now: float, out: list[LeaderEffect]) -> None:
        drain = self._drain
        if drain is None:
            return
        follower = self._followers.get(drain.target)
        if follower is None or drain.target not in self.isr.members:
            self._end_drain(f"{drain.target} is not in its ISR, {', '.join(sorted(self.isr.members))}", out)
            return
        if follower.no_space:
            self._end_drain(f"{drain.target} has no room on its disk", out)
            return
        if follower.disk_hangs:
            self._end_drain(f"the disk of {drain.target} hangs", out)
            return
        end = self.log_end_offset
        held = self._acknowledged(drain.target)
        committed = self.high_watermark == end or self._disk_hangs
        if not drain.is_done and committed and follower.log_end_offset == held == end:
            drain.is_done = True
            drain.deadline = now + drain.timeout
            out.append(CompleteDrain(drain.token))
        elif now >= drain.deadline:
            self._end_drain(
                f"{drain.target} did not get to its end in {drain.timeout:g} s: the log ends at {end}, {drain.target}"
                f" holds it to {max(0, held)}, it is committed to {self.high_watermark}",
                out,
            )

    def _end_drain(self, why: str, out: list[LeaderEffect]) -> None:
        drain, self._drain = self._drain, None
        if drain is not None and not drain.is_done:
            error = TidelogError(
                Code.LEADER_NOT_MOVED, f"{self.broker} did not hand {self.view.key} over to {drain.target}: {why}"
            )
            out.append(CompleteDrain(drain.token, error))

    # ------------------------------------------------------------------ end of leadership
    def resign(self, reason: str) -> list[LeaderEffect]:
        """Leadership of this epoch is over. Publishes that wait end as outcome unknown; consumers are sent
        elsewhere."""
        out: list[LeaderEffect] = [*self._acks.abandon(reason)]
        out.extend(self._consumers.refuse_all(TidelogError(Code.NOT_LEADER, reason)))
        self._end_drain(reason, out)
        self._shared.partitions -= 1
        self._shared.size -= self._uncommitted_bytes
        self._shared.waiting -= bool(self._uncommitted)
        self._uncommitted_bytes = 0
        self._uncommitted.clear()
        return out

    # ------------------------------------------------------------------ what others want to know
    @property
    def has_waiting_follower(self) -> bool:
        """Some follower would take a batch at once."""
        for follower in self._followers.values():  # noqa: SIM110 - asked for every chunk, and half the time of any()
            if follower.waiter_inbox is not None:
                return True
        return False

    def progress(self) -> dict[BrokerId, tuple[Offset | None, bool]]:
        """Replica -> (its LEO, None when not heard of in this epoch; in the committed ISR)."""
        out: dict[BrokerId, tuple[Offset | None, bool]] = {self.broker: (self.log_end_offset, True)}
        for replica, follower in self._followers.items():
            end = follower.log_end_offset if follower.log_end_offset >= 0 else None
            out[replica] = (end, replica in self.isr.members)
        return out
