"""Retention in a real cluster: every replica forgets, consumers hear of it, idle partitions too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of_all, described
from tests.integration.rig.waiting import until
from tests.integration.rig.workload import wait_in_sync
from tidelog.client.base.exceptions import OffsetOutOfRange
from tidelog.server.devcluster import DevCluster

LIMIT = 60.0
"""Seconds; replicas are visited every 5."""


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as client:
        yield client


async def fill(client: tidelog.Client, stream: str, records: int) -> None:
    async with client.producer(stream, acks="all") as producer:
        for number in range(records):
            await producer.send(f"{number}".encode().ljust(500, b"."))


def segments(cluster: DevCluster, stream: str) -> list[list[int]]:
    """Where the segments of each replica begin."""
    folders = cluster.data_dir.glob(f"b*/{stream}-*/0-*")
    return [sorted(int(path.stem) for path in folder.glob("*.log")) for folder in folders]


def first_segments(cluster: DevCluster, stream: str) -> list[int]:
    """Where the log of each replica begins."""
    return [min(starts) for starts in segments(cluster, stream)]


async def start_of(client: tidelog.Client, stream: str) -> int:
    start = (await described(client, stream))["partitions"][0]["log_start_offset"]
    assert start is not None
    return start


async def test_replicas_forget_and_consumers_hear_of_it(cluster: DevCluster, client: tidelog.Client) -> None:
    config = {"segment_bytes": "4096", "retention_max_messages": "20"}
    await client.create_stream("few", partitions=1, replication_factor=3, config=config)
    await wait_in_sync(cluster.nats_url, "few")
    overtaken = client.consume("few", start="earliest", max_bytes=1, prefetch_bytes=1)
    await overtaken.start()
    await fill(client, "few", 100)

    async def forgotten() -> bool:
        """On each replica all that may go: one that was visited while records came is visited again."""
        done = all(len(starts) > 1 and starts[0] > 60 and starts[1] > 80 for starts in segments(cluster, "few"))
        return done and await start_of(client, "few") in first_segments(cluster, "few")

    await until(forgotten, "the end of the oldest segments", LIMIT)
    start = await start_of(client, "few")
    assert start <= 80, "what the limit keeps is kept"
    assert [record.offset async for record in client.consume("few", stop="latest")] == list(range(start, 100))
    with pytest.raises(OffsetOutOfRange, match=f"start at {start}"):
        async for _ in client.consume("few", start=5, stop="latest"):
            pass
    skipping = client.consume("few", start=5, stop="latest", on_gap="skip")
    assert [record.offset async for record in skipping] == list(range(start, 100))
    assert skipping.missed == {0: start - 5}

    seen = []
    async for record in overtaken:
        seen.append(record.offset)
        if record.offset == 99:
            break
    gap = next(at for at, offset in enumerate(seen) if offset >= start)
    assert seen == [*range(gap), *range(start, 100)]
    assert overtaken.missed == {0: start - gap}

    assert all(each["retention_segments"] > 5 for each in (await counters_of_all(client)).values())


async def test_an_idle_partition_forgets_all_and_goes_on_where_it_was(
    cluster: DevCluster, client: tidelog.Client
) -> None:
    config = {"retention_max_age_ms": "1000"}
    await client.create_stream("idle", partitions=1, replication_factor=3, config=config)
    await wait_in_sync(cluster.nats_url, "idle")
    await fill(client, "idle", 10)

    async def forgotten() -> bool:
        return set(first_segments(cluster, "idle")) == {10} and await start_of(client, "idle") == 10

    await until(forgotten, "the end of the oldest segments", LIMIT)

    async def nothing_is_served() -> bool:  # a replica hears of its new log start after the files are gone
        return not [record.offset async for record in client.consume("idle", stop="latest")]

    await until(nothing_is_served, "the new log start at each replica")
    async with client.producer("idle", acks="all") as producer:
        assert (await producer.send(b"next")).offset == 10
