"""Starts and stops, as callers and command lines write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.errors import BadRequest
from tidelog.client.positions import (
    Anchor,
    AtOffset,
    AtTime,
    Position,
    position_from_text,
    start_positions,
    stop_positions,
    timestamp_from_text,
    timestamp_of,
    timestamp_to_text,
)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Anchor.EARLIEST),
        ("latest", Anchor.LATEST),
        ("new", Anchor.NEW),
        ("0", AtOffset(0)),
        ("20260131", AtOffset(20260131)),
        ("1970-01-01T00:00:01Z", AtTime(10**9)),
        ("1970-01-01T00:00:01", AtTime(10**9)),
        ("1970-01-01T01:00:01+01:00", AtTime(10**9)),
        ("1970-01-01T00:00:00.000000001Z", AtTime(1)),
        ("1970-01-01T01:00:00.25+01:00", AtTime(250_000_000)),
        ("1970-01-02", AtTime(86_400 * 10**9)),
    ],
)
def test_text(text: str, position: Position) -> None:
    assert position_from_text(text) == position


@pytest.mark.parametrize("text", ["", "oldest", "-1", "1.5", "٣", "99999999999999999999", "2026-13-01", "yesterday"])
def test_text_that_is_no_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest, match="outside" if text.isdigit() and text.isascii() else "is no position"):
        position_from_text(text)


@given(st.integers(0, 4 * 10**18))
def test_times_survive_being_written_and_read(timestamp_ns: int) -> None:
    assert timestamp_from_text(timestamp_to_text(timestamp_ns)) == timestamp_ns


def test_a_datetime_is_exact_to_the_microsecond_in_any_zone() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123_457, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp_of(moment) == timestamp_of(moment.astimezone(UTC))
    assert timestamp_of(moment) % 10**9 == 123_457_000


def test_a_mapping_chooses_the_partitions() -> None:
    assert start_positions({2: 5, 0: 7}, None, range(3)) == {0: AtOffset(7), 2: AtOffset(5)}
    with pytest.raises(BadRequest, match="no offset for partition 1"):
        start_positions({0: 7}, [0, 1], range(3))


def test_one_position_serves_every_partition() -> None:
    assert start_positions("latest", [1], range(3)) == {1: Anchor.LATEST}
    assert start_positions(4, None, range(2)) == {0: AtOffset(4), 1: AtOffset(4)}
    assert stop_positions(None, range(2)) == {}
    assert stop_positions("latest", [0]) == {0: Anchor.LATEST}


def test_true_is_no_offset() -> None:
    with pytest.raises(BadRequest):
        start_positions(True, None, range(1))
