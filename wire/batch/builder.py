"""Accumulates records into a batch: the hot path of ingest."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from wire.batch.columns import LITTLE_I32, LITTLE_I64, Column, compress, padded, padding
from wire.batch.encoded import EncodedBatch, seal
from wire.batch.header import INT64_MAX, MAX_BODY_BYTES, MAX_RECORDS, MESSAGE_IDS_HINT, TRANSACTIONAL_BIT, Compression
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import NO_PRODUCER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wire.batch.columns import Int32Array
    from wire.types import Buffer

_INT64_MIN: Final = -INT64_MAX - 1
_WORTH_NUMPY: Final = 16
"""Number of elements of a column from which on numpy makes its offsets faster."""


class Joined(NamedTuple):
    """Byte strings, one after the other."""

    data: Buffer
    sizes: Int32Array
    """[n]"""

    @classmethod
    def of(cls, elements: Sequence[bytes]) -> Self:
        return cls(b"".join(elements), np.fromiter(map(len, elements), LITTLE_I32, len(elements)))

    def part(self, first: int, upto: int) -> Self:
        """Returns the strings from `first` on, before `upto`, as a view."""
        start = int(self.sizes[:first].sum())
        sizes = self.sizes[first:upto]
        return type(self)(memoryview(self.data)[start : start + int(sizes.sum())], sizes)


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

    def add_joined(self, elements: Joined) -> None:
        self._seal_loose()
        if elements.data:
            self._parts.append(elements.data)
        self._runs.append(elements.sizes)
        self.count += len(elements.sizes)
        self.data_bytes += len(elements.data)

    def add(self, element: bytes) -> None:
        self._loose.append(element)
        self.count += 1
        self.data_bytes += len(element)

    def extend(self, elements: Sequence[bytes]) -> None:
        self._loose.extend(elements)
        self.count += len(elements)
        self.data_bytes += sum(map(len, elements))

    def fill_to(self, count: int, *, null: bool) -> None:
        """Adds empty elements, or nulls, until there are `count`."""
        missing = count - self.count
        if missing <= 0:
            return
        if null:
            self._nulls.append((self.count, missing))
            self.null_count += missing
        self._seal_loose()
        self._runs.append((0, missing))
        self.count = count

    def sections(self) -> list[Buffer]:
        """Returns offsets and data, each padded."""
        if self._loose and not self._runs and self.count < _WORTH_NUMPY:
            ends = accumulate(map(len, self._loose), initial=0)
            few = struct.pack(f"<{self.count + 1}i", *ends)
            return [*padded(few), b"".join(self._loose), *padding(self.data_bytes)]
        self._seal_loose()
        offsets: Int32Array
        if len(self._runs) == 1 and isinstance(run := self._runs[0], tuple) and run[0]:
            offsets = np.arange(0, self.data_bytes + 1, run[0], dtype=LITTLE_I32)
        else:
            offsets = np.zeros(self.count + 1, LITTLE_I32)
            sizes = [np.full(run[1], run[0], LITTLE_I32) if isinstance(run, tuple) else run for run in self._runs]
            np.cumsum(np.concatenate(sizes), dtype=LITTLE_I32, out=offsets[1:])
        return [*padded(offsets.data.cast("B")), *self._parts, *padding(self.data_bytes)]

    def validity(self) -> list[Buffer]:
        """Returns the padded bitmap."""
        valid = np.ones(self.count, np.bool_)
        for first, count in self._nulls:
            valid[first : first + count] = False
        return padded(np.packbits(valid, bitorder="little").tobytes())

    def _seal_loose(self) -> None:
        if self._loose:
            joined = Joined.of(self._loose)
            self._parts.append(joined.data)
            self._runs.append(joined.sizes)
            self._loose = []


class BatchBuilder:
    """Accumulates records into one batch. Runs of bare publishes cost no Python work per record.

    The caller builds before `size_bytes` passes the size that one batch should have; more than MAX_RECORDS records or
    MAX_BODY_BYTES is InvariantViolation.
    """

    __slots__ = ("_headers", "_keys", "_timestamps", "_values", "count", "has_message_ids")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        """Number of records so far."""
        self._values = _BytesColumnBuilder()
        self._keys: _BytesColumnBuilder | None = None
        self._headers: _BytesColumnBuilder | None = None
        self._timestamps: dict[int, int] = {}  # index -> ns, of the records that have their own
        self.has_message_ids = False
        """Set by the caller: some header is a message id."""

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
        """Adds `count` values of `payload_size` bytes, `stride` bytes apart from `payload_at` on; copies them."""
        self._values.add_uniform(block, count, payload_at, payload_size, stride)
        self.count += count

    def add_joined(self, values: Joined, headers: Joined | None = None) -> None:
        """Adds values in order, their bytes not copied again; `headers`, of equal length, are raw NATS header blocks or
        empty."""
        before = self.count
        self._values.add_joined(values)
        self.count += len(values.sizes)
        if headers is not None:
            if len(headers.sizes) != len(values.sizes):
                raise InvariantViolation(f"{len(headers.sizes)} header blocks for {len(values.sizes)} payloads")
            if self._headers is None:
                self._headers = _BytesColumnBuilder()
            self._headers.fill_to(before, null=False)
            self._headers.add_joined(headers)

    def add_values(self, payloads: list[bytes], headers: list[bytes | None] | None = None) -> None:
        """Adds values in order; `headers`, of equal length, are raw NATS header blocks or None."""
        before = self.count
        self._values.extend(payloads)
        self.count += len(payloads)
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
        """Adds one record. `headers` as `encode_headers` makes them or a raw NATS block; `timestamp` in ns since 1970.

        Raises TidelogError(BAD_REQUEST) for a timestamp beyond 64 bits; nothing is added then.
        """
        index = self.count
        if timestamp is not None:
            if not _INT64_MIN <= timestamp <= INT64_MAX:
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
        self.count += 1

    def build(
        self,
        timestamp: int,
        *,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        compression: Compression = Compression.NONE,
        is_transactional: bool = False,
    ) -> EncodedBatch:
        """Returns the batch of all added records, and empties the builder.

        `timestamp` (ns) is that of the records without their own. A body that compression does not make smaller is
        stored as it is.
        """
        count = self.count
        if not 0 < count <= MAX_RECORDS or self.size_bytes > MAX_BODY_BYTES:
            raise InvariantViolation(f"a batch of {count} records, {self.size_bytes} bytes, cannot be built")
        columns = 0
        parts: list[Buffer] = []
        if self._values.null_count < count:
            columns |= Column.VALUE
            parts += self._values.sections()
        if self._keys is not None:
            columns |= Column.KEY
            self._keys.fill_to(count, null=True)
            parts += self._keys.sections()
        first_timestamp = last_timestamp = timestamp
        if self._timestamps:
            timestamps = np.full(count, timestamp, LITTLE_I64)
            timestamps[np.fromiter(self._timestamps.keys(), np.intp)] = np.fromiter(self._timestamps.values(), np.int64)
            first_timestamp = int(timestamps.min())
            last_timestamp = int(timestamps.max())
            if first_timestamp != last_timestamp:
                columns |= Column.TIMESTAMP
                parts.append(timestamps.data.cast("B"))
        if self._headers is not None:
            columns |= Column.HEADERS
            self._headers.fill_to(count, null=False)
            parts += self._headers.sections()
        if self._keys is not None and self._keys.null_count:
            columns |= Column.KEY_VALIDITY
            parts += self._keys.validity()
        if 0 < self._values.null_count < count:
            columns |= Column.VALUE_VALIDITY
            parts += self._values.validity()
        if compression is not Compression.NONE:
            parts, compression = compress(parts, compression)
        hints = MESSAGE_IDS_HINT if self.has_message_ids else 0
        self._reset()
        return seal(
            parts,
            attributes=int(compression) | (TRANSACTIONAL_BIT if is_transactional else 0),
            columns=columns,
            record_count=count,
            first_timestamp=first_timestamp,
            last_timestamp=last_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            hints=hints,
        )
