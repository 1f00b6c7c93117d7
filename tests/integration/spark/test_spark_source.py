"""Real Spark on the connector, with logs that lie in files: every rule that needs no cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_connector.reads.log_port import OffsetRange, PartitionExtent, PartitionName, Span, StreamExtent
from spark_connector.reads.plans import default_tasks
from spark_connector.reads.read_options import SourceOptions
from spark_connector.source import TidelogDataSource
from tests.integration.spark.spark_session import local_spark
from wire.batch import BatchBuilder, Compression, RecordBatch, control_batch, encode_headers, iter_batches
from wire.errors import Code, TidelogError
from wire.types import Incarnation, LeaderEpoch, Offset, StreamName

SECOND = 1_000_000_000
BEGINNING = 1_893_456_000 * SECOND
"""2030-01-01T00:00:00Z"""


class FileLogs:
    """Streams as files: `<folder>/<stream>/stream.json` and one file of batches per partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # The port.

    def streams(self) -> list[StreamName]:
        return [StreamName(path.parent.name) for path in self.folder.glob("*/stream.json")]

    def extents(self, streams: Collection[StreamName]) -> Mapping[StreamName, StreamExtent]:
        there = self.streams()
        return {stream: self.extent(stream) for stream in streams if stream in there}

    def extent(self, stream: StreamName) -> StreamExtent:
        about = self._about(stream)
        life = Incarnation(about["incarnation"])
        partitions = {
            int(partition): PartitionExtent(life, Offset(held["log_start"]), Offset(held["end"]), Offset(held["end"]))
            for partition, held in about["partitions"].items()
        }
        return StreamExtent(stream, life, partitions)

    def offsets_at(
        self, times: Mapping[StreamName, Mapping[int, int]]
    ) -> Mapping[StreamName, Mapping[int, Offset | None]]:
        return {
            stream: {partition: self._offset_at(stream, partition, time) for partition, time in of_stream.items()}
            for stream, of_stream in times.items()
        }

    def _offset_at(self, stream: StreamName, partition: int, timestamp_ns: int) -> Offset | None:
        held = self.extent(stream).partitions[partition]
        for batch in self._batches(stream, partition):
            later = batch.offsets[batch.timestamps >= timestamp_ns]
            if len(later):
                return Offset(min(int(later[0]), held.end))
        return None

    def spans(self, wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
        raise NotImplementedError

    def commit_group(self, group: str, offsets: Mapping[PartitionName, Offset]) -> None:
        told = {f"{stream}/{partition}": offset for (stream, partition), offset in offsets.items()}
        (self.folder / f"{group}.group").write_text(json.dumps(told))

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        extent = self.extent(wanted.stream)
        held = extent.partitions[wanted.partition]
        if wanted.stream_incarnation != extent.incarnation:
            raise TidelogError(Code.WRONG_INCARNATION, f"{wanted.stream} was recreated")
        if wanted.start < held.log_start:
            raise TidelogError(Code.OFFSET_BEFORE_LOG, "below the log", {"log_start": str(held.log_start)})
        for batch in self._batches(wanted.stream, wanted.partition):
            if batch.header.end_offset > wanted.start:
                yield batch

    def close(self) -> None:
        pass

    # As a cluster does.

    def create(self, stream: str, partitions: int, incarnation: int = 7) -> None:
        folder = self.folder / stream
        folder.mkdir(exist_ok=True)
        for partition in range(partitions):
            (folder / f"{partition}.log").write_bytes(b"")
        held = {str(partition): {"log_start": 0, "end": 0} for partition in range(partitions)}
        self._write(stream, {"incarnation": incarnation, "partitions": held})

    def publish(self, stream: str, partition: int, build: Callable[[BatchBuilder], None] | bytes, **how: Any) -> None:
        """Appends one batch, a control batch when `build` is bytes, and commits it."""
        about = self._about(stream)
        held = about["partitions"][str(partition)]
        if isinstance(build, bytes):
            encoded = control_batch(1, 1, build)
        else:
            builder = BatchBuilder()
            build(builder)
            encoded = builder.build(BEGINNING + held["end"] * SECOND, **how)
        parts, header = encoded.stamp(Offset(held["end"]), LeaderEpoch(1))
        with (self.folder / stream / f"{partition}.log").open("ab") as log:
            log.writelines(parts)
        held["end"] = int(header.end_offset)
        self._write(stream, about)

    def fill(self, stream: str, partition: int, count: int, per_batch: int) -> None:
        for _ in range(0, count, per_batch):
            start = self._about(stream)["partitions"][str(partition)]["end"]
            values = [b"%s/%d/%d" % (stream.encode(), partition, start + i) for i in range(per_batch)]
            self.publish(stream, partition, lambda builder, values=values: builder.add_values(values))  # type: ignore[misc]

    def set_held(self, stream: str, partition: int, **bounds: int) -> None:
        about = self._about(stream)
        about["partitions"][str(partition)] |= bounds
        self._write(stream, about)

    def _batches(self, stream: str, partition: int) -> Iterator[RecordBatch]:
        log = (self.folder / stream / f"{partition}.log").read_bytes()
        for at, _ in iter_batches(log):
            yield RecordBatch.decode(log, at)

    def _about(self, stream: str) -> Any:
        try:
            return json.loads((self.folder / stream / "stream.json").read_text())
        except FileNotFoundError:
            raise TidelogError(Code.UNKNOWN_STREAM, f"there is no stream {stream!r}: create it first") from None

    def _write(self, stream: str, about: Any) -> None:
        path = self.folder / stream / "stream.json"
        path.with_suffix(".new").write_text(json.dumps(about))
        path.with_suffix(".new").replace(path)


def open_file_logs(options: SourceOptions) -> FileLogs:
    assert options.servers is not None
    return FileLogs(Path(urlsplit(options.servers[0]).path))


class FileDataSource(TidelogDataSource):
    open_log = staticmethod(open_file_logs)

    @classmethod
    def name(cls) -> str:
        return "tidelog_files"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Spark's workers cannot import a test module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    with local_spark("test_spark_source", spark__sql__python__filterPushdown__enabled="true") as session:
        session.dataSource.register(FileDataSource)
        yield session
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def logs(tmp_path: Path) -> FileLogs:
    (tmp_path / "logs").mkdir()
    return FileLogs(tmp_path / "logs")


def options(logs: FileLogs, stream: str, **more: str) -> dict[str, str]:
    return {"servers": f"file://{logs.folder}", "subscribe": stream} | more


def read(spark: SparkSession, logs: FileLogs, stream: str = "flights", **more: str) -> DataFrame:
    return spark.read.format("tidelog_files").options(**options(logs, stream, **more)).load()


def identity(frame: DataFrame) -> list[tuple[str, int, int]]:
    rows = frame.select("stream", "partition", "offset").collect()
    return sorted((row.stream, row.partition, row.offset) for row in rows)


def expected(stream: str, *bounds: tuple[int, int, int]) -> list[tuple[str, int, int]]:
    return [(stream, partition, offset) for partition, start, end in bounds for offset in range(start, end)]


class TestBatch:
    def test_every_committed_record_once_with_all_columns(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 2)

        def mixed(builder: BatchBuilder) -> None:
            builder.add_record(b"v0", b"k0", encode_headers({"h": [b"1", b"2"]}), BEGINNING - 1)
            builder.add_record(None, b"k1", timestamp=BEGINNING + 1_999)
            builder.add_record(b"", None, timestamp=-1)

        logs.publish("flights", 0, mixed)
        logs.publish("flights", 0, b"control")
        logs.publish("flights", 0, lambda builder: builder.add_values([b"a", b"b"]), compression=Compression.ZSTD)
        logs.fill("flights", 1, 4, per_batch=1)
        # Not committed yet.
        logs.fill("flights", 1, 1, per_batch=1)
        logs.set_held("flights", 1, end=4)

        frame = read(spark, logs)
        assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
            ("key", "binary"),
            ("value", "binary"),
            ("stream", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
        ]
        rows = frame.selectExpr("*", "unix_micros(timestamp) AS micros").orderBy("partition", "offset").collect()
        assert [(row.partition, row.offset) for row in rows] == [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5)] + [
            (1, offset) for offset in range(4)
        ]
        assert {row.stream for row in rows} == {"flights"}
        assert [row.value for row in rows[:5]] == [b"v0", None, b"", b"a", b"b"]
        assert [row.key for row in rows[:5]] == [b"k0", b"k1", None, None, None]
        # Rounded down to microseconds, before 1970 too.
        assert [row.micros for row in rows[:3]] == [BEGINNING // 1000 - 1, BEGINNING // 1000 + 1, -1]

        with_headers = read(spark, logs, includeHeaders="true").where("partition = 0").orderBy("offset").collect()
        assert [[tuple(h) for h in row.headers or []] for row in with_headers] == [
            [("h", b"1"), ("h", b"2")], [], [], [], [],
        ]  # fmt: skip
        assert with_headers[1].headers is None

        chosen = spark.read.format("tidelog_files").schema("offset long, value binary")
        narrow = chosen.options(**options(logs, "flights")).load()
        assert narrow.columns == ["offset", "value"]
        assert narrow.count() == 9
        # Nothing at all asked for.
        assert frame.count() == 9

    def test_offsets_split_and_several_streams(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 2)
        logs.create("trains", 1)
        logs.fill("flights", 0, 100, per_batch=7)
        logs.fill("flights", 1, 50, per_batch=10)
        logs.fill("trains", 0, 10, per_batch=10)
        assert identity(read(spark, logs, "flights,trains")) == sorted(
            expected("flights", (0, 0, 105), (1, 0, 50)) + expected("trains", (0, 0, 10))
        )
        some = read(
            spark,
            logs,
            startingOffsets='{"flights": {"0": 10, "1": -2}}',
            endingOffsets='{"flights": {"0": 12, "1": -1}}',
        )
        assert identity(some) == expected("flights", (0, 10, 12), (1, 0, 50))
        assert some.rdd.getNumPartitions() == min(2, default_tasks())
        # A split in the midst of batches neither loses nor repeats.
        parts = read(spark, logs, minPartitions="9")
        assert parts.rdd.getNumPartitions() >= 9
        assert identity(parts) == expected("flights", (0, 0, 105), (1, 0, 50))
        late = {"startingTimestamp": str(BEGINNING // 1_000_000 + 70_000)}
        with pytest.raises(PySparkException, match="no record of flights/1 is at or after the time"):
            read(spark, logs, **late).count()
        assert identity(read(spark, logs, startingOffsetsByTimestampStrategy="latest", **late)) == expected(
            "flights", (0, 70, 105), (1, 50, 50)
        )

    def test_assigned_partitions_are_read_and_no_others(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 3)
        for partition in range(3):
            logs.fill("flights", partition, 40, per_batch=8)
        given = {"servers": f"file://{logs.folder}", "assign": '{"flights": [2, 0]}'}
        frame = spark.read.format("tidelog_files").options(**given).load()
        assert identity(frame) == expected("flights", (0, 0, 40), (2, 0, 40))
        missing = given | {"assign": '{"flights": [3]}'}
        with pytest.raises(PySparkException, match="assign names partitions 3 of stream 'flights'"):
            spark.read.format("tidelog_files").options(**missing).load().collect()

    def test_a_read_ends_at_a_timestamp(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 40, per_batch=10)
        until = str(BEGINNING // 1_000_000 + 30_000)
        assert identity(read(spark, logs, endingTimestamp=until)) == expected("flights", (0, 0, 30))

    def test_queries_of_one_load_filter_each_for_itself(self, spark: SparkSession, logs: FileLogs) -> None:
        """Also where Spark would give filters to the source: it shares one reader between all of them."""
        logs.create("flights", 2)
        for partition in range(2):
            logs.fill("flights", partition, 40, per_batch=8)
        frame = read(spark, logs)
        first, second = frame.where("partition = 0 AND offset < 10"), frame.where("partition = 1 AND offset >= 30")
        assert first.count() == 10
        assert frame.count() == 80
        assert identity(first.union(second)) == expected("flights", (0, 0, 10), (1, 30, 40))
        assert frame.where("partition = 0 OR offset >= 30").count() == 50
        cached = second.cache()
        assert (cached.count(), frame.count(), cached.count()) == (10, 80, 10)
        cached.unpersist()
        joined = frame.alias("a").join(frame.alias("b"), "offset").where("a.partition = 0 AND b.partition = 1")
        assert joined.count() == 40

    def test_lost_records_are_an_error_unless_told(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 40, per_batch=8)
        logs.set_held("flights", 0, log_start=16)
        assert identity(read(spark, logs)) == expected("flights", (0, 16, 40))
        behind = {"startingOffsets": '{"flights": {"0": 3}}'}
        with pytest.raises(PySparkException, match="flights/0 is 3, but the log begins at 16"):
            read(spark, logs, **behind).collect()
        assert identity(read(spark, logs, failOnDataLoss="false", **behind)) == expected("flights", (0, 16, 40))
        # Lost between planning and reading.
        for tolerant in ("true", "false"):
            planned = read(spark, logs, failOnDataLoss=str(tolerant == "false").lower()).rdd
            planned.getNumPartitions()
            logs.set_held("flights", 0, log_start=24)
            if tolerant == "true":
                assert sorted(row.offset for row in planned.collect()) == list(range(24, 40))
            else:
                with pytest.raises(Exception, match="its log begins at 24 by now"):
                    planned.collect()
            logs.set_held("flights", 0, log_start=16)

    def test_a_frame_stays_at_the_offsets_of_its_first_query(self, spark: SparkSession, logs: FileLogs) -> None:
        """Spark plans a read once for each load(). docs/spark.md has the way to look again."""
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        frame = read(spark, logs)
        frame.createOrReplaceTempView("departures")
        assert frame.count() == 10
        logs.fill("flights", 0, 10, per_batch=5)
        assert frame.count() == frame.select("value").count() == 10
        spark.catalog.refreshTable("departures")
        assert spark.table("departures").count() == 10
        read(spark, logs).createOrReplaceTempView("departures")
        assert spark.table("departures").count() == 20

    def test_refusals_are_one_clear_sentence(self, spark: SparkSession, logs: FileLogs) -> None:
        logs.create("flights", 1)
        with pytest.raises(PySparkException, match=r"unknown option 'startingoffset' .*did you mean startingOffsets"):
            read(spark, logs, startingOffset="earliest")
        with pytest.raises(PySparkException, match="there is no stream 'nothing'"):
            read(spark, logs, "nothing").collect()
        with pytest.raises(PySparkException, match="beyond the committed log, which ends at 0"):
            read(spark, logs, endingOffsets='{"flights": {"0": 5}}').collect()
        with pytest.raises(PySparkException, match="a stream is not a path"):
            spark.read.format("tidelog_files").options(**options(logs, "flights")).load("flights")
        strange = spark.read.format("tidelog_files").schema("carrier string").options(**options(logs, "flights")).load()
        with pytest.raises(PySparkException, match="schema names column 'carrier'"):
            strange.collect()
        with pytest.raises(PySparkException, match="subscribe is no option of a write"):
            read(spark, logs).write.format("tidelog_files").options(**options(logs, "flights")).mode("append").save()

    def test_an_error_has_no_traceback(self, spark: SparkSession, logs: FileLogs, tmp_path: Path) -> None:
        """Whether `load()` finds it, or the driver that plans, a task, or a streaming query."""
        logs.create("flights", 1)
        logs.fill("flights", 0, 40, per_batch=8)
        planned = read(spark, logs)
        assert planned.count() == 40
        logs.set_held("flights", 0, log_start=24)

        def stream() -> None:
            source = spark.readStream.format("tidelog_files").options(**options(logs, "nothing")).load()
            folder = str(tmp_path / "checkpoint")
            source.writeStream.format("noop").option("checkpointLocation", folder).start().awaitTermination(240)

        for wanted, fail in (
            ("unknown option 'startingoffset'", lambda: read(spark, logs, startingOffset="earliest")),
            ("there is no stream 'nothing'", lambda: read(spark, logs, "nothing").collect()),
            ("its log begins at 24", planned.collect),
            ("there is no stream 'nothing'", stream),
        ):
            with pytest.raises(PySparkException, match=wanted) as caught:
                fail()
            assert "Traceback" not in str(caught.value)
            assert 'File "' not in str(caught.value)

    def test_spark_finds_the_data_source_by_itself(self, spark: SparkSession) -> None:
        # The refusal is ours, so `tidelog` was found without a registration.
        with pytest.raises(PySparkException, match="option servers is missing"):
            spark.read.format("tidelog").load()


class Query:
    """A streaming query that appends its records to a Parquet folder, and can be started again."""

    def __init__(self, spark: SparkSession, logs: FileLogs, folder: Path, **more: str) -> None:
        self.spark = spark
        self.logs = logs
        self.folder = folder
        self.more = {"startingOffsets": "earliest"} | more

    def run(self, **more: str) -> list[int]:
        """Runs until all that is there now is read; the rows of each micro-batch that had any."""
        query = self.start(availableNow=True, **more)
        assert query.awaitTermination(240)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def start(self, *, availableNow: bool = False, **more: str) -> Any:  # noqa: N803 - Spark's name
        source = self.spark.readStream.format("tidelog_files")
        frame = source.options(**options(self.logs, "flights", **self.more, **more)).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        if availableNow:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.folder / "out"))

    def rows(self) -> list[tuple[str, int, int]]:
        return identity(self.spark.read.parquet(str(self.folder / "out")))


class TestStream:
    def test_available_now_ends_and_a_restart_goes_on_without_gap_or_repeat(
        self, spark: SparkSession, logs: FileLogs, tmp_path: Path
    ) -> None:
        logs.create("flights", 2)
        logs.fill("flights", 0, 30, per_batch=4)
        logs.fill("flights", 1, 10, per_batch=5)
        query = Query(spark, logs, tmp_path)
        assert query.run() == [42]
        assert query.run() == []
        logs.fill("flights", 1, 7, per_batch=7)
        assert query.run() == [7]
        assert query.rows() == expected("flights", (0, 0, 32), (1, 0, 17))

    def test_a_limit_per_trigger(self, spark: SparkSession, logs: FileLogs, tmp_path: Path) -> None:
        logs.create("flights", 2)
        logs.fill("flights", 0, 30, per_batch=10)
        logs.fill("flights", 1, 10, per_batch=10)
        query = Query(spark, logs, tmp_path, maxOffsetsPerTrigger="15", minPartitions="3")
        assert query.run() == [15, 15, 10]
        assert query.rows() == expected("flights", (0, 0, 30), (1, 0, 10))

    def test_a_micro_batch_that_did_not_finish_is_read_again_as_it_was(
        self, spark: SparkSession, logs: FileLogs, tmp_path: Path
    ) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        query = Query(spark, logs, tmp_path)
        assert query.run() == [10]
        logs.fill("flights", 0, 10, per_batch=5)
        assert query.run() == [10]
        # As after a crash before the commit: the offsets of micro-batch 1 are written, its rows are not.
        for leftover in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            leftover.unlink()
        for leftover in (tmp_path / "out" / "_spark_metadata").glob("*1*"):
            leftover.unlink()
        logs.fill("flights", 0, 3, per_batch=3)
        assert query.run() == [10, 3]
        assert query.rows() == expected("flights", (0, 0, 23))

    def test_begins_at_the_latest_by_default_and_reads_new_records(
        self, spark: SparkSession, logs: FileLogs, tmp_path: Path
    ) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        running = Query(spark, logs, tmp_path, startingOffsets="latest").start()
        try:
            running.processAllAvailable()
            for _ in range(3):
                logs.fill("flights", 0, 2, per_batch=2)
                running.processAllAvailable()
        finally:
            running.stop()
        assert Query(spark, logs, tmp_path).rows() == expected("flights", (0, 10, 16))

    def test_a_recreated_stream_is_refused(self, spark: SparkSession, logs: FileLogs, tmp_path: Path) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        query = Query(spark, logs, tmp_path)
        query.run()
        logs.create("flights", 1, incarnation=9)
        logs.fill("flights", 0, 20, per_batch=5)
        with pytest.raises(PySparkException, match=r"deleted and created again .*7 then, 9 now"):
            query.run()
        assert query.rows() == expected("flights", (0, 0, 10))

    def test_streams_are_added_and_removed_under_a_checkpoint(
        self, spark: SparkSession, logs: FileLogs, tmp_path: Path
    ) -> None:
        for stream in ("flights", "trains"):
            logs.create(stream, 1)
            logs.fill(stream, 0, 20, per_batch=5)
        logs.set_held("trains", 0, log_start=5)
        query = Query(spark, logs, tmp_path)
        assert query.run() == [20]
        assert query.run(subscribe="flights,trains") == [15]
        logs.fill("trains", 0, 5, per_batch=5)
        with pytest.raises(PySparkException, match="stream 'flights', which the checkpoint reads from"):
            query.run(subscribe="trains")
        assert query.run(subscribe="trains", failOnDataLoss="false") == [5]
        assert query.run(subscribe="trains") == []
        assert query.rows() == expected("flights", (0, 0, 20)) + expected("trains", (0, 5, 25))

    def test_a_log_that_was_cut_is_told(self, spark: SparkSession, logs: FileLogs, tmp_path: Path) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        query = Query(spark, logs, tmp_path)
        query.run()
        logs.set_held("flights", 0, end=5)
        with pytest.raises(PySparkException, match="read up to 10 but its log ends at 5"):
            query.run()

    def test_records_lost_while_it_was_down(self, spark: SparkSession, logs: FileLogs, tmp_path: Path) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        query = Query(spark, logs, tmp_path)
        query.run()
        logs.fill("flights", 0, 20, per_batch=5)
        logs.set_held("flights", 0, log_start=15)
        with pytest.raises(PySparkException, match="from 10 but its log begins at 15"):
            query.run()
        assert query.run(failOnDataLoss="false") == [15]
        assert query.rows() == expected("flights", (0, 0, 10), (0, 15, 30))


class TestSecrets:
    SECRET = "known-only-here"

    def test_what_spark_does_not_hide_by_itself_is_hidden_by_its_setting(self, spark: SparkSession) -> None:
        """docs/spark.md names it. The words are none that Spark looks for by itself."""
        spark.dataSource.register(TidelogDataSource)
        given = {"servers": "nats://u:hush@127.0.0.1:1", "nats.creds": "-----BEGIN hush", "subscribe": "flights"}
        pairs = ", ".join(f"`{name}` '{value}'" for name, value in given.items())
        setting = "spark.sql.redaction.options.regex"
        before = spark.conf.get(setting)
        assert before is not None
        try:
            spark.conf.set(setting, r"(?i)url|^servers$|^nats\.")
            frame = spark.readStream.format("tidelog").options(**given).load()
            view = spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW hidden USING tidelog OPTIONS ({pairs})")
            for plan in (frame, view):
                assert "hush" not in plan._jdf.queryExecution().toString()
        finally:
            spark.conf.set(setting, before)
        assert "hush" in frame._jdf.queryExecution().toString(), "or else the setting is needed no more"

    @pytest.mark.parametrize("how", ["option", "url"])
    def test_a_password_is_neither_in_plans_nor_in_errors(
        self, spark: SparkSession, capsys: pytest.CaptureFixture[str], how: str
    ) -> None:
        spark.dataSource.register(TidelogDataSource)
        login = {"nats.user": "u", "nats.password": self.SECRET} if how == "option" else {}
        at = "" if how == "option" else f"u:{self.SECRET}@"
        given = {"subscribe": "flights", "servers": f"nats://{at}127.0.0.1:1", "retry.timeout": "0s"}
        reader = spark.read.format("tidelog").options(**given, **login)
        frame = reader.load()
        frame.explain("extended")
        frame.explain("formatted")
        with pytest.raises(PySparkException, match=r"no NATS server answers at nats://127\.0\.0\.1:1") as caught:
            frame.collect()
        assert self.SECRET not in str(caught.value)
        with pytest.raises(PySparkException, match=r"nats\.tls=.*neither 'true' nor 'false'") as caught:
            reader.option("nats.tls", "maybe").load()
        assert self.SECRET not in str(caught.value)
        told = capsys.readouterr()
        assert "BatchScan" in told.out
        assert self.SECRET not in told.out + told.err

    def test_a_stream_shows_no_text_of_its_login(
        self, spark: SparkSession, logs: FileLogs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.create("flights", 1)
        logs.fill("flights", 0, 10, per_batch=5)
        creds = f"-----BEGIN NATS USER JWT-----\n{self.SECRET}\n"
        query = Query(spark, logs, tmp_path, **{"nats.creds": creds, "nats.key": f"-----BEGIN KEY-----{self.SECRET}"})
        running = query.start(availableNow=True)
        assert running.awaitTermination(240)
        running.explain(True)
        reports = [progress.json for progress in running.recentProgress]
        files = [path.read_text() for path in (tmp_path / "checkpoint").rglob("*") if path.suffix != ".crc"
                 and path.is_file()]  # fmt: skip
        told = capsys.readouterr()
        assert "flights" in "".join(reports)
        assert '"incarnation"' in "".join(files)
        assert self.SECRET not in "".join([*reports, *files, told.out, told.err])
