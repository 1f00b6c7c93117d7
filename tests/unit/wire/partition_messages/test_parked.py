"""Questions about fetches that wait at another broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import CorruptData
from wire.partition_messages.parked import (
    MAX_PLACES,
    ParkedRequest,
    Place,
    decode_parked,
    decode_verdicts,
    encode_parked,
)
from wire.types import BrokerId, Incarnation

_U64 = st.integers(0, (1 << 64) - 1)
_PLACES = st.builds(Place, _U64, st.integers(0, (1 << 32) - 1), _U64, _U64, _U64)
_QUESTIONS = st.builds(
    ParkedRequest,
    st.text(min_size=1, max_size=20).map(BrokerId),
    _U64.map(Incarnation),
    st.lists(_PLACES, max_size=5),
)


@given(_QUESTIONS)
def test_a_question_comes_out_as_it_went_in(question: ParkedRequest) -> None:
    assert decode_parked(encode_parked(question)) == question


@given(_QUESTIONS, st.data())
def test_a_question_that_is_cut_off(question: ParkedRequest, data: st.DataObject) -> None:
    whole = encode_parked(question)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = decode_parked(whole[:cut])
    except CorruptData:
        return
    assert [*found.places] == [*question.places][: len(found.places)]  # cut between two places; the tag covers that


def test_too_many_places_and_a_sender_without_an_id() -> None:
    one = Place(1, 2, 3, 4, 5)
    full = ParkedRequest(BrokerId("b"), Incarnation(7), [one] * MAX_PLACES)
    assert decode_parked(encode_parked(full)) == full
    with pytest.raises(CorruptData, match="up to 1000"):
        decode_parked(encode_parked(full._replace(places=[one] * (MAX_PLACES + 1))))
    with pytest.raises(CorruptData, match="an id of 0"):
        decode_parked(encode_parked(full._replace(broker=BrokerId(""))))
    with pytest.raises(CorruptData, match="not UTF-8"):
        decode_parked(b"\0" * 9 + b"\1\xff")


def test_verdicts() -> None:
    assert decode_verdicts(b"\1\0\1", 3) == b"\1\0\1"
    assert decode_verdicts(b"", 0) == b""
    for data in (b"\1\0", b"\1\0\1\1", b"\1\0\2"):
        with pytest.raises(CorruptData, match="about 3 parked fetches"):
            decode_verdicts(data, 3)
