"""Computes which member of a group should read which partition: balanced, and with few changes.

Balanced: no member could take over a partition, of a stream to which it has subscribed, from a member that has at
least two more. Sticky: a partition stays where it is unless its stream is not subscribed to there any more, or it is
moved for the balance. With equal subscriptions the numbers of partitions differ by one at most.

The work grows with the partitions, and with the members times the logarithm of their number: a group of the largest
size is assigned on the event loop. Members are levelled class by class (streams with the same subscribers); where many
classes overlap, and MOST_PASSES over them do not level everything, the rest stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from wire.groups import StreamPartition

Assignment = dict[str, frozenset[StreamPartition]]
"""By member."""
_Members = tuple[str, ...]
_Held = dict[str, dict[_Members, set[StreamPartition]]]
"""By member and class."""

MOST_PASSES: Final = 20


def assign(
    subscribed: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[StreamPartition]],
    present: Mapping[str, Collection[StreamPartition]],
) -> Assignment:
    """`subscribed`: names of streams, by member; `partitions`: of each stream that exists; `present`: the assignment
    until now. Partitions of streams without a subscriber are left out. The same arguments give the same result."""
    classes = _classes(subscribed, partitions)
    held: _Held = {member: {} for member in subscribed}
    load = dict.fromkeys(subscribed, 0)
    before = {member: frozenset(present.get(member, ())) for member in subscribed}
    for members, free in classes.items():
        for member in members:
            kept = free & before[member]
            free.difference_update(kept)
            held[member][members] = kept
            load[member] += len(kept)
    for members, free in classes.items():
        _give_out(members, free, held, load)
    _balance(list(classes), held, load)
    return {member: frozenset().union(*of_classes.values()) for member, of_classes in held.items()}


def _classes(
    subscribed: Mapping[str, Collection[str]], partitions: Mapping[str, Collection[StreamPartition]]
) -> dict[_Members, set[StreamPartition]]:
    """The partitions of all streams that have the same subscribers, by those. Members with one subscription are looked
    at together: theirs may be the same object, or equal."""
    alike: dict[frozenset[str], list[str]] = {}
    for member in sorted(subscribed):
        names = subscribed[member]
        alike.setdefault(names if isinstance(names, frozenset) else frozenset(names), []).append(member)
    by_stream: dict[str, list[int]] = {}
    for number, names in enumerate(alike):
        for stream in names:
            if stream in partitions:
                by_stream.setdefault(stream, []).append(number)
    groups = list(alike.values())
    of_groups: dict[tuple[int, ...], set[StreamPartition]] = {}
    for stream in sorted(by_stream):
        of_groups.setdefault(tuple(by_stream[stream]), set()).update(partitions[stream])
    return {
        tuple(sorted(member for number in numbers for member in groups[number])): found
        for numbers, found in of_groups.items()
    }


def _give_out(members: _Members, free: set[StreamPartition], held: _Held, load: dict[str, int]) -> None:
    """Each of the partitions that nobody has goes to the member that has fewest."""
    least = [(load[member], member) for member in members]
    heapify(least)
    for partition in sorted(free):
        count, member = least[0]
        held[member][members].add(partition)
        load[member] = count + 1
        heapreplace(least, (count + 1, member))


def _balance(classes: list[_Members], held: _Held, load: dict[str, int]) -> None:
    """Each move makes the sum of the squares of the loads smaller."""
    for _ in range(MOST_PASSES):
        if not sum(_level(members, held, load) for members in classes):
            return


def _level(members: _Members, held: _Held, load: dict[str, int]) -> int:
    """Moves the surplus within one class, from the member that has most to the one that has least, in one pass: who
    gives never gets, and who gets never gives. Returns the number of moves."""
    most = [(-load[member], -place) for place, member in enumerate(members) if held[member][members]]
    least = [(load[member], place) for place, member in enumerate(members)]
    if not most or -min(most)[0] < min(least)[0] + 2:
        return 0
    heapify(most)
    heapify(least)
    surplus: dict[str, list[StreamPartition]] = {}
    moves = 0
    while most and -most[0][0] >= least[0][0] + 2:
        giver, taker = members[-most[0][1]], members[least[0][1]]
        of_giver = surplus.get(giver)
        if of_giver is None:
            of_giver = surplus[giver] = sorted(held[giver][members])
        moved = of_giver.pop()
        held[giver][members].remove(moved)
        held[taker][members].add(moved)
        load[giver] -= 1
        load[taker] += 1
        moves += 1
        heapreplace(least, (load[taker], least[0][1]))
        if of_giver:
            heapreplace(most, (-load[giver], most[0][1]))
        else:
            heappop(most)
    return moves
