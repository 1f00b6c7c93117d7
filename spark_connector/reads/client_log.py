"""The log port answered by a cluster, through the client.

The client is asyncio and Spark's callbacks block, so a connection (`connections`) has a thread with an event loop. A
task fetches ahead while Spark takes the records it has: of a range one chunk is held and one is being filled, each of
`CHUNK_BYTES` and at most one answer of a broker more.

Everything waits for a cluster that does not answer, for as long as the option `retry.timeout` says. Fetching has a
limit by progress: it ends when no answer has come for so long, however long a chunk takes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from spark_connector.reads.log_port import OffsetRange, PartitionExtent, PartitionName, Span, StreamExtent
from spark_connector.shared.connections import Cluster, Connection
from spark_connector.shared.retrying import WARN_SECONDS, WaitedOut
from tidelog.client.base.exceptions import UnknownStream
from tidelog.client.base.read_positions import AtTime
from tidelog.client.client import Client
from tidelog.client.consumer.offset_lookup import Span as ClientSpan
from wire.batch import RecordBatch
from wire.error_details import OFFSET
from wire.errors import Code, TidelogError
from wire.types import Incarnation, Offset, StreamName

CHUNK_BYTES = 4 << 20
LEAST_STALL_SECONDS = 10.0
"""Seconds for an answer, even where retry.timeout is 0."""
CUT_SECONDS = 5.0
"""Seconds without an answer after which a task asks whether its records are still in the log."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Isolation:
    """The records to read, and the replicas to read from; as the arguments of `Client.fetch_batches`."""

    read_uncommitted: bool = False
    read_from: Literal["leader", "follower", "nearest"] = "leader"
    rack: str | None = None
    in_key_order: bool = False
    """The records of a key before and after a repartition are read in their order: layouts are known to the ends."""


class ClientLog:
    """A log that connects at its first request. For one thread at a time."""

    def __init__(self, cluster: Cluster, isolation: Isolation = Isolation()) -> None:
        self.cluster = cluster
        self.isolation = isolation

    def streams(self) -> list[StreamName]:
        found = self.cluster.ask("ask for the names of all streams", lambda client: client.streams())
        return [StreamName(each["name"]) for each in found]

    def extents(self, streams: Collection[StreamName]) -> Mapping[StreamName, StreamExtent]:
        def look_up(client: Client) -> Coroutine[Any, Any, list[StreamExtent | None]]:
            return _gathered(self._extent(client, stream) for stream in streams)

        found = self.cluster.ask(f"ask where {', '.join(streams):.200} begin and end", look_up)
        return {extent.stream: extent for extent in found if extent is not None}

    def offsets_at(
        self, times: Mapping[StreamName, Mapping[int, int]]
    ) -> Mapping[StreamName, Mapping[int, Offset | None]]:
        def look_up(client: Client) -> Coroutine[Any, Any, list[Mapping[int, Offset | None]]]:
            return _gathered(self._offsets_at(client, stream, of_stream) for stream, of_stream in times.items())

        return dict(zip(times, self.cluster.ask(f"look times up in {', '.join(times):.200}", look_up), strict=True))

    def spans(self, wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
        by_stream: dict[StreamName, dict[int, tuple[int, int]]] = {}
        for (stream, partition), span in wanted.items():
            by_stream.setdefault(stream, {})[partition] = span

        def look_up(client: Client) -> Coroutine[Any, Any, list[dict[int, ClientSpan]]]:
            uncommitted = self.isolation.read_uncommitted
            return _gathered(client.spans(each, by_stream[each], read_uncommitted=uncommitted) for each in by_stream)

        found = self.cluster.ask(f"ask for the sizes of {', '.join(by_stream):.200}", look_up)
        return {
            (stream, partition): Span(Offset(span.end), span.bytes_to_end)
            for stream, spans in zip(by_stream, found, strict=True)
            for partition, span in spans.items()
        }

    def commit_group(self, group: str, offsets: Mapping[PartitionName, Offset]) -> None:
        committed = {(str(stream), partition): int(offset) for (stream, partition), offset in offsets.items()}
        self.cluster.ask(f"commit for group {group!r}", lambda client: client.commit_offsets(group, committed))

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> RangeFetch:
        return RangeFetch(self, wanted, max_bytes)

    def close(self) -> None:
        """Does nothing: the connection stays with the process."""

    def check_there(self, connection: Connection, wanted: OffsetRange, position: int) -> None:
        """Raises LOG_TRUNCATED (detail `offset`: the end of the log) if the log of the partition's leader does not have
        the records of the range, from `position` on, any more. Returns where nobody answers."""
        try:
            found = connection.run(self._extent(connection.client, wanted.stream))
        except TidelogError:
            return
        held = None if found is None else found.partitions.get(wanted.partition)
        if held is None or held.incarnation != wanted.partition_incarnation:
            return
        if held.end <= position and held.log_end < wanted.end:
            raise TidelogError(
                Code.LOG_TRUNCATED,
                f"{wanted} was committed when it was planned, and the log ends at {held.log_end} now: its last "
                f"{wanted.end - held.log_end} records are gone (an unclean election): set failOnDataLoss=false to go "
                "on without them",
                [OFFSET.of(held.log_end)],
            )

    async def _extent(self, client: Client, stream: StreamName) -> StreamExtent | None:
        try:
            found = await client.extents(
                stream,
                read_uncommitted=self.isolation.read_uncommitted,
                knows_layouts=self.isolation.in_key_order,
            )
        except UnknownStream:
            return None
        return StreamExtent(
            stream,
            Incarnation(found.incarnation),
            {
                partition: PartitionExtent(
                    Incarnation(held.incarnation), Offset(held.start), Offset(held.end), Offset(held.log_end)
                )
                for partition, held in found.partitions.items()
            },
            found.layouts,
        )

    async def _offsets_at(
        self, client: Client, stream: StreamName, times: Mapping[int, int]
    ) -> Mapping[int, Offset | None]:
        async with client.consume(stream, read_uncommitted=self.isolation.read_uncommitted) as consumer:
            found = await consumer.offsets_for_times({partition: AtTime(time) for partition, time in times.items()})
        return {partition: None if offset is None else Offset(offset) for partition, offset in found.items()}


async def _gathered(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    return await asyncio.gather(*calls)


class RangeFetch:
    """Batches of one range. Fetching begins at construction, and after an error it goes on at the same offset."""

    def __init__(self, log: ClientLog, wanted: OffsetRange, max_bytes: int) -> None:
        self._log = log
        self._wanted = wanted
        self._max_bytes = max_bytes
        self._position: int = wanted.start
        """All records before this offset have been handed out."""
        self._chunk: deque[RecordBatch] = deque()
        self._running: tuple[Connection, Ahead] | None = None
        self._is_over = False
        try:
            self._begin()
        except TidelogError:
            self.close()  # the first batch is requested again, with patience

    def __iter__(self) -> Iterator[RecordBatch]:
        return self

    def __next__(self) -> RecordBatch:
        while not self._chunk:
            if self._is_over:
                raise StopIteration
            self._log.cluster.retry.run(f"read {self._wanted}", self._fill)
        return self._chunk.popleft()

    def close(self) -> None:
        """Gives up the fetch under way. Raises nothing."""
        running, self._running = self._running, None
        if running is None:
            return
        connection, ahead = running
        with suppress(TidelogError):  # the connection is closed, or given up as a whole
            connection.run(ahead.abandon(), LEAST_STALL_SECONDS)

    def _begin(self) -> tuple[Connection, Ahead]:
        connection = self._log.cluster.connection()
        wanted, isolation = self._wanted, self._log.isolation
        ahead = Ahead(
            lambda on_position: cast(
                AsyncGenerator[RecordBatch, None],
                connection.client.fetch_batches(
                    wanted.stream,
                    wanted.partition,
                    self._position,
                    wanted.end,
                    max_bytes=self._max_bytes,
                    read_uncommitted=isolation.read_uncommitted,
                    read_from=isolation.read_from,
                    rack=isolation.rack,
                    stream_incarnation=wanted.stream_incarnation,
                    partition_incarnation=wanted.partition_incarnation,
                    on_position=on_position,
                ),
            )
        )
        self._running = connection, ahead
        connection.run(ahead.begin())
        return self._running

    def _fill(self) -> None:
        if self._running is not None and self._running[0].is_broken:
            self.close()
        connection, ahead = self._running or self._begin()
        try:
            chunk = self._take(connection, ahead)
        except TidelogError as error:
            self.close()
            if connection.is_broken:  # another fetch has closed it
                raise TidelogError(Code.UNAVAILABLE, f"the connection was lost: {error.message}") from error
            if error.retriable:
                self._log.cluster.on_failure(connection)
            raise
        except BaseException:
            self.close()
            raise
        self._log.cluster.on_answer()
        if chunk:
            self._chunk.extend(chunk)
            self._position = max(self._position, chunk[-1].header.end_offset)
        else:
            self._is_over = True

    def _take(self, connection: Connection, ahead: Ahead) -> list[RecordBatch]:
        """Returns the next chunk. Raises the errors of the client; WaitedOut after too long without an answer."""
        limit = max(self._log.cluster.retry.timeout, LEAST_STALL_SECONDS)
        begun = time.monotonic()
        warn_at = begun + WARN_SECONDS
        while True:
            chunk = connection.run(ahead.take(min(CUT_SECONDS, limit)))
            if chunk is not None:
                return chunk
            now = time.monotonic()
            silent = now - max(begun, ahead.moved_at)
            if silent >= CUT_SECONDS:
                self._log.check_there(connection, self._wanted, max(self._position, ahead.position))
            if silent >= limit:
                raise WaitedOut(
                    Code.UNAVAILABLE,
                    f"{self._wanted} has not been answered for {silent:.0f} s (retry.timeout), though it was "
                    "committed: its partition has no leader, or lost these records; see `tidelog cluster status`",
                )
            if silent >= WARN_SECONDS and now >= warn_at:
                _log.warning("tidelog: waits for %s, of which nothing has come for %.0f s", self._wanted, silent)
                warn_at = now + WARN_SECONDS


class Ahead:
    """Batches that are fetched before they are requested, chunk by chunk. Its coroutines are for one event loop."""

    def __init__(self, fetch: Callable[[Callable[[int], None]], AsyncGenerator[RecordBatch, None]]) -> None:
        """`fetch` gets a function to call at each step forward, with the next offset."""
        self.moved_at = 0.0
        """Monotonic seconds of the last step forward."""
        self.position = 0
        """The next offset to fetch, once one is known."""
        self._batches = fetch(self._on_position)
        self._filling: asyncio.Task[list[RecordBatch]] | None = None

    async def begin(self) -> None:
        self._filling = asyncio.create_task(self._chunk())

    async def take(self, timeout: float) -> list[RecordBatch] | None:
        """Returns the next batches, of CHUNK_BYTES or more, fewer at the end, empty behind it; None after `timeout`
        seconds. Then those behind them are fetched."""
        assert self._filling is not None
        done, _ = await asyncio.wait([self._filling], timeout=timeout)
        if not done:
            return None
        chunk = self._filling.result()
        if chunk:
            await self.begin()
        return chunk

    async def abandon(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        await self._batches.aclose()

    async def _chunk(self) -> list[RecordBatch]:
        chunk: list[RecordBatch] = []
        size = 0
        async for batch in self._batches:
            chunk.append(batch)
            size += batch.header.size
            if size >= CHUNK_BYTES:
                break
        return chunk

    def _on_position(self, position: int) -> None:
        self.moved_at = time.monotonic()
        self.position = position
