"""A batch that has no offset yet, from our builder or from a client, and the stamp that gives it one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from crc32c import crc32c

from wire.batch.columns import (
    MAX_EXPANSION,
    BytesColumn,
    Column,
    Columns,
    expanded_size,
    parse_columns,
    sections_of,
)
from wire.batch.header import (
    MAX_BODY_BYTES,
    MESSAGE_IDS_HINT,
    BatchHeader,
    Compression,
    body_of,
    encode_header,
    parse_header,
    verify_body,
)
from wire.batch.message_ids import MAX_MESSAGE_IDS
from wire.batch.record_headers import check_headers, is_nats_block, most_written, written_size
from wire.errors import Code, CorruptData, TidelogError, limit_reached
from wire.types import NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.batch.columns import Int64Array
    from wire.types import Buffer

_OF_ONE_RECORD: Final = 96 + 64
"""Limit of the bytes of a batch of one record besides its data: the header, three columns' offsets, and padding."""


@dataclass(frozen=True, slots=True)
class RecordLimit:
    """Two bounds on key, value and headers together, in bytes; the smaller one holds."""

    room: int
    """Bytes that fit one message of the NATS server, from its `max_payload`."""
    configured: int | None = None
    """The stream's `max_record_bytes`; None where it is unknown."""

    @classmethod
    def within(cls, batch_bytes: int, configured: int | None = None) -> Self:
        """`batch_bytes`: of the largest batch that fits into a message. Producers and leaders have this one limit, so
        that a copy can write every published record."""
        return cls(batch_bytes - _OF_ONE_RECORD, configured)

    @property
    def max_bytes(self) -> int:
        return self.room if self.configured is None else min(self.room, self.configured)

    def too_large(self, what: str, size: int) -> TidelogError:
        """Returns RECORD_TOO_LARGE for a record of `size` bytes above the limit. `what` begins the sentence; the remedy
        names the settings that keep this record out."""
        by_stream = self.configured is not None and self.configured <= self.room
        which = "the stream's max_record_bytes" if by_stream else "what the NATS server takes in one message"
        remedies = []
        if self.configured is not None and size > self.configured:
            remedies.append("max_record_bytes")
        if size > self.room:
            remedies.append("max_payload of the NATS server")
        return TidelogError(
            Code.RECORD_TOO_LARGE,
            f"{what} of {size} bytes (key, value and headers) is above {self.max_bytes}, {which}; send smaller records "
            f"or raise {' and '.join(remedies)}",
        )


FREE_BYTES: Final = 64 << 10
"""A client's body may always have so many bytes when it is decompressed, or MAX_EXPANSION times its own."""
MAX_RECORDS_PER_BYTE: Final = 64
"""Records of a client's batch for each byte of its body: as many as MAX_EXPANSION leaves for records that have a value.
"""
FREE_RECORDS: Final = 64 << 10
"""A client's batch may always have so many records."""
HEAVY_BYTES: Final = 256 << 10
"""A compressed batch of more bytes is not decoded on an event loop: it takes most of a millisecond."""
HEAVY_HEADER_BYTES: Final = 16 << 10
"""HEAVY_BYTES for batches whose records have headers."""


class EncodedBatch:
    """A batch without an offset yet: the body as a list of buffers, and the final header without the stamp.

    `header.base_offset`, `header.leader_epoch`, `header.append_time` and `header.partitioning_version` are 0. A client
    sends `stamp(Offset(0), LeaderEpoch(0))`.
    """

    __slots__ = ("columns", "header", "parts")

    def __init__(self, header: BatchHeader, parts: list[Buffer], columns: Columns | None = None) -> None:
        self.header = header
        self.parts = parts
        self.columns = columns
        """The columns of a client's batch with message ids, for the search for repetitions; else None."""

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.header.size

    @property
    def record_count(self) -> int:
        return self.header.record_count

    def stamp(
        self, base_offset: Offset, leader_epoch: LeaderEpoch, append_time: int = 0, partitioning_version: int = 0
    ) -> tuple[list[Buffer], BatchHeader]:
        """Returns the parts of the finished batch, the first of them its 96-byte header; and that header.
        `append_time`: ns since 1970."""
        header = _stamped(self.header, base_offset, leader_epoch, append_time, partitioning_version)
        return [encode_header(header), *self.parts], header

    def restamp(self) -> tuple[list[Buffer], BatchHeader]:
        """Returns the same with the stamp that `header` has: of a batch that replaces a stored one."""
        return [encode_header(self.header), *self.parts], self.header

    @classmethod
    def from_bytes(
        cls, buf: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, record_limit: RecordLimit | None = None
    ) -> EncodedBatch:
        """Decodes a client's batch as it was received; see `ReceivedBatch`."""
        return ReceivedBatch(buf, max_body_bytes=max_body_bytes).decode(record_limit)


class ReceivedBatch:
    """A client's batch as it was received, exactly one, with a right header and checksums. The sizes that it states
    bound the cost of decoding it.

    `header` has the stamp of the client, which is ignored. The buffer must not change any more.
    """

    __slots__ = ("_body", "_max_body_bytes", "header", "is_heavy")

    def __init__(self, buf: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        """`max_body_bytes` bounds the body before and after decompression. Raises CorruptData;
        TidelogError(LIMIT_REACHED) for a body that states too many bytes or records for its size."""
        header = parse_header(buf)
        if header.size != len(buf):
            raise CorruptData(f"a message of {len(buf)} bytes holds a batch of {header.size} and something else")
        if header.is_control:
            raise CorruptData("a client may not write control batches")
        if header.is_encrypted:
            raise CorruptData("a client may not write encrypted batches: the leader encrypts what the stream asks for")
        if header.columns & (Column.OFFSET_DELTA | Column.HOLES) or header.offset_span:
            raise CorruptData("a client's batch may not have holes between its offsets")
        self._body = body_of(buf, 0, header)
        self._max_body_bytes = max_body_bytes
        self.header = header
        verify_body(buf, 0, header)
        size = expanded_size(self._body, header, max_body_bytes)
        self._check_density(size)
        self.is_heavy = (size > HEAVY_BYTES and header.compression is not Compression.NONE) or (
            size > HEAVY_HEADER_BYTES and bool(header.columns & Column.HEADERS)
        )
        """Decoding it may take longer than an event loop should be held up."""

    def _check_density(self, size: int) -> None:
        header, length = self.header, len(self._body)
        if header.has_message_ids and header.record_count > MAX_MESSAGE_IDS:
            raise limit_reached(
                "batch_message_ids",
                f"a batch of {header.record_count} records says that they have message ids, the limit is"
                f" {MAX_MESSAGE_IDS}; send fewer in one batch",
            )
        most_bytes = max(FREE_BYTES, MAX_EXPANSION * length)
        if size > most_bytes:
            raise limit_reached(
                "batch_expansion",
                f"a batch of {header.size} bytes has {size} when decompressed, the limit is {most_bytes};"
                " send it plain",
            )
        most_records = max(FREE_RECORDS, MAX_RECORDS_PER_BYTE * length)
        if header.record_count > most_records:
            raise limit_reached(
                "batch_records",
                f"a batch of {header.size} bytes holds {header.record_count} records, the limit is {most_records}; send"
                " fewer in one batch",
            )

    def decode(self, record_limit: RecordLimit | None = None) -> EncodedBatch:
        """Checks everything that a reader relies on; `record_limit` bounds each record. The parts are views of the
        buffer. Raises CorruptData; TidelogError(RECORD_TOO_LARGE) names the largest record;
        TidelogError(LIMIT_REACHED) for one with too many headers."""
        header, body = self.header, self._body
        columns = parse_columns(sections_of(body, header, self._max_body_bytes), header)
        if columns.headers is not None:
            check_headers(columns.headers)
        if record_limit is not None:
            _check_record_sizes(columns, header.record_count, record_limit)
        kept = columns if header.has_message_ids else None
        sent_crc = header.body_crc if header.producer_id != NO_PRODUCER else 0
        known = header._replace(hints=header.hints & MESSAGE_IDS_HINT, sent_crc=sent_crc)
        return EncodedBatch(_stamped(known, Offset(0), LeaderEpoch(0)), [body], kept)


def _stamped(
    header: BatchHeader,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    append_time: int = 0,
    partitioning_version: int = 0,
) -> BatchHeader:
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
        append_time,
        header.hints,
        partitioning_version,
        header.sent_crc,
    )


def seal(
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
    hints: int = 0,
) -> EncodedBatch:
    """Returns a batch whose body is `parts`, its length and CRC filled in."""
    length, crc = length_and_crc(parts)
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
        hints=hints,
    )
    return EncodedBatch(header, parts)


def length_and_crc(parts: list[Buffer]) -> tuple[int, int]:
    """Returns the length and the CRC of the body that `parts` make."""
    length = crc = 0
    for part in parts:
        length += len(part)
        crc = crc32c(part, crc)
    return length, crc


def _check_record_sizes(columns: Columns, count: int, limit: RecordLimit) -> None:
    """Raises TidelogError(RECORD_TOO_LARGE) if the largest of `count` records is above the limit."""
    total = np.zeros(count, np.int64)
    for column in (columns.values, columns.keys, columns.headers):
        if column is not None:
            total += column.sizes()
    if columns.headers is not None:
        _count_as_written(total, columns.headers, limit)
    largest = int(total.argmax())
    if int(total[largest]) > limit.max_bytes:
        raise limit.too_large(f"record {largest} of the batch", int(total[largest]))


def _count_as_written(total: Int64Array, headers: BytesColumn, limit: RecordLimit) -> None:
    """Adds the growth of NATS blocks, when a producer writes them, to the sizes of records near the limit."""
    sizes = headers.sizes()
    for record in np.flatnonzero(total + most_written(sizes) - sizes > limit.max_bytes).tolist():
        (element,) = headers.to_list(record, 1)
        if is_nats_block(element):
            total[record] += max(0, written_size(element) - len(element))
