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
MAX_STREAMS_ASKED: Final = 100
"""Limit of the streams whose leaders are asked for sizes, for a plan."""


class PlannedMove(TypedDict):
    stream: str
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


class PlannedCopies(TypedDict):
    """What one broker copies from another one."""

    source: str | None
    """The leader; None: nobody leads these partitions."""
    target: str
    copies: int
    bytes: int
    """Sum of those whose size is known."""


class StuckPartition(TypedDict):
    partition: str
    """stream/partition"""
    why: str


class ReplicaPlan(TypedDict):
    """Other replicas for partitions of any streams."""

    partitions: int
    """They get other replicas, or another preferred leader."""
    copies: int
    """Replicas that are copied to a broker."""
    plan: list[PlannedMove]
    """The first MAX_MOVES_LISTED; those that copy come first."""
    sources: list[PlannedCopies]
    """By source and target, the first MAX_MOVES_LISTED; the most bytes first."""
    bytes_to_copy: int
    """Sum of those whose size is known."""
    sizes_unknown: int
    """Copies whose size is not known: a leader does not answer, or more streams than MAX_STREAMS_ASKED move."""
    budget_bytes_per_s: int
    """What replicas outside the ISR may take from a leader's broker: network_capacity x replication_budget_fraction."""
    least_s: float
    """Seconds that the copies take at least, at that budget: those of the broker that is copied from most."""
    stuck: list[StuckPartition]
    """Partitions for which no broker was found, the first MAX_MOVES_LISTED."""
    stuck_total: int
    digest: str
    """A name of these changes, which a request can ask for."""
    begun: int
    """Partitions whose change was begun by this request; with `dry_run` 0. The others have changed meanwhile."""


class AlteredFactor(TypedDict):
    replication_factor: int
    """The wanted one."""
    min_isr: int
    """It counts until all partitions have their replicas."""
    min_isr_then: int
    plan: ReplicaPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterFactorRequest:
    name: str
    replication_factor: int
    dry_run: bool = False
    """Only the plan is wanted."""
    plan: str = ""
    """Digest of the plan that was shown: BAD_REQUEST if it is another one now. Empty: whatever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceRequest:
    dry_run: bool = False
    """Only the plan is wanted."""
    plan: str = ""
    """Digest of the plan that was shown: BAD_REQUEST if it is another one now. Empty: whatever it is."""


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

STREAM_ALTER_FACTOR = Operation(
    name="stream.alter_factor",
    request=AlterFactorRequest,
    answer=AlteredFactor,
    help="give a living stream another replication factor: all of its partitions get other replicas, or none does;"
    " answered when that has begun; with `dry_run` only the plan",
    writes=True,
    stream="name",
    refusals=(
        Code.UNKNOWN_STREAM,
        Code.BAD_CONFIG,
        Code.BAD_REPLICATION_FACTOR,
        Code.NOT_ENOUGH_BROKERS,
        Code.UNAVAILABLE,
    ),
    time_s=60.0,
)

CLUSTER_REBALANCE = Operation(
    name="cluster.rebalance",
    request=RebalanceRequest,
    answer=ReplicaPlan,
    help="move replicas of all streams, so that brokers hold equally many, in different zones, as the streams' policies"
    " say, with the fewest copies; answered when that has begun; with `dry_run` only the plan",
    writes=True,
    refusals=(Code.UNAVAILABLE,),
    time_s=60.0,
)
