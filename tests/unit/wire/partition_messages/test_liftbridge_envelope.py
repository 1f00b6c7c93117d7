"""Liftbridge envelopes: layout, and no damage that passes for something else."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import CorruptData
from wire.messaging.transport import UniformRun
from wire.partition_messages.liftbridge_envelope import (
    MAGIC,
    any_envelope,
    decode_ack,
    decode_publish,
    encode_ack,
    encode_publish,
    is_envelope,
)
from wire.protobuf.tidelog_pb2 import ALL, Ack, Message

MESSAGE = Message(key=b"k", value=b"v", headers={"h": b"1"}, ackInbox="inbox", correlationId="c", ackPolicy=ALL)


def test_layout_with_crc() -> None:
    content = MESSAGE.SerializeToString()
    expected = MAGIC + b"\x00\x0c\x01\x00" + crc32c(content).to_bytes(4, "big") + content
    assert encode_publish(MESSAGE) == expected
    assert decode_publish(expected) == MESSAGE


def test_layout_without_crc() -> None:
    expected = bytes.fromhex("b90e43b4 00 08 00 00") + MESSAGE.SerializeToString()
    assert encode_publish(MESSAGE, crc=False) == expected
    assert decode_publish(memoryview(expected)) == MESSAGE


def test_acks() -> None:
    ack = Ack(stream="s", offset=7, partition=2, errorCode="READONLY")
    assert encode_ack(ack)[:8] == MAGIC + b"\x00\x0c\x01\x01"
    assert decode_ack(encode_ack(ack)) == ack


def test_an_ack_is_no_publish_and_a_publish_no_ack() -> None:
    with pytest.raises(CorruptData, match="message type 1, not PUBLISH"):
        decode_publish(encode_ack(Ack()))
    with pytest.raises(CorruptData, match="message type 0, not ACK"):
        decode_ack(encode_publish(Message()))


def test_no_flipped_bit_behind_the_magic_passes() -> None:
    envelope = bytearray(encode_publish(MESSAGE))
    for bit in range(len(MAGIC) * 8, len(envelope) * 8):
        envelope[bit // 8] ^= 1 << bit % 8
        assert is_envelope(envelope)
        with pytest.raises(CorruptData):
            decode_publish(envelope)
        envelope[bit // 8] ^= 1 << bit % 8


def test_no_cut_passes() -> None:
    envelope = encode_publish(MESSAGE)
    for size in range(len(MAGIC), len(envelope)):
        assert is_envelope(envelope[:size])
        with pytest.raises(CorruptData):
            decode_publish(envelope[:size])


@given(st.binary(max_size=40), st.sampled_from([MAGIC, MAGIC + b"\0", MAGIC + b"\0\x08\0\0"]))
def test_whatever_begins_with_the_magic_decodes_or_is_refused(tail: bytes, head: bytes) -> None:
    assert is_envelope(head + tail)
    try:
        decode_publish(head + tail)
    except CorruptData:
        pass
    else:
        assert len(head) == 8


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("01 08 00 00", "version 1"),
        ("00 07 00 00", "header of 7"),
        ("00 0c 00 00", "header of 12"),
        ("00 08 01 00", "header of 8"),
        ("00 ff 01 00", "header of 255"),
        ("00 08 02 00", "flags 0x02"),
        ("00 08 00 02", "message type 2"),
    ],
)
def test_headers_of_other_forms_are_refused(header: str, match: str) -> None:
    with pytest.raises(CorruptData, match=match):
        decode_publish(MAGIC + bytes.fromhex(header) + bytes(8))


@pytest.mark.parametrize("payload", [b"", b"plain", MAGIC[:3], MAGIC[1:], b" " + MAGIC])
def test_plain_payloads_are_none(payload: bytes) -> None:
    assert not is_envelope(payload)
    assert not is_envelope(memoryview(payload))
    with pytest.raises(CorruptData):
        decode_publish(payload)


@given(st.lists(st.sampled_from([MAGIC + b"xx", b"xx" + MAGIC, b"plain!"]), min_size=1), st.integers(0, 3))
def test_an_envelope_among_equal_sizes_is_found(payloads: list[bytes], gap: int) -> None:
    block = memoryview(b"MSG " + b"".join(payload + b"." * gap for payload in payloads))
    found = any_envelope(UniformRun(block, len(payloads), 6 + gap, 4, 6, None))
    assert found == any(map(is_envelope, payloads))


def test_payloads_shorter_than_the_magic_are_no_envelopes() -> None:
    assert not any_envelope(UniformRun(memoryview(MAGIC * 3), 4, 3, 0, 3, None))
