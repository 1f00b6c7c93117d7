"""Points in time on the command line: in ISO-8601 with a time zone, or so long ago; and how times are printed.

A time without a zone is taken in the zone of --time-zone. Without that it is refused: whether UTC or local time was
meant is not guessed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidelog.cli.terminal.session import fail
from wire.notation import TIME, amount

if TYPE_CHECKING:
    from tidelog.client.base.read_positions import AtTime

_Command = TypeVar("_Command", bound=Callable[..., Any])

FORMS = "ISO-8601 with a zone, as 2026-01-31T12:00Z or 2026-01-31T12:00+01:00, or so long ago, as 90s, 15m, 2h or 7d"
_MOST_DIGITS = 40
"""Digits of an offset that a sentence shows; any such number is above all offsets."""
_TO_SECONDS = len("2026-01-31T12:00:00")
_TO_MS, _TO_NS = len("2026-01-31T12:00:00.123"), len("2026-01-31T12:00:00.123456789")
_POSITIONS = ("earliest", "latest", "new")


class _LocalZone(tzinfo):
    """The zone of this machine ($TZ, else that of the system), with its summer time."""

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
    except (OSError, ValueError, KeyError):  # the name of a folder, a path outside the data, or no zone
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
    """Returns the point in time that an option gives. Raises click.BadParameter."""
    found = _point(option, text, zone)
    if found is None:
        raise click.BadParameter(f"{text!r} is no point in time; give {FORMS}", param_hint=option)
    return found


def position(option: str, text: str, zone: tzinfo | None) -> str | int | AtTime:
    """Returns a start or stop as `Client.consume` takes it. Raises Failure, as for positions that the client
    refuses."""
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
    from tidelog.client.base.read_positions import AtTime, UnclearTime, timestamp_from_text

    ago = amount(text, TIME)
    if ago is not None:
        return AtTime(time.time_ns() - ago * 1_000_000)
    try:
        return AtTime(timestamp_from_text(text, zone))
    except UnclearTime as error:
        remedy = ", or give --time-zone" if zone is None else ""
        raise click.BadParameter(f"{error}{remedy}", param_hint=option) from None
    except ValueError:
        return None


def shown_time(zone: tzinfo | None) -> Callable[[int], str]:
    """Returns a function from ns since 1970 to ISO-8601 with nine digits of fraction, in that zone (None: UTC)."""
    from tidelog.client.base.read_positions import timestamp_to_text

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


def told_time(text: object, zone: tzinfo | None) -> str:
    """Returns a time in ISO-8601, in that zone; with three digits of a second where there are no more."""
    from tidelog.client.base.read_positions import timestamp_from_text

    try:
        told = shown_time(zone)(timestamp_from_text(str(text)))
    except ValueError:
        return str(text)
    return told[:_TO_MS] + told[_TO_NS:] if told[_TO_MS:_TO_NS] == "000000" else told
