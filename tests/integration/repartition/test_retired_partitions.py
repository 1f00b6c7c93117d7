"""Partitions that a repartition has left behind go when retention has removed their records; readers go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import until
from tidelog.server.devcluster import DevCluster

STREAM = "left"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    metadata = {"repartition_adoption_timeout_s": 1.0, "clock_settle_s": 0.5}
    settings = {"storage": {"housekeeping_interval": 0.1}, "metadata": metadata}
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


async def test_a_retired_partition_goes_with_its_last_record(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        config = {"retention_max_age_ms": "5000"}
        await client.create_stream(STREAM, partitions=3, replication_factor=3, config=config)
        read: list[tuple[int, bytes]] = []

        async def read_on() -> None:
            async for record in client.consume(STREAM, order="key"):
                read.append((record.partition, record.value or b""))  # noqa: PERF401 - it is looked at meanwhile

        async def read_in_a_group() -> None:
            async with client.subscribe(STREAM, group="g") as consumer:
                async for record in consumer:
                    read.append((-1 - record.partition, record.value or b""))  # noqa: PERF401 - as above

        async def partitions() -> list[int]:
            return [each["partition"] for each in (await client.describe(STREAM))["partitions"]]

        reading = [asyncio.create_task(read_on()), asyncio.create_task(read_in_a_group())]

        async def all_read(value: bytes, times: int) -> None:
            async def done() -> bool:
                for task in reading:
                    if task.done():
                        task.result()
                return sum(found == value for _, found in read) == 2 * times

            await until(done, f"{value!r} to be read {times} times by both")

        async with client.producer(STREAM) as producer:
            for number in range(30):
                await producer.send(b"before", key=b"%d" % number)
            await all_read(b"before", 30)
            await client.repartition(STREAM, 1)

            async def gone() -> bool:
                return await partitions() == [0]

            await until(gone, "retired partitions to go")
            for number in range(30):
                await producer.send(b"after", key=b"%d" % number)
            await all_read(b"after", 30)
            answer = await client.repartition(STREAM, 2)
            assert (answer["plan"]["made"], answer["plan"]["used_again"]) == ([1], [])
            for number in range(30):
                await producer.send(b"again", key=b"%d" % number)
            await all_read(b"again", 30)
            assert {partition for partition, value in read if value == b"again"} == {0, 1, -1, -2}
        for task in reading:
            task.cancel()
