"""Changes by an operator that take more than one call: arguments are checked before they are sent, and a change whose
answer was lost on the way is looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from tidelog.client.base.arguments import (
    bad,
    check_mapping,
    check_texts,
    check_whole,
    partition_count,
    shown,
)
from tidelog.client.base.exceptions import BadConfig, BadRequest, StreamExists, typed
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.metadata_cache import MetadataCache, partitions_spread_over, stream_name
from wire.cluster_config import plain
from wire.error_details import REPEATED
from wire.errors import Code, TidelogError
from wire.layouts import DEFAULT_PARTITIONER, MAX_PARTITIONS, check_partitioner
from wire.operations import api_operations as op
from wire.operations.replica_operations import REPLICA_LIST, ReplicaList, ReplicaPosition
from wire.operations.reports import total_traffic
from wire.stream_config import StreamConfig
from wire.subjects import Subjects

_MAX_OFFSET = (1 << 63) - 1


def partition_numbers(partitions: Iterable[int]) -> list[int]:
    """Raises BadRequest."""
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise bad(f"partitions={shown(partitions)} is no list of numbers; give one such as [0, 2]")
    numbers = [*partitions]
    if not numbers:
        raise bad("partitions is empty; name one, or leave it out for all")
    for number in numbers:
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
    return numbers


def replica_targets(replicas: object) -> dict[str, list[str]]:
    """Raises BadRequest."""
    if not isinstance(replicas, Mapping) or not replicas:
        raise bad(f"replicas={shown(replicas)} name no partitions; give brokers such as {{0: ['b1', 'b2', 'b3']}}")
    found: dict[str, list[str]] = {}
    for number, brokers in replicas.items():
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
        check_texts(f"replicas[{number}]", brokers, "['b1', 'b2']")
        found[str(number)] = [*brokers]
    return found


def check_offsets(before: object) -> None:
    if not isinstance(before, Mapping) or not before:
        raise bad(f"before={shown(before)} is no mapping of partitions to offsets; give one such as {{0: 1000}}")
    for number, offset in before.items():
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
        if offset != "latest":
            check_whole(f"the offset of partition {number}", offset, 0, _MAX_OFFSET)


class EnsuredStream(op.StreamDescription):
    created: bool
    """False: it was there."""


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
        partitioner: str | None,
    ) -> op.StreamDescription:
        stream = stream_name(name)
        wanted = stream if subject is None else subject
        count = partition_count(partitions)
        strings = _config_texts(config)
        try:
            self._subjects.check_subject(wanted)
            if partitioner is not None:
                check_partitioner(partitioner)
        except TidelogError as error:
            raise typed(error) from None
        self._metadata.forget(stream)
        try:
            made = await self._api.call(
                op.STREAM_CREATE,
                name=stream,
                subject=wanted,
                partitions=count,
                replication_factor=replication_factor,
                config=strings,
                partitioner=partitioner,
            )
        except TidelogError as error:
            if error.code is not Code.STREAM_EXISTS or not error.detail(REPEATED):
                raise
            # An answer was lost on the way, so it may be ours.
            found = await self.describe(stream)
            if (
                found["subject"] != wanted
                or partitions_spread_over(found) != count
                or found["partitioner"] != (partitioner or DEFAULT_PARTITIONER)
            ):
                raise
            self._metadata.on_created(stream, found["incarnation"])
            return found
        self._metadata.on_created(stream, made["incarnation"])
        return await self._made_whole(made)

    async def ensure_stream(
        self,
        name: str,
        *,
        subject: str | None,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str | int | bool],
        partitioner: str | None,
    ) -> EnsuredStream:
        try:
            made = await self.create_stream(
                name,
                subject=subject,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                partitioner=partitioner,
            )
            return {**made, "created": True}
        except TidelogError as error:
            if error.code is not Code.STREAM_EXISTS:
                raise
            stream = stream_name(name)
            found = await self.describe(stream)
            wanted = _config_texts(config)
            wanted["subject"] = stream if subject is None else subject
            wanted["partitions"] = str(partition_count(partitions))
            if replication_factor is not None:
                wanted["replication_factor"] = str(replication_factor)
            if partitioner is not None:
                wanted["partitioner"] = partitioner
            there = {
                **found["config"],
                "subject": found["subject"],
                "partitioner": found["partitioner"],
                "partitions": str(partitions_spread_over(found)),
                "replication_factor": str(found["replication_factor"]),
            }
            others = [f"{key}={there[key]}, not {value}" for key, value in wanted.items() if there[key] != value]
            if others:
                raise StreamExists(
                    Code.STREAM_EXISTS,
                    f"stream {stream} exists with {'; '.join(others)}; ask for what is there, or change its settings "
                    "or partitions (`stream alter`); subject, replication factor and partitioner are fixed",
                    error.details,
                ) from None
            return {**found, "created": False}

    async def alter_stream(
        self, name: str, *, config: Mapping[str, str | int | bool], unset: Iterable[str]
    ) -> op.StreamDescription:
        stream = stream_name(name)
        texts = _config_texts(config)
        settings = _unset(unset)
        self._metadata.forget(stream)
        return await self._made_whole(await self._api.call(op.STREAM_ALTER, name=stream, config=texts, unset=settings))

    async def list_streams(self, *, internal: bool, usage: bool = False) -> op.StreamList:
        """All streams, a page at a time."""
        found: op.StreamList = {"streams": [], "unanswered": []}
        unanswered: set[str] = set()
        after: str | None = ""
        while after is not None:
            page = await self._api.call(op.STREAM_LIST, internal=internal, after=after, limit=op.PAGE, usage=usage)
            found["streams"] += page["streams"]
            unanswered.update(page["unanswered"])
            after = page.get("next")
        found["unanswered"] = sorted(unanswered)
        return found

    async def describe(self, name: str) -> op.StreamDescription:
        """All partitions, a page at a time."""
        while True:
            found = await self._api.call(op.STREAM_DESCRIBE, stream_name(name), limit=op.PAGE)
            if await self._add_pages(found):
                return found

    async def _made_whole(self, found: op.StreamDescription) -> op.StreamDescription:
        """Returns the description with all partitions. What it was the answer to is done: where the rest cannot be had,
        that is no failure of it, and it is left as it is."""
        with suppress(TidelogError):
            await self._add_pages(found)
        return found

    async def _add_pages(self, found: op.StreamDescription) -> bool:
        """Adds the partitions that are missing. Returns False when the stream, or its layout, became another one."""
        life = found["incarnation"], found["partitioning_version"]
        while (first := found.get("next")) is not None:
            page = await self._api.call(op.STREAM_DESCRIBE, found["name"], first, op.PAGE)
            if (page["incarnation"], page["partitioning_version"]) != life:
                return False
            found["partitions"] += page["partitions"]
            found["refusals"] |= page["refusals"]
            bytes_on_disk = [each["bytes_on_disk"] for each in (found, page) if each["bytes_on_disk"] is not None]
            found["bytes_on_disk"] = sum(bytes_on_disk) if bytes_on_disk else None
            traffic = [each["traffic"] for each in (found, page) if each["traffic"] is not None]
            found["traffic"] = total_traffic(traffic) if traffic else None
            del found["next"]
            if "next" in page:
                found["next"] = page["next"]
        return True

    async def replicas(
        self, *, stream: str | None, partition: int | None, broker: str | None, internal: bool
    ) -> ReplicaList:
        """All pages."""
        if partition is not None and stream is None:
            raise BadRequest(Code.BAD_REQUEST, f"partition={partition} is of no stream; name the stream, too")
        if isinstance(partition, int) and partition < 0:
            raise BadRequest(Code.BAD_REQUEST, f"partition={partition} is below 0")
        found: ReplicaList = {"replicas": [], "unanswered": []}
        unanswered: set[str] = set()
        after: ReplicaPosition | None = {"stream": "", "partition": -1}
        while after is not None:
            page = await self._api.call(
                REPLICA_LIST,
                of_stream="" if stream is None else stream_name(stream),
                partition=-1 if partition is None else partition,
                broker=broker or "",
                internal=internal,
                after_stream=after["stream"],
                after_partition=after["partition"],
            )
            found["replicas"] += page["replicas"]
            unanswered.update(page["unanswered"])
            after = page.get("next")
        found["unanswered"] = sorted(unanswered)
        return found

    async def alter_cluster(self, *, config: Mapping[str, str | int | bool], unset: Iterable[str]) -> dict[str, str]:
        texts = _config_texts(config, plain=plain)
        changed = await self._api.call(op.CLUSTER_ALTER, config=texts, unset=_unset(unset))
        return changed["config"]

    async def delete_stream(self, name: str) -> None:
        stream = stream_name(name)
        try:
            await self._api.call(op.STREAM_DELETE, stream)
        except TidelogError as error:
            if error.code is not Code.UNKNOWN_STREAM or not error.detail(REPEATED):
                raise
        self._metadata.on_deleted(stream)

    async def move_leader(self, stream: str, partition: int, broker: str) -> op.PartitionDescription:
        name = stream_name(stream)
        try:
            return await self._api.call(op.PARTITION_MOVE_LEADER, name, partition, broker)
        except TidelogError as error:
            if error.code is not Code.BAD_REQUEST or not error.detail(REPEATED):
                raise
            # An answer was lost on the way, so it may have been done.
            partitions = (await self._api.call(op.STREAM_DESCRIBE, name, partition, 1))["partitions"]
            found = next((known for known in partitions if known["partition"] == partition), None)
            if found is None or found["leader"] != broker:
                raise
            return found


def _config_texts(
    config: Mapping[str, str | int | bool], plain: Callable[[Mapping[str, str]], dict[str, str]] = StreamConfig.plain
) -> dict[str, str]:
    """As the API takes them, each looked at by itself; `plain` knows the settings. Raises BadConfig, BadRequest."""
    check_mapping("config", config, "{'retention_max_age_ms': 86400000}")
    try:
        return plain({key: _config_text(value) for key, value in config.items()})
    except TidelogError as error:
        raise typed(error) from None


def _unset(names: Iterable[str]) -> list[str]:
    check_texts("unset", names, "['retention_max_age_ms']")
    return [*names]


def _config_text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    raise BadConfig(Code.BAD_CONFIG, f"a setting is text, a number or true/false, not {value!r}")
