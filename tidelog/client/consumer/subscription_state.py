"""The partitions that a consumer reads: one record for each, from its assignment until it is gone.

The idea is that of aiokafka's `subscription_state.py`. A plain consumer, a member of a group and the ports that stand
on them have one `SubscriptionState`. It is pure: drivers (`StreamReading`, `GroupPartitions`) fetch, look offsets up,
call the program's functions and commit, and report the outcome here.

    assign ──> BEGINNING ── begin(position) ──> READING ── revoke ──> LEAVING ── drop ──> DROPPED
                                                   └── revoke, with records in hand ──> REVOKED ── finish, leave ──┘

    BEGINNING   where the partition begins is being looked up
    READING     answers are fetched ahead, and their records are handed out in order
    REVOKED     the group takes it away, and the program works on records of it: its next call finishes them
    LEAVING     nothing more is handed out; on_revoked is called, and what is finished is committed
    DROPPED     the state has it no more. If it is assigned again, that is another record: code that waits keeps the
                record, and sees by its phase that the partition has gone meanwhile

A partition may be dropped in each phase. `assign` and `drop` are the only places where one comes and goes.

Positions of a partition that is read:

    gap ...... | handed out, finished | handed out, in hand | fetched ahead      | not fetched
                                      ^ finished            ^ position           ^ fetched_to

- `finished <= position <= fetched_to`. They move forward only, but for `begin` (seek) and `put_back`.
- Records are in hand of one partition at a time. What was handed out counts as finished when more is asked for
  (`next`, `finish`); until then it can be put back, if it did not come to the program.
- The partitions of a stream take turns, an answer each, and so do streams. One that is paused, or whose next answer
  begins at its limit, is passed over and keeps what was fetched.
- A limit (`AssignedPartition.limit`) is a cutover at which the partition has to wait until others were read further;
  `KeyOrder` says which. Answers are divided at cutovers, so that no record behind a limit is handed out.
- An answer takes room until its first record is handed out, and of a partition at most `AHEAD` take room.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from tidelog.client.base.exceptions import DeserializationFailed
from tidelog.client.base.read_positions import Position
from tidelog.client.base.records import Batch, Record
from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.client.consumer.consumer_config import Order
from tidelog.client.consumer.fetched_ahead import Answer, FetchedAnswer, Read
from tidelog.client.consumer.fetcher import PartitionFetcher
from wire.batch import RecordBatch
from wire.internal_records.group_records import StreamPartition
from wire.layouts import NOT_REPORTED, KeyOrder
from wire.types import Offset

AHEAD = 2
"""Answers of one partition that may wait to be taken."""
DOUBT = 10.0
"""Seconds for which metadata older than the known ones are not believed."""
_EVERYTHING = 1 << 63
"""Above each offset."""


class Phase(Enum):
    """See the module's text."""

    BEGINNING = "beginning"
    READING = "reading"
    REVOKED = "revoked"
    LEAVING = "leaving"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class LayoutChanged:
    """Layouts or partitions of the stream are other ones than before."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Fetch no more of the partition: it is missing, or dropped."""

    assigned: AssignedPartition


@dataclass(frozen=True, slots=True)
class Resume:
    """Fetch on from `fetched_to`: the partition was said to be missing, and is not."""

    assigned: AssignedPartition


@dataclass(frozen=True, slots=True)
class MadeAnew:
    """The partition was removed, and made anew since."""

    assigned: AssignedPartition


@dataclass(frozen=True, slots=True)
class Begin:
    """Look the start of the partition up: a repartition has made it, and the stream is followed."""

    assigned: AssignedPartition


LayoutEffect: TypeAlias = LayoutChanged | Stop | Resume | MadeAnew | Begin


class Limit(NamedTuple):
    """Where a partition has to wait for others."""

    offset: int
    """Nothing from here on is handed out."""
    sources: Mapping[int, int]
    """By partition that has to be read before, up to which offset; NOT_REPORTED: that is not known yet."""


@dataclass(slots=True)
class _Taken:
    """Records that were handed out together, and can be put back."""

    position: int
    """The partition's position before them."""
    batches: list[RecordBatch]
    """The batches that they are of; none once the partition is withheld."""


@dataclass(slots=True, eq=False)
class AssignedPartition:
    """All that a consumer knows of one partition."""

    of: StreamPartition
    phase: Phase = Phase.BEGINNING
    stream: AssignedStream | None = None
    """None before its start is looked up."""
    start: Position | None = None
    """Where to begin, if the program called `seek` while the partition was BEGINNING."""
    is_announced: bool = False
    """on_assigned was called, and neither on_revoked nor on_lost since."""
    is_reported: bool = False
    """The log has why the partition cannot be read on."""
    is_removed: bool = False
    """The metadata do not have the partition any more; it is not fetched."""
    is_paused: bool = False

    # ---- reading
    incarnation: int = 0
    """The incarnation of the partition that is read; 0 while that is not known."""
    fetcher: PartitionFetcher | None = None
    began: int | None = None
    """Where reading began at first."""
    fetched_to: int = 0
    """Where the next answer begins."""
    fetched: deque[FetchedAnswer] = field(default_factory=deque)
    """Answers that are not handed out wholly, in order."""
    last: Record[Any, Any] | None = None
    """The newest record that an iteration has handed out. The iteration itself sets it, since that has to be quick."""
    gap: tuple[int, int] | None = None
    """The newest range of offsets without a record that the position has passed over."""
    missed: int = 0
    """Records that retention removed before they were read."""
    _position: int | None = None
    """Without `last`."""
    _in_hand: int | None = None
    """Offset of the oldest record that is in hand, if it is not `last`."""
    _taken: _Taken | None = None
    _head: FetchedAnswer | None = None
    """The answer that records are handed out from, or were last."""

    # ---- the order of keys
    cutovers: tuple[int, ...] = ()
    """Where layouts of the stream end in the partition, ascending; only where others may wait for it."""
    limit: Limit | None = None
    accepted_version: int = 0
    """The highest partitioning version whose batches are handed out though the metadata do not know it."""
    waits_since: float | None = None
    """When it was first seen that the partition waits for others; None: it does not."""
    wait_reported_at: float | None = None
    """When the log had that last."""

    # ---- commits
    committed: int | None = None
    """The offset that the group has committed, as far as this member knows; None: none."""
    settled: int | None = None
    """Up to here, offsets were sent as a part of a transaction. None: since `began`, none were."""

    @property
    def number(self) -> int:
        return self.of.partition

    @property
    def is_read(self) -> bool:
        """Its position is known, and it is not gone."""
        return self._position is not None and self.phase is not Phase.DROPPED

    @property
    def is_leaving(self) -> bool:
        """The group takes it away."""
        return self.phase in (Phase.REVOKED, Phase.LEAVING)

    @property
    def position(self) -> int | None:
        """The offset behind the newest record that was handed out; None before it is begun."""
        return self._position if self.last is None else self.last.offset + 1

    @property
    def in_hand(self) -> int | None:
        """Offset of the oldest record that was handed out and is not finished."""
        return self.last.offset if self._in_hand is None and self.last is not None else self._in_hand

    @property
    def finished(self) -> int | None:
        """The position without the records in hand."""
        return self.position if self.in_hand is None else self.in_hand

    def before_gap(self, offset: int) -> int:
        """The beginning of the gap that ends at `offset`; `offset` itself where none does."""
        return self.gap[0] if self.gap is not None and self.gap[1] == offset else offset

    def delay(self, clock_ns: int) -> tuple[float, str] | None:
        """See `PartitionFetcher.delay`."""
        return None if self.fetcher is None else self.fetcher.delay(clock_ns)

    @property
    def lag(self) -> int | None:
        """The committed records from its position on, as of the newest answer of a broker; None before it is begun."""
        if self.fetcher is None or self.position is None:
            return None
        return max(self.fetcher.committed_end - self.position, 0)

    @property
    def next_cutover(self) -> int | None:
        """The first cutover that is not known to be committed."""
        return next((end for end in self.cutovers if self.committed is None or self.committed < end), None)

    @property
    def is_at_cutover(self) -> bool:
        """Whether it was read, and finished, up to a cutover that is not committed: others may wait for that."""
        finished, cutover = self.finished, self.next_cutover
        return finished is not None and cutover is not None and finished >= cutover

    @property
    def has_room(self) -> bool:
        """Whether another answer may be fetched ahead."""
        return sum(answer.takes_room for answer in self.fetched) < AHEAD

    @property
    def lacks_cutover(self) -> bool:
        """Whether it has to wait for another partition whose cutover is not known yet."""
        return self.limit is not None and NOT_REPORTED in self.limit.sources.values()

    @property
    def has_records(self) -> bool:
        """Whether a record that was fetched is left, also if it may not be handed out at present."""
        return any(answer.has_more(self.last if answer is self._head else None) for answer in self.fetched)

    @property
    def is_open(self) -> bool:
        """Whether its next answer may be handed out."""
        if not self.fetched or self.is_paused:
            return False
        return self.limit is None or self.fetched[0].first < self.limit.offset

    def records(self) -> Iterator[Record[Any, Any]]:
        """The next records, to be iterated over: see `last`, and `SubscriptionState.is_changed`."""
        assert self._head is not None
        return self._head.records()

    def settle(self) -> None:
        """Counts the iteration's newest record in the position."""
        in_hand, last, self.last = self.in_hand, self.last, None
        if last is not None and self._head is not None:
            self._position, self._in_hand = last.offset + 1, in_hand
            self._head.handed_out(last)

    def finish(self) -> None:
        """Counts all that was handed out as finished."""
        self.settle()
        self._in_hand = self._taken = None

    def pass_over(self, end: int) -> None:
        """Moves the position to the end of an answer, behind offsets without a record to hand out."""
        position = self._position
        assert position is not None
        if position < end:
            first, before = (position, position) if self.gap is None else self.gap
            self.gap = (first if before == position else position), end
            self._position = end

    def withhold(self) -> None:
        """Drops what was fetched. The position stays."""
        self.settle()
        if self._taken is not None:
            self._taken.batches.clear()
        self.fetched.clear()
        if self._position is not None:
            self.fetched_to = self._position
        if self.stream is not None:
            self.stream.turns.pop(self, None)

    def rewind(self) -> None:
        """Makes the record at the position the next one, wherever the iterator of its answer is."""
        if self._head is not None and self._position is not None:
            self._head.rewind(self._position)


class AssignedStream:
    """One incarnation of a stream: its partitions that are read, and its layouts."""

    def __init__(self, name: str, order: Order) -> None:
        self.name = name
        self.order = order
        self.is_shared = False
        """A group reads the stream: a partition counts as read as far as the group has committed it."""
        self.incarnation = 0
        """0 before metadata are known."""
        self.metadata: StreamMetadata | None = None
        """The newest that are believed."""
        self.key_order: KeyOrder | None = None
        """By these metadata."""
        self.partitions: dict[int, AssignedPartition] = {}
        """Those whose positions are known, by number."""
        self.turns: OrderedDict[AssignedPartition, None] = OrderedDict()
        """Partitions with answers that were fetched, in the order in which it is their turn."""
        self.limited: set[AssignedPartition] = set()
        """Partitions that have a limit."""
        self.before_cutovers: set[AssignedPartition] = set()
        """Partitions that have a `next_cutover`."""
        self.group_committed: dict[int, tuple[int, int]] = {}
        """By number of a partition that others wait for: its incarnation, and the offset that the group has committed.
        It may be another member's."""
        self.follows = False
        """Partitions that a repartition makes are read, too."""
        self.is_reported = False
        """The log has why nothing of the stream can be read on."""
        self.on_room: Callable[[AssignedPartition], object] = _nothing
        """Called when another answer of a partition may be fetched ahead."""
        self.refreshes = 0
        """Metadata that came, believed or not."""
        self._doubted_since: float | None = None
        """Since then, metadata were older than the known ones."""

    def learn(self, found: StreamMetadata, now: float) -> bool:
        """Returns whether layouts or partitions have changed. A broker that lags behind would take them back, so that
        older metadata are believed only when no others have come for `DOUBT` seconds."""
        known = self.metadata
        self.refreshes += 1
        if known is not None and found.routing_generation < known.routing_generation:
            self._doubted_since = now if self._doubted_since is None else self._doubted_since
            if now < self._doubted_since + DOUBT:
                return False
        self._doubted_since = None
        self.metadata = found
        if known is None:
            self.incarnation = found.incarnation
        elif (known.layouts, known.partitions.keys()) == (found.layouts, found.partitions.keys()):
            return False
        self.key_order = found.key_order
        return True

    def of(self, number: int) -> StreamPartition:
        """The name of a partition in this incarnation of the stream."""
        return StreamPartition(self.name, self.incarnation, number)

    def incarnation_of(self, number: int) -> int | None:
        """The incarnation of a partition; None: it does not exist, as far as is known."""
        known = None if self.metadata is None else self.metadata.partitions.get(number)
        return None if known is None else known.incarnation

    @property
    def has_other_layouts(self) -> bool:
        """Whether the stream has had another layout before."""
        return self.metadata is not None and len(self.metadata.layouts) > 1

    def knows_version(self, assigned: AssignedPartition, version: int) -> bool:
        """Whether batches of this partitioning version can be handed out, and give no reason to ask for metadata."""
        if self.metadata is None or self.key_order is None or version <= assigned.accepted_version:
            return True
        if self.order == "partition":
            return version <= self.metadata.partitioning_version
        return version <= self.key_order.known_version(assigned.number)

    @property
    def lacks_cutover(self) -> bool:
        """Whether a partition has to wait for another one whose cutover is not known yet."""
        return any(assigned.lacks_cutover for assigned in self.limited)

    @property
    def waiting(self) -> dict[AssignedPartition, Mapping[StreamPartition, int]]:
        """By partition whose position has come to its limit, those that it waits for, and up to which offset each has
        to be read; NOT_REPORTED: that is not known yet."""
        return {
            assigned: {self.of(number): end for number, end in assigned.limit.sources.items()}
            for assigned in self.limited
            if assigned.limit is not None and (assigned.position or 0) >= assigned.limit.offset
        }

    def on_group_committed(self, number: int, incarnation: int, offset: int) -> None:
        """The group has committed that incarnation of a partition up to `offset`, or its log begins there."""
        known = self.group_committed.get(number, (0, 0))
        self.group_committed[number] = max(known, (incarnation, offset))


class SubscriptionState:
    """The partitions of one consumer."""

    def __init__(self, read: Read = iter) -> None:
        """`read` makes the records that are handed out."""
        self._read = read
        self.partitions: dict[StreamPartition, AssignedPartition] = {}
        """All that are assigned, read or not."""
        self.streams: deque[AssignedStream] = deque()
        """In the order in which it is their turn."""
        self.failures: dict[AssignedPartition | AssignedStream, BaseException] = {}
        """Why a partition, or nothing of a stream, can be begun or read on; oldest first."""
        self._current: AssignedPartition | None = None
        """The partition that records were handed out of last."""
        self.is_changed = False
        """Since `next`, partitions were paused, resumed, read from elsewhere, or have gone: an iteration has to call
        `next` again."""
        self.is_torn = False
        """An iteration has ended by an exception: its iterator may be ahead of `last`."""
        self.has_moved = True
        """A position has come to the end of an answer, or elsewhere, so that limits may have to change. Who acts on it
        resets it."""
        self.unsettled: set[StreamPartition] = set()
        """Gone after records were handed out, and before their offset was sent as a part of a transaction."""
        self.uncommitted: set[StreamPartition] = set()
        """Gone with records that were handed out and not committed, of which no commit has raised NotAssigned yet."""

    # ---- partitions come and go

    def assign(self, of: StreamPartition, stream: AssignedStream | None = None) -> AssignedPartition:
        """The partition is to be read."""
        assert of not in self.partitions
        assigned = self.partitions[of] = AssignedPartition(of, stream=stream)
        return assigned

    def begin(self, assigned: AssignedPartition, fetcher: PartitionFetcher) -> None:
        """Reads the partition from the fetcher's position on. What was fetched elsewhere is dropped."""
        position, stream = fetcher.position, assigned.stream
        assert position is not None
        assert stream is not None
        assert assigned.phase not in (Phase.LEAVING, Phase.DROPPED)
        self.withhold(assigned)
        assigned._in_hand = assigned._taken = None
        assigned._position = assigned.fetched_to = position
        assigned.fetcher, assigned.incarnation = fetcher, fetcher.partition_incarnation
        assigned.gap = None
        self.failures.pop(assigned, None)
        if assigned.began is None:
            assigned.began = position
        if assigned.phase is Phase.BEGINNING:
            assigned.phase = Phase.READING
        stream.partitions[assigned.number] = assigned
        self.has_moved = True
        self.divide(assigned)
        self.look(stream, (assigned.number,))

    def revoke(self, partitions: Iterable[StreamPartition]) -> list[AssignedPartition]:
        """The group takes these away. Returns those to give up at once: the others have records in hand."""
        now = []
        for of in partitions:
            assigned = self.partitions[of]
            if assigned.in_hand is None:
                now.append(assigned)
            else:
                assigned.phase = Phase.REVOKED
                self.is_changed = True
        return now

    def leave(self, assigned: AssignedPartition) -> None:
        """Hands out nothing more of the partition."""
        assigned.phase = Phase.LEAVING
        self.failures.pop(assigned, None)
        self.withhold(assigned)

    def drop(self, assigned: AssignedPartition) -> None:
        """The partition is gone."""
        if assigned.phase is Phase.DROPPED:
            return
        self._note_uncommitted(assigned)
        self.withhold(assigned)
        assigned.phase = Phase.DROPPED
        del self.partitions[assigned.of]
        self.failures.pop(assigned, None)
        if self._current is assigned:
            self._current = None
        if (stream := assigned.stream) is not None and stream.partitions.get(assigned.number) is assigned:
            del stream.partitions[assigned.number]
            stream.limited.discard(assigned)
            stream.before_cutovers.discard(assigned)

    def withhold(self, assigned: AssignedPartition) -> None:
        """Drops what was fetched of the partition. Its position stays."""
        assigned.withhold()
        self.is_changed = True

    def open(self, stream: AssignedStream) -> None:
        """The stream takes its turns from now on."""
        self.streams.append(stream)

    def fail(self, one: AssignedPartition | AssignedStream, error: BaseException) -> None:
        """A partition, or nothing of a stream, can be begun or read on. The first failure counts."""
        self.failures.setdefault(one, error)

    def close(self, stream: AssignedStream) -> None:
        """Hands out nothing more of the stream. The positions stay."""
        for assigned in stream.partitions.values():
            assigned.withhold()
        if stream in self.streams:
            self.streams.remove(stream)

    def pause(self, partitions: Iterable[AssignedPartition], *, is_paused: bool = True) -> None:
        """Hands out no records of these until they are resumed (`is_paused` False)."""
        for assigned in partitions:
            assigned.is_paused = is_paused
        self.is_changed = True

    # ---- answers and records

    def add(self, assigned: AssignedPartition, answer: Answer) -> None:
        """The next answer of the partition has come."""
        stream = assigned.stream
        assert stream is not None
        if assigned.phase in (Phase.LEAVING, Phase.DROPPED):
            return
        fetched = FetchedAnswer(stream.name, assigned.number, assigned.fetched_to, answer, self._read)
        assigned.fetched_to = answer.end
        assigned.missed += answer.missed
        assigned.fetched.extend(fetched.divided(assigned.cutovers))
        stream.turns.setdefault(assigned)

    def next(self) -> AssignedPartition | None:
        """The partition to hand out from, which has a record; None: there is none. What was handed out before is
        finished."""
        self.finish()
        if self.is_torn and self._current is not None:
            self._current.rewind()
        self._current, self.is_changed, self.is_torn = None, False, False
        for _ in range(len(self.streams)):
            stream = self.streams[0]
            self.streams.rotate(-1)
            while (assigned := next((one for one in stream.turns if one.is_open), None)) is not None:
                if self._find(assigned) is not None:
                    self._current = assigned
                    return assigned
        return None

    def take(self, assigned: AssignedPartition, most: int) -> list[Record[Any, Any]]:
        """The next records of the partition that `next` has returned: `most`, or as many as are here. Raises
        DeserializationFailed for the first one; one of the others is the first one the next time."""
        answer = assigned._head
        records: list[Record[Any, Any]] = []
        batches: list[RecordBatch] = []
        before = assigned._position
        assert before is not None
        while answer is not None:
            batches.append(answer.batch)
            try:
                records.extend(islice(answer.records(), most - len(records)))
            except DeserializationFailed:
                if not records:
                    raise
                most = 0
            assigned.last = records[-1]
            if len(records) >= most:
                break
            assigned.settle()
            answer = self._find(assigned)
        assigned._taken, assigned._in_hand = _Taken(before, batches), records[0].offset
        return records

    def take_batch(self, assigned: AssignedPartition) -> Batch:
        """The rest of the next batch of the partition that `next` has returned."""
        answer, position = assigned._head, assigned._position
        assert answer is not None
        assert position is not None
        taken = _Taken(position, [answer.batch])
        batch = answer.take_batch(position)
        assigned._position = int(batch.offsets[-1]) + 1
        assigned._taken, assigned._in_hand = taken, int(batch.offsets[0])
        return batch

    def finish(self) -> AssignedPartition | None:
        """Counts all that was handed out as finished. Returns a partition that is REVOKED, and can be given up now."""
        current = self._current
        if current is not None:
            current.finish()
        return current if current is not None and current.phase is Phase.REVOKED else None

    def put_back(self) -> None:
        """The records taken since `next` did not come to the program: they are handed out again, and the position is in
        front of them."""
        assigned = self._current
        if assigned is None or assigned._taken is None:
            return
        assigned.settle()
        taken, end, stream = assigned._taken, assigned._position, assigned.stream
        assert end is not None
        assert stream is not None
        assigned._taken = assigned._in_hand = None
        assigned._position = taken.position
        batches = [batch.slice(Offset(taken.position), Offset(end)) for batch in taken.batches]
        answer = Answer(tuple(batch for batch in batches if len(batch.offsets)), end)
        if answer.batches:
            back = FetchedAnswer(stream.name, assigned.number, taken.position, answer, self._read, is_first=False)
            assigned.fetched.extendleft(reversed(back.divided(assigned.cutovers)))
            stream.turns[assigned] = None
            stream.turns.move_to_end(assigned, last=False)
        self.is_changed = True

    @property
    def has_records(self) -> bool:
        """Whether a record that was fetched is left, also if it may not be handed out at present."""
        return any(assigned.has_records for stream in self.streams for assigned in stream.turns)

    @property
    def in_hand(self) -> AssignedPartition | None:
        """The partition whose records the program works on."""
        return self._current if self._current is not None and self._current.in_hand is not None else None

    def each(self, of: Callable[[AssignedPartition], int | None]) -> dict[StreamPartition, int]:
        """A number of each partition that has it."""
        found = ((assigned.of, of(assigned)) for assigned in self.partitions.values())
        return {name: number for name, number in found if number is not None}

    @property
    def positions(self) -> dict[StreamPartition, int]:
        return self.each(lambda assigned: assigned.position)

    # ---- layouts, and the order of keys

    def learn(self, stream: AssignedStream, metadata: StreamMetadata, now: float) -> list[LayoutEffect]:
        """Metadata of the stream have come. `now`: seconds."""
        effects: list[LayoutEffect] = [LayoutChanged()] if stream.learn(metadata, now) else []
        has_changed = bool(effects)
        for assigned in tuple(stream.partitions.values()):
            if has_changed:
                self.divide(assigned)
            incarnation = stream.incarnation_of(assigned.number)
            if incarnation is None:
                # Its last record was removed, and keys are not spread over it any more.
                if has_changed and not assigned.is_removed:
                    assigned.is_removed = True
                    effects.append(Stop(assigned))
            elif incarnation != assigned.incarnation:
                effects.append(MadeAnew(assigned))
                if stream.follows:
                    self.drop(assigned)
                    effects.append(Stop(assigned))
            elif has_changed and assigned.is_removed:
                assigned.is_removed = False
                if assigned.phase is not Phase.LEAVING:
                    effects.append(Resume(assigned))
        if has_changed:
            effects += self.follow(stream)
            self.look(stream)
        return effects

    def follow(self, stream: AssignedStream) -> list[Begin]:
        """Assigns the partitions that the stream has and that are not assigned, if it is followed."""
        numbers = stream.metadata.partitions if stream.follows and stream.metadata is not None else ()
        new = [of for of in map(stream.of, numbers) if of not in self.partitions]
        return [Begin(self.assign(of, stream)) for of in new]

    def divide(self, assigned: AssignedPartition) -> None:
        """Divides the partition's answers at its cutovers, as the metadata have them now."""
        stream = assigned.stream
        assert stream is not None
        cutovers = () if stream.key_order is None else tuple(stream.key_order.ends(assigned.number))
        if cutovers != assigned.cutovers:
            assigned.cutovers = cutovers
            assigned.fetched = deque(part for answer in assigned.fetched for part in answer.divided(cutovers))
        self._note_cutovers(assigned)

    def look(self, stream: AssignedStream, numbers: Collection[int] | None = None) -> None:
        """Sets the limits of these partitions (None: of all) anew, after others were read on, or committed."""
        order = stream.key_order
        if stream.order != "key" or order is None or not (stream.limited or stream.has_other_layouts):
            return
        for number in stream.partitions if numbers is None else numbers:
            found = order.waits_for(number, lambda source: self._read_to(stream, source))
            self._set_limit(stream, stream.partitions[number], None if found is None else Limit(*found))

    def _read_to(self, stream: AssignedStream, number: int) -> int:
        """Up to where a partition counts as read for those that wait for it."""
        if stream.is_shared:
            return self.committed_to(stream, number)
        assigned = self.partitions.get(stream.of(number))
        if assigned is None:
            return 0 if stream.follows else _EVERYTHING  # one that is not to be read keeps no other waiting
        position, stop = assigned.finished or 0, None if assigned.fetcher is None else assigned.fetcher.stop
        return _EVERYTHING if stop is not None and position >= stop else position

    def committed_to(self, stream: AssignedStream, number: int) -> int:
        """Up to where the group has committed a partition, by whichever member, as far as is known."""
        incarnation, offset = stream.group_committed.get(number, (0, 0))
        own = self.partitions.get(stream.of(number))
        committed = 0 if own is None or own.committed is None else own.committed
        return max(offset if incarnation == stream.incarnation_of(number) else 0, committed)

    def on_committed(self, offsets: Mapping[StreamPartition, int]) -> None:
        """The offsets are committed, by this consumer, or by an answer of the coordinator."""
        streams = set()
        for of, offset in offsets.items():
            assigned = self.partitions.get(of)
            if assigned is not None:
                assigned.committed = offset
                self._note_cutovers(assigned)
                if assigned.stream is not None:
                    streams.add(assigned.stream)
        for stream in streams:
            if stream.limited:
                self.look(stream)

    @property
    def at_cutovers(self) -> list[AssignedPartition]:
        """Partitions that were read up to a cutover that is not committed."""
        return [one for stream in self.streams for one in stream.before_cutovers if one.is_at_cutover]

    @property
    def waiting(self) -> dict[AssignedPartition, Mapping[StreamPartition, int]]:
        """See `AssignedStream.waiting`."""
        return {one: sources for stream in self.streams for one, sources in stream.waiting.items()}

    def _note_cutovers(self, assigned: AssignedPartition) -> None:
        stream = assigned.stream
        if stream is None or stream.partitions.get(assigned.number) is not assigned:
            return
        if assigned.next_cutover is None:
            stream.before_cutovers.discard(assigned)
        else:
            stream.before_cutovers.add(assigned)

    def _set_limit(self, stream: AssignedStream, assigned: AssignedPartition, limit: Limit | None) -> None:
        if limit != assigned.limit:
            assigned.limit = limit
            self.is_changed = True
        if limit is None:
            stream.limited.discard(assigned)
        else:
            stream.limited.add(assigned)

    # ----

    def _find(self, assigned: AssignedPartition) -> FetchedAnswer | None:
        """The partition's next answer with a record that may be handed out. Answers without one are passed over, and
        then it is another partition's turn."""
        stream = assigned.stream
        assert stream is not None
        while assigned.is_open:
            answer = assigned.fetched[0]
            if answer.begin():
                stream.on_room(assigned)
            if answer.has_more(None):
                assigned._head = answer
                return answer
            assigned.pass_over(answer.end)
            assigned.fetched.popleft()
            self.has_moved = True
            if assigned.fetched:
                stream.turns.move_to_end(assigned)
            else:
                del stream.turns[assigned]
        return None

    def _note_uncommitted(self, assigned: AssignedPartition) -> None:
        began, position = assigned.began, assigned.position
        if began is None or position is None:
            return
        if position > (began if assigned.settled is None else assigned.settled):
            self.unsettled.add(assigned.of)
        if assigned.before_gap(position) > (began if assigned.committed is None else assigned.committed):
            self.uncommitted.add(assigned.of)


def _nothing(_: AssignedPartition) -> None:
    """No driver waits for room."""
