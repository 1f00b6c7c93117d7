"""The bound on the producers that a broker remembers."""

from __future__ import annotations

import pytest

from dataplane.broker.leading.bounds_of_all import RECOUNT_S, WARNING_S, ProducersOfAll
from dataplane.replica.derived.producer_table import ProducerLimits, ProducerTable
from tests.unit.dataplane.replica.derived.test_producers import SECOND, written
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code
from wire.types import FIRST_TRANSACTIONAL_ID

LIMITS = ProducerLimits(max_producers=3, expiration_ms=3 * 3_600_000)
LATER = 3 * 3600 * SECOND


def bounded(most: int, *tables: ProducerTable) -> ProducersOfAll:
    producers = ProducersOfAll(most)
    producers.tables = lambda: tables
    return producers


def test_new_producers_are_refused_above_the_bound_and_taken_when_there_is_room() -> None:
    first, second = (ProducerTable([written(number, 0, 100)], limits=LIMITS) for number in (1, 2))
    producers = bounded(3, first, second)
    assert producers.refuse(0.0, 100 * SECOND) is None
    error = producers.refuse(0.1, 100 * SECOND)
    assert error is not None
    assert (error.code, error.detail(LIMIT), error.detail(RETRY_AFTER_MS)) == (Code.BACKPRESSURE, "producers", 1000)
    assert producers.refuse(0.1 + RECOUNT_S, 100 * SECOND) is None, "the one that was taken has written nothing"
    first.record(written(3, 0, 101))
    assert producers.refuse(0.2 + RECOUNT_S, 100 * SECOND) is not None
    second.rebuild([])
    assert producers.refuse(3.0, 100 * SECOND) is None


def test_a_producer_that_is_known_or_takes_the_place_of_another_makes_no_table_larger() -> None:
    table = ProducerTable([written(number, 0, 100) for number in (1, 2)], limits=LIMITS)
    assert not table.grows_with(1)
    assert table.grows_with(3)
    table.record(written(3, 0, 100))
    assert not table.grows_with(4), "the oldest goes"
    assert table.grows_with(FIRST_TRANSACTIONAL_ID), "one of transactions takes no other's place"


def test_partitions_in_which_nothing_is_appended_any_more_do_not_count() -> None:
    idle, used = (ProducerTable([written(number, 0, at)], limits=LIMITS) for number, at in ((1, 100), (2, 9999)))
    producers = bounded(2, idle, used)
    assert producers.refuse(0.0, 9999 * SECOND) is not None
    assert producers.refuse(2.0, 100 * SECOND + LATER) is None
    assert producers.count(5.0, 100 * SECOND + LATER) == 1


def test_a_refusal_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    producers = bounded(1, ProducerTable([written(1, 0, 100)], limits=LIMITS))
    for number in range(100):
        assert producers.refuse(number * WARNING_S / 50, 100 * SECOND) is not None
    assert [each.getMessage().split(":")[0] for each in caplog.records] == [
        "1 producers are remembered, and max_producers_of_all is 1"
    ] * 2
