"""Leaders and followers without a driver, for tests of their rules."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.derived.transaction_table import TransactionTable
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import FetchAnswer, Fetching, Idle, OffsetAnswer, Reconciling
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.catch_up_budget import CatchUpBudget
from dataplane.replica.leader.commits import Uncommitted
from dataplane.replica.leader.leader import Leader
from dataplane.replica.leader.leadership import FollowerFetch
from dataplane.replica.replica_effects import FollowerEffect, LeaderEffect
from dataplane.replica.replica_settings import ReplicaSettings
from tests.views import A, B, C, partition_view
from wire.errors import Code, TidelogError
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionView

_Effect = TypeVar("_Effect")
ALL = AckLevel(is_local=False, is_synced=True)
LOCAL = AckLevel(is_local=True, is_synced=True)
SETTINGS = ReplicaSettings()
EPOCH = LeaderEpoch(5)
"""The LeaderEpoch of `follower`."""

view = partial(partition_view, A, B, C, min_isr=2)


# ---- a leader


class Driver:
    """A leader with the bookkeeping of its driver: fetch sequences, the durable end, and the effects."""

    def __init__(
        self,
        first: PartitionView | None = None,
        *,
        log_end: int = 0,
        high_watermark: int = 0,
        settings: ReplicaSettings = SETTINGS,
        log_start: int = 0,
        shared: Uncommitted | None = None,
        budget: CatchUpBudget | None = None,
    ) -> None:
        first = first or view()
        epochs = LeaderEpochCache([EpochEntry(LeaderEpoch(1), Offset(0))] if log_end else [])
        if log_end and first.leader_epoch > 1:
            epochs.assign(first.leader_epoch, Offset(log_end))
        self.transactions = TransactionTable()
        self.leader = Leader(
            view=first,
            broker=A,
            incarnation=Incarnation(10),
            log_start_offset=Offset(log_start),
            log_end_offset=Offset(log_end),
            durable_end=Offset(log_end),
            high_watermark=Offset(high_watermark),
            epochs=epochs,
            transactions=self.transactions,
            settings=settings,
            now=0.0,
            shared=shared,
            budget=budget,
        )
        self.sequence = 0

    def append(self, count: int, *, now: float = 0.0, synced: bool = True) -> list[LeaderEffect]:
        end = Offset(self.leader.log_end_offset + count)
        out = self.leader.on_appended(end, 100 * count, now)
        if synced:
            out += self.leader.on_synced(end, now)
        return out

    def fetch(
        self,
        replica: BrokerId,
        offset: int,
        *,
        durable: int | None = -1,
        now: float = 0.0,
        leader_epoch: int | None = None,
        incarnation: int = 20,
        sequence: int | None = None,
        progress_only: bool = False,
        refused: str = "",
        no_space: bool = False,
        disk_hangs: bool = False,
        deleted_end: int = 0,
    ) -> list[LeaderEffect]:
        """`durable` -1: everything it has is synced."""
        self.sequence += 1
        return self.leader.on_fetch(
            FollowerFetch(
                replica=replica,
                incarnation=Incarnation(incarnation),
                leader_epoch=LeaderEpoch(self.leader.leader_epoch if leader_epoch is None else leader_epoch),
                sequence=self.sequence if sequence is None else sequence,
                offset=Offset(offset),
                durable_end=None if durable is None else Offset(offset if durable == -1 else durable),
                progress_only=progress_only,
                inbox=f"inbox.{replica}.{self.sequence}",
                refused_batch=refused,
                no_space=no_space,
                disk_hangs=disk_hangs,
                deleted_end=Offset(deleted_end),
            ),
            now,
        )

    @property
    def high_watermark(self) -> int:
        return self.leader.high_watermark


def of(kind: type[_Effect], effects: list[LeaderEffect]) -> list[_Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


# ---- a follower


def follower(
    *entries: tuple[int, int],
    log_start: int = 0,
    log_end: int = 0,
    high_watermark: int = 0,
    connected_since: float = -100.0,
    settings: ReplicaSettings = SETTINGS,
    epochs: LeaderEpochCache | None = None,
    **viewed: Any,
) -> Follower:
    """Follower B of A in EPOCH, not started. Its log has `entries` = (epoch, start) and ends at `log_end`.
    `viewed`: as of `partition_view`."""
    return Follower(
        view=partition_view(A, B, **{"leader_epoch": EPOCH, **viewed}),
        broker=B,
        log_start_offset=Offset(log_start),
        log_end_offset=Offset(log_end),
        durable_end=Offset(log_end),
        high_watermark=Offset(high_watermark),
        epochs=epochs or LeaderEpochCache([EpochEntry(LeaderEpoch(e), Offset(s)) for e, s in entries]),
        transactions=TransactionTable(),
        settings=settings,
        first_sequence=0,
        connected_since=connected_since,
        now=0.0,
    )


def answer(
    core: Follower,
    *,
    first: int | None = None,
    hw: int = 0,
    leader_epoch: int | None = None,
    sequence: int | None = None,
    error: TidelogError | None = None,
    now: float = 0.0,
) -> list[FollowerEffect]:
    """An answer to the newest data request, unless said otherwise."""
    state = core.state
    assert isinstance(state, (Fetching, Idle))
    return core.on_answer(
        FetchAnswer(
            sequence=state.sequence if sequence is None else sequence,
            leader_epoch=LeaderEpoch(core.leader_epoch if leader_epoch is None else leader_epoch),
            high_watermark=Offset(hw),
            first_offset=None if first is None else Offset(first),
            error=error,
        ),
        now,
    )


def ends(
    core: Follower,
    epoch: int,
    end: int,
    *,
    leader_epoch: int = 5,
    number: int | None = None,
    leaders_start: int = 0,
    now: float = 0.0,
) -> list[FollowerEffect]:
    """The leader says where `epoch` ends, and its log."""
    state = core.state
    assert isinstance(state, Reconciling)
    return core.on_offset_answer(
        OffsetAnswer(
            number=state.number if number is None else number,
            leader_epoch=LeaderEpoch(leader_epoch),
            epoch=LeaderEpoch(epoch),
            end=Offset(end),
            log_start_offset=Offset(leaders_start),
        ),
        now,
    )


def agrees(core: Follower, now: float = 0.0) -> list[FollowerEffect]:
    """The leader has the same log."""
    state = core.state
    assert isinstance(state, Reconciling)
    return ends(core, state.asked, core.log_end_offset, now=now)


def refused(core: Follower, code: Code, now: float = 0.0) -> list[FollowerEffect]:
    return answer(core, error=TidelogError(code, "refused"), now=now)
