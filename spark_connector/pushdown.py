"""Filters that narrow a read: which streams and partitions, which offsets, from which time on.

Conditions on `stream`, `partition` and `offset` are answered exactly, so Spark need not look again. Timestamps are the
publishers' and need not grow with the offsets: a lower bound moves the start to the first record at or after it (all
records before that one are older, by definition), an upper bound says nothing; Spark still checks either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from spark_connector.log_port import OffsetRange
from wire.types import Offset, StreamName

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = frozenset({"stream", "partition", "offset", "timestamp"})


@dataclass(slots=True)
class Narrowing:
    """Narrows a set of ranges by the filters taken so far."""

    lowest_offset: int = 0
    offset_end: int = 1 << 63
    """Exclusive."""
    timestamp_ns: int | None = None
    _conditions: list[tuple[str, Callable[[Any], bool]]] = field(default_factory=list)

    def take(self, condition: Filter) -> bool:
        """True when the condition is answered in full, so that Spark need not evaluate it again."""
        column: tuple[str, ...] = getattr(condition, "attribute", ())
        match condition:
            case IsNotNull(attribute=(name,)):
                return name in _NEVER_NULL
            case _ if column == ("offset",):
                return self._take_offset(condition)
            case _ if column == ("timestamp",):
                self._take_timestamp(condition)
                return False
            case _ if column in (("stream",), ("partition",)):
                return self._take_choice(column[0], condition)
        return False

    def _take_offset(self, condition: Filter) -> bool:
        match condition:
            case EqualTo(value=int(value)):
                self._bound(value, value + 1)
            case GreaterThan(value=int(value)):
                self._bound(value + 1, self.offset_end)
            case GreaterThanOrEqual(value=int(value)):
                self._bound(value, self.offset_end)
            case LessThan(value=int(value)):
                self._bound(self.lowest_offset, value)
            case LessThanOrEqual(value=int(value)):
                self._bound(self.lowest_offset, value + 1)
            case _:
                return False
        return True

    def _bound(self, low: int, end: int) -> None:
        self.lowest_offset = max(self.lowest_offset, low)
        self.offset_end = min(self.offset_end, end)

    def _take_timestamp(self, condition: Filter) -> None:
        match condition:
            case EqualTo(value=value) | GreaterThan(value=value) | GreaterThanOrEqual(value=value):
                # Without a zone it would be a guess which moment is meant.
                if isinstance(value, datetime) and value.tzinfo is not None:
                    since = _nanoseconds(value)
                    self.timestamp_ns = since if self.timestamp_ns is None else max(since, self.timestamp_ns)
            case _:
                pass

    def _take_choice(self, column: str, condition: Filter) -> bool:
        match condition:
            case EqualTo(value=value) if value is not None:
                self._conditions.append((column, lambda x: bool(x == value)))
            case In(value=values):
                self._conditions.append((column, lambda x: x in values))
            case GreaterThan(value=int(value)):
                self._conditions.append((column, lambda x: bool(x > value)))
            case GreaterThanOrEqual(value=int(value)):
                self._conditions.append((column, lambda x: bool(x >= value)))
            case LessThan(value=int(value)):
                self._conditions.append((column, lambda x: bool(x < value)))
            case LessThanOrEqual(value=int(value)):
                self._conditions.append((column, lambda x: bool(x <= value)))
            case _:
                return False
        return True

    def apply(
        self, ranges: list[OffsetRange], offsets_at: Callable[[StreamName, int], Mapping[int, Offset]]
    ) -> list[OffsetRange]:
        """`offsets_at(stream, ns)` is asked once per stream, and only when a filter bounds the time from below."""
        kept = [whole for whole in ranges if all(holds(getattr(whole, column)) for column, holds in self._conditions)]
        since: dict[StreamName, Mapping[int, Offset]] = {}
        if self.timestamp_ns is not None:
            since = {stream: offsets_at(stream, self.timestamp_ns) for stream in sorted({r.stream for r in kept})}
        narrowed = (
            replace(
                whole,
                start=Offset(max(whole.start, self.lowest_offset, since.get(whole.stream, {}).get(whole.partition, 0))),
                end=Offset(min(whole.end, self.offset_end)),
            )
            for whole in kept
        )
        return [whole for whole in narrowed if len(whole)]


def _nanoseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1_000
