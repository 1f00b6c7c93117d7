"""Calls of Liftbridge's API as a client makes them, without a client: raw gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from socket import create_server
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message as ProtobufMessage
from grpc import StatusCode
from grpc.aio import AioRpcError, Channel, StreamStreamCall, UnaryStreamCall

from tests.integration.rig.dev_cluster import dev_cluster
from tidelog.process.loopback import HOST, free_ports
from tidelog.server.devcluster import DevCluster
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import Message

SECONDS = 30.0
"""Deadline of a call: a loaded machine is slow, not wrong."""


class Method(NamedTuple):
    request: type[Any]
    response: type[Any]


UNARY = {
    name: Method(getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response"))
    for name in (
        "CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly", "FetchMetadata", "FetchPartitionMetadata",
        "Publish", "PublishToSubject", "SetCursor", "FetchCursor", "JoinConsumerGroup", "LeaveConsumerGroup",
        "FetchConsumerGroupAssignments", "ReportConsumerGroupCoordinator",
    )
}  # fmt: skip


class Stub:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def call(self, request: ProtobufMessage, seconds: float | None = SECONDS) -> Any:
        """The answer to a request of a unary call, whose name is that of the request."""
        name = type(request).__name__.removesuffix("Request")
        method: Any = self.channel.unary_unary(
            f"/proto.API/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=UNARY[name].response.FromString,
        )
        return await method(request, timeout=seconds)

    async def refusal(self, request: ProtobufMessage) -> tuple[StatusCode, str]:
        try:
            answer = await self.call(request)
        except AioRpcError as error:
            return error.code(), error.details() or ""
        raise AssertionError(f"{request} was answered with {answer}")

    def subscription(self, request: pb.SubscribeRequest) -> UnaryStreamCall[Any, Message]:
        method: Any = self.channel.unary_stream(
            "/proto.API/Subscribe",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=Message.FromString,
        )
        call: UnaryStreamCall[Any, Message] = method(request)
        return call

    async def records(self, request: pb.SubscribeRequest) -> tuple[list[Message], StatusCode, str]:
        """Until the subscription ends; the first, empty message is left out."""
        messages: list[Message] = []
        call = self.subscription(request)
        try:
            while isinstance(message := await call.read(), Message):
                messages.append(message)
            code, sentence = await call.code(), str(await call.details())
        except AioRpcError as error:
            code, sentence = error.code(), str(error.details())
        assert not messages or messages[0] == Message()
        return messages[1:], code, sentence

    def publish_async(self) -> StreamStreamCall[pb.PublishRequest, pb.PublishResponse]:
        method: Any = self.channel.stream_stream(
            "/proto.API/PublishAsync",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.PublishResponse.FromString,
        )
        call: StreamStreamCall[pb.PublishRequest, pb.PublishResponse] = method()
        return call

    async def raw(self, name: str, data: bytes) -> StatusCode:
        """Any bytes as a request; the status that they end with."""
        channel: Any = self.channel
        try:
            if name == "Subscribe":
                call = channel.unary_stream(f"/proto.API/{name}")(data, timeout=SECONDS)
                async for _ in call:
                    call.cancel()
            elif name == "PublishAsync":
                both = channel.stream_stream(f"/proto.API/{name}")(iter([data]), timeout=SECONDS)
                async for _ in both:
                    pass
            else:
                # A message to a subject waits for an acknowledgement as long as it may.
                seconds = None if name == "PublishToSubject" else SECONDS
                await channel.unary_unary(f"/proto.API/{name}")(data, timeout=seconds)
        except AioRpcError as error:
            return error.code()
        except BaseException as error:
            if type(error).__name__ != "CancelledError":  # the call's own, by cancel()
                raise
            return StatusCode.CANCELLED
        return StatusCode.OK


@asynccontextmanager
async def stub(address: str | None, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[Stub]:
    assert address is not None
    options = [("grpc.enable_http_proxy", 0)]
    channel = (
        grpc.aio.insecure_channel(address, options)
        if credentials is None
        else grpc.aio.secure_channel(address, credentials, options)
    )
    async with channel:
        yield Stub(channel)


@contextmanager
def cluster_with_port(folder: Path, **options: Any) -> Iterator[DevCluster]:
    with dev_cluster(folder, liftbridge_port=_ports_in_a_row(3), **options) as cluster:
        yield cluster


def _ports_in_a_row(count: int) -> int:
    while True:
        first = free_ports(1)[0]
        with suppress(OSError):
            for port in range(first + 1, first + count):
                create_server((HOST, port)).close()
            return first
