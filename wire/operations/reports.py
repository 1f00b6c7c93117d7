"""Reports of a broker to the controller, on itself and on its replicas: JSON on `<ns>.metadata.status.<broker>`.

No field is required: a broker leaves out a field that it does not know. The other fields must be of the kind declared
here; a report with a field of another kind is dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NotRequired, TypedDict

from wire.operations.api_operations import (
    ClockStatus,
    Damage,
    DiskStatus,
    MissingPermissions,
    PublishGap,
    Quarantined,
    ReplicaEvent,
    SpaceStatus,
    Traffic,
)


class ReportedProgress(TypedDict):
    log_end_offset: int | None
    in_sync: bool
    lag_bytes: NotRequired[int | None]
    """About so many bytes of the leader's log are above its end; None: that is not known in this LeaderEpoch."""
    lag_s: NotRequired[float]
    """Seconds since it had acknowledged all that the leader had; 0: it has."""


class ReportedLag(TypedDict):
    """A follower that does not have all that its leader has."""

    stream: str
    partition: int
    broker: str
    """The follower's."""
    lag_records: int
    lag_bytes: int
    lag_s: float


class ReplicaReport(TypedDict, total=False):
    partition: int
    incarnation: int
    role: str
    doing: str
    """"opening", "no role", "leading", "starting" to lead, or the state of a follower."""
    failed: str | None
    """Why the replica is unsound."""
    damage: Damage | None
    quarantined: Quarantined
    not_heard: list[str]
    """Subjects of this replica that NATS does not let the broker subscribe to."""
    stopped: str | None
    """Why it cannot copy from its leader until an operator does something."""
    leader_epoch: int | None
    partition_epoch: int | None
    """The partition epoch of the metadata that its role acts by."""
    committed_end: int | None
    """Exclusive; what readers are told as the end, in front of a transaction that is open; of a leader inside its lease
    that knows it, else null."""
    high_watermark: int
    """Inclusive, -1 = none."""
    last_stable_offset: int | None
    """Exclusive; below the HW while a transaction is open."""
    log_start_offset: int | None
    log_end_offset: int | None
    compacted_to: int | None
    scrubbed_at_ns: int | None
    replicas_progress: dict[str, ReportedProgress] | None
    """By broker, where this replica leads and serves; else null."""
    bytes_on_disk: int
    """Bytes of the segments of its log."""
    traffic: Traffic
    history: list[ReplicaEvent]
    """Its last events, oldest first, where they were asked for."""


class StreamReport(TypedDict):
    partitions: list[ReplicaReport]
    """The partitions of a stream that the broker replicates."""


class StreamUsage(TypedDict):
    bytes_on_disk: dict[str, int]
    """Bytes of each replica that the broker holds, by the number of the partition."""
    traffic: Traffic
    """At this broker."""


class UsageReport(TypedDict):
    streams: dict[str, StreamUsage]
    """All streams of which the broker holds a replica."""


class BrokerReport(TypedDict, total=False):
    clock: ClockStatus
    replicas: int
    leaders: int
    failed: list[str]
    damaged: list[str]
    counters: dict[str, int]
    bytes_on_disk: int
    traffic: Traffic
    publish_gaps: list[PublishGap]
    refused_messages: dict[str, dict[str, int]]
    """Messages on the subjects of brokers that no broker of the cluster has sent, by kind of subject and reason."""
    not_permitted: MissingPermissions
    secrets: list[str]
    """Fingerprints of the secrets that it holds, the one in use first."""
    tasks: int
    disk: DiskStatus
    space: SpaceStatus
    lags: list[ReportedLag]
    """The followers that are furthest behind, of the partitions that it leads; the worst first."""


def total_traffic(each: Iterable[Traffic]) -> Traffic:
    """Their sum."""
    told = [*each]
    return {
        "records_in": sum(one["records_in"] for one in told),
        "bytes_in": sum(one["bytes_in"] for one in told),
        "records_out": sum(one["records_out"] for one in told),
        "bytes_out": sum(one["bytes_out"] for one in told),
        "records_in_per_s": round(sum((one["records_in_per_s"] for one in told), 0.0), 3),
        "bytes_in_per_s": round(sum((one["bytes_in_per_s"] for one in told), 0.0), 3),
        "records_out_per_s": round(sum((one["records_out_per_s"] for one in told), 0.0), 3),
        "bytes_out_per_s": round(sum((one["bytes_out_per_s"] for one in told), 0.0), 3),
    }
