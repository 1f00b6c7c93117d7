"""Operations on the replicas of partitions in use: other brokers for them, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypedDict

from wire.errors import Code
from wire.operations.operation import Operation

MAX_REASSIGNED: Final = 1000
"""Limit of the partitions of one request."""
MAX_MOVES_LISTED: Final = 250
"""Limit of the moves that an answer describes."""


class PlannedMove(TypedDict):
    partition: int
    replicas: list[str]
    """As they are now, or were before a reassignment that is under way."""
    target: list[str]
    """As they are to be, the preferred leader first."""
    added: list[str]
    """Brokers that copy the log."""
    removed: list[str]
    """Brokers whose copies go in the end."""
    leader: str | None
    """From which they copy."""
    bytes_to_copy: int | None
    """By all that are added; None: the leader does not answer."""


class ReplicaMove(TypedDict):
    broker: str
    in_sync: bool
    log_end_offset: int | None
    """None, as the other two: not known to its leader."""
    offsets_behind: int | None
    bytes_behind: int | None
    """About: by the sizes of both logs."""


class Move(TypedDict):
    stream: str
    partition: int
    state: str
    """"waiting": others come first; "copying": replicas that are added catch up; "in sync": they have, and the
    leadership moves, or former replicas go; "going back": it was cancelled."""
    original: list[str]
    target: list[str]
    leader: str | None
    waits_for: str
    """What is missing until it is over, as a sentence."""
    copies: list[ReplicaMove]
    """The brokers that are added, with their progress; empty while it waits, and where it was not asked for."""


class Moves(TypedDict):
    moves: list[Move]
    """Those that have begun to copy first, and those that go back last; the first MAX_MOVES_LISTED."""
    total: int


class Reassigned(TypedDict):
    plan: list[PlannedMove]
    """The partitions that are not to have these replicas already."""
    moves: list[Move]
    """The moves of the partitions in the request, once they are begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignRequest:
    name: str
    targets: dict[str, list[str]]
    """By partition number, the brokers that are to be its replicas, the preferred leader first."""
    dry_run: bool = False
    """Only the plan is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelReassignmentRequest:
    name: str
    partitions: list[int] = field(default_factory=list)
    """None: all that are under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesRequest:
    of_stream: str = ""
    """Only of this one, which has to exist (else BAD_REQUEST); empty: of all."""


STREAM_REASSIGN = Operation(
    name="stream.reassign",
    request=ReassignRequest,
    answer=Reassigned,
    help="give partitions of a living stream other replicas; answered when that has begun; with `dry_run`"
    " only the plan",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM, Code.STALE_EPOCH, Code.UNAVAILABLE),
    time_s=10.0,
)

STREAM_REASSIGN_CANCEL = Operation(
    name="stream.reassign_cancel",
    request=CancelReassignmentRequest,
    answer=Moves,
    help="give up reassignments: the partitions go back to the replicas that they had",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM, Code.STALE_EPOCH, Code.UNAVAILABLE),
    time_s=10.0,
)

CLUSTER_MOVES = Operation(
    name="cluster.moves",
    request=MovesRequest,
    answer=Moves,
    help="the partitions that get other replicas, and how far they are",
    writes=False,
)
