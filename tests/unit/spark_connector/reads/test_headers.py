from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.shared.arrow_rows import ArrowRows, spark_schema
from wire.batch import BatchBuilder, Compression, RecordBatch, encode_headers, header_items
from wire.batch.record_headers import RAW_HEADERS
from wire.types import LeaderEpoch, Offset

NATS_BLOCK = b"NATS/1.0\r\nTraffic: heavy\r\nTraffic: light\r\n\r\n"
GIVEN = st.dictionaries(st.text(max_size=5), st.lists(st.binary(max_size=5), min_size=1, max_size=3), max_size=4)


def batch_of(elements: list[bytes], compression: Compression = Compression.NONE) -> RecordBatch:
    builder = BatchBuilder()
    for number, element in enumerate(elements):
        builder.add_record(b"v%d" % number, None, element)
    parts, _ = builder.build(1, compression=compression).stamp(Offset(100), LeaderEpoch(1))
    return RecordBatch.decode(b"".join(bytes(part) for part in parts))


def rows(batch: RecordBatch, *columns: str) -> list[dict[str, Any]]:
    schema = spark_schema(include_headers=True, columns=columns)
    found = ArrowRows(schema, "flights", 3).convert(batch)
    found.validate(full=True)
    return [dict(row) for row in found.to_pylist()]


def one_by_one(batch: RecordBatch) -> list[list[dict[str, object]] | None]:
    return [
        [{"key": name, "value": value} for name, value in header_items(headers)] or None for headers in batch.headers
    ]


@given(
    st.lists(GIVEN.map(encode_headers) | st.sampled_from([b"", b"\x01"]), min_size=1, max_size=20),
    st.integers(0, 19),
    st.integers(0, 19),
    st.sampled_from([Compression.NONE, Compression.LZ4]),
)
def test_headers_are_those_of_each_record(
    elements: list[bytes], first: int, last: int, compression: Compression
) -> None:
    batch = batch_of(elements, compression)
    for part in (batch, batch.slice(Offset(100 + first), Offset(100 + last))):
        assert [row["headers"] for row in rows(part, "headers")] == one_by_one(part)


def test_headers_of_nats_and_of_clients_in_one_batch() -> None:
    batch = batch_of([NATS_BLOCK, b"", encode_headers({"a": b"1"})])
    assert [row["headers"] for row in rows(batch, "headers")] == [
        [{"key": "Traffic", "value": b"heavy"}, {"key": "Traffic", "value": b"light"}],
        None,
        [{"key": "a", "value": b"1"}],
    ]


@pytest.mark.parametrize(
    "element",
    [
        b"\x01\x05",
        b"\x01\x05\x00abc",
        b"\x01\x01\x00a\x05\x00\x00",
        b"\x01\x01\x00a\x05\x00\x00\x00xyz",
        b"\x01\x01\x00a\xff\xff\xff\xff",
        b"\x01\x01\x00\xff\x00\x00\x00\x00",
        b"\x02",
    ],
)
def test_headers_that_do_not_decode_stop_no_reader(element: bytes) -> None:
    batch = batch_of([encode_headers({"a": b"1"}), element, encode_headers({"b": b"2"})])
    assert [row["headers"] for row in rows(batch, "headers")] == [
        [{"key": "a", "value": b"1"}],
        [{"key": RAW_HEADERS, "value": element}],
        [{"key": "b", "value": b"2"}],
    ]
