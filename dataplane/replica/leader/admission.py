"""Whether a leader takes a publish. This is asked before anything is appended."""

from __future__ import annotations

from typing import Final

from dataplane.replica.derived.producer_table import Rejected
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.commits import Commits
from dataplane.replica.leader.draining import Draining
from dataplane.replica.leader.isr_keeper import IsrKeeper
from dataplane.replica.leader.leadership import Leadership
from dataplane.replica.leader.partitioning import VersionAwaited, judge
from dataplane.replica.leader.quota import Quota
from dataplane.replica.replica_refusals import not_denied
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, TidelogError

_DENY_THE_BATCH: Final = (Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID)


class Admission:
    def __init__(
        self, state: Leadership, isr_keeper: IsrKeeper, draining: Draining, commits: Commits, quota: Quota
    ) -> None:
        self._state = state
        self._isr_keeper = isr_keeper
        self._draining = draining
        self._commits = commits
        self._quota = quota

    # Keeps R43.
    def refuse(self, level: AckLevel | None, *, lease_valid: bool, now: float) -> TidelogError | None:
        """Why a publish may not be appended now; None when it may. `level`: None for one that wants no
        acknowledgement."""
        view = self._state.view
        if view.readonly:
            return TidelogError(
                Code.READONLY, f"stream {view.key.stream} is read-only; publish elsewhere or make it writable"
            )
        return self._refuse_append(level, lease_valid=lease_valid, now=now) or self._quota.refuse(now)

    def judge(self, version: int) -> TidelogError | VersionAwaited | None:
        """Whether a batch that names that partitioning version is taken; see `partitioning`."""
        return judge(self._state.view, version, can_deny=self._state.have_cut_to_this_log())

    def refusal_of(self, rejected: Rejected) -> TidelogError:
        """The answer to a batch that the producers of the log reject. A client takes some codes for a proof that no log
        holds the batch, and writes its records under another producer id. A member of the ISR may hold what this log
        lacks until it has cut its log to this one, and it may lead next. Eligible replicas are not waited for: they may
        be dead, and there are none where publishes wait for the HW."""
        error = rejected.error
        if error.code not in _DENY_THE_BATCH or self._state.isr_has_cut_to_this_log():
            return error
        return not_denied(self._state.view, error)

    # Keeps R49.
    def refuse_marker(self, now: float) -> TidelogError | None:
        """Why the end of a transaction may not be appended now. It adds no record: neither a read-only stream nor a
        quota refuses it. It waits for the HW, which needs no lease."""
        level = AckLevel(is_local=False, is_synced=self._state.is_durable)
        return self._refuse_append(level, lease_valid=True, now=now)

    # Keeps R14, R38.
    def _refuse_append(self, level: AckLevel | None, *, lease_valid: bool, now: float) -> TidelogError | None:
        """Refuses publishes and the ends of transactions alike: while leadership moves, without room on a disk, with
        too few replicas, without a lease, above the bound of uncommitted bytes."""
        state = self._state
        view = state.view
        moving = self._draining.refuse_publish()
        if moving is not None:
            return moving
        without_room = self._isr_keeper.commits_wait_for_room_of()
        if without_room:
            return TidelogError(
                Code.NO_SPACE,
                f"partition {view.key} takes no records: {', '.join(without_room)} has no room on its disk;"
                " make room or try again later",
                [RETRY_AFTER_MS.of(500)],
            )
        alone = level is None or level.is_local
        needed = 0 if level is None or alone else max(view.config.min_isr, level.floor)
        if len(state.isr.members) < needed:
            return TidelogError(
                Code.NOT_ENOUGH_REPLICAS,
                f"partition {view.key} has {len(state.isr.members)} in-sync replicas and needs {needed}"
                " for this acknowledged publish; bring brokers back",
            )
        if alone and not lease_valid:
            return TidelogError(
                Code.UNAVAILABLE,
                f"{state.broker} has not heard of a controller within its lease"
                f" and may lead {view.key} no more; try again",
            )
        too_much = self._commits.shared.why_not(self._commits.uncommitted_bytes, self._commits.waited(now))
        if too_much is not None:
            return TidelogError(
                Code.BACKPRESSURE,
                f"partition {view.key} has {too_much}; slow down",
                [RETRY_AFTER_MS.of(50)],
            )
        return None
