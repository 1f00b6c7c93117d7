"""The brokers of a cluster as an operator sees them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from metadata.commands.cluster_state import ClusterState
from wire.operations.broker_operations import ListedBroker
from wire.types import BrokerId


def listed_brokers(
    state: ClusterState,
    *,
    stopping: Collection[BrokerId],
    dead_for: Mapping[BrokerId, float],
    bytes_on_disk: Mapping[BrokerId, int | None],
) -> list[ListedBroker]:
    """`dead_for`: seconds since the death of those that are dead; `bytes_on_disk`: of those that answer."""
    return [
        {
            "id": broker,
            "state": ("stopping" if broker in stopping else "alive") if known.alive else "dead",
            "dead_for_s": None if known.alive else round(dead_for.get(broker, 0.0), 1),
            "draining": known.draining,
            "zone": known.zone,
            "tags": [*known.tags],
            "replicas": state.held_by(broker),
            "leaders": state.led_by(broker),
            "bytes_on_disk": bytes_on_disk.get(broker),
            "voter": bool(known.raft_address),
            "is_controller": state.controller == broker,
        }
        for broker, known in sorted(state.brokers.items())
    ]
