"""Packs: frames come out as they went in, and nothing comes out of what is no pack."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import CorruptData
from wire.messaging.packed import HEAD_BYTES, Frame, decode_pack, encode_pack

_TEXT = st.binary(max_size=40)
_FRAMES = st.builds(Frame, st.binary(min_size=1, max_size=40), _TEXT, _TEXT, st.binary(max_size=300), st.booleans())


@given(st.lists(_FRAMES, max_size=8))
def test_frames_come_out_as_they_went_in(frames: list[Frame]) -> None:
    pack = encode_pack(frames)
    assert len(pack) == sum(frame.size for frame in frames)
    assert [frame._replace(payload=bytes(frame.payload)) for frame in decode_pack(pack)] == frames


@given(st.lists(_FRAMES, min_size=1, max_size=4), st.data())
def test_what_is_cut_off_is_no_pack(frames: list[Frame], data: st.DataObject) -> None:
    pack = encode_pack(frames)
    cut = data.draw(st.integers(len(pack) - frames[-1].size + 1, len(pack) - 1))
    with pytest.raises(CorruptData, match="a pack"):
        decode_pack(pack[:cut])


@given(st.binary(max_size=200))
def test_other_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        frames = decode_pack(data)
    except CorruptData:
        return
    assert encode_pack(frames) == data


@pytest.mark.parametrize(("kind", "subject"), [(2, b"s"), (0, b"")])
def test_a_frame_of_another_kind_or_without_a_subject(kind: int, subject: bytes) -> None:
    pack = bytearray(encode_pack([Frame(b"s", b"", b"", b"p"), Frame(subject, b"", b"", b"p")]))
    pack[HEAD_BYTES + 2] = kind
    with pytest.raises(CorruptData, match=f"at byte {HEAD_BYTES + 2}"):
        decode_pack(bytes(pack))


def test_a_subject_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit into a frame"):
        encode_pack([Frame(b"s" * 65_536, b"", b"", b"")])
