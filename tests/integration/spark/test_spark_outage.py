"""A streaming query goes on after brokers and NATS stood still, while tasks read and while it waits for news."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT
from tests.integration.spark.spark_session import local_spark
from tidelog.server.devcluster import DevCluster

RECORD_BYTES = 64 << 10
RECORDS = 600
"""About 19 MB in each of two partitions: more than a task fetches ahead."""


async def publish(url: str, first: int, count: int) -> set[bytes]:
    """The first ten bytes of each acknowledged value."""
    async with await tidelog.connect(url) as client:
        await client.ensure_stream("tide", subject="tide", partitions=2, replication_factor=3)
        async with client.producer("tide", acks="all") as producer:
            values = [b"%010d" % number for number in range(first, first + count)]
            for value in values:
                await producer.send(value.ljust(RECORD_BYTES, b"."), partition=int(value) % 2)
    return set(values)


def stand_still(cluster: DevCluster, seconds: float) -> None:
    for broker in cluster.broker_ids:
        cluster.kill(broker)
    cluster.nats.kill()
    time.sleep(seconds)
    cluster.nats.start()
    for broker in cluster.broker_ids:
        cluster.start_broker(broker)
    cluster.wait_ready(2 * LIMIT)


def wait_for(path: Path, query: Any) -> None:
    deadline = time.monotonic() + 4 * LIMIT  # the first task of a JVM, on a busy machine
    while not path.exists():
        assert query.exception() is None
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_brokers_and_nats_stand_still_in_mid_query(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--outage-seconds")
    begun, out = tmp_path / "begun", tmp_path / "out"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            time.sleep(0.3)
            yield batch

    with dev_cluster(tmp_path / "cluster") as cluster, local_spark("test_spark_outage") as spark:
        sent = asyncio.run(publish(cluster.nats_url, 0, RECORDS))
        given = {"servers": cluster.nats_url, "subscribe": "tide", "startingOffsets": "earliest"}
        frame = spark.readStream.format("tidelog").options(**given).load()
        short = frame.selectExpr("substr(value, 1, 10) AS id", "partition", "offset", "value")
        slow = short.mapInArrow(slowly, short.schema).drop("value")
        writer = slow.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start(str(out))
        try:
            # While tasks read.
            wait_for(begun, query)
            stand_still(cluster, seconds)
            query.processAllAvailable()
            # While it waits for news.
            stand_still(cluster, seconds)
            sent |= asyncio.run(publish(cluster.nats_url, RECORDS, 10))
            query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        rows = spark.read.parquet(str(out)).collect()
    assert sorted(bytes(row.id) for row in rows) == sorted(sent)
