"""The cluster state as the JSON forms that clients and operators read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metadata.controller import unknown_stream
from metadata.model import Partition, Stream
from metadata.state import ClusterState
from wire.errors import TidelogError
from wire.types import BrokerId, PartitionKey, StreamName

MAX_NAMED = 100
"""Partitions of a kind that the status of a cluster names; it counts all."""

Said = Mapping[str, Any]
"""What a broker said of one of its replicas: `leader_epoch`, `log_start_offset`, `log_end_offset`, `high_watermark`
(inclusive, -1 = none), `replicas_progress` {broker: {"log_end_offset"}} where it leads and serves; `damage` {"reason",
"sound_end", "known_end"} where its log is damaged; `quarantined` {"events", "latest"}: what was cut out of it;
`stopped`: why a follower cannot copy until an operator does something."""


def said_by_leaders(stream: Stream, said: Mapping[int, Mapping[BrokerId, Said]]) -> dict[int, Said]:
    """By partition: what its leader said, where it serves and leads by the state here too."""
    found = {}
    for number, partition in stream.partitions.items():
        told = said.get(number, {}).get(partition.leader) if partition.leader is not None else None
        if told is None or told.get("replicas_progress") is None:
            continue
        if told.get("leader_epoch") == partition.leader_epoch:
            found[number] = told
    return found


def find_stream(state: ClusterState, name: str) -> Stream:
    """Raises TidelogError(UNKNOWN_STREAM)."""
    stream = state.streams.get(StreamName(name))
    if stream is None:
        raise unknown_stream(name)
    return stream


def stream_form(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "subject": stream.subject,
        "partitions": len(stream.partitions),
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
    }


def list_form(state: ClusterState) -> dict[str, Any]:
    return {"streams": [stream_form(stream) for _, stream in sorted(state.streams.items())]}


def describe_form(
    stream: Stream,
    said: Mapping[int, Mapping[BrokerId, Said]],
    refusals: Mapping[BrokerId, TidelogError] | None = None,
) -> dict[str, Any]:
    """`stream describe`. `said`: by partition and broker; offsets are null where the leader did not answer. `refusals`:
    of the brokers that could not answer."""
    progress = said_by_leaders(stream, said)
    return {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "kind": stream.kind,
        "partitioning_version": stream.partitioning_version,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
        "partitions": [
            _partition_form(number, partition, progress.get(number, {}), said.get(number, {}))
            for number, partition in sorted(stream.partitions.items())
        ],
        "refusals": {broker: error.message for broker, error in (refusals or {}).items()},
    }


def _partition_form(number: int, partition: Partition, progress: Said, said: Mapping[BrokerId, Said]) -> dict[str, Any]:
    replicas: Mapping[str, Mapping[str, Any]] = progress.get("replicas_progress") or {}
    return {
        "partition": number,
        "incarnation": partition.incarnation,
        "state": partition.state.value,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "eligible": list(partition.eligible),
        "withdrawn": [{"replica": entry.replica, "reason": entry.reason} for entry in partition.withdrawn],
        "epoch": partition.epoch,
        "leader_epoch": partition.leader_epoch,
        "paused": partition.paused,
        "readonly": partition.readonly,
        "high_watermark": progress.get("high_watermark"),
        "log_start_offset": progress.get("log_start_offset"),
        "log_end_offset": progress.get("log_end_offset"),
        "replicas_progress": {
            replica: {
                "log_end_offset": replicas.get(replica, {}).get("log_end_offset"),
                "in_sync": replica in partition.isr,
                "damage": said.get(replica, {}).get("damage"),
                "quarantined": said.get(replica, {}).get("quarantined"),
                "stopped": said.get(replica, {}).get("stopped"),
            }
            for replica in partition.replicas
        },
    }


def partition_form(stream: Stream, number: int, said: Mapping[BrokerId, Said]) -> dict[str, Any]:
    """One of them, as `describe_form` has it; `said`: by broker."""
    progress = said_by_leaders(stream, {number: said}).get(number, {})
    return {"stream": stream.name, **_partition_form(number, stream.partitions[number], progress, said)}


def loss_form(
    state: ClusterState, key: PartitionKey, partition: Partition, chosen: BrokerId, held: Mapping[BrokerId, Any]
) -> dict[str, Any]:
    """What an unclean election of `chosen` gives up, as far as that is known. `held`: what live replicas said of their
    logs: `log_start_offset`, `log_end_offset`, `high_watermark` (inclusive, -1 = none)."""
    own = held.get(chosen, {})
    others = [
        {
            "broker": replica,
            "alive": state.is_alive(replica),
            "standing": _standing(partition, replica),
            "log_end_offset": held.get(replica, {}).get("log_end_offset"),
        }
        for replica in partition.replicas
        if replica != chosen
    ]
    return {
        "stream": key.stream,
        "partition": key.partition,
        "broker": chosen,
        "standing": _standing(partition, chosen),
        "log_start_offset": own.get("log_start_offset"),
        "log_end_offset": own.get("log_end_offset"),
        "high_watermark": own.get("high_watermark"),
        "damage": own.get("damage"),
        "others": others,
        "loss": _loss(chosen, own, others),
    }


def _standing(partition: Partition, replica: BrokerId) -> str:
    if partition.is_withdrawn(replica):
        return "withdrawn"
    if replica in partition.isr:
        return "isr"
    return "eligible" if replica in partition.eligible else "out of sync"


def _loss(chosen: BrokerId, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    named = ", ".join(
        f"{other['broker']} ({other['standing']}, {'alive' if other['alive'] else 'dead'}"
        + (f", log to offset {other['log_end_offset']})" if other["log_end_offset"] is not None else ")")
        for other in others
    )
    end, known, damage = own.get("log_end_offset"), own.get("high_watermark"), own.get("damage")
    if damage is not None:
        return _loss_by_damage(chosen, damage, named)
    if end is None or known is None:
        return f"{chosen} does not tell what it holds: records that only {named} hold are given up, however many"
    text = f"records from offset {end} on, which only {named} may hold, are given up"
    if known + 1 < end:
        text += (
            f"; of those from offset {known + 1} to {end - 1} {chosen} holds versions"
            " that may differ from what was committed"
        )
    return text


def _loss_by_damage(chosen: BrokerId, damage: Mapping[str, Any], named: str) -> str:
    sound, known = damage.get("sound_end"), damage.get("known_end")
    if sound is None or known is None:
        return f"the log of {chosen} is damaged, and it is still reading how far it is sound; ask again in a moment"
    kept = f"what {chosen} has of it is kept in its quarantine ({damage['reason']})"
    beyond = f", and those from {known} on, which only {named} may hold," if named else ""
    if known <= sound:
        return f"the log of {chosen} is sound up to its end, {sound}; no record of it is given up{beyond.rstrip(',')}"
    return f"records from offset {sound} to {known - 1}{beyond} are given up; {kept}"


def metadata_form(state: ClusterState, stream: Stream) -> dict[str, Any]:
    """What a client needs to reach each partition."""
    return {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "partitioning_version": stream.partitioning_version,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
        "generation": state.generation,
        "partitions": [
            {
                "partition": number,
                "incarnation": partition.incarnation,
                "leader": partition.leader,
                "isr": list(partition.isr),
                "leader_epoch": partition.leader_epoch,
                "epoch": partition.epoch,
                "state": partition.state.value,
            }
            for number, partition in sorted(stream.partitions.items())
        ],
    }


def defaults_form(state: ClusterState) -> dict[str, Any]:
    """What new streams get where they bring no setting of their own."""
    return {"config": dict(state.defaults)}


def cluster_form(
    state: ClusterState,
    labels: Mapping[BrokerId, Mapping[str, str]],
    totals: Mapping[BrokerId, Mapping[str, Any]],
    other_clusters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`cluster status`. `labels` and `totals`: as the brokers last said; counters are null where one did not answer,
    and `refusal` says why one could not. At most MAX_NAMED partitions of a kind are named. `other_clusters`:
    those that the controller has heard in the namespace."""
    keyed = list(state.partitions())
    partitions = [partition for _, partition in keyed]
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "office": state.office,
        "other_clusters": list(other_clusters),
        "generation": state.generation,
        **defaults_form(state),
        "brokers": [
            {
                "id": broker.id,
                "alive": broker.alive,
                "incarnation": broker.incarnation,
                "voter": bool(broker.raft_address),
                "leaders": state.led_by(broker.id),
                "replicas": _count([broker.id in partition.replicas for partition in partitions]),
                "labels": dict(labels.get(broker.id, {})),
                "failed": totals.get(broker.id, {}).get("failed"),
                "damaged": totals.get(broker.id, {}).get("damaged"),
                "counters": totals.get(broker.id, {}).get("counters"),
                "disk": totals.get(broker.id, {}).get("disk"),
                "space": totals.get(broker.id, {}).get("space"),
                "publish_gaps": totals.get(broker.id, {}).get("publish_gaps"),
                "refusal": totals.get(broker.id, {}).get("refusal"),
            }
            for _, broker in sorted(state.brokers.items())
        ],
        "unclean_elections": state.unclean_elections,
        "streams": len(state.streams),
        "partitions": len(partitions),
        "offline_partitions": _count([partition.leader is None for partition in partitions]),
        "offline": [
            {
                "partition": str(key),
                "waits_for": [r for r in (*partition.isr, *partition.eligible) if not partition.is_withdrawn(r)],
            }
            for key, partition in keyed
            if partition.leader is None
        ][:MAX_NAMED],
        "under_replicated": _count([_is_under_replicated(partition) for partition in partitions]),
        "under_replicated_partitions": [str(key) for key, partition in keyed if _is_under_replicated(partition)][
            :MAX_NAMED
        ],
    }


def _is_under_replicated(partition: Partition) -> bool:
    return len(partition.isr) < len(partition.replicas)


def _count(flags: Sequence[bool]) -> int:
    return sum(flags)
