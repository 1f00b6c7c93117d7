"""The records of a batch, for readers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from wire.batch.columns import NO_COLUMNS, BytesColumn, Columns, parse_columns, sections_of
from wire.batch.header import MAX_BODY_BYTES, BatchHeader, body_of, parse_header, verify_body
from wire.batch.message_ids import message_ids_of
from wire.batch.record_headers import HeaderSpans, decode_headers, header_spans
from wire.types import Offset

if TYPE_CHECKING:
    import pyarrow as pa

    from wire.batch.columns import Int64Array
    from wire.types import Buffer


class RecordBatch:
    """The records of one batch, or a range of them, as columns. Lists and arrays are made on first access.

    A control batch has no records: readers pass over it by `header.end_offset`.
    """

    def __init__(self, header: BatchHeader, columns: Columns, first: int, count: int) -> None:
        self.header = header
        self._columns = columns
        self._first = first
        self._count = count

    @classmethod
    def decode(
        cls,
        buf: Buffer,
        at: int = 0,
        *,
        header: BatchHeader | None = None,
        verify: bool = True,
    ) -> RecordBatch:
        """Decodes the batch at `at`, whose `header` may have been parsed before. The structure is checked always, the
        body's CRC with `verify`. Raises CorruptData.

        Uncompressed columns are views of `buf`, which must not change while the result is in use.
        """
        if header is None:
            header = parse_header(buf, at)
        body = body_of(buf, at, header)
        if verify:
            verify_body(buf, at, header)
        if header.is_control:
            return cls(header, NO_COLUMNS, 0, 0)
        return cls(header, parse_columns(sections_of(body, header, MAX_BODY_BYTES), header), 0, header.record_count)

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
        column = self._columns.headers
        if column is None:
            return [{} for _ in range(self._count)]
        return [decode_headers(element) for element in column.to_list(self._first, self._count)]

    def message_ids(self) -> list[tuple[int, bytes]]:
        """Returns (offset, message id) of the records that have one."""
        found = message_ids_of(self._columns.headers, self._first + self._count)
        offsets = self.offsets
        return [(int(offsets[place - self._first]), each) for place, each in found if place >= self._first]

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

    def fields(
        self,
    ) -> tuple[
        Iterable[int], Iterable[int], Iterable[bytes | None], Iterable[bytes | None], Iterable[dict[str, bytes]]
    ]:
        """Returns (offsets, timestamps, keys, values, headers) of the records, for one pass: absent columns make no
        arrays, which counts in small batches. Some iterables have no end: the offsets end the pass.
        """
        header, columns = self.header, self._columns
        base = header.base_offset + self._first
        return (
            range(base, base + self._count) if columns.offset_deltas is None else self.offsets.tolist(),
            repeat(header.first_timestamp) if columns.timestamps is None else self.timestamps.tolist(),
            repeat(None) if columns.keys is None else self.keys,
            repeat(None) if columns.values is None else self.values,
            # A dict each: the caller may change it.
            map(dict, repeat(())) if columns.headers is None else self.headers,
        )

    def slice(self, start_offset: Offset, end_offset: Offset) -> RecordBatch:
        """Returns the records with start_offset <= offset < end_offset; views, nothing is copied."""
        first, end = np.searchsorted(self.offsets, [start_offset, end_offset]).tolist()
        return RecordBatch(self.header, self._columns, self._first + first, max(end - first, 0))

    def to_arrow(self) -> pa.RecordBatch:
        """Returns columns key, value (binary), offset (int64), timestamp (ns, UTC); keys and values are views."""
        import pyarrow as pa  # an extra, and slow to import

        arrays = [
            self.arrow_keys(),
            self.arrow_values(),
            pa.array(self.offsets),
            pa.array(self.timestamps).cast(pa.timestamp("ns", "UTC")),
        ]
        return pa.RecordBatch.from_arrays(arrays, names=["key", "value", "offset", "timestamp"])

    def arrow_keys(self) -> Any:
        """Returns the keys as a binary array of Arrow, a view of the body."""
        return self._arrow_bytes(self._columns.keys, self._columns.key_validity)

    def arrow_values(self) -> Any:
        """Returns the values as a binary array of Arrow, a view of the body."""
        return self._arrow_bytes(self._columns.values, self._columns.value_validity)

    def header_spans(self) -> tuple[HeaderSpans, memoryview] | None:
        """Returns the places of the headers of all records, and the data that they lie in; None where they cannot be
        found together (`header_spans`), or no record has any. Then `headers` has them."""
        column = self._columns.headers
        if column is None:
            return None
        spans = header_spans(column, self._first, self._count)
        return None if spans is None else (spans, column.data)

    @property
    def has_headers(self) -> bool:
        """Whether some record of the batch may have headers."""
        return self._columns.headers is not None

    def _list(self, column: BytesColumn | None, validity: memoryview | None) -> list[bytes | None]:
        if column is None:
            return [None] * self._count
        elements: list[bytes | None] = [*column.to_list(self._first, self._count)]
        if validity is not None:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            for index in np.flatnonzero(bits[self._first : self._first + self._count] == 0).tolist():
                elements[index] = None
        return elements

    def _arrow_bytes(self, column: BytesColumn | None, validity: memoryview | None) -> Any:
        import pyarrow as pa

        if column is None:
            return pa.nulls(self._count, pa.binary())
        bitmap, null_count = (None, 0) if validity is None else (pa.py_buffer(validity), -1)
        buffers = [bitmap, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(pa.binary(), self._count, buffers, null_count, self._first)
