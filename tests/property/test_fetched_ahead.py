"""Whatever is fetched, taken, paused and read from elsewhere: each partition hands out its records in order, once, and
its position is behind the last of them."""

from __future__ import annotations

from itertools import islice

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.client.fetched_ahead import Answer, FetchedAhead
from wire.batch import BatchBuilder, RecordBatch
from wire.types import LeaderEpoch, Offset

PARTITIONS = 3
NUMBERS = st.integers(0, PARTITIONS - 1)
EPOCH = LeaderEpoch(1)


def batch(offset: int, count: int) -> RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"%d" % number for number in range(offset, offset + count)])
    parts, _ = builder.build(1).stamp(Offset(offset), EPOCH, append_time=1)
    return RecordBatch.decode(b"".join(parts))


class FetchedAheadMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.begun: list[int] = []
        self.ahead = FetchedAhead("s", self.begun.append)
        self.fetched = dict.fromkeys(range(PARTITIONS), 0)
        self.left: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        """Offsets of the records that were fetched and not handed out."""
        self.waiting = dict.fromkeys(range(PARTITIONS), 0)
        """Answers added, and not begun or dropped."""
        for partition in range(PARTITIONS):
            self.ahead.begin(partition, 0)

    @rule(partition=NUMBERS, sizes=st.lists(st.integers(1, 4), max_size=3), gap=st.integers(0, 2))
    def fetch(self, partition: int, sizes: list[int], gap: int) -> None:
        """`gap`: offsets behind the records that hold none; the answer may hold no record at all."""
        batches = []
        for size in sizes:
            first = self.fetched[partition]
            batches.append(batch(first, size))
            self.fetched[partition] += size
            self.left[partition] += range(first, first + size)
        self.fetched[partition] += gap
        self.waiting[partition] += 1
        self.ahead.add(partition, Answer(tuple(batches), self.fetched[partition]))

    def _handed_out(self, partition: int, offsets: list[int]) -> None:
        assert partition not in self.ahead.paused
        assert offsets
        assert offsets == self.left[partition][: len(offsets)]
        del self.left[partition][: len(offsets)]
        assert self.ahead.positions[partition] == offsets[-1] + 1

    @rule(count=st.integers(1, 5))
    def take_records(self, count: int) -> None:
        head = self.ahead.head()
        if head is None:
            return
        records = list(islice(head.records(), count))
        self.ahead.last = records[-1]
        assert [record.value for record in records] == [b"%d" % record.offset for record in records]
        self._handed_out(head.partition, [record.offset for record in records])

    @rule()
    def take_batch(self) -> None:
        found = self.ahead.take_batch()
        if found is not None:
            self._handed_out(found.partition, found.offsets.tolist())

    @rule(partition=NUMBERS, offset=st.integers(0, 100))
    def seek(self, partition: int, offset: int) -> None:
        self.ahead.begin(partition, offset)
        self.fetched[partition] = offset
        self.left[partition].clear()
        assert self.begun.count(partition) == self.waiting[partition], "there is room for all that was dropped"

    @rule(partition=NUMBERS)
    def pause(self, partition: int) -> None:
        self.ahead.pause([partition])

    @rule(partition=NUMBERS)
    def resume(self, partition: int) -> None:
        self.ahead.resume([partition])

    @precondition(lambda self: not self.ahead.paused)
    @rule()
    def take_all(self) -> None:
        while (found := self.ahead.take_batch()) is not None:
            self._handed_out(found.partition, found.offsets.tolist())
        assert self.ahead.positions == self.fetched

    @invariant()
    def nothing_is_left_out(self) -> None:
        assert self.ahead.is_empty == (not any(self.left.values()))
        for partition, position in self.ahead.positions.items():
            assert position <= min(self.left[partition], default=self.fetched[partition])
            assert self.begun.count(partition) <= self.waiting[partition]


TestFetchedAhead = FetchedAheadMachine.TestCase
