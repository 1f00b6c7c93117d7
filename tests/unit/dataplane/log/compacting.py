"""Keyed records for logs, the records that a reader sees, and the records that compaction must leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring
from dataplane.log.compaction.compaction_pass import CompactionPass
from wire.batch import BatchBuilder, Compression, Marker, RecordBatch, iter_batches, transaction_marker
from wire.types import FIRST_TRANSACTIONAL_ID, LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataplane.log.partition_log import PartitionLog

NO_KEYS = BatchCipher(Keyring(), None)


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def append(
    log: PartitionLog,
    records: Iterable[tuple[bytes | None, bytes | None]],
    *,
    epoch: int = 1,
    compression: Compression = Compression.NONE,
    producer: tuple[int, int] | None = None,
    transaction: tuple[int, int, int] | None = None,
    cipher: BatchCipher | None = None,
) -> bytes:
    """One batch; `producer`: (id, base sequence); `transaction`: (number of the producer, epoch, base sequence). Its
    bytes."""
    builder = BatchBuilder()
    for key, value in records:
        builder.add_record(value, key)
    timestamp = 1_000 * (log.log_end_offset + 1)
    if transaction is not None:
        batch = builder.build(
            timestamp,
            compression=compression,
            producer_id=FIRST_TRANSACTIONAL_ID + transaction[0],
            producer_epoch=transaction[1],
            base_sequence=transaction[2],
            is_transactional=True,
        )
    elif producer is None:
        batch = builder.build(timestamp, compression=compression)
    else:
        batch = builder.build(
            timestamp, compression=compression, producer_id=producer[0], producer_epoch=0, base_sequence=producer[1]
        )
    parts, header = batch.stamp(log.log_end_offset, LeaderEpoch(epoch), 10**18 + log.log_end_offset)
    if cipher is not None:
        parts, header = cipher.encrypt(header, parts[1:])
    log.append(parts, [header])
    return b"".join(parts)


def end(log: PartitionLog, producer: int, epoch: int, marker: Marker, *, leader_epoch: int = 1) -> Offset:
    """A marker, which ends the transaction of `epoch` of that producer (by its number). Its offset."""
    at = log.log_end_offset
    batch = transaction_marker(FIRST_TRANSACTIONAL_ID + producer, epoch + 1, marker, 1_000 * (at + 1))
    parts, header = batch.stamp(at, LeaderEpoch(leader_epoch), 10**18 + at)
    log.append(parts, [header])
    return at


def stored(log: PartitionLog) -> bytes:
    """From disk."""
    found = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        block = log.read_from_disk(offset, max_bytes=300, end_offset=log.log_end_offset)
        if not block:
            break
        found += block
        for _, header in iter_batches(block):
            assert header.end_offset > offset
            offset = header.end_offset
    return bytes(found)


def rows(content: bytes) -> list[Row]:
    out: list[Row] = []
    for at, _ in iter_batches(content):
        batch = RecordBatch.decode(content, at)
        out += map(Row, batch.offsets.tolist(), batch.keys, batch.values)
    assert [row.offset for row in out] == sorted({row.offset for row in out})
    return out


def one_pass(
    log: PartitionLog,
    high_watermark: int | None = None,
    *,
    now_ms: int | None = 1_000_000,
    retention_ms: int = 10_000,
    cipher: BatchCipher = NO_KEYS,
    max_batch_bytes: int = 1 << 20,
) -> CompactionPass:
    """With the smallest map there is."""
    return CompactionPass(
        log,
        log.log_end_offset if high_watermark is None else Offset(high_watermark),
        tombstone_retention_ms=retention_ms,
        now_ms=now_ms,
        memory=0,
        max_batch_bytes=max_batch_bytes,
        cipher=cipher,
    )


def compact(log: PartitionLog, high_watermark: int | None = None, **options: Any) -> CompactionPass:
    """One whole pass; `options` are those of `one_pass`."""
    done = one_pass(log, high_watermark, **options)
    for _ in done.steps():
        pass
    return done


@dataclass
class Model:
    """The appended records, and the ones that compaction must leave."""

    rows: list[Row] = field(default_factory=list)

    def newest_below(self, end: int) -> dict[bytes, int]:
        return {row.key: row.offset for row in self.rows if row.key is not None and row.offset < end}

    def compacted_to(self, end: int) -> list[Row]:
        """All records but the superseded ones: a record below `end` with a newer one of its key below `end`."""
        newest = self.newest_below(end)
        return [row for row in self.rows if row.key is None or row.offset >= end or newest[row.key] == row.offset]
