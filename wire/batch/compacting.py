"""A batch that loses records to compaction: the same batch, with holes.

It keeps its base offset, its leader epoch, its producer, its base sequence, its compression, and the range of offsets
that it covers (`offset_span`), and so the place of everything around it. Column OFFSET_DELTA says where the records
that are left lie in that range; HOLES, where nothing lies, if OFFSET_DELTA would make the batch larger than it was. A
batch is never larger afterwards: a log of batches as large as a NATS message stays one that can be copied and read.
Uncompressed that is certain with HOLES, for no section grows: the deltas of the holes take the room that the offsets of
the removed keys had. Compressed it nearly always holds; else the caller gets None, and the batch stays as it is.

A batch that loses all its records and is wanted still, because it carries other facts (a leader epoch, the end of a
segment), becomes a control batch of type EMPTIED over the same range, which readers pass over as they do over any
control batch.

A batch that cannot be decoded, because a newer version wrote it or it is encrypted, or that holds no data, is not
compacted: `CompactableBatch.decode` gives None.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from wire.batch.columns import (
    KNOWN_COLUMNS,
    LITTLE_I32,
    LITTLE_I64,
    ZSTD_LEVEL,
    BytesColumn,
    Column,
    Columns,
    compress,
    padded,
    padding,
    parse_columns,
    sections_of,
)
from wire.batch.control import ControlType, control_batch
from wire.batch.encoded import EncodedBatch, length_and_crc
from wire.batch.header import (
    MAX_BODY_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Compression,
    body_of,
    verify_body,
)
from wire.errors import InvariantViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wire.batch.columns import Int32Array, Int64Array
    from wire.types import Buffer

    BoolArray = NDArray[np.bool_]
    HashArray = NDArray[np.uint64]

_SMALLEST_ZSTD_LEVEL: Final = 19
"""Level for a body that all other forms make larger: slow, and rare."""
HASH_BYTES: Final = 16
"""Bytes of a key's hash. Two keys with one hash would count as one key, so no collisions may be known."""


_READABLE: Final = frozenset(compression | bit for compression in Compression for bit in (0, TRANSACTIONAL_BIT))
"""Attributes of batches that can be compacted."""


class CompactableBatch:
    """A batch of data taken apart. `offsets`, `keyed`, `tombstones`: [n], one for each record, in order."""

    def __init__(self, header: BatchHeader, columns: Columns) -> None:
        self.header = header
        self._columns = columns
        count = header.record_count
        if columns.offset_deltas is None:
            self.offsets: Int64Array = np.arange(header.base_offset, header.base_offset + count, dtype=np.int64)
        else:
            self.offsets = header.base_offset + columns.offset_deltas.astype(np.int64)
        self.keyed = _present(columns.keys, columns.key_validity, count)
        """Records without a key have no successors: compaction keeps them all."""
        self.tombstones = self.keyed & ~_present(columns.values, columns.value_validity, count)
        """Records with a key and without a value: the key is deleted."""

    @classmethod
    def decode(cls, buf: Buffer, at: int, header: BatchHeader) -> CompactableBatch | None:
        """Decodes the batch at `at`, its body's CRC checked; None for a control batch, for an encrypted one, and for
        one with unknown columns or attributes. Raises CorruptData."""
        verify_body(buf, at, header)
        if header.attributes not in _READABLE or header.columns & ~KNOWN_COLUMNS:
            return None
        body = body_of(buf, at, header)
        return cls(header, parse_columns(sections_of(body, header, MAX_BODY_BYTES), header))

    def key_hashes(self) -> HashArray:
        """Hashes of the keys: [keyed records, 2]."""
        column = self._columns.keys
        if column is None:
            return np.empty((0, 2), np.uint64)
        data = column.data
        if bool(self.keyed.all()):
            slices = [data[start:end] for start, end in pairwise(column.offsets.tolist())]
        else:
            chosen = np.flatnonzero(self.keyed)
            bounds = zip(column.offsets[chosen].tolist(), column.offsets[chosen + 1].tolist(), strict=True)
            slices = [data[start:end] for start, end in bounds]
        digests = b"".join([blake2b(key, digest_size=HASH_BYTES).digest() for key in slices])
        return np.frombuffer(digests, np.uint64).reshape(-1, 2)

    @property
    def has_offset_deltas(self) -> bool:
        """Whether it has lost records, and column OFFSET_DELTA makes it larger than HOLES would."""
        return bool(self.header.columns & Column.OFFSET_DELTA)

    def keep(self, kept: BoolArray, max_length: int | None = None) -> EncodedBatch | None:
        """Returns the batch with only the `kept` records, at least one, at its place. None: in every form its body
        would have more than `max_length` bytes, by default its present size."""
        header, compression = self.header, self.header.compression
        forms = [(Column.OFFSET_DELTA, compression, ZSTD_LEVEL)]
        if header.columns & Column.KEY and int(kept.sum()) < header.offset_count:
            forms.append((Column.HOLES, compression, ZSTD_LEVEL))
            if compression is not Compression.NONE:
                forms.append((Column.HOLES, Compression.ZSTD, _SMALLEST_ZSTD_LEVEL))
        if max_length is None:
            max_length = header.length
        for places, how, level in forms:
            left = self._kept(kept, places, how, level)
            if left.header.length <= max_length:
                return left
        return None

    def _kept(self, kept: BoolArray, places: Column, compression: Compression, zstd_level: int) -> EncodedBatch:
        """`places`: the column that stores the offsets of the records."""
        header, columns = self.header, self._columns
        present = header.columns & ~(Column.OFFSET_DELTA | Column.HOLES) | places
        deltas = (self.offsets[kept] - header.base_offset).astype(LITTLE_I32)
        parts: list[Buffer] = []
        if present & Column.VALUE:
            parts += _kept_bytes(columns.values, kept)
        if present & Column.KEY:
            holes = np.delete(np.arange(header.offset_count, dtype=LITTLE_I32), deltas)
            parts += _kept_bytes(columns.keys, kept, holes if places is Column.HOLES else None)
        first, last = header.first_timestamp, header.last_timestamp
        if columns.timestamps is not None:
            timestamps = columns.timestamps[kept]
            first, last = int(timestamps.min()), int(timestamps.max())
            if first == last:
                present &= ~Column.TIMESTAMP
            else:
                parts.append(timestamps.astype(LITTLE_I64, copy=False).data.cast("B"))
        if present & Column.HEADERS:
            parts += _kept_bytes(columns.headers, kept)
        if places is Column.OFFSET_DELTA:
            parts += padded(deltas.data.cast("B"))
        for bitmap in (columns.key_validity, columns.value_validity):
            if bitmap is not None:
                bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=header.record_count, bitorder="little")
                parts += padded(np.packbits(bits[kept], bitorder="little").tobytes())
        if compression is not Compression.NONE:
            parts, compression = compress(parts, compression, zstd_level=zstd_level)
        left = header._replace(
            attributes=compression | header.attributes & TRANSACTIONAL_BIT,
            columns=present,
            record_count=len(deltas),
            offset_span=header.offset_count,
            first_timestamp=first,
            last_timestamp=last,
        )
        return _encoded(left, parts)


def without_repetitions(batch: EncodedBatch, repeated: Collection[int]) -> EncodedBatch:
    """Returns a client's batch without the records at these places: holes, so that the others keep their offsets and
    the producer its sequence. Its `columns` must be there."""
    header, columns = batch.header, batch.columns
    if columns is None:
        raise InvariantViolation(f"{header} was not taken apart")
    kept = np.ones(header.record_count, np.bool_)
    kept[list(repeated)] = False
    if not kept.any():
        return emptied(header)
    left = CompactableBatch(header, columns).keep(kept, MAX_BODY_BYTES)
    if left is None:
        raise InvariantViolation(f"{header} without {len(repeated)} of its records is larger than any batch")
    return left


def emptied(header: BatchHeader) -> EncodedBatch:
    """Returns the control batch that takes the place and the range of offsets of a batch without records left. It is
    smaller than that batch, but for one whose records have neither key nor value nor header: 8 bytes larger at most."""
    control = control_batch(ControlType.EMPTIED, 1, b"")
    left = header._replace(
        attributes=control.header.attributes | header.attributes & TRANSACTIONAL_BIT,
        columns=0,
        record_count=1,
        offset_span=header.offset_count,
    )
    return _encoded(left, control.parts)


def _encoded(header: BatchHeader, body: list[Buffer]) -> EncodedBatch:
    """Returns `header` over another body."""
    length, crc = length_and_crc(body)
    return EncodedBatch(header._replace(length=length, body_crc=crc), body)


def _present(column: BytesColumn | None, validity: memoryview | None, count: int) -> BoolArray:
    if column is None:
        return np.zeros(count, np.bool_)
    if validity is None:
        return np.ones(count, np.bool_)
    return np.unpackbits(np.frombuffer(validity, np.uint8), count=count, bitorder="little").view(np.bool_)


def _kept_bytes(column: BytesColumn | None, kept: BoolArray, holes: Int32Array | None = None) -> list[Buffer]:
    """Returns offsets, with `holes` behind them, and data of the elements that are kept, each padded. Neighbours are
    copied in one piece."""
    assert column is not None
    offsets = np.zeros(int(kept.sum()) + 1, LITTLE_I32)
    np.cumsum(np.diff(column.offsets)[kept], out=offsets[1:])
    if holes is not None:
        offsets = np.concatenate((offsets, holes))
    edges = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False])).view(np.int8)))
    bounds = column.offsets[edges].tolist()
    data = b"".join([column.data[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True)])
    return [*padded(offsets.data.cast("B")), data, *padding(len(data))]
