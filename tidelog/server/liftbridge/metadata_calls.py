"""FetchMetadata, from the cluster state that this broker has applied, with the offsets that replicas report; and
FetchPartitionMetadata, from the leader.

Offsets cost a request to the replicas of each stream: FetchMetadata asks for those of the first MAX_DESCRIBED streams,
and waits OFFSETS_WITHIN for them, because clients ask when a leader has died. Missing offsets are UNKNOWN, as of an
empty partition.

Partitions that a repartition has left are listed, as read-only: clients find no leader to read from otherwise. Those
that are made ready for the next layout are not: nobody can write to them, or read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

from grpc import StatusCode

from metadata.cluster.model import Partition, Stream
from tidelog.server.liftbridge.consumer_calls import GroupCalls
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.grpc_statuses import Refused
from tidelog.server.liftbridge.port_settings import split_address
from wire.errors import TidelogError
from wire.operations.api_operations import PartitionDescription, StreamDescription
from wire.protobuf import liftbridge_pb2 as pb
from wire.turns import Steps, in_turns, pieces
from wire.types import BrokerId, PartitionState

CURSORS = "__cursors"
"""Liftbridge's stream of cursors. There is none here; metadata name it, because clients look for its leader."""

MAX_DESCRIBED = 100
DESCRIBED_AT_ONCE = 8
OFFSETS_WITHIN = 1.0
"""Seconds."""
RECORD_WITHIN = 5.0
"""Seconds to wait for a record whose time is asked for."""
UNKNOWN = -1

PIECE: Final = 50
"""Partitions that are handled before `Steps` yield."""
OF_PARTITION: Final = 3
"""Looks that the description of a partition takes."""


class MetadataCalls:
    def __init__(self, gateway: Gateway, groups: GroupCalls) -> None:
        self._gateway = gateway
        self._groups = groups

    async def fetch(self, request: pb.FetchMetadataRequest) -> pb.FetchMetadataResponse:
        addresses = await self._gateway.addresses()
        answer = pb.FetchMetadataResponse()
        await in_turns(self._add_brokers(answer, addresses))
        streams = [(name, self._gateway.stream(name)) for name in dict.fromkeys(request.streams)]
        if not streams:
            streams = [(CURSORS, None), *((each.name, each) for each in self._gateway.streams())]
        offsets = await self._offsets([name for name, stream in streams if stream is not None])
        await in_turns(self._add_streams(answer, streams, addresses, offsets))
        answer.groupMetadata.extend(await self._groups.metadata([*dict.fromkeys(request.groups)]))
        return answer

    def _add_streams(
        self,
        answer: pb.FetchMetadataResponse,
        streams: Sequence[tuple[str, Stream | None]],
        addresses: Container[BrokerId],
        offsets: Mapping[str, Mapping[int, PartitionDescription]],
    ) -> Steps[None]:
        for name, stream in streams:
            yield 1
            if name == CURSORS:
                answer.streamMetadata.append(self._cursors())
            elif stream is None:
                answer.streamMetadata.add(name=name, error=pb.StreamMetadata.UNKNOWN_STREAM)
            else:
                yield from self._describe(stream, answer.streamMetadata.add(), addresses, offsets.get(name, {}))

    async def fetch_partition(self, request: pb.FetchPartitionMetadataRequest) -> pb.FetchPartitionMetadataResponse:
        description = await self._gateway.client.describe(request.stream)
        told = next((each for each in description["partitions"] if each["partition"] == request.partition), None)
        if told is None or _is_made_ready(description, told):
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
            readonly=told["readonly"] or told["state"] != PartitionState.ACTIVE.value,
        )
        start = told["log_start_offset"]
        if start is not None and start <= committed:
            first, last = await self._times(request.stream, request.partition, start, committed)
            metadata.messagesReceivedTimestamps.firstTimestamp = first
            metadata.messagesReceivedTimestamps.latestTimestamp = last
        return pb.FetchPartitionMetadataResponse(metadata=metadata)

    async def _times(self, stream: str, partition: int, start: int, committed: int) -> tuple[int, int]:
        """Returns the times of the first and the last record; 0 for one that retention removes meanwhile."""
        times = []
        for offset in (start, committed):
            async with self._gateway.client.consume(
                stream,
                partitions=[partition],
                start=offset,
                stop=committed + 1,
                on_gap="skip",
                max_bytes=1,
                read_uncommitted=True,  # so that it does not wait for an open transaction
            ) as consumer:
                record = await consumer.getone(RECORD_WITHIN)
            times.append(0 if record is None else record.timestamp)
        return times[0], times[1]

    async def _offsets(self, streams: Sequence[str]) -> dict[str, dict[int, PartitionDescription]]:
        """Returns descriptions by stream and partition."""
        told: dict[str, dict[int, PartitionDescription]] = {}
        room = asyncio.Semaphore(DESCRIBED_AT_ONCE)

        async def ask(name: str) -> None:
            async with room:
                try:
                    description = await self._gateway.client.describe(name)
                except TidelogError:
                    return
            told[name] = {each["partition"]: each for each in description["partitions"]}

        tasks = [asyncio.ensure_future(ask(name)) for name in streams[:MAX_DESCRIBED]]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=OFFSETS_WITHIN)
        finally:
            for task in tasks:
                task.cancel()
        return told

    def _add_brokers(self, answer: pb.FetchMetadataResponse, addresses: Mapping[BrokerId, str]) -> Steps[None]:
        led: Counter[BrokerId] = Counter()
        held: Counter[BrokerId] = Counter()
        for stream in self._gateway.streams():
            yield 1
            for piece in pieces([*stream.partitions.values()], PIECE):
                yield len(piece)
                for partition in piece:
                    held.update(partition.replicas)
                    if partition.leader is not None:
                        led[partition.leader] += 1
        for broker, address in sorted(addresses.items()):
            if (parts := split_address(address)) is not None:
                host, port = parts
                answer.brokers.add(
                    id=broker, host=host, port=port, partitionCount=held[broker], leaderCount=led[broker]
                )

    def _cursors(self) -> pb.StreamMetadata:
        """Describes Liftbridge's stream of cursors, to whose leader clients send their calls; any broker takes them."""
        described = pb.StreamMetadata(name=CURSORS, subject=CURSORS)
        own = self._gateway.broker
        described.partitions[0].CopyFrom(pb.PartitionMetadata(id=0, leader=own, replicas=[own], isr=[own]))
        return described

    def _describe(
        self,
        stream: Stream,
        described: pb.StreamMetadata,
        addresses: Container[BrokerId],
        offsets: Mapping[int, PartitionDescription],
    ) -> Steps[None]:
        described.name, described.subject = stream.name, stream.subject
        told = [each for each in stream.partitions.items() if not stream.is_made_ready(each[0])]
        for piece in pieces(told, PIECE):
            yield OF_PARTITION * len(piece)
            for number, partition in piece:
                metadata = self._partition(number, partition, addresses)
                ends = offsets.get(number)
                committed, end = (None, None) if ends is None else (ends["high_watermark"], ends["log_end_offset"])
                metadata.highWatermark = UNKNOWN if committed is None else committed
                metadata.newestOffset = UNKNOWN if end is None else end - 1
                described.partitions[number].CopyFrom(metadata)

    def _partition(self, number: int, partition: Partition, addresses: Container[BrokerId]) -> pb.PartitionMetadata:
        return pb.PartitionMetadata(
            id=number,
            leader=self._leader_of(partition.leader, addresses),
            replicas=partition.replicas,
            isr=partition.isr,
            paused=partition.paused,
            readonly=partition.readonly or partition.state is not PartitionState.ACTIVE,
        )

    def _leader_of(self, leader: BrokerId | None, addresses: Container[BrokerId]) -> str:
        """Returns the leader, or this broker in place of one without the port, to which clients know no way: this
        broker takes its calls."""
        if leader is None:
            return ""
        return leader if leader in addresses else self._gateway.broker


def _is_made_ready(stream: StreamDescription, partition: PartitionDescription) -> bool:
    """It waits for the cutover to a layout that has it."""
    is_beyond = partition["partition"] >= stream["layouts"][-1]["partitions"]
    return is_beyond and partition["state"] == PartitionState.ACTIVE.value
