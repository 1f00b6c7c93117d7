"""The targets of a producer's records while the number of its stream's partitions changes.

A producer sends by the newest layout that it knows. After a repartition the targets of the layout before, the OLDER
ones, may still have batches whose outcome is not known. All records of a key that are on their way by an older layout
are in one target of it, so the order of keys is kept target by target:

    a record of key K     goes to the target of K in the oldest layout where that one is still there, else by the
                          newest layout
    an older target       takes such records and sends nothing more of them. When it is drained
                          (`PartitionAccumulator.is_drained`) it is handed over: all that it has goes on, record by
                          record in its order, by the same rule, and the target is gone

So a slow partition holds up its own keys alone. A record with a partition that the program has chosen waits for the
older target with that number, and stays in that partition, or fails where it is routed no more. A record without either
goes with the newest layout at once. Records that expect an offset fail: they depend on positions read before.

A stream's version only grows, but anybody who may publish on the subject of pushes can invent one. So the producer goes
back to an earlier version than its newest one while nothing was acknowledged under a later one: leaders store nothing
under a version that does not exist.

Pure: futures are made by the driver, and not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.client.producer.accumulator import Failed, PartitionAccumulator
from tidelog.client.producer.batch_failures import expectation_is_void, not_routed
from tidelog.client.producer.batches import BatchState, PendingBatch
from tidelog.client.producer.encoding import size_of
from tidelog.client.producer.partitioner import Partitioner
from tidelog.client.producer.runs import Run, Values
from wire.errors import TidelogError

MAX_OLDER: Final = 8
"""Layouts with targets that are not drained; a newer one waits while there are so many."""


class Target(Protocol):
    """A partition as it is written to under one layout."""

    @property
    def partition(self) -> int: ...

    @property
    def core(self) -> PartitionAccumulator: ...


_T = TypeVar("_T", bound=Target)


@dataclass(slots=True, eq=False)
class RoutedLayout(Generic[_T]):
    version: int
    partitioner: Partitioner
    targets: dict[int, _T]
    """By partition; an older layout has only those that are not handed over yet."""

    def move_on(self) -> None:
        """Moves records without a key to another partition, because a batch is complete."""
        self.partitioner.move_on(lambda partition: self.targets[partition].core.is_available)


@dataclass(frozen=True, slots=True)
class Split:
    """The records of one run went to several partitions: the future `waiting` of the run is replaced by those of the
    parts."""

    waiting: Any
    parts: list[tuple[list[int], Any]]
    """Positions in the caller's list, and the future of each part."""


MovedEffect: TypeAlias = Failed | Split


@dataclass(slots=True, eq=False)
class Moved(Generic[_T]):
    """The effects of moving a target's records."""

    effects: list[MovedEffect] = field(default_factory=list)
    targets: dict[_T, None] = field(default_factory=dict)
    """Targets that have more to send."""


class Routes(Generic[_T]):
    """`make_waiting` makes the future of a run."""

    def __init__(self, stream: str, first: RoutedLayout[_T], make_waiting: Callable[[], Any]) -> None:
        self.stream = stream
        self.make_waiting = make_waiting
        self.newest = first
        self.older: list[RoutedLayout[_T]] = []
        """Layouts with a target that is not handed over, oldest first."""
        self.proven_version = 0
        """The greatest version under which a record was acknowledged, or may have been stored."""

    @property
    def targets(self) -> Iterator[_T]:
        for layout in (*self.older, self.newest):
            yield from tuple(layout.targets.values())

    def wants(self, version: int) -> bool:
        """Returns whether records should go by that version of the metadata."""
        return version != self.newest.version and version >= self.proven_version

    @property
    def is_full(self) -> bool:
        """No other layout can be taken before a target is handed over."""
        return len(self.older) >= MAX_OLDER

    def left(self, target: _T) -> None:
        """Notes that a batch of the target is complete: records without a key go to another one now."""
        if self.newest.targets.get(self.newest.partitioner.sticky) is target:
            self.newest.move_on()

    def on_acknowledged(self, version: int) -> bool:
        """Notes an acknowledgement. True when the newest layout has an earlier version: the stream has a later one."""
        self.proven_version = max(self.proven_version, version)
        return self.newest.version < self.proven_version

    # R67: A producer goes by a newer layout partition by partition. Batches on their way are sent again to the same
    # leader under the same sequences until each is acknowledged, or the first is known not to be in the log; then the
    # rest goes to the newest layout, record by record, and later records of the same keys wait behind it. A record
    # with an explicit partition stays there. A transaction keeps its layout. The producer goes back to an earlier
    # version only while nothing was acknowledged under a later one.
    # Hazard: A record that is in two partitions, since it was taken for not stored; a record of a key that overtakes
    # an earlier one.
    def switch(self, layout: RoutedLayout[_T]) -> list[_T]:
        """Makes `layout` the newest one. Returns the targets that are outdated now."""
        outdated = [*self.newest.targets.values()]
        for target in outdated:
            target.core.outdate()
        self.older.append(self.newest)
        self.newest = layout
        return outdated

    def for_key(self, key: bytes) -> _T:
        for layout in self.older:
            target = layout.targets.get(layout.partitioner.for_key(key))
            if target is not None:
                return target
        return self.newest.targets[self.newest.partitioner.for_key(key)]

    def for_partition(self, partition: int) -> _T | None:
        """Returns the target of a record with a chosen partition. None: it is not routed any more."""
        for layout in self.older:
            target = layout.targets.get(partition)
            if target is not None:
                return target
        return self.newest.targets.get(partition)

    def hand_over(self, target: _T) -> Moved[_T]:
        """Moves all records on that a drained target has not stored."""
        for layout in tuple(self.older):
            if layout.targets.get(target.partition) is target:
                del layout.targets[target.partition]
                if not layout.targets:
                    self.older.remove(layout)
        moved: Moved[_T] = Moved()
        for batch in target.core.take_back():
            if batch.expected_offset is not None:
                batch.state = BatchState.RESOLVED
                moved.effects.append(Failed(batch, expectation_is_void(self.stream, batch.expected_offset)))
            else:
                _Rerouting(self, batch, target.partition, moved).move()
        for goal in moved.targets:
            goal.core.gathering.seal()
        return moved

    def place_run(self, run: Run[_T], waiting: Any, now: float) -> Moved[_T]:
        """Places `run`, whose target was handed over meanwhile, as if it had been given to the target in time."""
        batch = PendingBatch(now, now + run.target.core.delivery_timeout)
        batch.add_run(run.values, run.keys, run.headers, run.size, run.indices, waiting)
        if run.is_pinned:
            batch.pin(len(run.values))
        moved: Moved[_T] = Moved()
        _Rerouting(self, batch, run.target.partition, moved).move()
        return moved

    def not_routed(self, partition: int) -> TidelogError:
        return not_routed(self.stream, partition, len(self.newest.targets))


class _Record(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: bytes | None
    timestamp: int | None

    @property
    def size(self) -> int:
        return size_of(self.value, self.key, self.headers)


class _Rerouting(Generic[_T]):
    """Moves the records of one batch of `partition` to other targets."""

    def __init__(self, routes: Routes[_T], batch: PendingBatch, partition: int, moved: Moved[_T]) -> None:
        self._routes = routes
        self._batch = batch
        self._partition = partition
        self._moved = moved
        self._pinned = frozenset(batch.pinned or ())
        self._lost = PendingBatch(batch.created_at, batch.deadline)

    def move(self) -> None:
        for first, indices, waiting in self._batch.claims:
            if indices is None:
                for place, future in enumerate(waiting, first):
                    self._move_one(place, future)
            else:
                self._move_run(first, indices, waiting)
        if self._lost.values:
            self._lost.state = BatchState.RESOLVED
            self._moved.effects.append(Failed(self._lost, self._routes.not_routed(self._partition)))

    def _move_one(self, place: int, future: Any) -> None:
        value, key, headers, timestamp = record = self._record(place)
        goal = self._goal(place)
        if goal is None:
            self._lost.add(value, key, headers, timestamp, record.size, future)
            return
        gathering = goal.core.gathering
        created_at = self._batch.created_at
        if gathering.append(value, key, headers, timestamp, record.size, future, created_at):
            self._routes.left(goal)
        self._moved_to(goal, 1, is_pinned=place in self._pinned)

    def _move_run(self, first: int, indices: Any, waiting: Any) -> None:
        places_of: dict[_T | None, list[int]] = {}
        for place in range(first, first + len(indices)):
            places_of.setdefault(self._goal(place), []).append(place)
        parts: list[tuple[list[int], Any]] = []
        for goal, places in places_of.items():
            own = [indices[place - first] for place in places]
            owed = waiting if len(places_of) == 1 else self._routes.make_waiting()
            parts.append((own, owed))
            records = [self._record(place) for place in places]
            columns = _columns(records)
            size = sum(record.size for record in records)
            if goal is None:
                self._lost.add_run(*columns, size, own, owed)
                continue
            if goal.core.gathering.append_run(*columns, size, own, owed, self._batch.created_at):
                self._routes.left(goal)
            self._moved_to(goal, len(places), is_pinned=first in self._pinned)
        if len(places_of) > 1:
            self._moved.effects.append(Split(waiting, parts))

    def _record(self, place: int) -> _Record:
        batch = self._batch
        return _Record(
            batch.values[place],
            None if batch.keys is None else batch.keys[place],
            None if batch.headers is None else batch.headers[place],
            None if batch.timestamps is None else batch.timestamps[place],
        )

    def _goal(self, place: int) -> _T | None:
        if place in self._pinned:
            return self._routes.for_partition(self._partition)
        key = None if self._batch.keys is None else self._batch.keys[place]
        newest = self._routes.newest
        return newest.targets[newest.partitioner.sticky] if key is None else self._routes.for_key(key)

    def _moved_to(self, goal: _T, count: int, *, is_pinned: bool) -> None:
        self._moved.targets[goal] = None
        into = goal.core.gathering.open
        assert into is not None
        into.created_at = min(into.created_at, self._batch.created_at)
        into.deadline = min(into.deadline, self._batch.deadline)
        if is_pinned:
            into.pin(count)
        if self._batch.moved_to is None:
            self._batch.moved_to = {}
        self._batch.moved_to[into] = None


def _columns(records: list[_Record]) -> tuple[Values, Values | None, Values | None]:
    """Returns values, keys and headers; None in place of a column without entries."""
    keys = [record.key for record in records]
    headers = [record.headers for record in records]
    return (
        [record.value for record in records],
        None if keys.count(None) == len(keys) else keys,
        None if headers.count(None) == len(headers) else headers,
    )
