"""The rows of the data source, and record batches as Arrow batches in that form.

    key binary · value binary · stream string · partition int · offset long · timestamp timestamp (microseconds)
    with includeHeaders=true also: headers array<struct<key string, value binary>>
    where it is named: timestampType int

The option `columns` or a user's own schema may leave columns out (Spark's Python data sources know no column pruning of
their own): a column that is not named is not built. The columns `key` and `value` are views of the fetched bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from wire.batch import header_items
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from wire.batch import RecordBatch

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

SPARK_TYPES: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "stream": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}

_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "stream": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}


CREATE_TIME = 0
"""Value of `timestampType`, as in Kafka's connector: a record has the time that its producer gave it, or, without one,
the time at which the broker took it."""
ON_REQUEST = ("timestampType",)
"""Columns that exist only when the option `columns` or the user's schema names them: a constant is not shipped
without need."""


def spark_schema(*, include_headers: bool, columns: Sequence[str] | None = None) -> StructType:
    """Returns the schema. `columns`: these, in this order. Raises TidelogError(BAD_CONFIG) for one that does not
    exist."""
    known = _known(include_headers=include_headers)
    if columns is None:
        return StructType([field for field in known.fields if field.name not in ON_REQUEST])
    for name in columns:
        if name not in known.names:
            raise _no_column("columns", name, known)
    return StructType([known[name] for name in columns])


def _known(*, include_headers: bool) -> StructType:
    return StructType(
        [StructField(name, kind) for name, kind in SPARK_TYPES.items() if include_headers or name != "headers"]
    )


def _no_column(what: str, name: str, known: StructType) -> TidelogError:
    hint = "; set includeHeaders=true for it" if name == "headers" else ""
    return TidelogError(
        Code.BAD_CONFIG, f"{what} names column {name!r}, and a stream has {', '.join(known.names)}{hint}"
    )


def check_schema(schema: StructType, *, include_headers: bool) -> None:
    """Refuses a user's schema that is no selection of our columns: TidelogError(BAD_CONFIG) naming the column."""
    known = _known(include_headers=include_headers)
    for column in schema.fields:
        if column.name not in known.names:
            raise _no_column("the schema", column.name, known)
        if column.dataType.simpleString() != known[column.name].dataType.simpleString():
            raise TidelogError(
                Code.BAD_CONFIG,
                f"the schema makes column {column.name!r} a {column.dataType.simpleString()}, and it is "
                f"{known[column.name].dataType.simpleString()}: leave the schema out and cast the column",
            )


class ArrowRows:
    """Converts the batches of one partition. Keeps the constant columns between batches."""

    def __init__(self, schema: StructType, stream: str, partition: int) -> None:
        self._schema = pa.schema(
            [pa.field(column.name, _ARROW_TYPES[column.name], column.nullable) for column in schema.fields]
        )
        self._stream = _Constant(pa.scalar(stream, pa.string()))
        self._partition = _Constant(pa.scalar(partition, pa.int32()))
        self._timestamp_type = _Constant(pa.scalar(CREATE_TIME, pa.int32()))
        builders: Mapping[str, Callable[[RecordBatch], pa.Array]] = {
            "key": lambda batch: batch.arrow_keys(),
            "value": lambda batch: batch.arrow_values(),
            "stream": lambda batch: self._stream.array(len(batch)),
            "partition": lambda batch: self._partition.array(len(batch)),
            "offset": lambda batch: _int64(_ARROW_TYPES["offset"], batch.offsets),
            "timestamp": _microseconds,
            "timestampType": lambda batch: self._timestamp_type.array(len(batch)),
            "headers": _headers,
        }
        self._builders = [builders[column.name] for column in schema.fields]

    def convert(self, batch: RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([build(batch) for build in self._builders], schema=self._schema)


class _Constant:
    """An array of one value: each is a slice of the longest made so far."""

    def __init__(self, value: pa.Scalar) -> None:
        self._value = value
        self._longest: pa.Array | None = None

    def array(self, length: int) -> pa.Array:
        if self._longest is None or length > len(self._longest):
            self._longest = pa.repeat(self._value, max(length, 1024))
        return self._longest.slice(0, length)


def _int64(kind: pa.DataType, numbers: Any) -> pa.Array:
    """Returns a view of numpy's int64."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _microseconds(batch: RecordBatch) -> pa.Array:
    """Returns times rounded down to microseconds, Spark's unit, before 1970 too."""
    return _int64(_ARROW_TYPES["timestamp"], np.floor_divide(batch.timestamps, 1_000))


def _headers(batch: RecordBatch) -> pa.Array:
    """Returns the headers; null where a record has none, as in Kafka's connector."""
    kind = _ARROW_TYPES["headers"]
    if not batch.has_headers:
        return pa.nulls(len(batch), kind)
    found = batch.header_spans()
    if found is None:
        return _headers_one_by_one(batch)
    spans, data = found
    keys = _pieces(data, spans.key_starts, spans.key_ends)
    values = _pieces(data, spans.value_starts, spans.value_ends)
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:  # a name is no UTF-8
        return _headers_one_by_one(batch)
    places = np.zeros(len(batch) + 1, np.int32)
    np.cumsum(spans.counts, out=places[1:])
    structs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    validity = np.packbits(spans.counts > 0, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(places)]
    return pa.Array.from_buffers(kind, len(batch), buffers, children=[structs])


def _pieces(data: memoryview, starts: Any, ends: Any) -> pa.Array:
    """Returns the bytes from each start to its end; these grow, and do not overlap."""
    bounds = np.empty(2 * len(starts) + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = len(data)
    # The array alternates pieces and the bytes between them; every second entry is taken.
    all_of_it = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return all_of_it.take(pa.array(np.arange(0, len(bounds) - 1, 2)))


def _headers_one_by_one(batch: RecordBatch) -> pa.Array:
    rows = [
        [{"key": name, "value": value} for name, value in header_items(headers)] if headers else None
        for headers in batch.headers
    ]
    return pa.array(rows, type=_ARROW_TYPES["headers"])
