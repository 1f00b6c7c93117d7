"""Records taken one by one or in groups, and reading that is paused or goes on elsewhere."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster, FakeBroker
from tidelog.client.base.exceptions import BadRequest, Closed, OffsetOutOfRange, UnknownStream
from tidelog.client.consumer.consumer import Consumer


def seed(broker: FakeBroker, stream: str, partition: int, end: int) -> None:
    """Ten records at a time, whose values are their offsets."""
    begin = broker.logs[stream, partition].end
    for base in range(begin, end, 10):
        broker.seed(stream, partition, [b"%d" % offset for offset in range(base, min(base + 10, end))])


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """With 25 records in `s`, and in each partition of `three`."""
    _, broker, _ = cluster
    seed(broker, "s", 0, 25)
    for partition in range(3):
        seed(broker, "three", partition, 25)
    return cluster


async def rest(consumer: Consumer) -> list[tuple[int, int]]:
    """(partition, offset) of all that is left up to the stop."""
    found = []
    while (record := await consumer.getone()) is not None:
        found.append((record.partition, record.offset))
    return found


async def test_one_by_one_up_to_the_stop(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("s", stop="latest") as consumer:
        for offset in range(25):
            assert not consumer.is_at_end
            record = await consumer.getone()
            assert record is not None
            assert (record.offset, record.value) == (offset, b"%d" % offset)
            assert consumer.positions == {0: offset + 1}
        assert await consumer.getone() is None
        assert consumer.is_at_end


async def test_without_a_stop_it_waits_as_long_as_it_is_told(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s", start="new") as consumer:
        assert await consumer.getone(timeout=0) is None
        began = time.monotonic()
        assert await consumer.getone(timeout=0.05) is None
        assert time.monotonic() - began >= 0.05
        assert not consumer.is_at_end
        waiting = asyncio.create_task(consumer.getone())
        broker.seed("s", 0, [b"25"])
        record = await waiting
        assert record is not None
        assert record.value == b"25"


async def test_a_timeout_that_is_not_the_calls_own_is_raised(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, client = cluster

    def fails() -> None:
        raise TimeoutError("the program's own")

    async with client.consume("s", start="new") as consumer:
        monkeypatch.setattr(consumer._reading, "raise_failure", fails)
        with pytest.raises(TimeoutError, match="own"):
            await consumer.getone(timeout=30)


async def test_many_at_a_time_are_of_one_partition(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("three", stop="latest") as consumer:
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        while records := await consumer.getmany(7):
            assert len(records) <= 7
            (partition,) = {record.partition for record in records}
            seen[partition] += [record.offset for record in records]
            assert consumer.position(partition) == seen[partition][-1] + 1
        assert seen == {partition: list(range(25)) for partition in range(3)}


async def test_one_and_many_and_whole_batches_in_turn(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("s", stop="latest") as consumer:
        first = await consumer.getone()
        assert first is not None
        assert first.offset == 0
        assert [record.offset for record in await consumer.getmany(3)] == [1, 2, 3]
        batches = [batch.offsets.tolist() async for batch in consumer.batches()]
        assert batches == [[4, 5, 6, 7, 8, 9], list(range(10, 20)), list(range(20, 25))]
        assert consumer.positions == {0: 25}


async def test_a_paused_partition_keeps_what_was_fetched(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("three", stop="latest") as consumer:
        first = await consumer.getone()
        assert first is not None
        held = first.partition
        consumer.pause(held)
        assert consumer.paused == {held}
        others: list[int] = []
        while len(others) < 50:
            record = await consumer.getone()
            assert record is not None
            others.append(record.partition)
        assert held not in others
        assert await consumer.getone(timeout=0.05) is None
        assert not consumer.is_at_end
        assert consumer.position(held) == 1
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        consumer.resume(held)
        second = await waiting
        assert second is not None
        assert (second.partition, second.offset) == (held, 1)
        assert await rest(consumer) == [(held, offset) for offset in range(2, 25)]


async def test_an_iteration_obeys_a_pause_at_the_next_record(cluster: Cluster) -> None:
    _, _, client = cluster
    seen: list[tuple[int, int]] = []
    async with client.consume("three", stop="latest") as consumer:
        async for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 1:
                consumer.pause(record.partition)
            if len(seen) == 51:
                consumer.resume()
    held = seen[0][0]
    assert all(partition != held for partition, _ in seen[1:51])
    assert seen[51:] == [(held, offset) for offset in range(1, 25)]


async def test_a_pause_of_all_stops_the_fetching(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s", max_bytes=1, stop="latest") as consumer:
        consumer.pause()
        await asyncio.sleep(0.1)
        asked = len(broker.fetches)
        await asyncio.sleep(0.1)
        assert len(broker.fetches) == asked
        consumer.resume()
        assert len(await rest(consumer)) == 25


@pytest.mark.parametrize(("position", "first"), [(20, 20), ("earliest", 0), ("latest", 24), (3, 3)])
async def test_reading_goes_on_where_it_is_told(cluster: Cluster, position: int | str, first: int) -> None:
    _, _, client = cluster
    async with client.consume("s", stop="latest", max_bytes=1) as consumer:
        for _ in range(4):
            await consumer.getone()
        await consumer.seek(0, position)
        assert consumer.position(0) == first
        assert await rest(consumer) == [(0, offset) for offset in range(first, 25)]
        await consumer.seek(0, 23)
        assert not consumer.is_at_end
        assert await rest(consumer) == [(0, 23), (0, 24)]
        assert consumer.is_at_end


async def test_an_iteration_goes_on_where_it_is_told(cluster: Cluster) -> None:
    _, _, client = cluster
    seen = []
    async with client.consume("three", stop="latest", partitions=[1]) as consumer:
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 5 and len(seen) == 6:
                await consumer.seek(1, 20)
    assert seen == [0, 1, 2, 3, 4, 5, 20, 21, 22, 23, 24]


async def test_the_other_partitions_are_read_on(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("three", stop="latest") as consumer:
        assert len(await rest(consumer)) == 75
        await consumer.seek(2, 24)
        consumer.pause(2)
        assert await consumer.getone(timeout=0.05) is None
        consumer.resume(2)
        assert await rest(consumer) == [(2, 24)]


async def test_a_gap_is_passed_by_seeking(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, "s", 0, 60)
    async with client.consume("s", start=0, stop="latest", max_bytes=1) as consumer:
        first = await consumer.getone()
        assert first is not None
        broker.logs["s", 0].start = 55
        with pytest.raises(OffsetOutOfRange):
            await rest(consumer)
        with pytest.raises(OffsetOutOfRange):
            await consumer.getone()
        await consumer.seek(0, "earliest")
        assert await rest(consumer) == [(0, offset) for offset in range(55, 60)]


async def test_a_position_that_cannot_be_looked_up_leaves_everything_as_it_was(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("s", stop="latest") as consumer:
        assert await consumer.getone() is not None
        with pytest.raises(BadRequest, match="no position"):
            await consumer.seek(0, "middle")
        with pytest.raises(BadRequest, match=r"partition 7 .*is not read; this consumer reads 0"):
            await consumer.seek(7, 0)
        assert await rest(consumer) == [(0, offset) for offset in range(1, 25)]


async def test_how_far_behind_it_is(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s") as consumer:
        await consumer.getmany(10)
        assert consumer.lag == {0: 15}
        await consumer.getmany(10)
        await consumer.getmany(10)
        assert consumer.lag == {0: 0}
        seed(broker, "s", 0, 35)
        assert await consumer.getone() is not None
        assert consumer.lag == {0: 9}


async def test_mistakes_are_told(cluster: Cluster) -> None:
    _, _, client = cluster
    consumer = client.consume("s")
    for early in (consumer.pause, consumer.resume, lambda: consumer.position(0)):
        with pytest.raises(BadRequest, match="reading has not begun"):
            early()
    for wrong in (0, -1, "3", True):
        with pytest.raises(BadRequest, match="max_records"):
            await consumer.getmany(wrong)  # type: ignore[arg-type]
    for late in (-1, "1", float("nan")):
        with pytest.raises(BadRequest, match="timeout"):
            await consumer.getone(late)  # type: ignore[arg-type]
    await consumer.aclose()
    with pytest.raises(Closed):
        await consumer.getone()
    with pytest.raises(UnknownStream):
        await client.consume("nothing").getone()
