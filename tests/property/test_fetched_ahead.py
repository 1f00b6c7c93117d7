"""Whatever is fetched, taken, paused, read from elsewhere and given up: each partition hands out its records in order,
once, its position is behind the last of them, nothing comes from behind a limit, and all but what was handed out last
is finished."""

from __future__ import annotations

from itertools import islice

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidelog.client.consumer.fetched_ahead import Answer, FetchedAhead
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
        self.limits: dict[int, int] = {}
        self.out: tuple[int, int] | None = None
        """Partition and offset of the first record that was handed out last."""
        self.taken: tuple[int, list[int], int] | None = None
        """Partition, offsets and position before, of what was taken last and can be put back."""
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
        assert partition not in self.limits or offsets[-1] < self.limits[partition]
        assert offsets == self.left[partition][: len(offsets)]
        del self.left[partition][: len(offsets)]
        self.out = partition, offsets[0]
        end = self.left[partition][0] if self.left[partition] else self.fetched[partition]
        assert offsets[-1] < self.ahead.positions[partition] <= end, "gaps behind the record may be left out already"

    def _open(self, partition: int) -> int:
        """Records that may be handed out."""
        limit = self.limits.get(partition, 1 << 62)
        return sum(offset < limit for offset in self.left[partition])

    @rule(partition=NUMBERS, behind=st.integers(0, 6))
    def limit(self, partition: int, behind: int) -> None:
        """At a cutover behind all that was fetched."""
        self.limits[partition] = self.fetched[partition] + behind
        self.ahead.divide(partition, [self.limits[partition]])
        self.ahead.limit(self.limits)

    @rule(partition=NUMBERS)
    def lift(self, partition: int) -> None:
        self.limits.pop(partition, None)
        self.ahead.limit(self.limits)

    @rule(count=st.integers(1, 9))
    def take_records(self, count: int) -> None:
        self.out = self.taken = None
        head = self.ahead.head()
        if head is None:
            return
        left, position = self._open(head.partition), self.ahead.positions[head.partition]
        records = self.ahead.take(head, count)
        assert len(records) == min(count, left), "those that are here"
        assert [record.value for record in records] == [b"%d" % record.offset for record in records]
        self._handed_out(head.partition, [record.offset for record in records])
        self.taken = head.partition, [record.offset for record in records], position

    @rule(count=st.integers(1, 5))
    def iterate(self, count: int) -> None:
        """One by one: each finishes the one before."""
        self.out = self.taken = None
        head = self.ahead.head()
        if head is None:
            return
        for record in islice(head.records(), count):
            self.ahead.last = record
            self._handed_out(head.partition, [record.offset])
            assert self.ahead.finished[head.partition] == record.offset

    @rule(count=st.integers(1, 5))
    def iterate_and_tear(self, count: int) -> None:
        """The iterator has gone on, and its record did not come to the caller."""
        self.out = self.taken = None
        head = self.ahead.head()
        if head is None:
            return
        for number, record in enumerate(head.records(), 1):
            if number == count:
                self.ahead.is_torn = True
                return
            self.ahead.last = record
            self._handed_out(head.partition, [record.offset])

    @rule()
    def finish(self) -> None:
        self.ahead.finish()
        self.out = self.taken = None

    @rule()
    def take_batch(self) -> None:
        self.out = self.taken = None
        positions = self.ahead.positions
        found = self.ahead.take_batch()
        if found is not None:
            self._handed_out(found.partition, found.offsets.tolist())
            self.taken = found.partition, found.offsets.tolist(), self.ahead._back.position  # type: ignore[union-attr]
            assert positions[found.partition] <= self.taken[2] <= self.taken[1][0]

    @rule()
    def put_back(self) -> None:
        """What was taken did not come to the caller."""
        self.ahead.put_back()
        if self.taken is None:
            return
        partition, offsets, position = self.taken
        self.left[partition][:0] = offsets
        self.out = self.taken = None
        assert self.ahead.positions[partition] == position

    @rule(partition=NUMBERS, offset=st.integers(0, 100))
    def seek(self, partition: int, offset: int) -> None:
        self.lift(partition)
        self.ahead.begin(partition, offset)
        self.fetched[partition] = offset
        self.left[partition].clear()
        if self.out is not None and self.out[0] == partition:
            self.out = None
        if self.taken is not None and self.taken[0] == partition:
            self.taken = None
        assert self.begun.count(partition) == self.waiting[partition], "there is room for all that was dropped"

    @rule(partition=NUMBERS)
    def withhold(self, partition: int) -> None:
        """What was handed out stays handed out. It is read on from there, which it is not as a rule."""
        self.lift(partition)
        position = self.ahead.positions[partition]
        self.ahead.withhold(partition)
        assert self.ahead.positions[partition] == position
        self.fetched[partition] = position
        self.left[partition].clear()
        if self.taken is not None and self.taken[0] == partition:
            # Nothing more of it is handed out; its position is what is committed.
            taken, out, self.taken = self.taken, self.out, None
            self.ahead.put_back()
            assert self.ahead.positions[partition] == taken[2]
            assert out is not None
            self.ahead.begin(partition, position)
            self.out = None

    @rule(partition=NUMBERS)
    def forget(self, partition: int) -> None:
        self.ahead.forget(partition)
        assert partition not in self.ahead.positions
        assert partition not in self.ahead.finished
        assert partition not in self.ahead.paused
        self.seek(partition, 7)

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
        self.out = self.taken = None
        ends = {p: min(end, self.limits.get(p, end)) for p, end in self.fetched.items()}
        assert self.ahead.positions == ends, "gaps in front of a limit were passed over"

    @invariant()
    def nothing_is_left_out(self) -> None:
        assert self.ahead.is_empty == (not any(self.left.values()))
        for partition, position in self.ahead.positions.items():
            assert position <= min(self.left[partition], default=self.fetched[partition])
            assert self.begun.count(partition) <= self.waiting[partition]
        assert self.ahead.finished == self.ahead.positions | dict([self.out] if self.out is not None else [])


TestFetchedAhead = FetchedAheadMachine.TestCase
