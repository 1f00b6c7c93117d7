from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from spark_connector.shared.arrow_rows import ArrowRows, check_schema, spark_schema
from wire.batch import BatchBuilder, RecordBatch
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset

ALL = ["key", "value", "stream", "partition", "offset", "timestamp"]


def rows(schema: StructType) -> pa.RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"one", b"two"])
    parts, _ = builder.build(1_893_456_000_000_000_000).stamp(Offset(5), LeaderEpoch(1))
    return ArrowRows(schema, "flights", 3).convert(RecordBatch.decode(b"".join(bytes(part) for part in parts)))


def test_columns_that_are_there_unless_others_are_named() -> None:
    assert spark_schema(include_headers=False).names == ALL
    assert spark_schema(include_headers=True).names == [*ALL, "headers"]


def test_named_columns_alone_are_built_in_their_order() -> None:
    schema = spark_schema(include_headers=False, columns=("offset", "value", "timestampType"))
    assert rows(schema).to_pylist() == [
        {"offset": 5, "value": b"one", "timestampType": 0},
        {"offset": 6, "value": b"two", "timestampType": 0},
    ]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("carrier", "columns names column 'carrier', and a stream has key, value,"),
        ("headers", "set includeHeaders=true for it"),
    ],
)
def test_a_column_that_is_not_there_is_refused(column: str, says: str) -> None:
    with pytest.raises(TidelogError, match=says) as caught:
        spark_schema(include_headers=False, columns=("key", column))
    assert caught.value.code is Code.BAD_CONFIG


def test_a_schema_of_the_user_may_name_all_columns() -> None:
    check_schema(StructType([StructField("timestampType", IntegerType())]), include_headers=False)
    with pytest.raises(TidelogError, match="the schema names column 'carrier'"):
        check_schema(StructType([StructField("carrier", IntegerType())]), include_headers=False)
    with pytest.raises(TidelogError, match="the schema makes column 'value' a int, and it is binary"):
        check_schema(StructType([StructField("value", IntegerType())]), include_headers=False)
