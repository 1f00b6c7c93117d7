"""Headers of one record: an element of the HEADERS column, empty, raw NATS or binary.

A name may come several times, as in NATS and in Kafka. Readers get a dictionary with the last value of each name; where
a name does come several times it is a `RepeatedHeaders`, which knows them all, and `header_items` gives them all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from wire.errors import Code, CorruptData, TidelogError

_HEADER_KEY_SIZE = struct.Struct("<H")
_HEADER_VALUE_SIZE = struct.Struct("<I")
_BINARY_HEADERS: Final = b"\x01"
_NATS_HEADERS: Final = b"NATS/1.0"


GivenHeaders: TypeAlias = Mapping[str, bytes | Sequence[bytes]]
"""By name: its value, or a list or tuple of its values in order."""


class RepeatedHeaders(dict[str, bytes]):
    """The last value of each name, as any reader of one value wants it, and in `items_in_order` all that were
    published."""

    __slots__ = ("items_in_order",)

    def __init__(self, items: Iterable[tuple[str, bytes]]) -> None:
        self.items_in_order = tuple(items)
        super().__init__(self.items_in_order)


def header_items(headers: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """Every (name, value) of a record's headers in the order of publishing."""
    return headers.items_in_order if isinstance(headers, RepeatedHeaders) else tuple(headers.items())


def encode_headers(headers: GivenHeaders) -> bytes:
    """The HEADERS element of one record. `RepeatedHeaders` are written with all their values.

    Raises TidelogError(BAD_REQUEST), which names the header, for names that are no text or too long and for values that
    are not bytes.
    """
    if not headers:
        return b""
    parts = [_BINARY_HEADERS]
    for name, value in _given_items(headers):
        if not isinstance(name, str):
            raise _bad(f"header name {name!r} is {_kind(name)}; names are text")
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise _bad(f"header {name[:40]!r} is {_kind(value)}; values are bytes, or a list of them, such as b'1'")
        try:
            key = name.encode()
        except UnicodeEncodeError as error:
            raise TidelogError(Code.BAD_REQUEST, f"header key {name[:40]!r} cannot be UTF-8: {error}") from error
        if len(key) > 0xFFFF:
            raise TidelogError(Code.BAD_REQUEST, f"header key {name[:40]!r}… has {len(key)} bytes; the limit is 65535")
        parts += [_HEADER_KEY_SIZE.pack(len(key)), key, _HEADER_VALUE_SIZE.pack(len(value)), value]
    return b"".join(parts)


def _given_items(headers: GivenHeaders) -> Iterable[tuple[str, bytes]]:
    if isinstance(headers, RepeatedHeaders):
        yield from headers.items_in_order
        return
    for name, value in headers.items():
        if isinstance(value, (list, tuple)):
            for one in value:
                yield name, one
        else:
            yield name, value  # type: ignore[misc]  # the caller refuses other types than bytes


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.40}"


def _bad(text: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, text)


def decode_headers(element: bytes) -> dict[str, bytes]:
    """The headers in a HEADERS element; a `RepeatedHeaders` where a name has several values.

    A raw NATS block comes from a publisher: lines in it that are no header are passed over. Binary headers were
    encoded by Tidelog: anything else raises CorruptData.
    """
    if not element:
        return {}
    if element.startswith(_NATS_HEADERS):
        return _decode_nats_headers(element)
    if not element.startswith(_BINARY_HEADERS):
        raise CorruptData(f"record headers begin with {element[:8]!r}, neither a NATS header block nor binary headers")
    items: list[tuple[str, bytes]] = []
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
        items.append((key, take(_HEADER_VALUE_SIZE.unpack(take(_HEADER_VALUE_SIZE.size))[0])))
    return _headers_of(items)


def _decode_nats_headers(block: bytes) -> dict[str, bytes]:
    items = []
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            items.append((key.strip().decode("utf-8", "replace"), value.strip()))
    return _headers_of(items)


def _headers_of(items: list[tuple[str, bytes]]) -> dict[str, bytes]:
    headers = dict(items)
    return headers if len(headers) == len(items) else RepeatedHeaders(items)
