"""The cluster state as clients and operators read it: the answers of `wire.operations`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from metadata.model import Partition, Stream
from metadata.requests import unknown_stream
from metadata.state import ClusterState
from wire import operations as op
from wire.errors import TidelogError
from wire.internal_streams import is_internal
from wire.partition_operations import ChangedPartitions
from wire.racks import RACK_LABEL
from wire.repartition_operations import RepartitionState, RepartitionStatus
from wire.reports import BrokerReport, ReplicaReport
from wire.subjects import Subjects
from wire.types import BrokerId, Generation, Offset, PartitionKey, StreamName

MAX_NAMED = 100
"""Partitions of a kind that the status of a cluster names; it counts all."""


def reports_of_leaders(
    stream: Stream, said: Mapping[int, Mapping[BrokerId, ReplicaReport]]
) -> dict[int, ReplicaReport]:
    """The report of each partition's leader, where it serves and leads by the state here too."""
    found: dict[int, ReplicaReport] = {}
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


def stream_form(stream: Stream) -> op.StreamSummary:
    return {
        "name": stream.name,
        "subject": stream.subject,
        "partitions": stream.partition_count,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
    }


def list_form(state: ClusterState, subjects: Subjects, *, internal: bool = False) -> op.StreamList:
    """`internal`: with Tidelog's own."""
    return {
        "streams": [
            stream_form(stream)
            for name, stream in sorted(state.streams.items())
            if internal or not is_internal(name, stream.subject, subjects)
        ]
    }


def describe_form(
    stream: Stream,
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
    refusals: Mapping[BrokerId, TidelogError],
    repartition: RepartitionState | None = None,
) -> op.StreamDescription:
    """`stream describe`. `said`: by partition and broker; offsets are null where the leader did not answer. `refusals`:
    of the brokers that could not answer. `repartition`: that is under way."""
    progress = reports_of_leaders(stream, said)
    return {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "kind": stream.kind,
        "partitioner": stream.partitioner,
        "partitioning_version": stream.partitioning_version,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
        "partitions": [
            _partition_form(number, partition, progress.get(number, {}), said.get(number, {}))
            for number, partition in sorted(stream.partitions.items())
        ],
        "layouts": _layout_forms(stream),
        "repartition": repartition,
        "refusals": {broker: error.message for broker, error in refusals.items()},
    }


def _layout_forms(stream: Stream) -> list[op.LayoutForm]:
    return [
        {
            "version": layout.version,
            "partitions": layout.partitions,
            "generation": layout.generation,
            "starts": list(layout.starts),
        }
        for layout in stream.layouts
    ]


def _partition_form(
    number: int, partition: Partition, progress: ReplicaReport, said: Mapping[BrokerId, ReplicaReport]
) -> op.PartitionDescription:
    replicas = progress.get("replicas_progress") or {}
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
        "last_stable_offset": progress.get("last_stable_offset"),
        "log_start_offset": progress.get("log_start_offset"),
        "log_end_offset": progress.get("log_end_offset"),
        "not_heard": {broker: subjects for broker, report in said.items() if (subjects := report.get("not_heard"))},
        "replicas_progress": {
            replica: {
                "log_end_offset": replicas[replica]["log_end_offset"] if replica in replicas else None,
                "in_sync": replica in partition.isr,
                "damage": said.get(replica, {}).get("damage"),
                "quarantined": said.get(replica, {}).get("quarantined"),
                "stopped": said.get(replica, {}).get("stopped"),
            }
            for replica in partition.replicas
        },
    }


def partition_form(stream: Stream, number: int, said: Mapping[BrokerId, ReplicaReport]) -> op.MovedPartition:
    """One of them, as `describe_form` has it; `said`: by broker."""
    progress = reports_of_leaders(stream, {number: said}).get(number, {})
    return {"stream": stream.name, **_partition_form(number, stream.partitions[number], progress, said)}


def changed_form(
    stream: Stream,
    numbers: Iterable[int],
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
    is_alive: Callable[[BrokerId], bool],
) -> ChangedPartitions:
    """After a change of these partitions; `said`: by partition and broker."""
    leaders = reports_of_leaders(stream, said)

    def knows(number: int, broker: BrokerId) -> bool:
        told = said.get(number, {}).get(broker, {})
        return told.get("failed") is not None or (told.get("partition_epoch") or 0) >= stream.partitions[number].epoch

    return {
        "partitions": [
            {
                "partition": number,
                "readonly": partition.readonly,
                "paused": partition.paused,
                "log_start_offset": max(
                    partition.purged_end, leaders.get(number, {}).get("log_start_offset") or Offset(0)
                ),
                "not_yet": [broker for broker in partition.replicas if is_alive(broker) and not knows(number, broker)],
            }
            for number, partition in ((number, stream.partitions[number]) for number in numbers)
        ]
    }


def loss_form(
    state: ClusterState,
    key: PartitionKey,
    partition: Partition,
    chosen: BrokerId,
    held: Mapping[BrokerId, ReplicaReport],
) -> op.Loss:
    """The loss of an unclean election of `chosen`, as far as it is known. `held`: reports of live replicas on their
    logs: `log_start_offset`, `log_end_offset`, `high_watermark` (inclusive, -1 = none)."""
    own = held.get(chosen, {})
    others: list[op.OtherReplica] = [
        {
            "broker": replica,
            "alive": state.is_alive(replica),
            "standing": standing(partition, replica),
            "log_end_offset": held.get(replica, {}).get("log_end_offset"),
        }
        for replica in partition.replicas
        if replica != chosen
    ]
    return {
        "stream": key.stream,
        "partition": key.partition,
        "broker": chosen,
        "standing": standing(partition, chosen),
        "log_start_offset": own.get("log_start_offset"),
        "log_end_offset": own.get("log_end_offset"),
        "high_watermark": own.get("high_watermark"),
        "damage": own.get("damage"),
        "others": others,
        "loss": _loss(chosen, own, others, has_other_folder=chosen in _of_other_folders(partition)),
    }


def standing(partition: Partition, replica: BrokerId) -> str:
    """ "isr", "eligible", "withdrawn" or "out of sync"."""
    if partition.is_withdrawn(replica):
        return "withdrawn"
    if replica in partition.isr:
        return "isr"
    return "eligible" if replica in partition.eligible else "out of sync"


def _loss(chosen: BrokerId, own: ReplicaReport, others: Sequence[op.OtherReplica], *, has_other_folder: bool) -> str:
    holders = [
        f"{other['broker']} ({other['standing']}, {'alive' if other['alive'] else 'dead'}"
        + (f", log to offset {other['log_end_offset']})" if other["log_end_offset"] is not None else ")")
        for other in others
    ]
    if has_other_folder:
        holders.append(f"the earlier data folder of {chosen}")
    named = ", ".join(holders)
    end, known, damage = own.get("log_end_offset"), own.get("high_watermark"), own.get("damage")
    if damage is not None:
        return _loss_by_damage(chosen, damage, named)
    if end is None or known is None:
        only = f"that only {named} hold" if named else "that it does not hold"
        return f"{chosen} does not tell what it holds: records {only} are given up, however many"
    who = f"only {named} may hold" if named else "no other replica holds"
    text = f"records from offset {end} on, which {who}, are given up"
    if known + 1 < end:
        text += (
            f"; of those from offset {known + 1} to {end - 1} {chosen} holds versions"
            " that may differ from what was committed"
        )
    return text


def _loss_by_damage(chosen: BrokerId, damage: op.Damage, named: str) -> str:
    sound, known = damage["sound_end"], damage["known_end"]
    if sound is None or known is None:
        return f"the log of {chosen} is damaged, and it is still reading how far it is sound; ask again in a moment"
    kept = f"what {chosen} has of it is kept in its quarantine ({damage['reason']})"
    beyond = f", and those from {known} on, which only {named} may hold," if named else ""
    if known <= sound:
        return f"the log of {chosen} is sound up to its end, {sound}; no record of it is given up{beyond.rstrip(',')}"
    return f"records from offset {sound} to {known - 1}{beyond} are given up; {kept}"


def metadata_form(state: ClusterState, stream: Stream, labels: Mapping[BrokerId, Mapping[str, str]]) -> op.StreamRoutes:
    """Leaders, ISRs and incarnations, with which a client reaches each partition, and racks. `labels`: as the brokers
    last said."""
    replicas = sorted({replica for partition in stream.partitions.values() for replica in partition.replicas})
    return {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "kind": stream.kind,
        "partitioner": stream.partitioner,
        "partitioning_version": stream.partitioning_version,
        "routing_generation": stream.routing_generation,
        "layouts": _layout_forms(stream),
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
        "racks": {
            replica: rack for replica in replicas if (rack := labels.get(replica, {}).get(RACK_LABEL)) is not None
        },
    }


def defaults_form(state: ClusterState) -> op.ClusterDefaults:
    """Settings that new streams get where they bring none of their own."""
    return {"config": dict(state.defaults)}


def cluster_form(
    state: ClusterState,
    subjects: Subjects,
    labels: Mapping[BrokerId, Mapping[str, str]],
    told: Mapping[BrokerId, BrokerReport | TidelogError],
    other_clusters: Sequence[op.OtherCluster] = (),
    repartitions: Sequence[RepartitionStatus] = (),
) -> op.ClusterStatus:
    """`cluster status`. `labels` and `told`: as the brokers last said; counters are null where one did not answer,
    and `refusal` says why one could not. At most MAX_NAMED partitions of a kind are named. `other_clusters`:
    clusters that the controller has heard in the namespace. `repartitions`: of the streams that are being
    repartitioned."""
    streams = list(state.streams.values())
    internal = [stream for stream in streams if is_internal(stream.name, stream.subject, subjects)]
    internal_partitions = sum(len(stream.partitions) for stream in internal)
    keyed = list(state.partitions())
    partitions = [partition for _, partition in keyed]
    offline: list[op.OfflinePartition] = [
        {
            "partition": str(key),
            "waits_for": [
                replica
                for replica in (*partition.isr, *partition.eligible)
                if not partition.is_withdrawn(replica) or replica in _of_other_folders(partition)
            ],
            "other_folder": [*_of_other_folders(partition)],
        }
        for key, partition in keyed
        if partition.leader is None
    ]
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "office": state.controller_epoch,
        "other_clusters": list(other_clusters),
        "generation": state.generation,
        **defaults_form(state),
        "brokers": [
            broker_form(state, subjects, broker, labels.get(broker, {}), told.get(broker, {}))
            for broker in sorted(state.brokers)
        ],
        "unclean_elections": state.unclean_elections,
        "streams": len(streams) - len(internal),
        "partitions": len(keyed) - internal_partitions,
        "internal_streams": len(internal),
        "internal_partitions": internal_partitions,
        "offline_partitions": len(offline),
        "offline": offline[:MAX_NAMED],
        "under_replicated": _count([_is_under_replicated(partition) for partition in partitions]),
        "under_replicated_partitions": [str(key) for key, partition in keyed if _is_under_replicated(partition)][
            :MAX_NAMED
        ],
        "topology_generation": max((stream.routing_generation for stream in streams), default=Generation(0)),
        "repartitions": list(repartitions[:MAX_NAMED]),
    }


def _of_other_folders(partition: Partition) -> list[BrokerId]:
    """Withdrawn replicas that lead again once their broker starts with the data folder that it had."""
    return [entry.replica for entry in partition.withdrawn if entry.sound_incarnation]


def _is_under_replicated(partition: Partition) -> bool:
    return len(partition.isr) < len(partition.replicas)


def broker_form(
    state: ClusterState,
    subjects: Subjects,
    broker: BrokerId,
    labels: Mapping[str, str],
    told: BrokerReport | TidelogError,
) -> op.BrokerStatus:
    known = state.brokers[broker]
    report: BrokerReport = {} if isinstance(told, TidelogError) else told
    internal = [
        partition
        for stream in state.streams.values()
        if is_internal(stream.name, stream.subject, subjects)
        for partition in stream.partitions.values()
    ]
    internal_leaders = _count([partition.leader == broker for partition in internal])
    internal_replicas = _count([broker in partition.replicas for partition in internal])
    replicas = _count([broker in partition.replicas for _, partition in state.partitions()])
    return {
        "id": broker,
        "alive": known.alive,
        "incarnation": known.incarnation,
        "voter": bool(known.raft_address),
        "leaders": state.led_by(broker) - internal_leaders,
        "replicas": replicas - internal_replicas,
        "internal_leaders": internal_leaders,
        "internal_replicas": internal_replicas,
        "labels": dict(labels),
        "failed": report.get("failed"),
        "damaged": report.get("damaged"),
        "counters": report.get("counters"),
        "disk": report.get("disk"),
        "space": report.get("space"),
        "clock": report.get("clock"),
        "publish_gaps": report.get("publish_gaps"),
        "refused_messages": report.get("refused_messages"),
        "not_permitted": report.get("not_permitted"),
        "secrets": report.get("secrets"),
        "tasks": report.get("tasks"),
        "refusal": told.message if isinstance(told, TidelogError) else None,
    }


def _count(flags: Sequence[bool]) -> int:
    return sum(flags)
