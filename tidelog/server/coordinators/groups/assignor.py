"""Computes which member of a group should read which partition: balanced, and with few changes.

Balanced: no member could take over a partition, of a stream to which it has subscribed, from a member that has at
least two more. Sticky: a partition stays where it is unless its stream is not subscribed to there any more, or it is
moved for the balance. With equal subscriptions the numbers of partitions differ by one at most.

The work grows with the partitions, and with the members times the logarithm of their number, and it is done in turns:
a group of the largest size is assigned on the event loop (`assigning`). Members are levelled class by class (streams
with the same subscribers); where many classes overlap, and MOST_PASSES over them, or MOST_LOOKS at their members, do
not level everything, the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from wire.internal_records.group_records import StreamPartition

Assignment = dict[str, frozenset[StreamPartition]]
"""Partitions by member."""
_Numbers = tuple[int, ...]
"""The subscriptions that select the streams of a class, by their numbers, ascending."""
_Held = dict[str, set[StreamPartition]]
"""Partitions of one class by member; a member without any may be left out."""

MOST_PASSES: Final = 20
MOST_LOOKS: Final = 1_000_000
PIECE: Final = 1000
"""Partitions, members or names that are looked at between two yields, as a rule."""


def assigning(
    subscribed: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[StreamPartition]],
    present: Mapping[str, Collection[StreamPartition]],
) -> Generator[int, None, Assignment]:
    """`subscribed`: names of streams, by member; `partitions`: of each stream that exists; `present`: the assignment
    until now. Partitions of streams without a subscriber are left out. The same arguments give the same result, which
    is returned. Yields how many partitions, members and names it has looked at since it yielded last."""
    subscribers = _Subscribers(subscribed)
    yield len(subscribed)
    classes = yield from subscribers.classes(partitions)
    owners: dict[StreamPartition, str] = {}
    for member in subscribers.number_of:
        for partition in present.get(member, ()):
            owners.setdefault(partition, member)
        yield 1 + len(present.get(member, ()))
    load = dict.fromkeys(subscribers.number_of, 0)
    held: dict[_Numbers, _Held] = {}
    for numbers, free in classes.items():
        held[numbers] = yield from _keep(free, owners, subscribers, numbers, load)
    for numbers, free in classes.items():
        if free:
            yield from _give_out(subscribers.members(numbers), free, held[numbers], load)
    yield from _balance(subscribers, held, load)
    result: dict[str, set[StreamPartition]] = {member: set() for member in subscribed}
    for of_class in held.values():
        for member, found in of_class.items():
            result[member] |= found
            yield len(found)
    return {member: frozenset(found) for member, found in result.items()}


class _Subscribers:
    """Members with one subscription are looked at together: theirs may be the same object, or equal."""

    def __init__(self, subscribed: Mapping[str, Collection[str]]) -> None:
        alike: dict[frozenset[str], list[str]] = {}
        for member in sorted(subscribed):
            names = subscribed[member]
            alike.setdefault(names if isinstance(names, frozenset) else frozenset(names), []).append(member)
        self._names = list(alike)
        self._members = list(alike.values())
        found = sorted((member, number) for number, members in enumerate(self._members) for member in members)
        self.number_of: Final = dict(found)
        """By member, the number of its subscription; in the order of the members."""

    def members(self, numbers: _Numbers) -> list[str]:
        """Returns the ids of the members with these subscriptions, sorted."""
        return sorted(member for number in numbers for member in self._members[number])

    def classes(
        self, partitions: Mapping[str, Collection[StreamPartition]]
    ) -> Generator[int, None, dict[_Numbers, set[StreamPartition]]]:
        """Returns the partitions of all streams that have the same subscribers, by those."""
        by_stream: dict[str, list[int]] = {}
        for number, names in enumerate(self._names):
            for stream in names:
                if stream in partitions:
                    by_stream.setdefault(stream, []).append(number)
            yield len(names)
        classes: dict[_Numbers, set[StreamPartition]] = {}
        for stream in sorted(by_stream):
            classes.setdefault(tuple(by_stream[stream]), set()).update(partitions[stream])
            yield 1 + len(partitions[stream])
        return classes


def _keep(
    free: set[StreamPartition],
    owners: Mapping[StreamPartition, str],
    subscribers: _Subscribers,
    numbers: _Numbers,
    load: dict[str, int],
) -> Generator[int, None, _Held]:
    """Returns the partitions that members keep from their present assignment, and takes them out of `free`."""
    held: _Held = {}
    looked = 0
    for partition in tuple(free):
        owner = owners.get(partition)
        if owner is not None and subscribers.number_of[owner] in numbers:
            held.setdefault(owner, set()).add(partition)
            load[owner] += 1
            free.remove(partition)
        looked += 1
        if not looked % PIECE:
            yield PIECE
    yield looked % PIECE
    return held


def _give_out(
    members: list[str], free: set[StreamPartition], held: _Held, load: dict[str, int]
) -> Generator[int, None, None]:
    """Gives each free partition to the member with the fewest."""
    least = [(load[member], member) for member in members]
    heapify(least)
    ordered = sorted(free)
    yield len(members) + len(ordered)
    for begin in range(0, len(ordered), PIECE):
        piece = ordered[begin : begin + PIECE]
        for partition in piece:
            count, member = least[0]
            held.setdefault(member, set()).add(partition)
            load[member] = count + 1
            heapreplace(least, (count + 1, member))
        yield len(piece)


def _balance(
    subscribers: _Subscribers, held: Mapping[_Numbers, _Held], load: dict[str, int]
) -> Generator[int, None, None]:
    """Levels the classes. Each move makes the sum of the squares of the loads smaller."""
    looks = 0
    for _ in range(MOST_PASSES):
        moves = 0
        for numbers, of_class in held.items():
            members = subscribers.members(numbers)
            looks += len(members)
            if looks > MOST_LOOKS:
                return
            moves += yield from _level(members, of_class, load)
        if not moves:
            return


def _level(members: list[str], held: _Held, load: dict[str, int]) -> Generator[int, None, int]:
    """Moves the surplus within one class, from the member that has most to the one that has least, in one pass: who
    gives never gets, and who gets never gives. Returns the number of moves."""
    yield len(members)
    givers = [member for member, found in held.items() if found]
    if not givers or max(map(load.__getitem__, givers)) < min(map(load.__getitem__, members)) + 2:
        return 0
    places = dict(zip(members, range(len(members)), strict=True))
    most = [(-load[member], -places[member]) for member in givers]
    least = [(load[member], place) for place, member in enumerate(members)]
    heapify(most)
    heapify(least)
    surplus: dict[str, list[StreamPartition]] = {}
    moves = 0
    while most and -most[0][0] >= least[0][0] + 2:
        giver, taker = members[-most[0][1]], members[least[0][1]]
        of_giver = surplus.get(giver)
        if of_giver is None:
            of_giver = surplus[giver] = sorted(held[giver])
            yield len(of_giver)
        moved = of_giver.pop()
        held[giver].remove(moved)
        held.setdefault(taker, set()).add(moved)
        load[giver] -= 1
        load[taker] += 1
        moves += 1
        if not moves % PIECE:
            yield PIECE
        heapreplace(least, (load[taker], least[0][1]))
        if of_giver:
            heapreplace(most, (-load[giver], most[0][1]))
        else:
            heappop(most)
    return moves
