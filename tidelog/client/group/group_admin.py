"""What operators ask of consumer groups: how far they are, and other offsets for those without members."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

from tidelog.client.base.arguments import bad, check_text, check_whole, shown, whole
from tidelog.client.base.exceptions import GroupNotEmpty, NotPermitted, UnknownGroup, typed
from tidelog.client.base.read_positions import Anchor, AtOffset, AtTime, position_from_text, timestamp_ns
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.group.group_commits import COMMIT_TIMEOUT, Mark, TransactionPart, commit_requests
from tidelog.client.group.subscription import Name, checked_names
from wire.error_details import REPEATED
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, MAX_COMMITTED, StreamPartition, check_group_name
from wire.layouts import MAX_PARTITIONS
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import CommitResponse
from wire.subjects import check_stream_name
from wire.types import StreamName

Target: TypeAlias = str | int | datetime | AtTime | Mapping[Name, int]
Which: TypeAlias = str | datetime | AtTime
LookUp: TypeAlias = Callable[[str, Any], Awaitable[dict[int, int]]]

_MAX_OFFSET = (1 << 63) - 1


class GroupProgress(TypedDict):
    """The progress of a partition of a stream of which a group has committed something, to which its members subscribe,
    or of which one of them has a partition."""

    stream: str
    partition: int
    committed: int | None
    """The next offset to read; None: nothing is committed."""
    end: int | None
    """The end of the committed log; None: no leader tells it, the stream is gone, or it may not be asked for."""
    lag: int | None
    """Records, with those that compaction has removed, between the two."""
    member: str | None
    """Id of the member that has it."""
    metadata: str
    committed_at_ns: int
    """0: nothing is committed."""
    waits_for: dict[str, int]
    """Its members read it no further, if they keep the order of keys, before the group has committed these partitions
    of the stream (by number, as text) up to these offsets; -1: that is not known yet."""


class DescribedGroup(op.GroupDescription):
    progress: list[GroupProgress]
    """By stream and partition."""


class OffsetChange(TypedDict):
    stream: str
    partition: int
    before: int | None
    """None: nothing was committed."""
    after: int


class GroupAdmin:
    """`offsets`: `Client.offsets`."""

    def __init__(self, api: Api, metadata: MetadataCache, link: CoordinatorLink, offsets: LookUp) -> None:
        self._api = api
        self._metadata = metadata
        self._link = link
        self._offsets = offsets

    async def describe(self, group: str) -> DescribedGroup:
        found = await self._describe(group)
        owners = {
            (stream, partition): member["id"]
            for member in found["details"]
            for held in (member["assigned"], member["revoking"])
            for stream, partitions in held.items()
            for partition in partitions
        }
        offsets = {(entry["stream"], entry["partition"]): entry for entry in found["offsets"]}
        subscribed = {name for name in found["streams"] if _is_stream_name(name)}
        streams = sorted({*subscribed, *(stream for stream, _ in (*owners, *offsets))})
        told = await asyncio.gather(*(self._if_told(stream, "latest") for stream in streams))
        ends = dict(zip(streams, told, strict=True))
        waiting = {stream: await self._waiting(stream, offsets) for stream in streams}
        there = [(stream, partition) for stream in streams for partition in self._partitions(stream, ends[stream])]
        progress = []
        for name in sorted({*owners, *offsets, *there}):
            stream, partition = name
            entry, end = offsets.get(name), ends[stream].get(partition)
            committed = None if entry is None else entry["offset"]
            progress.append(
                GroupProgress(
                    stream=stream,
                    partition=partition,
                    committed=committed,
                    end=end,
                    lag=None if end is None or committed is None else max(end - committed, 0),
                    member=owners.get(name),
                    metadata="" if entry is None else entry["metadata"],
                    committed_at_ns=0 if entry is None else entry["committed_at_ns"],
                    waits_for={str(number): upto for number, upto in waiting[stream].get(partition, {}).items()},
                )
            )
        return {**found, "progress": progress}

    async def reset(
        self,
        group: str,
        to: Target | None,
        shift: int | None,
        streams: Iterable[str] | None,
        partitions: Iterable[int] | None,
        dry_run: bool,
    ) -> list[OffsetChange]:
        before, subscribed = await self._committed(group, is_named=streams is not None or isinstance(to, Mapping))
        if isinstance(to, Mapping):
            if streams is not None or partitions is not None or shift is not None:
                raise bad("a mapping says which partitions are meant; leave streams, partitions and shift out")
            after = await self._within(checked_names(to))
        else:
            named = subscribed if streams is None else _texts("streams", streams)
            chosen = None if partitions is None else _numbers(partitions)
            after = await self._moved(named, chosen, _target(to, shift), before)
        changes = [
            OffsetChange(stream=stream, partition=partition, before=before.get((stream, partition)), after=offset)
            for (stream, partition), offset in sorted(after.items())
        ]
        if not dry_run:
            for part in _parts(changes):
                offsets: list[op.NewOffset] = [
                    {"stream": each["stream"], "partition": each["partition"], "offset": each["after"]} for each in part
                ]
                await self._api.call(op.GROUP_RESET, group, offsets)
        return changes

    async def delete(self, group: str) -> None:
        try:
            await self._api.call(op.GROUP_DELETE, _group_name(group))
        except UnknownGroup as error:
            if not error.detail(REPEATED):  # else an answer was lost on the way, and it is gone
                raise

    async def commit(self, group: str, offsets: Mapping[Name, int], metadata: str) -> None:
        name = _group_name(group)
        check_text("metadata", metadata, "")
        await self._commit(name, await self._marks(offsets), metadata, None)

    async def prepare_commit(
        self, group: str, offsets: Mapping[Name, int]
    ) -> Callable[[TransactionPart], Awaitable[None]]:
        """Looks the partitions up. What it returns commits the offsets as a part of a transaction."""
        name, marks = _group_name(group), await self._marks(offsets)
        return lambda part: self._commit(name, marks, "", part)

    async def _marks(self, offsets: Mapping[Name, int]) -> dict[StreamPartition, Mark]:
        marks: dict[StreamPartition, Mark] = {}
        for (stream, partition), offset in checked_names(offsets).items():
            known = await self._metadata.get(stream)
            _check_partition(known, partition)
            of = StreamPartition(stream, known.incarnation, partition)
            marks[of] = Mark(offset, known.partitions[partition].incarnation)
        return marks

    async def _commit(
        self, name: str, marks: Mapping[StreamPartition, Mark], metadata: str, part: TransactionPart | None
    ) -> None:
        cluster_id = await self._link.cluster_id()
        for request in commit_requests(name, marks, metadata, part):
            request.cluster_id = cluster_id
            await self._link.ask(COMMIT, name, request, CommitResponse, timeout=COMMIT_TIMEOUT)

    # ----

    async def _describe(self, group: str) -> op.GroupDescription:
        return await self._api.call(op.GROUP_DESCRIBE, _group_name(group))

    async def _if_told(self, stream: str, which: Which) -> dict[int, int]:
        """As `_look_up`; empty where no leader tells, the stream is gone, or may not be read."""
        try:
            return await self._look_up(stream, which)
        except TidelogError as error:
            if not error.retriable and error.code not in (Code.UNKNOWN_STREAM, Code.NOT_PERMITTED):
                raise
            return {}

    def _partitions(self, stream: str, ends: Mapping[int, int]) -> Iterable[int]:
        """Also of a stream of which no leader tells its end, if the metadata are known."""
        known = self._metadata.last_seen(StreamName(stream))
        return ends if known is None else known.partitions

    async def _waiting(self, stream: str, offsets: Mapping[Name, op.GroupOffset]) -> dict[int, Mapping[int, int]]:
        """By partition, what the next read of it waits for: at what is committed, or else at the start of its log."""
        known = self._metadata.last_seen(StreamName(stream))
        if known is None or len(known.layouts) == 1:
            return {}
        order = known.key_order
        starts: dict[int, int] = {}

        def position(partition: int) -> int:
            committed = offsets[stream, partition]["offset"] if (stream, partition) in offsets else 0
            return max(committed, starts.get(partition, 0))

        if all(order.waits_for(partition, position) is None for partition in known.partitions):
            return {}
        starts = await self._if_told(stream, "earliest")
        found = {partition: order.waits_for(partition, position) for partition in known.partitions}
        return {p: wait[1] for p, wait in found.items() if wait is not None and position(p) >= wait[0]}

    async def _look_up(self, stream: str, which: Which) -> dict[int, int]:
        """As `Client.offsets`. An admin who may not read the stream is told by the brokers' reports, which know no
        times."""
        try:
            return await self._offsets(stream, which)
        except NotPermitted:
            if which not in _WORDS.values():
                raise
            described = await self._api.call(op.STREAM_DESCRIBE, stream)
            found = {
                each["partition"]: each["log_start_offset"] if which == "earliest" else _end(each)
                for each in described["partitions"]
            }
            if None in found.values():
                raise
            return {partition: offset for partition, offset in found.items() if offset is not None}

    async def _committed(self, group: str, *, is_named: bool) -> tuple[dict[Name, int], list[str]]:
        """What a group without members has committed, and of which streams. A group that is not there yet has committed
        nothing, if it `is_named` which streams are meant. Raises GroupNotEmpty."""
        try:
            found = await self._describe(group)
        except UnknownGroup:
            if not is_named:
                raise
            return {}, []
        if found["members"]:
            clients = ", ".join(sorted(member["client"] or member["id"] for member in found["details"]))
            raise GroupNotEmpty(
                Code.GROUP_NOT_EMPTY,
                f"group {group!r} has {found['members']} members: {clients:.500}; stop them, or wait until their"
                " sessions are over",
            )
        offsets = {(entry["stream"], entry["partition"]): entry["offset"] for entry in found["offsets"]}
        return offsets, sorted({stream for stream, _ in offsets})

    async def _moved(
        self,
        streams: list[str],
        partitions: list[int] | None,
        target: Anchor | AtOffset | AtTime | int,
        before: Mapping[Name, int],
    ) -> dict[Name, int]:
        """`target`: a number moves what is committed by so many."""
        after: dict[Name, int] = {}
        for stream in streams:
            known = await self._metadata.get(stream)
            for partition in partitions or ():
                _check_partition(known, partition)
            chosen = [*known.partitions] if partitions is None else partitions
            if isinstance(target, (AtOffset, int)):
                if isinstance(target, int):
                    wanted = {p: before[stream, p] + target for p in chosen if (stream, p) in before}
                else:
                    wanted = dict.fromkeys(chosen, target.offset)
                after |= await self._within({(stream, partition): offset for partition, offset in wanted.items()})
            else:
                which: Which = target if isinstance(target, AtTime) else _WORDS[target]
                found = await self._look_up(stream, which)
                after |= {(stream, partition): found[partition] for partition in chosen}
        if not after:
            raise bad("no partition was chosen: nothing is committed of these; name streams")
        return after

    async def _within(self, offsets: Mapping[Name, int]) -> dict[Name, int]:
        """Those outside of their logs become the log's start, or its end."""
        within: dict[Name, int] = {}
        for stream in sorted({stream for stream, _ in offsets}):
            known = await self._metadata.get(stream)
            first, end = await asyncio.gather(self._look_up(stream, "earliest"), self._look_up(stream, "latest"))
            for (named, partition), offset in offsets.items():
                if named == stream:
                    _check_partition(known, partition)
                    within[stream, partition] = min(max(offset, first[partition]), end[partition])
        return within


_WORDS = {Anchor.EARLIEST: "earliest", Anchor.LATEST: "latest"}


def _end(partition: op.PartitionDescription) -> int | None:
    """The end of what consumers read."""
    stable = partition.get("last_stable_offset")  # a broker that does not know transactions has none
    if stable is not None or partition["high_watermark"] is None:
        return stable
    return partition["high_watermark"] + 1


def _target(to: str | int | datetime | AtTime | None, shift: int | None) -> Anchor | AtOffset | AtTime | int:
    if (to is None) == (shift is None):
        raise bad("say where to: either to='earliest', 'latest', an offset or a time, or shift by a number")
    if shift is not None:
        check_whole("shift", shift, -_MAX_OFFSET, _MAX_OFFSET)
        return shift
    if isinstance(to, (datetime, AtTime)):
        return AtTime(timestamp_ns(to, "to"))
    if isinstance(to, str):
        position = position_from_text(to)
        if position is Anchor.NEW:
            raise bad("to='new' is nothing that can be committed; use 'latest', which is the end of the committed log")
        return position
    check_whole("to", to, 0, _MAX_OFFSET)
    offset = whole(to)
    assert offset is not None
    return AtOffset(offset)


def _is_stream_name(name: str) -> bool:
    """Else it is a pattern: the streams that match are among those of the members' partitions."""
    try:
        check_stream_name(name)
    except TidelogError:
        return False
    return True


def _group_name(group: str) -> str:
    try:
        return check_group_name(group)
    except TidelogError as error:
        raise typed(error) from None


def _check_partition(known: StreamMetadata, partition: int) -> None:
    if partition not in known.partitions:
        there = ", ".join(map(str, known.partitions))
        raise bad(f"there is no partition {partition} in stream {known.name!r}, which has {there}")


def _texts(name: str, given: Iterable[str]) -> list[str]:
    texts = [given] if isinstance(given, str) else [*given]
    for text in texts:
        check_text(f"one of {name}", text, "orders")
    return texts


def _numbers(partitions: Iterable[int]) -> list[int]:
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise bad(f"partitions={shown(partitions)} is no list of numbers; give one such as [0, 2]")
    numbers = [*partitions]
    for number in numbers:
        check_whole("partition", number, 0, MAX_PARTITIONS - 1)
    return numbers


def _parts(changes: list[OffsetChange]) -> Iterator[list[OffsetChange]]:
    for first in range(0, len(changes), MAX_COMMITTED):
        yield changes[first : first + MAX_COMMITTED]
