"""Brokers for the replicas of new partitions, and their leaders: as even as can be, by stream first and by cluster
second."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from wire.turns import Steps
from wire.types import BrokerId

_PIECE: Final = 50
"""So many partitions are placed before other tasks of the event loop have their turn."""


class Chance(Protocol):
    """The part of a seeded `random.Random` that placement uses."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Placement:
    replicas: tuple[BrokerId, ...]
    """Brokers, the leader first."""

    @property
    def leader(self) -> BrokerId:
        return self.replicas[0]


@dataclass(slots=True)
class _Load:
    replicas_here: int = 0
    leads_here: int = 0
    replicas_everywhere: int = 0
    leads_everywhere: int = 0


def place(
    state: ClusterState,
    live: Sequence[BrokerId],
    *,
    partitions: int,
    replication_factor: int,
    chance: Chance,
    beside: Iterable[Partition] = (),
) -> Steps[list[Placement]]:
    """Placements of `partitions` new partitions on `live` brokers, of which there are at least `replication_factor`.
    `beside`: partitions that their stream has already.

    Each takes the brokers with the fewest replicas; of these the one with the fewest leaderships leads. Equal brokers
    are chosen by chance, so that partitions which share a leader do not share all followers too.
    """
    loads = {
        broker: _Load(replicas_everywhere=state.held_by(broker), leads_everywhere=state.led_by(broker))
        for broker in live
    }
    for partition in beside:
        for replica in partition.replicas:
            if replica in loads:
                loads[replica].replicas_here += 1
        if partition.leader in loads:
            loads[partition.leader].leads_here += 1
    order = sorted(live)
    placements: list[Placement] = []
    for number in range(partitions):
        if number % _PIECE == 0:
            yield _PIECE * (3 + len(live))
        chance.shuffle(order)
        chosen = sorted(order, key=lambda broker: (loads[broker].replicas_here, loads[broker].replicas_everywhere))
        replicas = chosen[:replication_factor]
        leader = min(replicas, key=lambda broker: (loads[broker].leads_here, loads[broker].leads_everywhere))
        replicas.remove(leader)
        for broker in (leader, *replicas):
            loads[broker].replicas_here += 1
            loads[broker].replicas_everywhere += 1
        loads[leader].leads_here += 1
        loads[leader].leads_everywhere += 1
        placements.append(Placement((leader, *replicas)))
    return placements
