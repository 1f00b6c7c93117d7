"""Bytes on disk and on the wire: exact layout, and every flipped bit and every cut is found."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from wire.batch import (
    HEADER_SIZE,
    BatchBuilder,
    Column,
    Compression,
    EncodedBatch,
    RecordBatch,
    control_batch,
    decode_control,
    encode_headers,
    iter_batches,
    parse_header,
    verify_body,
)
from wire.errors import CorruptData
from wire.types import LeaderEpoch, Offset


def encode(batch: EncodedBatch, base_offset: int = 7) -> bytes:
    parts, header = batch.stamp(Offset(base_offset), LeaderEpoch(3))
    encoded = b"".join(parts)
    assert len(encoded) == header.size == batch.size
    assert parse_header(encoded) == header
    return encoded


def verify_all(buffer: bytes | bytearray) -> None:
    for at, header in iter_batches(buffer):
        verify_body(buffer, at, header)


def every_column() -> EncodedBatch:
    builder = BatchBuilder()
    builder.add_record(b"abc", key=b"k", headers=encode_headers({"h": b"v"}), timestamp=20)
    builder.add_record(None, timestamp=10)
    return builder.build(0, producer_id=5, producer_epoch=6, base_sequence=7)


def test_golden_bytes_of_a_batch_with_every_column() -> None:
    body = b"".join(
        [
            struct.pack("<iii4x", 0, 3, 3) + b"abc\0\0\0\0\0",  # VALUE
            struct.pack("<iii4x", 0, 1, 1) + b"k\0\0\0\0\0\0\0",  # KEY
            struct.pack("<qq", 20, 10),  # TIMESTAMP
            struct.pack("<iii4x", 0, 9, 9) + b"\x01\x01\x00h\x01\x00\x00\x00v" + bytes(7),  # HEADERS
            b"\x01" + bytes(7),  # KEY_VALIDITY
            b"\x01" + bytes(7),  # VALUE_VALIDITY
        ]
    )
    columns = 1 | 2 | 4 | 8 | 32 | 64
    header = struct.pack("<qQIBBHII", 7, 3, len(body), 1, 0, 0, columns, crc32c(body))
    header += struct.pack("<IIqqqii20x", 2, 0, 10, 20, 5, 6, 7)
    assert encode(every_column()) == header + struct.pack("<I", crc32c(header)) + body


def test_golden_bytes_of_bare_publishes() -> None:
    builder = BatchBuilder()
    builder.add_uniform(memoryview(b"..ab..cd"), 2, 2, 2, 4)
    expected = (
        "0700000000000000 0300000000000000 18000000 01 00 0000 01000000 51465e96 02000000 00000000"
        "0900000000000000 0900000000000000 ffffffffffffffff ffffffff ffffffff"
        "0000000000000000000000000000000000000000 f12aad1e"
        "00000000 02000000 04000000 00000000 6162636400000000"
    )
    assert encode(builder.build(9)).hex() == expected.replace(" ", "")


def test_the_append_time_comes_from_the_leader_and_never_from_a_client() -> None:
    stamped = b"".join(every_column().stamp(Offset(7), LeaderEpoch(3), 1 << 60)[0])
    assert parse_header(stamped).append_time == 1 << 60
    assert struct.unpack_from("<q", stamped, 72) == (1 << 60,)
    assert EncodedBatch.from_bytes(stamped).header.append_time == 0
    assert parse_header(encode(every_column())).append_time == 0


def test_the_stamp_changes_nothing_but_the_header() -> None:
    batch = every_column()
    (first, *body), _ = batch.stamp(Offset(0), LeaderEpoch(1))
    (second, *same_body), header = batch.stamp(Offset(1 << 40), LeaderEpoch(9))
    assert all(a is b for a, b in zip(body, same_body, strict=True))
    assert bytes(first)[16:92] == bytes(second)[16:92]
    assert (header.base_offset, header.end_offset, header.leader_epoch) == (1 << 40, (1 << 40) + 2, 9)


def compressible(compression: Compression) -> EncodedBatch:
    builder = BatchBuilder()
    builder.add_values([b"x" * 100])
    return builder.build(1, compression=compression)


@pytest.mark.parametrize(
    "batch",
    [every_column(), compressible(Compression.LZ4), compressible(Compression.ZSTD)],
    ids=["columns", "lz4", "zstd"],
)
def test_every_flipped_bit_is_found(batch: EncodedBatch) -> None:
    encoded = bytearray(encode(batch))
    RecordBatch.decode(encoded)
    for bit in range(len(encoded) * 8):
        encoded[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            RecordBatch.decode(encoded)
        with pytest.raises(CorruptData):  # as in a log and a follower
            verify_all(encoded)
        with pytest.raises(CorruptData):  # as in a leader
            EncodedBatch.from_bytes(encoded)
        encoded[bit // 8] ^= 1 << bit % 8


def test_every_cut_is_found() -> None:
    encoded = encode(every_column())
    for size in range(len(encoded)):
        with pytest.raises(CorruptData):
            RecordBatch.decode(encoded[:size])
        with pytest.raises(CorruptData):
            EncodedBatch.from_bytes(encoded[:size])
    for size in range(1, len(encoded)):
        torn = iter_batches(encoded + encoded[:size])
        assert next(torn)[0] == 0
        with pytest.raises(CorruptData, match="cut off"):
            next(torn)


def test_batches_follow_each_other() -> None:
    first, second = encode(every_column(), 0), encode(compressible(Compression.LZ4), 2)
    buffer = b"16 bytes before." + first + second
    assert [(at, header.base_offset) for at, header in iter_batches(buffer, 16)] == [(16, 0), (16 + len(first), 2)]
    assert RecordBatch.decode(buffer, 16 + len(first)).values == [b"x" * 100]
    assert list(iter_batches(b"")) == []


def test_a_header_outside_the_buffer_is_cut_off() -> None:
    for at in (-1, 1, 1000):
        with pytest.raises(CorruptData, match="cut off"):
            parse_header(bytes(HEADER_SIZE), at)


def test_preallocated_zeros_are_no_batch() -> None:
    with pytest.raises(CorruptData, match="magic 0"):
        parse_header(bytes(4096))


def test_a_control_batch_takes_one_offset_and_has_no_records() -> None:
    batch = encode(control_batch(513, 2, b"payload", timestamp=4), base_offset=41)
    assert batch[HEADER_SIZE:] == b"\x01\x02\x02\x00\x07\x00\x00\x00payload\0"
    header = parse_header(batch)
    assert header.is_control
    assert header.end_offset == 42
    control = decode_control(batch)
    assert (control.type, control.version, control.payload) == (513, 2, b"payload")
    records = RecordBatch.decode(batch)
    assert len(records) == 0
    assert (records.values, records.keys, records.headers, records.offsets.tolist()) == ([], [], [], [])
    assert records.to_arrow().num_rows == 0


def test_a_batch_of_records_is_no_control_batch() -> None:
    with pytest.raises(CorruptData, match="no control batch"):
        decode_control(encode(every_column()))


def test_column_bits_agree_with_the_layout() -> None:
    assert {column.name: int(column) for column in Column} == {
        "VALUE": 1,
        "KEY": 2,
        "TIMESTAMP": 4,
        "HEADERS": 8,
        "OFFSET_DELTA": 16,
        "KEY_VALIDITY": 32,
        "VALUE_VALIDITY": 64,
        "HOLES": 128,
    }
