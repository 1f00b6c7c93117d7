"""Where a follower's log and its leader's part.

Invariants
* Before the first fetch of a LeaderEpoch the log is reconciled with the leader over `.offset`, by leader epochs alone
  (KIP-101, KIP-279). The log is never cut to the HW, and never without an answer: if the leader is silent, ask again.
* The log is cut once, when the walk over the epochs has ended.
* No record is cut that is known here as committed, unless the metadata knows of an election, after it was written, of a
  leader that may lack it (R74). So a leader that has lost its log, and does not know it, takes no other log along.
* Whether this replica is relied on is decided by metadata as new as the leader's. In an older view it may still be in
  the ISR, or eligible, while others have committed records in place of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.follower.follower_states import (
    MAX_SNAPSHOT_BYTES,
    Diverged,
    Installing,
    OffsetAnswer,
    Reconciling,
    SnapshotAnswer,
    Truncating,
)
from dataplane.replica.follower.followership import Followership
from dataplane.replica.follower.leader_contact import LeaderContact
from dataplane.replica.replica_effects import (
    FollowerEffect,
    InstallSnapshot,
    ReportLoss,
    SendOffsetRequest,
    SendSnapshotRequest,
)
from dataplane.replica.replica_settings import ReplicaSettings
from wire.errors import Code, TidelogError
from wire.retry import Retry
from wire.types import LeaderEpoch, LossReport, Offset


class Installer:
    """Begins a follower's log anew at its leader's log start.

    A log that ends below the leader's log start is given up for an empty one that begins there, with the leader epochs
    and the producers of the records before: never without them. A replica that is answered OFFSET_BEFORE_LOG is not in
    the ISR, for the log start is committed; so the records that it gives up are committed elsewhere, or never were."""

    def __init__(
        self,
        replica: Followership,
        epochs: LeaderEpochCache,
        contact: LeaderContact,
        bad_answers: Retry,
        settings: ReplicaSettings,
    ) -> None:
        self._replica = replica
        self._epochs = epochs
        self._contact = contact
        self._bad_answers = bad_answers
        self._settings = settings
        self._wait = Retry(settings.replica_fetch_timeout, settings.replica_max_leader_timeout, chance=None)
        """Until an unanswered question is repeated."""

    # Keeps R8.
    def begin(self, now: float) -> list[FollowerEffect]:
        self._wait.succeeded()
        return self._ask(None, (), now)

    def _ask(self, offset: Offset | None, pieces: tuple[bytes, ...], now: float) -> list[FollowerEffect]:
        self._contact.no_responders = False
        number = self._replica.next_question()
        state = Installing(number, now + self._wait.pause_s(), offset, pieces)
        self._replica.enter(state, now)
        return [SendSnapshotRequest(number, offset, state.position)]

    def on_silence(self, state: Installing, now: float) -> list[FollowerEffect]:
        if not self._contact.no_responders:
            self._wait.failed()
        return self._ask(state.offset, state.pieces, now)

    def on_answer(self, answer: SnapshotAnswer, now: float) -> list[FollowerEffect]:
        replica, state = self._replica, self._replica.state
        if (
            not isinstance(state, Installing)
            or answer.number != state.number
            or answer.leader_epoch < replica.leader_epoch
        ):
            return []
        error = answer.error
        if error is not None and error.code is Code.OFFSET_BEFORE_LOG and answer.leader_epoch == replica.leader_epoch:
            self._contact.on_good_answer(now)
            return self._ask(None, (), now)
        if error is not None or answer.leader_epoch > replica.leader_epoch:
            pause = self._settings.offset_retry
            if error is not None and error.code is Code.BACKPRESSURE:  # the leader lives, and has its bounds
                self._contact.on_good_answer(now)
                pause = max(pause, min(error.retry_after or 0.0, self._settings.replica_max_leader_timeout))
            replica.enter(replace(state, ask_again_at=now + pause), now)
            return []
        self._contact.on_good_answer(now)
        whole = state.position + len(answer.piece)
        if (
            state.offset not in (None, answer.offset)
            or answer.position != state.position
            or not answer.piece
            or not whole <= answer.size <= MAX_SNAPSHOT_BYTES
        ):
            return self.on_bad_snapshot(now)
        self._wait.succeeded()
        pieces = (*state.pieces, answer.piece)
        if whole < answer.size:
            return self._ask(answer.offset, pieces, now)
        replica.enter(Truncating(), now)
        # A log that is only copied anew for its deletions (R39) agrees with the leader's, which holds all of it.
        gives_up = max(answer.offset, replica.log_start_offset) < replica.high_watermark and replica.may_cut_committed(
            self._epochs
        )
        return [InstallSnapshot(answer.offset, pieces, answer.deleted_end, gives_up)]

    def on_bad_snapshot(self, now: float) -> list[FollowerEffect]:
        """It is not the snapshot at a log start; nothing was changed. It is asked for anew, in a while."""
        self._bad_answers.failed()
        self._replica.enter(Installing(self._replica.next_question(), now + self._bad_answers.pause_s()), now)
        return []


@dataclass(frozen=True, slots=True)
class AskNext:
    """The walk goes on: where does the leader's `epoch` end?"""

    epoch: LeaderEpoch
    cut: Offset


@dataclass(frozen=True, slots=True)
class CutTo:
    """The logs part here; at or above the LEO nothing is to be cut."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """No record that is left here could follow: begin where the leader's log begins."""


@dataclass(frozen=True, slots=True)
class LeaderLacksCommitted:
    """The logs have nothing in common from here on, below the committed end here."""

    agreed_end: Offset


@dataclass(frozen=True, slots=True)
class AwaitView:
    """It depends on metadata that the leader has and this broker has not: ask again in a while."""


Reconciled: TypeAlias = CutTo | BeginAnew
_Step: TypeAlias = Reconciled | AskNext | AwaitView | LeaderLacksCommitted


class Reconciler:
    def __init__(
        self, replica: Followership, epochs: LeaderEpochCache, contact: LeaderContact, settings: ReplicaSettings
    ) -> None:
        self._replica = replica
        self._epochs = epochs
        self._contact = contact
        self._settings = settings
        self._wait = Retry(settings.no_leader_retry, settings.replica_max_leader_timeout, chance=None)
        """Until an unanswered question is repeated. It begins low: after a planned move the first request is often
        lost, because the old leader still listens, and is silent, and the new one does not listen yet."""

    # Keeps R7.
    def begin(self, now: float) -> list[FollowerEffect]:
        """Empty: there is nothing to reconcile by."""
        newest = self._epochs.latest
        if newest is None or not self._replica.log_end_offset:
            return []
        self._wait.succeeded()
        return self._ask(newest, self._replica.log_end_offset, now)

    def _ask(self, epoch: LeaderEpoch, cut: Offset, now: float) -> list[FollowerEffect]:
        replica = self._replica
        replica.was_notified = False
        self._contact.no_responders = False
        number = replica.next_question()
        replica.enter(Reconciling(epoch, cut, number, now + self._wait.pause_s()), now)
        return [SendOffsetRequest(epoch, number)]

    def ask_again(self, state: Reconciling, now: float) -> list[FollowerEffect]:
        return self._ask(state.asked, state.cut, now)

    def on_silence(self, state: Reconciling, now: float) -> list[FollowerEffect]:
        if self._contact.no_responders:
            return self.ask_again(state, now)
        self._wait.failed()
        if state.is_answered:
            return self.ask_again(state, now)
        # The same question: where a busy leader takes longer than the pause, its first answer is as good as a later
        # one, for nothing is appended here meanwhile. An answer to each repetition alone would never be in time.
        self._replica.was_notified = False
        self._replica.enter(replace(state, ask_again_at=now + self._wait.pause_s()), now)
        return [SendOffsetRequest(state.asked, state.number)]

    def on_answer(self, answer: OffsetAnswer, now: float) -> list[FollowerEffect] | Reconciled:
        """Either the walk goes on, or it has ended."""
        replica, state = self._replica, self._replica.state
        if (
            not isinstance(state, Reconciling)
            or answer.number != state.number
            or answer.leader_epoch < replica.leader_epoch
        ):
            return []
        if answer.error is not None or answer.leader_epoch > replica.leader_epoch:
            return self._wait_for_metadata(state, now)
        self._contact.on_good_answer(now)
        step = self._judge(state, answer)
        if isinstance(step, AwaitView):
            replica.history.add(f"waits for metadata of partition epoch {answer.partition_epoch}", now)
            return self._wait_for_metadata(state, now)
        if isinstance(step, LeaderLacksCommitted):
            return [self.diverge(step.agreed_end, now)[0]]
        return self._ask(step.epoch, step.cut, now) if isinstance(step, AskNext) else step

    # Keeps R74.
    def diverge(self, agreed_end: Offset, now: float) -> tuple[ReportLoss, TidelogError]:
        """The leader lacks records that are committed, and was elected as one that holds them: a follower that went on
        would lose them, too. What is here stays, and the controller is told (R74). Returns the error as well."""
        replica, view = self._replica, self._replica.view
        assert view.leader is not None
        reason = (
            f"its log agrees with the one of {replica.broker} up to offset {agreed_end} only, and {replica.broker}"
            f" holds committed records up to {replica.high_watermark} (log end {replica.log_end_offset}, last"
            f" LeaderEpoch {self._epochs.latest or 0})"
        )
        error = TidelogError(
            Code.DAMAGED,
            f"leader {view.leader} of LeaderEpoch {replica.leader_epoch} lacks committed records: {reason}; nothing is"
            " cut or copied here, and the controller is told, so that a replica which holds them leads, or the"
            " partition goes offline until an operator chooses",
        )
        replica.enter(Diverged(error), now)
        replica.history.add(f"reports that {view.leader} lacks committed records: {reason}", now)
        report = LossReport(key=view.key, leader=view.leader, leader_epoch=replica.leader_epoch, reason=reason)
        return ReportLoss(report), error

    def _wait_for_metadata(self, state: Reconciling, now: float) -> list[FollowerEffect]:
        """Until it has come we ask again: nothing is fetched unreconciled."""
        again_at = now + self._settings.offset_retry
        self._replica.enter(replace(state, ask_again_at=again_at, is_answered=True), now)
        return []

    # R7: A log is cut by leader epochs and by nothing else. Before its first fetch in a LeaderEpoch, after a fetch
    # that stays unanswered, after a reconnect and after OFFSET_AHEAD, a follower asks on `.offset` where its newest
    # epoch ends, then the one before, until both logs agree, and cuts its log once, durably. It never cuts to the HW,
    # and never without an answer.
    # Hazard: Truncation to the HW (KIP-101), one round of `.offset` only (KIP-279), fast changes of leader.
    def _judge(self, state: Reconciling, answer: OffsetAnswer) -> _Step:
        agreed = min(state.cut, answer.end)
        if not answer.epoch:
            return self._unless_committed(agreed, answer, self._nothing_so_old(state.cut, answer))
        replica = self._replica
        mine = self._epochs.end_offset_for(answer.epoch, replica.log_end_offset)
        if mine is None:  # nothing is known to be in common; below the first epoch known here it may be
            agreed = min(agreed, self._epochs.entries[0].start)
            return self._unless_committed(agreed, answer, self._cut_to(Offset(0), answer))
        cut = min(agreed, mine.end)
        if mine.epoch != answer.epoch:
            return AskNext(mine.epoch, cut)
        return self._unless_committed(cut, answer, self._cut_to(cut, answer))

    # R74: No replica cuts what it knows as committed, unless the metadata know of a loss in a LeaderEpoch after that
    # record's (`loss_epoch`). Otherwise it is diverged: it cuts nothing, copies nothing, and reports the leader, which
    # is withdrawn; a reporter in the ISR, or an eligible one, leads next. What is cut for a known loss is copied to
    # the quarantine first.
    # Hazard: A leader that has lost its log takes all others along.
    def _unless_committed(self, agreed: Offset, answer: OffsetAnswer, step: AwaitView | Reconciled) -> _Step:
        """`step`, if the leader holds below `agreed` all that is committed here, or has removed it for its age. In
        a compacted stream, too: compaction leaves a batch of each LeaderEpoch, at the offset at which it began."""
        high_watermark = self._replica.high_watermark
        if max(agreed, answer.log_start_offset) >= high_watermark or self._replica.may_cut_committed(self._epochs):
            return step
        return LeaderLacksCommitted(agreed)

    def _cut_to(self, cut: Offset, answer: OffsetAnswer) -> AwaitView | Reconciled:
        """Below the log start the leader's records are not the ones that were here, so the leader epochs and the
        producers that are known of them are wrong, and no record that is left could follow."""
        replica = self._replica
        if cut >= replica.log_start_offset:
            return CutTo(cut)
        if self._metadata_is_older(answer):
            return AwaitView()
        return CutTo(cut) if replica.is_relied_on else BeginAnew()

    # R8: A follower whose log does not meet its leader's begins anew at the leader's log start, with the derived state
    # (leader epochs, producers, transactions) that the leader has there. A replica that is in the ISR, or eligible,
    # keeps what it has below the leader's log start instead. It decides this only by metadata that are as new as the
    # leader's.
    # Hazard: Without the producers a new leader stores acknowledged batches again, or refuses the next batch of an
    # idle producer; without the epochs it cannot say where theirs ended.
    def _nothing_so_old(self, cut: Offset, answer: OffsetAnswer) -> AwaitView | Reconciled:
        """All that the leader holds is of newer epochs than all that is here: from its log start on nothing is in
        common, and its earlier records below are not known any more. A member of the ISR (or an eligible replica) need
        not ask: all committed records lie below, and it keeps them, for it answers for them. Any other replica may hold
        records there that were never committed, and begins anew where the leader's log begins."""
        replica, leaders_start = self._replica, answer.end
        if self._metadata_is_older(answer):
            return AwaitView()
        if replica.is_relied_on:
            return self._cut_to(min(cut, max(leaders_start, replica.log_start_offset)), answer)
        if leaders_start <= replica.log_start_offset:
            return self._cut_to(Offset(0), answer)
        return BeginAnew()

    def _metadata_is_older(self, answer: OffsetAnswer) -> bool:
        return answer.partition_epoch > self._replica.view.epoch
