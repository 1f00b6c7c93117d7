"""The fixed header of a batch, which is all that a log, a follower or a leader's producer state reads of one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from wire.errors import CorruptData
from wire.types import NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.types import Buffer

HEADER_SIZE: Final = 96
MAGIC: Final = 1
MAX_BODY_BYTES: Final = 128 << 20
"""Limit of a body, compressed or not. Twice the size of the largest NATS message, and well inside the i32 of the
columns."""
MAX_RECORDS: Final = 1 << 20
"""Limit of the records of a batch: a header of 96 bytes cannot make a reader allocate without bound."""
COMPRESSION_MASK: Final = 0b0111
CONTROL_BIT: Final = 0b1000
ENCRYPTED_BIT: Final = 0b1_0000
TRANSACTIONAL_BIT: Final = 0b10_0000
COMMIT_BIT: Final = 0b100_0000
ABORT_BIT: Final = 0b1000_0000
MESSAGE_IDS_HINT: Final = 1
INT64_MAX: Final = (1 << 63) - 1

_HEADER = struct.Struct("<qQIBBHIIIIqqqiiqIII")
_HEADER_CRC = struct.Struct("<I")
_HEADER_CRC_AT: Final = HEADER_SIZE - _HEADER_CRC.size
_LENGTH_AND_ATTRIBUTES = struct.Struct("<16xI2xH")
_SCANNED = struct.Struct("<q8xI2xH32xq")


class Compression(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Marker(Enum):
    """The outcome of a transaction in a partition."""

    COMMIT = COMMIT_BIT
    ABORT = ABORT_BIT


class BatchHeader(NamedTuple):
    """The fixed header. Timestamps in ns since 1970. `attributes` and `columns` may have unknown bits."""

    base_offset: Offset
    leader_epoch: LeaderEpoch
    length: int
    """Bytes of the body, which follows the header."""
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
    append_time: int = 0
    """Time of the log (R73) at which the leader appended it, in ns since 1970. 0: unknown."""
    hints: int = 0
    """Bits that save a look into the body. A version that does not know one loses nothing but time."""
    partitioning_version: int = 0
    """The partitioning version of the stream, when the leader appended it (`wire.layouts`). 0: the first, or not
    stated by that leader."""
    sent_crc: int = 0
    """CRC-32C of the body as its producer sent it: it distinguishes a batch that is sent again from another one,
    whatever encryption, compaction and message ids have changed in the body. 0: no producer, or not stated by that
    leader."""

    @property
    def offset_count(self) -> int:
        """Number of offsets that the batch covers: its records when it was appended, and the sequences of its producer.
        Compaction leaves fewer records (`record_count`) in the same range."""
        return self.offset_span or self.record_count

    @property
    def end_offset(self) -> Offset:
        """The offset behind the batch, exclusive."""
        return Offset(self.base_offset + (self.offset_span or self.record_count))

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return HEADER_SIZE + self.length

    @property
    def has_message_ids(self) -> bool:
        """Whether records may have a message id (`wire.batch.message_ids`)."""
        return bool(self.hints & MESSAGE_IDS_HINT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_encrypted(self) -> bool:
        """Whether the body is as `dataplane.encryption` writes it; the header is in the clear."""
        return bool(self.attributes & ENCRYPTED_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether its records count only once the transaction of its producer is committed."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def marker(self) -> Marker | None:
        """The outcome of its producer's transaction, which it ends. Its `producer_epoch` is the next transaction's."""
        if not self.is_control or not self.attributes & (COMMIT_BIT | ABORT_BIT):
            return None
        return Marker.COMMIT if self.attributes & COMMIT_BIT else Marker.ABORT

    @property
    def compression(self) -> Compression:
        """Raises CorruptData for a compression that this version does not know."""
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            raise CorruptData(f"{self}: unknown compression {self.attributes & COMPRESSION_MASK}") from None

    @property
    def max_timestamp(self) -> int:
        return self.last_timestamp

    def __str__(self) -> str:
        return f"batch of offsets {self.base_offset} to {self.end_offset - 1}"


def parse_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """Returns the header at `at`. Raises CorruptData when it is cut off, has a wrong magic or CRC, or contradicts
    itself.

    Does not check that the body is there: `iter_batches` does.
    """
    if at < 0 or len(buf) - at < HEADER_SIZE:
        raise CorruptData(f"batch header at byte {at} is cut off: {max(len(buf) - at, 0)} of {HEADER_SIZE} bytes")
    base_offset, leader_epoch, length, magic, zero, *others = _HEADER.unpack_from(buf, at)
    if magic != MAGIC:
        raise CorruptData(f"batch header at byte {at} has magic {magic}, not {MAGIC}")
    (header_crc,) = _HEADER_CRC.unpack_from(buf, at + _HEADER_CRC_AT)
    computed = crc32c(memoryview(buf)[at : at + _HEADER_CRC_AT])
    if header_crc != computed:
        raise CorruptData(f"batch header at byte {at} has CRC {header_crc:#010x}, its bytes have {computed:#010x}")
    header = BatchHeader(base_offset, leader_epoch, length, *others)
    fault = f"byte 21 is {zero}, not 0" if zero else _fault(header)
    if fault is not None:
        raise CorruptData(f"batch header at byte {at}: {fault}")
    return header


def _fault(header: BatchHeader) -> str | None:
    """A contradiction under a right CRC, in words; None for a sound header."""
    if header.base_offset < 0:
        return f"base offset {header.base_offset} is negative"
    if header.end_offset > INT64_MAX:
        return f"end offset {header.end_offset} is beyond 64 bits"
    if header.length > MAX_BODY_BYTES:
        return f"body of {header.length} bytes, the limit is {MAX_BODY_BYTES}"
    if header.length % 8:
        return f"body of {header.length} bytes is no multiple of 8"
    if not 1 <= header.record_count <= MAX_RECORDS:
        return f"{header.record_count} records, not 1 to {MAX_RECORDS}"
    if 0 < header.offset_span < header.record_count:
        return f"a span of {header.offset_span} offsets is too short for {header.record_count} records"
    if header.first_timestamp > header.last_timestamp:
        return f"first timestamp {header.first_timestamp} is after the last one, {header.last_timestamp}"
    if header.producer_id < NO_PRODUCER:
        return f"producer id {header.producer_id} is negative"
    if header.producer_id != NO_PRODUCER and (header.producer_epoch < 0 or header.base_sequence < 0):
        return f"producer epoch {header.producer_epoch} or sequence {header.base_sequence} is negative"
    return None


def encode_header(header: BatchHeader) -> bytes:
    """Returns the 96 bytes, with their CRC."""
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
        header.append_time,
        header.hints,
        header.partitioning_version,
        header.sent_crc,
    )
    return encoded + _HEADER_CRC.pack(crc32c(encoded))


def body_of(buf: Buffer, at: int, header: BatchHeader) -> memoryview:
    """Returns a view of the body of the batch at `at`. Raises CorruptData when it is cut off."""
    end = at + header.size
    if end > len(buf):
        raise CorruptData(f"{header} at byte {at} is cut off: {len(buf) - at} of {header.size} bytes")
    return memoryview(buf)[at + HEADER_SIZE : end]


def verify_body(buf: Buffer, at: int, header: BatchHeader) -> None:
    """Checks the body of the batch at `at` (the header's place) against its CRC. Raises CorruptData."""
    computed = crc32c(body_of(buf, at, header))
    if computed != header.body_crc:
        raise CorruptData(f"{header}: body has CRC {computed:#010x}, the header says {header.body_crc:#010x}")


def iter_batches(buf: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yields (place, header) of each batch from `at` to the end of `buf`. Raises CorruptData when the rest is no batch.

    Bodies are not checked.
    """
    while at < len(buf):
        header = parse_header(buf, at)
        body_of(buf, at, header)
        yield at, header
        at += header.size


class ScannedBatch(NamedTuple):
    at: int
    """The place of the batch in the buffer."""
    size: int
    is_transactional_data: bool
    """Its records count only once the transaction of its producer is committed."""
    base_offset: int
    producer_id: int


def scan_batches(buf: Buffer) -> Iterator[ScannedBatch]:
    """Yields a few fields of each whole batch in `buf`, whose headers were checked before; several times as fast as
    `iter_batches`."""
    at, end = 0, len(buf)
    while at < end:
        base_offset, length, attributes, producer_id = _SCANNED.unpack_from(buf, at)
        size = HEADER_SIZE + length
        is_data = attributes & (TRANSACTIONAL_BIT | CONTROL_BIT) == TRANSACTIONAL_BIT
        yield ScannedBatch(at, size, is_data, base_offset, producer_id)
        at += size


def holds_encrypted(buf: Buffer) -> bool:
    """Whether any of the whole batches in `buf`, whose headers were checked before, is encrypted."""
    at, end = 0, len(buf)
    while at < end:
        length, attributes = _LENGTH_AND_ATTRIBUTES.unpack_from(buf, at)
        if attributes & ENCRYPTED_BIT:
            return True
        at += HEADER_SIZE + length
    return False
