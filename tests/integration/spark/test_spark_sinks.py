"""Rows that Spark writes to streams, on a real cluster: once each, whatever happens between the commits."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery

import tidelog
import tidelog.sync
from spark_connector.shared.connections import kept
from spark_connector.source import TidelogDataSource
from spark_connector.writes.sink_delivery import Place, send_rows
from spark_connector.writes.sink_options import SinkOptions
from spark_connector.writes.sinks import TidelogBatchWriter, TidelogStreamWriter, _commit
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, wait_until
from tests.integration.spark.spark_session import local_spark
from tests.integration.transactions.told_transactions import until_told
from tidelog.client.producer.partitioner import murmur2
from tidelog.server.devcluster import DevCluster

RECORDS = 3000


class DiesAfterItsCommit(TidelogStreamWriter):
    """The driver of micro-batch 1 ends between the sink's commit and Spark's."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        if batchId == 1:
            raise RuntimeError("the driver ends here")


class FailsAtFirst(TidelogBatchWriter):
    """The first attempt of each task fails when it has sent its rows; the next one finds them in another order."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            super().write(iterator)
            raise RuntimeError("the task ends here")
        batches = [batch.take(pa.array(range(batch.num_rows - 1, -1, -1))) for batch in iterator]
        return super().write(iter(reversed(batches)))


class FailsForGood(TidelogBatchWriter):
    """One of the tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        sent = super().write(iterator)
        if context.partitionId() == 1:
            raise RuntimeError("the task ends here")
        return sent


class WithDyingDriver(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-dies-after-its-commit"

    def streamWriter(self, schema: Any, overwrite: bool) -> DiesAfterItsCommit:  # noqa: N802 - Spark's name
        return DiesAfterItsCommit(super().streamWriter(schema, overwrite)._options)  # type: ignore[attr-defined]


class WithFailingTasks(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-fails-at-first"

    def writer(self, schema: Any, overwrite: bool) -> FailsAtFirst:
        return FailsAtFirst(super().writer(schema, overwrite)._options)  # type: ignore[attr-defined]


class WithAFailingTask(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-fails"

    def writer(self, schema: Any, overwrite: bool) -> FailsForGood:
        return FailsForGood(super().writer(schema, overwrite)._options)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # A task may fail four times, and not once.
    with local_spark("test_spark_sinks", spark__master="local[2,4]") as session:
        for source in (WithDyingDriver, WithFailingTasks, WithAFailingTask):
            session.dataSource.register(source)
        yield session


def create(cluster: DevCluster, *streams: str, partitions: int = 3) -> None:
    async def work() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            for stream in streams:
                await client.create_stream(stream, partitions=partitions)

    asyncio.run(work())


def publish(cluster: DevCluster, stream: str, numbers: Iterable[int]) -> None:
    async def work() -> None:
        async with await tidelog.connect(cluster.nats_url) as client, client.producer(stream) as producer:
            values = [b"%05d" % number for number in numbers]
            await producer.send_many(values, keys=[value[-2:] for value in values])

    asyncio.run(work())


def read(cluster: DevCluster, stream: str) -> list[tidelog.Record]:
    async def work() -> list[tidelog.Record]:
        async with await tidelog.connect(cluster.nats_url) as client:
            await until_told(client, stream)
            found = [record async for record in client.consume(stream, stop="latest")]
            return sorted(found, key=lambda record: (record.partition, record.offset))

    return asyncio.run(work())


def numbers_in(cluster: DevCluster, stream: str) -> list[int]:
    return [int(record.value or b"-1") for record in read(cluster, stream)]


def open_transactions(cluster: DevCluster) -> list[str]:
    async def work() -> list[str]:
        async with await tidelog.connect(cluster.nats_url) as client:
            return [each["transactional_id"] for each in (await client.transactions())["transactions"]]

    return asyncio.run(work())


def wait_until_nothing_is_open(cluster: DevCluster) -> None:
    """Those that a commit has passed over are aborted, and told of it, some time later."""
    wait_until(lambda: not open_transactions(cluster), "the end of all transactions")


def write(frame: DataFrame, cluster: DevCluster, source: str = "tidelog", **options: str) -> None:
    frame.write.format(source).mode("append").options(servers=cluster.nats_url, **options).save()


def begin(
    spark: SparkSession,
    cluster: DevCluster,
    folder: Path,
    source: str,
    target: str,
    sink: str = "tidelog",
    **options: str,
) -> StreamingQuery:
    rows = (
        spark.readStream.format("tidelog")
        .options(
            servers=cluster.nats_url,
            subscribe=source,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(RECORDS // 3),
        )
        .load()
    )
    return (
        rows.select("key", "value")
        .writeStream.format(sink)
        .options(servers=cluster.nats_url, stream=target, checkpointLocation=str(folder), **options)
        .trigger(availableNow=True)
        .start()
    )


def in_order(records: list[tidelog.Record]) -> bool:
    """Of each key."""
    last: dict[bytes, int] = {}
    for record in records:
        number, key = int(record.value or b""), record.key or b""
        if number <= last.get(key, -1):
            return False
        last[key] = number
    return True


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_rows_are_appended_with_what_their_columns_say(
    cluster: DevCluster, spark: SparkSession, guarantee: str
) -> None:
    stream = f"columns-{guarantee}"
    create(cluster, stream)
    rows = spark.range(RECORDS).select(
        F.col("id").cast("string").cast("binary").alias("value"),
        F.concat(F.lit("k"), (F.col("id") % 10).cast("string")).alias("key"),
        F.when(F.col("id") % 2 == 0, F.array(F.struct(F.lit("h").alias("key"), F.lit(b"1").alias("value")))).alias(
            "headers"
        ),
        F.when(F.col("id") < 100, F.lit(2)).cast("int").alias("partition"),
        F.timestamp_seconds(F.lit(1_900_000_000) + F.col("id")).alias("timestamp"),
    )
    write(rows, cluster, stream=stream, guarantee=guarantee)
    found = {int(record.value or b""): record for record in read(cluster, stream)}
    assert [*sorted(found)] == [*range(RECORDS)]
    for number, record in found.items():
        assert record.key == b"k%d" % (number % 10)
        assert dict(record.headers or {}) == ({"h": b"1"} if number % 2 == 0 else {})
        assert record.timestamp == (1_900_000_000 + number) * 10**9
        assert number >= 100 or record.partition == 2
    assert {record.partition for record in found.values()} == {0, 1, 2}
    wait_until_nothing_is_open(cluster)


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_keys_go_where_the_partitioner_of_the_stream_puts_them(
    cluster: DevCluster, spark: SparkSession, guarantee: str
) -> None:
    stream = f"kafka-{guarantee}"
    with tidelog.sync.connect(cluster.nats_url) as client:
        client.create_stream(stream, partitions=6, partitioner="murmur2")
    rows = spark.range(RECORDS).selectExpr("cast(id AS string) AS value", "cast(id AS string) AS key")
    write(rows, cluster, stream=stream, guarantee=guarantee)
    found = read(cluster, stream)
    assert len(found) == RECORDS
    assert all(record.partition == murmur2(record.key or b"") % 6 for record in found)


def test_each_row_may_name_its_stream(cluster: DevCluster, spark: SparkSession) -> None:
    create(cluster, "one", "two")
    rows = spark.range(RECORDS).select(
        F.col("id").cast("string").alias("value"), F.when(F.col("id") % 3 == 0, "one").otherwise("two").alias("stream")
    )
    write(rows, cluster)
    assert sorted(numbers_in(cluster, "one")) == [*range(0, RECORDS, 3)]
    assert len(numbers_in(cluster, "two")) == RECORDS - RECORDS // 3


def test_what_cannot_be_written_is_refused_with_a_sentence(
    cluster: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    create(cluster, "refused")
    rows = spark.range(1).select(F.col("id").cast("string").alias("value"))
    options = {"servers": cluster.nats_url, "stream": "refused"}
    with pytest.raises(PySparkException, match="records are appended to a stream, and nothing overwrites it"):
        rows.write.format("tidelog").mode("overwrite").options(**options).save()
    with pytest.raises(PySparkException, match=r"cannot be written in the .ErrorIfExists. mode"):
        rows.write.format("tidelog").options(**options).save()
    with pytest.raises(PySparkException, match="a record has no column 'id': select the columns"):
        write(spark.range(1), cluster, stream="refused")
    with pytest.raises(PySparkException, match=r"unknown option 'strem' .*did you mean stream"):
        write(rows, cluster, strem="refused")
    with pytest.raises(PySparkException, match="nowhere"):
        write(rows, cluster, stream="nowhere", **{"retry.timeout": "1s"})
    counts = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("string(count) AS value")
    writer = counts.writeStream.format("tidelog").options(**options).outputMode("complete")
    with pytest.raises(PySparkException, match="nothing overwrites it"):
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(240)
    assert read(cluster, "refused") == []


def test_a_query_that_ends_between_the_commits_writes_each_record_once(
    cluster: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    create(cluster, "in", "out")
    publish(cluster, "in", range(RECORDS))
    with pytest.raises(PySparkException, match="the driver ends here"):
        begin(spark, cluster, tmp_path, "in", "out", WithDyingDriver.name()).awaitTermination()
    assert [path.name for path in (tmp_path / "commits").glob("?")] == ["0"], "Spark's commit of 1 is missing"
    assert len(numbers_in(cluster, "out")) == 2 * RECORDS // 3, "it is in the sink"
    begin(spark, cluster, tmp_path, "in", "out").awaitTermination()
    publish(cluster, "in", range(RECORDS, 2 * RECORDS))
    begin(spark, cluster, tmp_path, "in", "out").awaitTermination()
    found = read(cluster, "out")
    assert sorted(int(record.value or b"") for record in found) == [*range(2 * RECORDS)]
    assert in_order(found)
    wait_until_nothing_is_open(cluster)


def test_copies_of_a_checkpoint_lose_nothing(cluster: DevCluster, spark: SparkSession, tmp_path: Path) -> None:
    """Queries with one id and the same numbers: into another stream, and into the same one."""
    create(cluster, "copied", "blue", "green")

    def run(color: str) -> None:
        begin(spark, cluster, tmp_path / color, "copied", color).awaitTermination()

    publish(cluster, "copied", range(RECORDS // 3))
    run("blue")
    for copy in ("green", "older"):
        shutil.copytree(tmp_path / "blue", tmp_path / copy)
    publish(cluster, "copied", range(RECORDS // 3, RECORDS))
    run("green")
    run("blue")
    assert sorted(numbers_in(cluster, "blue")) == [*range(RECORDS)]
    assert sorted(numbers_in(cluster, "green")) == [*range(RECORDS // 3, RECORDS)]
    publish(cluster, "copied", [RECORDS])
    (tmp_path / "blue").rename(tmp_path / "newer")
    (tmp_path / "older").rename(tmp_path / "blue")
    with pytest.raises(PySparkException, match=r"'test_spark_sinks', driver on .*an older checkpoint"):
        run("blue")


def test_at_least_once_writes_a_micro_batch_again_where_spark_has_not_committed_it(
    cluster: DevCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """So the test before this one could fail."""
    create(cluster, "again-in", "again-out")
    publish(cluster, "again-in", range(RECORDS))
    options = {"guarantee": "at_least_once"}
    with pytest.raises(PySparkException, match="the driver ends here"):
        begin(spark, cluster, tmp_path, "again-in", "again-out", WithDyingDriver.name(), **options).awaitTermination()
    begin(spark, cluster, tmp_path, "again-in", "again-out", **options).awaitTermination()
    counts = Counter(numbers_in(cluster, "again-out"))
    assert sorted(counts) == [*range(RECORDS)]
    assert sum(count == 2 for count in counts.values()) == RECORDS // 3


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_task_that_runs_again_with_its_rows_in_another_order(
    cluster: DevCluster, spark: SparkSession, guarantee: str
) -> None:
    stream = f"retried-{guarantee}"
    create(cluster, stream)
    rows = spark.range(RECORDS).select(F.col("id").cast("string").alias("value"))
    write(rows, cluster, WithFailingTasks.name(), stream=stream, guarantee=guarantee)
    counts = Counter(numbers_in(cluster, stream))
    assert sorted(counts) == [*range(RECORDS)]
    assert {*counts.values()} == {1 if guarantee == "exactly_once" else 2}
    wait_until_nothing_is_open(cluster)


def test_of_a_write_that_fails_nothing_is_read_and_nothing_stays_open(cluster: DevCluster, spark: SparkSession) -> None:
    create(cluster, "failed")
    rows = spark.range(RECORDS).select(F.col("id").cast("string").alias("value"))
    with pytest.raises(PySparkException, match="the task ends here"):
        write(rows, cluster, WithAFailingTask.name(), stream="failed")
    assert read(cluster, "failed") == []
    wait_until_nothing_is_open(cluster)


def test_a_write_with_a_number_is_done_once(cluster: DevCluster, spark: SparkSession) -> None:
    """As in foreachBatch, whose function Spark may call twice with one batch id."""
    create(cluster, "numbered")
    rows = spark.range(10).select(F.col("id").cast("string").alias("value"))
    for sequence in ("3", "3", "4"):
        write(rows, cluster, stream="numbered", transactionalId="nightly", sequence=sequence)
    assert sorted(numbers_in(cluster, "numbered")) == sorted([*range(10)] * 2)
    with pytest.raises(PySparkException, match=r"'nightly' has committed number 4 .*, and this write has number 2"):
        write(rows, cluster, stream="numbered", transactionalId="nightly", sequence="2")


def test_an_attempt_of_a_stage_that_is_submitted_again_fences_none_that_was_accepted(cluster: DevCluster) -> None:
    """Spark counts the attempts of its tasks anew. The first attempt of task 1 is under way still."""
    create(cluster, "resubmitted")
    options = SinkOptions.parse({"servers": cluster.nats_url, "stream": "resubmitted"})
    task_0, task_1 = (Place("resubmitted", None, 0, f"{task}-0", "a test") for task in (0, 1))

    def rows(task: int, wait: Callable[[], object] = lambda: None) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": pa.array([str(10 * task)])})
        wait()
        yield pa.RecordBatch.from_pydict({"value": pa.array([str(10 * task + 1)])})

    accepted = []

    def resubmit() -> None:
        wait_until(lambda: "resubmitted~1-0" in open_transactions(cluster), "the transaction of the first attempt")
        accepted.append(send_rows(options, rows(1), task_1))
        accepted.append(send_rows(options, rows(0), task_0))

    first = send_rows(options, rows(0), task_0)
    slow = send_rows(options, rows(1, resubmit), task_1)
    _commit(options, [first, accepted[0]], once=False)
    assert sorted(numbers_in(cluster, "resubmitted")) == [0, 1, 10, 11]
    assert slow.transaction is not None
    wait_until_nothing_is_open(cluster)


def test_a_write_without_rows_is_one(cluster: DevCluster, spark: SparkSession) -> None:
    create(cluster, "empty")
    rows = spark.range(0).select(F.col("id").cast("string").alias("value"))
    write(rows, cluster, stream="empty")
    assert read(cluster, "empty") == []


@pytest.mark.timeout(900)
def test_tasks_and_driver_wait_for_brokers_that_stand_still(
    cluster: DevCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """In processes that have asked the cluster nothing yet, as those of a driver's commits."""

    def during_an_outage(work: Callable[[], Any]) -> Any:
        for broker in cluster.broker_ids:
            cluster.kill(broker)
        kept.close()
        with ThreadPoolExecutor() as threads:
            result = threads.submit(work)
            time.sleep(8)
            for broker in cluster.broker_ids:
                cluster.start_broker(broker)
            cluster.wait_ready(2 * LIMIT)
        return result.result()

    create(cluster, "patience")
    options = SinkOptions.parse({"servers": cluster.nats_url, "stream": "patience", "retry.timeout": "100s"})
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2"])})
    sent = during_an_outage(lambda: send_rows(options, [rows], Place("patience", None, 7, "0-0", "a test")))
    during_an_outage(lambda: _commit(options, [sent], once=True))
    assert sorted(numbers_in(cluster, "patience")) == [1, 2]
    assert "cannot ask what patience has committed yet, and goes on trying" in caplog.text
    assert "cannot ask for stream patience yet, and goes on trying" in caplog.text
