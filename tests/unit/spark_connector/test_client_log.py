from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from spark_connector import client_log
from spark_connector.client_log import CHUNK_BYTES, _abandon, _begin, _take
from spark_connector.log_port import OffsetRange
from wire.batch import BatchBuilder, RecordBatch
from wire.errors import Code, TidelogError
from wire.types import Incarnation, LeaderEpoch, Offset, StreamName

WANTED = OffsetRange(StreamName("flights"), Incarnation(1), 0, Incarnation(1), Offset(0), Offset(10))


def batch(size: int) -> RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"x" * size])
    parts, _ = builder.build(1).stamp(Offset(0), LeaderEpoch(1))
    return RecordBatch.decode(b"".join(bytes(part) for part in parts))


class Batches:
    """`fetch_batches` with batches of a given size; counts the taken batches, and holds on when there are no more."""

    def __init__(self, sizes: list[int], *, hangs: bool = False) -> None:
        self.taken = 0
        self.started = asyncio.Event()
        self.closed = False
        self._sizes = sizes
        self._hangs = hangs

    async def generate(self) -> AsyncGenerator[RecordBatch, None]:
        try:
            for size in self._sizes:
                self.taken += 1
                self.started.set()
                yield batch(size)
            if self._hangs:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_one_chunk_is_fetched_ahead_and_no_more() -> None:
    source = Batches([CHUNK_BYTES] * 5)
    batches = source.generate()
    ahead = await _begin(batches)
    chunk, ahead = await _take(ahead, batches, WANTED)
    assert len(chunk) == 1
    # Waits for the one that is fetched ahead; nothing runs after it.
    await asyncio.wait([ahead])
    await asyncio.sleep(0)
    assert source.taken == 2
    sizes = []
    while chunk:
        sizes.append(len(chunk))
        chunk, ahead = await _take(ahead, batches, WANTED)
    assert sizes == [1] * 5
    await _abandon(ahead, batches)
    assert source.closed


async def test_a_reader_that_stops_early_leaves_nothing_running() -> None:
    source = Batches([10], hangs=True)
    batches = source.generate()
    ahead = await _begin(batches)
    await _abandon(ahead, batches)
    assert ahead.done()
    ahead = await _begin(batches := source.generate())
    await source.started.wait()
    await _abandon(ahead, batches)
    assert source.closed


async def test_a_range_without_an_answer_fails_instead_of_waiting_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "STALL_SECONDS", 0.01)
    batches = Batches([], hangs=True).generate()
    ahead = await _begin(batches)
    with pytest.raises(TidelogError, match=r"flights/0 \[0, 10\) has not been answered") as caught:
        await _take(ahead, batches, WANTED)
    assert caught.value.code is Code.UNAVAILABLE
    await _abandon(ahead, batches)
