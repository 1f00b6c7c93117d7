"""Computes which member of a group should read which partition: balanced, and with few changes.

Balanced: no member could take over a partition, of a stream to which it has subscribed, from a member that has at
least two more. Sticky: a partition stays where it is unless its stream is not subscribed to there any more, or it is
moved for the balance. With equal subscriptions the numbers of partitions differ by one at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heappush

from wire.groups import StreamPartition

Assignment = dict[str, frozenset[StreamPartition]]
"""By member."""


def assign(
    subscribed: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[StreamPartition]],
    present: Mapping[str, Collection[StreamPartition]],
) -> Assignment:
    """`subscribed`: names of streams, by member; `partitions`: of each stream that exists; `present`: the assignment
    until now. Partitions of streams without a subscriber are left out. The same arguments give the same result."""
    classes = _classes(subscribed, partitions)
    held: dict[str, dict[tuple[str, ...], set[StreamPartition]]] = {member: {} for member in subscribed}
    load = dict.fromkeys(subscribed, 0)
    for members, wanted in classes.items():
        free = set(wanted)
        for member in members:
            kept = free.intersection(present.get(member, ()))
            free -= kept
            held[member][members] = kept
            load[member] += len(kept)
        classes[members] = free
    for members, free in classes.items():
        _give_out(members, free, held, load)
    _balance(list(classes), held, load)
    return {member: frozenset().union(*of_classes.values()) for member, of_classes in held.items()}


def _classes(
    subscribed: Mapping[str, Collection[str]], partitions: Mapping[str, Collection[StreamPartition]]
) -> dict[tuple[str, ...], set[StreamPartition]]:
    """The partitions of all streams that have the same subscribers, by those."""
    by_stream: dict[str, list[str]] = {}
    for member in sorted(subscribed):
        for stream in subscribed[member]:
            if stream in partitions:
                by_stream.setdefault(stream, []).append(member)
    classes: dict[tuple[str, ...], set[StreamPartition]] = {}
    for stream in sorted(by_stream):
        classes.setdefault(tuple(by_stream[stream]), set()).update(partitions[stream])
    return classes


def _give_out(
    members: tuple[str, ...],
    free: set[StreamPartition],
    held: Mapping[str, dict[tuple[str, ...], set[StreamPartition]]],
    load: dict[str, int],
) -> None:
    """Each of the partitions that nobody has goes to the member that has fewest."""
    least = [(load[member], member) for member in members]
    heapify(least)
    for partition in sorted(free):
        _, member = heappop(least)
        held[member][members].add(partition)
        load[member] += 1
        heappush(least, (load[member], member))


def _balance(
    classes: list[tuple[str, ...]],
    held: Mapping[str, dict[tuple[str, ...], set[StreamPartition]]],
    load: dict[str, int],
) -> None:
    """Each move makes the sum of the squares of the loads smaller, so this ends."""
    is_balanced = False
    while not is_balanced:
        is_balanced = True
        for members in classes:
            while True:
                most = max((m for m in members if held[m][members]), key=lambda m: (load[m], m), default=None)
                least = min(members, key=lambda m: (load[m], m))
                if most is None or load[most] < load[least] + 2:
                    break
                moved = max(held[most][members])
                held[most][members].remove(moved)
                held[least][members].add(moved)
                load[most] -= 1
                load[least] += 1
                is_balanced = False
