"""What Spark writes: options, columns, and rows as records. tests/integration/spark/test_spark_sinks.py has real
Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_connector.shared.connections import kept
from spark_connector.source import TidelogDataSource
from spark_connector.writes import sink_rows
from spark_connector.writes.sink_delivery import Sent
from spark_connector.writes.sink_options import SINK_OPTIONS, SinkOptions
from spark_connector.writes.sink_rows import Records, Target, check_written_schema, chunks, records_of
from spark_connector.writes.sinks import TidelogBatchWriter, TidelogStreamWriter
from tests.unit.spark_connector.writes.fake_sink_cluster import FakeSinkCluster
from tidelog.client.transaction.prepared_transactions import PreparedTransaction
from wire.errors import TidelogError
from wire.types import StreamName

SERVERS = {"servers": "nats://127.0.0.1:4222"}
ORDERS = StreamName("orders")
TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "map": MapType(StringType(), BinaryType()),
    "array": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def parsed(**given: str) -> SinkOptions:
    return SinkOptions.parse(SERVERS | given)


def test_a_write_is_exactly_once_unless_told() -> None:
    options = parsed(stream="orders")
    assert options.exactly_once
    assert (options.acks, options.compression, options.partitioner, options.linger) == ("all", None, None, 0.0)
    assert (options.transaction_timeout, options.retry_seconds) == (900.0, 120.0)
    assert options.for_batch() is options
    assert options.for_stream() is options


def test_options_have_the_units_of_spark_and_no_case() -> None:
    options = parsed(
        GUARANTEE="at_least_once", linger="5", acks="leader", COMPRESSION="zstd", partitioner="murmur2",
        checkpointLocation="/tmp/c", queryName="q",
    )  # fmt: skip
    assert (options.exactly_once, options.linger, options.acks) == (False, 0.005, "leader")
    assert (options.compression, options.partitioner, options.stream) == ("zstd", "murmur2", None)
    assert parsed(**{"transaction.timeout": "2m", "retry.timeout": "10s"}).transaction_timeout == 120.0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"strean": "orders"}, "unknown option 'strean' of a write to tidelog .did you mean stream"),
        ({"topic": "orders"}, "topic is no option of a write: it is stream here"),
        ({"path": "orders"}, "a stream is not a path"),
        ({"subscribe": "orders"}, "stream names the stream that is written to"),
        ({"guarantee": "twice"}, "guarantee='twice' is none of exactly_once, at_least_once"),
        ({"acks": "leader"}, "acks=leader goes with guarantee=at_least_once alone"),
        ({"transaction.timeout": "1h"}, "transaction.timeout='1h' is outside 100ms to 15m"),
        ({"transactionalId": "a~b", "sequence": "1"}, "the family of transactional ids 'a~b' is not"),
        ({"sequence": "-1", "transactionalId": "a"}, "sequence='-1' is outside 0 to"),
        ({"guarantee": "at_least_once", "transactionalId": "a"}, "are for guarantee=exactly_once"),
        ({"stream": "a b"}, "stream name 'a b' is not"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(TidelogError, match=sentence):
        parsed(**given)


def test_a_number_belongs_to_a_name_and_neither_to_a_stream() -> None:
    for given in ({"transactionalId": "a"}, {"sequence": "1"}):
        with pytest.raises(TidelogError, match="go together"):
            parsed(**given).for_batch()
    with pytest.raises(TidelogError, match="known by the id in its checkpoint"):
        parsed(transactionalId="a", sequence="1").for_stream()
    assert parsed(transactionalId="a", sequence="1").for_batch().sequence == 1


def test_servers_are_needed_and_logins_are_not_shown() -> None:
    with pytest.raises(TidelogError, match="option servers is missing"):
        SinkOptions.parse({"stream": "orders"})
    assert "geheim" not in repr(parsed(**{"nats.password": "geheim", "nats.user": "spark"}))
    assert "nats.creds" in SINK_OPTIONS


def test_each_option_has_a_row_in_the_docs() -> None:
    text = (Path(__file__).resolve().parents[4] / "docs" / "spark.md").read_text()
    table = text.partition("## Sinks\n")[2].partition("### Exactly once")[0]
    told = {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.partition(" | ")[0])}
    assert told >= {name for name in SINK_OPTIONS if not name.startswith("nats.")}
    assert "nats.*" in told


def test_a_commit_of_which_a_message_is_missing_is_refused() -> None:
    writers = TidelogBatchWriter(parsed(stream="orders")), TidelogStreamWriter(parsed(stream="orders"))
    for commit in (writers[0].commit, lambda messages: writers[1].commit(messages, 3)):
        with pytest.raises(TidelogError, match="commits 2 tasks and hands over what 1 have sent"):
            commit([Sent("f", 3, None), None])


def test_only_the_name_of_an_unnamed_batch_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have to be remembered for as long as a query may be stopped, or a job repeated."""
    cluster = FakeSinkCluster({"orders": 1})

    async def connect(*_: object, **__: object) -> FakeSinkCluster:
        return cluster

    monkeypatch.setattr("tidelog.connect", connect)
    sent = [Sent(family, 3, PreparedTransaction(f"{family}~0-0", 1, 0), name=family) for family in ("a", "b", "c")]
    cluster.prepared = {each.transaction.transactional_id: [] for each in sent if each.transaction is not None}
    try:
        TidelogBatchWriter(parsed(stream="orders")).commit(sent[:1])
        TidelogBatchWriter(parsed(stream="orders", transactionalId="b", sequence="3")).commit(sent[1:2])
        TidelogStreamWriter(parsed(stream="orders")).commit(sent[2:], 3)
    finally:
        kept.close()
    assert [*cluster.families] == ["a", "b", "c"]
    assert cluster.once == ["a"]


@pytest.mark.parametrize(
    ("schema", "stream", "sentence"),
    [
        ("value string, id bigint", ORDERS, "a record has no column 'id'"),
        ("value bigint", ORDERS, "column 'value' is bigint, and is to be binary or string"),
        ("key string", ORDERS, "column 'value' is missing"),
        ("value string", None, "nothing says which stream"),
        ("value string, partition bigint", ORDERS, "column 'partition' is bigint, and is to be int"),
        ("value string, timestamp timestamp_ntz", ORDERS, "column 'timestamp' is timestamp_ntz"),
        ("value string, headers map", ORDERS, "column 'headers' is map<string,binary>"),
    ],
)
def test_columns_that_are_no_records_are_refused(schema: str, stream: StreamName | None, sentence: str) -> None:
    with pytest.raises(TidelogError, match=sentence):
        check_written_schema(_schema(schema), stream)


def test_strings_may_have_a_collation() -> None:
    collated = StringType("UTF8_LCASE")
    headers = ArrayType(StructType([StructField("key", collated), StructField("value", BinaryType())]))
    fields = [StructField(name, collated) for name in ("key", "value")] + [StructField("headers", headers)]
    check_written_schema(StructType(fields), ORDERS)


def test_the_option_goes_before_the_column() -> None:
    """As in Kafka's sink."""
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["1"]), "stream": pa.array(["other"])})
    assert [*records_of(batch, ORDERS)] == [Target(ORDERS, None)]
    check_written_schema(StructType([StructField(name, StringType()) for name in ("value", "stream")]), ORDERS)


@pytest.mark.parametrize("microseconds", [(1 << 63) // 1000 + 1, -(1 << 63) // 1000 - 1, (1 << 63) - 1])
def test_a_timestamp_out_of_range_names_its_row(microseconds: int) -> None:
    times = pa.array([0, microseconds], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_pydict({"key": pa.array(["a", "b"]), "value": pa.array(["1", "2"]), "timestamp": times})
    with pytest.raises(TidelogError, match=rf"{microseconds} microseconds since 1970, in the row with key b'b'"):
        records_of(batch, ORDERS)


def test_columns_that_are_records() -> None:
    check_written_schema(_schema("value binary"), ORDERS)
    check_written_schema(
        _schema("key string, value string, headers array, stream string, partition int, timestamp timestamp"), None
    )


def test_overwrite_is_refused() -> None:
    source = TidelogDataSource(SERVERS | {"stream": "orders"})
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(TidelogError, match="nothing overwrites it"):
            writer(_schema("value string"), True)
        writer(_schema("value string"), False)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_rows_of_one_stream_are_one_list(kind: pa.DataType) -> None:
    batch = _batch(value=pa.array(["a", None, "c"], pa.string()).cast(kind), key=pa.array([None] * 3, kind))
    assert records_of(batch, ORDERS) == {Target(ORDERS, None): Records([b"a", None, b"c"], None, None, None)}


def test_rows_go_where_their_columns_say_in_their_order() -> None:
    batch = _batch(
        value=pa.array([b"0", b"1", b"2", b"3", b"4"]),
        key=pa.array(["k", None, "k", "k", None]),
        stream=pa.array(["a", "b", "a", "a", "b"]),
        partition=pa.array([1, None, None, 1, None], pa.int32()),
        timestamp=pa.array([1, None, 2, 3, None], pa.timestamp("us", tz="Europe/Berlin")),
        headers=pa.array(
            [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [], None, None],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    )
    found = records_of(batch, None)
    assert {target: records.values for target, records in found.items()} == {
        ("a", 1): [b"0", b"3"],
        ("b", None): [b"1", b"4"],
        ("a", None): [b"2"],
    }
    first = found[Target(StreamName("a"), 1)]
    assert first.keys == [b"k", b"k"]
    assert first.timestamps_ns == [1000, 3000]
    assert first.headers is not None
    assert first.headers[0] is not None
    assert first.headers[0].items_in_order == (("h", b"1"), ("h", b""))


def test_a_row_without_a_stream_is_refused() -> None:
    with pytest.raises(TidelogError, match="its column 'stream' is null"):
        records_of(_batch(value=pa.array([b"0"]), stream=pa.array([None], pa.string())), None)


def test_large_batches_are_sent_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_BYTES", 1000)
    batch = _batch(value=pa.array([b"x" * 100] * 50))
    sizes = [chunk.num_rows for chunk in chunks(batch)]
    assert sum(sizes) == 50
    assert max(sizes) < 11
    assert [chunk.num_rows for chunk in chunks(_batch(value=pa.array([b"x" * 5000] * 2)))] == [1, 1]
    assert [*chunks(batch.slice(0, 0))] == []
    # Or else its first rows have no room in a producer's buffer.
    unequal = _batch(value=pa.array([b"x" * 900] * 4 + [b"y"] * 96))
    assert max(chunk.nbytes for chunk in chunks(unequal)) <= 1000


def _schema(text: str) -> StructType:
    return StructType([StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))])


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
