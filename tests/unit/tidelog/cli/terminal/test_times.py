"""Times on the command line: with their zone, or so long ago; and how they are printed."""

from __future__ import annotations

import time
from datetime import UTC, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import click
import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.terminal.points_in_time import _LocalZone, point_in_time, position, shown_time
from tidelog.client.base.read_positions import AtTime, timestamp_from_text

NOON = 1_769_860_800_000_000_000
"""2026-01-31T12:00Z"""
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "zone", "found"),
    [
        ("earliest", None, "earliest"),
        ("new", None, "new"),
        ("17", None, 17),
        ("2026-01-31T12:00Z", None, AtTime(NOON)),
        ("2026-01-31T13:00+01:00", None, AtTime(NOON)),
        ("2026-01-31T13:00", BERLIN, AtTime(NOON)),
        ("2026-01-31T12:00Z", BERLIN, AtTime(NOON)),
        ("2026-01-31", UTC, AtTime(NOON - 12 * 3600 * 10**9)),
        ("2026-01-31T12:00:00.000000001Z", None, AtTime(NOON + 1)),
    ],
)
def test_positions(text: str, zone: tzinfo | None, found: object) -> None:
    assert position("--start", text, zone) == found


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800)])
def test_so_long_ago(text: str, seconds: int) -> None:
    before = time.time_ns()
    found = point_in_time("--start", text, None).timestamp_ns + seconds * 10**9
    assert before <= found <= time.time_ns()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "2026-01-31T12:00",
            "no time zone; write Z (UTC) or an offset such as +01:00 behind it, or give --time-zone",
        ),
        ("2026-01-31", "write T00:00Z"),
        ("yesterday", "is no position; give earliest, latest, new, an offset (digits) or a time: ISO-8601 with a zone"),
        ("-5", "is no position"),
        ("5w", "is no position"),
        ("", "'' is no position"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    for option in ("--start", "--stop"):
        result = CliRunner().invoke(main, ["subscribe", "s", option, text, "--server", "nats://127.0.0.1:1"])
        assert result.exit_code == 1
        assert result.stderr.startswith(f"tidelog: {option}: ")
        assert said in result.stderr


@pytest.mark.parametrize("name", ["Mars", "Europe", "../UTC", "/etc/passwd", "", "EST5EDT4x"])
def test_a_zone_that_there_is_not(name: str) -> None:
    result = CliRunner().invoke(main, ["offsets", "s", "--time-zone", name, "--server", "nats://127.0.0.1:1"])
    assert result.exit_code == 2
    assert f"{name!r} is no time zone; give local, UTC, or a name such as Europe/Berlin" in result.stderr


def test_the_zone_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        zone = _LocalZone()
        assert position("--start", "2026-01-31T13:00", zone) == AtTime(NOON)
        assert position("--start", "2026-07-31T14:00", zone) == position("--start", "2026-07-31T12:00Z", None)
        assert shown_time(zone)(NOON) == "2026-01-31T13:00:00.000000000+01:00"
        assert shown_time(zone)(NOON + 181 * 86_400 * 10**9) == "2026-07-31T14:00:00.000000000+02:00"
        for hour in ("2026-10-25T02:30", "2026-03-29T02:30"):
            with pytest.raises(click.BadParameter, match="local has twice or not at all"):
                point_in_time("--start", hour, zone)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_how_times_are_shown() -> None:
    assert shown_time(None)(NOON + 5) == shown_time(UTC)(NOON + 5) == "2026-01-31T12:00:00.000000005Z"
    assert shown_time(timezone(timedelta(hours=-3)))(NOON) == "2026-01-31T09:00:00.000000000-03:00"
    for far in (-(1 << 63), (1 << 63) - 1):
        assert timestamp_from_text(shown_time(BERLIN)(far)) == far
