"""The log port answered by a cluster, through the client.

The client is asyncio and Spark's callbacks block, so each `ClientLog` has a thread with an event loop. That also keeps
the connection alive between the callbacks of a streaming query, and lets a task fetch ahead while Spark takes the
records it has: one chunk is held and one is being filled, each of `CHUNK_BYTES` and at most one answer of a broker
more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, cast

import tidelog
from spark_connector.log_port import OffsetRange, PartitionExtent, StreamExtent
from tidelog.client.loop_thread import LoopThread
from tidelog.client.positions import AtTime
from wire.batch import RecordBatch
from wire.errors import Code, TidelogError
from wire.types import Offset, StreamName

CHUNK_BYTES = 4 << 20
STALL_SECONDS = 60.0
"""A task that has got nothing for so long fails, for Spark to try it elsewhere or to say so."""


class ClientLog:
    """Connects when it is made. Its methods are for one thread at a time."""

    def __init__(
        self, servers: tuple[str, ...] | None, namespace: str, inbox_prefix: str | None, login: Mapping[str, Any]
    ) -> None:
        self._thread = LoopThread("tidelog-spark")
        self._run = self._thread.run
        try:
            self._client = self._run(
                tidelog.connect(servers, namespace=namespace, name="tidelog-spark", inbox_prefix=inbox_prefix, **login)
            )
        except BaseException:
            self._thread.stop()
            raise

    def extent(self, stream: StreamName) -> StreamExtent:
        return self._run(self._extent(stream))

    def offsets_at(self, stream: StreamName, timestamp_ns: int) -> Mapping[int, Offset]:
        found = self._run(self._client.offsets(stream, AtTime(timestamp_ns)))
        return {partition: Offset(offset) for partition, offset in found.items()}

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Iterator[RecordBatch]:
        batches = cast(
            AsyncGenerator[RecordBatch, None],
            self._client.fetch_batches(
                wanted.stream,
                wanted.partition,
                wanted.start,
                wanted.end,
                max_bytes=max_bytes,
                stream_incarnation=wanted.stream_incarnation,
                partition_incarnation=wanted.partition_incarnation,
            ),
        )
        ahead = self._run(_begin(batches))
        try:
            while True:
                chunk, ahead = self._run(_take(ahead, batches, wanted))
                if not chunk:
                    return
                yield from chunk
        finally:
            self._run(_abandon(ahead, batches))

    def close(self) -> None:
        try:
            self._run(self._client.close())
        finally:
            self._thread.stop()

    async def _extent(self, stream: StreamName) -> StreamExtent:
        # Together, because the client then asks the controller once for all three.
        layout, starts, ends = await asyncio.gather(
            self._client.metadata(stream),
            self._client.offsets(stream, "earliest"),
            self._client.offsets(stream, "latest"),
        )
        return StreamExtent(
            stream,
            layout.incarnation,
            {
                partition: PartitionExtent(about.incarnation, Offset(starts[partition]), Offset(ends[partition]))
                for partition, about in layout.partitions.items()
            },
        )


_Chunk = list[RecordBatch]


async def _chunk(batches: AsyncGenerator[RecordBatch, None]) -> _Chunk:
    """The next `CHUNK_BYTES`, less at the end, empty after it."""
    chunk: _Chunk = []
    size = 0
    async for batch in batches:
        chunk.append(batch)
        size += batch.header.size
        if size >= CHUNK_BYTES:
            break
    return chunk


async def _begin(batches: AsyncGenerator[RecordBatch, None]) -> asyncio.Task[_Chunk]:
    return asyncio.create_task(_chunk(batches))


async def _take(
    ahead: asyncio.Task[_Chunk], batches: AsyncGenerator[RecordBatch, None], wanted: OffsetRange
) -> tuple[_Chunk, asyncio.Task[_Chunk]]:
    """Batches fetched ahead, and the task that fetches the ones behind them."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            chunk = await ahead
    except TimeoutError:
        raise TidelogError(
            Code.UNAVAILABLE,
            f"{wanted} has not been answered for {STALL_SECONDS:g} s, though it was committed: "
            "its partition has no leader, or lost these records; see `tidelog cluster status`",
        ) from None
    return chunk, await _begin(batches)


async def _abandon(ahead: asyncio.Task[_Chunk], batches: AsyncGenerator[RecordBatch, None]) -> None:
    ahead.cancel()
    await asyncio.gather(ahead, return_exceptions=True)
    await batches.aclose()
