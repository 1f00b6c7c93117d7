"""Receipts of producers and records of consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from wire.batch.record_headers import header_items

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import TypeVar

    from wire.batch import RecordBatch

    K = TypeVar("K", default=bytes)
    """Type of a record's key for users: bytes, or the type that their (de)serializer takes and makes."""
    V = TypeVar("V", default=bytes)
    """Type of a record's value for users, like K."""
else:  # Python's own TypeVar has a default from 3.13 on
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Receipt(NamedTuple):
    """The place of a record, once the requested level of acknowledgement is reached."""

    partition: int
    offset: int
    """-1 with acks="none", which asks for no answer; and where it is not known, see `duplicate`."""
    timestamp: int
    """ns since 1970 that the record carries."""
    duplicate: bool = False
    """A record with this `msg_id` existed already: `offset` is its offset, and nothing was written. The offset is -1
    where the first answer was lost, and the leader has forgotten the id before the next attempt: its record was
    deleted, or the window is over. The existing record may then be that of the first attempt."""


class BatchReceipt(NamedTuple):
    """The place of a run of records: offsets base_offset .. base_offset + len(indices) - 1 of one partition, but for
    `duplicates`."""

    partition: int
    base_offset: int
    """-1 with acks="none"."""
    timestamp: int
    """ns since 1970 that the records carry."""
    indices: Sequence[int]
    """Positions in the list given to `send_many`: the value at indices[i] has offset base_offset + i."""
    duplicates: Mapping[int, int] = MappingProxyType({})
    """By position in that list, of the records that were not written because one with their message id exists: its
    offset; -1 as of `Receipt`. Nothing is at their own."""

    @property
    def record_count(self) -> int:
        """The number of records of the run."""
        return len(self.indices)


class Record(NamedTuple, Generic[K, V]):
    """One committed record. Key and value are bytes, or the results of the consumer's deserializers."""

    stream: str
    partition: int
    offset: int
    timestamp: int
    """ns since 1970."""
    key: K | None
    value: V | None
    headers: Mapping[str, bytes]
    """The last value of each name; `header_values` has all of them."""

    def header_values(self, name: str) -> tuple[bytes, ...]:
        """All values of a header in the order of publishing; `headers` has the last one. () where there is none."""
        return tuple(value for other, value in self.header_items if other == name)

    @property
    def header_items(self) -> tuple[tuple[str, bytes], ...]:
        """Every (name, value) of the headers, in the order of publishing."""
        return header_items(self.headers)

    @property
    def time(self) -> datetime:
        """`timestamp` in UTC, cut to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp // 1000)


_RECORD_OF_TUPLE: Callable[[tuple[object, ...]], Record] = partial(tuple.__new__, Record)
"""Makes a Record without the Python code of `Record.__new__`, which takes four times as long."""


class Batch:
    """Committed records of one partition as columns, in offset order. All columns have length `len(batch)`."""

    __slots__ = ("_columns", "partition", "stream")

    def __init__(self, stream: str, partition: int, columns: RecordBatch) -> None:
        self.stream = stream
        self.partition = partition
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns.offsets)

    def __repr__(self) -> str:
        return f"<Batch {self.stream}/{self.partition} {len(self)} records>"

    @property
    def values(self) -> list[bytes | None]:
        """Column [n] of values; None deletes the key in a compacted stream."""
        return self._columns.values

    @property
    def keys(self) -> list[bytes | None]:
        """Column [n] of keys; None: no key."""
        return self._columns.keys

    @property
    def headers(self) -> list[dict[str, bytes]]:
        """Column [n] of headers, each like `Record.headers`."""
        return self._columns.headers

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Column [n] of offsets, growing; with holes where compaction has removed records."""
        return self._columns.offsets

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """Column [n] of timestamps, ns since 1970."""
        return self._columns.timestamps

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.RecordBatch` with columns key, value, offset, timestamp; no copy of keys and values. Needs
        pyarrow.
        """
        return self._columns.to_arrow()

    def records(self) -> Iterator[Record]:
        """Iterates over the same records one by one; keys and values are bytes."""
        return map(
            _RECORD_OF_TUPLE, zip(repeat(self.stream), repeat(self.partition), *self._columns.fields(), strict=False)
        )
