"""Whatever is fetched, taken, paused, read from elsewhere, taken away and given back: each partition hands out its
records in order, once, its position is behind the last of them, nothing comes from behind a limit, and all but what was
handed out last is finished."""

from __future__ import annotations

from itertools import islice

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.subscriptions import check
from tidelog.client.base.read_positions import AtOffset
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.fetched_ahead import Answer
from tidelog.client.consumer.fetcher import PartitionFetcher
from tidelog.client.consumer.subscription_state import (
    AssignedPartition,
    AssignedStream,
    Limit,
    Phase,
    SubscriptionState,
)
from wire.batch import BatchBuilder, RecordBatch
from wire.types import LeaderEpoch, Offset

PARTITIONS = 4
"""The first two are of one stream, the others of another."""
NUMBERS = st.integers(0, PARTITIONS - 1)
EPOCH = LeaderEpoch(1)


def batch(offset: int, count: int) -> RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"%d" % number for number in range(offset, offset + count)])
    parts, _ = builder.build(1).stamp(Offset(offset), EPOCH, append_time=1)
    return RecordBatch.decode(b"".join(parts))


class SubscriptionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.state = SubscriptionState()
        self.streams = [AssignedStream(name, "key") for name in ("s", "t")]
        self.room: list[AssignedPartition] = []
        for stream in self.streams:
            stream.on_room = self.room.append
            self.state.open(stream)
        self.assigned: list[AssignedPartition] = []
        self.left: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        """Offsets of the records that were fetched and not handed out."""
        self.out: tuple[int, int] | None = None
        """Partition and offset of the first record that was handed out last."""
        self.taken: tuple[int, list[int], int] | None = None
        """Partition, offsets and position before, of what was taken last and can be put back."""
        for partition in range(PARTITIONS):
            self.assigned.append(self._assign(partition))
            self._begin(partition, 0)

    def _assign(self, partition: int) -> AssignedPartition:
        stream = self.streams[partition // 2]
        return self.state.assign(stream.of(partition), stream)

    def _begin(self, partition: int, offset: int) -> None:
        self.state.begin(self.assigned[partition], PartitionFetcher("s/0", AtOffset(offset), None, ConsumerConfig()))
        self.left[partition].clear()
        if self.out is not None and self.out[0] == partition:
            self.out = None
        if self.taken is not None and self.taken[0] == partition:
            self.taken = None

    @rule(partition=NUMBERS, sizes=st.lists(st.integers(1, 4), max_size=3), gap=st.integers(0, 2))
    def fetch(self, partition: int, sizes: list[int], gap: int) -> None:
        """`gap`: offsets behind the records that hold none; the answer may hold no record at all."""
        assigned, batches = self.assigned[partition], []
        if not assigned.has_room:
            return
        end = assigned.fetched_to
        for size in sizes:
            batches.append(batch(end, size))
            self.left[partition] += range(end, end + size)
            end += size
        self.state.add(assigned, Answer(tuple(batches), end + gap))
        assert assigned.fetched_to == end + gap

    def _handed_out(self, assigned: AssignedPartition, offsets: list[int]) -> None:
        partition = assigned.number
        assert not assigned.is_paused
        assert assigned.phase is Phase.READING
        assert offsets
        assert assigned.limit is None or offsets[-1] < assigned.limit.offset
        assert offsets == self.left[partition][: len(offsets)]
        del self.left[partition][: len(offsets)]
        self.out = partition, offsets[0]
        end = self.left[partition][0] if self.left[partition] else assigned.fetched_to
        position = assigned.position
        assert position is not None
        assert offsets[-1] < position <= end, "gaps behind the record may be passed over already"

    def _open(self, assigned: AssignedPartition) -> int:
        """Records that may be handed out."""
        limit = 1 << 62 if assigned.limit is None else assigned.limit.offset
        return sum(offset < limit for offset in self.left[assigned.number])

    @rule(partition=NUMBERS, behind=st.integers(0, 6))
    def limit(self, partition: int, behind: int) -> None:
        """At a cutover behind all that was fetched."""
        assigned = self.assigned[partition]
        assigned.cutovers = (assigned.fetched_to + behind,)
        self.state._note_cutovers(assigned)
        self.state._set_limit(self.streams[partition // 2], assigned, Limit(assigned.cutovers[0], {}))

    @rule(partition=NUMBERS)
    def lift(self, partition: int) -> None:
        self.state._set_limit(self.streams[partition // 2], self.assigned[partition], None)

    @rule(count=st.integers(1, 9))
    def take_records(self, count: int) -> None:
        self.out = self.taken = None
        assigned = self.state.next()
        if assigned is None:
            return
        left, position = self._open(assigned), assigned.position
        assert position is not None
        records = self.state.take(assigned, count)
        assert len(records) == min(count, left), "those that are here"
        assert [record.value for record in records] == [b"%d" % record.offset for record in records]
        self._handed_out(assigned, [record.offset for record in records])
        self.taken = assigned.number, [record.offset for record in records], position

    @rule(count=st.integers(1, 5))
    def iterate(self, count: int) -> None:
        """One by one: each finishes the one before."""
        self.out = self.taken = None
        assigned = self.state.next()
        if assigned is None:
            return
        for record in islice(assigned.records(), count):
            assigned.last = record
            self._handed_out(assigned, [record.offset])
            assert assigned.finished == record.offset
            assert self.state.in_hand is assigned

    @rule(count=st.integers(1, 5))
    def iterate_and_tear(self, count: int) -> None:
        """The iterator has gone on, and its record did not come to the program."""
        self.out = self.taken = None
        assigned = self.state.next()
        if assigned is None:
            return
        for number, record in enumerate(assigned.records(), 1):
            if number == count:
                self.state.is_torn = True
                return
            assigned.last = record
            self._handed_out(assigned, [record.offset])

    @rule()
    def finish(self) -> None:
        assert self.state.finish() is None
        self.out = self.taken = None

    @rule()
    def take_batch(self) -> None:
        self.out = self.taken = None
        assigned = self.state.next()
        if assigned is None:
            return
        position = assigned.position
        offsets = self.state.take_batch(assigned).offsets.tolist()
        assert position is not None
        assert position <= offsets[0]
        self._handed_out(assigned, offsets)
        self.taken = assigned.number, offsets, position

    @rule()
    def put_back(self) -> None:
        """What was taken did not come to the program."""
        self.state.put_back()
        if self.taken is None:
            return
        partition, offsets, position = self.taken
        self.left[partition][:0] = offsets
        self.out = self.taken = None
        assert self.assigned[partition].position == position

    @rule(partition=NUMBERS, offset=st.integers(0, 100))
    def seek(self, partition: int, offset: int) -> None:
        self.lift(partition)
        self._begin(partition, offset)

    @rule(partition=NUMBERS, puts_back=st.booleans())
    def give_up(self, partition: int, puts_back: bool) -> None:
        """It goes, at once or after the program's next call, and comes back as another record."""
        assigned = self.assigned[partition]
        has_records = self.out is not None and self.out[0] == partition
        finished = assigned.finished
        now = self.state.revoke([assigned.of])
        assert now == ([] if has_records else [assigned])
        if has_records:
            assert assigned.phase is Phase.REVOKED
            assert self.state.is_changed, "an iteration ends, and the program calls again"
            if puts_back and self.taken is not None:
                self.state.put_back()
                finished = self.taken[2]
            else:
                finished = assigned.position
            assert self.state.finish() is assigned
            self.out = self.taken = None
        self.state.leave(assigned)
        assert (assigned.finished, assigned.has_records) == (finished, False)
        self._lose(partition)

    @rule(partition=NUMBERS)
    def lose(self, partition: int) -> None:
        self._lose(partition)

    def _lose(self, partition: int) -> None:
        before = self.assigned[partition]
        self.state.drop(before)
        assert before.phase is Phase.DROPPED
        assert before.of not in self.state.positions
        assert before not in self.state.streams[0].limited | self.state.streams[1].limited
        self.state.add(before, Answer((batch(before.fetched_to, 1),), before.fetched_to + 1))  # comes too late
        self.assigned[partition] = self._assign(partition)
        assert self.assigned[partition].phase is Phase.BEGINNING
        assert not self.assigned[partition].is_paused
        self._begin(partition, 7)

    @rule(partition=NUMBERS, is_paused=st.booleans())
    def pause(self, partition: int, is_paused: bool) -> None:
        self.state.pause([self.assigned[partition]], is_paused=is_paused)

    @precondition(lambda self: not any(assigned.is_paused for assigned in self.assigned))
    @rule()
    def take_all(self) -> None:
        while (assigned := self.state.next()) is not None:
            self._handed_out(assigned, self.state.take_batch(assigned).offsets.tolist())
        self.out = self.taken = None
        for assigned in self.assigned:
            end = assigned.fetched_to
            limit = end if assigned.limit is None else min(end, assigned.limit.offset)
            assert assigned.position == limit, "gaps in front of a limit were passed over"

    @invariant()
    def nothing_is_left_out(self) -> None:
        assert self.state.has_records == any(self.left.values())
        assert self.state.positions.keys() == {assigned.of for assigned in self.assigned}
        for assigned in self.assigned:
            finished, position = assigned.finished, assigned.position
            assert finished is not None
            assert position is not None
            assert finished <= position <= min(self.left[assigned.number], default=assigned.fetched_to)
            assert finished == (self.out[1] if self.out is not None and self.out[0] == assigned.number else position)
        check(self.state)


TestSubscriptionState = SubscriptionMachine.TestCase
