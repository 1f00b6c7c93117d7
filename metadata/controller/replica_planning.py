"""Other replicas for partitions that are in use, with the fewest moves: for a drain of brokers, another replication
factor, a broker that is to be removed, or a rebalance. What carries a plan out is in `metadata.cluster.reassignment`.

A move is a replica on a broker that did not hold the partition: its records have to be copied. What a plan does, in
this order; the first step alone where no rebalance is asked for:

1. repair      replicas leave the brokers that are to be evacuated, surplus ones go and missing ones are added. In a
               rebalance the same is done for replicas that break the policy of their stream (`placement`), if another
               broker can take them, and for two replicas in one zone while there is a zone without one
2. streams     while of the brokers that may hold a stream one has at least two replicas of it more than another, one of
               them moves, perhaps over brokers between the two. This is the least number of moves: each of them brings
               a broker that has too many nearer to the average, and none is undone
3. cluster     the same with the replicas of all streams; streams stay as even as they are
4. leaders     the first replica of each partition is its preferred leader. They are evened out, by stream first, by the
               order of replicas alone: nothing is copied for that

No step brings two replicas into one zone which were in two, or takes a replica from a broker that the policy prefers to
one that it does not. Brokers that are not alive keep what they hold, for they may come back; they get nothing. A
rebalance moves no replica of a partition that has one on a dead broker, nor its preferred leader: that move would not
be over before the broker is back. It adds and removes what the replication factor asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

from metadata.cluster.model import Partition, Stream
from metadata.commands.cluster_state import ClusterState
from metadata.controller.leader_spread import even_leaders
from metadata.controller.placement import remedy_of_draining
from wire.placement import Strategy
from wire.stream_config import StreamConfig
from wire.turns import Steps, pieces
from wire.types import BrokerId, PartitionKey, StreamName

_DIGITS: Final = 16
"""Hexadecimal digits of a digest."""
_PIECE: Final = 25
"""Partitions that are looked at before `Steps` yield."""
_LOOKS: Final = 20
"""Cost of a partition, in looks."""
_SCANNED: Final = 200
"""Partitions of a broker that are looked at before `Steps` yield."""


_CanMove: TypeAlias = Callable[[int, BrokerId, BrokerId], bool]
"""Arguments: a partition's index, the broker that is to give it, and the one that is to take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBroker:
    """A broker, as a plan sees it."""

    id: BrokerId
    alive: bool = True
    draining: bool = False
    """It gets no replicas."""
    zone: str = ""
    tags: frozenset[str] = frozenset()
    has_room: bool = True
    """False: it gets a replica only where the partition has too few, or gives one up, and no other broker can take
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPartition:
    """A partition, as a plan sees it."""

    key: PartitionKey
    replicas: tuple[BrokerId, ...]
    """The preferred leader first."""
    isr: tuple[BrokerId, ...]
    leader: BrokerId | None
    replication_factor: int
    """The wanted one."""
    settings: StreamConfig


class Change(NamedTuple):
    key: PartitionKey
    before: tuple[BrokerId, ...]
    target: tuple[BrokerId, ...]
    """The preferred leader first."""

    @property
    def added(self) -> tuple[BrokerId, ...]:
        """Brokers to which the partition is copied."""
        return tuple(broker for broker in self.target if broker not in self.before)

    @property
    def removed(self) -> tuple[BrokerId, ...]:
        return tuple(broker for broker in self.before if broker not in self.target)


@dataclass(frozen=True, slots=True)
class Plan:
    changes: list[Change]
    """By key."""
    stuck: list[tuple[PartitionKey, str]]
    """Partitions for which no broker could be found, or that a rebalance leaves as they are as a replica is dead, and
    why."""


def digest(made: Plan) -> Steps[str]:
    """Returns a name of the changes: another one, in all likelihood, for other changes."""
    found = sha256()
    for piece in pieces(made.changes, _PIECE):
        yield 2 * len(piece)
        for key, before, target in piece:
            found.update(f"{key} {key.partition_incarnation} {','.join(before)} {','.join(target)}\n".encode())
    return found.hexdigest()[:_DIGITS]


def described(
    state: ClusterState,
    *,
    without_room: Collection[BrokerId] = (),
    replicas: Callable[[Partition], tuple[BrokerId, ...]] = lambda partition: partition.replicas,
    factors: Mapping[StreamName, int] | None = None,
) -> Steps[tuple[list[PlannedBroker], list[PlannedPartition]]]:
    """Describes the cluster for a plan. `replicas`: those that a partition has, or is to have once a change that is
    under way is over; `factors`: of streams that are to have another replication factor."""
    brokers = [
        PlannedBroker(
            id=broker,
            alive=known.alive,
            draining=known.draining,
            zone=known.zone,
            tags=frozenset(known.tags),
            has_room=broker not in without_room,
        )
        for broker, known in sorted(state.brokers.items())
    ]
    partitions: list[PlannedPartition] = []
    for name, stream in sorted(state.streams.items()):
        factor = (factors or {}).get(name, stream.replication_factor)
        yield 1
        for piece in pieces(sorted(stream.partitions.items()), _PIECE):
            yield 2 * len(piece)
            partitions += [_described(stream, number, known, replicas(known), factor) for number, known in piece]
    return brokers, partitions


def _described(
    stream: Stream, number: int, partition: Partition, replicas: tuple[BrokerId, ...], factor: int
) -> PlannedPartition:
    return PlannedPartition(
        key=stream.key(number),
        replicas=replicas,
        isr=partition.isr,
        leader=partition.leader,
        replication_factor=factor,
        settings=stream.settings,
    )


def plan(
    brokers: Iterable[PlannedBroker],
    partitions: Sequence[PlannedPartition],
    *,
    evacuate: Collection[BrokerId] = (),
    balance: bool = False,
    of: StreamName | None = None,
) -> Steps[Plan]:
    """Returns the changes after which each partition has its replication factor and no replica on a broker of
    `evacuate`; with `balance` also the policies are kept, and brokers hold equally much. `of`: only the partitions of
    this stream change."""
    planning = _Planning({broker.id: broker for broker in brokers}, frozenset(evacuate))
    yield from planning.enter(partitions)
    for streams in (yield from planning.in_order()):
        for stream in streams:
            if of not in (None, stream):
                continue
            for index in planning.of_stream[stream].indexes:
                yield _LOOKS
                planning.repair(index, wholly=balance)
            if balance:
                yield from planning.balance_stream(stream)
    if balance:
        yield from planning.balance_cluster()
        yield from planning.balance_leaders()
    return (yield from planning.outcome())


_Zones: TypeAlias = tuple[tuple[str, int], ...]
"""The zones in which a partition has replicas, and how many; sorted."""


@dataclass(slots=True)
class _Counted:
    """Replicas of one stream, or of all of them."""

    replicas: dict[BrokerId, int] = field(default_factory=dict)
    held: dict[BrokerId, dict[_Zones, dict[int, None]]] = field(default_factory=dict)
    """By broker and zones, the indexes of the partitions."""
    indexes: list[int] = field(default_factory=list)
    """All partitions, in the order of their numbers."""
    changes: dict[BrokerId, int] = field(default_factory=dict)
    """How often partitions that a broker holds, or has given away, have changed."""
    refused: dict[tuple[BrokerId, BrokerId], tuple[int, int]] = field(default_factory=dict)
    """Brokers of which the first had nothing that the second could take, and `changes` of both at that time."""
    open_zones: dict[BrokerId, tuple[int, frozenset[str]]] = field(default_factory=dict)
    """By broker, its `changes`, and the zones into which some partition that it held could go then."""

    def add(self, broker: BrokerId, index: int, zones: _Zones) -> None:
        self.replicas[broker] = self.replicas.get(broker, 0) + 1
        self.held.setdefault(broker, {}).setdefault(zones, {})[index] = None
        self.changes[broker] = self.changes.get(broker, 0) + 1

    def remove(self, broker: BrokerId, index: int, zones: _Zones) -> None:
        self.replicas[broker] -= 1
        of_broker = self.held[broker]
        del of_broker[zones][index]
        if not of_broker[zones]:
            del of_broker[zones]
        self.changes[broker] = self.changes.get(broker, 0) + 1

    def of(self, broker: BrokerId) -> int:
        return self.replicas.get(broker, 0)


class _Planning:
    def __init__(self, brokers: Mapping[BrokerId, PlannedBroker], evacuate: frozenset[BrokerId]) -> None:
        self._brokers = brokers
        self._takers = dict.fromkeys(
            sorted(
                name for name, known in brokers.items() if known.alive and not known.draining and name not in evacuate
            )
        )
        self._zones_of_takers = {brokers[name].zone for name in self._takers}
        self._evacuate = evacuate
        self._zone = {name: known.zone for name, known in brokers.items()}
        self._all = _Counted()
        self.of_stream: dict[StreamName, _Counted] = {}
        self._of: list[PlannedPartition] = []
        self._sets: list[tuple[BrokerId, ...]] = []
        """The planned replicas of each partition."""
        self._zones: list[_Zones] = []
        self._index: dict[tuple[str, int], int] = {}
        self._fit: dict[StreamName, dict[BrokerId, None]] = {}
        """Brokers that may take replicas by the policy of a stream, but for the stream that it follows; sorted."""
        self._followed: set[StreamName] = set()
        """Streams beside which others are to stay."""
        self._stuck: dict[int, str] = {}
        self._left: set[int] = set()
        """Partitions that a rebalance leaves as they are."""

    # ---- the data --------------------------------------------------------------------------------------------------

    def enter(self, partitions: Sequence[PlannedPartition]) -> Steps[None]:
        for piece in pieces(partitions, _PIECE):
            yield _LOOKS * len(piece)
            for known in piece:
                index = len(self._of)
                stream = known.key.stream
                self._of.append(known)
                self._sets.append(known.replicas)
                self._index[stream, known.key.partition] = index
                counted = self.of_stream.setdefault(stream, _Counted())
                counted.indexes.append(index)
                if stream not in self._fit:
                    self._fit[stream] = self._fitting(known.settings)
                zones = self._zones_of(known.replicas)
                self._zones.append(zones)
                for broker in known.replicas:
                    counted.add(broker, index, zones)
                    self._all.add(broker, index, zones)

    def _fitting(self, settings: StreamConfig) -> dict[BrokerId, None]:
        pinned, required = settings.placement.brokers, settings.require_tags
        if not pinned and not required:
            return self._takers
        return {
            broker: None
            for broker in self._takers
            if self._brokers[broker].tags.issuperset(required) and (not pinned or broker in pinned)
        }

    def in_order(self) -> Steps[list[list[StreamName]]]:
        """The streams, those behind which others follow first."""
        by_depth: dict[int, list[StreamName]] = {}
        for name in sorted(self.of_stream):
            yield 5
            seen: list[StreamName] = []
            other = name
            while other in self.of_stream and other not in seen:
                seen.append(other)
                settings = self._of[self.of_stream[other].indexes[0]].settings
                other = StreamName(settings.placement.stream or settings.colocate_with)
                self._followed.add(other)
            by_depth.setdefault(len(seen), []).append(name)
        return [names for _, names in sorted(by_depth.items())]

    def _holders(self, index: int) -> tuple[BrokerId, ...] | None:
        """Planned holders of the same partition of the stream that this one is placed beside; None: it is not."""
        known = self._of[index]
        other = known.settings.placement.stream or known.settings.colocate_with
        beside = self._index.get((other, known.key.partition)) if other else None
        return None if beside is None else self._sets[beside]

    def _may_hold(self, index: int) -> Collection[BrokerId]:
        """Brokers that may take a replica of the partition."""
        known = self._of[index]
        fit = self._fit[known.key.stream]
        if known.settings.placement.strategy is not Strategy.COLOCATION_STRICT:
            return fit
        holders = self._holders(index) or ()
        return [broker for broker in fit if broker in holders]

    def _preference(self, index: int, broker: BrokerId) -> tuple[bool, bool, int]:
        """Compares brokers for a partition: the greater, the better."""
        settings = self._of[index].settings
        holders = self._holders(index) if settings.colocate_with else None
        tags = self._brokers[broker].tags if broker in self._brokers else frozenset()
        return (
            broker == settings.leader_pin,
            holders is not None and broker in holders,
            sum(tag in tags for tag in settings.prefer_tags),
        )

    def _zones_of(self, replicas: Iterable[BrokerId]) -> _Zones:
        counts: dict[str, int] = {}
        for broker in replicas:
            zone = self._zone.get(broker, "")
            counts[zone] = counts.get(zone, 0) + 1
        return tuple(sorted(counts.items()))

    def _change(self, index: int, gone: BrokerId | None, come: BrokerId | None) -> None:
        """`come` takes the place of `gone` in the order; None: nobody."""
        before, zones_before = self._sets[index], self._zones[index]
        place = len(before) if gone is None else before.index(gone)
        after = (*before[:place], *(() if come is None else (come,)), *before[place + 1 :])
        zones = self._zones_of(after)
        self._sets[index], self._zones[index] = after, zones
        for counts in (self.of_stream[self._of[index].key.stream], self._all):
            for broker in before:
                counts.remove(broker, index, zones_before)
            for broker in after:
                counts.add(broker, index, zones)

    # ---- repair ----------------------------------------------------------------------------------------------------

    def repair(self, index: int, *, wholly: bool) -> None:
        if wholly and self._dead(index):
            self.repair(index, wholly=False)
            dead = self._dead(index)
            if dead:
                self._left.add(index)
                self._stuck.setdefault(index, f"its replicas stay where they are while {', '.join(dead)} is dead")
                return
        known = self._of[index]
        able = self._may_hold(index)
        wanted = known.replication_factor
        for broker in self._sets[index]:
            if broker in self._evacuate or (wholly and self._breaks_policy(broker, index)):
                if len(self._sets[index]) > wanted:
                    self._change(index, broker, None)
                    continue
                taker = self._best(index, able, instead_of=broker)
                if taker is not None and (broker in self._evacuate or self._brokers[taker].has_room):
                    self._change(index, broker, taker)
                elif broker in self._evacuate:
                    self._stuck[index] = self._why_stuck(index, able)
        while len(self._sets[index]) > wanted:
            self._change(index, self._worst(index), None)
        while len(self._sets[index]) < wanted:
            taker = self._best(index, able)
            if taker is None:
                self._stuck[index] = self._why_stuck(index, able)
                break
            self._change(index, None, taker)
        if wholly:
            with_room = [broker for broker in able if self._brokers[broker].has_room]
            self._pin(index, with_room)
            self._spread_over_zones(index, with_room)

    def _dead(self, index: int) -> list[BrokerId]:
        """Its replicas on brokers that are dead and may come back."""
        return [b for b in self._sets[index] if (known := self._brokers.get(b)) is not None and not known.alive]

    def _breaks_policy(self, broker: BrokerId, index: int) -> bool:
        """A dead broker keeps its replicas: it may come back."""
        known = self._brokers.get(broker)
        if known is None or not known.alive or known.draining:
            return known is None
        return broker not in self._may_hold(index)

    def _best(self, index: int, able: Collection[BrokerId], *, instead_of: BrokerId | None = None) -> BrokerId | None:
        """The broker for one more replica, or for the one of `instead_of`; None: there is none."""
        others = [broker for broker in self._sets[index] if broker != instead_of]
        used: dict[str, int] = {}
        for broker in others:
            zone = self._zone.get(broker, "")
            used[zone] = used.get(zone, 0) + 1
        counted = self.of_stream[self._of[index].key.stream]

        def score(broker: BrokerId) -> tuple[Any, ...]:
            pinned, beside, tags = self._preference(index, broker)
            known = self._brokers[broker]
            return (
                not known.has_room,
                not pinned,
                used.get(known.zone, 0),
                not beside,
                -tags,
                counted.of(broker),
                self._all.of(broker),
                broker,
            )

        return min((broker for broker in able if broker not in self._sets[index]), key=score, default=None)

    def _worst(self, index: int) -> BrokerId:
        """The replica that a smaller replication factor takes away: none in sync before one out of sync, never the
        leader."""
        known = self._of[index]
        counted = self.of_stream[known.key.stream]
        in_zone = dict(self._zones[index])

        def score(broker: BrokerId) -> tuple[Any, ...]:
            of = self._brokers.get(broker)
            return (
                broker in self._evacuate or (of is not None and of.draining),
                broker != known.leader,
                broker not in known.isr,
                broker != known.settings.leader_pin,
                in_zone[self._zone.get(broker, "")],
                counted.of(broker),
                self._all.of(broker),
                broker,
            )

        return max(self._sets[index], key=score)

    def _why_stuck(self, index: int, able: Collection[BrokerId]) -> str:
        known = self._of[index]
        policy = known.settings
        because = [
            text
            for text, holds in (
                (f"placement={policy.placement}", policy.placement.strategy is not Strategy.STANDARD),
                (f"require_tags={','.join(policy.require_tags)}", bool(policy.require_tags)),
            )
            if holds
        ]
        left = [broker for broker in able if broker in self._sets[index]]
        why = (
            f"{' and '.join(because) or 'the cluster'} leaves no other broker for it beside"
            f" {', '.join(left) or 'those that it has'}"
        )
        draining = self._draining(index)
        if draining:
            why += (
                f"; {', '.join(draining)} {'is' if len(draining) == 1 else 'are'} draining, and may take it after"
                f" {remedy_of_draining(draining)}"
            )
        return why

    def _draining(self, index: int) -> list[BrokerId]:
        """Brokers that could take a replica of the partition if they were not draining; none that is to be
        evacuated."""
        settings = self._of[index].settings
        holders = self._holders(index) or () if settings.placement.strategy is Strategy.COLOCATION_STRICT else None
        return [
            name
            for name, known in sorted(self._brokers.items())
            if known.alive
            and known.draining
            and name not in self._evacuate
            and name not in self._sets[index]
            and known.tags.issuperset(settings.require_tags)
            and (not settings.placement.brokers or name in settings.placement.brokers)
            and (holders is None or name in holders)
        ]

    def _pin(self, index: int, able: Collection[BrokerId]) -> None:
        pin = BrokerId(self._of[index].settings.leader_pin)
        if pin in able and pin not in self._sets[index]:
            zone = self._zone[pin]
            gives = max(
                self._sets[index],
                key=lambda b: (b not in self._of[index].isr, self._zone.get(b) == zone, self._all.of(b), b),
            )
            self._change(index, gives, pin)

    def _spread_over_zones(self, index: int, able: Collection[BrokerId]) -> None:
        replicas = self.of_stream[self._of[index].key.stream].replicas

        def load(broker: BrokerId) -> tuple[int, int, BrokerId]:
            return replicas.get(broker, 0), self._all.of(broker), broker

        while True:
            counts = dict(self._zones[index])
            most = max(counts.values(), default=0)
            if most < 2:
                return
            held = self._sets[index]
            free = [b for b in able if b not in held and counts.get(self._zone[b], 0) <= most - 2]
            crowded = [b for b in held if counts[self._zone.get(b, "")] == most and self._gives(index, b)]
            if not free or not crowded:
                return
            taker = min(free, key=lambda b: (counts.get(self._zone[b], 0), load(b)))
            self._change(index, max(crowded, key=load), taker)

    # ---- balance ---------------------------------------------------------------------------------------------------

    def _gives(self, index: int, broker: BrokerId) -> bool:
        """Whether a replica may be taken from the broker for balance alone."""
        known = self._brokers.get(broker)
        if known is None or not known.alive or known.draining:
            return False
        return broker != self._of[index].settings.leader_pin

    def _can_move(self, index: int, giver: BrokerId, taker: BrokerId) -> bool:
        """Whether the policy of the partition allows it. The zones have been compared."""
        if taker in self._sets[index] or index in self._left:
            return False
        known = self._of[index]
        if giver == known.settings.leader_pin:
            return False
        placement = known.settings.placement
        if placement.strategy is Strategy.PINNED or taker not in self._fit[known.key.stream]:
            return False
        if placement.stream and taker not in (self._holders(index) or ()):
            return False
        is_plain = not known.settings.colocate_with and not known.settings.prefer_tags
        return is_plain or self._preference(index, taker) >= self._preference(index, giver)

    def balance_stream(self, stream: StreamName) -> Steps[None]:
        counted, takers = self.of_stream[stream], self._fit[stream]
        settings = self._of[counted.indexes[0]].settings
        yield _LOOKS
        if len(takers) < 2 or max(counted.replicas.values(), default=0) < 2:
            return
        if settings.placement.strategy is Strategy.PINNED:
            return
        if settings.placement.stream and not (yield from self._has_choice(counted)):
            return
        yield from self._even_out(counted, takers, self._can_move)

    def _has_choice(self, counted: _Counted) -> Steps[bool]:
        """Whether some partition of a stream that stays beside another one has fewer replicas than that one."""
        for index in counted.indexes:
            yield 2
            if any(broker not in self._sets[index] for broker in self._may_hold(index)):
                return True
        return False

    def balance_cluster(self) -> Steps[None]:
        def can_move(index: int, giver: BrokerId, taker: BrokerId) -> bool:
            stream = self._of[index].key.stream
            replicas = self.of_stream[stream].replicas
            return (
                replicas.get(giver, 0) > replicas.get(taker, 0)
                and stream not in self._followed
                and self._can_move(index, giver, taker)
            )

        yield from self._even_out(self._all, self._takers, can_move)

    def _even_out(self, counted: _Counted, takers: Collection[BrokerId], can_move: _CanMove) -> Steps[None]:
        """Moves replicas until no way leads from a broker to one that holds at least two less."""
        able = [broker for broker in takers if self._brokers[broker].has_room]
        while True:
            by_load = sorted(takers, key=lambda b: (counted.of(b), self._all.of(b), b))
            yield 2 * len(takers)
            into: dict[str, list[BrokerId]] = {}
            for broker in by_load:
                if self._brokers[broker].has_room:
                    into.setdefault(self._zone[broker], []).append(broker)
            least = min((counted.of(broker) for broker in able), default=0)
            givers = [broker for broker in reversed(by_load) if counted.of(broker) >= least + 2]
            if not givers:
                return
            if (yield from self._move_directly(counted, givers, into, can_move)):
                continue
            way = yield from self._way(counted, givers, into, can_move)
            if way is None:
                return
            for giver, taker in way:
                movable = yield from self._movable(counted, giver, taker, can_move, 1)
                for index in movable:
                    self._change(index, giver, taker)

    def _move_directly(
        self,
        counted: _Counted,
        givers: Sequence[BrokerId],
        into: Mapping[str, Sequence[BrokerId]],
        can_move: _CanMove,
    ) -> Steps[bool]:
        """Moves replicas from one broker to one that holds at least two less: from the one that holds most, to the one
        that holds least; as many as bring neither of them beyond the average of all, or of their zones, or one.
        Returns whether there are such brokers."""
        able_to_take = [broker for there in into.values() for broker in there]
        for giver in givers:
            load = counted.of(giver)
            zones = self._open_zones(counted, giver)
            yield 2 + len(zones)
            able = [b for zone in zones for b in into.get(zone, ()) if counted.of(b) <= load - 2]
            for taker in sorted(able, key=lambda b: (counted.of(b), self._all.of(b), b)):
                both = [b for zone in {self._zone[giver], self._zone[taker]} for b in into.get(zone, ())]
                most = self._to_average(counted, giver, taker, able_to_take)
                most = most if most > 0 else self._to_average(counted, giver, taker, both)
                movable = yield from self._movable(counted, giver, taker, can_move, max(1, most))
                for place, index in enumerate(movable):
                    if place == 0 or can_move(index, giver, taker):
                        yield _LOOKS // 2
                        self._change(index, giver, taker)
                if movable:
                    return True
        return False

    @staticmethod
    def _to_average(counted: _Counted, giver: BrokerId, taker: BrokerId, among: Sequence[BrokerId]) -> int:
        total = sum(map(counted.of, among))
        return min(counted.of(giver) - -(-total // len(among)), total // len(among) - counted.of(taker))

    def _way(
        self,
        counted: _Counted,
        givers: Sequence[BrokerId],
        into: Mapping[str, Sequence[BrokerId]],
        can_move: _CanMove,
    ) -> Steps[list[tuple[BrokerId, BrokerId]] | None]:
        """Returns the shortest way from a broker that holds most to one that holds at least two less."""
        for start in givers:
            enough = counted.of(start) - 2
            yield _LOOKS
            if not self._may_reach(counted, start, enough, into):
                continue
            came_from: dict[BrokerId, BrokerId] = {start: start}
            queue = deque([start])
            while queue:
                giver = queue.popleft()
                for taker in [b for zone in sorted(self._open_zones(counted, giver)) for b in into.get(zone, ())]:
                    if taker in came_from or not (yield from self._movable(counted, giver, taker, can_move, 1)):
                        continue
                    came_from[taker] = giver
                    if counted.of(taker) <= enough:
                        way = [(giver, taker)]
                        while way[-1][0] != start:
                            last = way[-1][0]
                            way.append((came_from[last], last))
                        # From the end: each broker has given before it takes, and holds no more than it may.
                        return way
                    queue.append(taker)
        return None

    def _may_reach(
        self, counted: _Counted, start: BrokerId, enough: int, into: Mapping[str, Sequence[BrokerId]]
    ) -> bool:
        """Whether zones are open, one behind the other, up to one with a broker that holds `enough` or less."""
        seen: set[str] = set()
        ahead = {*self._open_zones(counted, start)}
        while ahead:
            zone = ahead.pop()
            seen.add(zone)
            there = into.get(zone, ())
            if there and counted.of(there[0]) <= enough:
                return True
            for broker in there:
                ahead |= self._open_zones(counted, broker) - seen
        return False

    def _open_zones(self, counted: _Counted, giver: BrokerId) -> frozenset[str]:
        """Zones into which some partition that the broker holds may go: its own one, and those in which the partition
        has at least two replicas less, or none."""
        known = self._brokers.get(giver)
        if known is None or not known.alive or known.draining:
            return frozenset()
        changes = counted.changes.get(giver, 0)
        cached = counted.open_zones.get(giver)
        if cached is not None and cached[0] == changes:
            return cached[1]
        here = known.zone
        open_ = {here}
        for zones in counted.held.get(giver, ()):
            counts = dict(zones)
            open_ |= {zone for zone in self._zones_of_takers if counts.get(zone, 0) < counts[here]}
            if len(open_) == len(self._zones_of_takers):
                break
        counted.open_zones[giver] = changes, frozenset(open_)
        return counted.open_zones[giver][1]

    def _movable(
        self, counted: _Counted, giver: BrokerId, taker: BrokerId, can_move: _CanMove, most: int
    ) -> Steps[list[int]]:
        """Returns partitions that the taker may have in the giver's place, `most` at most."""
        known = self._brokers.get(giver)
        if known is None or not known.alive or known.draining:
            return []
        changes = counted.changes.get(giver, 0), counted.changes.get(taker, 0)
        if counted.refused.get((giver, taker)) == changes:
            yield 1
            return []
        here, there = known.zone, self._zone[taker]
        found: list[int] = []
        looks = 5
        for zones, indexes in counted.held.get(giver, {}).items():
            looks += 1
            counts = dict(zones)
            if here != there and counts.get(there, 0) >= counts[here]:
                continue
            for index in indexes:
                looks += 1
                if looks >= _SCANNED:
                    yield looks
                    looks = 0
                if can_move(index, giver, taker):
                    found.append(index)
                    if len(found) == most:
                        yield looks
                        return found
        yield looks
        if not found:
            counted.refused[giver, taker] = changes
        return found

    # ---- leaders ---------------------------------------------------------------------------------------------------

    def balance_leaders(self) -> Steps[None]:
        for stream, counted in sorted(self.of_stream.items()):
            indexes = counted.indexes
            yield 5 + len(indexes)
            able = self._fit[stream]
            pin = BrokerId(self._of[indexes[0]].settings.leader_pin)
            if pin in able:
                for index in indexes:
                    if pin in self._sets[index] and index not in self._left:
                        self._sets[index] = (pin, *(b for b in self._sets[index] if b != pin))
                continue
            if len(indexes) == 1:
                continue
            free = [
                index
                for index in indexes
                if self._sets[index] and self._sets[index][0] in able and index not in self._left
            ]
            sets = [self._sets[index] for index in free]
            leads = {broker: 0 for broker in able if counted.of(broker)}
            for replicas in sets:
                leads[replicas[0]] += 1
            for changed in (yield from even_leaders(sets, leads)):
                self._sets[free[changed]] = sets[changed]
        yield from self._even_leaders_of_all()

    def _even_leaders_of_all(self) -> Steps[None]:
        """Leaderships of all streams; those of each stream stay as even as they are."""
        led: dict[BrokerId, dict[int, None]] = {broker: {} for broker in self._takers}
        here: dict[tuple[StreamName, BrokerId], int] = {}
        for index, replicas in enumerate(self._sets):
            if index % _PIECE == 0:
                yield _PIECE
            known = self._of[index]
            if not replicas or replicas[0] not in self._fit[known.key.stream] or index in self._left:
                continue
            here[known.key.stream, replicas[0]] = here.get((known.key.stream, replicas[0]), 0) + 1
            if replicas[0] != known.settings.leader_pin:
                led[replicas[0]][index] = None

        def other(giver: BrokerId, most: int) -> Steps[tuple[int, BrokerId] | None]:
            yield 12
            for place, index in enumerate(led[giver]):
                if place % _SCANNED == _SCANNED - 1:
                    yield _SCANNED
                stream = self._of[index].key.stream
                fit = self._fit[stream]
                for taker in self._sets[index][1:]:
                    if taker in fit and len(led[taker]) <= most and here[stream, giver] > here.get((stream, taker), 0):
                        return index, taker
            return None

        while True:
            found = None
            fewest = min(map(len, led.values()), default=0)
            for giver in sorted(led, key=lambda broker: (-len(led[broker]), broker)):
                if len(led[giver]) < fewest + 2:
                    break
                found = yield from other(giver, len(led[giver]) - 2)
                if found is not None:
                    break
            if found is None:
                return
            index, taker = found
            stream = self._of[index].key.stream
            here[stream, giver] -= 1
            here[stream, taker] = here.get((stream, taker), 0) + 1
            del led[giver][index]
            led[taker][index] = None
            self._sets[index] = (taker, *(broker for broker in self._sets[index] if broker != taker))

    # ---- the outcome -----------------------------------------------------------------------------------------------

    def outcome(self) -> Steps[Plan]:
        changes = []
        for piece in pieces(range(len(self._of)), _PIECE):
            yield len(piece)
            changes += [
                Change(self._of[index].key, self._of[index].replicas, self._sets[index])
                for index in piece
                if self._sets[index] != self._of[index].replicas
            ]
        stuck = []
        for some in pieces(sorted(self._stuck.items()), _PIECE):
            yield len(some)
            stuck += [(self._of[index].key, why) for index, why in some]
        return Plan(sorted(changes, key=lambda change: (change.key.stream, change.key.partition)), stuck)
