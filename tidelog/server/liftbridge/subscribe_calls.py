"""Subscribe: the committed records of one partition, from any replica's broker.

The first message is empty: the subscription stands, and its position is fixed. Then come records, as fast as the client
takes them; while it does not, at most PREFETCH_BYTES wait here, plus gRPC's own buffers. A subscription ends with
RESOURCE_EXHAUSTED at its stop and at the end of a partition that takes no records, as Liftbridge's do, and with
CANCELLED where a rebalance takes the partition away: go-liftbridge hands its program nothing for that status, and a
pause for FAILED_PRECONDITION, with which only the beginning of a subscription may be refused. A group's
consumer stays subscribed to a partition that is retired, since a later repartition may use it again, until the group
takes the partition away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from grpc import StatusCode

from tidelog.client.base.read_positions import AtTime, Start, Stop
from tidelog.client.base.records import Record
from tidelog.client.cluster.lifetime import close_all
from tidelog.client.consumer.consumer import Consumer
from tidelog.server.liftbridge.consumer_calls import GroupCalls
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.grpc_statuses import Refused
from wire.errors import Code, TidelogError
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import Message
from wire.subjects import ingest_subject
from wire.types import PartitionState

MAX_SUBSCRIPTIONS = 256
"""Most subscriptions of one broker."""
PREFETCH_BYTES = 1 << 20
FETCH_BYTES = 256 << 10
_RECORDS_AT_ONCE = 256
IDLE_LOOK = 1.0
"""Seconds without a record after which a subscription looks whether its partition takes records at all."""
ASSIGNED_LOOK = 5.0
"""Seconds after which the subscription of a group's consumer looks whether the partition is still its own."""
_MAX_OFFSET = (1 << 63) - 1

Write = Callable[[bytes], Awaitable[None]]


class SubscribeCalls:
    def __init__(self, gateway: Gateway, groups: GroupCalls) -> None:
        self._gateway = gateway
        self._groups = groups
        self._consumers: set[Consumer] = set()
        self._of_groups: dict[tuple[str, str, int], Consumer] = {}
        """Consumers of groups, by group, stream and partition."""

    async def close(self) -> None:
        """Ends all subscriptions; their clients are notified that the broker stops."""
        await close_all([consumer.aclose for consumer in self._consumers])

    async def subscribe(self, request: pb.SubscribeRequest, write: Write) -> None:
        if len(self._consumers) >= MAX_SUBSCRIPTIONS:
            raise Refused(
                StatusCode.UNAVAILABLE,
                f"this broker has {MAX_SUBSCRIPTIONS} subscriptions, which is its limit; use another broker",
            )
        group = request.consumer.groupId
        if group and request.readISRReplica:
            raise _bad("Consumer groups not compatible with ReadISRReplica; leave one of them out")
        start, stop = _start(request), await self._stop(request)
        consumer: Consumer = self._gateway.client.consume(
            request.stream,
            start=start,
            stop=stop,
            partitions=[request.partition],
            max_bytes=FETCH_BYTES,
            prefetch_bytes=PREFETCH_BYTES,
            read_from="follower" if request.readISRReplica else "leader",
            on_gap="skip",
        )
        self._consumers.add(consumer)
        place = (group, request.stream, request.partition)
        try:
            if group:
                await self._check_partition(request)
                await self._groups.check_assigned(request.consumer, request.stream, request.partition)
                await self._take_over(place, consumer)
            await self._serve(consumer, request, stop, write)
        except TidelogError as error:
            if self._gateway.is_closing:
                raise Refused(StatusCode.UNAVAILABLE, "this broker stops; use another one") from error
            if group and self._of_groups.get(place, consumer) is not consumer:
                raise Refused(StatusCode.CANCELLED, "another subscription has taken its place") from error
            raise
        finally:
            self._consumers.discard(consumer)
            if self._of_groups.get(place) is consumer:
                del self._of_groups[place]
            await consumer.aclose()

    async def _take_over(self, place: tuple[str, str, int], consumer: Consumer) -> None:
        """Ends the group's earlier subscription to the partition at this broker: the last allowed one stays."""
        before = self._of_groups.get(place)
        self._of_groups[place] = consumer
        if before is not None:
            await before.aclose()

    async def _serve(self, consumer: Consumer, request: pb.SubscribeRequest, stop: Stop, write: Write) -> None:
        await self._check_partition(request)
        await consumer.start()
        position = consumer.position(request.partition)
        if isinstance(stop, int) and stop <= position:
            raise Refused(StatusCode.INVALID_ARGUMENT, f"Stop offset is before start offset: {stop - 1} < {position}")
        await write(b"")
        subject = await self._subject(request)
        loop = asyncio.get_running_loop()
        look_at = loop.time() + ASSIGNED_LOOK if request.consumer.groupId else float("inf")
        while True:
            if loop.time() >= look_at:
                await self._check_still_assigned(request)
                look_at = loop.time() + ASSIGNED_LOOK
            records = await consumer.getmany(_RECORDS_AT_ONCE, IDLE_LOOK)
            for record in records:
                await write(_message(record, subject))
            if records:
                continue
            if consumer.is_at_end:
                what = "Stop offset reached" if stop is not None else "End of a partition that was removed"
                raise Refused(StatusCode.RESOURCE_EXHAUSTED, what)
            if (kind := self._takes_no_records(request)) and await self._is_at_last_end(consumer, request):
                raise Refused(StatusCode.RESOURCE_EXHAUSTED, f"End of {kind} partition")

    async def _check_still_assigned(self, request: pb.SubscribeRequest) -> None:
        try:
            await self._groups.check_assigned(request.consumer, request.stream, request.partition)
        except Refused as error:
            raise Refused(StatusCode.CANCELLED, error.sentence) from error

    async def _check_partition(self, request: pb.SubscribeRequest) -> None:
        layout = await self._gateway.client.metadata(request.stream)
        if request.partition not in layout.partitions:
            raise Refused(
                StatusCode.NOT_FOUND, f"there is no partition {request.partition} in stream {request.stream!r}"
            )

    async def _subject(self, request: pb.SubscribeRequest) -> str:
        stream = self._gateway.stream(request.stream)
        return ingest_subject(stream.subject if stream is not None else request.stream, request.partition)

    def _takes_no_records(self, request: pb.SubscribeRequest) -> str:
        """Returns the name of the state in which the partition takes no records; empty: it takes some, or may soon."""
        stream = self._gateway.stream(request.stream)
        partition = None if stream is None else stream.partitions.get(request.partition)
        if partition is None:
            return ""
        if partition.readonly:
            return "readonly"
        is_left = partition.state is PartitionState.RETIRED and not request.consumer.groupId
        return "retired" if is_left else ""

    async def _is_at_last_end(self, consumer: Consumer, request: pb.SubscribeRequest) -> bool:
        """Returns whether all is read. Records of an open transaction are still to be read."""
        number = request.partition
        ends = await self._gateway.client.offsets(request.stream, "latest", partitions=[number], read_uncommitted=True)
        return consumer.position(number) >= ends[number]

    async def _stop(self, request: pb.SubscribeRequest) -> Stop:
        match request.stopPosition:
            case pb.STOP_ON_CANCEL:
                return None
            case pb.STOP_OFFSET:
                if request.stopOffset < 0:
                    raise _bad(f"stopOffset={request.stopOffset} is negative; give the last offset that is wanted")
                return min(request.stopOffset + 1, _MAX_OFFSET)
            case pb.STOP_TIMESTAMP:
                return AtTime(min(request.stopTimestamp + 1, _MAX_OFFSET))
            case pb.STOP_LATEST:
                await self._check_partition(request)
                ends = await self._gateway.client.offsets(request.stream, "latest", partitions=[request.partition])
                if not ends[request.partition]:
                    raise Refused(StatusCode.RESOURCE_EXHAUSTED, "Stream is empty")
                return "latest"
            case unknown:
                raise _bad(f"stopPosition {unknown} is none of 0 to 3")


def _start(request: pb.SubscribeRequest) -> Start:
    match request.startPosition:
        case pb.NEW_ONLY:
            return "new"
        case pb.OFFSET:
            return max(request.startOffset, 0)
        case pb.EARLIEST:
            return "earliest"
        case pb.LATEST:
            return "latest"
        case pb.TIMESTAMP:
            return AtTime(request.startTimestamp)
        case unknown:
            raise _bad(f"startPosition {unknown} is none of 0 to 4")


def _message(record: Record, subject: str) -> bytes:
    """Returns the record with the headers that Liftbridge adds; the subject of a reply is not kept here."""
    return Message(
        offset=record.offset,
        key=record.key,
        value=record.value,
        timestamp=record.timestamp,
        stream=record.stream,
        partition=record.partition,
        subject=subject,
        headers={"subject": subject.encode(), "reply": b"", **record.headers},
    ).SerializeToString()


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, sentence)
