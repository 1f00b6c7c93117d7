"""The facts of a leader during one LeaderEpoch: its own log, the ISR, and the progress of its followers.

The parts of a leader share one `Leadership`: `commits` moves the watermarks, `isr_keeping` changes the ISR,
`data_waiters` answers followers, `draining` hands leadership over, `cutover` reports where a layout ends, `admission`
judges publishes, and `leader` passes the events to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dataplane.replica.consumers import Readable
from dataplane.replica.derived.transaction_table import TransactionTable
from dataplane.replica.history import History
from dataplane.replica.leader.isr import IsrState
from dataplane.replica.leader.isr import validate as validate_isr
from dataplane.replica.replica_settings import ReplicaSettings
from wire.echo import echo
from wire.errors import Code, TidelogError, require
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionView


@dataclass(slots=True, kw_only=True)
class FollowerFetch:
    """A ReplicationRequest."""

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
    """Records that tombstones below it deleted are not in the follower's log."""
    log_start_offset: Offset = Offset(0)
    """The log start of the follower: it serves consumers nothing below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFetch:
    """A SnapshotRequest."""

    replica: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    offset: Offset | None
    position: int
    inbox: str


@dataclass(slots=True)
class FollowerProgress:
    """Progress of one follower in this LeaderEpoch. Its ends only grow within an incarnation."""

    incarnation: Incarnation = Incarnation(0)
    sequence: int = -1
    log_end_offset: Offset = Offset(-1)
    """-1: it has not fetched in this epoch."""
    durable_end: Offset = Offset(-1)
    """Exclusive end of its synced log; never above `log_end_offset`."""
    last_fetch_at: float = -math.inf
    mark: Offset = Offset(0)
    """The LEO at the time of an earlier fetch, `marked_at`: once it is reached, the follower had caught up then."""
    sync_mark: Offset = Offset(0)
    """How far it was to sync by then, on an `accepted` stream."""
    marked_at: float = -math.inf
    caught_up_at: float = 0.0
    waiter_inbox: str | None = None
    """Inbox of the request whose answer was empty, or is put off: its data waiter is registered."""
    waiter_max_bytes: int = 0
    waiter_sequence: int = -1
    """Sequence number of the waiter's request."""
    answer_due: float | None = None
    """The waiter's request has had no answer; it gets an empty one then, and the waiter stays."""
    notified_at: float | None = None
    """Set from the waiter's firing until the follower fetches."""
    fired_at: float = -math.inf
    """When the waiter last fired."""
    patience: float = 0.0
    """Seconds until it is notified again, if more than `notify_retry`: twice as long as it took to fetch the last time,
    and twice that after each repetition. Overloaded followers are not notified more often."""
    known_high_watermark: Offset = Offset(0)
    no_space: bool = False
    """Its last request said that its disk is full."""
    disk_hangs: bool = False
    """Its last request said that its disk hangs."""
    deleted_end: Offset = Offset(0)
    """As of `FollowerFetch`, in the follower's last request."""
    log_start_offset: Offset = Offset(0)
    """As of `FollowerFetch`, in the follower's last request."""
    credited_at: int = 0
    """What is above it of `Leadership.appended_bytes` may be sent to it without a charge (R89)."""
    outside_fetch_at: float = -math.inf
    """Time of its last fetch while it was not in the ISR; -inf: none since it left."""
    expand_not_before: float = -math.inf
    """After a refusal (its incarnation is over, it is declared dead) it is not proposed again at once."""

    # R10: Progress belongs to one incarnation of a broker. The leader keeps LEO and acknowledged end of (replica,
    # incarnation) from fetches of its own LeaderEpoch, and they only grow. A newer incarnation starts from nothing,
    # and an older one is refused with STALE_EPOCH.
    # Hazard: Progress that was reported before a loss of power.
    def on_fetch(
        self, fetch: FollowerFetch, leader_end: Offset, to_sync: Offset, now: float, *, is_durable: bool
    ) -> None:
        """`leader_end`: the leader's LEO. `to_sync`: how far publishes wait for the syncs of all, on an `accepted`
        stream."""
        if fetch.durable_end is not None:
            synced = min(fetch.durable_end, fetch.offset)
        else:
            synced = fetch.offset if is_durable else Offset(0)  # it was not asked, and does not report it
        acknowledged = synced if is_durable else fetch.offset
        self.log_end_offset = max(self.log_end_offset, fetch.offset)
        self.durable_end = max(self.durable_end, synced)
        # Lag is judged by the acknowledged end, not by the fetched one: a follower whose disk hangs holds up every
        # commit. On an `accepted` stream it holds up the publishes that wait for syncs.
        # The mark stands until it is reached: on a busy stream a sync never ends before the next fetch leaves.
        reached = acknowledged >= self.mark and self.durable_end >= self.sync_mark
        if acknowledged >= leader_end and self.durable_end >= to_sync:
            self.caught_up_at = now
        elif reached:
            self.caught_up_at = max(self.caught_up_at, self.marked_at)
        if reached:
            self.mark, self.sync_mark, self.marked_at = leader_end, to_sync, now
        self.last_fetch_at = now
        self.no_space = fetch.no_space
        self.disk_hangs = fetch.disk_hangs
        self.deleted_end = fetch.deleted_end
        self.log_start_offset = fetch.log_start_offset
        if not fetch.progress_only:
            if self.notified_at is not None:
                self.patience = 2 * (now - self.fired_at)
            self.notified_at = None
            self.waiter_inbox = None
            self.answer_due = None

    # Keeps R17, R83.
    def on_parked(self, leader_end: Offset, to_sync: Offset, now: float, *, is_durable: bool) -> bool:
        """The fetch that waits here is asked about. Returns whether it leaves nothing to be said: the follower has
        acknowledged everything. Then it counts as fetched again. Arguments as of `on_fetch`."""
        acknowledged = self.durable_end if is_durable else self.log_end_offset
        if acknowledged < leader_end or self.durable_end < to_sync or self.no_space or self.disk_hangs:
            return False
        self.caught_up_at = self.last_fetch_at = self.marked_at = now
        self.mark, self.sync_mark = leader_end, to_sync
        return True


@dataclass(slots=True, kw_only=True)
class Leadership:
    view: PartitionView
    broker: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    epoch_start: Offset
    """First offset of this epoch: the exclusive end of the earlier ones."""
    log_start_offset: Offset
    withheld_below: Offset
    """Consumers are served nothing below it: an earlier leader's log began there."""
    log_end_offset: Offset
    durable_end: Offset
    high_watermark: Offset
    high_watermark_at: float
    """When the HW last moved."""
    isr: IsrState
    settings: ReplicaSettings
    transactions: TransactionTable
    """Those of the log, up to its end."""
    is_durable: bool
    """A replica's acknowledged end is the end of its synced log, on a `durable` stream; else its LEO."""
    secondary_watermark: Offset = Offset(0)
    """All of the maximal ISR hold everything below it in the way that the HW does not ask for: in the page cache on a
    `durable` stream, synced on an `accepted` one. It moves only for publishes that wait for it."""
    appended_at: float = -math.inf
    appended_bytes: int = 0
    """Bytes of all batches that were appended in this LeaderEpoch."""
    no_space: bool
    """This replica can write no records at present."""
    disk_hangs: bool
    """This replica can sync no records at present."""
    is_connected: bool = True
    followers: dict[BrokerId, FollowerProgress] = field(default_factory=dict)
    history: History

    @property
    def first_record(self) -> Offset:
        """Returns the first offset that consumers may read."""
        return self.view.first_record(max(self.log_start_offset, self.withheld_below))

    @property
    def last_stable_offset(self) -> Offset:
        """Exclusive end of what consumers may read that do not read uncommitted transactions."""
        return max(self.transactions.last_stable(self.high_watermark), self.log_start_offset)

    def end_of(self, member: BrokerId, *, is_synced: bool) -> Offset:
        """The end of its log, or of its synced log; -1: not known in this LeaderEpoch."""
        if member == self.broker:
            return self.durable_end if is_synced else self.log_end_offset
        follower = self.followers.get(member)
        if follower is None:
            return Offset(-1)
        return follower.durable_end if is_synced else follower.log_end_offset

    def acknowledged(self, member: BrokerId) -> Offset:
        return self.end_of(member, is_synced=self.is_durable)

    # R13: The HW is the minimum of the acknowledged ends over the maximal ISR. A member that is proposed for expansion
    # counts, for it may be in the ISR already, and one that is proposed for removal still counts. Only applied state
    # settles a proposal (a higher partition epoch, or another LeaderEpoch); silence means unknown, and the proposal is
    # sent again.
    # Hazard: The election of a member that the leader did not know of.
    def acknowledged_by_all(self) -> Offset:
        """Minimum of the acknowledged ends over the maximal ISR. It is asked for at every fetch, so it does without a
        call of `acknowledged` for each member."""
        end = self.durable_end if self.is_durable else self.log_end_offset
        for member in self.isr.maximal:
            if member == self.broker:
                continue
            follower = self.followers.get(member)
            if follower is None:
                return Offset(-1)
            end = min(end, follower.durable_end if self.is_durable else follower.log_end_offset)
        return end

    # Keeps R62.
    def have_cut_to_this_log(self) -> bool:
        """Whether no replica that may lead after this one holds records that this log does not have. Those that the
        view relies on have fetched in this LeaderEpoch, so each has cut its log to this one before; and no other joins
        them in this LeaderEpoch without having fetched in it (R18)."""
        return self.isr_has_cut_to_this_log() and self._have_fetched(self.view.eligible)

    def isr_has_cut_to_this_log(self) -> bool:
        """The same of the ISR alone. No replica is eligible while the ISR has `min_isr` members."""
        return self._have_fetched(self.view.isr)

    def _have_fetched(self, replicas: Iterable[BrokerId]) -> bool:
        return all(self.end_of(replica, is_synced=False) >= 0 for replica in replicas)

    # Keeps R10.
    def refuse_stranger(self, replica: BrokerId, incarnation: Incarnation) -> TidelogError | None:
        """Only a replica is answered, and only in its newest known incarnation."""
        follower = self.followers.get(replica)
        if follower is None:
            return TidelogError(
                Code.STALE_EPOCH, f"{echo(replica)} is no replica of {self.view.key}; refresh the metadata"
            )
        if incarnation < follower.incarnation:
            return TidelogError(
                Code.STALE_EPOCH,
                f"{replica} fetched in life {incarnation}, and life {follower.incarnation} is known here",
            )
        return None

    # Keeps R17.
    def restart_lag_clocks(self, now: float) -> None:
        for follower in self.followers.values():
            follower.caught_up_at = now

    def validate(self) -> None:
        """Raises InvariantViolation."""
        end = self.log_end_offset
        require(0 <= self.log_start_offset <= end, "log start <= LEO", (self.log_start_offset, end))
        require(self.view.purged_end <= end, "what was deleted lies below LEO", (self.view.purged_end, end))
        require(self.durable_end <= end, "no more is synced than appended", (self.durable_end, end))
        require(self.epoch_start <= end, "the epoch begins in the log", (self.epoch_start, end))
        require(
            self.log_start_offset <= self.high_watermark <= end,
            "log start <= HW <= LEO",
            (self.log_start_offset, self.high_watermark, end),
        )
        require(self.secondary_watermark <= end, "secondary watermark <= LEO", (self.secondary_watermark, end))
        validate_isr(self.isr, self.view)
        expected = {replica for replica in self.view.replicas if replica != self.broker}
        require(self.followers.keys() == expected, "each other replica is a follower", self.followers.keys())
        for replica, follower in self.followers.items():
            found = replica, follower
            require(follower.durable_end <= follower.log_end_offset <= end, "a follower holds part of the log", found)
            require(
                follower.waiter_inbox is not None or follower.answer_due is None,
                "an answer that is put off has a data waiter",
                found,
            )
            require(
                follower.waiter_inbox is None or follower.notified_at is None,
                "a data waiter that fired is unregistered",
                found,
            )

    def readable(self) -> Readable:
        return Readable(
            view=self.view,
            log_start_offset=self.first_record,
            log_end_offset=self.log_end_offset,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
        )
