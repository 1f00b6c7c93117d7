"""Values in JSON, Avro and Protobuf, plain and in Confluent's wire format, as Spark decodes them.

Spark's modules for Avro and Protobuf are not on the Python package index. TIDELOG_SPARK_JARS, paths of jars separated
by commas, names them to the tests that need them; without it those are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

import tidelog.sync
from spark_connector.values import Schemas, by_id, from_avro, from_json, from_protobuf, schema_id
from tests.integration.spark.spark_session import local_spark
from tidelog.server.devcluster import DevCluster
from wire.errors import TidelogError

JARS = os.environ.get("TIDELOG_SPARK_JARS", "")


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(f"spark-{module}" not in JARS, reason=f"TIDELOG_SPARK_JARS names no spark-{module} jar")


def lacks(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(f"spark-{module}" in JARS, reason=f"TIDELOG_SPARK_JARS names a spark-{module} jar")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("test_spark_values", **({"spark__jars": JARS} if JARS else {})) as session:
        yield session


def decoded(spark: SparkSession, column: Column, *values: bytes | None) -> list[Any]:
    """The column of each value, in order."""
    frame = spark.createDataFrame([(i, value) for i, value in enumerate(values)], "i int, value binary").coalesce(1)
    rows = frame.select("i", column.alias("decoded")).sort("i").collect()
    return [row.decoded.asDict() if hasattr(row.decoded, "asDict") else row.decoded for row in rows]


def wire_format(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def entry(number: int, subject: str, version: int, schema: object, **more: object) -> tuple[bytes, bytes]:
    """Key and value of a record of a schema stream."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, "schema": json.dumps(schema), **more}
    return json.dumps(key).encode(), json.dumps(value).encode()


def test_json_by_a_file_with_ddl_or_with_a_schema_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    ddl, as_json = tmp_path / "flight.ddl", tmp_path / "flight.json"
    ddl.write_text("carrier string, delay int\n")
    as_json.write_text(spark.createDataFrame([], "carrier string, delay int").schema.json())
    for schema in (ddl, as_json, "carrier string, delay int"):
        found = decoded(spark, from_json("value", schema), b'{"carrier": "AA", "delay": 3}', b"{}", None)
        assert found == [{"carrier": "AA", "delay": 3}, {"carrier": None, "delay": None}, None]


def test_json_that_is_none_fails_the_query_unless_it_is_permitted(spark: SparkSession) -> None:
    with pytest.raises(Py4JError, match="MALFORMED_RECORD_IN_PARSING"):
        decoded(spark, from_json("value", "carrier string"), b"no json")
    assert decoded(spark, from_json("value", "carrier string", mode="PERMISSIVE"), b"no json") == [{"carrier": None}]


def test_json_in_the_wire_format_has_any_id(spark: SparkSession) -> None:
    column = from_json("value", "delay int", is_confluent=True)
    values = [wire_format(number, b'{"delay": %d}' % number) for number in (1, 300, (1 << 32) - 1)]
    assert decoded(spark, schema_id("value"), *values, None) == [1, 300, (1 << 32) - 1, None]
    assert decoded(spark, from_json("value", "delay long", is_confluent=True), *values[:2], None) == [
        {"delay": 1},
        {"delay": 300},
        None,
    ]
    for wrong in (b'{"delay": 1}', b"\0\0\0\1", b""):
        with pytest.raises(PySparkException, match=f"{len(wrong)} bytes, is not in Confluent's wire format"):
            decoded(spark, column, wrong)


def test_a_schema_stream_is_read_as_a_table_of_its_newest_entries() -> None:
    first = entry(1, "flights-value", 1, "int")
    schemas = Schemas.parse(
        "schemas",
        [
            first,
            entry(2, "flights-value", 2, "long"),
            entry(3, "flights-value", 3, "double", deleted=True),
            entry(7, "planes-value", 1, {"type": "object"}, schemaType="JSON"),
            (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"BACKWARD"}'),
            (first[0], None),
        ],
    )
    assert sorted(schemas.by_id) == [2, 3, 7]
    assert schemas.newest("flights-value").id == 2
    assert [schema.id for schema in schemas.of_kind("AVRO", None)] == [2, 3], "what was written with 3 is read"
    with pytest.raises(TidelogError, match=r"no schema of subject 'trains-value'; its subjects: flights-value, planes"):
        schemas.newest("trains-value")
    with pytest.raises(TidelogError, match="has no PROTOBUF schema"):
        schemas.of_kind("PROTOBUF", None)
    with pytest.raises(TidelogError, match="schema stream schemas has a value that is no schema"):
        Schemas.parse("schemas", [(b"k", b"17")])
    linked = Schemas.parse("schemas", [entry(1, "a", 1, "int", references=[{"name": "b"}])])
    with pytest.raises(TidelogError, match="schema 1 of schema stream schemas refers to other schemas"):
        linked.of_kind("AVRO", None)


def test_schemas_are_read_from_a_compacted_stream(spark: SparkSession, cluster: DevCluster) -> None:
    entries = [entry(1, "a", 1, "int"), entry(2, "a", 2, "long"), entry(9, "b", 1, "string")]
    with tidelog.sync.connect(cluster.nats_url) as client:
        client.ensure_stream("schemas", partitions=3, config={"compact": "true"})
        with client.producer("schemas") as producer:
            for key, value in entries:
                producer.send(value, key=key)
            producer.send(None, key=entries[0][0])
    schemas = Schemas.read(spark, "schemas", servers=cluster.nats_url)
    assert {schema.id: schema.text for schema in schemas.by_id.values()} == {2: '"long"', 9: '"string"'}


def test_each_value_is_decoded_by_its_own_schema(spark: SparkSession) -> None:
    schemas = Schemas.parse("schemas", [entry(1, "a", 1, "int"), entry(2, "a", 2, "int")])
    text = f.substring("value", 6, 100).cast("string")
    column = by_id("value", schemas, {1: f.concat(f.lit("first "), text), 2: f.concat(f.lit("second "), text)})
    values = [wire_format(2, b"x"), wire_format(1, b"y"), None, wire_format(2, b"z")]
    assert decoded(spark, column, *values) == ["second x", "first y", None, "second z"]
    with pytest.raises(PySparkException, match="schema id 3 of a value is none of schema stream schemas"):
        decoded(spark, column, wire_format(3, b"x"))


@lacks("avro")
def test_avro_without_its_module_is_refused_with_what_to_add(spark: SparkSession) -> None:
    with pytest.raises(TidelogError, match=rf"--packages org\.apache\.spark:spark-avro_2\.13:{spark.version}"):
        from_avro("value", '"int"')


@lacks("protobuf")
def test_protobuf_without_its_module_is_refused_with_what_to_add(spark: SparkSession) -> None:
    with pytest.raises(TidelogError, match=rf"--packages org\.apache\.spark:spark-protobuf_2\.13:{spark.version}"):
        from_protobuf("value", "Flight", descriptor_set())


FIRST = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]}
SECOND = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "delay", "type": "int", "default": -1}, {"name": "carrier", "type": "string"}],
}


@needs("avro")
def test_avro_by_a_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "flight.avsc").write_text(json.dumps(FIRST))
    column = from_avro("value", tmp_path / "flight.avsc")
    assert decoded(spark, column, b"\4AA", None) == [{"carrier": "AA"}, None]
    with pytest.raises((PySparkException, Py4JError), match="MALFORMED_AVRO_MESSAGE"):
        decoded(spark, column, b"\xff")


@needs("avro")
def test_avro_of_ids_that_vary_becomes_rows_of_the_newest_schema(spark: SparkSession) -> None:
    schemas = Schemas.parse("schemas", [entry(1, "flights-value", 1, FIRST), entry(9, "flights-value", 2, SECOND)])
    values = [wire_format(1, b"\4AA"), wire_format(9, b"\6\4UA"), None]
    wanted = [{"delay": -1, "carrier": "AA"}, {"delay": 3, "carrier": "UA"}, None]
    assert decoded(spark, from_avro("value", schemas=schemas, subject="flights-value"), *values) == wanted
    old = from_avro("value", json.dumps(FIRST), schemas=schemas)
    assert decoded(spark, old, *values) == [{"carrier": "AA"}, {"carrier": "UA"}, None]
    with pytest.raises(PySparkException, match="schema id 5 of a value"):
        decoded(spark, old, wire_format(5, b"\4AA"))


def descriptor_set() -> bytes:
    file = FileDescriptorProto(name="flights.proto", package="air", syntax="proto3")
    file.message_type.add(name="Plane")
    flight = file.message_type.add(name="Flight")
    flight.nested_type.add(name="Leg")
    for message in (*file.message_type, flight.nested_type[0]):
        message.field.add(
            name="name", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
        )
    return FileDescriptorSet(file=[file]).SerializeToString()


def test_a_protobuf_message_that_is_not_in_the_schema_is_named() -> None:
    with pytest.raises(TidelogError, match=r"no message 'Train'; its messages: air\.Plane, air\.Flight, air"):
        from_protobuf("value", "Train", descriptor_set())
    with pytest.raises(TidelogError, match="no descriptor set"):
        from_protobuf("value", "Flight", b'syntax = "proto3";')
    with pytest.raises(TidelogError, match=r"nothing\.desc cannot be read: No such file"):
        from_protobuf("value", "Flight", Path("nothing.desc"))


@needs("protobuf")
@pytest.mark.parametrize(
    ("message", "indexes"),
    [("Plane", [b"\0", b"\2\0"]), ("Flight", [b"\2\2"]), ("air.Flight.Leg", [b"\4\2\0"])],
    ids=["first", "second", "nested"],
)
def test_protobuf_plain_and_in_the_wire_format(spark: SparkSession, message: str, indexes: list[bytes]) -> None:
    value = b"\n\2AA"
    assert decoded(spark, from_protobuf("value", message, descriptor_set()), value, None) == [{"name": "AA"}, None]
    column = from_protobuf("value", message, descriptor_set(), is_confluent=True)
    for prefix in indexes:
        assert decoded(spark, column, wire_format(3, prefix + value), None) == [{"name": "AA"}, None]
    with pytest.raises(PySparkException, match=f"a value is of another message than {message}"):
        decoded(spark, column, wire_format(3, b"\2\6" + value))
