from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import CorruptData
from wire.partition_messages.append import MAX_REQUEST_BYTES, decode_append, encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest

REQUEST = AppendRequest(stream_incarnation=3, leader_epoch=2, acks=AppendRequest.LEADER, confirm_timeout_ms=20)


def test_layout() -> None:
    content = REQUEST.SerializeToString()
    message = b"".join(encode_append(REQUEST, [b"batch"]))
    assert message == struct.pack("<I", len(content)) + content + bytes(-(4 + len(content)) % 8) + b"batch"


@given(st.integers(0, 2**64 - 1), st.lists(st.binary(max_size=9)))
def test_round_trip(incarnation: int, parts: list[bytes]) -> None:
    request = AppendRequest(stream_incarnation=incarnation, expected_last_offset=0)
    encoded = encode_append(request, parts)
    assert len(encoded[0]) % 8 == 0
    decoded, batch = decode_append(b"".join(encoded))
    assert decoded == request
    assert decoded.HasField("expected_last_offset")
    assert bytes(batch) == b"".join(parts)


def test_every_cut_in_the_preamble_is_corrupt() -> None:
    (preamble,) = encode_append(REQUEST, [])
    for size in range(len(preamble)):
        with pytest.raises(CorruptData):
            decode_append(preamble[:size])


@pytest.mark.parametrize("length", [MAX_REQUEST_BYTES + 1, 0xFFFFFFFF])
def test_a_long_preamble_is_refused(length: int) -> None:
    with pytest.raises(CorruptData, match=str(length)):
        decode_append(struct.pack("<I", length) + bytes(MAX_REQUEST_BYTES + 16))


@given(st.binary(max_size=64))
def test_any_bytes_decode_or_are_corrupt(payload: bytes) -> None:
    for message in (payload, struct.pack("<I", max(len(payload) - 4, 0)) + payload):
        with contextlib.suppress(CorruptData):
            decode_append(message)
