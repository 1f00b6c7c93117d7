"""Consumer groups on the wire: where their coordinators listen, and the keys of the records that they keep.

A group, and a cursor, belongs to one partition of the internal stream `__groups`, by the hash of its name. The leader
of that partition is its coordinator. Members and owners of cursors ask it on

    <ns>.__groups.<partition>.<kind>.<name>       kind: heartbeat, commit, offsets; cursor

where <name> is the group or the cursor, so that permissions of NATS can be given for one of them. The messages are
those of `wire/protobuf/groups.proto`; errors stand in the headers of the answer, as everywhere.

The stream is compacted. A key is a kind and names, which cannot contain the zero byte between them:

    g GROUP             GroupRecord        its generation
    m GROUP MEMBER      MemberRecord       a member, and its partitions
    o GROUP STREAM PARTITION INCARNATION   OffsetRecord, a committed offset
    p GROUP PRODUCER    PendingRecord, offsets in the transaction of a producer
    c CURSOR            CursorRecord
    b                   nothing: that it was committed proves that its LeaderEpoch lasts
                        (`tidelog.server.coordinators.groups.group_shard`)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from wire.errors import Code, TidelogError
from wire.internal_streams import GROUPS
from wire.names import check_name
from wire.protobuf.groups_pb2 import StreamPartitions
from wire.subjects import Subjects
from wire.types import StreamName

HEARTBEAT: Final = "heartbeat"
DISCOVER: Final = "discover"
"""Heartbeats of members that subscribe by pattern. Their answers name all streams that match, so NATS gives permission
for it apart from HEARTBEAT."""
COMMIT: Final = "commit"
OFFSETS: Final = "offsets"
CURSOR: Final = "cursor"
KINDS: Final = (HEARTBEAT, DISCOVER, COMMIT, OFFSETS, CURSOR)

MAX_COMMITTED: Final = 1000
"""Limit of the offsets of one commit."""

_SEPARATOR: Final = b"\0"


class StreamPartition(NamedTuple):
    """A partition of one incarnation of a stream."""

    stream: str
    incarnation: int
    """The incarnation of the stream."""
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


def check_group_name(name: str) -> str:
    """Returns the name. Raises TidelogError(BAD_NAME)."""
    return check_name(name, "group name")


def check_cursor_name(name: str) -> str:
    """Returns the name. Raises TidelogError(BAD_NAME)."""
    return check_name(name, "cursor name")


def coordinator_partition(name: str) -> int:
    """The partition of `__groups` to which a group or a cursor of that name belongs."""
    return zlib.crc32(name.encode()) % GROUPS.partitions


def coordinator_subject(subjects: Subjects, kind: str, name: str) -> str:
    """The subject on which the coordinator of a group, or of a cursor, takes requests of that kind. `name` "*": of all
    its groups or cursors."""
    return subjects.coordinator(StreamName(GROUPS.name), coordinator_partition(name), kind, name)


def to_stream_partitions(partitions: Iterable[StreamPartition]) -> list[StreamPartitions]:
    """Returns one entry per stream, in the order of the names and numbers."""
    found: dict[tuple[str, int], list[int]] = {}
    for stream, incarnation, number in partitions:
        numbers = found.get((stream, incarnation))
        if numbers is None:
            numbers = found[stream, incarnation] = []
        numbers.append(number)
    return [
        StreamPartitions(stream=stream, incarnation=incarnation, partitions=sorted(numbers))
        for (stream, incarnation), numbers in sorted(found.items())
    ]


def from_stream_partitions(entries: Iterable[StreamPartitions]) -> frozenset[StreamPartition]:
    return frozenset(
        StreamPartition(entry.stream, entry.incarnation, partition)
        for entry in entries
        for partition in entry.partitions
    )


# ---- keys of the records -------------------------------------------------------------------------------------------


class GroupKey(NamedTuple):
    group: str

    def encode(self) -> bytes:
        return _join("g", self.group)


class MemberKey(NamedTuple):
    group: str
    member: str

    def encode(self) -> bytes:
        return _join("m", self.group, self.member)


class OffsetKey(NamedTuple):
    group: str
    of: StreamPartition

    def encode(self) -> bytes:
        return _join("o", self.group, self.of.stream, str(self.of.partition), str(self.of.incarnation))


class PendingKey(NamedTuple):
    group: str
    producer_id: int

    def encode(self) -> bytes:
        return _join("p", self.group, str(self.producer_id))


class CursorKey(NamedTuple):
    cursor: str

    def encode(self) -> bytes:
        return _join("c", self.cursor)


class BarrierKey(NamedTuple):
    def encode(self) -> bytes:
        return b"b"


RecordKey = GroupKey | MemberKey | OffsetKey | PendingKey | CursorKey | BarrierKey


def decode_key(key: bytes) -> RecordKey:
    """Raises ValueError for a key of no kind that this version knows."""
    match key.decode().split(_SEPARATOR.decode()):
        case ["g", group]:
            return GroupKey(group)
        case ["m", group, member]:
            return MemberKey(group, member)
        case ["o", group, stream, partition, incarnation]:
            return OffsetKey(group, StreamPartition(stream, int(incarnation), int(partition)))
        case ["p", group, producer_id]:
            return PendingKey(group, int(producer_id))
        case ["c", cursor]:
            return CursorKey(cursor)
        case ["b"]:
            return BarrierKey()
        case _:
            pass
    raise ValueError(f"{key!r} is no key of {GROUPS.name}")


def _join(*parts: str) -> bytes:
    return _SEPARATOR.join(part.encode() for part in parts)


# ---- refusals ------------------------------------------------------------------------------------------------------


def unknown_member(group: str, member: str) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_MEMBER,
        f"{member!r:.80} is no member of group {group!r}: it left, or was not heard for its session timeout; join anew",
    )
