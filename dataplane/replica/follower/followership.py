"""The facts of a follower during one LeaderEpoch: its own log, and the state that it is in.

The parts of a follower share one `Followership`: `reconciling` finds out where its log and the leader's part,
`installing` begins anew at the leader's log start, `fetching` copies, `follower_reads` serves consumers, and `follower`
passes the events to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.transaction_table import TransactionTable
from dataplane.replica.follower.follower_states import (
    COPYING,
    MAX_SNAPSHOT_BYTES,
    TRANSITIONS,
    Fetching,
    FollowerState,
    Idle,
    Installing,
    Leaderless,
    Reconciling,
)
from dataplane.replica.history import History
from wire.errors import InvariantViolation, require
from wire.types import BrokerId, LeaderEpoch, Offset, PartitionView


@dataclass(slots=True, kw_only=True)
class Followership:
    view: PartitionView
    broker: BrokerId
    leader_epoch: LeaderEpoch
    log_start_offset: Offset
    withheld_below: Offset
    """The highest log start that a leader has reported: consumers are served nothing below."""
    log_end_offset: Offset
    durable_end: Offset
    high_watermark: Offset
    is_durable: bool
    transactions: TransactionTable
    """Those of the log, up to its end; while the log is being cut, of some part of it."""
    sync_to: Offset = Offset(0)
    """How far the leader has asked for a sync, on an `accepted` stream."""
    question: int
    """Number of the last request that was no fetch."""
    was_notified: bool = False
    """A notification has come since the last fetch left, or since the last question that was due."""
    state: FollowerState = field(default_factory=Leaderless)
    history: History

    def enter(self, state: FollowerState, now: float) -> None:
        before, after = type(self.state), type(state)
        if after not in TRANSITIONS[before]:
            raise InvariantViolation(
                f"{self.view.key}: a follower cannot go from {self.state} to {state}\n{self.history}"
            )
        self.state = state
        if before is not after and not (before in COPYING and after in COPYING):
            self.history.add(
                f"{after.__name__}, log end {self.log_end_offset}, committed end {self.high_watermark}", now
            )

    def validate(self) -> None:
        """Raises InvariantViolation."""
        start, end, state = self.log_start_offset, self.log_end_offset, self.state
        require(0 <= start <= end, "log start <= LEO", (start, end))
        require(self.durable_end <= end, "no more is synced than appended", (self.durable_end, end))
        require(start <= self.high_watermark <= end, "log start <= HW <= LEO", (start, self.high_watermark, end))
        require(self.view.leader != self.broker, "a follower does not lead", self.view)
        match state:
            case Reconciling():
                require(state.number == self.question, "the newest question is out", (state, self.question))
                require(state.cut <= end, "a cut is within the log", (state, end))
            case Installing():
                require(state.number == self.question, "the newest question is out", (state, self.question))
                require(state.position < MAX_SNAPSHOT_BYTES, "a snapshot is bounded", state.position)
            case Fetching() | Idle():
                require(state.offset == end, "the fetch asks for the LEO", (state, end))
            case _:
                pass

    @property
    def first_record(self) -> Offset:
        """Returns the first offset that consumers may read."""
        return self.view.first_record(max(self.log_start_offset, self.withheld_below))

    @property
    def last_stable_offset(self) -> Offset:
        """Exclusive end of what consumers may read that do not read uncommitted transactions."""
        return max(self.transactions.last_stable(self.high_watermark), self.log_start_offset)

    def next_question(self) -> int:
        self.question += 1
        return self.question

    @property
    def is_relied_on(self) -> bool:
        """It is in the ISR, or eligible: it holds all that is committed, and answers for it."""
        return self.broker in (*self.view.isr, *self.view.eligible)

    # Keeps R74.
    def may_cut_committed(self, epochs: LeaderEpochCache) -> bool:
        """The metadata knows of an election, after the last record that is committed here was written, of a leader that
        may lack it."""
        newest = epochs.epoch_at(Offset(self.high_watermark - 1))
        return self.view.loss_epoch > (newest or 0)

    # R47: Followers of a paused partition sleep, and a record wakes them. A follower in the ISR that knows that
    # everything it holds is committed, and owes no sync, fetches no more and does not suspect its leader; the leader
    # takes its sleep for no lag until a record comes. With the first record the leader asks the controller to resume,
    # and nothing waits for that. With `auto_pause_time_ms` it asks for the pause. Both are compare-and-set on
    # LeaderEpoch and partition epoch.
    # Hazard: A lost wake-up; sleep that is taken for lag or for a dead leader.
    # Not covered: A sleeping follower does not watch its leader. Publishers, or the next view, find a leader whose
    # process lives and that does not serve the partition.
    @property
    def may_sleep(self) -> bool:
        """Its partition is paused, and it has nothing to ask for: it is in the ISR, and knows that all it holds is
        committed. Its leader wakes it with the next record (R47)."""
        view = self.view
        return (
            view.paused
            and self.broker in view.isr
            and self.high_watermark == self.log_end_offset
            and not self.owes_a_sync
        )

    @property
    def is_asleep(self) -> bool:
        return isinstance(self.state, Idle) and self.state.until == math.inf

    # R12: On a `durable` stream, acknowledged means synced, for the leader's own copy too. A follower fetches on as
    # soon as a batch is in its page cache and reports its durable end in the next fetch, or in a progress-only request
    # when the sync ends. A quick sync of a small batch may come first, so that one request carries both. The
    # acknowledged end is min(`durable_offset`, `offset`).
    # Hazard: Records that count as synced and are lost with the power.
    @property
    def reported_end(self) -> Offset | None:
        """Exclusive end of the synced log, where the leader counts that."""
        return self.durable_end if self.is_durable or self.sync_to else None

    @property
    def owes_a_sync(self) -> bool:
        """The leader waits for a sync of this log."""
        return self.durable_end < self.log_end_offset and (self.is_durable or self.durable_end < self.sync_to)
