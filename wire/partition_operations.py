"""Operations on some or all partitions of a stream, declared as those of `wire.operations`, which has them too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from wire.errors import Code
from wire.operation import Operation


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
