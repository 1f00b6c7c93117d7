"""Headers of one record: an element of the HEADERS column, empty, raw NATS or binary.

A name may come several times, as in NATS and in Kafka. Readers get a dictionary with the last value of each name; where
a name does come several times it is a `RepeatedHeaders`, which knows them all, and `header_items` gives them all.

Leaders store only headers that readers can distinguish and copies can write again: `block_fault` for NATS blocks,
`check_headers` for those of a client's batch. Versions before that rule stored any bytes. So `decode_headers` refuses
nothing: a reader gets a malformed element whole, as the value of the one header RAW_HEADERS.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np

from wire.errors import Code, CorruptData, TidelogError, limit_reached

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wire.batch.columns import BytesColumn
    from wire.types import Buffer

_HEADER_KEY_SIZE = struct.Struct("<H")
_HEADER_VALUE_SIZE = struct.Struct("<I")
_BINARY_HEADERS: Final = b"\x01"
_NATS_HEADERS: Final = b"NATS/1.0"
_NATS_WORD: Final = int.from_bytes(_NATS_HEADERS, "little")

RAW_HEADERS: Final = "Tidelog-Raw-Headers"
"""The name under which readers get the bytes of malformed headers."""
MAX_RECORD_HEADERS: Final = 4096
"""Limit of the headers of a record: lines of a NATS block, headers of an envelope or of a producer."""
_MAX_NAME_BYTES: Final = 0xFFFF
_MOST_GROWTH: Final = 3
"""Limit of the growth of a NATS block in binary form, as a factor: a line of `:` becomes 6 bytes, and a byte of a
name that is no UTF-8 becomes 3."""
_NEVER_TOO_MUCH: Final = 3 * MAX_RECORD_HEADERS
"""A NATS block of at most so many bytes has neither too many lines, of which each has 3 bytes, nor too long a name."""
_WORTH_NUMPY: Final = 8
"""Number of records from which on numpy checks the next header of all of them faster than Python one by one."""


_Size = TypeVar("_Size", int, "NDArray[np.int32]", "NDArray[np.int64]")

GivenHeaders: TypeAlias = Mapping[str, bytes | Sequence[bytes]]
"""Values by name: one value, or a list or tuple of values in order."""


class RepeatedHeaders(dict[str, bytes]):
    """The last value of each name, for readers of one value, and in `items_in_order` all published values."""

    __slots__ = ("items_in_order",)

    def __init__(self, items: Iterable[tuple[str, bytes]]) -> None:
        self.items_in_order = tuple(items)
        super().__init__(self.items_in_order)


def header_items(headers: Mapping[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    """Returns every (name, value) of a record's headers in the order of publishing."""
    return headers.items_in_order if isinstance(headers, RepeatedHeaders) else tuple(headers.items())


def encode_headers(headers: GivenHeaders) -> bytes:
    """Returns the HEADERS element of one record. `RepeatedHeaders` are written with all their values.

    Raises TidelogError(BAD_REQUEST), which names the header, for names that are no text or too long and for values that
    are not bytes; TidelogError(LIMIT_REACHED) for more than MAX_RECORD_HEADERS.
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
        if len(key) > _MAX_NAME_BYTES:
            raise _name_too_long(name, len(key))
        parts += [_HEADER_KEY_SIZE.pack(len(key)), key, _HEADER_VALUE_SIZE.pack(len(value)), value]
    if len(parts) > 4 * MAX_RECORD_HEADERS + 1:
        raise _too_many(len(parts) // 4)
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


def _too_many(count: int) -> TidelogError:
    return limit_reached(
        "record_headers",
        f"a record has {count} headers, more than {MAX_RECORD_HEADERS} headers, the limit; put several values into one"
        " header, or into the record's value",
    )


def _name_too_long(name: str, size: int) -> TidelogError:
    return TidelogError(
        Code.BAD_REQUEST,
        f"header key {name[:40]!r}… has {size} bytes; the limit is {_MAX_NAME_BYTES}; choose a shorter one",
    )


def is_nats_block(element: bytes) -> bool:
    return element.startswith(_NATS_HEADERS)


def block_fault(block: bytes) -> TidelogError | None:
    """Returns why a leader does not store that header block of a NATS message; None: it does."""
    if not block.startswith(_NATS_HEADERS):
        return _bad(
            f"the header block of the message begins with {block[:8]!r}, not with {_NATS_HEADERS.decode()}, and nobody"
            " could read it; send headers as NATS clients do, or none"
        )
    return None if len(block) <= _NEVER_TOO_MUCH else _fault_of(_nats_items(block))


def _fault_of(items: Sequence[tuple[str, bytes]]) -> TidelogError | None:
    """Returns why no producer could write these headers; None: it could."""
    if len(items) > MAX_RECORD_HEADERS:
        return _too_many(len(items))
    for name, _ in items:
        if len(name) * _MOST_GROWTH > _MAX_NAME_BYTES and len(name.encode()) > _MAX_NAME_BYTES:
            return _name_too_long(name, len(name.encode()))
    return None


def are_sound(blocks: Buffer, sizes: NDArray[np.int32]) -> bool:
    """Whether each of the header blocks, one after the other, is empty or without a `block_fault`, found for all of
    them together. False also where one is so large that it must be looked at by itself."""
    smallest, largest = int(sizes.min()), int(sizes.max())
    starts = np.cumsum(sizes, dtype=np.int64) - sizes
    if not smallest:
        filled = sizes > 0
        starts = starts[filled]
        smallest = int(sizes[filled].min(initial=largest))
    if smallest < len(_NATS_HEADERS) or largest > _NEVER_TOO_MUCH:
        return not largest
    words = np.ndarray((len(blocks) - 7,), "<u8", blocks, 0, (1,))
    return bool((words[starts] == _NATS_WORD).all())


def written_size(block: bytes) -> int:
    """Returns the bytes of the headers of a NATS block as a producer writes them: this size counts towards the largest
    record that a stream takes, so that a copy of it is as large."""
    return len(encode_headers(_headers_of(_nats_items(block)))) if block else 0


def most_written(size: _Size) -> _Size:
    """Returns a bound of `written_size`, and of the blocks' own size, for blocks of `size` bytes."""
    return _MOST_GROWTH * size


def decode_headers(element: bytes) -> dict[str, bytes]:
    """Returns the headers in a HEADERS element; a `RepeatedHeaders` where a name has several values.

    A raw NATS block comes from a publisher: lines in it that are no header are skipped, and of a value only the leading
    blanks, as nats-server does. An element that no leader stores any more is the value of RAW_HEADERS.
    """
    if not element:
        return {}
    if element.startswith(_NATS_HEADERS):
        items = _nats_items(element)
        if len(element) <= _NEVER_TOO_MUCH or _fault_of(items) is None:
            return _headers_of(items)
    elif element.startswith(_BINARY_HEADERS):
        with suppress(CorruptData, TidelogError):
            return _headers_of(_binary_items(element))
    return {RAW_HEADERS: element}


def _binary_items(element: bytes) -> list[tuple[str, bytes]]:
    """Raises CorruptData; TidelogError(LIMIT_REACHED) for more than MAX_RECORD_HEADERS."""
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
        if len(items) == MAX_RECORD_HEADERS:
            raise _too_many(MAX_RECORD_HEADERS + 1)
        try:
            key = take(_HEADER_KEY_SIZE.unpack(take(_HEADER_KEY_SIZE.size))[0]).decode()
        except UnicodeDecodeError as error:
            raise CorruptData(f"record header key is no UTF-8: {error}") from error
        items.append((key, take(_HEADER_VALUE_SIZE.unpack(take(_HEADER_VALUE_SIZE.size))[0])))
    return items


def _check_element(element: bytes) -> None:
    """Raises CorruptData or TidelogError for an element that no leader stores."""
    if element.startswith(_NATS_HEADERS):
        fault = block_fault(element)
        if fault is not None:
            raise fault
    elif element.startswith(_BINARY_HEADERS):
        _binary_items(element)
    elif element:
        raise CorruptData(f"record headers begin with {element[:8]!r}, neither a NATS header block nor binary headers")


@dataclass(frozen=True, slots=True)
class HeaderSpans:
    """Places of the headers of some records in the data of their column; those of a record in their order."""

    counts: NDArray[np.int64]
    """[records]"""
    key_starts: NDArray[np.int64]
    """[headers], growing."""
    value_starts: NDArray[np.int64]
    value_ends: NDArray[np.int64]

    @property
    def key_ends(self) -> NDArray[np.int64]:
        return self.value_starts - _HEADER_VALUE_SIZE.size


def header_spans(column: BytesColumn, first: int, count: int) -> HeaderSpans | None:
    """Finds the binary headers of `count` records together: tens of times faster than one record after the other.
    None where a record has NATS headers, or malformed ones: `decode_headers` reads them."""
    starts = column.offsets[first : first + count].astype(np.int64)
    ends = column.offsets[first + 1 : first + count + 1].astype(np.int64)
    data = column.data
    octets = np.ndarray((len(data),), np.uint8, data)
    counts = np.zeros(count, np.int64)
    records = np.flatnonzero(starts < ends)
    at, end = starts[records], ends[records]
    if bool((octets[at] != _BINARY_HEADERS[0]).any()):
        return None
    at = at + 1
    # The first entry has no header, so that there is always something to concatenate.
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = [(starts[:0],) * 3]
    while True:
        going = at < end
        records, at, end = records[going], at[going], end[going]
        if not len(records):
            break
        if len(found) > MAX_RECORD_HEADERS:
            return None
        key = at + _HEADER_KEY_SIZE.size
        if bool((key > end).any()):
            return None
        key_end = key + octets[at] + (octets[at + 1].astype(np.int64) << 8)
        value = key_end + _HEADER_VALUE_SIZE.size
        if bool((value > end).any()):
            return None
        size = sum(octets[key_end + place].astype(np.int64) << (8 * place) for place in range(4))
        at = value + size
        if bool((at > end).any()):
            return None
        counts[records] += 1
        found.append((key, value, at))
    keys, values, value_ends = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if len(found) > 2:
        order = np.argsort(keys, kind="stable")
        keys, values, value_ends = keys[order], values[order], value_ends[order]
    return HeaderSpans(counts, keys, values, value_ends)


def check_headers(column: BytesColumn) -> None:
    """Checks the elements of a HEADERS column of a client's batch. Raises CorruptData for one that is neither a NATS
    block nor binary headers, and TidelogError for a record with more than MAX_RECORD_HEADERS or too long a name.

    The first header of all records is checked, then the second of all that have one, and so on: a few thousand bytes
    can hold a million headers when they are decompressed.
    """
    data = column.data

    def check_one(record: int) -> None:
        _check_element(bytes(data[column.offsets[record] : column.offsets[record + 1]]))

    records = np.flatnonzero(column.offsets[:-1] < column.offsets[1:])
    at, end = column.offsets[records].astype(np.int64), column.offsets[records + 1].astype(np.int64)
    if not len(at):
        return
    octets = np.ndarray((len(data),), np.uint8, data)
    # Numbers that begin at each byte.
    u16 = np.ndarray((max(0, len(data) - 1),), "<u2", data, 0, (1,))
    u32 = np.ndarray((max(0, len(data) - 3),), "<u4", data, 0, (1,))
    u64 = np.ndarray((max(0, len(data) - 7),), "<u8", data, 0, (1,))

    is_binary = octets[at] == _BINARY_HEADERS[0]
    others = ~is_binary
    for record in records[others & (end - at < len(_NATS_HEADERS))][:1]:
        check_one(int(record))
    others &= end - at >= len(_NATS_HEADERS)
    for record in records[others][u64[at[others]] != _NATS_WORD][:1]:
        check_one(int(record))
    for record in records[others & (end - at > _NEVER_TOO_MUCH)]:
        check_one(int(record))

    edges = np.zeros(len(data) + 1, np.int8)
    """1 where a key begins, -1 where it ends."""
    at += 1
    going = is_binary & (at < end)
    for _ in range(MAX_RECORD_HEADERS):
        if np.count_nonzero(going) < _WORTH_NUMPY:
            break
        records, at, end = records[going], at[going], end[going]
        key = at + _HEADER_KEY_SIZE.size
        _all_inside(key, end, records, check_one)
        after_key = key + u16[at]
        at = after_key + _HEADER_VALUE_SIZE.size
        _all_inside(at, end, records, check_one)
        at += u32[after_key]
        _all_inside(at, end, records, check_one)
        edges[key] += 1
        edges[after_key] -= 1
        going = at < end
    for record in records[going]:  # few, or the first one has too many
        check_one(int(record))

    # Keys are text one by one when they are together, and none begins in the middle of a character.
    keys = octets[np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)]
    if bool((octets[edges[:-1] > 0] & 0xC0 == 0x80).any()):
        raise CorruptData("a record header key is no UTF-8: it begins inside a character")
    try:
        keys.tobytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"a record header key is no UTF-8: {error.reason}") from error


def _all_inside(
    at: NDArray[np.int64], end: NDArray[np.int64], records: NDArray[np.int64], check_one: Callable[[int], None]
) -> None:
    """Lets `check_one` raise the error of the first record with a field beyond the end of its element, if any."""
    outside = at > end
    if bool(outside.any()):
        check_one(int(records[outside][0]))


def _nats_items(block: bytes) -> list[tuple[str, bytes]]:
    items = []
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            items.append((key.decode("utf-8", "replace"), value.lstrip(b" ")))
    return items


def _headers_of(items: list[tuple[str, bytes]]) -> dict[str, bytes]:
    headers = dict(items)
    return headers if len(headers) == len(items) else RepeatedHeaders(items)
