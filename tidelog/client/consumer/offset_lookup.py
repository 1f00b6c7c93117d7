"""Looks up offsets of a stream's partitions at their leaders: where the log begins, where it ends, where a time is.

All ends are exclusive: the end of a partition is the offset that its next record gets, as far as it is committed. It
never goes back for one client, though a new leader may not know the newest commit yet. `extents` returns it as the
leader knows it, with the end of the leader's log, which shows whether the log was cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tidelog.client.base.arguments import bad, shown, whole
from tidelog.client.base.read_positions import AfterBytes, Anchor, AtTime, Moment, Position, check_known, timestamp_ns
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.fetcher import PartitionFetcher
from tidelog.client.consumer.partition_reader import PartitionReader
from wire.layouts import Layout
from wire.messaging.transport import Transport
from wire.subjects import Subjects


class LogExtent(NamedTuple):
    """Where the log of a partition begins and ends, by an answer of its leader."""

    incarnation: int
    start: int
    """Offset of the oldest record."""
    end: int
    """Exclusive end of the committed log, in front of open transactions unless `read_uncommitted`. A new leader may
    know an earlier one than the old leader knew, until its followers have fetched."""
    log_end: int
    """Exclusive end with records that are not committed yet, >= `end`. All that was ever committed lies below it,
    unless the log was cut by an unclean election."""


class StreamExtents(NamedTuple):
    """The logs of one incarnation of a stream."""

    incarnation: int
    partitions: Mapping[int, LogExtent]
    layouts: tuple[Layout, ...] = ()
    """Over which partitions keys were spread, and where that changed; oldest first."""


class LogStart(NamedTuple):
    """Where the log of a partition begins."""

    first: int
    """Offset of its oldest record, at the leader."""
    settled: int
    """Offset below which no replica serves records: `first`, a moment later (R82)."""


class Span(NamedTuple):
    """A part of a partition's committed log, by size. Sizes are those on the brokers' disks, compressed for instance,
    and estimated between the entries of their indexes."""

    end: int
    """Exclusive."""
    bytes_to_end: int
    """Bytes of everything that is committed and not before the part."""


class OffsetLookup:
    """The look-ups of one client."""

    def __init__(self, transport: Transport, subjects: Subjects, metadata: MetadataCache) -> None:
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._ends: dict[tuple[int, int, int, bool], int] = {}
        """(stream incarnation, partition, its incarnation, with open transactions) -> the largest end that was
        returned, which never goes back."""

    async def beginnings(self, stream: str, partitions: Iterable[int] | None) -> dict[int, int]:
        """By partition, the offset of its oldest record. None: all partitions. Raises UnknownStream, BadRequest,
        NoServer, as all of these."""
        layout, chosen = await self._chosen(stream, partitions)
        return {p: offset for p, (offset, _) in (await self._found(layout, chosen, Anchor.EARLIEST, False)).items()}

    async def log_starts(self, stream: str, partitions: Iterable[int]) -> dict[int, LogStart]:
        """Where the logs of these partitions begin."""
        layout, chosen = await self._chosen(stream, partitions)
        config: ConsumerConfig[Any, Any] = ConsumerConfig()
        readers = [self.reader(layout, partition, Anchor.EARLIEST, None, config) for partition in chosen]
        await asyncio.gather(*(reader.resolve() for reader in readers))
        return {partition: _log_start(reader.fetcher) for partition, reader in zip(chosen, readers, strict=True)}

    async def ends(
        self, stream: str, partitions: Iterable[int] | None, *, read_uncommitted: bool = False
    ) -> dict[int, int]:
        """`read_uncommitted`: with the records of open transactions, as in all of these."""
        layout, chosen = await self._chosen(stream, partitions)
        ends: dict[int, int] = {}
        for partition, (offset, _) in (await self._found(layout, chosen, Anchor.NEW, read_uncommitted)).items():
            key = (layout.incarnation, partition, layout.partitions[partition].incarnation, read_uncommitted)
            ends[partition] = self._ends[key] = max(offset, self._ends.get(key, 0))
        return ends

    async def extents(
        self, stream: str, *, read_uncommitted: bool = False, knows_layouts: bool = False
    ) -> StreamExtents:
        """Where all partitions begin and end, in a request for each of them, all of them at once. `knows_layouts`: the
        layouts are asked for once more when the ends are known, so that no record below them is of a later one."""
        layout, chosen = await self._chosen(stream, None)
        while True:
            readers = [
                self.reader(layout, partition, Anchor.NEW, None, ConsumerConfig(read_uncommitted=read_uncommitted))
                for partition in chosen
            ]
            await asyncio.gather(*(reader.resolve() for reader in readers))
            newest = await self._metadata.refresh(stream) if knows_layouts else layout
            if newest.layouts == layout.layouts:
                break
            layout, chosen = newest, [*newest.partitions]
        return StreamExtents(
            layout.incarnation,
            {
                partition: _extent(layout.partitions[partition].incarnation, reader.fetcher)
                for partition, reader in zip(chosen, readers, strict=True)
            },
            layout.layouts,
        )

    async def spans(
        self, stream: str, wanted: Mapping[int, tuple[int, int]], *, read_uncommitted: bool = False
    ) -> dict[int, Span]:
        """`wanted`: by partition, an offset and a number of bytes."""
        layout, chosen = await self._chosen(stream, wanted)
        config: ConsumerConfig[Any, Any] = ConsumerConfig(read_uncommitted=read_uncommitted)
        readers = [self.reader(layout, p, AfterBytes(*wanted[p]), None, config) for p in chosen]
        await asyncio.gather(*(reader.resolve() for reader in readers))
        return {p: _span(reader.fetcher) for p, reader in zip(chosen, readers, strict=True)}

    async def at(
        self, stream: str, time: AtTime, partitions: Iterable[int] | None, *, read_uncommitted: bool = False
    ) -> dict[int, int]:
        """The first record at or after that time; the end where there is none."""
        layout, chosen = await self._chosen(stream, partitions)
        found = await self._found(layout, chosen, time, read_uncommitted)
        return {p: offset for p, (offset, _) in found.items()}

    async def at_times(
        self, stream: str, times: Mapping[int, Moment], *, read_uncommitted: bool = False
    ) -> dict[int, int | None]:
        """As `at`, of a time for each partition; None where there is no record at or after it."""
        wanted = {partition: AtTime(timestamp_ns(time, f"times[{partition!r}]")) for partition, time in times.items()}
        layout, chosen = await self._chosen(stream, wanted)
        found = await asyncio.gather(
            *(self._find(layout, partition, wanted[partition], read_uncommitted) for partition in chosen)
        )
        return {p: None if offset >= end else offset for p, (offset, end) in zip(chosen, found, strict=True)}

    async def _chosen(self, stream: str, partitions: Iterable[int] | None) -> tuple[StreamMetadata, list[int]]:
        asked = None if partitions is None else _numbers(partitions)
        layout = await self._metadata.refresh(stream)
        if asked is None:
            return layout, [*layout.partitions]
        check_known(asked, sorted(layout.partitions))
        return layout, asked

    async def _found(
        self, layout: StreamMetadata, partitions: list[int], position: Position, read_uncommitted: bool
    ) -> dict[int, tuple[int, int]]:
        found = await asyncio.gather(
            *(self._find(layout, partition, position, read_uncommitted) for partition in partitions)
        )
        return dict(zip(partitions, found, strict=True))

    async def _find(
        self, layout: StreamMetadata, partition: int, position: Position, read_uncommitted: bool
    ) -> tuple[int, int]:
        """The offset, and the end of the committed log by the same answer."""
        config: ConsumerConfig[Any, Any] = ConsumerConfig(read_uncommitted=read_uncommitted)
        reader = self.reader(layout, partition, position, None, config)
        await reader.resolve()
        assert reader.fetcher.position is not None
        return reader.fetcher.position, reader.fetcher.committed_end

    def reader(
        self,
        layout: StreamMetadata,
        partition: int,
        start: Position | AfterBytes,
        stop: Position | None,
        config: ConsumerConfig[Any, Any],
    ) -> PartitionReader:
        """A reader that reads from the leader."""
        known = layout.partitions[partition]
        fetcher = PartitionFetcher(
            f"{layout.name}/{partition}",
            start,
            stop,
            config,
            cluster_id=layout.cluster_id,
            stream_incarnation=layout.incarnation,
            partition_incarnation=known.incarnation,
            leader_epoch=known.leader_epoch,
        )
        return PartitionReader(
            fetcher,
            self._transport,
            self._subjects,
            layout.name,
            partition,
            lambda: self._metadata.forget(layout.name),
        )


def _extent(incarnation: int, looked_up: PartitionFetcher) -> LogExtent:
    end = looked_up.position
    assert end is not None
    log_end = end if looked_up.log_end is None else looked_up.log_end
    return LogExtent(incarnation, looked_up.log_start or 0, end, max(log_end, end))


def _log_start(looked_up: PartitionFetcher) -> LogStart:
    first, settled = looked_up.position, looked_up.settled_start
    assert first is not None
    return LogStart(first, first if settled is None else min(settled, first))  # None: a broker of an earlier version


def _span(looked_up: PartitionFetcher) -> Span:
    assert looked_up.position is not None
    return Span(looked_up.position, looked_up.span_bytes)


def _numbers(partitions: Iterable[int]) -> list[int]:
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise bad(f"partitions={shown(partitions)} is no list of partitions, such as [0, 2]")
    numbers = [whole(partition) for partition in partitions]
    if None in numbers:
        raise bad(f"partitions={shown(partitions)} is no list of whole numbers; give one such as [0, 2]")
    return sorted({number for number in numbers if number is not None})
