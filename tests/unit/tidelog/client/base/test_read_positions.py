"""Starts and stops, as callers and command lines write them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.base.exceptions import BadRequest
from tidelog.client.base.read_positions import (
    Anchor,
    AtOffset,
    AtTime,
    Position,
    UnclearTime,
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
        ("1970-01-01T01:00:01+01:00", AtTime(10**9)),
        ("1970-01-01T00:00:00.000000001Z", AtTime(1)),
        ("1970-01-01T01:00:00.25+01:00", AtTime(250_000_000)),
    ],
)
def test_text(text: str, position: Position) -> None:
    assert position_from_text(text) == position


@pytest.mark.parametrize("text", ["", "oldest", "-1", "1.5", "٣", "99999999999999999999", "2026-13-01", "yesterday"])
def test_text_that_is_no_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest, match="outside" if text.isdigit() and text.isascii() else "is no position"):
        position_from_text(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-01-31T12:00", "write Z (UTC) or an offset such as +01:00 behind it"),
        ("2026-01-31", "write T00:00Z (UTC) or an offset such as T00:00+01:00 behind it"),
    ],
)
def test_a_time_without_a_zone_is_not_guessed(text: str, said: str) -> None:
    with pytest.raises(BadRequest, match="has no time zone") as refusal:
        position_from_text(text)
    assert said in str(refusal.value)
    assert timestamp_from_text(text, UTC) == timestamp_of(datetime.fromisoformat(text).replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "offsets"), [("2026-10-25T02:30", "+01:00 or +02:00"), ("2026-03-29T02:30", "+01:00 or +02:00")]
)
def test_an_hour_that_is_there_twice_or_not_at_all_is_not_guessed(text: str, offsets: str) -> None:
    with pytest.raises(UnclearTime, match=f"Europe/Berlin has twice or not at all; write {re.escape(offsets)} behind"):
        timestamp_from_text(text, ZoneInfo("Europe/Berlin"))


@given(st.integers(0, 4 * 10**18))
def test_times_survive_being_written_and_read(timestamp_ns: int) -> None:
    assert timestamp_from_text(timestamp_to_text(timestamp_ns)) == timestamp_ns


def test_a_datetime_is_exact_to_the_microsecond_in_any_zone() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123_457, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp_of(moment) == timestamp_of(moment.astimezone(UTC))
    assert timestamp_of(moment) % 10**9 == 123_457_000


def test_a_mapping_gives_an_offset_for_every_partition_read() -> None:
    assert start_positions({2: 5, 0: 7}, [0, 2], range(3)) == {0: AtOffset(7), 2: AtOffset(5)}
    assert start_positions({2: 5, 0: 7}, [2], range(3)) == {2: AtOffset(5)}
    with pytest.raises(BadRequest, match="no offset for partition 1"):
        start_positions({0: 7}, [0, 1], range(3))
    with pytest.raises(BadRequest, match=r"no offset for partition 1; .* partitions=\[0, 2\]"):
        start_positions({2: 5, 0: 7}, None, range(3))


def test_a_mapping_survives_json() -> None:
    stored = json.loads(json.dumps({0: 7, 1: 0, 10: 5}))
    assert start_positions(stored, None, [0, 1, 10]) == {0: AtOffset(7), 1: AtOffset(0), 10: AtOffset(5)}
    assert stop_positions(stored, [1, 10]) == {1: AtOffset(0), 10: AtOffset(5)}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"0": 1, 0: 1}, "names partition 0 twice"),
        ({"zero": 1}, "'zero': 1; it takes"),
        ({0: "1"}, "0: '1'; it takes"),
        ({0: None}, "0: None; it takes"),
        ({0: 1.0}, "0: 1.0; it takes"),
        ({True: 1}, "True: 1; it takes"),
        ({-1: 1}, "no partition -1; the stream has 0"),
        ({"3": 1}, "no partition 3; the stream has 0"),
        ({0: -1}, "offset -1 is outside"),
    ],
)
def test_an_impossible_mapping_is_refused_by_its_content(given: dict[int, int], text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        start_positions(given, None, [0])


def test_numbers_of_numpy_are_numbers() -> None:
    assert start_positions({np.int64(0): np.int64(3)}, None, [0]) == {0: AtOffset(3)}  # type: ignore[arg-type]
    assert start_positions(np.int32(4), None, [0]) == {0: AtOffset(4)}  # type: ignore[arg-type]


def test_partitions_are_numbers_or_their_digits() -> None:
    assert start_positions("latest", ["1", np.int64(0)], range(3)) == {0: Anchor.LATEST, 1: Anchor.LATEST}  # type: ignore[list-item]
    with pytest.raises(BadRequest, match="partition 'one' is no whole number"):
        start_positions("latest", ["one"], range(3))  # type: ignore[list-item]


def test_one_position_serves_every_partition() -> None:
    assert start_positions("latest", [1], range(3)) == {1: Anchor.LATEST}
    assert start_positions(4, None, range(2)) == {0: AtOffset(4), 1: AtOffset(4)}
    assert stop_positions(None, range(2)) == {}
    assert stop_positions("latest", [0]) == {0: Anchor.LATEST}


def test_true_is_no_offset() -> None:
    with pytest.raises(BadRequest):
        start_positions(True, None, range(1))
