"""RecordBatch: the unit of appending, replicating, reading, compressing and checking.

A batch is a fixed header and a columnar body. All numbers are little-endian; the batch, and every section of its body,
begins at a multiple of 8 and is padded with zeros to the next one.

    header, 96 bytes
     0  i64 base_offset       stamped by the leader
     8  u64 leader_epoch      stamped by the leader
    16  u32 length            of the body
    20  u8  magic = 1
    21  u8  0
    22  u16 attributes        bits 0-2 compression: 0 none, 1 lz4, 2 zstd; bit 3 control batch
    24  u32 columns           which sections the body has, see below
    28  u32 body_crc          CRC-32C of the body as stored
    32  u32 record_count
    36  u32 offset_span       offsets that the batch covers where it has holes (OFFSET_DELTA); 0 = record_count
    40  i64 first_timestamp   smallest, in ns since 1970
    48  i64 last_timestamp    largest
    56  i64 producer_id       -1 = none
    64  i32 producer_epoch
    68  i32 base_sequence
    72  20 bytes              0, not read
    92  u32 header_crc        CRC-32C of bytes 0 to 92

    body: the sections that `columns` names, in the order of their bits; n = record_count
     1  VALUE           i32 offsets[n+1], pad, data, pad    absent: every value is null
     2  KEY             the same                            absent: every key is null
     4  TIMESTAMP       i64[n]                              absent: all equal first_timestamp
     8  HEADERS         as VALUE, elements see below        absent: no record has headers
    16  OFFSET_DELTA    i32[n], pad; growing                absent: offsets are dense
    32  KEY_VALIDITY    bitmap, LSB first, 1 = not null     absent: no key is null (if there is a KEY)
    64  VALUE_VALIDITY  the same for VALUE

    body, compressed: u32 size before compression, u32 size of what follows, compressed sections, pad
    body of a control batch (columns = 0, record_count = 1): u16 type, u16 version, u32 length, payload, pad

    element of HEADERS: nothing = no headers; a raw NATS header block (begins with NATS/1.0), kept as it arrived; or
    0x01 and then for each header u16 key length, key in UTF-8, u32 value length, value

The body's CRC does not cover base_offset and leader_epoch, so a leader stamps a batch by writing 96 bytes; the header's
CRC covers the rest of the header and is computed then. Columns lie as Arrow lays them out, so that a reader's arrays
are views of the body. A log and a follower look at nothing but the header and the CRCs (`parse_header`, `verify_body`):
columns, compressions and control types that they do not know are copied as they are. Who looks inside refuses what it
does not know.

What can be wrong with bytes is `CorruptData`, which names the place; what a client may not send is `TidelogError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import lz4.block
import numpy as np
import zstandard
from crc32c import crc32c

from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.types import NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from wire.transport import Buffer

    Int32Array: TypeAlias = NDArray[np.int32]
    Int64Array: TypeAlias = NDArray[np.int64]

HEADER_SIZE: Final = 96
MAGIC: Final = 1
MAX_BODY_BYTES: Final = 128 << 20
"""No body is larger, compressed or not. Twice what a NATS message can carry, and well inside the i32 of the columns."""
MAX_RECORDS: Final = 1 << 20
"""No batch has more records: what a header of 96 bytes can make a reader allocate stays bounded."""

_HEADER = struct.Struct("<qQIBBHIIIIqqqii20x")
_HEADER_CRC = struct.Struct("<I")
_HEADER_CRC_AT: Final = HEADER_SIZE - _HEADER_CRC.size
_COMPRESSED = struct.Struct("<II")
_CONTROL = struct.Struct("<HHI")
_HEADER_KEY_SIZE = struct.Struct("<H")
_HEADER_VALUE_SIZE = struct.Struct("<I")
_BINARY_HEADERS: Final = b"\x01"
_NATS_HEADERS: Final = b"NATS/1.0"
_COMPRESSION_MASK: Final = 0b0111
_CONTROL_BIT: Final = 0b1000
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_LITTLE_I32: Final = np.dtype("<i4")
_LITTLE_I64: Final = np.dtype("<i8")


class Compression(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Column(IntFlag):
    VALUE = 1
    KEY = 2
    TIMESTAMP = 4
    HEADERS = 8
    OFFSET_DELTA = 16
    KEY_VALIDITY = 32
    VALUE_VALIDITY = 64


_KNOWN_COLUMNS: Final = int(sum(Column))
_VALUE = int(Column.VALUE)
_KEY = int(Column.KEY)
_TIMESTAMP = int(Column.TIMESTAMP)
_HEADERS = int(Column.HEADERS)
_OFFSET_DELTA = int(Column.OFFSET_DELTA)
_KEY_VALIDITY = int(Column.KEY_VALIDITY)
_VALUE_VALIDITY = int(Column.VALUE_VALIDITY)


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fixed header. Timestamps in ns since 1970. `attributes` and `columns` may have unknown bits."""

    base_offset: Offset
    leader_epoch: LeaderEpoch
    length: int
    """Bytes of the body: what follows the header."""
    attributes: int
    columns: int
    body_crc: int
    record_count: int
    offset_span: int
    """0: the batch covers `record_count` offsets."""
    first_timestamp: int
    last_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def end_offset(self) -> Offset:
        """Exclusive."""
        return Offset(self.base_offset + (self.offset_span or self.record_count))

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return HEADER_SIZE + self.length

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def compression(self) -> Compression:
        """Raises CorruptData when it is one that this version does not know."""
        try:
            return Compression(self.attributes & _COMPRESSION_MASK)
        except ValueError:
            raise CorruptData(f"{self}: unknown compression {self.attributes & _COMPRESSION_MASK}") from None

    @property
    def max_timestamp(self) -> int:
        return self.last_timestamp

    def __str__(self) -> str:
        return f"batch of offsets {self.base_offset} to {self.end_offset - 1}"


def parse_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """The header at `at`. Raises CorruptData when it is cut off, has a wrong magic or CRC, or says what cannot be.

    Does not ask whether the body is there: `iter_batches` does.
    """
    if at < 0 or len(buf) - at < HEADER_SIZE:
        raise CorruptData(f"batch header at byte {at} is cut off: {max(len(buf) - at, 0)} of {HEADER_SIZE} bytes")
    (
        base_offset,
        leader_epoch,
        length,
        magic,
        zero,
        attributes,
        columns,
        body_crc,
        record_count,
        offset_span,
        first_timestamp,
        last_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
    ) = _HEADER.unpack_from(buf, at)
    if magic != MAGIC:
        raise CorruptData(f"batch header at byte {at} has magic {magic}, not {MAGIC}")
    (header_crc,) = _HEADER_CRC.unpack_from(buf, at + _HEADER_CRC_AT)
    computed = crc32c(memoryview(buf)[at : at + _HEADER_CRC_AT])
    if header_crc != computed:
        raise CorruptData(f"batch header at byte {at} has CRC {header_crc:#010x}, its bytes have {computed:#010x}")
    header = BatchHeader(
        base_offset,
        leader_epoch,
        length,
        attributes,
        columns,
        body_crc,
        record_count,
        offset_span,
        first_timestamp,
        last_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
    )
    wrong = (
        f"base offset {base_offset} is negative"
        if base_offset < 0
        else f"end offset {header.end_offset} is beyond 64 bits"
        if header.end_offset > _INT64_MAX
        else f"byte 21 is {zero}, not 0"
        if zero
        else f"body of {length} bytes, the limit is {MAX_BODY_BYTES}"
        if length > MAX_BODY_BYTES
        else f"body of {length} bytes is no multiple of 8"
        if length % 8
        else f"{record_count} records, not 1 to {MAX_RECORDS}"
        if not 1 <= record_count <= MAX_RECORDS
        else f"a span of {offset_span} offsets is too short for {record_count} records"
        if 0 < offset_span < record_count
        else f"first timestamp {first_timestamp} is after the last one, {last_timestamp}"
        if first_timestamp > last_timestamp
        else f"producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}: negative"
        if producer_id < NO_PRODUCER or (producer_id != NO_PRODUCER and (producer_epoch < 0 or base_sequence < 0))
        else None
    )
    if wrong is not None:
        raise CorruptData(f"batch header at byte {at}: {wrong}")
    return header


def verify_body(buf: Buffer, at: int, header: BatchHeader) -> None:
    """Check the body of the batch at `at` (the header's place) against its CRC. Raises CorruptData."""
    computed = crc32c(_body(buf, at, header))
    if computed != header.body_crc:
        raise CorruptData(f"{header}: body has CRC {computed:#010x}, the header says {header.body_crc:#010x}")


def iter_batches(buf: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(place, header) of each batch from `at` to the end of `buf`. Raises CorruptData where the rest is no whole batch.

    Bodies are not checked.
    """
    while at < len(buf):
        header = parse_header(buf, at)
        _body(buf, at, header)
        yield at, header
        at += header.size


def _body(buf: Buffer, at: int, header: BatchHeader) -> memoryview:
    end = at + header.size
    if end > len(buf):
        raise CorruptData(f"{header} at byte {at} is cut off: {len(buf) - at} of {header.size} bytes")
    return memoryview(buf)[at + HEADER_SIZE : end]


class EncodedBatch:
    """A batch without an offset yet: the body as a list of buffers, the header as it will be but for the stamp.

    `header.base_offset` and `header.leader_epoch` are 0. A client sends `stamp(Offset(0), LeaderEpoch(0))`.
    """

    __slots__ = ("header", "parts")

    def __init__(self, header: BatchHeader, parts: list[Buffer]) -> None:
        self.header = header
        self.parts = parts

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.header.size

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def stamp(self, base_offset: Offset, leader_epoch: LeaderEpoch) -> tuple[list[Buffer], BatchHeader]:
        """The parts of the finished batch, the first of them its 96-byte header; and that header."""
        header = _stamped(self.header, base_offset, leader_epoch)
        return [_encode_header(header), *self.parts], header

    @classmethod
    def from_bytes(
        cls, buf: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, max_record_bytes: int | None = None
    ) -> EncodedBatch:
        """A client's batch as it was received: exactly one, with everything checked that a reader relies on.

        The stamp in it is ignored. `max_body_bytes` bounds the body before and after decompression; `max_record_bytes`
        the sum of key, value and headers of each record. The parts are views of `buf`, which must not change any more.
        Raises CorruptData; TidelogError(RECORD_TOO_LARGE) names the first record that is too large.
        """
        header = parse_header(buf)
        if header.size != len(buf):
            raise CorruptData(f"a message of {len(buf)} bytes holds a batch of {header.size} and something else")
        if header.is_control:
            raise CorruptData("a client may not write control batches")
        if header.columns & _OFFSET_DELTA or header.offset_span:
            raise CorruptData("a client's batch may not have holes between its offsets")
        body = _body(buf, 0, header)
        verify_body(buf, 0, header)
        columns = _columns(_sections(body, header, max_body_bytes), header)
        if columns.headers is not None:
            for element in columns.headers.to_list(0, header.record_count):
                if element:
                    decode_headers(element)
        if max_record_bytes is not None:
            columns.check_record_sizes(header.record_count, max_record_bytes)
        return cls(_stamped(header, Offset(0), LeaderEpoch(0)), [body])


def _stamped(header: BatchHeader, base_offset: Offset, leader_epoch: LeaderEpoch) -> BatchHeader:
    return BatchHeader(
        base_offset,
        leader_epoch,
        header.length,
        header.attributes,
        header.columns,
        header.body_crc,
        header.record_count,
        header.offset_span,
        header.first_timestamp,
        header.last_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def _encode_header(header: BatchHeader) -> bytes:
    encoded = _HEADER.pack(
        header.base_offset,
        header.leader_epoch,
        header.length,
        MAGIC,
        0,
        header.attributes,
        header.columns,
        header.body_crc,
        header.record_count,
        header.offset_span,
        header.first_timestamp,
        header.last_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    return encoded + _HEADER_CRC.pack(crc32c(encoded))


# Building


class _BytesColumnBuilder:
    """Accumulates a column of byte strings: data as parts that are never joined again, sizes as runs."""

    __slots__ = ("_loose", "_nulls", "_parts", "_runs", "count", "data_bytes", "null_count")

    def __init__(self) -> None:
        self.count = 0
        self.data_bytes = 0
        self.null_count = 0
        self._parts: list[Buffer] = []
        self._runs: list[tuple[int, int] | Int32Array] = []  # (size, count), or the sizes one by one
        self._loose: list[bytes] = []  # elements that are not in `_parts` and `_runs` yet
        self._nulls: list[tuple[int, int]] = []  # (index, count)

    def add_uniform(self, block: memoryview, count: int, at: int, size: int, stride: int) -> None:
        self._seal_loose()
        if size:
            elements: NDArray[np.void] = np.ndarray((count,), np.dtype(("V", size)), block, at, (stride,))
            self._parts.append(elements.tobytes())
        if self._runs and isinstance(run := self._runs[-1], tuple) and run[0] == size:
            self._runs[-1] = (size, run[1] + count)
        else:
            self._runs.append((size, count))
        self.count += count
        self.data_bytes += count * size

    def add(self, element: bytes) -> None:
        self._loose.append(element)
        self.count += 1
        self.data_bytes += len(element)

    def extend(self, elements: Sequence[bytes]) -> None:
        self._loose.extend(elements)
        self.count += len(elements)
        self.data_bytes += sum(map(len, elements))

    def fill_to(self, count: int, *, null: bool) -> None:
        """Empty elements, or nulls, until there are `count`."""
        missing = count - self.count
        if missing <= 0:
            return
        if null:
            self._nulls.append((self.count, missing))
            self.null_count += missing
        self._loose.extend([b""] * missing)
        self.count = count

    def sections(self) -> list[Buffer]:
        """Offsets and data, each padded."""
        self._seal_loose()
        offsets: Int32Array
        if len(self._runs) == 1 and isinstance(run := self._runs[0], tuple) and run[0]:
            offsets = np.arange(0, self.data_bytes + 1, run[0], dtype=_LITTLE_I32)
        else:
            offsets = np.zeros(self.count + 1, _LITTLE_I32)
            sizes = [np.full(run[1], run[0], _LITTLE_I32) if isinstance(run, tuple) else run for run in self._runs]
            np.cumsum(np.concatenate(sizes), out=offsets[1:])
        return [*_padded(offsets.data.cast("B")), *self._parts, *_padding(self.data_bytes)]

    def validity(self) -> list[Buffer]:
        """The padded bitmap."""
        valid = np.ones(self.count, np.bool_)
        for first, count in self._nulls:
            valid[first : first + count] = False
        return _padded(np.packbits(valid, bitorder="little").tobytes())

    def _seal_loose(self) -> None:
        if self._loose:
            self._parts.append(b"".join(self._loose))
            self._runs.append(np.fromiter(map(len, self._loose), _LITTLE_I32, len(self._loose)))
            self._loose = []


class BatchBuilder:
    """Accumulates records into one batch. Runs of bare publishes cost no Python work per record.

    The caller builds before `size_bytes` passes what it wants to store as one batch; more than MAX_RECORDS records or
    MAX_BODY_BYTES is InvariantViolation.
    """

    __slots__ = ("_headers", "_keys", "_timestamps", "_values")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._values = _BytesColumnBuilder()
        self._keys: _BytesColumnBuilder | None = None
        self._headers: _BytesColumnBuilder | None = None
        self._timestamps: dict[int, int] = {}  # index -> ns, of the records that have their own

    @property
    def count(self) -> int:
        """Records so far."""
        return self._values.count

    @property
    def size_bytes(self) -> int:
        """Bytes of keys, values and headers so far, and 4 for each record, so that empty records count as well."""
        size = self._values.data_bytes + 4 * self._values.count
        if self._keys is not None:
            size += self._keys.data_bytes
        if self._headers is not None:
            size += self._headers.data_bytes
        return size

    def add_uniform(self, block: memoryview, count: int, payload_at: int, payload_size: int, stride: int) -> None:
        """`count` values of `payload_size` bytes, `stride` bytes apart from `payload_at` on. `block` is copied from."""
        self._values.add_uniform(block, count, payload_at, payload_size, stride)

    def add_values(self, payloads: list[bytes], headers: list[bytes | None] | None = None) -> None:
        """Values in order; `headers`, of equal length, are raw NATS header blocks or None."""
        before = self.count
        self._values.extend(payloads)
        if headers is not None and any(headers):
            if len(headers) != len(payloads):
                raise InvariantViolation(f"{len(headers)} header blocks for {len(payloads)} payloads")
            if self._headers is None:
                self._headers = _BytesColumnBuilder()
            self._headers.fill_to(before, null=False)
            self._headers.extend([block or b"" for block in headers])

    def add_record(
        self, value: bytes | None, key: bytes | None = None, headers: bytes = b"", timestamp: int | None = None
    ) -> None:
        """One record. `headers` as `encode_headers` makes them or as a raw NATS block; `timestamp` in ns since 1970.

        Raises TidelogError(BAD_REQUEST) for a timestamp beyond 64 bits; nothing is added then.
        """
        index = self.count
        if timestamp is not None:
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise TidelogError(
                    Code.BAD_REQUEST, f"timestamp {timestamp} does not fit into 64 bits; it is in ns since 1970"
                )
            self._timestamps[index] = timestamp
        if value is None:
            self._values.fill_to(index + 1, null=True)
        else:
            self._values.add(value)
        if key is not None:
            if self._keys is None:
                self._keys = _BytesColumnBuilder()
            self._keys.fill_to(index, null=True)
            self._keys.add(key)
        if headers:
            if self._headers is None:
                self._headers = _BytesColumnBuilder()
            self._headers.fill_to(index, null=False)
            self._headers.add(headers)

    def build(
        self,
        timestamp: int,
        *,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        compression: Compression = Compression.NONE,
    ) -> EncodedBatch:
        """The batch of everything added, and a builder that is empty again.

        `timestamp` (ns) is that of the records without their own. A body that compression does not make smaller is
        stored as it is.
        """
        count = self.count
        if not 0 < count <= MAX_RECORDS or self.size_bytes > MAX_BODY_BYTES:
            raise InvariantViolation(f"a batch of {count} records, {self.size_bytes} bytes, cannot be built")
        columns = 0
        parts: list[Buffer] = []
        if self._values.null_count < count:
            columns |= _VALUE
            parts += self._values.sections()
        if self._keys is not None:
            columns |= _KEY
            self._keys.fill_to(count, null=True)
            parts += self._keys.sections()
        first_timestamp = last_timestamp = timestamp
        if self._timestamps:
            timestamps = np.full(count, timestamp, _LITTLE_I64)
            timestamps[np.fromiter(self._timestamps.keys(), np.intp)] = np.fromiter(self._timestamps.values(), np.int64)
            first_timestamp = int(timestamps.min())
            last_timestamp = int(timestamps.max())
            if first_timestamp != last_timestamp:
                columns |= _TIMESTAMP
                parts.append(timestamps.data.cast("B"))
        if self._headers is not None:
            columns |= _HEADERS
            self._headers.fill_to(count, null=False)
            parts += self._headers.sections()
        if self._keys is not None and self._keys.null_count:
            columns |= _KEY_VALIDITY
            parts += self._keys.validity()
        if 0 < self._values.null_count < count:
            columns |= _VALUE_VALIDITY
            parts += self._values.validity()
        if compression is not Compression.NONE:
            parts, compression = _compressed(parts, compression)
        self._reset()
        return _encoded(
            parts,
            attributes=int(compression),
            columns=columns,
            record_count=count,
            first_timestamp=first_timestamp,
            last_timestamp=last_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


def _encoded(
    parts: list[Buffer],
    *,
    attributes: int,
    columns: int,
    record_count: int,
    first_timestamp: int,
    last_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> EncodedBatch:
    length = crc = 0
    for part in parts:
        length += len(part)
        crc = crc32c(part, crc)
    header = BatchHeader(
        base_offset=Offset(0),
        leader_epoch=LeaderEpoch(0),
        length=length,
        attributes=attributes,
        columns=columns,
        body_crc=crc,
        record_count=record_count,
        offset_span=0,
        first_timestamp=first_timestamp,
        last_timestamp=last_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    return EncodedBatch(header, parts)


def _compressed(parts: list[Buffer], compression: Compression) -> tuple[list[Buffer], Compression]:
    sections = b"".join(parts)
    if compression is Compression.LZ4:
        packed = cast(bytes, lz4.block.compress(sections, store_size=False))
    else:
        packed = zstandard.ZstdCompressor().compress(sections)
    if _COMPRESSED.size + len(packed) >= len(sections):
        return [sections] if sections else [], Compression.NONE
    return [_COMPRESSED.pack(len(sections), len(packed)), *_padded(packed)], compression


def _padding(size: int) -> list[Buffer]:
    """What fills `size` bytes up to a multiple of 8."""
    return [bytes(-size % 8)] if size % 8 else []


def _padded(section: Buffer) -> list[Buffer]:
    return [section, *_padding(len(section))]


# Reading


@dataclass(frozen=True, slots=True)
class _BytesColumn:
    """Views of the body, checked: offsets begin at 0, never shrink and end inside the data."""

    offsets: Int32Array
    """[n+1]"""
    data: memoryview

    def to_list(self, first: int, count: int) -> list[bytes]:
        bounds = self.offsets[first : first + count + 1]
        start, end = int(bounds[0]), int(bounds[-1])
        data = bytes(self.data[start:end])
        size = (end - start) // count if count else 0
        if size and size * count == end - start and bool((np.diff(bounds) == size).all()):
            # Equal sizes: numpy makes the objects, more than twice as fast.
            return cast("list[bytes]", np.frombuffer(data, np.dtype(("V", size))).tolist())
        return [data[a:b] for a, b in pairwise((bounds - start).tolist())]

    def sizes(self) -> Int64Array:
        """[n]"""
        return np.diff(self.offsets).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Columns:
    values: _BytesColumn | None
    keys: _BytesColumn | None
    timestamps: Int64Array | None
    headers: _BytesColumn | None
    offset_deltas: Int32Array | None
    key_validity: memoryview | None
    value_validity: memoryview | None

    def check_record_sizes(self, count: int, limit: int) -> None:
        total = np.zeros(count, np.int64)
        for column in (self.values, self.keys, self.headers):
            if column is not None:
                total += column.sizes()
        largest = int(total.argmax())
        if int(total[largest]) > limit:
            raise TidelogError(
                Code.RECORD_TOO_LARGE,
                f"record {largest} of the batch has {int(total[largest])} bytes of key, value and headers; "
                f"the stream's max_record_bytes is {limit}",
            )


class _SectionReader:
    """Takes sections off a body, front to back; what is not there is CorruptData."""

    __slots__ = ("at", "body", "count", "header")

    def __init__(self, body: memoryview, header: BatchHeader) -> None:
        self.body = body
        self.header = header
        self.count = header.record_count
        self.at = 0

    def take(self, size: int, column: Column) -> memoryview:
        start = self.at
        end = start + size
        if end > len(self.body):
            raise CorruptData(f"{self.header}: column {column.name} goes to byte {end} of a body of {len(self.body)}")
        self.at = end + -end % 8
        return self.body[start:end]

    def int32(self, count: int, column: Column) -> Int32Array:
        return np.frombuffer(self.take(4 * count, column), _LITTLE_I32)

    def bytes_column(self, column: Column) -> _BytesColumn:
        offsets = self.int32(self.count + 1, column)
        if offsets[0] or bool((offsets[1:] < offsets[:-1]).any()):
            raise CorruptData(f"{self.header}: the offsets of column {column.name} do not grow from 0")
        return _BytesColumn(offsets, self.take(int(offsets[-1]), column))

    def timestamps(self) -> Int64Array:
        stamps = np.frombuffer(self.take(8 * self.count, Column.TIMESTAMP), _LITTLE_I64)
        if int(stamps.min()) != self.header.first_timestamp or int(stamps.max()) != self.header.last_timestamp:
            raise CorruptData(f"{self.header}: column TIMESTAMP has other bounds than the header")
        return stamps

    def offset_deltas(self) -> Int32Array:
        deltas = self.int32(self.count, Column.OFFSET_DELTA)
        if int(deltas[0]) < 0 or bool((deltas[1:] <= deltas[:-1]).any()):
            raise CorruptData(f"{self.header}: column OFFSET_DELTA does not grow")
        if int(deltas[-1]) + 1 != (self.header.offset_span or self.count):
            raise CorruptData(f"{self.header}: column OFFSET_DELTA ends at {int(deltas[-1])}")
        return deltas

    def validity(self, column: Column, of: Column) -> memoryview:
        if not self.header.columns & of:
            raise CorruptData(f"{self.header}: column {column.name} without {of.name}")
        return self.take((self.count + 7) // 8, column)

    def end(self) -> None:
        if self.at != len(self.body):
            raise CorruptData(f"{self.header}: columns end at byte {self.at} of a body of {len(self.body)}")


def _columns(body: memoryview, header: BatchHeader) -> _Columns:
    """Views of an uncompressed body's columns. Raises CorruptData for whatever a reader could stumble on."""
    present = header.columns
    if unknown := present & ~_KNOWN_COLUMNS:
        raise CorruptData(
            f"{header}: unknown column bit {unknown & -unknown:#x}, of a newer version; upgrade to read this batch"
        )
    if not present & _TIMESTAMP and header.first_timestamp != header.last_timestamp:
        raise CorruptData(f"{header}: two timestamps and no column TIMESTAMP")
    if not present & _OFFSET_DELTA and header.offset_span not in {0, header.record_count}:
        raise CorruptData(f"{header}: holes between offsets and no column OFFSET_DELTA")
    reader = _SectionReader(body, header)
    # Keyword arguments are evaluated in this order, which is the order of the sections.
    columns = _Columns(
        values=reader.bytes_column(Column.VALUE) if present & _VALUE else None,
        keys=reader.bytes_column(Column.KEY) if present & _KEY else None,
        timestamps=reader.timestamps() if present & _TIMESTAMP else None,
        headers=reader.bytes_column(Column.HEADERS) if present & _HEADERS else None,
        offset_deltas=reader.offset_deltas() if present & _OFFSET_DELTA else None,
        key_validity=reader.validity(Column.KEY_VALIDITY, Column.KEY) if present & _KEY_VALIDITY else None,
        value_validity=reader.validity(Column.VALUE_VALIDITY, Column.VALUE) if present & _VALUE_VALIDITY else None,
    )
    reader.end()
    return columns


def _sections(body: memoryview, header: BatchHeader, max_body_bytes: int) -> memoryview:
    """The body without compression, at most `max_body_bytes` long. Raises CorruptData."""
    if header.attributes & ~(_COMPRESSION_MASK | _CONTROL_BIT):
        raise CorruptData(f"{header}: unknown attributes {header.attributes:#x}")
    compression = header.compression
    if compression is Compression.NONE:
        if len(body) > max_body_bytes:
            raise CorruptData(f"{header}: body of {len(body)} bytes, the limit is {max_body_bytes}")
        return body
    if len(body) < _COMPRESSED.size:
        raise CorruptData(f"{header}: compressed body of {len(body)} bytes")
    size, packed_size = _COMPRESSED.unpack_from(body)
    end = _COMPRESSED.size + packed_size
    if end + -end % 8 != len(body):
        raise CorruptData(f"{header}: {packed_size} compressed bytes in a body of {len(body)}")
    if size > max_body_bytes:
        raise CorruptData(f"{header}: body of {size} bytes when decompressed, the limit is {max_body_bytes}")
    return memoryview(_decompressed(body[_COMPRESSED.size : end], size, compression, header))


def _decompressed(packed: memoryview, size: int, compression: Compression, header: BatchHeader) -> bytes:
    """Exactly `size` bytes, and never more memory than that."""
    try:
        if compression is Compression.LZ4:
            sections = cast(bytes, lz4.block.decompress(packed, uncompressed_size=size))
        else:
            # The size in a zstd frame outranks max_output_size, so it is asked first.
            declared = zstandard.get_frame_parameters(packed).content_size
            if declared != size:
                raise CorruptData(f"{header}: zstd frame of {declared} bytes, the body says {size}")
            sections = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, OverflowError) as error:
        raise CorruptData(f"{header}: {compression.name.lower()} body does not decompress: {error}") from error
    if len(sections) != size:
        raise CorruptData(f"{header}: {len(sections)} bytes when decompressed, the body says {size}")
    return sections


class RecordBatch:
    """The records of one batch, or a range of them, as columns. Lists and arrays are made when first asked for.

    A control batch has no records: readers pass over it by `header.end_offset`.
    """

    def __init__(self, header: BatchHeader, columns: _Columns, first: int, count: int) -> None:
        self.header = header
        self._columns = columns
        self._first = first
        self._count = count

    @classmethod
    def decode(
        cls, buf: Buffer, at: int = 0, *, verify: bool = True, max_body_bytes: int = MAX_BODY_BYTES
    ) -> RecordBatch:
        """The batch at `at`. The structure is checked always, the body's CRC with `verify`. Raises CorruptData.

        Uncompressed columns are views of `buf`, which must not change while the result lives.
        """
        header = parse_header(buf, at)
        body = _body(buf, at, header)
        if verify:
            verify_body(buf, at, header)
        if header.is_control:
            return cls(header, _Columns(None, None, None, None, None, None, None), 0, 0)
        return cls(header, _columns(_sections(body, header, max_body_bytes), header), 0, header.record_count)

    def __len__(self) -> int:
        return self._count

    @cached_property
    def values(self) -> list[bytes | None]:
        return self._list(self._columns.values, self._columns.value_validity)

    @cached_property
    def keys(self) -> list[bytes | None]:
        return self._list(self._columns.keys, self._columns.key_validity)

    @cached_property
    def headers(self) -> list[dict[str, bytes]]:
        """Raises CorruptData for headers that do not decode."""
        column = self._columns.headers
        if column is None:
            return [{} for _ in range(self._count)]
        return [decode_headers(element) for element in column.to_list(self._first, self._count)]

    @cached_property
    def timestamps(self) -> Int64Array:
        """[n], ns since 1970."""
        if self._columns.timestamps is None:
            return np.full(self._count, self.header.first_timestamp, np.int64)
        return self._columns.timestamps[self._first : self._first + self._count]

    @cached_property
    def offsets(self) -> Int64Array:
        """[n], growing."""
        base = int(self.header.base_offset)
        if self._columns.offset_deltas is None:
            return np.arange(base + self._first, base + self._first + self._count, dtype=np.int64)
        return base + self._columns.offset_deltas[self._first : self._first + self._count].astype(np.int64)

    def slice(self, start_offset: Offset, end_offset: Offset) -> RecordBatch:
        """The records with start_offset <= offset < end_offset; views, nothing is copied."""
        first, end = np.searchsorted(self.offsets, [start_offset, end_offset]).tolist()
        return RecordBatch(self.header, self._columns, self._first + first, max(end - first, 0))

    def to_arrow(self) -> pa.RecordBatch:
        """Columns key, value (binary), offset (int64), timestamp (ns, UTC). Keys and values are views of the body."""
        import pyarrow as pa  # an extra, and slow to import

        columns = self._columns
        arrays = [
            self._arrow_bytes(columns.keys, columns.key_validity),
            self._arrow_bytes(columns.values, columns.value_validity),
            pa.array(self.offsets),
            pa.array(self.timestamps).cast(pa.timestamp("ns", "UTC")),
        ]
        return pa.RecordBatch.from_arrays(arrays, names=["key", "value", "offset", "timestamp"])

    def _list(self, column: _BytesColumn | None, validity: memoryview | None) -> list[bytes | None]:
        if column is None:
            return [None] * self._count
        elements: list[bytes | None] = [*column.to_list(self._first, self._count)]
        if validity is not None:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            for index in np.flatnonzero(bits[self._first : self._first + self._count] == 0).tolist():
                elements[index] = None
        return elements

    def _arrow_bytes(self, column: _BytesColumn | None, validity: memoryview | None) -> Any:
        import pyarrow as pa

        if column is None:
            return pa.nulls(self._count, pa.binary())
        bitmap, null_count = (None, 0) if validity is None else (pa.py_buffer(validity), -1)
        buffers = [bitmap, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers, null_count, self._first)


# Control batches


@dataclass(frozen=True, slots=True)
class ControlRecord:
    type: int
    version: int
    payload: bytes


def control_batch(type: int, version: int, payload: bytes, timestamp: int = 0) -> EncodedBatch:  # noqa: A002
    """A batch that takes one offset and holds no record. `timestamp` in ns since 1970."""
    body = _CONTROL.pack(type, version, len(payload)) + payload
    return _encoded(
        _padded(body),
        attributes=_CONTROL_BIT,
        columns=0,
        record_count=1,
        first_timestamp=timestamp,
        last_timestamp=timestamp,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=-1,
    )


def decode_control(buf: Buffer, at: int = 0) -> ControlRecord:
    """The content of the control batch at `at`, body CRC checked. Raises CorruptData. Readers skip unknown types."""
    header = parse_header(buf, at)
    if not header.is_control or header.columns or header.record_count != 1 or header.attributes & ~_CONTROL_BIT:
        raise CorruptData(f"{header} is no control batch")
    verify_body(buf, at, header)
    body = _body(buf, at, header)
    if len(body) < _CONTROL.size:
        raise CorruptData(f"{header}: control body of {len(body)} bytes")
    kind, version, size = _CONTROL.unpack_from(body)
    end = _CONTROL.size + size
    if end + -end % 8 != len(body):
        raise CorruptData(f"{header}: control payload of {size} bytes in a body of {len(body)}")
    return ControlRecord(kind, version, bytes(body[_CONTROL.size : end]))


# Record headers


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
