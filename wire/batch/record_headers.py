"""Headers of one record: an element of the HEADERS column, empty, raw NATS or binary."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from wire.errors import Code, CorruptData, TidelogError

_HEADER_KEY_SIZE = struct.Struct("<H")
_HEADER_VALUE_SIZE = struct.Struct("<I")
_BINARY_HEADERS: Final = b"\x01"
_NATS_HEADERS: Final = b"NATS/1.0"


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    """The HEADERS element of one record. Raises TidelogError(BAD_REQUEST) for a key that is too long or not Unicode."""
    if not headers:
        return b""
    parts = [_BINARY_HEADERS]
    for name, value in headers.items():
        try:
            key = name.encode()
        except UnicodeEncodeError as error:
            raise TidelogError(Code.BAD_REQUEST, f"header key {name[:40]!r} cannot be UTF-8: {error}") from error
        if len(key) > 0xFFFF:
            raise TidelogError(Code.BAD_REQUEST, f"header key {name[:40]!r}… has {len(key)} bytes; the limit is 65535")
        parts += [_HEADER_KEY_SIZE.pack(len(key)), key, _HEADER_VALUE_SIZE.pack(len(value)), value]
    return b"".join(parts)


def decode_headers(element: bytes) -> dict[str, bytes]:
    """The headers in a HEADERS element. The last of several with one key counts.

    A raw NATS block is whatever a publisher sent: lines in it that are no header are passed over. Binary headers were
    encoded by us: what does not fit raises CorruptData.
    """
    if not element:
        return {}
    if element.startswith(_NATS_HEADERS):
        return _decode_nats_headers(element)
    if not element.startswith(_BINARY_HEADERS):
        raise CorruptData(f"record headers begin with {element[:8]!r}, neither a NATS header block nor binary headers")
    headers: dict[str, bytes] = {}
    at = 1

    def take(size: int) -> bytes:
        nonlocal at
        end = at + size
        if end > len(element):
            raise CorruptData(f"record headers of {len(element)} bytes are cut off: a field goes to byte {end}")
        field = element[at:end]
        at = end
        return field

    while at < len(element):
        try:
            key = take(_HEADER_KEY_SIZE.unpack(take(_HEADER_KEY_SIZE.size))[0]).decode()
        except UnicodeDecodeError as error:
            raise CorruptData(f"record header key is no UTF-8: {error}") from error
        headers[key] = take(_HEADER_VALUE_SIZE.unpack(take(_HEADER_VALUE_SIZE.size))[0])
    return headers


def _decode_nats_headers(block: bytes) -> dict[str, bytes]:
    headers: dict[str, bytes] = {}
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            headers[key.strip().decode("utf-8", "replace")] = value.strip()
    return headers
