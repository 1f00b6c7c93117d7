"""The calls of `proto.API`, by name. Requests and answers pass as bytes and are decoded here, so that malformed
requests end with a sentence and not with a trace in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Never, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from grpc import StatusCode
from grpc.aio import EOF, InternalError

from tidelog.server.liftbridge.consumer_calls import GroupCalls
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.grpc_statuses import Refused, refusal
from tidelog.server.liftbridge.metadata_calls import MetadataCalls
from tidelog.server.liftbridge.publish_calls import PublishCalls
from tidelog.server.liftbridge.stream_calls import CursorCalls, StreamCalls
from tidelog.server.liftbridge.subscribe_calls import SubscribeCalls
from wire.errors import TidelogError
from wire.messaging.reply_subjects import ReplySubjects
from wire.protobuf import liftbridge_pb2 as pb

SERVICE = "proto.API"


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used here."""

    async def abort(self, code: StatusCode, details: str = ...) -> Never: ...

    async def read(self) -> Any: ...

    async def write(self, message: bytes) -> None: ...

    def time_remaining(self) -> float | None: ...


_R = TypeVar("_R", bound=ProtobufMessage)
_Unary: TypeAlias = Callable[[_R], Awaitable[ProtobufMessage]]
_Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class Calls:
    def __init__(self, gateway: Gateway, replies: ReplySubjects) -> None:
        self._streams = StreamCalls(gateway)
        self._groups = GroupCalls(gateway)
        self._cursors = CursorCalls(gateway)
        self._metadata = MetadataCalls(gateway, self._groups)
        self._publishing = PublishCalls(gateway, replies)
        self._subscribing = SubscribeCalls(gateway, self._groups)

    async def close(self) -> None:
        try:
            await self._subscribing.close()
        finally:
            await self._publishing.close()

    def handlers(self) -> dict[str, _Handler]:
        return {
            "CreateStream": _unary(pb.CreateStreamRequest, self._streams.create),
            "DeleteStream": _unary(pb.DeleteStreamRequest, self._streams.delete),
            "PauseStream": _unary(pb.PauseStreamRequest, self._streams.pause),
            "SetStreamReadonly": _unary(pb.SetStreamReadonlyRequest, self._streams.set_readonly),
            "Subscribe": grpc.unary_stream_rpc_method_handler(self._subscribe),
            "FetchMetadata": _unary(pb.FetchMetadataRequest, self._metadata.fetch),
            "FetchPartitionMetadata": _unary(pb.FetchPartitionMetadataRequest, self._metadata.fetch_partition),
            "Publish": _unary(pb.PublishRequest, self._publishing.publish),
            "PublishAsync": grpc.stream_stream_rpc_method_handler(self._publish_async),
            "PublishToSubject": grpc.unary_unary_rpc_method_handler(self._publish_to_subject),
            "SetCursor": _unary(pb.SetCursorRequest, self._cursors.set),
            "FetchCursor": _unary(pb.FetchCursorRequest, self._cursors.fetch),
            "JoinConsumerGroup": _unary(pb.JoinConsumerGroupRequest, self._groups.join),
            "LeaveConsumerGroup": _unary(pb.LeaveConsumerGroupRequest, self._groups.leave),
            "FetchConsumerGroupAssignments": _unary(pb.FetchConsumerGroupAssignmentsRequest, self._groups.assignments),
            "ReportConsumerGroupCoordinator": _unary(pb.ReportConsumerGroupCoordinatorRequest, self._groups.report),
        }

    async def _subscribe(self, data: bytes, context: Context) -> None:
        await _told(context, lambda: self._subscribing.subscribe(_decoded(pb.SubscribeRequest, data), _writer(context)))

    async def _publish_async(self, _requests: object, context: Context) -> None:
        await _told(context, lambda: self._publishing.publish_async(_read(context), _writer(context)))

    async def _publish_to_subject(self, data: bytes, context: Context) -> bytes:
        async def answer() -> ProtobufMessage:
            request = _decoded(pb.PublishToSubjectRequest, data)
            return await self._publishing.publish_to_subject(request, context.time_remaining())

        return (await _told(context, answer)).SerializeToString()


_T = TypeVar("_T")


async def _told(context: Context, call: Callable[[], Awaitable[_T]]) -> _T:
    """Returns the result of `call`; a refusal ends the call with its status."""
    try:
        return await call()
    except (TidelogError, Refused) as error:
        refused = refusal(error)
        try:
            return await context.abort(refused.status, refused.sentence)
        except InternalError:
            raise asyncio.CancelledError from None  # the client has left, as in `_writer`


def _unary(kind: type[_R], answer: _Unary[_R]) -> _Handler:
    async def serve(data: bytes, context: Context) -> bytes:
        return (await _told(context, lambda: _answered(kind, answer, data))).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(serve)


async def _answered(kind: type[_R], answer: _Unary[_R], data: bytes) -> ProtobufMessage:
    return await answer(_decoded(kind, data))


def _decoded(kind: type[_R], data: bytes) -> _R:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Refused(
            StatusCode.INVALID_ARGUMENT, f"{len(data)} bytes are no {kind.DESCRIPTOR.name}; see liftbridge-api"
        ) from None


def _writer(context: Context) -> Callable[[bytes], Awaitable[None]]:
    """Returns the write to the client. One that fails because the client has left counts as cancelled."""

    async def write(message: bytes) -> None:
        try:
            await context.write(message)
        except InternalError:
            raise asyncio.CancelledError from None

    return write


async def _read(context: Context) -> AsyncIterator[bytes]:
    while (data := await context.read()) is not EOF:
        yield data
