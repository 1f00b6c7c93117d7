"""Answers of a consumer's partitions that are fetched and not handed out yet, and the positions that this makes.

Answers are handed out in order of arrival: each partition keeps its order, and none waits for another. Those of a
paused partition are passed over until it is resumed, and those that begin at or behind the limit of a partition until
it is lifted. Limits are cutovers (`wire.layouts`), at which answers are divided. What was handed out counts as finished
when more is asked for; until then it can be put back, where it did not come to the caller.
Pure; records leave one by one or as whole batches, in any mixture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from tidelog.client.base.exceptions import DeserializationFailed
from tidelog.client.base.records import Batch, Record
from wire.batch import RecordBatch
from wire.types import Offset

Read: TypeAlias = Callable[[Iterator[Record]], Iterator[Record[Any, Any]]]
"""Makes the records that users see of those with bytes. What it makes of a record that it refuses is not counted as
handed out: the iterator comes back to that record."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of one step of reading a partition."""

    batches: tuple[RecordBatch, ...]
    """Empty when the position moved past offsets that hold no record to hand out."""
    end: int
    """The next offset to hand out after these batches."""


class Head:
    """The answer that is being handed out. Its first batch may have been handed out in part."""

    __slots__ = ("_batches", "_begun", "_is_first", "_read", "_records", "end", "first", "partition", "stream")

    def __init__(
        self, stream: str, partition: int, first: int, answer: Answer, read: Read, *, is_first: bool = True
    ) -> None:
        """`is_first`: no other part of that answer comes before it."""
        self.stream = stream
        self.partition = partition
        self.first = first
        """The offset at which the answer begins, with or without a record there."""
        self.end = answer.end
        self._batches = deque(answer.batches)
        self._read = read
        self._records: Iterator[Record[Any, Any]] | None = None
        self._begun = False
        self._is_first = is_first

    def begin(self) -> bool:
        """Whether it had taken up room until now, and does so no more."""
        took, self._begun = self.takes_room, True
        return took

    @property
    def takes_room(self) -> bool:
        """It is a whole answer, or the first part of one, and is not handed out from yet."""
        return self._is_first and not self._begun

    def has_more(self, last: Record[Any, Any] | None) -> bool:
        """Whether a record is left; `last`: the newest that was handed out singly, if it is of this answer's."""
        if len(self._batches) != 1 or last is None:
            return bool(self._batches)
        return last.offset < int(self._batches[0].offsets[-1])

    def divided(self, at: int) -> tuple[Head, Head] | None:
        """What is below that offset, and the rest; None: it does not lie inside, or records were handed out already."""
        if self._begun or not self.first < at < self.end:
            return None
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
        return (
            Head(self.stream, self.partition, self.first, one, self._read, is_first=self._is_first),
            Head(self.stream, self.partition, at, two, self._read, is_first=False),
        )

    def records(self) -> Iterator[Record[Any, Any]]:
        """The records that are left of the first batch: one iterator, which goes on where it was left."""
        if self._records is None:
            self._records = self._read(Batch(self.stream, self.partition, self._batches[0]).records())
        return self._records

    def handed_out(self, record: Record[Any, Any]) -> None:
        """`record` was the newest of the iterator's."""
        if record.offset >= int(self._batches[0].offsets[-1]):
            self._batches.popleft()
            self._records = None

    @property
    def batch(self) -> RecordBatch:
        """The one that is handed out from."""
        return self._batches[0]

    def rewind(self, position: int) -> None:
        """The next record is the one at `position`, wherever the iterator is."""
        if self._records is not None:
            batch = self._batches[0]
            self._batches[0] = batch.slice(Offset(position), Offset(int(batch.offsets[-1]) + 1))
            self._records = None

    def take_batch(self, position: int) -> Batch:
        """What is left of the first batch, from `position` on."""
        columns = self._batches.popleft()
        if self._records is not None:
            columns = columns.slice(Offset(position), Offset(int(columns.offsets[-1]) + 1))
            self._records = None
        return Batch(self.stream, self.partition, columns)


@dataclass(slots=True)
class _Out:
    """What was handed out since `head`, but for single records."""

    partition: int
    position: int
    """Before it."""
    batches: list[RecordBatch]
    """In which it is; none where the partition is read no more."""


class FetchedAhead:
    """See the module. `on_begun` is called with a partition when one of its answers begins to be handed out, or is
    dropped: there is room for another."""

    def __init__(self, stream: str, on_begun: Callable[[int], object], read: Read = iter) -> None:
        self._stream = stream
        self._read = read
        self._on_begun = on_begun
        self._ready: deque[Head] = deque()
        self._head: Head | None = None
        self._positions: dict[int, int] = {}
        """Without what `last` says of its partition."""
        self.paused: frozenset[int] = frozenset()
        self.last: Record[Any, Any] | None = None
        """The newest record that was handed out singly since `head`."""
        self._out: tuple[int, int] | None = None
        """Partition and offset of the oldest record that was handed out since `head`, where it is not `last`."""
        self._back: _Out | None = None
        """Can be put back."""
        self.is_torn = False
        """An iteration has ended by an exception: the iterator of its head may be ahead of `last`."""
        self.is_changed = False
        """Since `head`, partitions were paused, resumed, or read from elsewhere: ask for the head again."""
        self._fetched: dict[int, int] = {}
        """By partition, where the next answer begins."""
        self._cutovers: dict[int, tuple[int, ...]] = {}
        """By partition, ascending."""
        self._limits: Mapping[int, int] = {}
        self._gaps: dict[int, tuple[int, int]] = {}
        """By partition, the newest range without a record to hand out that was passed over."""
        self.has_moved = True
        """A position has come to the end of an answer, or elsewhere; whoever looks at it resets it."""

    @property
    def positions(self) -> dict[int, int]:
        positions = dict(self._positions)
        if self.last is not None and self.last.partition in positions:
            positions[self.last.partition] = self.last.offset + 1
        return positions

    def position(self, partition: int) -> int | None:
        """As `positions`, of one partition; None: it is not read."""
        last = self.last
        if last is not None and last.partition == partition and partition in self._positions:
            return last.offset + 1
        return self._positions.get(partition)

    @property
    def unfinished(self) -> tuple[int, int] | None:
        """Partition and offset of the oldest record that was handed out and is not finished."""
        if self._out is not None or self.last is None:
            return self._out
        return self.last.partition, self.last.offset

    @property
    def finished(self) -> dict[int, int]:
        """As `positions`, of what is finished."""
        positions = self.positions
        if (unfinished := self.unfinished) is not None and unfinished[0] in positions:
            positions[unfinished[0]] = unfinished[1]
        return positions

    @property
    def is_empty(self) -> bool:
        """No record is left, also of paused partitions."""
        return not any(answer.has_more(self.last if answer is self._head else None) for answer in self._ready)

    def begin(self, partition: int, position: int) -> None:
        """The partition is read from `position` on. What was fetched elsewhere in it is dropped."""
        self.withhold(partition)
        self._forget_unfinished(partition)
        self._positions[partition] = self._fetched[partition] = position
        self._gaps.pop(partition, None)

    def withhold(self, partition: int) -> None:
        """Drop what was fetched of the partition. Its position is known until `forget`."""
        self._settle()
        if self._back is not None and self._back.partition == partition:
            self._back.batches.clear()
        for answer in [answer for answer in self._ready if answer.partition == partition]:
            self._ready.remove(answer)
            if answer.takes_room:
                self._on_begun(partition)
        if partition in self._positions:
            self._fetched[partition] = self._positions[partition]
        self.is_changed = True

    def forget(self, partition: int) -> None:
        """The partition is not read any more."""
        self.withhold(partition)
        self._forget_unfinished(partition)
        for known in (self._positions, self._fetched, self._cutovers, self._gaps):
            known.pop(partition, None)
        self.paused -= {partition}

    def add(self, partition: int, answer: Answer) -> None:
        head = Head(self._stream, partition, self._fetched[partition], answer, self._read)
        self._fetched[partition] = answer.end
        self._ready.extend(_divided(head, self._cutovers.get(partition, ())))

    def fetched_to(self, partition: int) -> int:
        """Where the next answer begins."""
        return self._fetched[partition]

    def divide(self, partition: int, cutovers: Sequence[int]) -> None:
        """Answers of the partition, also those that are here, are handed out in parts at these offsets."""
        if self._cutovers.get(partition, ()) == tuple(cutovers):
            return
        self._cutovers[partition] = tuple(cutovers)
        ready: deque[Head] = deque()
        for head in self._ready:
            ready.extend(_divided(head, cutovers) if head.partition == partition else (head,))
        self._ready = ready

    def limit(self, limits: Mapping[int, int]) -> None:
        """Hand out nothing of these partitions from those offsets on, which are cutovers, or where reading begins."""
        if limits != self._limits:
            self._limits = dict(limits)
            self.is_changed = True

    def gap(self, partition: int) -> tuple[int, int] | None:
        """The newest range of offsets without a record that the position has passed over."""
        return self._gaps.get(partition)

    def pause(self, partitions: Iterable[int]) -> None:
        self.paused |= frozenset(partitions)
        self.is_changed = True

    def resume(self, partitions: Iterable[int]) -> None:
        self.paused -= frozenset(partitions)
        self.is_changed = True

    def clear(self) -> None:
        self._settle()
        self._ready.clear()
        if self._back is not None:
            self._back.batches.clear()

    def head(self) -> Head | None:
        """The answer to hand out from, with a batch left; None: there is none. Whoever asks has handed out what was
        taken before."""
        self.finish()
        self.is_changed = False
        if self.is_torn:
            self.is_torn = False
            if self._head is not None and self._head in self._ready:
                self._head.rewind(self._positions[self._head.partition])
        return self._next(None)

    def take(self, head: Head, most: int) -> list[Record[Any, Any]]:
        """The next records of that head's partition, which are handed out together: `most`, or as many as are here.
        Raises DeserializationFailed for the first one; one of the others is the first one the next time."""
        records: list[Record[Any, Any]] = []
        found: Head | None = head
        back = self._back = _Out(head.partition, self._positions[head.partition], [])
        while found is not None:
            back.batches.append(found.batch)
            try:
                records.extend(islice(found.records(), most - len(records)))
            except DeserializationFailed:
                if not records:
                    raise
                most = 0
            self.last = records[-1]
            if len(records) >= most:
                break
            self._settle()
            found = self._next(head.partition)
        self._out = records[0].partition, records[0].offset
        return records

    def take_batch(self) -> Batch | None:
        """What is left of the next batch; it counts as handed out."""
        head = self.head()
        if head is None:
            return None
        position = self._positions[head.partition]
        self._back = _Out(head.partition, position, [head.batch])
        batch = head.take_batch(position)
        self._positions[batch.partition] = int(batch.offsets[-1]) + 1
        self._out = batch.partition, int(batch.offsets[0])
        return batch

    def finish(self) -> None:
        """All that was handed out is finished."""
        self._settle()
        self._out = self._back = None

    def put_back(self) -> None:
        """What was taken since `head` did not come to the caller: it is handed out again, and the position is in front
        of it."""
        back, self._back = self._back, None
        if back is None:
            return
        self._settle()
        self._out = None
        end = self._positions[back.partition]
        self._positions[back.partition] = back.position
        batches = [batch.slice(Offset(back.position), Offset(end)) for batch in back.batches]
        answer = Answer(tuple(batch for batch in batches if len(batch.offsets)), end)
        if answer.batches:
            head = Head(self._stream, back.partition, back.position, answer, self._read, is_first=False)
            self._ready.extendleft(reversed(_divided(head, self._cutovers.get(back.partition, ()))))
        self.is_changed = True

    def _settle(self) -> None:
        unfinished = self.unfinished
        last, self.last = self.last, None
        if last is not None and self._head is not None and last.partition in self._positions:
            self._positions[last.partition] = last.offset + 1
            self._head.handed_out(last)
            self._out = unfinished

    def _next(self, of: int | None) -> Head | None:
        """The oldest answer with a batch left, of that partition (None: of any) unless it is paused."""
        for _ in range(len(self._ready)):
            answer = next(
                (
                    ready
                    for ready in self._ready
                    if ready.partition not in self.paused
                    and (of is None or ready.partition == of)
                    and not (ready.partition in self._limits and ready.first >= self._limits[ready.partition])
                ),
                None,
            )
            if answer is None:
                return None
            if answer.begin():
                self._on_begun(answer.partition)
            if answer.has_more(None):
                self._head = answer
                return answer
            self._pass_over(answer.partition, answer.end)
            self._ready.remove(answer)
        return None

    def _pass_over(self, partition: int, end: int) -> None:
        """Nothing is left of an answer that ends there."""
        position = self._positions[partition]
        if position < end:
            first, before = self._gaps.get(partition, (position, position))
            self._gaps[partition] = (first if before == position else position), end
            self._positions[partition] = end
        self.has_moved = True

    def _forget_unfinished(self, partition: int) -> None:
        if self._out is not None and self._out[0] == partition:
            self._out = None
        if self._back is not None and self._back.partition == partition:
            self._back = None


def _divided(head: Head, cutovers: Sequence[int]) -> list[Head]:
    parts = [head]
    for cutover in cutovers:
        two = parts[-1].divided(cutover)
        if two is not None:
            parts[-1:] = two
    return parts
