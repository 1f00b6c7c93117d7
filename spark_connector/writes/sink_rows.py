"""Rows that are written: which columns they have, and Arrow batches as lists of records.

value      binary or string; null deletes the key in a compacted stream
key        binary or string; null: none
headers    array<struct<key string, value binary>>; null: none
stream     string; the option `stream`, for all, goes before it
partition  int; null: by the key, or any
timestamp  timestamp; null: the time at which the record is sent
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_connector.shared.arrow_rows import SPARK_TYPES
from wire.batch.record_headers import RepeatedHeaders
from wire.errors import Code, TidelogError
from wire.subjects import check_stream_name

if TYPE_CHECKING:
    from wire.types import StreamName

CHUNK_RECORDS: Final = 10_000
CHUNK_BYTES: Final = 8 << 20
"""Bytes of a chunk of more than one record."""

_COLLATION: Final = re.compile(r" collate \w+")
"""Part of a string's type that names the comparison of strings, not their content."""
_END_OF_TIME_US: Final = ((1 << 63) - 1) // 1000
_TYPES: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    **{name: (SPARK_TYPES[name].simpleString(),) for name in ("headers", "stream", "partition", "timestamp")},
}


class Target(NamedTuple):
    stream: StreamName
    partition: int | None
    """The partition; None: by the key, or any."""


class Records(NamedTuple):
    """The records of one target, in their order. Lists of one length."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    """None: no record has a key; so with the others."""
    headers: list[RepeatedHeaders | None] | None
    timestamps_ns: list[int | None] | None


def check_written_schema(schema: StructType, stream: StreamName | None) -> None:
    """Raises TidelogError(BAD_CONFIG) that names the column of a schema that cannot be written."""
    for column in schema.fields:
        if column.name not in _TYPES:
            raise _bad(
                f"a record has no column {column.name!r}: select the columns to be written, of {', '.join(_TYPES)}"
            )
        found = _COLLATION.sub("", column.dataType.simpleString())
        if found not in _TYPES[column.name]:
            raise _bad(
                f"column {column.name!r} is {found}, and is to be {' or '.join(_TYPES[column.name])}: cast it, or make"
                " one string of a row with to_json(struct(...))"
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise _bad("column 'value' is missing: name the column that holds the records' values so")
    if stream is None and "stream" not in names:
        raise _bad('nothing says which stream the rows go to: add .option("stream", "NAME"), or a column stream')


def chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields slices of CHUNK_RECORDS and CHUNK_BYTES at most, or of one row. Rows may be unequal, so the batch is
    halved until the slices fit."""
    if batch.num_rows > CHUNK_RECORDS or (batch.num_rows > 1 and batch.nbytes > CHUNK_BYTES):
        half = batch.num_rows // 2
        yield from chunks(batch.slice(0, half))
        yield from chunks(batch.slice(half))
    elif batch.num_rows:
        yield batch


def records_of(batch: pa.RecordBatch, stream: StreamName | None) -> dict[Target, Records]:
    """Returns the records by target. Raises TidelogError for a row without a stream."""
    names = batch.schema.names
    values = _binary(batch.column("value"))
    keys = _binary(batch.column("key")) if "key" in names and _has_some(batch, "key") else None
    headers = _headers(batch.column("headers")) if "headers" in names and _has_some(batch, "headers") else None
    timestamps = _nanoseconds(batch, keys, values) if "timestamp" in names else None
    whole = Records(values, keys, headers, timestamps)
    streams = batch.column("stream").to_pylist() if stream is None else None
    partitions = (
        batch.column("partition").to_pylist() if "partition" in names and _has_some(batch, "partition") else None
    )
    if streams is None and partitions is None:
        assert stream is not None
        return {Target(stream, None): whole}
    places: dict[tuple[str | None, int | None], list[int]] = {}
    for at in range(batch.num_rows):
        place = (stream if streams is None else streams[at], None if partitions is None else partitions[at])
        places.setdefault(place, []).append(at)
    found: dict[Target, Records] = {}
    for (name, partition), rows in places.items():
        if name is None:
            raise _bad("a row names no stream: its column 'stream' is null")
        found[Target(check_stream_name(name), partition)] = _selected(whole, rows)
    return found


def _selected(records: Records, rows: Sequence[int]) -> Records:
    return Records(
        [records.values[at] for at in rows],
        *(None if each is None else [each[at] for at in rows] for each in records[1:]),  # type: ignore[arg-type]
    )


def _has_some(batch: pa.RecordBatch, name: str) -> bool:
    column = batch.column(name)
    return bool(column.null_count < len(column))


def _binary(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _nanoseconds(
    batch: pa.RecordBatch, keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]
) -> list[int | None] | None:
    if not _has_some(batch, "timestamp"):
        return None
    times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    for at, each in enumerate(times):
        if each is not None and not -_END_OF_TIME_US <= each <= _END_OF_TIME_US:
            key = b"" if keys is None else keys[at]
            raise _bad(
                f"a timestamp is outside the years 1678 to 2261, which records can have: {each} microseconds since"
                f" 1970, in the row with key {key!r:.60} and value {values[at]!r:.60}"
            )
    return [None if each is None else each * 1000 for each in times]


def _headers(column: pa.Array) -> list[RepeatedHeaders | None]:
    return [
        None if row is None else RepeatedHeaders([(each["key"], each["value"] or b"") for each in row])
        for row in column.to_pylist()
    ]


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
