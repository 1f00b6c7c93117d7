"""Quotas: what is taken in any time, how long a refusal asks to wait, and changes of the rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.replica.leader.quota import Quota
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.types import Incarnation, PartitionKey, StreamName

KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


def quota(*, size: int = 0, records: int = 0, now: float = 0.0) -> Quota:
    return Quota(KEY, StreamConfig(producer_byte_rate=size, producer_record_rate=records), now)


def refused(limit: Quota, now: float) -> TidelogError:
    error = limit.refuse(now)
    assert error is not None
    return error


ITEMS = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False),
        st.sampled_from(["batch", "uniform", "sizes"]),
        st.integers(1, 40),
        st.integers(1, 500),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(size=st.integers(0, 3000), records=st.integers(0, 60), items=ITEMS)
def test_in_no_time_more_is_taken_than_the_rate_allows_and_a_refusal_says_how_long_to_wait(
    size: int, records: int, items: list[tuple[float, str, int, int]]
) -> None:
    limit = quota(size=size, records=records)
    taken: list[tuple[float, int, int, int, int]] = []  # (when, bytes, records, bytes and records of the last piece)
    now = 0.0
    for pause, how, count, each in items:
        now += pause
        error = limit.refuse(now)
        if error is not None:
            assert limit.is_set
            after_ms = error.detail(RETRY_AFTER_MS)
            assert after_ms is not None
            assert after_ms >= 1
            probe = quota(size=size, records=records)
            probe._bytes.level, probe._records.level = limit._bytes.level, limit._records.level
            assert probe.refuse(after_ms / 1000) is None, "the wait is long enough"
            continue
        if how == "batch":
            limit.take(count, count * each, now)
            taken.append((now, count * each, count, count * each, count))
            continue
        sizes = np.full(count, each, np.int64)
        got = limit.take_uniform(count, each, now) if how == "uniform" else limit.take_sizes(sizes, now)
        assert 1 <= got <= count, "something is taken whenever nothing is refused"
        taken.append((now, got * each, got, each, 1))
        if got < count:
            assert limit.refuse(now) is not None or limit.refusal().code is Code.BACKPRESSURE
    for first in range(len(taken)):
        all_bytes = all_records = 0
        for when, of_bytes, of_records, last_bytes, last_records in taken[first:]:
            all_bytes += of_bytes
            all_records += of_records
            span = when - taken[first][0] + 1.0
            assert not size or all_bytes <= size * span + last_bytes + 1e-6 * size
            assert not records or all_records <= records * span + last_records + 1e-6 * records


@pytest.mark.parametrize(("rates", "step"), [({"size": 1000}, 0.1), ({"records": 10}, 0.1)])
def test_what_comes_evenly_within_the_rate_is_never_refused(rates: dict[str, int], step: float) -> None:
    limit = quota(**rates)
    for number in range(1, 500):
        now = number * step
        assert limit.refuse(now) is None
        limit.take(1, 100, now)


def test_an_idle_partition_takes_one_second_at_once_and_no_more() -> None:
    limit = quota(records=100)
    assert limit.take_uniform(1000, 10, 3600.0) == 100
    error = refused(limit, 3600.0)
    assert (error.code, error.detail(LIMIT), error.detail(RETRY_AFTER_MS)) == (
        Code.BACKPRESSURE,
        "producer_record_rate",
        1,
    )
    assert limit.take_uniform(1000, 10, 3600.5) == 50


def test_a_batch_above_the_rate_is_taken_and_its_excess_is_waited_for() -> None:
    limit = quota(size=1000)
    limit.take(5, 4000, 0.0)
    assert refused(limit, 0.0).detail(RETRY_AFTER_MS) == 3001
    assert limit.refuse(2.9) is not None
    assert limit.refuse(3.01) is None


def test_the_refusal_names_the_rate_that_is_waited_for() -> None:
    limit = quota(size=1000, records=10)
    limit.take(30, 100, 0.0)
    assert refused(limit, 0.0).detail(LIMIT) == "producer_record_rate"
    limit.take(1, 90_000, 0.0)
    error = refused(limit, 0.0)
    assert error.detail(LIMIT) == "producer_byte_rate"
    assert "partition s/0 takes 1000 bytes a second" in error.message


def test_rates_change_while_the_partition_is_used() -> None:
    limit = quota()
    assert limit.take_uniform(10**6, 10**6, 0.0) == 10**6
    limit.configure(StreamConfig(producer_record_rate=10), 5.0)
    assert limit.take_uniform(100, 1, 5.0) == 10, "a new quota begins with a full second"
    limit.configure(StreamConfig(producer_record_rate=1000), 5.0)
    assert limit.refuse(5.0) is not None, "what was taken stays taken"
    assert limit.take_uniform(10_000, 1, 6.0) == 1000
    limit.configure(StreamConfig(producer_record_rate=0, producer_byte_rate=100), 6.0)
    assert limit.take_uniform(10, 20, 6.0) == 5
    limit.configure(StreamConfig(), 6.0)
    assert (limit.is_set, limit.refuse(6.0)) == (False, None)


def test_a_clock_that_stands_still_or_goes_back_fills_nothing() -> None:
    limit = quota(records=10, now=100.0)
    limit.take(20, 1, 100.0)
    assert limit.refuse(50.0) is not None
    assert limit.refuse(100.0) is not None
    assert limit.refuse(101.1) is None
