"""The cluster state as clients and operators read it: the answers of `wire.operations.api_operations`.

Answers that grow with the number of streams or partitions are made in turns (`wire.turns`). Partitions are values, and
the names and partitions are copied first: an answer shows each stream as it was when its part of the answer began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from math import lcm

from metadata.cluster.model import Broker, Partition, Repartition, RepartitionPhase, Stream
from metadata.commands.cluster_state import ClusterState
from metadata.commands.repartition_commands import missing_partitions
from metadata.controller.admin_requests import unknown_stream
from metadata.controller.preferred_leaders import AwayPartition
from metadata.controller.repartitions import Repartitioning, concerned, unreported_sources
from wire.errors import Code, TidelogError
from wire.internal_streams import is_internal
from wire.layouts import MAX_LAYOUTS, sources
from wire.notation import RACK_LABEL
from wire.operations import api_operations as op
from wire.operations.api_operations import Traffic
from wire.operations.partition_operations import (
    MAX_LISTED,
    ChangedPartition,
    ChangedPartitions,
    PartitionSources,
    RepartitionPlan,
    RepartitionState,
    RepartitionStatus,
)
from wire.operations.reports import BrokerReport, ReplicaReport, UsageReport, total_traffic
from wire.subjects import Subjects
from wire.turns import Steps, pieces
from wire.types import BrokerId, Generation, LeaderEpoch, Offset, PartitionKey, StreamName


def plan_form(stream: Stream, partitions: int) -> RepartitionPlan:
    """Returns the effects of a repartition to so many partitions; `why_not_repartition` has allowed it."""
    before = stream.partition_count
    made = missing_partitions(stream, partitions)
    used_again = [number for number in range(before, partitions) if number in stream.partitions]
    left = [*range(partitions, before)]
    waits = _waits(before, partitions)
    return {
        "stream": stream.name,
        "partitioning_version": stream.partitioning_version,
        "partitions": before,
        "to_version": stream.partitioning_version + 1,
        "to_partitions": partitions,
        "made": made,
        "used_again": used_again,
        "left": left,
        # A hash has the same remainder by both counts in that many of the values below their least common multiple.
        "moved_keys": 1 - min(before, partitions) / lcm(before, partitions),
        "sources": waits,
        "effects": _effects(left, waits, forgets=len(stream.layouts) >= MAX_LAYOUTS),
    }


def _waits(before: int, after: int) -> list[PartitionSources]:
    waits: list[PartitionSources] = []
    for partition in range(after):
        others = sources(partition, before, after)
        if len(others) == 1 and others[0] == partition:
            continue  # its earlier records are in its own log
        waits.append(
            {
                "partition": partition,
                "waits_for": [other for other in others[: MAX_LISTED + 1] if other != partition][:MAX_LISTED],
            }
        )
        if len(waits) == MAX_LISTED:
            break
    return waits


def _effects(left: list[int], waits: list[PartitionSources], *, forgets: bool) -> list[str]:
    effects = [
        "producers learn of the new layout and go on by themselves; records of one key stay in their order",
        "a transaction that is open at the cutover and goes on writing is aborted, and has to begin again",
    ]
    if waits:
        one = waits[0]
        others = ", ".join(str(number) for number in one["waits_for"][:5])
        more = ", …" if len(one["waits_for"]) > 5 else ""
        effects.append(
            "groups and consumers that read by key get to the new records of a partition when those of its sources are"
            f" finished: a group that is behind in {others}{more} gets the new records of partition"
            f" {one['partition']} later"
        )
    if left:
        effects.append(
            f"{len(left)} {'partition takes' if len(left) == 1 else 'partitions take'} no records any more; such"
            " a partition can be read until retention has removed all its records, and plain publishes to its subject"
            " go to a partition in its place"
        )
    if forgets:
        effects.append(
            f"the stream has {MAX_LAYOUTS} layouts, and its oldest one is forgotten: who reads from before the change"
            " that followed that one no longer gets each key in order there"
        )
    return effects


def state_form(stream: Stream, driver: Repartitioning, now: float) -> RepartitionState | None:
    """Returns None when no repartition is under way. `driver`: of the controller."""
    marker = stream.repartition
    if marker is None:
        return None
    if marker.phase is RepartitionPhase.PREPARED:
        of, waiting = len(concerned(stream, marker)), driver.not_ready(stream)
    else:
        of, waiting = _have_to_tell(stream, marker), unreported_sources(stream)
    return {
        "version": marker.version,
        "partitions": marker.partitions,
        "phase": marker.phase.value,
        "adoption_generation": marker.adoption_generation,
        "done": of - len(waiting),
        "of": of,
        "waiting": waiting[:MAX_LISTED],
        "adopted": driver.adopted(stream.name),
        "done_for_s": driver.seconds_since_reports(stream.name, now),
        "adoption_timeout_s": driver.timeout_s,
    }


def _have_to_tell(stream: Stream, marker: Repartition) -> int:
    """Counts the partitions with records of the previous layout: those of it, and those that are used again."""
    return sum(
        number in stream.partitions and stream.partitions[number].incarnation < marker.prepared_generation
        for number in range(len(stream.layouts[-1].starts))
    )


def status_form(stream: Stream, driver: Repartitioning, now: float) -> RepartitionStatus:
    return {
        "stream": stream.name,
        "partitioning_version": stream.partitioning_version,
        "partitions": stream.partition_count,
        "repartition": state_form(stream, driver, now),
    }


MAX_LAGS = 10
"""Limit of the lags that the status of a cluster names."""
MAX_NAMED = 100
"""Limit of the partitions of one kind that the status of a cluster names; it counts all."""
_PIECE = 50
"""Partitions or streams that are looked at before `Steps` yield."""
_OF_REPLICA = 6
"""Cost of describing a replica, in looks at a partition."""
_OF_STREAM = 25
"""Cost of the summary of a stream with its settings, in looks at a partition."""


def by_partition(
    stream: Stream, told: Mapping[BrokerId, Sequence[ReplicaReport]]
) -> Steps[dict[int, dict[BrokerId, ReplicaReport]]]:
    """Returns the brokers' reports on the replicas of a stream, by partition; those of other incarnations of a
    partition are left out."""
    found: dict[int, dict[BrokerId, ReplicaReport]] = {}
    for broker, reports in told.items():
        for piece in pieces(reports, _PIECE):
            for said in piece:
                partition = stream.partitions.get(said.get("partition", -1))
                if partition is not None and said.get("incarnation") == partition.incarnation:
                    found.setdefault(said["partition"], {})[broker] = said
            yield len(piece)
    return found


def committed_ends(
    stream: Stream, said: Mapping[int, Mapping[BrokerId, ReplicaReport]]
) -> Steps[dict[int, tuple[LeaderEpoch, int]]]:
    """Returns (LeaderEpoch, end of the committed log) by partition; without those whose leader reports no end."""
    found: dict[int, tuple[LeaderEpoch, int]] = {}
    for number, reports in said.items():
        partition = stream.partitions.get(number)
        if partition is not None:
            end = report_of_leader(partition, reports).get("committed_end")
            if end is not None:
                found[number] = partition.leader_epoch, end
        yield 1
    return found


def report_of_leader(partition: Partition, said: Mapping[BrokerId, ReplicaReport]) -> ReplicaReport:
    """`said`: by broker. Returns {} where the leader does not serve, or does not lead by the state here."""
    told = said.get(partition.leader) if partition.leader is not None else None
    if told is None or told.get("replicas_progress") is None or told.get("leader_epoch") != partition.leader_epoch:
        return {}
    return told


def find_stream(state: ClusterState, name: str) -> Stream:
    """Raises TidelogError(UNKNOWN_STREAM)."""
    stream = state.streams.get(StreamName(name))
    if stream is None:
        raise unknown_stream(name)
    return stream


def find_partition(stream: Stream, number: int) -> Partition:
    """Raises TidelogError(BAD_REQUEST)."""
    partition = stream.partitions.get(number)
    if partition is None:
        raise TidelogError(Code.BAD_REQUEST, f"stream {stream.name} has no partition {number}")
    return partition


def stream_form(stream: Stream) -> op.StreamSummary:
    return {
        "name": stream.name,
        "subject": stream.subject,
        "partitions": stream.partition_count,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
    }


def listed_names(
    state: ClusterState, subjects: Subjects, *, internal: bool, after: str, limit: int
) -> tuple[list[StreamName], bool]:
    """Returns the names of the streams that are listed, sorted, and whether no others come after them. `internal`: with
    Tidelog's own. `limit` 0: all."""
    found = sorted(
        name
        for name, stream in state.streams.items()
        if name > after and (internal or not is_internal(name, stream.subject, subjects))
    )
    shown = found[: min(limit, op.PAGE)] if limit > 0 else found
    return shown, len(shown) == len(found)


def list_form(
    state: ClusterState,
    names: Sequence[StreamName],
    *,
    is_last: bool,
    usage: Mapping[BrokerId, UsageReport] | None = None,
) -> Steps[op.StreamList]:
    """`names`: sorted; those that were deleted since are left out. `is_last`: there are no others behind them. `usage`:
    of the brokers that answered; None: no broker was asked."""
    forms: list[op.StreamSummary] = []
    streams = [stream for name in names if (stream := state.streams.get(name)) is not None]
    for piece in pieces(streams, _PIECE):
        forms += [stream_form(stream) for stream in piece]
        yield len(piece) + _OF_STREAM * len(piece)
    page: op.StreamList = {"streams": forms, "unanswered": []}
    if not is_last:
        page["next"] = names[-1]
    if usage is None:
        return page
    for form in forms:
        told = [report["streams"][form["name"]] for report in usage.values() if form["name"] in report["streams"]]
        form["bytes_on_disk"] = sum([sum(each["bytes_on_disk"].values()) for each in told]) if told else None
        form["traffic"] = total_traffic(each["traffic"] for each in told) if told else None
        yield 1 + _OF_REPLICA * len(told) + sum(len(each["bytes_on_disk"]) for each in told) // 20
    holders: set[BrokerId] = set()
    for stream in streams:
        holders.update(replica for partition in stream.partitions.values() for replica in partition.replicas)
        yield 1 + len(stream.partitions) // 5
    page["unanswered"] = sorted(holders - usage.keys())
    return page


def describe_form(
    stream: Stream,
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
    refusals: Mapping[BrokerId, TidelogError],
    repartition: RepartitionState | None = None,
    *,
    numbers: Sequence[int],
    following: int | None = None,
) -> Steps[op.StreamDescription]:
    """`stream describe`. `said`: by partition and broker; offsets are null where the leader did not answer. `refusals`:
    of the brokers that could not answer. `repartition`: the one under way. `numbers`: of the partitions to describe;
    those that were removed since are left out. `following`: of the first one behind them."""
    told = [report for reports in said.values() for report in reports.values()]
    traffic: list[Traffic] = []
    for reports in pieces(told, _PIECE):
        traffic = [total_traffic([*traffic, *(each["traffic"] for each in reports if "traffic" in each)])]
        yield len(reports)
    partitions: list[op.PartitionDescription] = []
    form: op.StreamDescription = {
        "name": stream.name,
        "subject": stream.subject,
        "incarnation": stream.incarnation,
        "kind": stream.kind,
        "partitioner": stream.partitioner,
        "partitioning_version": stream.partitioning_version,
        "replication_factor": stream.replication_factor,
        "config": stream.settings.to_strings(),
        "partitions": partitions,
        "layouts": _layout_forms(stream),
        "repartition": repartition,
        "refusals": {broker: error.message for broker, error in refusals.items()},
        "bytes_on_disk": _bytes_of(told),
        "traffic": traffic[0] if any("traffic" in report for report in told) else None,
    }
    if following is not None:
        form["next"] = following
    described = [(number, stream.partitions[number]) for number in numbers if number in stream.partitions]
    for piece in pieces(described, _PIECE):
        for number, partition in piece:
            of = said.get(number, {})
            partitions.append(_partition_form(number, partition, report_of_leader(partition, of), of))
        yield sum(1 + _OF_REPLICA * len(partition.replicas) for _, partition in piece)
    return form


def _bytes_of(reports: Iterable[ReplicaReport]) -> int | None:
    """Returns None when no report has the number of bytes."""
    told = [report["bytes_on_disk"] for report in reports if "bytes_on_disk" in report]
    return sum(told) if told else None


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
    form: op.PartitionDescription = {
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
                "bytes_on_disk": said.get(replica, {}).get("bytes_on_disk"),
                "traffic": said.get(replica, {}).get("traffic"),
            }
            for replica in partition.replicas
        },
        "bytes_on_disk": _bytes_of(said.values()),
    }
    moving = partition.reassignment
    if moving is not None:
        form["reassignment"] = {
            "target": [*moving.target],
            "original": [*moving.original],
            "started": moving.is_started,
            "cancelled": moving.is_cancelled,
        }
    return form


def partition_form(stream: Stream, number: int, said: Mapping[BrokerId, ReplicaReport]) -> op.MovedPartition:
    """Describes one partition, as `describe_form` does; `said`: by broker."""
    partition = stream.partitions[number]
    return {"stream": stream.name, **_partition_form(number, partition, report_of_leader(partition, said), said)}


def changed_form(
    stream: Stream,
    numbers: Iterable[int],
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
    is_alive: Callable[[BrokerId], bool],
) -> Steps[ChangedPartitions]:
    """The partitions `numbers` after a change; `said`: by partition and broker. Partitions removed since are left
    out."""

    def form_of(number: int, partition: Partition) -> ChangedPartition:
        of = said.get(number, {})
        start = report_of_leader(partition, of).get("log_start_offset")
        return {
            "partition": number,
            "readonly": partition.readonly,
            "paused": partition.paused,
            "log_start_offset": max(partition.purged_end, start or Offset(0)),
            "not_yet": [
                broker
                for broker in partition.replicas
                if is_alive(broker) and not _knows(of.get(broker, {}), partition)
            ],
        }

    forms: list[ChangedPartition] = []
    changed = [(number, stream.partitions[number]) for number in numbers if number in stream.partitions]
    for piece in pieces(changed, _PIECE):
        forms += [form_of(number, partition) for number, partition in piece]
        yield sum(1 + len(partition.replicas) for _, partition in piece)
    return {"partitions": forms}


def _knows(told: ReplicaReport, partition: Partition) -> bool:
    return told.get("failed") is not None or (told.get("partition_epoch") or 0) >= partition.epoch


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
            "state": replica_state(partition, replica),
            "log_end_offset": held.get(replica, {}).get("log_end_offset"),
        }
        for replica in partition.replicas
        if replica != chosen
    ]
    return {
        "stream": key.stream,
        "partition": key.partition,
        "broker": chosen,
        "state": replica_state(partition, chosen),
        "log_start_offset": own.get("log_start_offset"),
        "log_end_offset": own.get("log_end_offset"),
        "high_watermark": own.get("high_watermark"),
        "damage": own.get("damage"),
        "others": others,
        "loss": "; ".join(
            (
                _loss(chosen, own, others, has_other_folder=chosen in _of_other_folders(partition)),
                *_why_withdrawn(partition),
            )
        ),
    }


def replica_state(partition: Partition, replica: BrokerId) -> str:
    """ "isr", "eligible", "withdrawn" or "out of sync"."""
    if partition.is_withdrawn(replica):
        return "withdrawn"
    if replica in partition.isr:
        return "isr"
    return "eligible" if replica in partition.eligible else "out of sync"


def _loss(chosen: BrokerId, own: ReplicaReport, others: Sequence[op.OtherReplica], *, has_other_folder: bool) -> str:
    holders = [
        f"{other['broker']} ({other['state']}, {'alive' if other['alive'] else 'dead'}"
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


def routes_form(state: ClusterState, stream: Stream) -> Steps[op.StreamRoutes]:
    """Leaders, ISRs and incarnations, with which a client reaches each partition; as of the generation in which it
    begins."""
    partitions: list[op.PartitionRoute] = []
    form: op.StreamRoutes = {
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
        "partitions": partitions,
    }
    yield _OF_STREAM
    for piece in pieces(sorted(stream.partitions.items()), _PIECE):
        partitions += [
            {
                "partition": number,
                "incarnation": partition.incarnation,
                "leader": partition.leader,
                "isr": list(partition.isr),
                "leader_epoch": partition.leader_epoch,
                "epoch": partition.epoch,
                "state": partition.state.value,
            }
            for number, partition in piece
        ]
        yield len(piece)
    return form


def metadata_form(
    state: ClusterState, broker: BrokerId, stream: Stream, labels: Mapping[BrokerId, Mapping[str, str]]
) -> Steps[op.Topology]:
    """The topology of one stream as the controller `broker` knows it, with racks. `labels`: of each broker's last probe
    answer."""
    routes = yield from routes_form(state, stream)
    replicas = sorted({replica for partition in stream.partitions.values() for replica in partition.replicas})
    yield len(stream.partitions)
    return {
        "cluster_id": state.cluster_id,
        "generation": routes["generation"],
        "home_broker": broker,
        "streams": [routes],
        "too_large": [],
        "next": None,
        "racks": {each: rack for each in replicas if (rack := labels.get(each, {}).get(RACK_LABEL)) is not None},
    }


def away_form(able: Sequence[AwayPartition], left: Sequence[AwayPartition]) -> op.RebalancedLeaders:
    """`able`: partitions whose leaderships go to their preferred leaders."""
    return {
        "moving": len(able),
        "left": len(left),
        "partitions": [
            {
                "partition": f"{each.key.stream}/{each.key.partition}",
                "leader": each.leader,
                "preferred": each.preferred,
                "obstacle": each.obstacle,
            }
            for each in [*able, *left][: op.PAGE]
        ],
    }


def defaults_form(state: ClusterState) -> op.ClusterDefaults:
    """Settings of the cluster, and of new streams where their creation sets none."""
    return {"config": dict(state.cluster_config)}


def cluster_form(
    state: ClusterState,
    subjects: Subjects,
    labels: Mapping[BrokerId, Mapping[str, str]],
    told: Mapping[BrokerId, BrokerReport | TidelogError],
    other_clusters: Sequence[op.OtherCluster] = (),
    repartitions: Sequence[RepartitionStatus] = (),
    leader_thrash: int = 0,
) -> Steps[op.ClusterStatus]:
    """`cluster status`. `labels` and `told`: of each broker's last answer; counters are null where one did not answer,
    and `refusal` says why one could not. At most MAX_NAMED partitions of a kind are named. `other_clusters`: seen by
    the controller in the namespace. `repartitions`: of the streams that are being repartitioned.
    `leader_thrash`: of `PreferredLeaders`."""
    counts = _Counts()
    offline: list[op.OfflinePartition] = []
    under_replicated: list[str] = []
    offline_count = under_replicated_count = partition_count = topology = 0
    streams = sorted(state.streams.items())
    internal = [stream for _, stream in streams if is_internal(stream.name, stream.subject, subjects)]
    yield len(streams)
    for name, stream in streams:
        topology = max(topology, stream.routing_generation)
        for piece in pieces(sorted(stream.partitions.items()), _PIECE):
            for number, partition in piece:
                counts.count(partition)
                if partition.leader is None:
                    offline_count += 1
                    if len(offline) < MAX_NAMED:
                        offline.append(_offline_form(f"{name}/{number}", partition))
                if len(partition.isr) < partition.copies:
                    under_replicated_count += 1
                    if len(under_replicated) < MAX_NAMED:
                        under_replicated.append(f"{name}/{number}")
            partition_count += len(piece)
            yield len(piece)
    of_internal = _Counts()
    for stream in internal:
        for partition in stream.partitions.values():
            of_internal.count(partition)
    internal_partitions = sum(len(stream.partitions) for stream in internal)
    brokers = [
        _broker_form(known, labels.get(broker, {}), told.get(broker, {}), counts, of_internal)
        for broker, known in sorted(state.brokers.items())
    ]
    yield internal_partitions + len(brokers)
    return {
        "cluster_id": state.cluster_id,
        "controller": state.controller,
        "controller_epoch": state.controller_epoch,
        "other_clusters": list(other_clusters),
        "generation": state.generation,
        "config": defaults_form(state)["config"],
        "brokers": brokers,
        "unclean_elections": state.unclean_elections,
        "leader_thrash": leader_thrash,
        "streams": len(streams) - len(internal),
        "partitions": partition_count - internal_partitions,
        "internal_streams": len(internal),
        "internal_partitions": internal_partitions,
        "offline_partitions": offline_count,
        "offline": offline,
        "under_replicated": under_replicated_count,
        "under_replicated_partitions": under_replicated,
        "topology_generation": Generation(topology),
        "repartitions": list(repartitions[:MAX_NAMED]),
        "lags": _worst_lags(told),
    }


def _worst_lags(told: Mapping[BrokerId, BrokerReport | TidelogError]) -> list[op.Lag]:
    """`told`: by broker; each reports its worst ones."""
    lags: list[op.Lag] = [
        {**lag, "leader": broker}
        for broker, report in told.items()
        if not isinstance(report, TidelogError)
        for lag in report.get("lags", ())
    ]
    return nlargest(MAX_LAGS, lags, key=lambda lag: (lag["lag_s"], lag["lag_records"]))


class _Counts:
    """Numbers of partitions by broker."""

    def __init__(self) -> None:
        self.leaders: Counter[BrokerId] = Counter()
        self.replicas: Counter[BrokerId] = Counter()

    def count(self, partition: Partition) -> None:
        if partition.leader is not None:
            self.leaders[partition.leader] += 1
        for replica in partition.replicas:
            self.replicas[replica] += 1


def _offline_form(key: str, partition: Partition) -> op.OfflinePartition:
    return {
        "partition": key,
        "waits_for": [
            replica
            for replica in (*partition.isr, *partition.eligible)
            if not partition.is_withdrawn(replica) or replica in _of_other_folders(partition)
        ],
        "other_folder": [*_of_other_folders(partition)],
        "reasons": _why_withdrawn(partition),
    }


def _why_withdrawn(partition: Partition) -> list[str]:
    """Returns the reasons for which replicas do not lead whatever starts."""
    return [entry.reason for entry in partition.withdrawn if not entry.sound_incarnation]


def _of_other_folders(partition: Partition) -> list[BrokerId]:
    """Returns withdrawn replicas that lead again once their broker starts with its earlier data folder."""
    return [entry.replica for entry in partition.withdrawn if entry.sound_incarnation]


def broker_description(
    state: ClusterState,
    subjects: Subjects,
    broker: BrokerId,
    labels: Mapping[str, str],
    told: BrokerReport | TidelogError,
    usage: UsageReport | None,
) -> Steps[op.BrokerDescription]:
    """`broker describe`. `told`: its report, or the error it answered with; `usage` None: it did not answer."""
    known = state.brokers[broker]
    counts, of_internal = _Counts(), _Counts()
    held: list[op.HeldReplica] = []
    streams = sorted(state.streams.items())
    yield len(streams)
    for name, stream in streams:
        ours = is_internal(name, stream.subject, subjects)
        used = usage["streams"][name]["bytes_on_disk"] if usage is not None and name in usage["streams"] else {}
        for piece in pieces(sorted(stream.partitions.items()), _PIECE):
            for number, partition in piece:
                counts.count(partition)
                if ours:
                    of_internal.count(partition)
                if broker in partition.replicas:
                    held.append(
                        {
                            "stream": name,
                            "partition": number,
                            "leads": partition.leader == broker,
                            "state": replica_state(partition, broker),
                            "isr": [*partition.isr],
                            "min_isr": stream.min_isr,
                            "bytes_on_disk": used.get(str(number)),
                        }
                    )
            yield 2 * len(piece)
    return {**_broker_form(known, labels, told, counts, of_internal), "held": held}


def _broker_form(
    known: Broker,
    labels: Mapping[str, str],
    told: BrokerReport | TidelogError,
    counts: _Counts,
    of_internal: _Counts,
) -> op.BrokerStatus:
    """`counts`: of all partitions; `of_internal`: of those of Tidelog's own streams."""
    broker = known.id
    report: BrokerReport = {} if isinstance(told, TidelogError) else told
    return {
        "id": broker,
        "alive": known.alive,
        "incarnation": known.incarnation,
        "voter": bool(known.raft_address),
        "zone": known.zone,
        "tags": [*known.tags],
        "draining": known.draining,
        "leaders": counts.leaders[broker] - of_internal.leaders[broker],
        "replicas": counts.replicas[broker] - of_internal.replicas[broker],
        "internal_leaders": of_internal.leaders[broker],
        "internal_replicas": of_internal.replicas[broker],
        "labels": dict(labels),
        "failed": report.get("failed"),
        "damaged": report.get("damaged"),
        "counters": report.get("counters"),
        "bytes_on_disk": report.get("bytes_on_disk"),
        "traffic": report.get("traffic"),
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
