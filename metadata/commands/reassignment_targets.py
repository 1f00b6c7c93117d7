"""Which replicas a partition may get, and which it is to have."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Partition
from wire.types import BrokerId


# Keeps R93.
def why_not_target(cluster: Cluster, partition: Partition, target: Sequence[BrokerId], factor: int) -> str | None:
    """Returns why the partition cannot get these replicas; None: it can."""
    if len({*target}) != len(target):
        return "a broker is named twice; name each once"
    if len(target) != factor:
        return f"{len(target)} brokers are named, and the stream has {factor} replicas; name {factor}"
    unknown = [broker for broker in target if broker not in cluster.brokers]
    if unknown:
        return f"broker {unknown[0]} is not known; `tidelog cluster status` shows the brokers"
    dead = [broker for broker in target if broker not in partition.replicas and not cluster.is_alive(broker)]
    if dead:
        return f"broker {dead[0]} is not alive; start it first"
    draining = [broker for broker in target if broker not in partition.replicas and cluster.is_draining(broker)]
    if draining:
        return f"broker {draining[0]} is draining; `tidelog broker drain {draining[0]} --cancel` ends that"
    return None


def wanted_replicas(partition: Partition) -> tuple[BrokerId, ...]:
    """The replicas that the partition has, or is to get."""
    return partition.replicas if partition.reassignment is None else partition.reassignment.target
