"""Replicas as an operator sees them: their states, ends and lags, of what the metadata say and what brokers report.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from metadata.cluster.model import Partition, Stream
from metadata.commands.cluster_state import ClusterState
from metadata.controller.descriptions import report_of_leader
from wire.internal_streams import is_internal
from wire.operations.replica_operations import STREAMS_OF_PAGE, ListReplicasRequest, ReplicaForm
from wire.operations.reports import ReplicaReport
from wire.subjects import Subjects
from wire.turns import Steps, pieces
from wire.types import BrokerId, StreamName

_PIECE: Final = 20
_OF_REPLICA: Final = 8
"""Cost of a replica, in looks at a partition."""

_OF_FOLLOWERS: Final[Mapping[str, str]] = {
    "reconciling": "reconciling",
    "truncating": "reconciling",
    "installing": "installing",
    "diverged": "diverged",
    "leaderless": "leaderless",
    "opening": "opening",
    "no role": "idle",
}
"""States by what a replica that does not lead is doing; any other depends on the ISR."""


def asked_partitions(
    state: ClusterState, subjects: Subjects, request: ListReplicasRequest, limit: int
) -> Steps[tuple[list[tuple[StreamName, list[int]]], bool]]:
    """Returns the partitions of a page, by stream, and whether more come behind them."""
    page: list[tuple[StreamName, list[int]]] = []
    count = 0
    names = [StreamName(request.of_stream)] if request.of_stream else sorted(state.streams)
    yield len(names)
    for name in names:
        stream = state.streams.get(name)
        if stream is None or name < request.after_stream:
            continue
        if not (request.of_stream or request.internal) and is_internal(name, stream.subject, subjects):
            continue
        first = request.after_partition + 1 if name == request.after_stream else 0
        numbers: list[int] = []
        for piece in pieces(sorted(stream.partitions.items()), _PIECE):
            numbers += [
                number
                for number, partition in piece
                if number >= first
                and request.partition in (-1, number)
                and (not request.broker or request.broker in partition.replicas)
            ]
            yield len(piece)
            if count + len(numbers) > limit:
                break
        if not numbers:
            continue
        if count == limit or len(page) == STREAMS_OF_PAGE:
            return page, True
        fits = numbers[: limit - count]
        page.append((name, fits))
        count += len(fits)
        if len(fits) < len(numbers):
            return page, True
    return page, False


def replica_forms(
    state: ClusterState,
    stream: Stream,
    numbers: Sequence[int],
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
    broker: str = "",
) -> Steps[list[ReplicaForm]]:
    """`said`: by partition and broker. `broker`: only its replicas; empty: those of all. Partitions that were removed
    meanwhile are left out."""
    forms: list[ReplicaForm] = []
    for number in numbers:
        partition = stream.partitions.get(number)
        if partition is None:
            continue
        of = said.get(number, {})
        forms += [
            _form(state, stream.name, number, partition, replica, of)
            for replica in partition.replicas
            if broker in ("", replica)
        ]
        yield 1 + _OF_REPLICA * len(partition.replicas)
    return forms


def _form(
    state: ClusterState,
    stream: StreamName,
    number: int,
    partition: Partition,
    replica: BrokerId,
    said: Mapping[BrokerId, ReplicaReport],
) -> ReplicaForm:
    own: ReplicaReport = said.get(replica, {})
    of_leader = report_of_leader(partition, said)
    progress = (of_leader.get("replicas_progress") or {}).get(replica)
    end, leader_end = own.get("log_end_offset"), of_leader.get("log_end_offset")
    reached = progress["log_end_offset"] if progress is not None else None
    behind = leader_end - reached if leader_end is not None and reached is not None else None
    state_of, reason = _state(state, partition, replica, own)
    return {
        "stream": stream,
        "partition": number,
        "broker": replica,
        "leads": partition.leader == replica,
        "in_sync": replica in partition.isr,
        "state": state_of,
        "reason": reason,
        "leader_epoch": own.get("leader_epoch"),
        "log_start_offset": own.get("log_start_offset"),
        "log_end_offset": end,
        "high_watermark": own.get("high_watermark"),
        "lag_records": None if behind is None else max(0, behind),
        "lag_bytes": progress.get("lag_bytes") if progress is not None else None,
        "lag_s": progress.get("lag_s") if progress is not None else None,
        "bytes_on_disk": own.get("bytes_on_disk"),
        "quarantined": own["quarantined"]["events"] if "quarantined" in own else None,
    }


def _state(state: ClusterState, partition: Partition, replica: BrokerId, own: ReplicaReport) -> tuple[str, str | None]:
    """Returns its state, and why it is in it, where that needs to be said."""
    withdrawn = next((entry.reason for entry in partition.withdrawn if entry.replica == replica), None)
    if withdrawn is not None:
        return "withdrawn", withdrawn
    if not state.is_alive(replica):
        return "offline", None
    if not own:
        return "unknown", None
    damage = own.get("damage")
    if damage is not None:
        return "damaged", damage["reason"]
    if (failed := own.get("failed")) is not None:
        return "failed", failed
    doing = own.get("doing", "")
    if partition.leader == replica:
        leads = own.get("replicas_progress") is not None and own.get("leader_epoch") == partition.leader_epoch
        return "leading" if leads else "starting", None
    return _OF_FOLLOWERS.get(doing) or ("in sync" if replica in partition.isr else "catching up"), own.get("stopped")
