"""Points in time on the command line: in ISO-8601 with a time zone, or so long ago; and how times are printed.

A time without a zone is taken in the zone of --time-zone. Without that it is refused: whether UTC or local time was
meant is not guessed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.session import fail

if TYPE_CHECKING:
    from tidelog.client.positions import AtTime

_Command = TypeVar("_Command", bound=Callable[..., Any])

FORMS = "ISO-8601 with a zone, as 2026-01-31T12:00Z or 2026-01-31T12:00+01:00, or so long ago, as 90s, 15m, 2h or 7d"
_AGO = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MOST_DIGITS = 40
"""Digits of an offset that a sentence shows; any such number is above all offsets."""
_TO_SECONDS = len("2026-01-31T12:00:00")
_POSITIONS = ("earliest", "latest", "new")


class _LocalZone(tzinfo):
    """The zone of this machine ($TZ, else what the system says), with its summer time."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:  # noqa: ARG002 - not used
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        local = moment.replace(tzinfo=UTC).astimezone()
        return local.replace(tzinfo=self)

    def __str__(self) -> str:
        return "local"


def _zone(_context: click.Context, _parameter: click.Parameter, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    if name.lower() == "local":
        return _LocalZone()
    if name.upper() == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a folder, a path that leaves the data, or nothing
        raise click.BadParameter(
            f"{name!r} is no time zone; give local, UTC, or a name such as Europe/Berlin"
        ) from None


def time_zone_option(command: _Command) -> _Command:
    """Adds --time-zone: parameter `zone`, a tzinfo, or None where it is not given."""
    return click.option(
        "--time-zone",
        "zone",
        metavar="local|UTC|NAME",
        callback=_zone,
        envvar="TIDELOG_TIME_ZONE",
        help="Of times that are given without a zone, and of those that are printed as text; NAME as Europe/Berlin;"
        " also from $TIDELOG_TIME_ZONE.  [default: given times need a zone, and UTC is printed]",
    )(command)


def point_in_time(option: str, text: str, zone: tzinfo | None) -> AtTime:
    """What an option of the command line gives. Raises click.BadParameter."""
    found = _point(option, text, zone)
    if found is None:
        raise click.BadParameter(f"{text!r} is no point in time; give {FORMS}", param_hint=option)
    return found


def position(option: str, text: str, zone: tzinfo | None) -> str | int | AtTime:
    """A start or stop as `Client.consume` takes it. Raises Failure, as for positions that the client refuses."""
    if text in _POSITIONS:
        return text
    if text.isascii() and text.isdigit():
        return int(text[:_MOST_DIGITS])
    try:
        found = _point(option, text, zone)
    except click.BadParameter as error:
        fail(f"{option}: {error.message}")
    if found is None:
        words = ", ".join(_POSITIONS)
        fail(f"{option}: {text!r} is no position; give {words}, an offset (digits) or a time: {FORMS}")
    return found


def _point(option: str, text: str, zone: tzinfo | None) -> AtTime | None:
    from tidelog.client.positions import AtTime, UnclearTime, timestamp_from_text

    ago = _AGO.fullmatch(text)
    if ago is not None:
        return AtTime(time.time_ns() - int(ago[1]) * _SECONDS[ago[2]] * 1_000_000_000)
    try:
        return AtTime(timestamp_from_text(text, zone))
    except UnclearTime as error:
        remedy = ", or give --time-zone" if zone is None else ""
        raise click.BadParameter(f"{error}{remedy}", param_hint=option) from None
    except ValueError:
        return None


def shown_time(zone: tzinfo | None) -> Callable[[int], str]:
    """ns since 1970 -> ISO-8601 with nine digits of fraction, in that zone (None: UTC)."""
    from tidelog.client.positions import timestamp_to_text

    if zone is None or zone is UTC:
        return timestamp_to_text

    def shown(timestamp_ns: int) -> str:
        seconds, rest = divmod(timestamp_ns, 1_000_000_000)
        try:
            moment = datetime.fromtimestamp(seconds, UTC).astimezone(zone)
        except (OverflowError, ValueError, OSError):
            return timestamp_to_text(timestamp_ns)
        text = moment.isoformat()
        return f"{text[:_TO_SECONDS]}.{rest:09d}{text[_TO_SECONDS:]}"

    return shown
