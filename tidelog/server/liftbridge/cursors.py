"""SetCursor and FetchCursor, on Tidelog's cursors.

A cursor of Liftbridge belongs to a partition and has any text as its id; one of Tidelog has a name. The name is made of
a hash, and the value says what it was made of, with the offset and the lives of the stream and of the partition: the
cursor of one that was deleted, or removed by retention after a repartition, and made again counts as never set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from grpc import StatusCode

from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.refusals import Refused
from wire.errors import Code, TidelogError
from wire.protobuf import liftbridge_pb2 as pb

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
        """The name of the cursor, and the lives of the stream and the partition."""
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
    """NEVER_SET where the value is of other lives, or was not written here. One of an earlier version does not name the
    life of the partition: it is that of the stream."""
    try:
        told = json.loads(value)
        told.setdefault("partition_incarnation", told["incarnation"])
        offset = told["offset"] if all(told[name] == life for name, life in lives.items()) else NEVER_SET
    except (ValueError, KeyError, TypeError, AttributeError):
        return NEVER_SET
    return offset if type(offset) is int and NEVER_SET <= offset < 1 << 63 else NEVER_SET
