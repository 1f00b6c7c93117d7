"""Batches with right CRCs and wrong contents, as a hostile or buggy client can send them."""

from __future__ import annotations

import struct
import time
import tracemalloc

import lz4.block
import numpy as np
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import (
    HEADER_SIZE,
    MAX_BODY_BYTES,
    MAX_RECORDS,
    BatchBuilder,
    Compression,
    EncodedBatch,
    ReceivedBatch,
    RecordBatch,
    control_batch,
    decode_control,
    decode_headers,
    encode_headers,
    parse_header,
)
from wire.batch.encoded import RecordLimit
from wire.batch.record_headers import RAW_HEADERS
from wire.error_details import LIMIT
from wire.errors import Code, CorruptData, TidelogError
from wire.types import LeaderEpoch, Offset

FIELDS = {
    "base_offset": ("q", 0),
    "leader_epoch": ("Q", 0),
    "length": ("I", None),
    "magic": ("B", 1),
    "zero": ("B", 0),
    "attributes": ("H", 0),
    "columns": ("I", 0),
    "body_crc": ("I", None),
    "record_count": ("I", 1),
    "offset_span": ("I", 0),
    "first_timestamp": ("q", 0),
    "last_timestamp": ("q", 0),
    "producer_id": ("q", -1),
    "producer_epoch": ("i", -1),
    "base_sequence": ("i", -1),
}


def forge(body: bytes, **fields: int) -> bytes:
    """A batch with correct CRCs and any header fields."""
    values = {"length": len(body), "body_crc": crc32c(body), **fields}
    formats = "".join(code for code, _ in FIELDS.values())
    header = struct.pack(f"<{formats}20x", *(values.get(name, default) for name, (_, default) in FIELDS.items()))
    return header + struct.pack("<I", crc32c(header)) + body


def i32(*numbers: int) -> bytes:
    packed = struct.pack(f"<{len(numbers)}i", *numbers)
    return packed + bytes(-len(packed) % 8)


def refuse(batch: bytes, match: str) -> None:
    """Neither a leader takes it nor a reader decodes it."""
    with pytest.raises((CorruptData, TidelogError)) as refused:
        EncodedBatch.from_bytes(batch)
    if isinstance(refused.value, TidelogError):
        assert refused.value.code is Code.LIMIT_REACHED
    else:
        refused.match(match)
    with pytest.raises(CorruptData, match=match):
        RecordBatch.decode(batch)


def test_the_forger_makes_good_batches_too() -> None:
    batch = forge(i32(0, 2) + b"ab".ljust(8, b"\0"), columns=1)
    assert RecordBatch.decode(batch).values == [b"ab"]
    assert EncodedBatch.from_bytes(batch).record_count == 1


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"base_offset": -1}, "base offset -1 is negative"),
        ({"base_offset": (1 << 63) - 1}, "beyond 64 bits"),
        ({"zero": 1}, "byte 21"),
        ({"magic": 2}, "magic 2"),
        ({"length": MAX_BODY_BYTES + 8}, "limit"),
        ({"length": 0xFFFFFFF8}, "limit"),
        ({"length": 4}, "multiple of 8"),
        ({"record_count": 0}, "0 records"),
        ({"record_count": MAX_RECORDS + 1}, "records, not 1 to"),
        ({"record_count": 0xFFFFFFFF}, "records, not 1 to"),
        ({"record_count": 2, "offset_span": 1}, "span of 1"),
        ({"first_timestamp": 2, "last_timestamp": 1}, "after the last"),
        ({"last_timestamp": 1}, "no column TIMESTAMP"),
        ({"producer_id": -2}, "negative"),
        ({"producer_id": 1, "producer_epoch": -1, "base_sequence": 0}, "negative"),
        ({"producer_id": 1, "producer_epoch": 0, "base_sequence": -1}, "negative"),
        ({"columns": 256}, "unknown column bit 0x100"),
        ({"columns": 1 << 31}, "unknown column bit 0x80000000"),
        ({"attributes": 3}, "unknown compression 3"),
        ({"attributes": 16}, "encrypted"),
        ({"attributes": 64}, "unknown attributes 0x40"),
        ({"attributes": 1}, "compressed body of 0 bytes"),
    ],
)
def test_headers_with_impossible_fields(fields: dict[str, int], match: str) -> None:
    refuse(forge(b"", **fields), match)


@pytest.mark.parametrize(
    ("body", "fields", "match"),
    [
        (b"", {"columns": 1}, "VALUE goes to byte 8 of a body of 0"),
        (i32(0, 2), {"columns": 1}, "VALUE goes to byte 10 of a body of 8"),
        (i32(0, 0x7FFFFFFF), {"columns": 1}, "VALUE goes to byte"),
        (i32(0, -1) + bytes(8), {"columns": 1}, "VALUE do not grow from 0"),
        (i32(1, 2) + bytes(8), {"columns": 1}, "VALUE do not grow from 0"),
        (i32(-8, 0) + bytes(8), {"columns": 1}, "VALUE do not grow from 0"),
        (i32(0, 8, 4) + bytes(8), {"columns": 1, "record_count": 2}, "VALUE do not grow from 0"),
        (i32(0, 0) + bytes(8), {"columns": 1}, "columns end at byte 8 of a body of 16"),
        (bytes(8), {"columns": 0}, "columns end at byte 0 of a body of 8"),
        (i32(0, 2), {"columns": 2}, "KEY goes to byte 10"),
        (i32(0, 9) + bytes(8), {"columns": 8}, "HEADERS goes to byte 17"),
        (b"", {"columns": 1, "record_count": MAX_RECORDS}, "VALUE goes to byte"),
        (bytes(8), {"columns": 4, "record_count": 2}, "TIMESTAMP goes to byte 16"),
        (
            struct.pack("<qq", 1, 3),
            {"columns": 4, "record_count": 2, "first_timestamp": 1, "last_timestamp": 2},
            "bounds",
        ),
        (
            struct.pack("<qq", 0, 2),
            {"columns": 4, "record_count": 2, "first_timestamp": 1, "last_timestamp": 2},
            "bounds",
        ),
        (bytes(8), {"columns": 32}, "KEY_VALIDITY without KEY"),
        (bytes(8), {"columns": 64}, "VALUE_VALIDITY without VALUE"),
        (i32(*[0] * 66), {"columns": 65, "record_count": 65}, "VALUE_VALIDITY goes to byte"),
    ],
)
def test_bodies_that_do_not_fit_their_header(body: bytes, fields: dict[str, int], match: str) -> None:
    refuse(forge(body, **fields), match)


def test_a_client_may_not_write_control_batches() -> None:
    with pytest.raises(CorruptData, match="control"):
        EncodedBatch.from_bytes(b"".join(control_batch(1, 1, b"").stamp(Offset(0), LeaderEpoch(0))[0]))


@pytest.mark.parametrize("fields", [{"columns": 16, "record_count": 2, "offset_span": 9}, {"offset_span": 9}])
def test_a_client_may_not_leave_holes_between_offsets(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptData, match="holes"):
        EncodedBatch.from_bytes(forge(i32(0, 8), **fields))


def test_a_client_sends_one_batch() -> None:
    batch = forge(b"")
    for more in (b"\0", batch):
        with pytest.raises(CorruptData, match="something else"):
            EncodedBatch.from_bytes(batch + more)


def test_the_clients_stamp_is_ignored() -> None:
    header = EncodedBatch.from_bytes(forge(b"", base_offset=99, leader_epoch=99)).header
    assert (header.base_offset, header.leader_epoch) == (0, 0)


def test_reserved_bytes_of_a_client_are_not_stored() -> None:
    batch = bytearray(forge(b""))
    batch[80:92] = b"\xfe" + b"\xff" * 11
    batch[92:] = struct.pack("<I", crc32c(batch[:92]))
    stamped = b"".join(EncodedBatch.from_bytes(batch).stamp(Offset(0), LeaderEpoch(0))[0])
    assert stamped == forge(b"")


def test_headers_that_no_reader_could_decode_are_refused_by_the_leader() -> None:
    builder = BatchBuilder()
    builder.add_record(b"v", headers=b"\x01\xff\xffx")
    with pytest.raises(CorruptData, match="record headers"):
        EncodedBatch.from_bytes(b"".join(builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]))


def test_the_largest_record_is_measured_with_key_and_headers() -> None:
    builder = BatchBuilder()
    builder.add_record(b"v" * 10)
    builder.add_record(b"v" * 8, b"kk", encode_headers({"h": b"v"}))  # 8 + 2 + 9
    batch = b"".join(builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0])
    assert EncodedBatch.from_bytes(batch, record_limit=RecordLimit(19)).record_count == 2
    with pytest.raises(
        TidelogError, match=r"record 1 of the batch of 19 bytes.*above 18, the stream's max_record_bytes"
    ) as caught:
        EncodedBatch.from_bytes(batch, record_limit=RecordLimit(1000, 18))
    assert caught.value.code is Code.RECORD_TOO_LARGE


# Holes between offsets: compaction writes them, readers read them


def test_offsets_with_holes() -> None:
    body = i32(0, 1, 2, 3) + b"abc".ljust(8, b"\0") + i32(0, 4, 7)
    batch = RecordBatch.decode(forge(body, base_offset=100, columns=17, record_count=3, offset_span=8))
    assert batch.offsets.tolist() == [100, 104, 107]
    assert batch.header.end_offset == 108
    part = batch.slice(Offset(101), Offset(107))
    assert (part.values, part.offsets.tolist()) == ([b"b"], [104])
    assert part.to_arrow().column("offset").to_pylist() == [104]


@pytest.mark.parametrize(
    ("deltas", "span"), [((0, 0), 1), ((1, 1), 2), ((3, 1), 2), ((-1, 1), 2), ((0, 4), 4), ((0, 4), 0)]
)
def test_offset_deltas_that_cannot_be(deltas: tuple[int, int], span: int) -> None:
    with pytest.raises(CorruptData, match=r"OFFSET_DELTA|span"):
        RecordBatch.decode(forge(i32(*deltas), columns=16, record_count=2, offset_span=span))


def test_offsets_with_holes_said_by_the_holes() -> None:
    body = i32(0, 1, 2) + b"ab".ljust(8, b"\0") + i32(0, 0, 0, 1, 3, 4) + b""
    batch = RecordBatch.decode(forge(body, base_offset=100, columns=131, record_count=2, offset_span=5))
    assert (batch.offsets.tolist(), batch.values, batch.keys) == ([100, 102], [b"a", b"b"], [b"", b""])
    assert batch.to_arrow().column("offset").to_pylist() == [100, 102]


@pytest.mark.parametrize(
    ("holes", "span", "columns"),
    [
        ((1, 1), 4, 130), ((3, 1), 4, 130), ((-1, 1), 4, 130), ((0, 4), 4, 130),
        ((), 0, 130), ((), 2, 130), ((0,), 4, 130), ((0, 1), 4, 128), ((0, 1), 4, 130 + 16), ((), 1 << 31, 130),
    ],
)  # fmt: skip
def test_holes_that_cannot_be(holes: tuple[int, ...], span: int, columns: int) -> None:
    with pytest.raises(CorruptData, match=r"HOLES|span|KEY"):
        RecordBatch.decode(forge(i32(0, 0, 0, *holes), columns=columns, record_count=2, offset_span=span))


def test_a_client_may_not_write_holes_either() -> None:
    with pytest.raises(CorruptData, match="holes"):
        EncodedBatch.from_bytes(forge(i32(0, 0, 0), columns=130, record_count=2))


def test_a_span_without_deltas_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="holes"):
        RecordBatch.decode(forge(b"", offset_span=2))


# Compression


def compressed(packed: bytes, size: int, packed_size: int | None = None) -> bytes:
    body = struct.pack("<II", size, len(packed) if packed_size is None else packed_size) + packed
    return body + bytes(-len(body) % 8)


GOOD = i32(0, 64) + b"a" * 64
LZ4 = lz4.block.compress(GOOD, store_size=False)
ZSTD = zstandard.ZstdCompressor().compress(GOOD)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(GOOD)


@pytest.mark.parametrize(("packed", "codec"), [(LZ4, Compression.LZ4), (ZSTD, Compression.ZSTD)])
def test_compressed_bodies_decode(packed: bytes, codec: Compression) -> None:
    batch = forge(compressed(packed, len(GOOD)), columns=1, attributes=codec)
    assert RecordBatch.decode(batch).values == [b"a" * 64]


@pytest.mark.parametrize(
    ("packed", "codec"), [(LZ4, 1), (ZSTD, 2), (UNSIZED, 2), (b"", 1), (b"", 2), (b"\xff" * 40, 1)]
)
@pytest.mark.parametrize("size", [0, len(GOOD) - 1, len(GOOD) + 1, MAX_BODY_BYTES, MAX_BODY_BYTES + 1, 0xFFFFFFFF])
def test_a_wrong_size_before_compression_is_corrupt(packed: bytes, codec: int, size: int) -> None:
    refuse(forge(compressed(packed, size), columns=1, attributes=codec), "zstd|decompress")


@pytest.mark.parametrize("codec", [1, 2])
@pytest.mark.parametrize("packed_size", [0, 1000, 0xFFFFFFFF])
def test_a_wrong_size_after_compression_is_corrupt(codec: int, packed_size: int) -> None:
    packed = LZ4 if codec == 1 else ZSTD
    refuse(forge(compressed(packed, len(GOOD), packed_size), columns=1, attributes=codec), "compressed bytes in a body")


@pytest.mark.parametrize("codec", [1, 2])
def test_a_bomb_is_refused_before_it_takes_memory(codec: int) -> None:
    size = 64 << 20
    plain = bytes(size)
    packed = lz4.block.compress(plain, store_size=False) if codec == 1 else zstandard.ZstdCompressor().compress(plain)
    honest = forge(compressed(packed, size), columns=1, attributes=codec)
    liar = forge(compressed(packed, 1000), columns=1, attributes=codec)
    del plain
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData, match="limit is 1048576"):
            EncodedBatch.from_bytes(honest, max_body_bytes=1 << 20)
        with pytest.raises(CorruptData):
            EncodedBatch.from_bytes(liar, max_body_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_few_bytes_do_not_become_many() -> None:
    """A reader would take the work of what they say, and whoever sends them none."""
    size = 1 << 20
    packed = zstandard.ZstdCompressor().compress(i32(*[0] * (size // 4)))
    with pytest.raises(TidelogError, match=r"has 1048576 when decompressed, the limit is 65536") as refused:
        EncodedBatch.from_bytes(forge(compressed(packed, size), columns=1, attributes=2, record_count=size // 4 - 1))
    assert refused.value.code is Code.LIMIT_REACHED
    assert refused.value.detail(LIMIT) == "batch_expansion"
    with pytest.raises(TidelogError, match=r"holds 1048576 records, the limit is 65536") as refused:
        EncodedBatch.from_bytes(forge(b"", record_count=MAX_RECORDS))
    assert refused.value.detail(LIMIT) == "batch_records"
    assert EncodedBatch.from_bytes(forge(b"", record_count=1 << 16)).record_count == 1 << 16


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("values", [[bytes(1 << 20)], [b""] * 300_000, [b"x" * 100] * 10_000])
def test_whatever_the_builder_makes_is_dense_enough(values: list[bytes], compression: Compression) -> None:
    builder = BatchBuilder()
    builder.add_values(values)
    batch = b"".join(builder.build(1, compression=compression).stamp(Offset(0), LeaderEpoch(0))[0])
    assert EncodedBatch.from_bytes(batch).record_count == len(values)
    assert RecordBatch.decode(batch).values == values


def test_heavy_batches_are_known_before_they_are_decoded() -> None:
    def heavy(values: list[bytes], compression: Compression, headers: bytes = b"") -> bool:
        builder = BatchBuilder()
        for value in values:
            builder.add_record(value, headers=headers)
        batch = b"".join(builder.build(1, compression=compression).stamp(Offset(0), LeaderEpoch(0))[0])
        return ReceivedBatch(batch).is_heavy

    assert heavy([bytes(1000)] * 1000, Compression.ZSTD)
    assert not heavy([bytes(1000)] * 1000, Compression.NONE), "its columns are only looked at as a whole"
    assert not heavy([bytes(1000)] * 100, Compression.ZSTD)
    assert heavy([b""] * 5000, Compression.NONE, encode_headers({"a": b""})), "headers are looked at one by one"


def batch_of(elements: list[bytes], compression: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder()
    for element in elements:
        builder.add_record(b"", headers=element)
    return b"".join(builder.build(1, compression=compression).stamp(Offset(0), LeaderEpoch(0))[0])


@pytest.mark.parametrize("records", [1, 20])
def test_a_record_has_only_so_many_headers(records: int) -> None:
    """A message of 25 KB would hold the one thread that decodes for a second."""
    plain, item = [b""] * records, bytes(6)
    batch = batch_of([*plain, *[b"\x01" + item * 900_000] * 1, *plain], Compression.LZ4)
    assert len(batch) < 30_000
    began = time.thread_time()
    with pytest.raises(TidelogError, match="more than 4096 headers") as refused:
        EncodedBatch.from_bytes(batch)
    assert time.thread_time() - began < 0.3
    assert (refused.value.code, refused.value.detail(LIMIT)) == (Code.LIMIT_REACHED, "record_headers")
    for many in (1, records):
        EncodedBatch.from_bytes(batch_of([b"\x01" + item * 4096] * many))
        with pytest.raises(TidelogError, match="more than 4096 headers"):
            EncodedBatch.from_bytes(batch_of([*[b"\x01" + item * 4096] * many, b"\x01" + item * 4097]))


def test_many_records_with_headers_are_checked_together() -> None:
    batch = batch_of([b"\x01" + bytes(6) * 4000] * 300, Compression.LZ4)
    began = time.thread_time()
    EncodedBatch.from_bytes(batch)
    assert time.thread_time() - began < 0.5, "1.2 s and more one by one"


ELEMENTS = st.one_of(
    st.just(b""),
    st.just(b"NATS/1.0\r\nA: 1\r\n\r\n"),
    st.binary(max_size=12),
    st.binary(max_size=12).map(lambda raw: b"\x01" + raw),
    st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=4).map(encode_headers),
    st.tuples(st.binary(max_size=3), st.binary(max_size=2)).map(
        lambda pair: b"\x01" + struct.pack("<H", len(pair[0])) + pair[0] + struct.pack("<I", len(pair[1])) + pair[1]
    ),
)


@given(st.lists(ELEMENTS, min_size=1, max_size=8), st.sampled_from([1, 10]))
def test_headers_are_taken_when_all_of_them_decode(elements: list[bytes], times: int) -> None:
    """However many records there are, and so however they are checked."""
    batch = batch_of(elements * times)
    if any(RAW_HEADERS in decode_headers(element) for element in elements):
        with pytest.raises(CorruptData):
            EncodedBatch.from_bytes(batch)
    else:
        EncodedBatch.from_bytes(batch)


def test_a_block_in_a_batch_has_the_limits_of_one_that_is_published() -> None:
    lines = b"a:1\r\n" * 4096
    EncodedBatch.from_bytes(batch_of([b"NATS/1.0\r\n" + lines + b"\r\n"]))
    with pytest.raises(TidelogError, match="4097 headers") as refused:
        EncodedBatch.from_bytes(batch_of([b"NATS/1.0\r\n" + lines + b"a:1\r\n\r\n"]))
    assert refused.value.detail(LIMIT) == "record_headers"
    written = len(encode_headers({"a": [b"1"] * 4096}))
    batch = batch_of([b"NATS/1.0\r\n" + lines + b"\r\n"])
    EncodedBatch.from_bytes(batch, record_limit=RecordLimit(written))
    with pytest.raises(TidelogError, match=f"{written} bytes"):
        EncodedBatch.from_bytes(batch, record_limit=RecordLimit(written - 1))


def test_the_limit_holds_without_compression_too() -> None:
    with pytest.raises(CorruptData, match="limit is 64"):
        EncodedBatch.from_bytes(forge(GOOD, columns=1), max_body_bytes=64)


# Anything at all


@given(
    body=st.binary(max_size=96).map(lambda raw: raw[: len(raw) // 8 * 8]),
    small=st.lists(st.integers(-1, 40), max_size=12),
    columns=st.integers(0, 255),
    count=st.integers(0, 12),
    attributes=st.integers(0, 63),
    span=st.sampled_from([0, 0, 0, 3, 40]),
    stamps=st.tuples(st.integers(-2, 2), st.integers(-2, 2)),
)
def test_any_body_behind_good_crcs_decodes_or_is_corrupt(
    body: bytes,
    small: list[int],
    columns: int,
    count: int,
    attributes: int,
    span: int,
    stamps: tuple[int, int],
) -> None:
    batch = forge(
        i32(*small) + body,
        columns=columns,
        record_count=count,
        attributes=attributes,
        offset_span=span,
        first_timestamp=stamps[0],
        last_timestamp=stamps[1],
    )
    try:
        accepted = EncodedBatch.from_bytes(batch, record_limit=RecordLimit(30))
    except (CorruptData, TidelogError):
        accepted = None
    try:
        records = RecordBatch.decode(batch)
    except CorruptData:
        assert accepted is None
        return
    assert len(records.values) == len(records.keys) == len(records.timestamps) == len(records.offsets)
    assert np.all(np.diff(records.offsets) > 0)
    records.to_arrow().validate(full=True)
    if accepted is not None:
        assert len(records.headers) == accepted.record_count


@given(st.binary(max_size=300))
def test_any_bytes_are_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptData):
        EncodedBatch.from_bytes(raw)


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"", {}),
        (struct.pack("<HHI", 1, 1, 9), {}),
        (struct.pack("<HHI", 1, 1, 0xFFFFFFFF), {}),
        (struct.pack("<HHI", 1, 1, 0), {"columns": 1}),
        (struct.pack("<HHI", 1, 1, 0), {"record_count": 2}),
        (struct.pack("<HHI", 1, 1, 0), {"attributes": 9}),
    ],
)
def test_control_batches_that_cannot_be(body: bytes, fields: dict[str, int]) -> None:
    with pytest.raises(CorruptData):
        decode_control(forge(body, **{"attributes": 8, **fields}))


def test_logs_and_followers_copy_unknown_codecs() -> None:
    newer = forge(bytes(8), columns=1 << 20, attributes=1 << 9 | 5)
    header = parse_header(newer)
    assert (header.columns, header.size) == (1 << 20, HEADER_SIZE + 8)
