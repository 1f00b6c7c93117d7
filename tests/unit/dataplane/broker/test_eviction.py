"""What a broker may evict when its disk runs full, and what it takes first."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.eviction import oldest
from dataplane.broker.housekeeping import Visit
from wire.types import Incarnation, Offset, PartitionKey, StreamConfig, StreamName


def visit(
    partition: int, segments: list[tuple[int, int]], *, high_watermark: int = 1000, config: dict[str, str] | None = None
) -> Visit:
    """`segments`: (base offset, newest timestamp)."""
    settings = {"on_under_capacity": "evict_oldest", "retention_max_bytes": "1000000"} | (config or {})
    held = tuple(SimpleNamespace(base_offset=base, max_timestamp=newest) for base, newest in segments)
    return Visit(
        key=PartitionKey(StreamName("s"), Incarnation(1), partition, Incarnation(1)),
        log=cast(Any, SimpleNamespace(segments=held)),
        config=StreamConfig.from_strings(settings),
        high_watermark=Offset(high_watermark),
        time_ns=0,
        stop=threading.Event(),
    )


def chosen(*visits: Visit) -> tuple[int, int] | None:
    found = oldest(visits)
    return None if found is None else (found[0].key.partition, found[1])


def test_the_oldest_first_segment_of_all_goes() -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)]), visit(1, [(5, 40), (9, 90)]), visit(2, [(0, 45), (7, 46)])) == (1, 9)


def test_never_the_last_segment() -> None:
    assert chosen(visit(0, [(0, 50)])) is None


@pytest.mark.parametrize(("high_watermark", "goes"), [(9, False), (10, True), (11, True)])
def test_never_what_is_not_committed(high_watermark: int, goes: bool) -> None:
    assert (chosen(visit(0, [(0, 50), (10, 60)], high_watermark=high_watermark)) is not None) is goes


@pytest.mark.parametrize(
    "config", [{"on_under_capacity": "withdraw"}, {"retention_max_bytes": "0"}], ids=["withdraws", "has no limit"]
)
def test_never_of_a_stream_that(config: dict[str, str]) -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)], config=config)) is None


@pytest.mark.parametrize("limit", ["retention_max_age_ms", "retention_max_messages", "retention_max_bytes"])
def test_any_limit_will_do(limit: str) -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)], config={"retention_max_bytes": "0", limit: "5"}))
