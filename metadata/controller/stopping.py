"""Leaderships of a broker that is about to stop: which can move, and why the others stay. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Partition
from metadata.cluster.named_partitions import NamedPartitions
from metadata.commands.cluster_state import ClusterState
from wire.turns import Steps
from wire.types import BrokerId


@dataclass(frozen=True, slots=True)
class Leaderships:
    """Those of one broker."""

    movable: NamedPartitions = field(default_factory=NamedPartitions)
    """Another live member of the ISR can lead, and is not stopping."""
    alone: NamedPartitions = field(default_factory=NamedPartitions)
    """It has the only replica."""
    out_of_sync: NamedPartitions = field(default_factory=NamedPartitions)
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
