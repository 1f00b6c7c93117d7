"""When plain publishes may have been lost, and how that is reported."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.leading.publish_gaps import KEPT, GapCounters, PublishGaps
from tests.views import KEY, A, partition_view
from wire.subjects import Subjects
from wire.types import PartitionView, StreamName


class Bench:
    def __init__(self) -> None:
        self.now = 1000
        self.led = self.streams(flights=3)
        self.counters = GapCounters()
        self.ingest = SimpleNamespace(loss_reason="")
        context = SimpleNamespace(
            time_ns=lambda: self.now, the=lambda _: self.counters, ingest=self.ingest, subjects=Subjects()
        )
        self.gaps = PublishGaps(cast(Any, context), lambda: self.led)

    @staticmethod
    def streams(namespace: str = "", /, **partitions: int) -> list[PartitionView]:
        return [
            replace(
                partition_view(A, key=replace(KEY, stream=StreamName(name), partition=number)),
                subject=f"{namespace}{name}",
                partition_count=count,
            )
            for name, count in partitions.items()
            for number in range(count)
        ]


def test_a_loss_is_told_from_its_beginning_and_with_its_reason_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    assert bench.gaps.status() == []
    bench.gaps.on_connection(False)
    assert bench.gaps.status() == [
        {"began_ns": 1000, "ended_ns": None, "partitions": 3, "reason": "the connection was lost"}
    ]
    bench.now, bench.led, bench.ingest.loss_reason = 5000, bench.streams(flights=1), "a slow consumer"
    with caplog.at_level(logging.WARNING):
        bench.gaps.on_connection(True)
    assert bench.gaps.status() == [{"began_ns": 1000, "ended_ns": 5000, "partitions": 3, "reason": "a slow consumer"}]
    assert "3 partitions led here may have been lost" in caplog.text
    assert bench.counters.publish_gaps == 1


def test_where_nothing_is_led_nothing_can_be_lost() -> None:
    bench = Bench()
    bench.led = []
    bench.gaps.on_connection(False)
    bench.gaps.on_connection(True)
    assert (bench.gaps.status(), bench.counters.publish_gaps) == ([], 0)


def test_partitions_of_internal_streams_do_not_count_for_clients_publish_nothing_to_them() -> None:
    bench = Bench()
    bench.led = bench.streams("tidelog.", __audit=1)
    bench.gaps.on_connection(False)
    bench.gaps.on_connection(True)
    assert (bench.gaps.status(), bench.counters.publish_gaps) == ([], 0)
    bench.led = [*bench.streams("tidelog.", __audit=1), *bench.streams(__audit=3, flights=2)]
    bench.gaps.on_connection(False)
    assert [gap["partitions"] for gap in bench.gaps.status()] == [5], "a user's stream of that name does"


def test_partitions_that_take_no_plain_publishes_do_not_count() -> None:
    bench = Bench()
    bench.led = [replace(view, partition_count=2) for view in bench.led]
    bench.gaps.on_connection(False)
    assert [gap["partitions"] for gap in bench.gaps.status()] == [2]


def test_each_loss_is_a_gap_of_its_own_and_one_that_lasts_is_one() -> None:
    bench = Bench()
    bench.gaps.on_connection(True)
    for began in (1000, 2000):
        bench.now = began
        bench.gaps.on_connection(False)
        bench.now = began + 10
        bench.gaps.on_connection(False)
        bench.now = began + 20
        bench.gaps.on_connection(True)
        bench.now = began + 30
        bench.gaps.on_connection(True)
    assert [(gap["began_ns"], gap["ended_ns"]) for gap in bench.gaps.status()] == [(1000, 1020), (2000, 2020)]
    assert bench.counters.publish_gaps == 2


def test_the_newest_are_kept_and_all_are_counted() -> None:
    bench = Bench()
    for number in range(KEPT + 5):
        bench.now = number
        bench.gaps.on_connection(False)
        bench.gaps.on_connection(True)
    assert [gap["began_ns"] for gap in bench.gaps.status()] == list(range(5, KEPT + 5))
    assert bench.counters.publish_gaps == KEPT + 5
