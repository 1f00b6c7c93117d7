"""A number of a committed batch that is met again: by a query that is started again, by a copy of its checkpoint, by an
older one that was put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.shared.connections import kept
from spark_connector.writes import sinks
from spark_connector.writes.committed_batch import CommittedBatch, family_of_query, planned_as, rows_of
from spark_connector.writes.sink_options import SinkOptions
from spark_connector.writes.sink_rows import Records
from spark_connector.writes.sinks import TidelogBatchWriter, TidelogStreamWriter
from tests.unit.spark_connector.writes.fake_sink_cluster import FakeSinkCluster
from tidelog.client.transaction.prepared_transactions import FamilyCommit
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import MAX_METADATA, check_family
from wire.types import Incarnation, StreamName

QUERY = "612480f8-5d78-4da2-8e19-52b24e585333"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSinkCluster]:
    fake = FakeSinkCluster()

    async def connect(*_: object, **__: object) -> FakeSinkCluster:
        return fake

    monkeypatch.setattr("tidelog.connect", connect)
    monkeypatch.setattr(sinks, "_context", Task)
    yield fake
    kept.close()


class Task:
    """Of a streaming query."""

    number = 0
    properties: dict[str, str] = {"spark.app.name": "blue", "spark.driver.host": "one"}  # noqa: RUF012 - of a test

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        of_query = {sinks.QUERY_ID: QUERY, sinks.BATCH_ID: str(self.number)}
        return (self.properties | of_query).get(name)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return 0


class Query:
    """A streaming query, which writes micro-batches of one task. `checkpoint`: its folder; None: it cannot be read."""

    def __init__(self, name: str, stream: str | None, checkpoint: Path | None = None, **options: str) -> None:
        self.name = name
        self.checkpoint = checkpoint
        given = {"servers": "nats://127.0.0.1:1"} | options | ({} if stream is None else {"stream": stream})
        self.options = given if checkpoint is None else given | {"checkpointLocation": str(checkpoint)}

    def plan(self, number: int, what: str) -> None:
        assert self.checkpoint is not None
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "offsets" / str(number)).write_text(what)

    def run(self, number: int, *values: str, streams: Sequence[str] | None = None) -> None:
        """A micro-batch."""
        Task.number, Task.properties = number, {"spark.app.name": self.name, "spark.driver.host": "one"}
        writer = TidelogStreamWriter(SinkOptions.parse(self.options))
        columns: dict[str, Any] = {"value": pa.array(values, pa.string())}
        if streams is not None:
            columns["stream"] = pa.array(streams)
        message = writer.write(iter([pa.RecordBatch.from_pydict(columns)]))
        writer.commit([message], number)


def refused(code: Code, *parts: str) -> Any:
    return pytest.raises(TidelogError, check=lambda error: error.code is code and all(p in str(error) for p in parts))


def test_a_batch_that_is_run_again_is_written_once(cluster: FakeSinkCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The driver died between the sink's commit and Spark's. The rows may come in another order."""
    cluster.create("out")
    Query("blue", "out").run(0, "a", "b")
    Query("blue", "out").run(0, "b", "a")
    assert cluster.values("out") == [b"a", b"b"]
    assert f"number 0 of {QUERY} was committed before, and nothing is written again" in caplog.text
    Query("blue", "out").run(1, "c")
    assert cluster.values("out") == [b"a", b"b", b"c"]


def test_copies_of_a_checkpoint_that_write_to_other_streams_do_not_meet(cluster: FakeSinkCluster) -> None:
    """Blue and green; or staging, with a copy of production's checkpoint."""
    cluster.create("blue")
    cluster.create("green")
    blue, green = Query("blue", "blue"), Query("green", "green")
    blue.run(0, "0")
    for number in (1, 2):
        green.run(number, f"{number} of green")
    for number in (1, 2, 3):
        blue.run(number, f"{number} of blue")
    assert cluster.values("blue") == [b"0", b"1 of blue", b"2 of blue", b"3 of blue"]
    assert cluster.values("green") == [b"1 of green", b"2 of green"]


def test_copies_of_a_checkpoint_that_write_to_one_stream_are_refused_and_name_each_other(
    cluster: FakeSinkCluster,
) -> None:
    cluster.create("out")
    Query("blue", "out").run(0, "0")
    Query("green", "out").run(1, "of green", "too")
    with refused(Code.STALE_COMMIT, "2 rows were written by application 'green', driver on one", "ifCommitted=skip"):
        Query("blue", "out").run(1, "of blue")
    Query("green", "out").run(2, "more")
    with refused(Code.STALE_COMMIT, "has committed number 2 (application 'green', driver on one)"):
        Query("blue", "out").run(1, "of blue")
    assert cluster.values("out") == [b"0", b"of green", b"too", b"more"]


def test_of_two_that_write_at_once_the_later_one_is_refused(cluster: FakeSinkCluster) -> None:
    """Its tasks were done before the other one's commit."""
    cluster.create("out")
    Task.number = 0
    late = TidelogStreamWriter(SinkOptions.parse(Query("blue", "out").options))
    message = late.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(["late"])})]))
    Query("green", "out").run(0, "early")
    with refused(Code.STALE_COMMIT, "1 rows were written by application 'green'"):
        late.commit([message], 0)
    assert cluster.values("out") == [b"early"]


@pytest.mark.parametrize("value", ["a", "other"])
def test_a_commit_whose_outcome_is_forgotten_is_judged_by_the_batch_that_is_kept(
    cluster: FakeSinkCluster, value: str
) -> None:
    cluster.create("out")
    late = TidelogStreamWriter(SinkOptions.parse(Query("blue", "out").options))
    Task.number, Task.properties = 0, {"spark.app.name": "blue", "spark.driver.host": "one"}
    message = late.write(iter([pa.RecordBatch.from_pydict({"value": pa.array([value])})]))
    Query("blue", "out").run(0, "a")
    cluster.forgets = True
    if value == "a":
        late.commit([message], 0)
    else:
        with refused(Code.STALE_COMMIT, "with another batch"):
            late.commit([message], 0)
    assert cluster.values("out") == [b"a"]


def test_a_query_that_goes_on_from_an_older_checkpoint_is_refused(cluster: FakeSinkCluster, tmp_path: Path) -> None:
    cluster.create("out")
    query = Query("blue", "out", tmp_path)
    for number in range(3):
        query.plan(number, f"up to {number}0")
        query.run(number, str(number))
    with refused(Code.STALE_COMMIT, "has committed number 2", "from an older checkpoint"):
        query.run(1, "1")
    query.plan(2, "up to 25")  # one micro-batch older: it is planned anew
    with refused(Code.STALE_COMMIT, "with another batch"):
        query.run(2, "2", "and more")
    query.plan(2, "up to 22")
    with refused(Code.STALE_COMMIT, "with another batch"):
        query.run(2, "2")
    assert cluster.values("out") == [b"0", b"1", b"2"]


def test_a_batch_is_known_by_its_plan_whatever_its_rows_are(cluster: FakeSinkCluster, tmp_path: Path) -> None:
    """rand(), or a sum of doubles."""
    cluster.create("out")
    query = Query("blue", "out", tmp_path)
    query.plan(0, "up to 10")
    query.run(0, "0.30000000000000004")
    query.run(0, "0.3")
    assert cluster.values("out") == [b"0.30000000000000004"]


def test_rows_that_come_out_otherwise_are_refused_where_the_plan_cannot_be_read(cluster: FakeSinkCluster) -> None:
    cluster.create("out")
    Query("blue", "out").run(0, "0.30000000000000004")
    with refused(Code.STALE_COMMIT, "sums of doubles"):
        Query("blue", "out").run(0, "0.3")
    Query("blue", "out", ifCommitted="skip").run(0, "0.3")
    assert cluster.values("out") == [b"0.30000000000000004"]


def test_a_target_that_was_made_again_gets_what_its_earlier_life_had(cluster: FakeSinkCluster) -> None:
    cluster.create("out")
    query = Query("blue", "out")
    query.run(0, "0")
    query.run(1, "1")
    cluster.create("out")
    query.run(1, "1")
    query.run(2, "2")
    assert cluster.values("out") == [b"1", b"2"]


def test_a_target_that_is_made_again_while_it_is_written_to(cluster: FakeSinkCluster) -> None:
    cluster.create("out")
    Task.number = 0
    writer = TidelogStreamWriter(SinkOptions.parse(Query("blue", "out").options))
    message = writer.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(["1"])})]))
    cluster.create("out")
    with refused(Code.WRONG_INCARNATION, "'out' was deleted and created again while number 0"):
        writer.commit([message], 0)


def test_streams_that_rows_name_are_compared_with_the_rows(cluster: FakeSinkCluster) -> None:
    for stream in ("one", "two", "green"):
        cluster.create(stream)
    blue = Query("blue", None)
    blue.run(0, "a", "b", streams=["one", "two"])
    blue.run(0, "b", "a", streams=["two", "one"])
    with refused(Code.STALE_COMMIT, "with another batch"):
        Query("green", None).run(0, "a", "b", streams=["green", "green"])
    with refused(Code.STALE_COMMIT, "with another batch"):
        blue.run(0, "b", "a", streams=["one", "two"])
    cluster.create("two")
    with refused(Code.STALE_COMMIT, "with another batch"):
        blue.run(0, "a", "b", streams=["one", "two"])


def test_what_an_earlier_version_has_committed_counts(cluster: FakeSinkCluster) -> None:
    """It committed under the id of the query alone, and kept nothing of the batch."""
    cluster.create("out")
    cluster.families[QUERY] = FamilyCommit(7, "")
    with refused(Code.STALE_COMMIT, "has committed number 7"):
        Query("blue", "out").run(6, "6")
    with refused(Code.STALE_COMMIT, "written by an earlier version of the connector"):
        Query("blue", "out").run(7, "7")
    Query("blue", "out", ifCommitted="skip").run(7, "7")
    Query("blue", "out").run(8, "8")
    assert cluster.values("out") == [b"8"]
    Query("blue", "out").run(8, "8")
    assert cluster.values("out") == [b"8"]


def test_a_second_write_of_foreach_batch_under_one_name_and_number_is_refused(cluster: FakeSinkCluster) -> None:
    for stream in ("one", "two"):
        cluster.create(stream)

    def write(stream: str, *values: str) -> None:
        options = {"servers": "nats://127.0.0.1:1", "stream": stream, "transactionalId": "totals", "sequence": "3"}
        writer = TidelogBatchWriter(SinkOptions.parse(options).for_batch())
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(values)})]))])

    write("one", "a")
    write("one", "a")
    with refused(Code.STALE_COMMIT, "transactionalId of its own"):
        write("one", "b")
    with refused(Code.STALE_COMMIT, "transactionalId of its own"):
        write("two", "a")
    assert cluster.values("one") == [b"a"]
    assert cluster.values("two") == []


def test_an_attempt_that_spark_numbers_like_an_accepted_one_leaves_its_transaction_alone(
    cluster: FakeSinkCluster,
) -> None:
    """Spark counts the attempts of a task anew when it submits the stage again, and may have accepted what the first
    one has written."""
    cluster.create("out")
    Task.number = 0
    writer = TidelogStreamWriter(SinkOptions.parse(Query("blue", "out").options))
    rows = pa.RecordBatch.from_pydict({"value": pa.array(["a"])})
    accepted, too_many, again = (writer.write(iter([rows])) for _ in range(3))
    assert len(cluster.prepared) == 3
    writer.commit([accepted], 0)
    assert cluster.values("out") == [b"a"]
    assert cluster.prepared == {}, "what else was written is aborted"
    names = [each.transaction.transactional_id for each in (accepted, too_many, again)]  # type: ignore[attr-defined]
    assert [name.partition("~")[2] for name in names] == ["0-0", "0-0-2", "0-0-3"], "and names are used again"


@pytest.mark.parametrize("knows", [True, False])
def test_an_abort_says_where_it_is_not_known_whether_rows_were_committed(
    cluster: FakeSinkCluster, caplog: pytest.LogCaptureFixture, knows: bool
) -> None:
    cluster.create("out")
    cluster.knows_aborted = knows
    Task.number = 0
    writer = TidelogStreamWriter(SinkOptions.parse(Query("blue", "out").options))
    written = writer.write(iter([pa.RecordBatch.from_pydict({"value": pa.array(["a"])})]))
    writer.abort([written], 0)
    assert cluster.prepared == {}
    assert ("look before it is written again" in caplog.text) is not knows


def test_rows_are_known_by_keys_and_values_and_how_often_they_come() -> None:
    def of(values: list[bytes | None], keys: list[bytes | None] | None = None) -> Any:
        return rows_of(Records(values, keys, None, None))

    assert of([b"a", b"b"]) == of([b"b", b"a"])
    assert of([b"a"], [None]) == of([b"a"])
    others = [of([]), of([b"a"]), of([b"a", b"a"]), of([b"b"]), of([b"a"], [b"k"]), of([b"ab"]), of([None, None])]
    assert len({*others}) == len(others)
    assert of([b"1", b"2"], [b"x", b"y"]) != of([b"2", b"1"], [b"x", b"y"])


def test_what_is_kept_fits_and_is_read_again() -> None:
    stream, life = StreamName("s" * 64), Incarnation(2**63)
    rows = {stream: rows_of(Records([b"a"] * 3, None, None, None))}
    batch = CommittedBatch.of(rows, {stream: life}, planned="0" * 32, writer='"ä\\' * 200)
    assert len(batch.to_metadata()) <= MAX_METADATA
    assert CommittedBatch.of_metadata(batch.to_metadata()) == batch
    for text in ("", "[]", "7", "{}", '{"rows": null}', "a note of another program"):
        assert CommittedBatch.of_metadata(text) is None
    assert check_family(family_of_query(QUERY, stream, life))


@pytest.mark.parametrize("of", ["{}", "file:{}", "file://{}"])
def test_the_plan_is_read_from_a_folder_of_this_machine(tmp_path: Path, of: str) -> None:
    folder = tmp_path / "a b"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "3").write_text("v1")
    place = of.format(str(folder) if of == "{}" else str(folder).replace(" ", "%20"))
    assert planned_as(place, 3) != ""
    assert planned_as(place, 4) == ""


def test_a_plan_elsewhere_is_not_known() -> None:
    assert [planned_as(each, 3) for each in (None, "hdfs://a/b", "s3a://b/c", "\0", "")] == [""] * 5
