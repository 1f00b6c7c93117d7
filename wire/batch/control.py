"""Control batches: they hold no record, but a fact for the replicas or for later readers. They take one offset; batches
of type EMPTIED take the offsets of the batch that they replace."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from wire.batch.columns import padded
from wire.batch.encoded import EncodedBatch, seal
from wire.batch.header import (
    ABORT_BIT,
    COMMIT_BIT,
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    Marker,
    body_of,
    parse_header,
    verify_body,
)
from wire.errors import CorruptData
from wire.types import NO_PRODUCER

if TYPE_CHECKING:
    from wire.types import Buffer

_CONTROL = struct.Struct("<HHI")


class ControlType(IntEnum):
    """Numbers are never used again. Readers pass over all types."""

    EMPTIED = 1
    """Replaces a batch of which compaction has left no record, with its range of offsets, epoch and producer. No
    payload."""

    TRANSACTION_END = 2
    """The end of a producer's transaction in this partition (`BatchHeader.marker`). No payload."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    type: int
    version: int
    payload: bytes


def control_batch(type: int, version: int, payload: bytes, timestamp: int = 0) -> EncodedBatch:  # noqa: A002
    """Returns a batch that takes one offset and holds no record. `timestamp` in ns since 1970."""
    body = _CONTROL.pack(type, version, len(payload)) + payload
    return seal(
        padded(body),
        attributes=CONTROL_BIT,
        columns=0,
        record_count=1,
        first_timestamp=timestamp,
        last_timestamp=timestamp,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=-1,
    )


def transaction_marker(producer_id: int, next_epoch: int, marker: Marker, timestamp: int = 0) -> EncodedBatch:
    """Returns the end of the transaction of `producer_id`, whose next one has `next_epoch`. `timestamp` in ns since
    1970."""
    batch = control_batch(ControlType.TRANSACTION_END, 1, b"", timestamp)
    header = batch.header._replace(
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT | marker.value,
        producer_id=producer_id,
        producer_epoch=next_epoch,
        base_sequence=0,
    )
    return EncodedBatch(header, batch.parts)


def decode_control(buf: Buffer) -> ControlRecord:
    """Returns the content of a control batch, body CRC checked. Raises CorruptData. Readers skip unknown types."""
    header = parse_header(buf)
    known = CONTROL_BIT | TRANSACTIONAL_BIT | COMMIT_BIT | ABORT_BIT
    if not header.is_control or header.columns or header.record_count != 1 or header.attributes & ~known:
        raise CorruptData(f"{header} is no control batch")
    verify_body(buf, 0, header)
    body = body_of(buf, 0, header)
    if len(body) < _CONTROL.size:
        raise CorruptData(f"{header}: control body of {len(body)} bytes")
    kind, version, size = _CONTROL.unpack_from(body)
    end = _CONTROL.size + size
    if end + -end % 8 != len(body):
        raise CorruptData(f"{header}: control payload of {size} bytes in a body of {len(body)}")
    return ControlRecord(kind, version, bytes(body[_CONTROL.size : end]))
