"""How metadata messages name a partition: its stream and number, and the incarnations of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wire import metadata_pb2 as pb
from wire.types import Incarnation, LeaderEpoch, LogEnd, Offset, PartitionKey, StreamName


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


def log_ends_to_pb(ends: Mapping[PartitionKey, LogEnd]) -> list[pb.LogEnds]:
    """In the order of the keys, a message for each stream."""
    found: list[pb.LogEnds] = []
    for key, end in sorted(ends.items()):
        stream = (key.stream, key.stream_incarnation)
        if not found or (found[-1].stream, found[-1].stream_incarnation) != stream:
            found.append(pb.LogEnds(stream=key.stream, stream_incarnation=key.stream_incarnation))
        found[-1].partitions.append(key.partition)
        found[-1].partition_incarnations.append(key.partition_incarnation)
        found[-1].leader_epochs.append(end.leader_epoch)
        found[-1].ends.append(end.offset)
    return found


def log_ends_of(told: pb.LogEnds) -> Iterator[tuple[PartitionKey, LogEnd]]:
    stream, incarnation = StreamName(told.stream), Incarnation(told.stream_incarnation)
    entries = zip(told.partitions, told.partition_incarnations, told.leader_epochs, told.ends, strict=False)
    for partition, partition_incarnation, leader_epoch, end in entries:
        key = PartitionKey(stream, incarnation, partition, Incarnation(partition_incarnation))
        yield key, LogEnd(LeaderEpoch(leader_epoch), Offset(end))
