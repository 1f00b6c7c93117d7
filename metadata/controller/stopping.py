"""Leaderships of a broker that is about to stop: which can move, and why the others stay. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from wire.turns import Steps
from wire.types import BrokerId, PartitionKey

MAX_NAMED: Final = 10
"""Limit of the partitions of one kind that are named; all are counted."""


@dataclass(slots=True)
class Kind:
    """Partitions of one kind."""

    count: int = 0
    named: list[PartitionKey] = field(default_factory=list)

    def add(self, key: PartitionKey) -> None:
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(key)

    def __str__(self) -> str:
        names = ", ".join(str(key) for key in self.named)
        return f"{self.count} ({names}{', …' if self.count > len(self.named) else ''})"


@dataclass(frozen=True, slots=True)
class Leaderships:
    """Those of one broker."""

    movable: Kind = field(default_factory=Kind)
    """Another live member of the ISR can lead, and is not stopping."""
    alone: Kind = field(default_factory=Kind)
    """It has the only replica."""
    out_of_sync: Kind = field(default_factory=Kind)
    """No other replica can lead now."""


# Keeps R88.
def leaderships(state: ClusterState, broker: BrokerId, stopping: Collection[BrokerId]) -> Steps[Leaderships]:
    """`stopping`: brokers that are about to stop, as far as known."""
    found = Leaderships()

    def can_take_over(partition: Partition) -> bool:
        return any(
            member != broker
            and member not in stopping
            and state.is_alive(member)
            and not partition.is_withdrawn(member)
            for member in partition.isr
        )

    for keys in state.walk(lambda partition: partition.leader == broker):
        for key in keys:
            partition = state.partition(key)
            if partition is None or partition.leader != broker:
                continue
            if can_take_over(partition):
                found.movable.add(key)
            elif len(partition.replicas) == 1:
                found.alone.add(key)
            else:
                found.out_of_sync.add(key)
        yield PIECE + 2 * len(keys)
    return found
