"""Message ids in the headers of records, and batches that lose repetitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.batch import (
    MAX_MESSAGE_IDS,
    BatchBuilder,
    Compression,
    EncodedBatch,
    RecordBatch,
    encode_headers,
    parse_header,
    with_message_id,
    without_repetitions,
)
from wire.batch.message_ids import message_id_of
from wire.errors import TidelogError
from wire.types import LeaderEpoch, Offset


def received(*ids: bytes | None, hinted: bool = True, compression: Compression = Compression.NONE) -> EncodedBatch:
    builder = BatchBuilder()
    builder.has_message_ids = hinted
    for number, each in enumerate(ids):
        builder.add_record(b"%d" % number, b"k", b"" if each is None else with_message_id(b"", each))
    batch = builder.build(7, producer_id=1, producer_epoch=0, base_sequence=5, compression=compression)
    return EncodedBatch.from_bytes(b"".join(map(bytes, batch.stamp(Offset(0), LeaderEpoch(0))[0])))


@pytest.mark.parametrize(
    ("element", "found"),
    [
        (b"", None),
        (with_message_id(b"", b"1"), b"1"),
        (with_message_id(encode_headers({"h": b"v"}), b"1"), b"1"),
        (encode_headers({"h": b"v", "Nats-Msg-Id": [b"1", b"2"]}), b"1"),
        (encode_headers({"h": b"Nats-Msg-Id"}), None),
        (encode_headers({"Nats-Msg-Id": b""}), None),
        (b"NATS/1.0\r\nTrace: 1\r\nNats-Msg-Id: 1 \r\n\r\n", b"1 "),
        (b"NATS/1.0\r\nNats-Msg-Id:\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id:  1\r\n\r\n", b"1"),
        (b"NATS/1.0\r\nNats-Msg-Id:\t1\r\n\r\n", b"\t1"),
        (b"NATS/1.0\r\nNats-Msg-Id: \t1\r\n\r\n", b"\t1"),
        (b"NATS/1.0\r\nNats-Msg-Id: a\nb\rc\r\n\r\n", b"a\nb\rc"),
        (b"NATS/1.0\r\nNats-Msg-Id: cut off", b"cut off"),
        (b"NATS/1.0\r\nnats-msg-id: 1\r\n\r\n", None),
    ],
)
def test_where_an_id_is_found(element: bytes, found: bytes | None) -> None:
    assert message_id_of(element) == found


@given(st.binary(max_size=80))
def test_nothing_that_lies_in_a_log_is_fatal(element: bytes) -> None:
    message_id_of(element)
    message_id_of(with_message_id(b"", b"x")[: len(element)])


def test_a_batch_says_whether_it_may_have_ids() -> None:
    batch = received(b"1")
    parts, header = batch.stamp(Offset(9), LeaderEpoch(1), 3)
    assert header.has_message_ids
    assert parse_header(bytes(parts[0])) == header
    assert batch.columns is not None
    assert RecordBatch.decode(b"".join(map(bytes, parts))).message_ids() == [(9, b"1")]
    unhinted = received(b"1", hinted=False)
    assert unhinted.columns is None
    assert not unhinted.header.has_message_ids


def test_a_batch_with_ids_has_so_many_records() -> None:
    received(*[None] * MAX_MESSAGE_IDS)
    received(*[None] * (MAX_MESSAGE_IDS + 1), hinted=False)
    with pytest.raises(TidelogError, match="the limit is 4096; send fewer"):
        received(*[None] * (MAX_MESSAGE_IDS + 1))


@pytest.mark.parametrize("compression", Compression)
@given(st.sets(st.integers(0, 5)))
def test_repetitions_leave_holes(compression: Compression, repeated: set[int]) -> None:
    batch = received(*[b"%d" % number for number in range(6)], compression=compression)
    left = without_repetitions(batch, repeated)
    data = b"".join(map(bytes, left.stamp(Offset(100), LeaderEpoch(1))[0]))
    header = parse_header(data)
    assert (header.end_offset, header.producer_id, header.base_sequence) == (106, 1, 5)
    records = RecordBatch.decode(data)
    kept = [number for number in range(6) if number not in repeated]
    assert records.values == [b"%d" % number for number in kept]
    assert records.message_ids() == [(100 + number, b"%d" % number) for number in kept]
    assert header.is_control == (not kept)
