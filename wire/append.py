"""What a client sends to `.append`: a preamble that says what it wants, and one RecordBatch.

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

from wire.errors import CorruptData
from wire.tidelog_pb2 import AppendRequest

if TYPE_CHECKING:
    from wire.transport import Buffer

_LENGTH = struct.Struct("<I")
MAX_REQUEST_BYTES: Final = 4096
"""No AppendRequest is larger; it has a handful of numbers and a client id."""


def encode_append(request: AppendRequest, batch_parts: Sequence[Buffer]) -> list[Buffer]:
    """The parts of the message: the preamble, then `batch_parts` as they are."""
    encoded = request.SerializeToString()
    preamble = _LENGTH.pack(len(encoded)) + encoded
    return [preamble + bytes(-len(preamble) % 8), *batch_parts]


def decode_append(payload: Buffer) -> tuple[AppendRequest, memoryview]:
    """The request, and a view of the batch, which is not looked at here. Raises CorruptData."""
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
