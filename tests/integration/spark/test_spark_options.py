"""Options of the Spark source on a real cluster: what is read, how much at once, and what becomes of positions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT
from tests.integration.spark.spark_session import local_spark
from tidelog.server.devcluster import DevCluster

pytestmark = pytest.mark.timeout(900)
"""The first test starts a cluster and Spark, and the machine may have other work."""

NOON = 1_893_499_200_000
"""2030-01-01T12:00:00Z in ms. The record with number n is of n seconds later."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("test_spark_options") as session:
        yield session


def publish(cluster: DevCluster, stream: str, numbers: range, *, partitions: int = 2, size: int = 8) -> None:
    """Creates the stream if it is not there; number n goes to partition n % partitions."""

    async def work() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.ensure_stream(stream, partitions=partitions, replication_factor=3)
            async with client.producer(stream) as producer:
                for number in numbers:
                    value, timestamp = (b"%08d" % number).ljust(size), (NOON + number * 1000) * 1_000_000
                    producer.send_nowait(value, partition=number % partitions, timestamp=timestamp)
                await producer.flush()

    asyncio.run(work())


def read(spark: SparkSession, cluster: DevCluster, **options: str) -> DataFrame:
    return spark.read.format("tidelog").options(servers=cluster.nats_url, **options).load()


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.value[:8]) for row in frame.select("value").collect())


class Query:
    """A streaming query whose rows are kept in memory of the driver."""

    def __init__(self, spark: SparkSession, cluster: DevCluster, folder: Path, **options: str) -> None:
        self.batches: list[list[int]] = []
        given = {"servers": cluster.nats_url, "startingOffsets": "earliest"} | options
        frame = spark.readStream.format("tidelog").options(**given).load()
        self.writer = frame.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(folder / "state"))
        self.query: Any = None

    def _keep(self, frame: DataFrame, _: int) -> None:
        found = numbers(frame)
        if found:
            self.batches.append(found)

    def run(self) -> list[int]:
        """Until all that is there now is read; the sizes of the micro-batches."""
        query: Any = self.writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        assert query.exception() is None
        return [len(batch) for batch in self.batches]

    def start(self) -> None:
        self.query = self.writer.start()

    @property
    def rows(self) -> list[int]:
        return sorted(number for batch in self.batches for number in batch)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 4 * LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_starts_and_ends_by_time_and_their_precedence(spark: SparkSession, cluster: DevCluster) -> None:
    publish(cluster, "times", range(100))

    def at(first: int, second: int) -> str:
        return json.dumps({"times": {"0": NOON + first * 1000, "1": NOON + second * 1000}})

    given = {"startingOffsetsByTimestamp": at(10, 51), "endingOffsetsByTimestamp": at(20, 61)}
    some = read(spark, cluster, subscribe="times", startingOffsets="earliest", **given)
    assert numbers(some) == [*range(10, 20, 2), *range(51, 61, 2)]
    later = read(spark, cluster, subscribe="times", startingTimestamp=str(NOON + 90_000), **given | {
        "endingOffsetsByTimestamp": at(1000, 95)
    })  # fmt: skip
    assert numbers(later) == sorted([*range(90, 100, 2), 91, 93])


def test_what_is_shipped_and_in_how_many_tasks(spark: SparkSession, cluster: DevCluster) -> None:
    publish(cluster, "shipped", range(100))
    frame = read(spark, cluster, subscribePattern="ship.*", columns="value,timestampType,timestamp")
    assert frame.columns == ["value", "timestampType", "timestamp"]
    first = frame.orderBy("timestamp").first()
    assert first is not None
    assert (int(first.value), first.timestampType, int(first.timestamp.timestamp() * 1000)) == (0, 0, NOON)
    cut = read(spark, cluster, subscribe="shipped", maxRecordsPerPartition="9")
    assert cut.rdd.getNumPartitions() >= 12
    assert max(cut.groupBy("partition").count().rdd.map(lambda row: row["count"]).collect()) == 50
    assert numbers(cut) == list(range(100))
    assert numbers(read(spark, cluster, subscribe="shipped", readFrom="follower")) == list(range(100))


def test_records_of_open_transactions_are_read_where_that_is_asked_for(
    spark: SparkSession, cluster: DevCluster
) -> None:
    publish(cluster, "levels", range(10))

    async def reads() -> tuple[list[int], list[int]]:
        async with (
            await tidelog.connect(cluster.nats_url) as client,
            client.producer(transactional_id="levels", streams="levels", transaction_timeout=8 * LIMIT) as producer,
            producer.transaction(),
        ):
            await producer.send("levels", b"10", partition=0)
            await producer.flush()
            committed = await asyncio.to_thread(lambda: numbers(read(spark, cluster, subscribe="levels")))
            everything = await asyncio.to_thread(
                lambda: numbers(read(spark, cluster, subscribe="levels", isolationLevel="read_uncommitted"))
            )
        return committed, everything

    assert asyncio.run(reads()) == (list(range(10)), list(range(11)))


def test_a_query_of_a_pattern_that_commits_for_a_group(
    spark: SparkSession, cluster: DevCluster, tmp_path: Path
) -> None:
    publish(cluster, "orders-eu", range(10))
    query = Query(spark, cluster, tmp_path, subscribePattern="orders-.*", groupId="billing")
    query.start()
    try:
        until(lambda: query.rows == list(range(10)), "the first stream was not read")
        publish(cluster, "orders-us", range(10, 30))
        until(lambda: query.rows == list(range(30)), "the stream that was created meanwhile was not read")
        publish(cluster, "orders-eu", range(30, 32))
        until(lambda: query.rows == list(range(32)), "the first stream was not read on")
        behind = query.query.lastProgress["sources"][0]["latestOffset"]
        assert json.loads(behind)["maxOffsetsBehindLatest"] == 0
    finally:
        query.query.stop()
    committed = asyncio.run(committed_by(cluster, "billing"))
    # One micro-batch behind.
    assert committed["orders-us", 0] == 10
    assert committed["orders-eu", 0] == 5
    secret = json.dumps([progress.sources[0].description for progress in query.query.recentProgress])
    assert "nats://" not in secret


async def committed_by(cluster: DevCluster, group: str) -> dict[tuple[str, int], int]:
    async with await tidelog.connect(cluster.nats_url) as client:
        described = await client.describe_group(group)
    return {(each["stream"], each["partition"]): each["offset"] for each in described["offsets"]}


def test_micro_batches_of_at_most_so_many_bytes(spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    publish(cluster, "large", range(200), size=10_000)
    query = Query(spark, cluster, tmp_path, subscribe="large", maxBytesPerTrigger="500k")
    sizes = query.run()
    assert query.rows == list(range(200))
    # 2 MB in all. Leaders estimate sizes between the entries of their indexes.
    assert 4 <= len(sizes) <= 6, sizes
    assert max(sizes) <= 60, sizes


def test_a_micro_batch_waits_for_the_least(spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    publish(cluster, "least", range(10))
    query = Query(
        spark, cluster, tmp_path, subscribe="least", minOffsetsPerTrigger="20", maxOffsetsPerTrigger="25",
        maxTriggerDelay="10m",
    )  # fmt: skip
    query.start()
    try:
        until(lambda: query.rows == list(range(10)), "the first micro-batch does not wait")
        publish(cluster, "least", range(10, 20))
        time.sleep(3)
        assert query.rows == list(range(10))
        publish(cluster, "least", range(20, 40))
        until(lambda: len(query.batches) == 2, "the least was reached")
        assert len(query.batches[1]) == 25
        time.sleep(3)
        assert len(query.batches) == 2
    finally:
        query.query.stop()
    later = Query(spark, cluster, tmp_path, subscribe="least", minOffsetsPerTrigger="1000")
    assert later.run() == [5], "Trigger.AvailableNow does not wait"
