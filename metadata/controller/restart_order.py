"""Which broker may be stopped now, and why the others may not. Pure.

Without a broker, commits of a partition stop where fewer than `min_isr` members of its ISR are left, and it is offline
where none is. Where its other replicas only have to catch up, waiting helps (`waits_for`); where it has too few
replicas at all, nothing does (`costs`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.named_partitions import NamedPartitions
from metadata.commands.cluster_state import ClusterState
from wire.operations.replica_operations import RestartOrder, RestartVerdict
from wire.turns import Steps
from wire.types import BrokerId

_OF_PARTITION: Final = 4
"""Cost of a partition, in looks."""


@dataclass(slots=True)
class _Without:
    """Partitions without one broker."""

    offline: NamedPartitions = field(default_factory=NamedPartitions)
    stalled: NamedPartitions = field(default_factory=NamedPartitions)
    """Below `min_isr`, for other replicas are out of sync."""
    always_offline: NamedPartitions = field(default_factory=NamedPartitions)
    always_stalled: NamedPartitions = field(default_factory=NamedPartitions)
    """The same where waiting does not help."""


def restart_order(
    state: ClusterState, stopping: Collection[BrokerId], voters: int, wanted: Collection[BrokerId] = ()
) -> Steps[RestartOrder]:
    """`stopping`: brokers that are about to stop. `voters`: of the metadata group. `wanted`: only these; none: all."""
    named = sorted({*wanted} & state.brokers.keys() if wanted else state.brokers)
    without = {broker: _Without() for broker in named}
    for keys in state.walk(lambda partition: any(member in without for member in partition.isr)):
        for key in keys:
            partition = state.partition(key)
            if partition is None:
                continue
            min_isr = state.streams[key.stream].min_isr
            sound = [
                member for member in partition.isr if state.is_alive(member) and not partition.is_withdrawn(member)
            ]
            for broker in partition.isr:
                if broker not in without:
                    continue
                others = sum(member != broker for member in sound)
                waiting_helps = len(partition.replicas) - 1 >= min_isr
                found = without[broker]
                if not others:
                    (found.offline if waiting_helps else found.always_offline).add(key)
                elif others < min_isr:
                    (found.stalled if waiting_helps else found.always_stalled).add(key)
        yield PIECE + _OF_PARTITION * len(keys)
    verdicts = [
        _verdict(state, broker, without[broker], stopping, voters) for broker in named if broker in state.brokers
    ]
    verdicts.sort(key=lambda each: (state.is_alive(BrokerId(each["broker"])), each["is_controller"], each["broker"]))
    return {"brokers": verdicts}


def _verdict(
    state: ClusterState, broker: BrokerId, found: _Without, stopping: Collection[BrokerId], voters: int
) -> RestartVerdict:
    known = state.brokers[broker]
    waits_for: list[str] = []
    if not known.alive:
        waits_for.append(f"{broker} is not alive: start it")
    else:
        waits_for += _obstacles(state, broker, found, stopping, voters)
    costs = []
    if found.always_offline.count:
        costs.append(f"offline while it is down, for there is no other replica: {found.always_offline}")
    if found.always_stalled.count:
        costs.append(
            f"acknowledged publishes are refused while it is down, for min_isr needs all replicas:"
            f" {found.always_stalled}"
        )
    return {
        "broker": broker,
        "may_restart": not waits_for,
        "is_controller": state.controller == broker,
        "leaders": state.led_by(broker),
        "replicas": state.held_by(broker),
        "waits_for": waits_for,
        "costs": costs if known.alive else [],
    }


def _obstacles(
    state: ClusterState, broker: BrokerId, found: _Without, stopping: Collection[BrokerId], voters: int
) -> list[str]:
    told: list[str] = []
    if others := [each for each in sorted(stopping) if each != broker]:
        told.append(f"{_listed(others)} about to stop: wait until it is back")
    if dead := sorted(each for each, known in state.brokers.items() if not known.alive):
        told.append(f"{_listed(dead)} not alive: one broker at a time")
    if state.brokers[broker].raft_address and voters > 1:
        left = sum(bool(known.raft_address) and known.alive for known in state.brokers.values()) - 1
        needed = voters // 2 + 1
        if left < needed:
            told.append(f"{left} of {voters} voters would be left, and the metadata group needs {needed}")
    if found.offline.count:
        told.append(f"no replica in sync would be left of {found.offline}")
    if found.stalled.count:
        told.append(f"fewer than min_isr replicas in sync would be left of {found.stalled}")
    return told


def _listed(brokers: Sequence[BrokerId]) -> str:
    return f"{', '.join(brokers)} {'is' if len(brokers) == 1 else 'are'}"
