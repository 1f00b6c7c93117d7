"""Copies the records of a stream into another one of the same cluster.

The copy is a new stream with the settings of its source, and the records that are committed when it begins: keys,
values, headers and timestamps, in the order of each partition. With the same number of partitions each record stays in
its partition, so the end of a partition of the copy says how many of its records are there: a copy that ended early
goes on behind them (`resume`). With another number, records with a key go where producers put that key, and records
without one stay together by the partition that they come from.

An idempotent producer writes, so no record is there twice, whatever is sent again. Message ids are copied and not
compared: the source may have two records with one id, once the time is over for which a stream knows it. The first
record that fails ends the copy; records behind it may have been written. When a copy goes on, the last record that is
there is compared with the one that should be.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, cast

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import BufferFull, RecordTooLarge, StreamExists, UnknownStream
from tidelog.client.base.read_positions import AtTime
from tidelog.client.cluster.metadata_cache import partitions_spread_over, stream_name
from wire.errors import Code
from wire.internal_streams import INTERNAL_STREAMS

if TYPE_CHECKING:
    from tidelog.client.base.read_positions import Start, Stop
    from tidelog.client.base.records import Receipt, Record
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.producer.producer import Producer
    from wire.operations.api_operations import StreamDescription

NOT_COPIED: Final = ("delete_protection",)
"""Settings that a copy does not have: one that ended early has to be deleted."""


class CopiedStream(NamedTuple):
    """What came of a copy."""

    stream: str
    records: int
    """That this call has written, and that are acknowledged."""
    already_there: int
    """That an earlier call had written."""
    by_partition: Mapping[int, int]
    """By partition of the source, the records that are in the copy now."""
    missed: int
    """Offsets whose records were removed from the source (retention, a deletion) before they were read."""


class CopyRequest(NamedTuple):
    source: str
    target: str
    partitions: int | None
    start: Start
    stop: Stop
    subject: str | None
    replication_factor: int | None
    config: Mapping[str, str | int | bool]
    resume: bool
    on_progress: Callable[[int, int], None]
    """(offsets of the source that are done, of how many)"""


class CopyingClient(Protocol):
    """The requests that a copy makes: those of `tidelog.client.client.Client`."""

    async def offsets(self, stream: str, which: Literal["earliest", "latest"], /) -> dict[int, int]: ...

    async def describe(self, name: str, /) -> StreamDescription: ...

    async def create_stream(
        self,
        name: str,
        /,
        *,
        subject: str | None,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str | int | bool] | None,
        partitioner: Literal["crc32c", "murmur2"] | None,
    ) -> StreamDescription: ...

    def consume(
        self,
        stream: str,
        /,
        *,
        start: Start,
        stop: Stop,
        partitions: Iterable[int] | None = None,
        on_gap: Literal["skip"] | None = None,
        order: Literal["partition", "key"] = "partition",
    ) -> Consumer[bytes, bytes]: ...

    def producer(self, stream: str, /, *, dedup: bool) -> Producer[bytes, bytes]: ...


async def copy_stream(client: CopyingClient, request: CopyRequest) -> CopiedStream:
    target = stream_name(request.target)
    if target == stream_name(request.source):
        raise bad(f"stream {target} cannot be copied onto itself; choose another name for the copy")
    if target in INTERNAL_STREAMS:
        raise bad(f"{target} is the name of a stream of Tidelog's own; choose another one for the copy")
    stop = request.stop
    if stop == "latest":  # what is committed now: the copy has an end, however long it takes
        stop = await client.offsets(request.source, "latest")
    # After the ends: what lies below them was written under the layouts that are known now.
    source = await client.describe(request.source)
    before = partitions_spread_over(source)
    count = before if request.partitions is None else request.partitions
    # Records of one key of a stream that was repartitioned are in several partitions.
    is_repartitioned = len(source["layouts"]) > 1
    there = await _made(client, request, source, count)
    order: Literal["key", "partition"] = "key" if is_repartitioned else "partition"
    async with client.consume(request.source, start=request.start, stop=stop, on_gap="skip", order=order) as consumer:
        await consumer.start()
        begin = dict(consumer.positions)
        total = sum(max(0, stop[p] - begin[p]) for p in begin) if isinstance(stop, dict) else 0
        async with client.producer(target, dedup=False) as producer:
            spread_over = None if count == before and not is_repartitioned else count
            copy = _Copy(client, target, producer, there, spread_over)
            try:
                async for batch in consumer.batches():
                    for record in batch.records():
                        await copy.take(record)
                    done = sum(consumer.positions[p] - begin[p] for p in begin)
                    request.on_progress(done, max(total, done))
                await copy.finish()
            finally:
                copy.leave()
            return CopiedStream(
                stream=target,
                records=copy.acknowledged,
                already_there=sum(there.values()),
                by_partition=dict(copy.done),
                missed=sum(consumer.missed.values()),
            )


async def _made(client: CopyingClient, request: CopyRequest, source: StreamDescription, count: int) -> dict[int, int]:
    """Makes the copy, empty. Where it is there already and is to be gone on with: how many records each of its
    partitions has."""
    if request.resume:
        with suppress(UnknownStream):
            return await _what_is_there(client, request, source, count)
    config: dict[str, str | int | bool] = {key: text for key, text in source["config"].items() if key not in NOT_COPIED}
    factor = source["replication_factor"] if request.replication_factor is None else request.replication_factor
    if factor != source["replication_factor"]:
        config.pop("min_isr", None)  # that of the source may be above it; the copy gets what goes with its own
    config.update(request.config)
    try:
        await client.create_stream(
            request.target,
            subject=request.subject,
            partitions=count,
            replication_factor=factor,
            config=config,
            partitioner=cast("Literal['crc32c', 'murmur2']", source["partitioner"]),
        )
    except StreamExists as error:
        raise StreamExists(
            Code.STREAM_EXISTS,
            f"stream {request.target} exists; choose another name for the copy, delete that stream, or go on with a"
            " copy that ended early (resume)",
            error.details,
        ) from None
    return {}


async def _what_is_there(
    client: CopyingClient, request: CopyRequest, source: StreamDescription, count: int
) -> dict[int, int]:
    target = await client.describe(request.target)
    found, before = partitions_spread_over(target), partitions_spread_over(source)
    if found != before or found != count:
        raise bad(
            f"the copy {request.target} has {found} partitions and {request.source} has {before}:"
            " what of it is there can only be told where both have the same number; delete the copy and begin anew"
        )
    for name, described in ((request.source, source), (request.target, target)):
        if len(described["layouts"]) > 1:
            raise bad(
                f"stream {name} was repartitioned, so that nothing tells what of the copy {request.target} is there;"
                " delete the copy and begin anew"
            )
    begin = await client.offsets(request.target, "earliest")
    if any(begin.values()):
        raise bad(f"the first records of the copy {request.target} were removed; delete it and begin anew")
    return {number: end for number, end in (await client.offsets(request.target, "latest")).items() if end}


class _Copy:
    """Records on their way. `there`: how many records of each partition are there already. `spread_over`: partitions of
    the copy, where their number is another one."""

    def __init__(
        self, client: CopyingClient, target: str, producer: Producer, there: Mapping[int, int], spread_over: int | None
    ) -> None:
        self.acknowledged = 0
        self.done: dict[int, int] = {}
        """By partition of the source."""
        self._client = client
        self._target = target
        self._producer = producer
        self._there = there
        self._spread_over = spread_over
        self._out: deque[asyncio.Future[Receipt]] = deque()

    async def take(self, record: Record) -> None:
        number = self.done.get(record.partition, 0)
        self.done[record.partition] = number + 1
        there = self._there.get(record.partition, 0)
        if number < there:
            if number == there - 1:
                await self._compare(record, number)
            return
        self._collect()
        while True:
            try:
                self._out.append(self._sent(record))
                return
            except BufferFull:
                if not self._out:  # the record alone is too large
                    raise
                await asyncio.wait([self._out[0]])
                self._collect()

    def _sent(self, record: Record) -> asyncio.Future[Receipt]:
        partition: int | None = record.partition
        if self._spread_over is not None:
            partition = None if record.key is not None else record.partition % self._spread_over
        try:
            return self._producer.send_nowait(
                record.value,
                key=record.key,
                headers=record.headers or None,  # in their order, with all values of each name
                partition=partition,
                timestamp=AtTime(record.timestamp),
            )
        except RecordTooLarge as error:
            raise RecordTooLarge(
                error.code,
                f"record {record.offset} of {record.stream}/{record.partition} does not fit into the copy"
                f" {self._target}: {error.message}; a copy has settings of its own (config)",
                error.details,
            ) from None

    def _collect(self) -> None:
        """Counts the receipts that have come. Raises the first failure."""
        while self._out and self._out[0].done():
            self._out.popleft().result()
            self.acknowledged += 1

    def leave(self) -> None:
        """The copy has ended. Where it failed, nobody asks for the outcomes of the records behind: asyncio reports
        those that nobody has read."""
        for sent in self._out:
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def finish(self) -> None:
        while self._out:
            await asyncio.wait([self._out[0]])
            self._collect()
        short = next((number for number, end in self._there.items() if self.done.get(number, 0) < end), None)
        if short is not None:
            raise self._other(short)

    async def _compare(self, record: Record, offset: int) -> None:
        """The last record that is there with the one that should be."""
        start, stop = {record.partition: offset}, {record.partition: offset + 1}
        async with self._client.consume(
            self._target, start=start, stop=stop, partitions=[record.partition]
        ) as consumer:
            found = await consumer.getone()
        same = found is not None and (
            (found.key, found.value, found.timestamp, found.header_items)
            == (record.key, record.value, record.timestamp, record.header_items)
        )
        if not same:
            raise self._other(record.partition)

    def _other(self, partition: int) -> Exception:
        return bad(
            f"partition {partition} of {self._target} holds other records than a copy that began at the same positions"
            " would; delete the copy and begin anew"
        )
