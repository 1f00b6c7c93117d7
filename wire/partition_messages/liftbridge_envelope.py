"""Liftbridge's envelope: how its clients publish to a stream's subject, and how they are acknowledged.

    0  4 bytes magic B9 0E 43 B4
    4  u8  version = 0
    5  u8  header length: 8, or 12 with a CRC
    6  u8  flags: bit 0 = a CRC follows
    7  u8  message type: 0 publish, 1 ack
    8  u32 CRC-32C of the bytes behind the header, big-endian (only with flag bit 0)
       protobuf Message or Ack

A payload that begins with the magic is an envelope, whole or damaged, and never a plain payload: one that does not
decode is refused. The header is held to exactly the two forms above, because its own bytes are not under the CRC: no
flipped bit behind the magic passes for something else.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError

from wire.errors import CorruptData
from wire.protobuf.tidelog_pb2 import Ack, Message

if TYPE_CHECKING:
    from wire.messaging.transport import UniformRun
    from wire.types import Buffer

MAGIC: Final = b"\xb9\x0e\x43\xb4"
VERSION: Final = 0

_HEADER = struct.Struct("4sBBBB")
_CRC = struct.Struct(">I")
_CRC_FLAG: Final = 1
_MAGIC_WORD: Final = int.from_bytes(MAGIC, "little")
_LITTLE_U32: Final = np.dtype("<u4")


class _Type(IntEnum):
    PUBLISH = 0
    ACK = 1


def is_envelope(payload: Buffer) -> bool:
    """Whether `payload` begins as an envelope."""
    return payload[: len(MAGIC)] == MAGIC


def any_envelope(run: UniformRun) -> bool:
    """Whether `is_envelope` holds for any payload of the run, without Python work for each."""
    if run.payload_size < len(MAGIC):
        return False
    first_words = np.ndarray((run.count,), _LITTLE_U32, run.block, run.payload_at, (run.stride,))
    return bool((first_words == _MAGIC_WORD).any())


def encode_publish(message: Message, *, crc: bool = True) -> bytes:
    return _encode(_Type.PUBLISH, message.SerializeToString(), crc=crc)


def decode_publish(payload: Buffer) -> Message:
    """Raises CorruptData for anything but a whole publish envelope."""
    content = _content(payload, _Type.PUBLISH)
    try:
        return Message.FromString(content)
    except DecodeError as error:
        raise CorruptData(f"publish envelope holds no Message: {error}") from error


def encode_ack(ack: Ack) -> bytes:
    return _encode(_Type.ACK, ack.SerializeToString(), crc=True)


def decode_ack(payload: Buffer) -> Ack:
    """Raises CorruptData for anything but a whole ack envelope."""
    content = _content(payload, _Type.ACK)
    try:
        return Ack.FromString(content)
    except DecodeError as error:
        raise CorruptData(f"ack envelope holds no Ack: {error}") from error


def _encode(kind: _Type, content: bytes, *, crc: bool) -> bytes:
    if not crc:
        return _HEADER.pack(MAGIC, VERSION, _HEADER.size, 0, kind) + content
    header = _HEADER.pack(MAGIC, VERSION, _HEADER.size + _CRC.size, _CRC_FLAG, kind)
    return header + _CRC.pack(crc32c(content)) + content


def _content(payload: Buffer, expected: _Type) -> bytes:
    if len(payload) < _HEADER.size:
        raise CorruptData(f"envelope of {len(payload)} bytes is cut off")
    magic, version, header_length, flags, kind = _HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise CorruptData(f"payload begins with {magic.hex(' ')}, which is no envelope")
    if version != VERSION:
        raise CorruptData(f"envelope of version {version}; this broker knows version {VERSION}")
    if flags & ~_CRC_FLAG:
        raise CorruptData(f"envelope with unknown flags {flags:#04x}")
    if header_length != _HEADER.size + (_CRC.size if flags & _CRC_FLAG else 0) or header_length > len(payload):
        raise CorruptData(
            f"envelope of {len(payload)} bytes, flags {flags:#04x}, with a header of {header_length} bytes"
        )
    if kind != expected:
        raise CorruptData(f"envelope of message type {kind}, not {expected.name} ({expected.value})")
    content = bytes(memoryview(payload)[header_length:])
    if flags & _CRC_FLAG:
        (crc,) = _CRC.unpack_from(payload, _HEADER.size)
        computed = crc32c(content)
        if crc != computed:
            raise CorruptData(f"envelope has CRC {crc:#010x}, its content has {computed:#010x}")
    return content
