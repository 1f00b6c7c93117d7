"""Liftbridge's consumer groups, on Tidelog's: a consumer is a member of the group of the same name.

    JoinConsumerGroup ─────────────────> heartbeat JOIN
    FetchConsumerGroupAssignments ─────> heartbeat STAY, with the version that this consumer got before
    LeaveConsumerGroup ────────────────> heartbeat LEAVE

A consumer that asks for its assignments again has given up the partitions missing in the last answer; so one goes to
another consumer after the next call of the one that had it, or when its session ends. The epoch is the group's
generation. The last answer to a consumer is kept in this process: another broker sends it all assignments once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpc import StatusCode

from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.grpc_statuses import Refused
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import (
    HEARTBEAT,
    StreamPartition,
    check_group_name,
    coordinator_partition,
    from_stream_partitions,
)
from wire.internal_streams import GROUPS
from wire.names import check_name
from wire.operations import api_operations as op
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.groups_pb2 import HeartbeatRequest, HeartbeatResponse, Subscription
from wire.types import StreamName

SESSION_S = 15.0
"""A consumer that does not ask for its assignments for so long is removed."""
MAX_REMEMBERED = 4096
"""Consumers whose last assignment this broker remembers; one that is forgotten gets all of it anew."""
MAX_GROUPS = 100
"""Most groups of one FetchMetadata."""
ANSWER_WITHIN = 10.0
"""Seconds for a coordinator, with all repetitions."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Told:
    version: int
    assigned: frozenset[StreamPartition]


class GroupCalls:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._api = Api(gateway.transport, gateway.subjects, server="NATS", timeout=ANSWER_WITHIN)
        self._link = CoordinatorLink(gateway.transport, gateway.subjects, self._api)
        self._told: dict[tuple[str, str], _Told] = {}
        """By group and consumer; the one that asked last is last."""

    async def join(self, request: pb.JoinConsumerGroupRequest) -> pb.JoinConsumerGroupResponse:
        _check(request.groupId, request.consumerId)
        if not request.streams:
            raise TidelogError(Code.BAD_REQUEST, "no streams are given; name those that the consumer reads")
        for stream in dict.fromkeys(request.streams):
            if self._gateway.stream(stream) is None:
                await self._gateway.client.metadata(stream)  # it may be new; raises UnknownStream
        self._told.pop((request.groupId, request.consumerId), None)
        answer = await self._heartbeat(
            request.groupId,
            request.consumerId,
            HeartbeatRequest(
                kind=HeartbeatRequest.JOIN,
                subscription=Subscription(streams=request.streams),
                client=f"a Liftbridge client at {self._gateway.broker}",
                session_timeout_ms=round(SESSION_S * 1000),
                rebalance_timeout_ms=round(SESSION_S * 1000),
            ),
        )
        return pb.JoinConsumerGroupResponse(
            coordinator=await self.coordinator(request.groupId),
            epoch=answer.generation,
            consumerTimeout=round(SESSION_S * _NS),
            coordinatorTimeout=round(SESSION_S * _NS),
        )

    async def leave(self, request: pb.LeaveConsumerGroupRequest) -> pb.LeaveConsumerGroupResponse:
        _check(request.groupId, request.consumerId)
        self._told.pop((request.groupId, request.consumerId), None)
        await self._heartbeat(request.groupId, request.consumerId, HeartbeatRequest(kind=HeartbeatRequest.LEAVE))
        return pb.LeaveConsumerGroupResponse()

    async def assignments(
        self, request: pb.FetchConsumerGroupAssignmentsRequest
    ) -> pb.FetchConsumerGroupAssignmentsResponse:
        _check(request.groupId, request.consumerId)
        key = (request.groupId, request.consumerId)
        before = self._told.get(key)
        answer = await self._heartbeat(
            *key, HeartbeatRequest(kind=HeartbeatRequest.STAY, applied=0 if before is None else before.version)
        )
        told = before
        if told is None or told.version != answer.version:  # the answer to a known version names no partitions
            told = _Told(answer.version, from_stream_partitions(answer.assigned))
        self._remember(key, told)
        response = pb.FetchConsumerGroupAssignmentsResponse(epoch=answer.generation)
        by_stream: dict[str, list[int]] = {}
        for each in sorted(told.assigned):
            by_stream.setdefault(each.stream, []).append(each.partition)
        for stream, partitions in by_stream.items():
            response.assignments.add(stream=stream, partitions=partitions)
        return response

    async def report(
        self, request: pb.ReportConsumerGroupCoordinatorRequest
    ) -> pb.ReportConsumerGroupCoordinatorResponse:
        """Answers a report; a dead coordinator is replaced without reports. The group is looked at all the same."""
        _check(request.groupId, request.consumerId)
        if not request.coordinator:
            raise TidelogError(Code.BAD_REQUEST, "coordinator is empty; name the broker that does not answer")
        await self._describe(request.groupId)
        return pb.ReportConsumerGroupCoordinatorResponse()

    async def coordinator(self, group: str) -> str:
        """Returns the broker whose port the group's consumers should ask, the same one at all brokers."""
        stream = self._gateway.state.streams.get(StreamName(GROUPS.name))
        partition = None if stream is None else stream.partitions.get(coordinator_partition(group))
        leader = None if partition is None else partition.leader
        return leader if leader is not None and leader in await self._gateway.addresses() else self._gateway.broker

    async def metadata(self, groups: list[str]) -> list[pb.ConsumerGroupMetadata]:
        if len(groups) > MAX_GROUPS:
            raise TidelogError(Code.BAD_REQUEST, f"{len(groups)} groups are asked for; name {MAX_GROUPS} at most")
        told = []
        for group in groups:
            try:
                generation = (await self._describe(group))["generation"]
            except TidelogError as error:
                if error.code not in (Code.UNKNOWN_GROUP, Code.BAD_NAME):
                    raise
                told.append(pb.ConsumerGroupMetadata(groupId=group, error=pb.ConsumerGroupMetadata.UNKNOWN_GROUP))
            else:
                coordinator = await self.coordinator(group)
                told.append(pb.ConsumerGroupMetadata(groupId=group, coordinator=coordinator, epoch=generation))
        return told

    async def check_assigned(self, consumer: pb.Consumer, stream: str, partition: int) -> None:
        """Raises Refused where the group has not given the partition to that consumer, or takes it away."""
        if not consumer.consumerId:
            raise TidelogError(Code.BAD_REQUEST, "Consumer id cannot be empty when group id is provided")
        described = await self._describe(consumer.groupId)
        for member in described["details"]:
            if member["id"] == consumer.consumerId and partition in member["assigned"].get(stream, ()):
                return
        raise Refused(StatusCode.FAILED_PRECONDITION, "Consumer is not currently assigned this partition")

    async def _describe(self, group: str) -> op.GroupDescription:
        return await self._api.call(op.GROUP_DESCRIBE, check_group_name(group))

    async def _heartbeat(self, group: str, consumer: str, request: HeartbeatRequest) -> HeartbeatResponse:
        request.group, request.member = group, consumer
        request.cluster_id = await self._link.cluster_id()
        return await self._link.ask(HEARTBEAT, group, request, HeartbeatResponse, timeout=ANSWER_WITHIN)

    def _remember(self, key: tuple[str, str], told: _Told) -> None:
        self._told.pop(key, None)
        self._told[key] = told
        while len(self._told) > MAX_REMEMBERED:
            del self._told[next(iter(self._told))]


def _check(group: str, consumer: str) -> None:
    check_group_name(group)
    check_name(consumer, "consumerId")
