"""Operations on some or all partitions of a stream, and on their number, declared as those of
`wire.operations.api_operations`, which has them too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypedDict

from wire.errors import Code
from wire.operations.operation import Operation


class ChangedPartition(TypedDict):
    partition: int
    readonly: bool
    paused: bool
    log_start_offset: int
    """No record below it is served any more."""
    not_yet: list[str]
    """Live brokers with a replica that have not said yet that they know the change."""


class ChangedPartitions(TypedDict):
    partitions: list[ChangedPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReadonlyRequest:
    name: str
    readonly: bool = True
    partitions: list[int] = field(default_factory=list)
    """None of them: all."""


STREAM_SET_READONLY = Operation(
    name="stream.set_readonly",
    request=SetReadonlyRequest,
    answer=ChangedPartitions,
    help="let partitions take no records, or take them again; answered when all live replicas know, or after 3 s",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequest:
    name: str
    partitions: list[int] = field(default_factory=list)
    """None of them: all."""
    resume_all: bool = False
    """A publish to one of them resumes all partitions of the stream."""


STREAM_PAUSE = Operation(
    name="stream.pause",
    request=PauseRequest,
    answer=ChangedPartitions,
    help="let followers of partitions sleep until a record comes; answered when all live replicas know, or after 3 s",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    name: str
    partitions: list[int] = field(default_factory=list)
    """None of them: all."""


STREAM_RESUME = Operation(
    name="stream.resume",
    request=ResumeRequest,
    answer=ChangedPartitions,
    help="end the pause of partitions; answered when all live replicas know, or after 3 s",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)


LATEST = -1
"""In place of an offset: the end of the committed log, in front of a transaction that is open."""


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    name: str
    before: dict[str, int]
    """By partition: the records below this offset go. LATEST: all that are committed."""


STREAM_DELETE_RECORDS = Operation(
    name="stream.delete_records",
    request=DeleteRecordsRequest,
    answer=ChangedPartitions,
    help="delete the committed records below an offset; answered when all live replicas know, or after 3 s",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM, Code.OFFSET_AHEAD),
    time_s=10.0,
)


MAX_LISTED: Final = 100
"""Partitions that a plan or a status lists where there may be very many."""


class PartitionSources(TypedDict):
    partition: int
    waits_for: list[int]
    """The partitions of the layout before from which keys come to it; the first MAX_LISTED."""


class RepartitionPlan(TypedDict):
    stream: str
    partitioning_version: int
    """As it is now."""
    partitions: int
    """The same."""
    to_version: int
    to_partitions: int
    made: list[int]
    """New partitions."""
    used_again: list[int]
    """Partitions that an earlier repartition has left behind, and that get keys again."""
    left: list[int]
    """Partitions that take no records any more. They can be read until retention has removed their records."""
    moved_keys: float
    """The share of keys whose records go to another partition, 0 to 1."""
    sources: list[PartitionSources]
    """The partitions of the new layout in which records wait for others: who reads keys in their order reads them
    after those. The first MAX_LISTED."""
    effects: list[str]
    """What users will notice, as sentences."""


class RepartitionState(TypedDict):
    version: int
    """The partitioning version that it begins."""
    partitions: int
    phase: str
    """"prepared": keys are spread as before; "cutover": they are spread anew."""
    adoption_generation: int
    """The generation of the cutover; 0: not yet."""
    done: int
    """Partitions whose leaders are ready (prepared), or have reported where the layout before ends in
    them (cutover)."""
    of: int
    waiting: list[int]
    """Those whose leaders have not; the first MAX_LISTED."""
    adopted: int | None
    """The smallest routing generation of the stream that clients report to have applied; None: none reports."""
    done_for_s: float | None
    """For how long this controller has known that all have reported; None: not all have."""
    adoption_timeout_s: float
    """It is finished after this time, whatever clients have applied."""


class RepartitionStatus(TypedDict):
    stream: str
    partitioning_version: int
    partitions: int
    """Over which keys are spread."""
    repartition: RepartitionState | None
    """None: none is under way."""


class Repartitioned(TypedDict):
    plan: RepartitionPlan
    status: RepartitionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionRequest:
    name: str
    partitions: int
    dry_run: bool = False
    """Only the plan is wanted."""


@dataclass(frozen=True, slots=True)
class RepartitionRef:
    name: str


STREAM_REPARTITION = Operation(
    name="stream.repartition",
    request=RepartitionRequest,
    answer=Repartitioned,
    help="spread the keys of a living stream over another number of partitions; answered when new records go there, or"
    " after 3 s; with `dry_run` only the plan",
    writes=True,
    stream="name",
    refusals=(
        Code.UNKNOWN_STREAM,
        Code.BAD_CONFIG,
        Code.BAD_SUBJECT,
        Code.BAD_REPLICATION_FACTOR,
        Code.NOT_ENOUGH_BROKERS,
        Code.LIMIT_REACHED,
        Code.STALE_EPOCH,
    ),
    time_s=10.0,
)

STREAM_REPARTITION_STATUS = Operation(
    name="stream.repartition_status",
    request=RepartitionRef,
    answer=RepartitionStatus,
    help="how far the repartition of a stream is",
    writes=False,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM,),
)

STREAM_REPARTITION_CANCEL = Operation(
    name="stream.repartition_cancel",
    request=RepartitionRef,
    answer=RepartitionStatus,
    help="give up a repartition as long as keys are spread as before",
    writes=True,
    stream="name",
    refusals=(Code.UNKNOWN_STREAM, Code.STALE_EPOCH),
)
