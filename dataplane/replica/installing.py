"""How a follower begins anew at its leader's log start.

A log that ends below the leader's log start is given up for an empty one that begins there, with the leader epochs and
the producers of the records before: never without them. A replica that is answered OFFSET_BEFORE_LOG is not in the ISR,
for the log start is committed; so the records that it gives up are committed elsewhere, or never were.
"""

from __future__ import annotations

from dataclasses import replace

from dataplane.replica.backoff import Backoff
from dataplane.replica.effects import FollowerEffect, InstallSnapshot, SendSnapshotRequest
from dataplane.replica.epochs import LeaderEpochCache
from dataplane.replica.follower_states import MAX_SNAPSHOT_BYTES, Installing, SnapshotAnswer, Truncating
from dataplane.replica.followership import Followership
from dataplane.replica.leader_contact import LeaderContact
from dataplane.replica.replica_settings import ReplicaSettings
from wire.errors import Code
from wire.types import Offset


class Installer:
    def __init__(
        self,
        replica: Followership,
        epochs: LeaderEpochCache,
        contact: LeaderContact,
        bad_answers: Backoff,
        settings: ReplicaSettings,
    ) -> None:
        self._replica = replica
        self._epochs = epochs
        self._contact = contact
        self._bad_answers = bad_answers
        self._settings = settings
        self._wait = Backoff(settings.replica_fetch_timeout, settings.replica_max_leader_timeout)
        """Until an unanswered question is repeated."""

    def begin(self, now: float) -> list[FollowerEffect]:
        self._wait.reset()
        return self._ask(None, (), now)

    def _ask(self, offset: Offset | None, pieces: tuple[bytes, ...], now: float) -> list[FollowerEffect]:
        self._contact.no_responders = False
        number = self._replica.next_question()
        state = Installing(number, now + self._wait.value, offset, pieces)
        self._replica.enter(state, now)
        return [SendSnapshotRequest(number, offset, state.position)]

    def on_silence(self, state: Installing, now: float) -> list[FollowerEffect]:
        if not self._contact.no_responders:
            self._wait.grow()
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
            replica.enter(replace(state, ask_again_at=now + self._settings.offset_retry), now)
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
        self._wait.reset()
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
        self._bad_answers.grow()
        self._replica.enter(Installing(self._replica.next_question(), now + self._bad_answers.value), now)
        return []
