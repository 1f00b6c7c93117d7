"""A batch that has no offset yet, from our builder or from a client, and the stamp that gives it one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from wire.batch.columns import Column, parse_columns, sections_of
from wire.batch.header import MAX_BODY_BYTES, BatchHeader, body_of, encode_header, parse_header, verify_body
from wire.batch.record_headers import decode_headers
from wire.errors import CorruptData
from wire.record_limit import RecordLimit
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.transport import Buffer


class EncodedBatch:
    """A batch without an offset yet: the body as a list of buffers, the header as it will be but for the stamp.

    `header.base_offset`, `header.leader_epoch` and `header.append_time` are 0. A client sends
    `stamp(Offset(0), LeaderEpoch(0))`.
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

    def stamp(
        self, base_offset: Offset, leader_epoch: LeaderEpoch, append_time: int = 0
    ) -> tuple[list[Buffer], BatchHeader]:
        """The parts of the finished batch, the first of them its 96-byte header; and that header. `append_time`: ns
        since 1970."""
        header = _stamped(self.header, base_offset, leader_epoch, append_time)
        return [encode_header(header), *self.parts], header

    @classmethod
    def from_bytes(
        cls, buf: Buffer, *, max_body_bytes: int = MAX_BODY_BYTES, record_limit: RecordLimit | None = None
    ) -> EncodedBatch:
        """A client's batch as it was received: exactly one, with everything checked that a reader relies on.

        The stamp in it is ignored. `max_body_bytes` bounds the body before and after decompression; `record_limit`
        each record. The parts are views of `buf`, which must not change any more.
        Raises CorruptData; TidelogError(RECORD_TOO_LARGE) names the largest record.
        """
        header = parse_header(buf)
        if header.size != len(buf):
            raise CorruptData(f"a message of {len(buf)} bytes holds a batch of {header.size} and something else")
        if header.is_control:
            raise CorruptData("a client may not write control batches")
        if header.is_encrypted:
            raise CorruptData("a client may not write encrypted batches: the leader encrypts what the stream asks for")
        if header.columns & (Column.OFFSET_DELTA | Column.HOLES) or header.offset_span:
            raise CorruptData("a client's batch may not have holes between its offsets")
        body = body_of(buf, 0, header)
        verify_body(buf, 0, header)
        columns = parse_columns(sections_of(body, header, max_body_bytes), header)
        if columns.headers is not None:
            for element in columns.headers.to_list(0, header.record_count):
                if element:
                    decode_headers(element)
        if record_limit is not None:
            columns.check_record_sizes(header.record_count, record_limit)
        return cls(_stamped(header, Offset(0), LeaderEpoch(0)), [body])


def _stamped(header: BatchHeader, base_offset: Offset, leader_epoch: LeaderEpoch, append_time: int = 0) -> BatchHeader:
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
) -> EncodedBatch:
    """A batch whose body is `parts`, its length and CRC filled in."""
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
    )
    return EncodedBatch(header, parts)


def length_and_crc(parts: list[Buffer]) -> tuple[int, int]:
    """Of the body that `parts` make."""
    length = crc = 0
    for part in parts:
        length += len(part)
        crc = crc32c(part, crc)
    return length, crc
