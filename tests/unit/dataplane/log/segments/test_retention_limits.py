"""Which of the oldest segments have outlived their stream's limits."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

import pytest

from dataplane.log.segments.index import NO_TIMESTAMP
from dataplane.log.segments.retention_limits import NS_PER_MS, Limits, expired
from wire.stream_config import StreamConfig
from wire.types import Offset

NOW = 1_000_000 * NS_PER_MS


class Seg(NamedTuple):
    base_offset: int
    size: int = 100
    age_ms: int | None = 0
    """Of its newest record; None: it has none."""

    @property
    def max_timestamp(self) -> int:
        return NO_TIMESTAMP if self.age_ms is None else NOW - self.age_ms * NS_PER_MS


def row(*ages_ms: int | None) -> list[Seg]:
    """Segments of ten records."""
    return [Seg(number * 10, 100, age) for number, age in enumerate(ages_ms)]


def never(_: Seg) -> NoReturn:
    raise AssertionError("nobody looks at the file of a segment whose timestamps are in the past")


def removed(
    segments: list[Seg], limits: Limits, *, high_watermark: int | None = None, written_ms_ago: int | None = None
) -> int:
    end = segments[-1].base_offset + 10
    found = expired(
        segments,
        limits,
        log_end_offset=Offset(end),
        high_watermark=Offset(end if high_watermark is None else high_watermark),
        now_ns=NOW,
        appended_by=never if written_ms_ago is None else lambda _: NOW - written_ms_ago * NS_PER_MS,
    )
    return len(list(found))


AGE = Limits(max_age_ms=50)


def test_without_limits_nothing_goes() -> None:
    assert not Limits()
    assert removed(row(1000, 1000, 1000), Limits()) == 0


def test_the_limits_come_from_the_stream() -> None:
    config = StreamConfig(retention_max_age_ms=1, retention_max_bytes=2, retention_max_messages=3)
    assert Limits.of(config) == Limits(max_age_ms=1, max_bytes=2, max_messages=3)
    assert not Limits.of(StreamConfig())


class TestByAge:
    def test_segments_whose_newest_record_is_too_old_go(self) -> None:
        assert removed(row(90, 70, 50, 30, 0), AGE) == 2
        assert removed(row(90, 70, 51, 30, 0), AGE) == 3

    def test_nothing_goes_from_the_middle(self) -> None:
        assert removed(row(10, 90, 90, 0), AGE) == 0

    def test_the_last_segment_stays_whatever_its_age(self) -> None:
        assert removed(row(90, 90), AGE) == 1
        assert removed(row(90), AGE) == 0

    def test_a_segment_without_records_keeps_no_other(self) -> None:
        assert removed(row(None, 90, 0), AGE) == 2

    def test_a_timestamp_in_the_future_counts_as_when_the_file_was_last_written(self) -> None:
        assert removed(row(-10_000, 70, 0), AGE, written_ms_ago=60) == 2
        assert removed(row(-10_000, 70, 0), AGE, written_ms_ago=40) == 0

    def test_a_file_written_later_than_its_records_say_changes_nothing(self) -> None:
        """A copied folder, or one compacted: its records are as old as they say."""
        assert removed(row(70, 70, 0), AGE) == 2


class TestBySize:
    @pytest.mark.parametrize(("limit", "gone"), [(1, 3), (100, 3), (101, 2), (200, 2), (300, 1), (301, 0), (400, 0)])
    def test_the_rest_is_never_below_the_limit(self, limit: int, gone: int) -> None:
        assert removed(row(0, 0, 0, 0), Limits(max_bytes=limit)) == gone

    @pytest.mark.parametrize(("limit", "gone"), [(1, 3), (10, 3), (11, 2), (30, 1), (31, 0)])
    def test_the_same_of_messages(self, limit: int, gone: int) -> None:
        assert removed(row(0, 0, 0, 0), Limits(max_messages=limit)) == gone

    def test_one_limit_is_enough(self) -> None:
        segments = row(90, 0, 0, 0)
        assert removed(segments, Limits(max_age_ms=50, max_bytes=1000, max_messages=1000)) == 1
        assert removed(segments, Limits(max_age_ms=50, max_bytes=200, max_messages=1000)) == 2
        assert removed(segments, Limits(max_age_ms=50, max_bytes=1000, max_messages=10)) == 3


@pytest.mark.parametrize(("high_watermark", "gone"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (30, 3), (35, 3)])
def test_nothing_goes_that_reaches_beyond_the_high_watermark(high_watermark: int, gone: int) -> None:
    assert removed(row(90, 90, 90, 90), AGE, high_watermark=high_watermark) == gone


@pytest.mark.parametrize(("high_watermark", "gone"), [(10, 0), (11, 1), (20, 1), (21, 2), (30, 2), (31, 3), (35, 3)])
def test_offsets_that_are_not_committed_do_not_count(high_watermark: int, gone: int) -> None:
    """A truncation may take them, and fewer than `max_messages` would be left."""
    assert removed(row(90, 90, 90, 90), Limits(max_messages=1), high_watermark=high_watermark) == gone


@pytest.mark.parametrize(("high_watermark", "gone"), [(10, 0), (19, 0), (20, 1), (30, 2), (39, 2), (40, 3)])
def test_bytes_of_segments_that_are_not_committed_do_not_count(high_watermark: int, gone: int) -> None:
    assert removed(row(90, 90, 90, 90), Limits(max_bytes=1), high_watermark=high_watermark) == gone


def test_the_reason_is_told() -> None:
    reasons = expired(
        row(90, 0, 0),
        Limits(max_age_ms=50, max_bytes=100),
        log_end_offset=Offset(30),
        high_watermark=Offset(30),
        now_ns=NOW,
        appended_by=never,
    )
    assert list(reasons) == ["older than retention_max_age_ms=50", "beyond retention_max_bytes=100"]
