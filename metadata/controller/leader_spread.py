"""Leaders of partitions, as even as their replicas allow.

Let a broker lead c partitions, and another one at most c - 2. If a way of partitions leads from the one to the other,
on which each partition is led by a broker and has a replica on the next, then each of them is led by the next broker
instead: the first broker leads one partition less, the last one more, and those between as many as before. Without such
a way nothing can be evened out any more. All replicas stay where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping, MutableSequence
from itertools import pairwise
from typing import Final

from wire.turns import Steps
from wire.types import BrokerId

_PIECE: Final = 200


def even_leaders(
    replicas: MutableSequence[tuple[BrokerId, ...]], leads: MutableMapping[BrokerId, int]
) -> Steps[list[int]]:
    """Changes the order of the replicas of partitions, the leader first, and `leads`: the leaderships that are counted,
    of all brokers that may lead some of them. Returns the indexes of changed partitions, ascending."""
    could: dict[BrokerId, dict[BrokerId, dict[int, None]]] = {}
    """By leader and other replica, the partitions."""

    def enter(index: int) -> None:
        leader, *others = replicas[index]
        row = could.setdefault(leader, {})
        for other in others:
            row.setdefault(other, {})[index] = None

    for index in range(len(replicas)):
        if index % _PIECE == 0:
            yield 2 * _PIECE
        enter(index)
    changed: set[int] = set()
    while True:
        way = _way(could, leads)
        yield len(leads) * 4
        if way is None:
            return sorted(changed)
        for giver, taker in pairwise(way):
            index = next(iter(could[giver][taker]))
            before = replicas[index]
            for other in before[1:]:
                del could[giver][other][index]
            replicas[index] = (taker, *(broker for broker in before if broker != taker))
            enter(index)
            changed.add(index)
        leads[way[0]] -= 1
        leads[way[-1]] += 1


def _way(
    could: MutableMapping[BrokerId, dict[BrokerId, dict[int, None]]], leads: MutableMapping[BrokerId, int]
) -> list[BrokerId] | None:
    """Returns the brokers on the shortest way from one that leads too many to one that leads too few."""
    fewest = min(leads.values(), default=0)
    for start in sorted(leads, key=lambda broker: (-leads[broker], broker)):
        if leads[start] <= fewest + 1:
            return None
        came_from = {start: start}
        queue = deque([start])
        while queue:
            giver = queue.popleft()
            for taker, partitions in could.get(giver, {}).items():
                if not partitions or taker in came_from or taker not in leads:
                    continue
                came_from[taker] = giver
                if leads[taker] <= leads[start] - 2:
                    way = [taker]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return way[::-1]
                queue.append(taker)
    return None
