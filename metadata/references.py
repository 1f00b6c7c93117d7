"""How metadata messages name a partition: its stream and number, and the incarnations of both."""

from __future__ import annotations

from wire import metadata_pb2 as pb
from wire.types import Incarnation, PartitionKey, StreamName


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
