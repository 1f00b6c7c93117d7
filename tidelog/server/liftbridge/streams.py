"""CreateStream, DeleteStream, PauseStream, SetStreamReadonly."""

from __future__ import annotations

from collections.abc import Sequence

from grpc import StatusCode

from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.refusals import Refused
from tidelog.server.liftbridge.stream_settings import stream_config
from wire.errors import Code, TidelogError
from wire.protobuf import liftbridge_pb2 as pb

MAX_REPLICATION = -1
"""Stands for all brokers."""
_MOST_REPLICAS = 16


class StreamCalls:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: pb.CreateStreamRequest) -> pb.CreateStreamResponse:
        config = stream_config(request)
        replicas = request.replicationFactor or 1
        if replicas == MAX_REPLICATION:
            alive = sum(broker.alive for broker in self._gateway.state.brokers.values())
            replicas = min(alive, _MOST_REPLICAS)
        if not request.subject:
            raise TidelogError(Code.BAD_SUBJECT, "the stream has no subject; give the NATS subject that it captures")
        await self._gateway.client.create_stream(
            request.name,
            subject=request.subject,
            partitions=request.partitions or 1,
            replication_factor=replicas,
            config=config,
        )
        await self._gateway.until_known(request.name)
        return pb.CreateStreamResponse()

    async def delete(self, request: pb.DeleteStreamRequest) -> pb.DeleteStreamResponse:
        await self._gateway.client.delete_stream(request.name)
        return pb.DeleteStreamResponse()

    async def pause(self, request: pb.PauseStreamRequest) -> pb.PauseStreamResponse:
        self._check_partitions(request.name, request.partitions)
        await self._gateway.client.pause(request.name, [*request.partitions] or None, request.resumeAll)
        return pb.PauseStreamResponse()

    async def set_readonly(self, request: pb.SetStreamReadonlyRequest) -> pb.SetStreamReadonlyResponse:
        self._check_partitions(request.name, request.partitions)
        await self._gateway.client.set_readonly(request.name, request.readonly, [*request.partitions] or None)
        return pb.SetStreamReadonlyResponse()

    def _check_partitions(self, name: str, partitions: Sequence[int]) -> None:
        """A stream that is not known here may be new: the controller judges it."""
        stream = self._gateway.stream(name)
        for partition in partitions:
            if stream is not None and partition not in stream.partitions:
                raise Refused(StatusCode.NOT_FOUND, f"there is no partition {partition} in stream {name!r}")
