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
    """What a record's key is to users: bytes, or what their (de)serializer takes and makes."""
    V = TypeVar("V", default=bytes)
    """The same for its value."""
else:  # Python's own have a default from 3.13 on
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Receipt(NamedTuple):
    """Where a record lies, once the level of acknowledgement asked for is reached."""

    partition: int
    offset: int
    """-1 with acks="none": no answer was asked for; and where it is not known, see `duplicate`."""
    timestamp: int
    """ns since 1970 that the record carries."""
    duplicate: bool = False
    """A record with this `msg_id` was there already: `offset` is its offset, and nothing was written. The offset is -1
    where the first answer was lost, and the leader has forgotten the id before the next attempt: its record was
    deleted, or the window is over. What was there may then be what the first attempt wrote."""


class BatchReceipt(NamedTuple):
    """Where a run of records lies: offsets base_offset .. base_offset + len(indices) - 1 of one partition, but for
    `duplicates`."""

    partition: int
    base_offset: int
    """-1 with acks="none"."""
    timestamp: int
    """ns since 1970 that the records carry."""
    indices: Sequence[int]
    """Positions in the list given to `send_many`: the value at indices[i] has offset base_offset + i."""
    duplicates: Mapping[int, int] = MappingProxyType({})
    """By position in that list, of the records that were not written because one with their message id is there: its
    offset; -1 as of `Receipt`. Nothing is at their own."""

    @property
    def record_count(self) -> int:
        """Records of the run."""
        return len(self.indices)


class Record(NamedTuple, Generic[K, V]):
    """One committed record. Key and value are bytes, or what the consumer's deserializers made of them."""

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
"""Without the Python code of `Record.__new__`, which takes four times as long."""


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
        """[n]; None deletes the key in a compacted stream."""
        return self._columns.values

    @property
    def keys(self) -> list[bytes | None]:
        """[n]; None: no key."""
        return self._columns.keys

    @property
    def headers(self) -> list[dict[str, bytes]]:
        """[n], each as `Record.headers`."""
        return self._columns.headers

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """[n], growing; with holes where compaction has removed records."""
        return self._columns.offsets

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """[n], ns since 1970."""
        return self._columns.timestamps

    def to_arrow(self) -> Any:
        """A `pyarrow.RecordBatch` with columns key, value, offset, timestamp; no copy of keys and values. Needs
        pyarrow.
        """
        return self._columns.to_arrow()

    def records(self) -> Iterator[Record]:
        """The same records one by one; keys and values are bytes."""
        return map(
            _RECORD_OF_TUPLE, zip(repeat(self.stream), repeat(self.partition), *self._columns.fields(), strict=False)
        )
