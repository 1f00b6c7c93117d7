from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import CorruptData
from wire.partition_messages.replication import HEADER_SIZE, decode_header, encode_header
from wire.types import LeaderEpoch, Offset


def test_layout_is_big_endian_and_inclusive() -> None:
    assert encode_header(LeaderEpoch(258), Offset(0)).hex() == "0000000000000102" + "ff" * 8
    assert encode_header(LeaderEpoch(1), Offset(0x1000)).hex() == "0000000000000001" + "0000000000000fff"


@given(st.integers(1, (1 << 64) - 1), st.integers(0, 1 << 63), st.binary(max_size=9))
def test_round_trip_with_batches_behind(epoch: int, high_watermark: int, rest: bytes) -> None:
    encoded = encode_header(LeaderEpoch(epoch), Offset(high_watermark))
    assert len(encoded) == HEADER_SIZE == 16
    assert decode_header(memoryview(encoded + rest)) == (epoch, high_watermark)


@pytest.mark.parametrize("size", range(16))
def test_a_short_answer_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptData, match=f"{size} bytes"):
        decode_header(encode_header(LeaderEpoch(1), Offset(1))[:size])


def test_epoch_zero_means_missing_and_is_refused() -> None:
    with pytest.raises(CorruptData, match="without a leader epoch"):
        decode_header(encode_header(LeaderEpoch(0), Offset(1)))


def test_a_watermark_below_none_is_refused() -> None:
    with pytest.raises(CorruptData, match="high watermark -2"):
        decode_header(encode_header(LeaderEpoch(1), Offset(-1)))
