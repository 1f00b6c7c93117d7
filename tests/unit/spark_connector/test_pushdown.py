from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_connector.log_port import OffsetRange
from spark_connector.pushdown import Narrowing
from wire.types import Incarnation, Offset, StreamName


def whole(partition: int) -> OffsetRange:
    return OffsetRange(StreamName("flights"), Incarnation(1), partition, Incarnation(1), Offset(0), Offset(100))


def never(stream: StreamName, timestamp_ns: int) -> Mapping[int, Offset]:
    pytest.fail("no filter on the time, so nothing to look up")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([EqualTo(("partition",), 1)], [(1, 0, 100)]),
        ([In(("partition",), (0, 2))], [(0, 0, 100), (2, 0, 100)]),
        ([GreaterThan(("partition",), 1)], [(2, 0, 100)]),
        ([EqualTo(("stream",), "other")], []),
        ([EqualTo(("offset",), 5), LessThanOrEqual(("partition",), 0)], [(0, 5, 6)]),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 8), EqualTo(("partition",), 0)], [(0, 6, 8)]),
        (
            [GreaterThanOrEqual(("offset",), 5), LessThanOrEqual(("offset",), 8), EqualTo(("partition",), 0)],
            [(0, 5, 9)],
        ),
        ([GreaterThan(("offset",), 99)], []),
    ],
)
def test_answered_in_full(filters: list[Filter], expected: list[tuple[int, int, int]]) -> None:
    narrowing = Narrowing()
    assert all(narrowing.take(condition) for condition in filters)
    left = narrowing.apply([whole(0), whole(1), whole(2)], never)
    assert [(part.partition, part.start, part.end) for part in left] == expected


def test_not_null_is_known_of_our_columns_only() -> None:
    assert Narrowing().take(IsNotNull(("offset",)))
    assert not Narrowing().take(IsNotNull(("key",)))


@pytest.mark.parametrize(
    "condition", [EqualTo(("value",), b"x"), Not(EqualTo(("partition",), 1)), EqualTo(("headers", "key"), "h")]
)
def test_unknown_filters_stay_with_spark(condition: Filter) -> None:
    narrowing = Narrowing()
    assert not narrowing.take(condition)
    assert narrowing.apply([whole(0)], never) == [whole(0)]


def test_a_lower_bound_of_the_time_moves_the_start_and_stays_with_spark() -> None:
    narrowing = Narrowing()
    assert not narrowing.take(GreaterThan(("timestamp",), datetime(2030, 1, 1, tzinfo=UTC)))
    assert not narrowing.take(GreaterThan(("timestamp",), datetime(2029, 1, 1, tzinfo=UTC)))
    assert not narrowing.take(LessThan(("timestamp",), datetime(2031, 1, 1, tzinfo=UTC)))
    asked: list[int] = []

    def offsets_at(stream: StreamName, timestamp_ns: int) -> Mapping[int, Offset]:
        asked.append(timestamp_ns)
        return {0: Offset(40), 1: Offset(100)}

    left = narrowing.apply([whole(0), whole(1)], offsets_at)
    assert asked == [1893456000 * 10**9]
    assert [(part.partition, part.start, part.end) for part in left] == [(0, 40, 100)]
