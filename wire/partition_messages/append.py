"""A client's message to `.append`: a preamble with its request, and one RecordBatch.

0  u32 length of the AppendRequest, little-endian
4  AppendRequest (protobuf)
   zeros up to a multiple of 8
   RecordBatch
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from wire.durability import Durability, DurabilityKind
from wire.errors import Code, CorruptData, TidelogError
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.types import Offset

if TYPE_CHECKING:
    from wire.types import Buffer

_LENGTH = struct.Struct("<I")
MAX_REQUEST_BYTES: Final = 4096
"""Limit of an AppendRequest; it has a handful of numbers and a client id."""
UNKNOWN_OFFSET: Final = Offset(-1)
"""In an answer, stands for the offset of a record that is or was in the log, when the leader does not know it."""


_LEVELS: Final = {
    AppendRequest.DURABLE: DurabilityKind.DURABLE,
    AppendRequest.ACCEPTED: DurabilityKind.ACCEPTED,
    AppendRequest.LOCAL_DURABLE: DurabilityKind.LOCAL_DURABLE,
    AppendRequest.REPLICA_ACCEPTED: DurabilityKind.REPLICA_ACCEPTED,
    AppendRequest.REPLICA_DURABLE: DurabilityKind.REPLICA_DURABLE,
    AppendRequest.MAJORITY_DURABLE: DurabilityKind.MAJORITY_DURABLE,
}
_NUMBERS: Final = {kind: number for number, kind in _LEVELS.items()}


def ask_durability(request: AppendRequest, durability: Durability) -> None:
    """Sets the level that the publish asks for in place of the stream's."""
    request.durability = _NUMBERS[durability.kind]
    request.durability_replicas = durability.replicas


def asked_durability(request: AppendRequest) -> Durability | None:
    """Returns the level; None: the stream's. Raises TidelogError(BAD_REQUEST)."""
    if request.durability == AppendRequest.STREAM:
        return None
    kind = _LEVELS.get(request.durability)
    if kind is None:
        raise TidelogError(
            Code.BAD_REQUEST, f"durability level {request.durability} is not known here; update the brokers"
        )
    try:
        return Durability(kind, request.durability_replicas)
    except ValueError as error:
        raise TidelogError(Code.BAD_REQUEST, str(error)) from None


def encode_append(request: AppendRequest, batch_parts: Sequence[Buffer]) -> list[Buffer]:
    """Returns the parts of the message: the preamble, then `batch_parts` as they are."""
    encoded = request.SerializeToString()
    preamble = _LENGTH.pack(len(encoded)) + encoded
    return [preamble + bytes(-len(preamble) % 8), *batch_parts]


def decode_append(payload: Buffer) -> tuple[AppendRequest, memoryview]:
    """Returns the request, and a view of the batch, which is not checked here. Raises CorruptData."""
    if len(payload) < _LENGTH.size:
        raise CorruptData(f"append message of {len(payload)} bytes has no preamble")
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    batch_at = end + -end % 8
    if length > MAX_REQUEST_BYTES or batch_at > len(payload):
        raise CorruptData(f"append message of {len(payload)} bytes says that its preamble has {length}")
    view = memoryview(payload)
    try:
        request = AppendRequest.FromString(bytes(view[_LENGTH.size : end]))
    except DecodeError as error:
        raise CorruptData(f"append preamble is no AppendRequest: {error}") from error
    return request, view[batch_at:]
