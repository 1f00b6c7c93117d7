"""Answers of one partition that were fetched ahead of the program.

An answer is a few batches and the offset behind them. Where a layout of the stream ends inside of it, it is divided at
that cutover (`wire.layouts`), so that a reader can stop there. Records leave one by one or as whole batches, in any
mixture. Pure; `AssignedPartition` keeps a partition's answers in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidelog.client.base.records import Batch, Record
from wire.batch import RecordBatch
from wire.types import Offset

Read: TypeAlias = Callable[[Iterator[Record]], Iterator[Record[Any, Any]]]
"""Makes the records that users see of those with bytes. A record that it refuses does not count as handed out: the
iterator comes back to that record."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one step of reading a partition."""

    batches: tuple[RecordBatch, ...]
    """Empty when the position moved past offsets that hold no record to hand out."""
    end: int
    """The next offset to hand out after these batches."""
    missed: int = 0
    """Records before them that retention had removed before they were read."""


class FetchedAnswer:
    """An answer, or a part of one, whose first batch may have been handed out in part."""

    __slots__ = ("_batches", "_begun", "_is_first", "_read", "_records", "end", "first", "partition", "stream")

    def __init__(
        self, stream: str, partition: int, first: int, answer: Answer, read: Read, *, is_first: bool = True
    ) -> None:
        """`is_first`: no other part of the same answer comes before it."""
        self.stream = stream
        self.partition = partition
        self.first = first
        """The offset at which the answer begins, with or without a record there."""
        self.end = answer.end
        """Exclusive."""
        self._batches = deque(answer.batches)
        self._read = read
        self._records: Iterator[Record[Any, Any]] | None = None
        self._begun = False
        self._is_first = is_first

    def begin(self) -> bool:
        """Notes that records of it are handed out. Returns whether that makes room for another answer."""
        took, self._begun = self.takes_room, True
        return took

    @property
    def takes_room(self) -> bool:
        """Whether the answer counts as one that waits to be taken: nothing of it was handed out yet."""
        return self._is_first and not self._begun

    def has_more(self, last: Record[Any, Any] | None) -> bool:
        """Whether a record is left. `last`: the newest record that was handed out singly, if it is of this answer."""
        if len(self._batches) != 1 or last is None:
            return bool(self._batches)
        return last.offset < int(self._batches[0].offsets[-1])

    def divided(self, cutovers: Sequence[int]) -> list[FetchedAnswer]:
        """Returns its parts between these offsets, which ascend. An answer of which records were handed out stays
        whole."""
        parts = [self]
        for cutover in cutovers:
            parts[-1:] = parts[-1]._divided_at(cutover)
        return parts

    def _divided_at(self, at: int) -> list[FetchedAnswer]:
        if self._begun or not self.first < at < self.end:
            return [self]
        below, rest = [], []
        for batch in self._batches:
            first, end = int(batch.offsets[0]), int(batch.offsets[-1]) + 1
            if end <= at:
                below.append(batch)
            elif first >= at:
                rest.append(batch)
            else:
                below.append(batch.slice(Offset(first), Offset(at)))
                rest.append(batch.slice(Offset(at), Offset(end)))
        one, two = Answer(tuple(below), at), Answer(tuple(rest), self.end)
        return [
            FetchedAnswer(self.stream, self.partition, self.first, one, self._read, is_first=self._is_first),
            FetchedAnswer(self.stream, self.partition, at, two, self._read, is_first=False),
        ]

    def records(self) -> Iterator[Record[Any, Any]]:
        """The records that are left of the first batch. It is one iterator, which goes on where it was left."""
        if self._records is None:
            self._records = self._read(Batch(self.stream, self.partition, self._batches[0]).records())
        return self._records

    def handed_out(self, record: Record[Any, Any]) -> None:
        """The iterator's records up to `record` have come to the program."""
        if record.offset >= int(self._batches[0].offsets[-1]):
            self._batches.popleft()
            self._records = None

    @property
    def batch(self) -> RecordBatch:
        """The first batch that is left."""
        return self._batches[0]

    def rewind(self, position: int) -> None:
        """Makes the record at `position` the next one, wherever the iterator is."""
        if self._records is not None:
            batch = self._batches[0]
            self._batches[0] = batch.slice(Offset(position), Offset(int(batch.offsets[-1]) + 1))
            self._records = None

    def take_batch(self, position: int) -> Batch:
        """Removes the first batch, and returns its records from `position` on."""
        columns = self._batches.popleft()
        if self._records is not None:
            columns = columns.slice(Offset(position), Offset(int(columns.offsets[-1]) + 1))
            self._records = None
        return Batch(self.stream, self.partition, columns)
