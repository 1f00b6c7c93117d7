"""What a refusal for the partitioning version says, and which versions a producer goes by."""

# Rules: R67.

from __future__ import annotations

import pytest

from tests.unit.tidelog.client.producer.accumulators import core, failure, fill, refused, resolved, sent
from tidelog.client.producer.accumulator import PartitionAccumulator, RefreshMetadata
from tidelog.client.producer.layout_routes import MAX_OLDER, RoutedLayout, Routes
from tidelog.client.producer.partitioner import Partitioner
from wire.errors import Code


class Target:
    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.core: PartitionAccumulator = core()


def layout(version: int, count: int = 1) -> RoutedLayout[Target]:
    return RoutedLayout(version, Partitioner(range(count)), {number: Target(number) for number in range(count)})


@pytest.mark.parametrize(
    ("code", "details", "says"),
    [
        (Code.STALE_PARTITIONING, {"version": "2"}, True),
        (Code.PARTITION_DRAINING, {}, True),
        (Code.PARTITION_RETIRED, {}, True),
        (Code.UNAVAILABLE, {"version": "1"}, True),
        (Code.UNAVAILABLE, {}, False),
        (Code.BACKPRESSURE, {}, False),
    ],
)
def test_a_refusal_for_the_version_says_that_no_attempt_was_stored(
    code: Code, details: dict[str, str], says: bool
) -> None:
    acc = core()
    fill(acc, 1)
    (batch,) = sent(acc)
    acc.on_reconnected(1.0)
    assert sent(acc, 1.0) == [batch]
    assert batch.uncertain
    acc.outdate()
    effects = acc.on_error(batch, 2, refused(code, **details), 2.0)
    assert acc.is_drained is says
    assert not resolved(effects)
    if says:
        assert RefreshMetadata() in effects
        assert acc.take_back() == [batch]


def test_a_deposed_leader_does_not_know_what_was_stored() -> None:
    """The metadata of a deposed controller lead the batch back to it."""
    acc = core()
    fill(acc, 1)
    (batch,) = sent(acc)
    acc.on_probe_answer(6)
    assert sent(acc, 1.0) == [batch]
    acc.on_probe_answer(5)
    acc.on_metadata(5)
    assert sent(acc, 2.0) == [batch]
    acc.outdate()
    acc.on_error(batch, 3, refused(Code.STALE_PARTITIONING, version="2"), 2.0)
    assert not acc.is_drained
    acc.on_probe_answer(6)
    assert sent(acc, 3.0) == [batch]
    acc.on_error(batch, 4, refused(Code.STALE_PARTITIONING, version="2"), 3.0)
    assert acc.is_drained


def test_a_leader_that_has_forgotten_the_producer_cannot_tell() -> None:
    acc = core()
    fill(acc, 1)
    (batch,) = sent(acc)
    acc.on_reconnected(1.0)
    sent(acc, 1.0)
    acc.outdate()
    error = failure(acc.on_error(batch, 2, refused(Code.UNKNOWN_PRODUCER_ID), 2.0))
    assert error.code is Code.OUTCOME_UNKNOWN
    assert acc.is_drained


def test_an_outdated_partition_begins_no_batch_and_sends_its_window_on() -> None:
    acc = core()
    fill(acc, 2)
    first, second = sent(acc)
    fill(acc, 1)
    acc.outdate()
    assert not sent(acc)
    acc.on_reconnected(1.0)
    assert sent(acc, 1.0) == [first, second]
    acc.on_acknowledged(first, 0, 1)
    acc.on_acknowledged(second, 1, 1)
    assert acc.is_drained
    (waiting,) = acc.take_back()
    assert waiting.attempts == 0


def test_no_earlier_version_is_gone_by_once_a_later_one_has_stored_something() -> None:
    routes = Routes("s", layout(2), object)
    assert routes.wants(1)
    assert routes.wants(3)
    assert not routes.wants(2)
    assert not routes.on_acknowledged(2)
    assert not routes.wants(1)
    assert routes.wants(3)


def test_a_late_acknowledgement_of_a_later_version_leads_back_to_it() -> None:
    """A broker that is behind has told of the earlier one meanwhile."""
    routes = Routes("s", layout(2), object)
    routes.switch(layout(1))
    assert routes.on_acknowledged(2)
    assert routes.wants(2)
    routes.switch(layout(2))
    assert not routes.wants(1)


def test_layouts_in_use_are_bounded() -> None:
    routes = Routes("s", layout(1), object)
    for version in range(2, 2 + MAX_OLDER):
        assert not routes.is_full
        routes.switch(layout(version))
    assert routes.is_full
    routes.hand_over(next(iter(routes.older[0].targets.values())))
    assert not routes.is_full
