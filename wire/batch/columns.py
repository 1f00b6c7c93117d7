"""Columns of a body as checked views: only decompression copies, and no byte is trusted.

Here bytes of a client or a disk meet numpy and Arrow, which trust their offsets. So every offset is shown to lie inside
its data here, before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import lz4.block
import numpy as np
import zstandard

from wire.batch.header import COMPRESSION_MASK, CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Compression
from wire.errors import CorruptData

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wire.types import Buffer

    Int32Array: TypeAlias = NDArray[np.int32]
    Int64Array: TypeAlias = NDArray[np.int64]

LITTLE_I32: Final = np.dtype("<i4")
LITTLE_I64: Final = np.dtype("<i8")

ZSTD_LEVEL: Final = 3
MAX_EXPANSION: Final = 256
"""Limit of the growth of a body in decompression, as a factor, for all writers; leaders take no other body from a
client: a few bytes must not cost their readers millions. LZ4 cannot do more than 255."""

_COMPRESSED = struct.Struct("<II")
_WORTH_NUMPY = 32
"""Number of elements from which on numpy may make a list."""


class Column(IntEnum):
    """Bits of the header's `columns`. An IntEnum, not a flag: `&` and `|` with an int stay plain, and fast."""

    VALUE = 1
    KEY = 2
    TIMESTAMP = 4
    HEADERS = 8
    OFFSET_DELTA = 16
    KEY_VALIDITY = 32
    VALUE_VALIDITY = 64
    HOLES = 128
    """Has no section of its own: the deltas of the offsets without a record stand behind the offsets of KEY."""


KNOWN_COLUMNS: Final = int(sum(Column))


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Views of the body, checked: offsets begin at 0, never shrink and end inside the data."""

    offsets: Int32Array
    """[n+1]"""
    data: memoryview

    def to_list(self, first: int, count: int) -> list[bytes]:
        bounds = self.offsets[first : first + count + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        data = bytes(self.data[start:end])
        size = (end - start) // count if count >= _WORTH_NUMPY else 0
        if size and size * count == end - start and bool((bounds[1:] - bounds[:-1] == size).all()):
            # Equal sizes: numpy makes the objects, more than twice as fast.
            return cast("list[bytes]", np.frombuffer(data, np.dtype(("V", size))).tolist())
        return [data[a:b] for a, b in pairwise((bounds - start).tolist())]

    def sizes(self) -> Int64Array:
        """[n]"""
        return np.diff(self.offsets).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a body; None for an absent one, whose meaning the reader decides."""

    values: BytesColumn | None
    keys: BytesColumn | None
    timestamps: Int64Array | None
    headers: BytesColumn | None
    offset_deltas: Int32Array | None
    """[n], growing, whichever column stores them."""
    key_validity: memoryview | None
    value_validity: memoryview | None


NO_COLUMNS: Final = Columns(None, None, None, None, None, None, None)
"""The columns of a control batch."""


class _SectionReader:
    """Takes sections off a body, front to back; a missing one raises CorruptData."""

    __slots__ = ("at", "body", "count", "header", "holes")

    def __init__(self, body: memoryview, header: BatchHeader) -> None:
        self.body = body
        self.header = header
        self.count = header.record_count
        self.at = 0
        self.holes: Int32Array | None = None
        """Deltas of the offsets without a record; read with column KEY."""

    def take(self, size: int, column: Column) -> memoryview:
        start = self.at
        end = start + size
        if end > len(self.body):
            raise CorruptData(f"{self.header}: column {column.name} goes to byte {end} of a body of {len(self.body)}")
        self.at = end + -end % 8
        return self.body[start:end]

    def int32(self, count: int, column: Column) -> Int32Array:
        return np.frombuffer(self.take(4 * count, column), LITTLE_I32)

    def bytes_column(self, column: Column) -> BytesColumn:
        return self._elements(self.int32(self.count + 1, column), column)

    def _elements(self, offsets: Int32Array, column: Column) -> BytesColumn:
        if offsets[0] or bool((offsets[1:] < offsets[:-1]).any()):
            raise CorruptData(f"{self.header}: the offsets of column {column.name} do not grow from 0")
        return BytesColumn(offsets, self.take(int(offsets[-1]), column))

    def keys(self) -> BytesColumn:
        if not self.header.columns & Column.HOLES:
            return self.bytes_column(Column.KEY)
        numbers = self.int32(self.header.offset_count + 1, Column.KEY)
        self.holes = numbers[self.count + 1 :]
        return self._elements(numbers[: self.count + 1], Column.KEY)

    def timestamps(self) -> Int64Array:
        stamps = np.frombuffer(self.take(8 * self.count, Column.TIMESTAMP), LITTLE_I64)
        if int(stamps.min()) != self.header.first_timestamp or int(stamps.max()) != self.header.last_timestamp:
            raise CorruptData(f"{self.header}: column TIMESTAMP has other bounds than the header")
        return stamps

    def offset_deltas(self) -> Int32Array:
        deltas = self.int32(self.count, Column.OFFSET_DELTA)
        if int(deltas[0]) < 0 or bool((deltas[1:] <= deltas[:-1]).any()):
            raise CorruptData(f"{self.header}: column OFFSET_DELTA does not grow")
        if int(deltas[-1]) >= self.header.offset_count:
            raise CorruptData(f"{self.header}: column OFFSET_DELTA ends at {int(deltas[-1])}")
        return deltas

    def deltas_between_holes(self) -> Int32Array:
        holes, span = self.holes, self.header.offset_count
        if holes is None or not len(holes):
            raise CorruptData(f"{self.header}: column HOLES without KEY, or without a hole")
        if int(holes[0]) < 0 or bool((holes[1:] <= holes[:-1]).any()) or int(holes[-1]) >= span:
            raise CorruptData(f"{self.header}: column HOLES does not grow from 0 to less than {span}")
        return np.delete(np.arange(span, dtype=LITTLE_I32), holes)

    def validity(self, column: Column, of: Column) -> memoryview:
        if not self.header.columns & of:
            raise CorruptData(f"{self.header}: column {column.name} without {of.name}")
        return self.take((self.count + 7) // 8, column)

    def end(self) -> None:
        if self.at != len(self.body):
            raise CorruptData(f"{self.header}: columns end at byte {self.at} of a body of {len(self.body)}")


def parse_columns(body: memoryview, header: BatchHeader) -> Columns:
    """Returns views of an uncompressed body's columns. Raises CorruptData for every fault that could mislead a
    reader."""
    present = header.columns
    if unknown := present & ~KNOWN_COLUMNS:
        raise CorruptData(
            f"{header}: unknown column bit {unknown & -unknown:#x}, of a newer version; upgrade to read this batch"
        )
    if not present & Column.TIMESTAMP and header.first_timestamp != header.last_timestamp:
        raise CorruptData(f"{header}: two timestamps and no column TIMESTAMP")
    places = present & (Column.OFFSET_DELTA | Column.HOLES)
    if not places and header.offset_span not in {0, header.record_count}:
        raise CorruptData(f"{header}: holes between offsets and no column OFFSET_DELTA or HOLES")
    if places == Column.OFFSET_DELTA | Column.HOLES:
        raise CorruptData(f"{header}: columns OFFSET_DELTA and HOLES at once")
    reader = _SectionReader(body, header)
    # Keyword arguments are evaluated in this order, which is the order of the sections.
    columns = Columns(
        values=reader.bytes_column(Column.VALUE) if present & Column.VALUE else None,
        keys=reader.keys() if present & Column.KEY else None,
        timestamps=reader.timestamps() if present & Column.TIMESTAMP else None,
        headers=reader.bytes_column(Column.HEADERS) if present & Column.HEADERS else None,
        offset_deltas=_offset_deltas(reader, places),
        key_validity=reader.validity(Column.KEY_VALIDITY, Column.KEY) if present & Column.KEY_VALIDITY else None,
        value_validity=reader.validity(Column.VALUE_VALIDITY, Column.VALUE)
        if present & Column.VALUE_VALIDITY
        else None,
    )
    reader.end()
    return columns


def _offset_deltas(reader: _SectionReader, places: int) -> Int32Array | None:
    if not places:
        return None
    return reader.offset_deltas() if places == Column.OFFSET_DELTA else reader.deltas_between_holes()


def sections_of(body: memoryview, header: BatchHeader, max_body_bytes: int) -> memoryview:
    """Returns the body without compression, at most `max_body_bytes` long. Raises CorruptData."""
    if header.is_encrypted:
        raise CorruptData(f"{header} is encrypted: only a broker that has the master key can read it")
    if header.attributes & ~(COMPRESSION_MASK | CONTROL_BIT | TRANSACTIONAL_BIT):
        raise CorruptData(f"{header}: unknown attributes {header.attributes:#x}")
    size, packed = _packed(body, header, max_body_bytes)
    if header.compression is Compression.NONE:
        return body
    return memoryview(_decompressed(packed, size, header.compression, header))


def expanded_size(body: memoryview, header: BatchHeader, max_body_bytes: int) -> int:
    """Returns the bytes of the body without compression, as it states them; decompression never makes more. Raises
    CorruptData where they are more than `max_body_bytes`."""
    return _packed(body, header, max_body_bytes)[0]


def _packed(body: memoryview, header: BatchHeader, max_body_bytes: int) -> tuple[int, memoryview]:
    """Returns (bytes when decompressed, the compressed bytes)."""
    if header.compression is Compression.NONE:
        if len(body) > max_body_bytes:
            raise CorruptData(f"{header}: body of {len(body)} bytes, the limit is {max_body_bytes}")
        return len(body), body
    if len(body) < _COMPRESSED.size:
        raise CorruptData(f"{header}: compressed body of {len(body)} bytes")
    size, packed_size = _COMPRESSED.unpack_from(body)
    end = _COMPRESSED.size + packed_size
    if end + -end % 8 != len(body):
        raise CorruptData(f"{header}: {packed_size} compressed bytes in a body of {len(body)}")
    if size > max_body_bytes:
        raise CorruptData(f"{header}: body of {size} bytes when decompressed, the limit is {max_body_bytes}")
    return size, body[_COMPRESSED.size : end]


def _decompressed(packed: memoryview, size: int, compression: Compression, header: BatchHeader) -> bytes:
    """Returns exactly `size` bytes, and never takes more memory than that."""
    try:
        if compression is Compression.LZ4:
            sections = cast(bytes, lz4.block.decompress(packed, uncompressed_size=size))
        else:
            # The size in a zstd frame outranks max_output_size, so it is checked first.
            declared = zstandard.get_frame_parameters(packed).content_size
            if declared != size:
                raise CorruptData(f"{header}: zstd frame of {declared} bytes, the body says {size}")
            sections = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError) as error:
        raise CorruptData(f"{header}: {compression.name.lower()} body does not decompress: {error}") from error
    if len(sections) != size:
        raise CorruptData(f"{header}: {len(sections)} bytes when decompressed, the body says {size}")
    return sections


def compress(
    parts: list[Buffer], compression: Compression, *, zstd_level: int = ZSTD_LEVEL
) -> tuple[list[Buffer], Compression]:
    """Returns the compressed body; or the uncompressed one and Compression.NONE, if that is not larger. A body that
    zstd would shrink more than MAX_EXPANSION allows is compressed by LZ4."""
    sections = b"".join(parts)
    packed = b""
    if compression is Compression.ZSTD:
        packed = zstandard.ZstdCompressor(level=zstd_level).compress(sections)
        if len(sections) > MAX_EXPANSION * len(packed):
            compression = Compression.LZ4
    if compression is Compression.LZ4:
        packed = cast(bytes, lz4.block.compress(sections, store_size=False))
    if _COMPRESSED.size + len(packed) >= len(sections):
        return [sections] if sections else [], Compression.NONE
    return [_COMPRESSED.pack(len(sections), len(packed)), *padded(packed)], compression


def padding(size: int) -> list[Buffer]:
    """Returns zeros that fill `size` bytes up to a multiple of 8."""
    return [bytes(-size % 8)] if size % 8 else []


def padded(section: Buffer) -> list[Buffer]:
    return [section, *padding(len(section))]
