"""Operations about replicas and brokers as an operator looks after them: how far each replica is, and which broker may
be restarted. See `wire.operations.api_operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NotRequired, TypedDict

from wire.operations.operation import Operation

PARTITIONS_OF_PAGE: Final = 100
"""Limit of the partitions whose replicas are in one page."""
STREAMS_OF_PAGE: Final = 20
"""The same for streams: brokers are asked about each of them."""


class ReplicaPosition(TypedDict):
    stream: str
    partition: int


class ReplicaForm(TypedDict):
    stream: str
    partition: int
    broker: str
    leads: bool
    in_sync: bool
    """It is in the ISR."""
    state: str
    """"leading", "starting" (it is about to lead), "in sync", "catching up", "reconciling", "installing" (it begins at
    the leader's log start anew), "diverged", "leaderless", "idle", "opening", "withdrawn", "failed", "damaged",
    "offline" (its broker is dead) or "unknown" (its broker does not answer)."""
    reason: str | None
    """Why it is withdrawn, failed, damaged, or cannot go on."""
    leader_epoch: int | None
    """In which its role acts."""
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    """Inclusive, as far as the replica knows it; -1: nothing is committed."""
    lag_records: int | None
    """By offsets, up to the leader's end, as the leader knows both; None: not known."""
    lag_bytes: int | None
    """About so many, in the log of the leader."""
    lag_s: float | None
    """Seconds since it had all that the leader had; 0: it has."""
    bytes_on_disk: int | None
    quarantined: int | None
    """Times that records of it went into its quarantine."""


class ReplicaList(TypedDict):
    replicas: list[ReplicaForm]
    """By stream, partition, and in the order of the partition's replicas."""
    unanswered: list[str]
    """Live brokers that did not answer about all of them."""
    next: NotRequired[ReplicaPosition]
    """The last partition of this page, where there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReplicasRequest:
    of_stream: str = ""
    """Only of this one, which has to exist (else BAD_REQUEST); empty: of all."""
    partition: int = -1
    """Only of this one of the stream; -1: of all."""
    broker: str = ""
    """Only replicas of this one; empty: of all."""
    internal: bool = False
    """With those of Tidelog's own streams; a stream that is named may be one of them."""
    after_stream: str = ""
    """The page begins behind this partition; empty: with the first one."""
    after_partition: int = -1
    limit: int = PARTITIONS_OF_PAGE
    """At most so many partitions, and no more than PARTITIONS_OF_PAGE."""


REPLICA_LIST = Operation(
    name="replica.list",
    request=ListReplicasRequest,
    answer=ReplicaList,
    help="state, ends and lag of replicas, a page of partitions at a time",
    writes=False,
)


class RestartVerdict(TypedDict):
    broker: str
    may_restart: bool
    """Nothing speaks against stopping it now."""
    is_controller: bool
    leaders: int
    replicas: int
    waits_for: list[str]
    """Sentences: why it may not be stopped now, and what to wait for."""
    costs: list[str]
    """Sentences: what its restart costs at any time."""


class RestartOrder(TypedDict):
    brokers: list[RestartVerdict]
    """In the order in which to restart them: dead ones first, the controller last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOrderRequest:
    broker: str = ""
    """Only this one; empty: all."""


CLUSTER_RESTART_ORDER = Operation(
    name="cluster.restart_order",
    request=RestartOrderRequest,
    answer=RestartOrder,
    help="which brokers may be stopped now without a partition that goes offline or falls below `min_isr`",
    writes=False,
)
