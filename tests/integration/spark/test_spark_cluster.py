"""Spark on a real cluster: the connector through the client, over NATS, from three brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidelog
from spark_connector.reads.plans import default_tasks
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.spark.spark_session import local_spark
from tidelog.server.devcluster import DevCluster

RECORDS = 10_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    keys = folder / "master-keys"
    keys.write_text("2026 " + "ab" * 32)
    with dev_cluster(folder / "cluster", master_key_file=keys) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("test_spark_cluster") as session:
        yield session


async def create(url: str, stream: str, partitions: int = 3, **config: str) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(stream, subject=stream, partitions=partitions, replication_factor=3, config=config)


async def recreate(url: str, stream: str) -> None:
    async with await tidelog.connect(url) as client:
        await client.delete_stream(stream)
    await create(url, stream)


async def publish(url: str, stream: str, numbers: range) -> dict[tuple[int, int], bytes]:
    """(partition, offset) -> value of every acknowledged record."""
    async with await tidelog.connect(url) as client, client.producer(stream, acks="all") as producer:
        values = [b"%d" % number for number in numbers]
        pending = [producer.send_nowait(value, key=value[-2:]) for value in values]
        await producer.flush()
        receipts = [await future for future in pending]
    return {(at.partition, at.offset): value for at, value in zip(receipts, values, strict=True)}


def options(cluster: DevCluster, stream: str, **more: str) -> dict[str, str]:
    return {"servers": cluster.nats_url, "subscribe": stream, "startingOffsets": "earliest"} | more


def records(frame: DataFrame) -> dict[tuple[int, int], bytes]:
    rows = frame.select("partition", "offset", "value").collect()
    found = {(row.partition, row.offset): bytes(row.value) for row in rows}
    assert len(found) == len(rows), "a record was read twice"
    return found


def run(spark: SparkSession, given: Mapping[str, str], folder: Path) -> None:
    """A streaming query of all that is there now."""
    frame = spark.readStream.format("tidelog").options(**given).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query: Any = writer.trigger(availableNow=True).start(str(folder / "out"))
    assert query.awaitTermination(240), "Trigger.AvailableNow did not end"
    assert query.exception() is None


def test_a_batch_query_reads_committed_records(spark: SparkSession, cluster: DevCluster) -> None:
    asyncio.run(create(cluster.nats_url, "batch"))
    sent = asyncio.run(publish(cluster.nats_url, "batch", range(RECORDS)))
    frame = spark.read.format("tidelog").options(**options(cluster, "batch")).load()
    assert frame.count() == RECORDS
    assert records(frame) == sent
    assert frame.rdd.getNumPartitions() == min(3, default_tasks())
    split = spark.read.format("tidelog").options(**options(cluster, "batch", minPartitions="8")).load()
    assert split.rdd.getNumPartitions() >= 8
    assert records(split) == sent
    # A task that Spark does not read to its end.
    assert len(frame.limit(5).collect()) == 5
    with pytest.raises(PySparkException, match="'nothing'"):
        spark.read.format("tidelog").options(**options(cluster, "nothing")).load().collect()


def test_stream_restarts_from_its_checkpoint_without_gap_or_repeat(
    spark: SparkSession, cluster: DevCluster, tmp_path: Path
) -> None:
    asyncio.run(create(cluster.nats_url, "live"))
    given = options(cluster, "live", maxOffsetsPerTrigger="4000")
    sent = asyncio.run(publish(cluster.nats_url, "live", range(RECORDS)))
    run(spark, given, tmp_path)
    assert records(spark.read.parquet(str(tmp_path / "out"))) == sent
    sent |= asyncio.run(publish(cluster.nats_url, "live", range(RECORDS, RECORDS + 1000)))
    run(spark, given, tmp_path)
    assert records(spark.read.parquet(str(tmp_path / "out"))) == sent
    asyncio.run(recreate(cluster.nats_url, "live"))
    with pytest.raises(PySparkException, match="deleted and created again"):
        run(spark, given, tmp_path)


def test_an_encrypted_stream_reads_as_any_other(spark: SparkSession, cluster: DevCluster) -> None:
    asyncio.run(create(cluster.nats_url, "vault", encryption="true", compression="lz4"))
    sent = asyncio.run(publish(cluster.nats_url, "vault", range(1000)))
    assert records(spark.read.format("tidelog").options(**options(cluster, "vault")).load()) == sent


def test_no_server_is_one_clear_sentence(spark: SparkSession) -> None:
    given = {"servers": "nats://127.0.0.1:9", "subscribe": "flights", "retry.timeout": "0s"}
    with pytest.raises(PySparkException, match=r"NoServer: .*127\.0\.0\.1:9"):
        spark.read.format("tidelog").options(**given).load().collect()


def test_a_broker_that_dies_costs_no_record(spark: SparkSession, cluster: DevCluster, tmp_path: Path) -> None:
    asyncio.run(create(cluster.nats_url, "survivor"))
    sent = asyncio.run(publish(cluster.nats_url, "survivor", range(1000)))
    given = options(cluster, "survivor")
    run(spark, given, tmp_path)
    cluster.kill("b1")
    try:
        sent |= asyncio.run(publish(cluster.nats_url, "survivor", range(1000, 2000)))
        run(spark, given, tmp_path)
        assert records(spark.read.parquet(str(tmp_path / "out"))) == sent
        assert records(spark.read.format("tidelog").options(**given).load()) == sent
    finally:
        cluster.start_broker("b1")
