"""The states of a follower, and the answers that move it from one to the other.

start ──> Reconciling ──cut known──> Truncating ──done──> Fetching <──────────┐
              ^  │ no epoch known: nothing to reconcile ────^  │              │
              │  └──503, silence: ask again, suspect           ├─ batches: append, fetch on at once, or Syncing,
              │                                                │  then fetch
              └────── OFFSET_AHEAD, fetch unanswered ──────────┤              │
                                                               ├─ empty ──> Idle ── idle wait over, notification,
                                                               │                    second answer on the same inbox
         Truncating <──all pieces are there── Installing <─────┴─ OFFSET_BEFORE_LOG
                                              │       ^
                                              └───────┘ piece by piece; the leader's log start moved on: again

Reconciling, Fetching, Idle ──the leader lacks records that are committed here──> Diverged, until its LeaderEpoch ends
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wire.errors import TidelogError
from wire.types import LeaderEpoch, Offset, PartitionEpoch


@dataclass(slots=True, kw_only=True)
class FetchAnswer:
    """An answer to a fetch, decoded and its CRCs checked."""

    sequence: int
    """Number of the request on whose inbox it came."""
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    first_offset: Offset | None = None
    """None: no batches."""
    sync_to: Offset = Offset(0)
    """The leader waits until the log is synced up to here; 0: it waits for nothing."""
    log_start: Offset = Offset(0)
    """The leader's log start; 0: the follower has reported that it serves nothing below."""
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """An answer to a LeaderEpochOffsetRequest. `epoch` 0: the leader has no epoch at or below the asked one.
    `log_start_offset`: the leader's. `partition_epoch`: that of the leader's metadata; 0: not known."""

    number: int
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch = LeaderEpoch(0)
    end: Offset = Offset(0)
    log_start_offset: Offset = Offset(0)
    partition_epoch: PartitionEpoch = PartitionEpoch(0)
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotAnswer:
    """A piece of the leader's snapshot at its log start `offset`, `size` bytes in all."""

    number: int
    leader_epoch: LeaderEpoch
    offset: Offset = Offset(0)
    size: int = 0
    position: int = 0
    piece: bytes = b""
    deleted_end: Offset = Offset(0)
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class Reconciling:
    asked: LeaderEpoch
    cut: Offset
    """Smallest end agreed on so far; the LEO at first."""
    number: int
    ask_again_at: float
    is_answered: bool = False
    """The answer said nothing yet; the next question needs a newer one."""


@dataclass(frozen=True, slots=True)
class Truncating:
    """The log is being cut, or replaced by an empty one."""


@dataclass(slots=True)
class Fetching:
    sequence: int
    offset: Offset
    unanswered_at: float
    """When silence becomes a reason to probe."""


@dataclass(slots=True)
class Idle:
    sequence: int
    offset: Offset
    until: float
    is_parked: bool = False
    """The fetch was answered with nothing, and waits at the leader."""


@dataclass(frozen=True, slots=True)
class Syncing:
    """No fetch is out: one leaves when all that is here is synced, and reports that; at `until` it leaves anyway."""

    until: float


@dataclass(frozen=True, slots=True)
class Leaderless:
    """The partition is offline, or this follower has no leader to ask until metadata changes."""


@dataclass(frozen=True, slots=True)
class Installing:
    """The snapshot at the leader's log start is on its way. `offset`: None before the first piece has come."""

    number: int
    ask_again_at: float
    offset: Offset | None = None
    pieces: tuple[bytes, ...] = ()

    @property
    def position(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader lacks records that this replica knows as committed, and no election that the metadata knows of
    explains it: nothing is cut and nothing is copied in this LeaderEpoch."""

    error: TidelogError


FollowerState: TypeAlias = Reconciling | Truncating | Installing | Fetching | Idle | Syncing | Leaderless | Diverged

MAX_SNAPSHOT_BYTES: Final = 64 << 20
"""Largest snapshot that a follower takes: 20,000 producers are 3 MB, a million leader epochs 16 MB."""

COPYING: Final[frozenset[type[FollowerState]]] = frozenset({Fetching, Idle, Syncing})
"""The states between which a reconciled follower goes back and forth."""

TRANSITIONS: Final[dict[type[FollowerState], frozenset[type[FollowerState]]]] = {
    Leaderless: frozenset({Leaderless, Reconciling, Fetching}),
    Reconciling: frozenset({Reconciling, Truncating, Installing, Fetching, Diverged}),
    Truncating: frozenset({Fetching, Installing}),
    Installing: frozenset({Installing, Truncating, Reconciling, Fetching}),
    Fetching: frozenset({Fetching, Idle, Syncing, Reconciling, Truncating, Installing, Diverged}),
    Idle: frozenset({Idle, Fetching, Syncing, Reconciling, Truncating, Installing, Diverged}),
    Syncing: frozenset({Fetching, Reconciling}),
    Diverged: frozenset(),
}
"""The states that may follow a state. An Installing that turns into a Fetching has lost its connection, and has nothing
to reconcile by. A Truncating that turns into an Installing found the snapshot unsound."""
