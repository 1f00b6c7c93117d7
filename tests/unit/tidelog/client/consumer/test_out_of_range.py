"""Consumers that are to start at an offset outside of the committed log, and say where to start instead."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import BadRequest, Closed, OffsetOutOfRange

Choice = Literal["earliest", "latest"]


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """Each partition of `three` has the offsets 10 to 19."""
    _, broker, _ = cluster
    for partition in range(3):
        for base in (0, 10):
            broker.seed("three", partition, [b"%d" % offset for offset in range(base, base + 10)])
        del broker.logs["three", partition].batches[0]
        broker.logs["three", partition].start = 10
    return cluster


@pytest.mark.parametrize(
    ("start", "choice", "first"),
    [
        (9, "earliest", 10),
        (9, "latest", 20),
        (21, "earliest", 10),
        (21, "latest", 20),
        (10, "latest", 10),
        (20, "earliest", 20),
        ("earliest", "latest", 10),
    ],
)
async def test_it_starts_where_it_is_told_instead(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, start: int | str, choice: Choice, first: int
) -> None:
    _, _, client = cluster
    consumer = client.consume("three", start=start, stop="latest", partitions=[1], on_out_of_range=choice)
    with caplog.at_level(logging.WARNING):
        assert [record.offset async for record in consumer] == list(range(first, 20))
    where = "below" if start == 9 else "above"
    told = f"offset {start} is {where} the committed log of three/1, 10 to 20: reading starts at its {choice}"
    assert caplog.messages == ([told] if start in (9, 21) else [])


async def test_each_partition_is_judged_by_itself(cluster: Cluster) -> None:
    _, broker, client = cluster
    consumer = client.consume("three", start={0: 5, 1: 15, 2: 25}, on_out_of_range="earliest")
    async with consumer:
        assert consumer.positions == {0: 10, 1: 15, 2: 10}
        broker.seed("three", 2, [b"new"])
        assert len([await consumer.getone(timeout=30) for _ in range(10 + 5 + 11)]) == 26


@pytest.mark.parametrize(("start", "where"), [(9, "below"), (21, "above")])
async def test_it_fails_where_that_is_chosen(cluster: Cluster, start: int, where: str) -> None:
    _, _, client = cluster
    consumer = client.consume("three", start=start, on_out_of_range="fail")
    with pytest.raises(OffsetOutOfRange, match=rf"offset {start} is {where} the committed log of three/0, 10 to 20"):
        await consumer.start()
    with pytest.raises(Closed):
        await consumer.getone()


async def test_it_holds_for_a_seek(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("three", partitions=[0], stop="latest", on_out_of_range="latest") as consumer:
        await consumer.seek(0, 3)
        assert await consumer.getone(timeout=1) is None
        assert consumer.positions == {0: 20}
    async with client.consume("three", partitions=[0], start=12, on_out_of_range="fail") as consumer:
        with pytest.raises(OffsetOutOfRange):
            await consumer.seek(0, 3)
        record = await consumer.getone()
        assert record is not None
        assert record.offset == 12, "reading goes on where it was"


async def test_a_consumer_that_is_closed_while_it_looks_says_so(cluster: Cluster) -> None:
    _, broker, client = cluster
    await client.metadata("three")
    broker.kill()
    consumer = client.consume("three", start=3, on_out_of_range="earliest")
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0.05)
    await consumer.aclose()
    with pytest.raises(Closed):
        await starting


async def test_a_slip_is_named(cluster: Cluster) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest, match=r"on_out_of_range='none' is none of 'earliest', 'latest' and 'fail'"):
        client.consume("three", on_out_of_range="none")  # type: ignore[arg-type]
