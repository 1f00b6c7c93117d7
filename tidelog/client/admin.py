"""Streams and the cluster as an operator sees them. Answers are the documented JSON forms, as dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

from tidelog.client.api import REPEATED, Api
from tidelog.client.errors import BadConfig, BadRequest, typed
from tidelog.client.metadata import MetadataCache, stream_name
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.subjects import Subjects

_MOVE_TIMEOUT = 15.0
"""Of a move with all that it waits for, s: the drain, the election, the new leader."""


class ReplicaProgress(TypedDict):
    log_end_offset: int | None
    in_sync: bool
    damage: dict[str, Any] | None
    """`reason`, `sound_end`, `known_end` (exclusive offsets) while the replica's log is damaged."""
    quarantined: dict[str, Any] | None
    """`events`: how often something was cut out of its log for damage; `latest`: the report of the last time."""
    stopped: str | None
    """Why it cannot copy from its leader until an operator does something."""


class PartitionDescription(TypedDict):
    partition: int
    leader: str | None
    replicas: list[str]
    isr: list[str]
    epoch: int
    leader_epoch: int
    high_watermark: int | None
    """Last committed offset, -1 = none; None while the leader does not answer."""
    log_start_offset: int | None
    log_end_offset: int | None
    replicas_progress: dict[str, ReplicaProgress]


class StreamDescription(TypedDict):
    name: str
    subject: str
    replication_factor: int
    config: dict[str, str]
    partitions: list[PartitionDescription]
    refusals: dict[str, str]
    """Why brokers could not tell what they hold, by broker."""


class StreamSummary(TypedDict):
    name: str
    subject: str
    partitions: int
    replication_factor: int
    config: dict[str, str]


class SpaceStatus(TypedDict):
    """A broker's disk, in bytes."""

    room: str
    """"ample", "short" (leaderships are handed over) or "full" (no records are taken)."""
    free_bytes: int
    total_bytes: int
    min_free_bytes: int


class DiskStatus(TypedDict):
    """Whether a broker's disk answers."""

    hangs: bool
    """A sync has not returned for longer than `replica_max_lag_time`: leaderships are handed over."""
    waited_s: float
    """For how long the oldest sync or checkpoint has been waiting for the disk."""


class PublishGap(TypedDict):
    """A time for which plain publishes to what a broker leads may have been lost."""

    began_ns: int
    ended_ns: int | None
    """None: it lasts. Both since 1970."""
    partitions: int
    """That it led."""
    reason: str


class BrokerStatus(TypedDict):
    id: str
    alive: bool
    incarnation: int
    voter: bool
    leaders: int
    replicas: int
    labels: dict[str, str]
    failed: list[str] | None
    """Partitions whose replica there is unsound; None, as `counters`, while the broker does not answer."""
    damaged: list[str] | None
    """Those of them whose log is not what was written: they are repaired from the others, if there are any."""
    counters: dict[str, int] | None
    """What it took in and what it dropped, since it started."""
    disk: DiskStatus | None
    space: SpaceStatus | None
    publish_gaps: list[PublishGap] | None
    """The newest; the counter of that name has all."""
    refusal: str | None
    """Why the broker could not tell its status."""


class OtherReplica(TypedDict):
    broker: str
    alive: bool
    standing: str
    """"isr", "eligible", "withdrawn" or "out of sync"."""
    log_end_offset: int | None


class UncleanElection(TypedDict):
    stream: str
    partition: int
    broker: str
    standing: str
    elected: bool
    log_start_offset: int | None
    log_end_offset: int | None
    """Of the replica that is chosen, as `high_watermark` (inclusive, -1 = none); None when it does not tell."""
    high_watermark: int | None
    others: list[OtherReplica]
    loss: str
    """What is given up, as a sentence."""


class OfflinePartition(TypedDict):
    partition: str
    """stream/partition"""
    waits_for: list[str]
    """Brokers whose replicas may lead: the first of them that starts with its data folder does. Empty where no sound
    replica is left."""


class OtherCluster(TypedDict):
    """A cluster that should not be in this namespace."""

    cluster_id: str
    broker: str
    """Whose message was the last one."""
    heard_seconds_ago: float


class ClusterStatus(TypedDict):
    cluster_id: str
    other_clusters: list[OtherCluster]
    controller: str | None
    generation: int
    config: dict[str, str]
    """What new streams get where they bring no setting of their own."""
    brokers: list[BrokerStatus]
    streams: int
    partitions: int
    offline_partitions: int
    offline: list[OfflinePartition]
    """The first hundred of them."""
    under_replicated: int
    under_replicated_partitions: list[str]
    """As `stream/partition`, the first hundred."""
    unclean_elections: int


class Admin:
    def __init__(self, api: Api, metadata: MetadataCache, subjects: Subjects) -> None:
        self._api = api
        self._metadata = metadata
        self._subjects = subjects

    async def create_stream(
        self,
        name: str,
        *,
        subject: str | None,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str | int | bool],
    ) -> StreamDescription:
        stream = stream_name(name)
        wanted = stream if subject is None else subject
        strings = _config_texts(config)
        try:
            self._subjects.check_subject(wanted)
        except TidelogError as error:
            raise typed(error) from None
        if partitions < 1:
            raise BadRequest(Code.BAD_REQUEST, f"a stream has at least one partition, not {partitions}")
        body = {
            "name": stream,
            "subject": wanted,
            "partitions": partitions,
            "replication_factor": replication_factor,
            "config": strings,
        }
        self._metadata.forget(stream)
        try:
            return cast(StreamDescription, await self._api.call("stream.create", body))
        except TidelogError as error:
            if error.code is not Code.STREAM_EXISTS or REPEATED not in error.details:
                raise
            # An answer was lost on the way, so it may be ours.
            found = await self.describe(stream)
            if found["subject"] != wanted or len(found["partitions"]) != partitions:
                raise
            return found

    async def alter_stream(
        self, name: str, *, config: Mapping[str, str | int | bool], unset: Iterable[str]
    ) -> StreamDescription:
        stream = stream_name(name)
        body = {"name": stream, "config": _config_texts(config), "unset": [*unset]}
        self._metadata.forget(stream)
        return cast(StreamDescription, await self._api.call("stream.alter", body))

    async def alter_cluster(self, *, config: Mapping[str, str | int | bool], unset: Iterable[str]) -> dict[str, str]:
        body = {"config": _config_texts(config), "unset": [*unset]}
        return cast("dict[str, str]", (await self._api.call("cluster.alter", body))["config"])

    async def delete_stream(self, name: str) -> None:
        stream = stream_name(name)
        try:
            await self._api.call("stream.delete", {"name": stream})
        except TidelogError as error:
            if error.code is not Code.UNKNOWN_STREAM or REPEATED not in error.details:
                raise
        self._metadata.forget(stream)

    async def streams(self) -> list[StreamSummary]:
        return cast("list[StreamSummary]", (await self._api.call("stream.list", {})).get("streams", []))

    async def describe(self, name: str) -> StreamDescription:
        return cast(StreamDescription, await self._api.call("stream.describe", {"name": stream_name(name)}))

    async def move_leader(self, stream: str, partition: int, broker: str) -> PartitionDescription:
        body = {"stream": stream_name(stream), "partition": partition, "broker": broker}
        try:
            moved = await self._api.call("partition.move_leader", body, timeout=_MOVE_TIMEOUT)
        except TidelogError as error:
            if error.code is not Code.BAD_REQUEST or REPEATED not in error.details:
                raise
            # An answer was lost on the way, so it may have been done.
            partitions = (await self.describe(stream))["partitions"]
            found = next((known for known in partitions if known["partition"] == partition), None)
            if found is None or found["leader"] != broker:
                raise
            return found
        return cast(PartitionDescription, moved)

    async def elect_unclean(self, stream: str, partition: int, broker: str, *, accept_loss: bool) -> UncleanElection:
        body = {"stream": stream_name(stream), "partition": partition, "broker": broker, "accept_loss": accept_loss}
        return cast(UncleanElection, await self._api.call("partition.unclean_elect", body))

    async def cluster_status(self) -> ClusterStatus:
        return cast(ClusterStatus, await self._api.call("cluster.status", {}))


def _config_texts(config: Mapping[str, str | int | bool]) -> dict[str, str]:
    """As the API takes them, each looked at by itself. Raises BadConfig."""
    texts = {key: _config_text(value) for key, value in config.items()}
    try:
        StreamConfig.from_strings(texts)
    except TidelogError as error:
        raise typed(error) from None
    return texts


def _config_text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise BadConfig(Code.BAD_CONFIG, f"a setting is text, a number or true/false, not {value!r}")
