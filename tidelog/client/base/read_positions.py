"""The start and the stop of reading, as callers write them, made into one position per partition.

| spelling | as a start | as a stop (exclusive) |
|---|---|---|
| "earliest" | the oldest record there is | no |
| "latest" | the newest committed record (Liftbridge's meaning) | the end of the committed log when reading begins |
| "new" | only records committed after reading begins | no |
| whole number | that offset, in every partition read | that offset |
| {partition: offset} | that offset each | that offset each |
| datetime, AtTime(ns) | the first record at or after that time | the first record at or after that time |

A mapping gives an offset for every partition that is read; one that is left out is never taken for "do not read it"
(that is said with `partitions`) nor for "from the beginning". `Consumer.positions` is such a mapping. Its keys may be
text, as JSON makes them: {"0": 17}. After a repartition, a stored mapping still serves: the partitions that were made
since, which it does not name, are read from their beginning, and those that are gone since have nothing left to read.

A start above the committed end waits for the log to grow; with a stop at or below it, there is nothing to read. With
the stop "latest" it is refused, when it is too much for every partition read.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

from tidelog.client.base.arguments import bad, shown, whole

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION = re.compile(r"[.,](\d{1,9})")
_MAX_OFFSET = (1 << 63) - 1
_INT64 = 1 << 63
_MOST_DIGITS = 40
_PLAUSIBLE_NS = 10**16
"""Nearer to 1970 than this, some four months, a whole number is hardly ns: seconds, ms and µs of this age are."""


class Anchor(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class AfterBytes:
    """The end of about `size` bytes of the log from `offset` on, or of the committed log where it has fewer."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """A point in time, ns since 1970."""

    timestamp_ns: int


Moment: TypeAlias = int | datetime | AtTime
"""A point in time: ns since 1970, or a datetime with a time zone."""
Position: TypeAlias = Anchor | AtOffset | AtTime
Offsets: TypeAlias = Mapping[int, int] | Mapping[str, int]
"""Offsets by partition, which is a number or its digits."""
Start: TypeAlias = str | int | Offsets | datetime | AtTime
Stop: TypeAlias = str | int | Offsets | datetime | AtTime | None


def start_positions(
    start: Start,
    partitions: Iterable[int] | None,
    known: Iterable[int],
    *,
    begun_later: Container[int] = (),
    gone: Container[int] = (),
) -> dict[int, Position]:
    """Returns one position for each partition to read. `known` are the stream's partitions. A mapping may leave out
    those that have `begun_later`, and name those that are `gone`.

    Raises BadRequest naming the partition or the value that cannot be.
    """
    there = sorted(set(known))
    chosen = there if partitions is None else sorted({_partition(p) for p in partitions})
    if not chosen:
        raise bad("no partition to read was given")
    check_known(chosen, there)
    if not isinstance(start, Mapping):
        return dict.fromkeys(chosen, _one(start, "start"))
    offsets = {p: at for p, at in _offsets(start, "start").items() if p in there or p not in gone}
    check_known(offsets, there)
    missing = [p for p in chosen if p not in offsets and p not in begun_later]
    if missing and partitions is None:
        raise bad(
            f"start names no offset for partition {_list(missing)}; give one for every partition, or say which to read "
            f"with partitions=[{_list(sorted(offsets))}]"
        )
    if missing:
        raise bad(f"start names no offset for partition {_list(missing)}; give one for every partition read")
    return {partition: offsets.get(partition, Anchor.EARLIEST) for partition in chosen}


def stop_positions(stop: Stop, partitions: Iterable[int]) -> dict[int, Position]:
    """Returns one position for each of `partitions`; empty when reading goes on for ever."""
    if stop is None:
        return {}
    chosen = list(partitions)
    if isinstance(stop, Mapping):
        offsets = _offsets(stop, "stop")
        missing = [p for p in chosen if p not in offsets]
        if missing:
            raise bad(f"stop names no offset for partition {_list(missing)}; give one for every partition read")
        return {partition: offsets[partition] for partition in chosen}
    position = _one(stop, "stop")
    if position in (Anchor.EARLIEST, Anchor.NEW):
        raise bad(f"stop={stop!r} is no end; use 'latest', an offset or a time")
    return dict.fromkeys(chosen, position)


def position_from_text(text: str) -> Anchor | AtOffset | AtTime:
    """Returns the position in a text: a word, digits (an offset) or an ISO-8601 time with its zone."""
    if text in {anchor.value for anchor in Anchor}:
        return Anchor(text)
    if text.isascii() and text.isdigit():
        return AtOffset(_offset(_from_digits(text)))
    try:
        return AtTime(timestamp_from_text(text))
    except UnclearTime as error:
        raise bad(str(error)) from None
    except ValueError:
        raise bad(
            f"{text!r} is no position; use earliest, latest, new, an offset (digits) or an ISO-8601 time "
            "such as 2026-01-31T12:00:00Z"
        ) from None


class UnclearTime(ValueError):
    """A time in ISO-8601 that may be several points in time."""


def timestamp_from_text(text: str, zone: tzinfo | None = None) -> int:
    """Converts ISO-8601 to ns since 1970, exact to the nanosecond. A time without a zone is one of `zone`. Raises
    ValueError; UnclearTime for a time without a zone where `zone` is None, and for an hour that `zone` has twice or not
    at all."""
    fraction = _FRACTION.search(text)
    whole = text if fraction is None else text[: fraction.start()] + text[fraction.end() :]
    moment = datetime.fromisoformat(whole)
    if moment.tzinfo is None:
        moment = _in_zone(text, moment, zone)
    return timestamp_of(moment) + (int(fraction[1].ljust(9, "0")) if fraction else 0)


def _in_zone(text: str, moment: datetime, zone: tzinfo | None) -> datetime:
    if zone is None:
        clock = "" if ":" in text or "T" in text else "T00:00"
        raise UnclearTime(
            f"{text!r} has no time zone; write {clock}Z (UTC) or an offset such as {clock}+01:00 behind it"
        )
    first, second = moment.replace(tzinfo=zone, fold=0), moment.replace(tzinfo=zone, fold=1)
    if first.utcoffset() != second.utcoffset():
        offsets = " or ".join(sorted({each.isoformat()[-6:] for each in (first, second)}))
        raise UnclearTime(f"{text!r} is an hour that {zone} has twice or not at all; write {offsets} behind it")
    return first


@lru_cache(maxsize=256)  # the records of a batch mostly share one time
def timestamp_to_text(timestamp_ns: int) -> str:
    """Converts ns since 1970 to ISO-8601 in UTC with nine digits of fraction."""
    seconds, rest = divmod(timestamp_ns, 1_000_000_000)
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return f"{timestamp_ns}ns"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def timestamp_of(moment: datetime) -> int:
    """Converts an aware datetime to ns since 1970."""
    if moment.tzinfo is None:
        raise bad(f"{moment.isoformat()} has no time zone; use datetime(..., tzinfo=UTC)")
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def timestamp_ns(moment: Moment, name: str = "timestamp") -> int:
    """Converts a point in time, as callers give it in the argument `name`, to ns since 1970. Raises BadRequest, also
    for seconds, ms and µs."""
    if isinstance(moment, datetime):
        return timestamp_of(moment)
    given = whole(moment.timestamp_ns if isinstance(moment, AtTime) else moment)
    if given is None:
        raise bad(
            f"{name}={shown(moment)} is no point in time; give ns since 1970 as a whole number, as time.time_ns() does,"
            " or a datetime with a time zone"
        )
    if not -_INT64 <= given < _INT64:
        raise bad(f"{name}={given} does not fit into 64 bits; it is in ns since 1970")
    if abs(given) < _PLAUSIBLE_NS and not isinstance(moment, AtTime):
        raise bad(
            f"{name}={given} is {timestamp_to_text(given)} in ns since 1970, which is hardly meant: seconds, ms and "
            f"µs are not taken; use time.time_ns(), or AtTime({given}) for that very time"
        )
    return given


def check_known(partitions: Iterable[int], there: list[int]) -> None:
    """Raises BadRequest for partitions that are not `there`."""
    strange = [p for p in partitions if p not in there]
    if strange:
        raise bad(f"there is no partition {_list(strange)}; the stream has {_list(there)}")


def _offsets(given: Offsets, what: str) -> dict[int, AtOffset]:
    offsets: dict[int, AtOffset] = {}
    for key, value in given.items():
        partition, offset = _partition_of(key), whole(value)
        if partition is None or offset is None:
            raise bad(f"{what} has {key!r}: {value!r}; it takes {{partition: offset}}, both whole numbers")
        if partition in offsets:
            raise bad(f"{what} names partition {partition} twice, as a number and as text")
        offsets[partition] = AtOffset(_offset(offset))
    return offsets


def _partition(given: object) -> int:
    partition = _partition_of(given)
    if partition is None:
        raise bad(f"partition {given!r} is no whole number")
    return partition


def _partition_of(given: object) -> int | None:
    """Returns a partition from a number, or its digits, as JSON has it for a key; None for other values."""
    if isinstance(given, str) and given.isascii() and given.isdigit():
        return _from_digits(given)
    return whole(given)


def _one(value: str | int | datetime | AtTime, what: str) -> Position:
    if isinstance(value, (datetime, AtTime)):
        return AtTime(timestamp_ns(value, what))
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            raise bad(f"{what}={shown(value)} is positions as JSON; give the mapping that json.loads() makes of it")
        return position_from_text(value)
    offset = whole(value)
    if offset is not None:
        return AtOffset(_offset(offset))
    raise bad(f"{what}={value!r} is no position; use a word, an offset, {{partition: offset}} or a datetime")


def _offset(value: int) -> int:
    if not 0 <= value <= _MAX_OFFSET:
        raise bad(f"offset {value} is outside 0 to {_MAX_OFFSET}")
    return value


def _from_digits(text: str) -> int:
    """Returns the number; one of more digits than any offset has is above all of them, however it ends."""
    return int((text.lstrip("0") or "0")[:_MOST_DIGITS])


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
