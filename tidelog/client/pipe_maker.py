"""Makes the pipes of a producer: one for each partition of each layout."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.accumulator import PartitionAccumulator
from tidelog.client.accumulator_settings import AccumulatorSettings
from tidelog.client.metadata import PartitionMetadata, StreamMetadata
from tidelog.client.pipe import Pipe, Sender
from tidelog.client.upkeep import Upkeep
from wire.batch import Compression
from wire.durability import Durability
from wire.messaging.transport import Transport
from wire.partition_messages.append import ask_durability
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.security.tickets import partition_target
from wire.subjects import Subjects
from wire.types import Acks

_WIRE_ACKS = {Acks.ALL: AppendRequest.ALL, Acks.LEADER: AppendRequest.LEADER, Acks.NONE: AppendRequest.NONE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeMaker:
    upkeep: Upkeep
    transport: Transport
    subjects: Subjects
    settings: AccumulatorSettings
    asked_acks: Acks
    """As the program has given them; those of `settings` are what they amount to."""
    durability: Durability | None
    """None: that of the stream."""
    confirm_timeout_ms: int
    compression: Compression

    def make(self, layout: StreamMetadata, known: PartitionMetadata, sender: Sender) -> Pipe:
        request = AppendRequest(
            cluster_id=layout.cluster_id,
            stream_incarnation=layout.incarnation,
            partition_incarnation=known.incarnation,
            partitioning_version=layout.partitioning_version,
            acks=_WIRE_ACKS[self.asked_acks],
            confirm_timeout_ms=self.confirm_timeout_ms,
        )
        if self.durability is not None:
            ask_durability(request, self.durability)
        return Pipe(
            sender,
            self.upkeep,
            self.transport,
            known.partition,
            PartitionAccumulator(f"{layout.name}/{known.partition}", self.settings, known.leader_epoch),
            request,
            compression=self.compression,
            dedup=self.settings.dedup,
            append_subject=self.subjects.append(layout.name, known.partition),
            leader_subject=self.subjects.leader(layout.name, known.partition),
            proof_target=partition_target(layout.name, layout.incarnation, known.partition, known.incarnation),
        )
