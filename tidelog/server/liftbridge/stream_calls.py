"""SetCursor and FetchCursor, on Tidelog's cursors.

A cursor of Liftbridge belongs to a partition and has any text as its id; one of Tidelog has a name. The name is made of
a hash, and the value names its source, with the offset and the incarnations of the stream and the partition: the
cursor of one that was deleted, or removed by retention after a repartition, and made again counts as never set.

Some settings of Liftbridge's CreateStream have no counterpart, and a program works without them. They are taken and do
nothing (docs/liftbridge.md gives the reason for each): `group`, because a subject has one stream, which gets every
message of it; `cleanerInterval`, because brokers look for logs to be cleaned at an interval of their own;
`compactMaxGoroutines`, because a broker compacts one log at a time; and `optimisticConcurrencyControl`, because every
stream checks an expected offset.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from grpc import StatusCode

from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.grpc_statuses import Refused
from wire.errors import Code, TidelogError
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.liftbridge_pb2 import CreateStreamRequest
from wire.stream_config import SETTINGS

_COUNTERPARTS: Mapping[str, str] = {
    "retentionMaxBytes": "retention_max_bytes",
    "retentionMaxMessages": "retention_max_messages",
    "retentionMaxAge": "retention_max_age_ms",
    "segmentMaxBytes": "segment_bytes",
    "segmentMaxAge": "segment_max_age_ms",
    "compactEnabled": "compact",
    "minIsr": "min_isr",
    "autoPauseTime": "auto_pause_time_ms",
    "autoPauseDisableIfSubscribers": "auto_pause_disable_if_subscribers",
    "encryption": "encryption",
}
"""Liftbridge's settings, with their counterparts here. Numbers have the same units in both."""


def stream_config(request: CreateStreamRequest) -> dict[str, str]:
    """Returns the settings as texts. Raises TidelogError(BAD_CONFIG) that names the field, the value and the remedy."""
    config: dict[str, str] = {}
    for name, setting in _COUNTERPARTS.items():
        if not request.HasField(name):  # type: ignore[arg-type] # protobuf's stubs want a literal
            continue
        text = _text(getattr(request, name).value)
        try:
            SETTINGS[setting].parse(text)
        except TidelogError as error:
            raise _bad(f"{name}: {error.message}") from None
        config[setting] = text
    return config


def _text(value: int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)


NEVER_SET = -1
MAX_ID_BYTES = 1024
_PREFIX = "liftbridge-"
_HASH_DIGITS = 40


class CursorCalls:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def set(self, request: pb.SetCursorRequest) -> pb.SetCursorResponse:
        name, lives = await self._checked(request)
        value = {
            "stream": request.stream,
            "partition": request.partition,
            "cursor": request.cursorId,
            **lives,
            "offset": request.offset,
        }
        await self._gateway.client.cursor(name).set(json.dumps(value, ensure_ascii=False).encode())
        return pb.SetCursorResponse()

    async def fetch(self, request: pb.FetchCursorRequest) -> pb.FetchCursorResponse:
        name, lives = await self._checked(request)
        found = await self._gateway.client.cursor(name).get()
        return pb.FetchCursorResponse(offset=NEVER_SET if found is None else _offset(found.value, lives))

    async def _checked(self, request: pb.SetCursorRequest | pb.FetchCursorRequest) -> tuple[str, dict[str, int]]:
        """Returns the name of the cursor, and the incarnations of the stream and the partition."""
        if not request.stream or not request.cursorId:
            missing = "cursorId" if request.stream else "stream"
            raise TidelogError(Code.BAD_REQUEST, f"{missing} is empty; a cursor has an id and belongs to a stream")
        if len(request.cursorId.encode()) > MAX_ID_BYTES:
            raise TidelogError(Code.BAD_REQUEST, f"cursorId has more than {MAX_ID_BYTES} bytes; choose a shorter one")
        layout = await self._gateway.client.metadata(request.stream)
        partition = layout.partitions.get(request.partition)
        if partition is None:
            raise Refused(
                StatusCode.NOT_FOUND, f"there is no partition {request.partition} in stream {request.stream!r}"
            )
        told = f"{request.stream}\0{request.partition}\0{request.cursorId}"
        name = _PREFIX + hashlib.sha256(told.encode()).hexdigest()[:_HASH_DIGITS]
        return name, {"incarnation": layout.incarnation, "partition_incarnation": partition.incarnation}


def _offset(value: bytes, lives: Mapping[str, int]) -> int:
    """Returns the offset; NEVER_SET where the value is of other incarnations, or was not written here. A value of an
    earlier version does not name the partition's incarnation: it is that of the stream."""
    try:
        told = json.loads(value)
        told.setdefault("partition_incarnation", told["incarnation"])
        offset = told["offset"] if all(told[name] == life for name, life in lives.items()) else NEVER_SET
    except (ValueError, KeyError, TypeError, AttributeError):
        return NEVER_SET
    return offset if type(offset) is int and NEVER_SET <= offset < 1 << 63 else NEVER_SET


MAX_REPLICATION = -1
"""A replication factor that stands for all brokers."""
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
        """Checks the partitions of a stream; one that is not known here may be new, and the controller judges it."""
        stream = self._gateway.stream(name)
        for partition in partitions:
            if stream is not None and partition not in stream.partitions:
                raise Refused(StatusCode.NOT_FOUND, f"there is no partition {partition} in stream {name!r}")
