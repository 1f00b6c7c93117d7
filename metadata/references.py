"""How metadata messages name a partition: its stream and number, and the incarnations of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


def logs_to_pb(keys: Iterable[PartitionKey]) -> list[pb.LogEnds]:
    """Without their ends."""
    found = log_ends_to_pb(dict.fromkeys(keys, LogEnd(LeaderEpoch(0), Offset(0))))
    for logs in found:
        logs.ClearField("leader_epochs")
        logs.ClearField("ends")
    return found


def logs_of(told: pb.LogEnds) -> Iterator[PartitionKey]:
    stream, incarnation = StreamName(told.stream), Incarnation(told.stream_incarnation)
    for partition, partition_incarnation in zip(told.partitions, told.partition_incarnations, strict=False):
        yield PartitionKey(stream, incarnation, partition, Incarnation(partition_incarnation))


def log_ends_of(told: pb.LogEnds) -> Iterator[tuple[PartitionKey, LogEnd]]:
    for key, leader_epoch, end in zip(logs_of(told), told.leader_epochs, told.ends, strict=False):
        yield key, LogEnd(LeaderEpoch(leader_epoch), Offset(end))
