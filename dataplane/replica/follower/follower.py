"""A follower of one partition during one LeaderEpoch.

`Follower` takes the events and passes them to its parts, which share one `Followership`; its states and their
transitions stand in `follower_states`:

    reconciling      where its log and the leader's part
    installing       a new beginning at the leader's log start
    fetching         when fetches leave, and what they report
    follower_reads   consumers that read here
    leader_contact   whether the leader is alive

Invariants, beside those of the parts
* An answer is used only if it belongs to the newest data request, that request asked for our present LEO, it comes from
  the LeaderEpoch we expect, and its first offset is not below our LEO. Everything else is dropped.
* The HW adopted is min(leader's HW, own LEO); it only grows, but for a truncation.
* A durable end is reported only after the sync that covers it. On a `durable` stream everything is synced; on an
  `accepted` one the records that the leader names, because a publish waits for them.
* Without room on its disk it goes on fetching, and reports that it wants no records: it holds all that it reported, and
  the leader knows at once that nothing may wait for it. While its disk hangs it goes on fetching, records too, and
  reports that nothing should wait for it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final
from zlib import crc32

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.transaction_table import TransactionTable
from dataplane.replica.follower.follower_reads import FollowerReads
from dataplane.replica.follower.follower_states import (
    Diverged,
    FetchAnswer,
    Fetching,
    FollowerState,
    Idle,
    Installing,
    Leaderless,
    OffsetAnswer,
    Reconciling,
    SnapshotAnswer,
    Syncing,
    Truncating,
)
from dataplane.replica.follower.followership import Followership
from dataplane.replica.follower.leader_contact import LeaderContact
from dataplane.replica.follower.reconciliation import BeginAnew, Installer, Reconciler
from dataplane.replica.history import History
from dataplane.replica.replica_effects import (
    AppendReplicated,
    FollowerEffect,
    RequestSync,
    SendFetch,
    StartOver,
    Truncate,
)
from dataplane.replica.replica_settings import ReplicaSettings
from wire.error_details import DELETIONS_GONE, LOG_START
from wire.errors import Code, InvariantViolation, TidelogError, require
from wire.retry import Retry
from wire.types import BrokerId, LeaderEpoch, Offset, PartitionView

SPREAD: Final = 1 / 6
"""Part of an idle wait over which the followers that one message asked about are spread when they fetch."""


class Fetcher:
    """The fetches of a follower: when they leave, what they report, and how long an answer is waited for."""

    def __init__(
        self,
        replica: Followership,
        contact: LeaderContact,
        bad_answers: Retry,
        settings: ReplicaSettings,
        *,
        first_sequence: int,
        no_space: bool,
        disk_hangs: bool,
    ) -> None:
        """`bad_answers`: the wait before a batch that was refused is asked for anew; at first 0."""
        self.no_space = no_space
        """Records cannot be written at present."""
        self.disk_hangs = disk_hangs
        """Records are not synced at present."""
        self.timeout = Retry(settings.replica_fetch_timeout, settings.replica_max_leader_timeout, chance=None)
        """It grows with every fetch that is given up, so that slow answers come through."""
        self.refused_batch = ""
        """Why the last answer was refused; the next fetch reports it to the leader."""
        self.sent_at = -math.inf
        """When the last fetch for records left."""
        self._replica = replica
        self._contact = contact
        self._bad_answers = bad_answers
        self._settings = settings
        self._sequence = first_sequence

    def fetch(self, now: float) -> list[FollowerEffect]:
        replica = self._replica
        if replica.is_asleep:
            self._contact.on_late_tick(now)  # the leader was not asked for anything meanwhile
        self._sequence += 1
        self.sent_at = now
        replica.was_notified = False
        self._contact.no_responders = False
        replica.enter(Fetching(self._sequence, replica.log_end_offset, now + self.timeout.pause_s()), now)
        refused, self.refused_batch = self.refused_batch, ""
        fetch = SendFetch(self._sequence, replica.log_end_offset, replica.reported_end, False, refused)
        fetch.no_space, fetch.disk_hangs = self.no_space, self.disk_hangs
        fetch.log_start_offset = replica.first_record
        return [fetch]

    def report(self) -> SendFetch:
        """A fetch that asks for nothing and reports progress."""
        self._sequence += 1
        report = SendFetch(self._sequence, self._replica.log_end_offset, self._replica.reported_end, True)
        report.no_space, report.disk_hangs = self.no_space, self.disk_hangs
        report.log_start_offset = self._replica.first_record
        return report

    def wait_for_sync(self, now: float) -> None:
        self._replica.enter(Syncing(now + self._settings.replica_fetch_timeout / 2), now)

    def on_good_answer(self) -> None:
        self._bad_answers.succeeded()
        self.refused_batch = ""

    def on_bad_answer(self, sequence: int, reason: str, now: float) -> list[FollowerEffect]:
        """The answer does not decode: nothing is taken of it, and it is reported to the leader, which verifies its copy
        each time, so the same is asked for again after ever longer waits."""
        state = self._replica.state
        if not isinstance(state, (Fetching, Idle)) or sequence != state.sequence:
            return []
        self.refused_batch = reason
        wait = self._bad_answers.failed()
        if wait == 0.0:
            return self.fetch(now)
        self.timeout.succeeded()
        self._replica.enter(Idle(state.sequence, state.offset, now + wait), now)
        return []

    def pause(self, wait: float, now: float) -> None:
        """The leader refused the fetch that was out: ask again in a while."""
        self._replica.enter(Idle(self._sequence, self._replica.log_end_offset, now + wait), now)

    def pause_longer(self, now: float) -> None:
        """The same answer would come again: it is asked for after ever longer waits."""
        self._bad_answers.failed()
        self.pause(self._bad_answers.pause_s(), now)

    def idle(self, state: Fetching | Idle, since: float, *, earlier: float = 0.0) -> None:
        """The leader has nothing new: its data waiter, a notification or the time ends the wait. `earlier`: seconds by
        which the wait is shorter."""
        is_well = not self.no_space and not self.disk_hangs
        may_sleep = self._replica.may_sleep and is_well
        until = math.inf if may_sleep else since + self._settings.replica_max_idle_wait - earlier
        self._replica.enter(Idle(state.sequence, state.offset, until, is_well and not may_sleep), since)


class Follower:
    def __init__(
        self,
        *,
        view: PartitionView,
        broker: BrokerId,
        log_start_offset: Offset,
        log_end_offset: Offset,
        durable_end: Offset,
        high_watermark: Offset,
        epochs: LeaderEpochCache,
        transactions: TransactionTable,
        settings: ReplicaSettings,
        first_sequence: int,
        connected_since: float,
        now: float,
        no_space: bool = False,
        disk_hangs: bool = False,
        history: History | None = None,
        withheld_below: Offset = Offset(0),
    ) -> None:
        """`history`: that of the replica."""
        if view.leader == broker:
            raise InvariantViolation(f"{view.key}: {broker} made follower of itself")
        self.broker = broker
        self.leader_epoch = view.leader_epoch
        self.settings = settings
        self.stopped: TidelogError | None = None
        """Why nothing can be copied until an operator acts; a good answer ends that."""
        self._replica = replica = Followership(
            view=view,
            broker=broker,
            leader_epoch=view.leader_epoch,
            log_start_offset=log_start_offset,
            withheld_below=withheld_below,
            log_end_offset=log_end_offset,
            durable_end=durable_end,
            high_watermark=min(high_watermark, log_end_offset),
            is_durable=view.config.is_durable,
            transactions=transactions,
            question=first_sequence,
            history=history or History(),
        )
        replica.history.add(
            f"follows {view.leader or 'no leader'} in LeaderEpoch {view.leader_epoch}, log end {log_end_offset},"
            f" committed end {replica.high_watermark}, ISR {','.join(view.isr)}, partition epoch {view.epoch}",
            now,
        )
        self._contact = LeaderContact(settings, replica.history, connected_since=connected_since, now=now)
        bad_answers = Retry(settings.offset_retry, settings.replica_max_idle_wait, chance=None, at_once=True)
        self._reconciler = Reconciler(replica, epochs, self._contact, settings)
        self._installer = Installer(replica, epochs, self._contact, bad_answers, settings)
        self._fetcher = Fetcher(
            replica,
            self._contact,
            bad_answers,
            settings,
            first_sequence=first_sequence,
            no_space=no_space,
            disk_hangs=disk_hangs,
        )
        self._reads = FollowerReads(replica, epochs, settings)
        self._epochs = epochs
        self._ticked_at = now
        part = crc32(f"{view.key.stream}/{view.key.partition}".encode()) / 2**32
        self._earlier = part * SPREAD * settings.replica_max_idle_wait
        """Seconds by which this partition fetches before those of the same message, when no answer comes (R83)."""

    @property
    def view(self) -> PartitionView:
        return self._replica.view

    @property
    def state(self) -> FollowerState:
        return self._replica.state

    @property
    def log_end_offset(self) -> Offset:
        return self._replica.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._replica.high_watermark

    @property
    def withheld_below(self) -> Offset:
        """Consumers are served nothing below it: the highest log start that a leader has reported (R82)."""
        return self._replica.withheld_below

    @property
    def owes_a_sync(self) -> bool:
        """The leader waits for a sync of this log."""
        return self._replica.owes_a_sync

    # ------------------------------------------------------------------ reconciliation
    def start(self, now: float) -> list[FollowerEffect]:
        return [] if self._replica.view.leader is None else self._reconcile(now)

    def _reconcile(self, now: float) -> list[FollowerEffect]:
        asked = self._reconciler.begin(now)
        return [*asked, *self._reads.refuse_waiting(now)] if asked else self._fetcher.fetch(now)

    def on_offset_answer(self, answer: OffsetAnswer, now: float) -> list[FollowerEffect]:
        step = self._reconciler.on_answer(answer, now)
        if isinstance(self._replica.state, Diverged):
            self.stopped = self._replica.state.error
        if isinstance(step, list):
            return step
        if isinstance(step, BeginAnew):
            return self._install(now)
        replica = self._replica
        if step.offset >= replica.log_end_offset:
            return self._fetcher.fetch(now)
        replica.enter(Truncating(), now)
        cut = max(step.offset, replica.log_start_offset)
        return [Truncate(cut, cut < replica.high_watermark and replica.may_cut_committed(self._epochs))]

    def on_log_start(self, log_start: Offset) -> None:
        """The oldest segments were removed here. All of them were committed. While the log is being cut, or begun anew,
        its end moves too, and `on_truncated` brings both."""
        if not isinstance(self._replica.state, Truncating):
            self._replica.log_start_offset = log_start
            self._replica.transactions.forget_aborted(log_start)

    def on_truncated(self, log_start: Offset, log_end: Offset, now: float) -> list[FollowerEffect]:
        """The log was cut (or dropped) and that is on disk."""
        replica = self._replica
        if not isinstance(replica.state, Truncating):
            raise InvariantViolation(f"{replica.view.key}: truncated while {replica.state}")
        replica.log_start_offset = log_start
        replica.log_end_offset = replica.durable_end = log_end
        replica.high_watermark = max(min(replica.high_watermark, log_end), log_start)
        replica.withheld_below = min(replica.withheld_below, log_end)
        self._reads.fetched_at = -math.inf
        replica.history.add(f"its log begins at {log_start} and ends at {log_end}", now)
        return self._fetcher.fetch(now)

    # ------------------------------------------------------------------ beginning at the leader's log start
    def _install(self, now: float) -> list[FollowerEffect]:
        return [*self._installer.begin(now), *self._reads.refuse_waiting(now)]

    def on_snapshot_answer(self, answer: SnapshotAnswer, now: float) -> list[FollowerEffect]:
        return self._installer.on_answer(answer, now)

    def on_bad_snapshot(self, now: float) -> list[FollowerEffect]:
        """It is not the snapshot at a log start; nothing was changed. It is asked for anew, in a while."""
        return self._installer.on_bad_snapshot(now)

    # ------------------------------------------------------------------ fetching
    # R9: Only the answer to the newest data request counts, and only if that request asked for the present LEO in the
    # expected LeaderEpoch and the first offset of the answer is not below the LEO (compaction leaves holes above).
    # Each data request has an inbox of its own and a sequence number; the leader ignores a number at or below the last
    # one of that incarnation.
    # Hazard: Answers that come late, in another order, or twice.
    # Keeps R1, R82.
    def on_answer(self, answer: FetchAnswer, now: float) -> list[FollowerEffect]:
        replica, state = self._replica, self._replica.state
        if not isinstance(state, (Fetching, Idle)) or answer.sequence != state.sequence:
            return []  # late, or of another role
        if answer.leader_epoch < self.leader_epoch:
            return []  # from a zombie; the leader's own answer may still come on this inbox
        if answer.leader_epoch > self.leader_epoch:
            self._fetcher.pause(self.settings.offset_retry, now)
            return []
        self._fetcher.timeout.succeeded()
        if answer.error is not None:
            return self._on_error(answer.error, now)
        if state.offset != replica.log_end_offset:
            return []
        if answer.first_offset is not None and answer.first_offset < replica.log_end_offset:
            return []
        self._contact.on_good_answer(now)
        self._fetcher.on_good_answer()
        self._reads.fetched_at = max(self._reads.fetched_at, self._fetcher.sent_at)
        self.stopped = None
        has_risen = answer.log_start > replica.first_record
        replica.withheld_below = max(replica.withheld_below, answer.log_start)
        asked_to_sync = answer.sync_to > replica.sync_to
        replica.sync_to = max(replica.sync_to, answer.sync_to)
        if answer.first_offset is not None and not self._fetcher.no_space:
            return [AppendReplicated(answer.high_watermark)]
        served = self._reads.adopt(answer.high_watermark, now)
        if asked_to_sync and replica.owes_a_sync:
            served.append(RequestSync())
        if isinstance(state, Idle) or replica.was_notified:
            return [*self._fetcher.fetch(now), *served]
        self._fetcher.idle(state, now)
        if has_risen or (asked_to_sync and not replica.owes_a_sync):
            return [self._fetcher.report(), *served]  # the leader waits for it
        return served

    def on_appended(
        self,
        log_end: Offset,
        high_watermark: Offset,
        now: float,
        *,
        durable_end: Offset | None = None,
        sync_first: bool = False,
    ) -> list[FollowerEffect]:
        """The batches of the answer are in the log (page cache), and everything below `durable_end` is synced where
        the driver knows already. Fetch on at once; a sync that is still owed goes on beside it. `sync_first`: they are
        small, and many logs wait for the disk. Then one request after the sync does for two, and finds more."""
        replica = self._replica
        if log_end <= replica.log_end_offset:
            raise InvariantViolation(f"{replica.view.key}: appended up to {log_end} at LEO {replica.log_end_offset}")
        replica.log_end_offset = log_end
        if durable_end is not None:
            replica.durable_end = max(replica.durable_end, min(durable_end, log_end))
        served = self._reads.adopt(high_watermark, now)
        if not replica.owes_a_sync:
            return [*self._fetcher.fetch(now), *served]
        if sync_first:
            self._fetcher.wait_for_sync(now)
            return [RequestSync(), *served]
        return [*self._fetcher.fetch(now), RequestSync(), *served]

    # Keeps R11.
    def on_bad_answer(self, sequence: int, reason: str, now: float) -> list[FollowerEffect]:
        """The answer does not decode: nothing is taken of it, and it is reported to the leader."""
        self._replica.history.add(f"it refuses the batch at {self.log_end_offset}: {reason}", now)
        return self._fetcher.on_bad_answer(sequence, reason, now)

    def on_synced(self, durable_end: Offset, now: float) -> list[FollowerEffect]:
        replica = self._replica
        if durable_end <= replica.durable_end:
            return []
        owed = replica.owes_a_sync
        replica.durable_end = min(durable_end, replica.log_end_offset)
        if isinstance(replica.state, Syncing):
            return [] if replica.owes_a_sync else self._fetcher.fetch(now)
        if not owed or not isinstance(replica.state, (Fetching, Idle)):
            return []
        return [self._fetcher.report()]

    def on_space(self, no_space: bool, now: float) -> list[FollowerEffect]:
        """The disk has no room for records any more, or has some again. It is reported to the leader at once. An answer
        that could not be appended is asked for anew when there is room."""
        if no_space == self._fetcher.no_space:
            return []
        self._fetcher.no_space = no_space
        self._replica.history.add("its disk is full" if no_space else "its disk has room", now)
        return self._fetcher.fetch(now) if isinstance(self._replica.state, (Fetching, Idle, Syncing)) else []

    def on_disk(self, hangs: bool, now: float) -> list[FollowerEffect]:
        """The disk has begun to hang, or answers again. It is reported to the leader at once."""
        if hangs == self._fetcher.disk_hangs:
            return []
        self._fetcher.disk_hangs = hangs
        self._replica.history.add("its disk hangs" if hangs else "its disk answers", now)
        return self._fetcher.fetch(now) if isinstance(self._replica.state, (Fetching, Idle, Syncing)) else []

    # Keeps R32.
    def on_notification(self, leader_epoch: LeaderEpoch, now: float) -> list[FollowerEffect]:
        """New data at the leader, or it has just begun. While a fetch is out it is remembered: an empty answer may have
        crossed it."""
        if leader_epoch != self.leader_epoch:
            return []
        replica, state, contact = self._replica, self._replica.state, self._contact
        if isinstance(state, Idle) and not self._fetcher.refused_batch and self.stopped is None:
            return self._fetcher.fetch(now)
        if isinstance(state, Fetching) and contact.no_responders:
            return self._reconcile(now)
        asked: list[FollowerEffect] = []
        if isinstance(state, Reconciling) and (contact.no_responders or not replica.was_notified):
            # The leader has begun now, and did not get the last fetch; if it did, its answer is given up, once only.
            asked = self._reconciler.ask_again(state, now)
        elif isinstance(state, Fetching) and not (contact.has_answered or replica.was_notified):
            asked = self._fetcher.fetch(now)  # the same, with an empty log
        replica.was_notified = True
        return asked

    @property
    def parked(self) -> int | None:
        """The number of its fetch that waits at the leader, while it is in step; None: there is none."""
        state, replica = self._replica.state, self._replica
        if isinstance(state, Idle) and state.is_parked and replica.broker in replica.view.isr:
            return state.sequence
        return None

    # Keeps R83.
    def on_parked_answer(self, sequence: int, is_held: bool, asked_at: float, now: float) -> list[FollowerEffect]:
        """The leader says whether the fetch with that number waits there. It was asked at `asked_at`, and what it says
        counts from then on, however late the answer is."""
        state = self._replica.state
        if not isinstance(state, Idle) or not state.is_parked or state.sequence != sequence:
            return []  # it has moved on since it was asked about
        if not is_held:
            return self._fetcher.fetch(now)
        self._contact.on_good_answer(now)
        self._reads.fetched_at = max(self._reads.fetched_at, asked_at)
        self._fetcher.idle(state, asked_at, earlier=self._earlier)
        return []

    def _on_error(self, error: TidelogError, now: float) -> list[FollowerEffect]:
        replica, settings = self._replica, self.settings
        replica.history.add(f"its fetch is refused: {error.code.name}", now)
        match error.code:
            case Code.OFFSET_AHEAD:
                self._contact.on_good_answer(now)
                if replica.log_end_offset == replica.log_start_offset:
                    if replica.high_watermark and not replica.may_cut_committed(self._epochs):
                        report, self.stopped = self._reconciler.diverge(Offset(0), now)
                        return [report, *self._reads.refuse_waiting(now)]  # all below the log start was committed
                    # Nothing to reconcile by; it began where an earlier leader's log began. Begin where any log does.
                    replica.enter(Truncating(), now)
                    return [StartOver(), *self._reads.refuse_waiting(now)]
                return self._reconcile(now)
            case Code.OFFSET_BEFORE_LOG:
                self._contact.on_good_answer(now)
                log_start = error.detail(LOG_START)
                is_in_log = log_start is None or log_start <= replica.log_end_offset
                if is_in_log and (not error.detail(DELETIONS_GONE) or replica.is_relied_on):
                    # The answer contradicts this log; the leader's log start, or ours, may be moving.
                    self._fetcher.pause(settings.offset_retry, now)
                    return []
                return self._install(now)
            case Code.BACKPRESSURE:
                self._contact.on_good_answer(now)
                asked = error.retry_after
                self._fetcher.pause(min(0.05 if asked is None else asked, settings.replica_max_idle_wait), now)
            case Code.MESSAGE_TOO_LARGE:
                self._contact.on_good_answer(now)
                self.stopped = error
                self._fetcher.pause_longer(now)
            case _:
                self._fetcher.pause(settings.offset_retry, now)  # until metadata says more
        return []

    # ------------------------------------------------------------------ consumers
    def on_consumer_fetch(self, fetch: ConsumerFetch, now: float) -> list[FollowerEffect]:
        """Committed batches from `fetch.offset` on, now or when this replica knows of some."""
        return self._reads.on_fetch(fetch, now)

    def read_refusal(self, now: float) -> TidelogError | None:
        """Returns why consumers should go elsewhere; None while they are served here."""
        return self._reads.refusal(now)

    def resign(self, reason: str, now: float) -> list[FollowerEffect]:
        """This role is over: consumers that wait are sent elsewhere."""
        self._replica.history.add(f"follows no more: {reason}", now)
        return self._reads.refuse_all(TidelogError(Code.UNAVAILABLE, f"{reason}; read from another replica"))

    # ------------------------------------------------------------------ the leader and the connection to it
    def on_no_responders(self, now: float) -> list[FollowerEffect]:
        """NATS reports that no subscriber listens on the leader's subjects."""
        replica, state = self._replica, self._replica.state
        again_at = self._contact.on_no_responders(now)
        if isinstance(state, (Reconciling, Installing)):
            replica.enter(replace(state, ask_again_at=again_at), now)
        elif isinstance(state, (Fetching, Idle)):
            replica.enter(Fetching(state.sequence, state.offset, again_at), now)
        return [*self._contact.report(replica.view, replica.broker, now)]

    def on_connection(self, connected_since: float, now: float) -> list[FollowerEffect]:
        """Our own connection came back (`inf`: it is down): silence before it proves nothing."""
        self._contact.on_connection(connected_since, now)
        self._replica.history.add(
            "it is connected" if self._contact.is_connected else "it has lost its connection", now
        )
        if not self._contact.is_connected or isinstance(self._replica.state, (Truncating, Leaderless, Diverged)):
            return []
        return self._reconcile(now)

    def on_view(self, view: PartitionView, now: float) -> list[FollowerEffect]:
        """Newer metadata of the same LeaderEpoch."""
        if view.leader_epoch != self.leader_epoch:
            raise InvariantViolation(
                f"{view.key}: view of epoch {view.leader_epoch} given to follower of {self.leader_epoch}"
            )
        if view.epoch > self._replica.view.epoch:
            self._replica.history.add(f"ISR {','.join(view.isr)}, partition epoch {view.epoch}", now)
        if view.epoch >= self._replica.view.epoch:
            self._replica.view = view
        woken = self._fetcher.fetch(now) if self._replica.is_asleep and not self._replica.may_sleep else []
        return [*woken, *self._reads.refuse_waiting(now)]

    # ------------------------------------------------------------------ time
    def tick(self, now: float) -> list[FollowerEffect]:
        replica, state = self._replica, self._replica.state
        if now - self.next_deadline() > self.settings.late_tick:
            self._contact.on_late_tick(now)
        self._ticked_at = now
        out: list[FollowerEffect] = []
        match state:
            case Reconciling() if now >= state.ask_again_at:
                out += self._reconciler.on_silence(state, now)
            case Installing() if now >= state.ask_again_at:
                out += self._installer.on_silence(state, now)
            case Fetching() if now >= state.unanswered_at:
                if not self._contact.no_responders:
                    self._fetcher.timeout.failed()
                out += self._reconcile(now)  # the probe: it finds a leader that is gone, and does no harm
            case Idle() | Syncing() if now >= state.until:
                out += self._fetcher.fetch(now)
            case _:
                pass
        is_silent = isinstance(self._replica.state, (Leaderless, Truncating, Diverged)) or replica.is_asleep
        if not is_silent and self._contact.is_connected:
            out += self._contact.report(replica.view, replica.broker, now)
        out += self._reads.refuse_waiting(now)
        out += self._reads.expire(now)
        return out

    def validate(self) -> None:
        """Raises InvariantViolation, with the last events, where an invariant of the follower is broken."""
        try:
            self._replica.validate()
            self._epochs.validate()
            newest = self._epochs.latest
            require(newest is None or newest <= self.leader_epoch, "no record is of a later LeaderEpoch", self._epochs)
        except InvariantViolation as broken:
            raise InvariantViolation(f"{self.view.key}, follower: {broken}\n{self._replica.history}") from broken

    def next_deadline(self) -> float:
        replica = self._replica
        state = replica.state
        match state:
            case Fetching():
                due = state.unanswered_at
            case Idle() | Syncing():
                due = state.until
            case Reconciling() | Installing():
                due = state.ask_again_at
            case Diverged():
                return self._reads.next_deadline()
            case _:
                return math.inf
        if replica.is_asleep:
            return self._reads.next_deadline()
        return min(due, self._contact.next_deadline(self._ticked_at), self._reads.next_deadline())
