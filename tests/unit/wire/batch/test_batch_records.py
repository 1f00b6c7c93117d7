"""Records in, records out: the builder, the reader, slices and Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import (
    MAX_RECORDS,
    BatchBuilder,
    Compression,
    EncodedBatch,
    RecordBatch,
    decode_headers,
    encode_headers,
    header_items,
)
from wire.batch.builder import Joined
from wire.batch.record_headers import RAW_HEADERS, are_sound, block_fault, most_written, written_size
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import LeaderEpoch, Offset

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
HEADERS = st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=3)


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes]
    timestamp: int | None


RECORDS = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=20),
        key=st.none() | st.binary(max_size=5),
        headers=HEADERS,
        timestamp=st.none() | INT64,
    ),
    min_size=1,
    max_size=40,
)


def encode(batch: EncodedBatch, base_offset: int = 0) -> bytes:
    return b"".join(batch.stamp(Offset(base_offset), LeaderEpoch(1))[0])


def build(records: list[Record], timestamp: int = 0, compression: Compression = Compression.NONE) -> EncodedBatch:
    builder = BatchBuilder()
    for record in records:
        builder.add_record(record.value, record.key, encode_headers(record.headers), record.timestamp)
    assert builder.count == len(records)
    return builder.build(timestamp, compression=compression)


@given(
    records=RECORDS,
    timestamp=INT64,
    base_offset=st.integers(0, 1 << 62),
    compression=st.sampled_from(Compression),
    bounds=st.tuples(st.integers(-2, 45), st.integers(-2, 45)),
)
def test_records_come_out_as_they_went_in(
    records: list[Record], timestamp: int, base_offset: int, compression: Compression, bounds: tuple[int, int]
) -> None:
    encoded = encode(build(records, timestamp, compression), base_offset)
    assert len(encoded) % 8 == 0
    stamps = [timestamp if record.timestamp is None else record.timestamp for record in records]

    def check(batch: RecordBatch, start: int, end: int) -> None:
        assert len(batch) == len(records[start:end])
        assert batch.values == [record.value for record in records[start:end]]
        assert batch.keys == [record.key for record in records[start:end]]
        assert batch.headers == [record.headers for record in records[start:end]]
        assert batch.timestamps.tolist() == stamps[start:end]
        assert batch.offsets.tolist() == list(range(base_offset, base_offset + len(records)))[start:end]
        rows = list(zip(*batch.fields(), strict=False))
        columns = (batch.offsets.tolist(), batch.timestamps.tolist(), batch.keys, batch.values, batch.headers)
        assert rows == list(zip(*columns, strict=True))

    batch = RecordBatch.decode(encoded)
    check(batch, 0, len(records))
    assert (batch.header.first_timestamp, batch.header.max_timestamp) == (min(stamps), max(stamps))
    assert batch.header.end_offset == base_offset + len(records)
    part = batch.slice(Offset(base_offset + bounds[0]), Offset(base_offset + bounds[1]))
    check(part, max(bounds[0], 0), max(bounds[1], 0))
    # The leader stamps the bytes of the client.
    received = EncodedBatch.from_bytes(encoded)
    assert encode(received, base_offset) == encoded


@given(records=RECORDS, cut=st.integers(0, 10))
def test_arrow_has_the_same_records(records: list[Record], cut: int) -> None:
    part = RecordBatch.decode(encode(build(records))).slice(Offset(cut), Offset(30))
    arrow = part.to_arrow()
    arrow.validate(full=True)
    assert arrow.schema.names == ["key", "value", "offset", "timestamp"]
    assert str(arrow.schema.field("timestamp").type) == "timestamp[ns, tz=UTC]"
    assert arrow.column("key").to_pylist() == part.keys
    assert arrow.column("value").to_pylist() == part.values
    assert arrow.column("offset").to_pylist() == part.offsets.tolist()
    assert arrow.column("timestamp").cast("int64").to_pylist() == part.timestamps.tolist()


def test_arrow_and_slices_are_views_of_the_body() -> None:
    builder = BatchBuilder()
    builder.add_values([b"value %d" % index for index in range(100)])
    encoded = bytearray(encode(builder.build(1)))
    column = RecordBatch.decode(encoded).slice(Offset(10), Offset(20)).to_arrow().column("value")
    at = encoded.index(b"value 10")
    encoded[at : at + 8] = b"VALUE 10"
    assert column[0].as_py() == b"VALUE 10"


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(0, 3), st.booleans()), min_size=1, max_size=8
    )
)
def test_uniform_runs_equal_single_values(runs: list[tuple[int, int, int, bool]]) -> None:
    fast, slow = BatchBuilder(), BatchBuilder()
    for number, (size, count, gap, uniform) in enumerate(runs):
        values = [bytes([number * 16 + index]) * size for index in range(count)]
        block = memoryview(b"..." + b"".join(value + b"." * gap for value in values))
        if uniform:
            fast.add_uniform(block, count, 3, size, size + gap)
        else:
            fast.add_values(values)
        for value in values:
            slow.add_record(value)
        assert (fast.count, fast.size_bytes) == (slow.count, slow.size_bytes)
    assert encode(fast.build(5)) == encode(slow.build(5))


def test_the_block_of_a_uniform_run_may_be_overwritten() -> None:
    block = bytearray(b"aabb")
    builder = BatchBuilder()
    builder.add_uniform(memoryview(block), 2, 0, 2, 2)
    block[:] = b"...."
    assert RecordBatch.decode(encode(builder.build(1))).values == [b"aa", b"bb"]


def test_a_uniform_run_is_one_part_however_many_records_it_has() -> None:
    builder = BatchBuilder()
    builder.add_uniform(memoryview(bytes(8 * 10_001)), 10_000, 0, 8, 8)
    assert len(builder.build(1).parts) == 3  # offsets, their padding, data


def test_nats_headers_are_kept_as_they_arrived() -> None:
    block = b"NATS/1.0\r\nA: 1\r\nno header\r\nNats-Msg-Id:x:y\r\nA: 2\r\n\r\n"
    builder = BatchBuilder()
    builder.add_uniform(memoryview(b"first"), 1, 0, 5, 5)
    builder.add_values([b"second", b"third"], [None, block])
    builder.add_values([b"fourth"])
    encoded = encode(builder.build(1))
    assert block in encoded
    assert RecordBatch.decode(encoded).headers == [{}, {}, {"A": b"2", "Nats-Msg-Id": b"x:y"}, {}]


def test_as_many_header_blocks_as_payloads() -> None:
    with pytest.raises(InvariantViolation, match="2 header blocks for 1"):
        BatchBuilder().add_values([b""], [b"NATS/1.0\r\n\r\n", None])


def test_nothing_stored_for_columns_that_say_nothing() -> None:
    builder = BatchBuilder()
    for _ in range(3):
        builder.add_record(None, timestamp=4)
    batch = builder.build(9)
    assert (batch.header.columns, batch.size) == (0, 96)
    records = RecordBatch.decode(encode(batch))
    assert records.values == records.keys == [None, None, None]
    assert records.timestamps.tolist() == [4, 4, 4]


def test_a_builder_is_empty_after_it_has_built() -> None:
    builder = BatchBuilder()
    builder.add_record(b"v", b"k", encode_headers({"h": b""}), 3)
    builder.build(1)
    assert (builder.count, builder.size_bytes) == (0, 0)
    builder.add_record(b"w")
    records = RecordBatch.decode(encode(builder.build(2)))
    assert (records.values, records.keys, records.headers, records.timestamps.tolist()) == ([b"w"], [None], [{}], [2])


def test_size_counts_empty_records_too() -> None:
    builder = BatchBuilder()
    builder.add_uniform(memoryview(b""), 1000, 0, 0, 14)
    assert builder.size_bytes == 4000


def test_limits_of_the_builder() -> None:
    builder = BatchBuilder()
    with pytest.raises(InvariantViolation, match="0 records"):
        builder.build(1)
    builder.add_uniform(memoryview(b""), MAX_RECORDS + 1, 0, 0, 1)
    with pytest.raises(InvariantViolation, match=str(MAX_RECORDS + 1)):
        builder.build(1)


@pytest.mark.parametrize("timestamp", [1 << 63, -(1 << 63) - 1])
def test_a_timestamp_beyond_64_bits_is_refused_and_adds_nothing(timestamp: int) -> None:
    builder = BatchBuilder()
    with pytest.raises(TidelogError, match=str(timestamp)) as caught:
        builder.add_record(b"v", timestamp=timestamp)
    assert caught.value.code is Code.BAD_REQUEST
    assert builder.count == 0


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_compression_that_does_not_pay_is_left_out(compression: Compression) -> None:
    builder = BatchBuilder()
    builder.add_values([b"short"])
    assert builder.build(1, compression=compression).header.compression is Compression.NONE
    builder.add_values([b"long" * 1000])
    batch = builder.build(1, compression=compression)
    assert batch.header.compression is compression
    assert batch.size < 300


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=4)), max_size=6))
def test_repeated_headers_round_trip(items: list[tuple[str, bytes]]) -> None:
    by_name: dict[str, list[bytes]] = {}
    for name, value in items:
        by_name.setdefault(name, []).append(value)
    decoded = decode_headers(encode_headers(by_name))
    assert decoded == {name: values[-1] for name, values in by_name.items()}
    assert header_items(decoded) == tuple((name, value) for name, values in by_name.items() for value in values)
    assert encode_headers(decoded) == encode_headers(by_name)


def test_every_value_of_a_nats_header_is_read() -> None:
    decoded = decode_headers(b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n")
    assert decoded == {"A": b"2", "B": b"x"}
    assert header_items(decoded) == (("A", b"1"), ("B", b"x"), ("A", b"2"))


@given(HEADERS)
def test_headers_round_trip(headers: dict[str, bytes]) -> None:
    assert decode_headers(encode_headers(headers)) == headers


@given(st.binary() | st.binary().map(lambda tail: b"\x01" + tail) | st.binary().map(lambda tail: b"NATS/1.0" + tail))
def test_headers_of_any_bytes_are_read_and_written_again(element: bytes) -> None:
    """Versions before the rule of today stored any bytes: no reader stops at them, and a copy carries them on."""
    found = decode_headers(element)
    assert decode_headers(encode_headers(found)) == found


@given(st.binary(max_size=20), st.integers(1, 5000))
def test_blocks_of_any_size_are_read_and_written_again(line: bytes, times: int) -> None:
    block = b"NATS/1.0\r\n" + (line + b"\r\n") * times + b"\r\n"
    found = decode_headers(block)
    assert decode_headers(encode_headers(found)) == found
    if block_fault(block) is None:
        assert written_size(block) == len(encode_headers(found)) <= most_written(len(block))
    else:
        assert found == {RAW_HEADERS: block}


@pytest.mark.parametrize(
    "element",
    [b"NATS/2.0\r\nA: b\r\n\r\n", b"x", b"\x01\x05", b"\x01\x01\x00\xff\x00\x00\x00\x00", b"\x01" + bytes(6 * 4097)],
)
def test_headers_that_are_none_are_given_whole(element: bytes) -> None:
    assert decode_headers(element) == {RAW_HEADERS: element}


@given(
    st.lists(st.sampled_from([b"", b"NATS/1.0", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.1\r\n\r\n", b"x"]), min_size=1)
)
def test_blocks_are_judged_together_as_one_by_one(blocks: list[bytes]) -> None:
    joined = Joined.of(blocks)
    assert are_sound(joined.data, joined.sizes) == all(not each or block_fault(each) is None for each in blocks)


@pytest.mark.parametrize("key", ["k" * 65536, "\ud800"])
def test_header_keys_that_cannot_be_written_are_refused(key: str) -> None:
    with pytest.raises(TidelogError, match="header key") as caught:
        encode_headers({key: b""})
    assert caught.value.code is Code.BAD_REQUEST
