"""References to partitions in metadata messages: the stream and number, and the incarnations of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final

from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps, pieces
from wire.types import Incarnation, LeaderEpoch, LogEnd, Offset, PartitionKey, StreamName

_PIECE: Final = 50
"""Partitions that are handled before `Steps` yield."""


def ref_of(key: PartitionKey) -> pb.PartitionRef:
    return pb.PartitionRef(
        stream=key.stream,
        stream_incarnation=key.stream_incarnation,
        partition=key.partition,
        partition_incarnation=key.partition_incarnation,
    )


def key_of(ref: pb.PartitionRef) -> PartitionKey:
    return PartitionKey(
        StreamName(ref.stream),
        Incarnation(ref.stream_incarnation),
        ref.partition,
        Incarnation(ref.partition_incarnation),
    )


def log_ends_to_pb(ends: Mapping[PartitionKey, LogEnd]) -> Steps[list[pb.LogEnds]]:
    """Returns a message for each stream, with its log ends in the order of the keys."""
    found = yield from logs_to_pb(ends)
    for logs in found:
        for piece in pieces(logs_of(logs), _PIECE):
            known = [ends[key] for key in piece]
            logs.leader_epochs.extend(end.leader_epoch for end in known)
            logs.ends.extend(end.offset for end in known)
            yield _PIECE
    return found


def logs_to_pb(keys: Iterable[PartitionKey]) -> Steps[list[pb.LogEnds]]:
    """Returns a message for each stream, without log ends. A repeated key counts once."""
    streams: defaultdict[tuple[StreamName, Incarnation], set[tuple[int, Incarnation]]] = defaultdict(set)
    for piece in pieces(keys, _PIECE):
        for key in piece:
            streams[key.stream, key.stream_incarnation].add((key.partition, key.partition_incarnation))
        yield _PIECE
    found: list[pb.LogEnds] = []
    for (stream, incarnation), partitions in sorted(streams.items(), key=itemgetter(0)):
        logs = pb.LogEnds(stream=stream, stream_incarnation=incarnation)
        for partition, partition_incarnation in sorted(partitions):
            logs.partitions.append(partition)
            logs.partition_incarnations.append(partition_incarnation)
        found.append(logs)
        yield 1 + len(partitions)
    return found


def logs_of(told: pb.LogEnds) -> Iterator[PartitionKey]:
    stream, incarnation = StreamName(told.stream), Incarnation(told.stream_incarnation)
    for partition, partition_incarnation in zip(told.partitions, told.partition_incarnations, strict=False):
        yield PartitionKey(stream, incarnation, partition, Incarnation(partition_incarnation))


def log_ends_of(told: pb.LogEnds) -> Iterator[tuple[PartitionKey, LogEnd]]:
    for key, leader_epoch, end in zip(logs_of(told), told.leader_epochs, told.ends, strict=False):
        yield key, LogEnd(LeaderEpoch(leader_epoch), Offset(end))
