"""FetchMetadata, from the cluster state that this broker has applied, and FetchPartitionMetadata, from the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from grpc import StatusCode

from metadata.model import Partition, Stream
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.groups import GroupCalls
from tidelog.server.liftbridge.refusals import Refused
from tidelog.server.liftbridge.settings import split_address
from wire import liftbridge_pb2 as pb
from wire.types import BrokerId

CURSORS = "__cursors"
"""Liftbridge's stream of cursors. There is none here; it is told to clients, which look for its leader."""


class MetadataCalls:
    def __init__(self, gateway: Gateway, groups: GroupCalls) -> None:
        self._gateway = gateway
        self._groups = groups

    async def fetch(self, request: pb.FetchMetadataRequest) -> pb.FetchMetadataResponse:
        addresses = await self._gateway.addresses()
        answer = pb.FetchMetadataResponse(brokers=self._brokers(addresses))
        streams = [(name, self._gateway.stream(name)) for name in dict.fromkeys(request.streams)]
        if not streams:
            streams = [(CURSORS, None), *((each.name, each) for each in self._gateway.streams())]
        for name, stream in streams:
            if name == CURSORS:
                answer.streamMetadata.append(self._cursors())
            elif stream is None:
                answer.streamMetadata.add(name=name, error=pb.StreamMetadata.UNKNOWN_STREAM)
            else:
                answer.streamMetadata.append(self._described(stream, addresses))
        answer.groupMetadata.extend(await self._groups.metadata([*dict.fromkeys(request.groups)]))
        return answer

    async def fetch_partition(self, request: pb.FetchPartitionMetadataRequest) -> pb.FetchPartitionMetadataResponse:
        description = await self._gateway.client.describe(request.stream)
        told = next((each for each in description["partitions"] if each["partition"] == request.partition), None)
        if told is None:
            raise Refused(
                StatusCode.NOT_FOUND, f"there is no partition {request.partition} in stream {request.stream!r}"
            )
        committed, end = told["high_watermark"], told["log_end_offset"]
        if committed is None or end is None:
            raise Refused(
                StatusCode.UNAVAILABLE,
                f"the leader of {request.stream}/{request.partition} does not answer; try again",
            )
        addresses = await self._gateway.addresses()
        leader = told["leader"]
        metadata = pb.PartitionMetadata(
            id=request.partition,
            leader=self._leader_of(BrokerId(leader) if leader else None, addresses),
            replicas=told["replicas"],
            isr=told["isr"],
            highWatermark=committed,
            newestOffset=end - 1,
            paused=told["paused"],
            readonly=told["readonly"],
        )
        return pb.FetchPartitionMetadataResponse(metadata=metadata)

    def _brokers(self, addresses: Mapping[BrokerId, str]) -> list[pb.Broker]:
        led: Counter[BrokerId] = Counter()
        held: Counter[BrokerId] = Counter()
        for stream in self._gateway.streams():
            for partition in stream.partitions.values():
                held.update(partition.replicas)
                if partition.leader is not None:
                    led[partition.leader] += 1
        brokers = []
        for broker, address in sorted(addresses.items()):
            if (parts := split_address(address)) is not None:
                host, port = parts
                brokers.append(
                    pb.Broker(id=broker, host=host, port=port, partitionCount=held[broker], leaderCount=led[broker])
                )
        return brokers

    def _cursors(self) -> pb.StreamMetadata:
        """Clients send calls about cursors to the leader of this stream of Liftbridge's; any broker takes them."""
        described = pb.StreamMetadata(name=CURSORS, subject=CURSORS)
        own = self._gateway.broker
        described.partitions[0].CopyFrom(pb.PartitionMetadata(id=0, leader=own, replicas=[own], isr=[own]))
        return described

    def _described(self, stream: Stream, addresses: Container[BrokerId]) -> pb.StreamMetadata:
        described = pb.StreamMetadata(name=stream.name, subject=stream.subject)
        for number, partition in stream.partitions.items():
            described.partitions[number].CopyFrom(self._partition(number, partition, addresses))
        return described

    def _partition(self, number: int, partition: Partition, addresses: Container[BrokerId]) -> pb.PartitionMetadata:
        return pb.PartitionMetadata(
            id=number,
            leader=self._leader_of(partition.leader, addresses),
            replicas=partition.replicas,
            isr=partition.isr,
            paused=partition.paused,
            readonly=partition.readonly,
        )

    def _leader_of(self, leader: BrokerId | None, addresses: Container[BrokerId]) -> str:
        """Clients send their calls to the leader, and know no way to one without the port: this broker takes them in
        its place."""
        if leader is None:
            return ""
        return leader if leader in addresses else self._gateway.broker
