"""What a leader stamps on its batches: no clock of its own moves the time of a log."""

# Rules: R73.

from __future__ import annotations

import pytest

from dataplane.replica.derived.dedup_window import IdMarks
from dataplane.replica.derived.producer_table import ProducerLimits, ProducerTable
from dataplane.replica.leader.log_clock import LogClock
from tests.unit.dataplane.replica.derived.test_producers import header
from wire.types import Offset

S = 1_000_000_000
HOUR = 3600 * S
DAY = 24 * HOUR
START = 1_700_000_000 * S


class Role:
    """A leader's; `agreed`: the time on which most brokers agree, None: none is known."""

    def __init__(self, newest: int, agreed: int | None) -> None:
        self.now = 50.0
        self.agreed = agreed
        self.clock = LogClock(newest, self.now, lambda: self.agreed)

    def after(self, seconds: float) -> int:
        self.now += seconds
        if self.agreed is not None:
            self.agreed += int(seconds * S)
        return self.clock.time(self.now)


def test_it_goes_on_by_the_time_that_elapses() -> None:
    role = Role(START, None)
    assert role.after(0) == START
    assert role.after(10) == START + 10 * S
    assert role.after(0.001) == START + 10 * S, "looked at a moment ago"
    assert role.after(3600) == pytest.approx(START + 10 * S + HOUR, abs=S)


@pytest.mark.parametrize("ahead", [HOUR, 8 * DAY])
def test_a_stamp_that_was_ahead_does_not_stop_the_time(ahead: int) -> None:
    """A leader of an earlier version wrote it, whose clock was wrong. The windows end as always."""
    role = Role(START + ahead, START)
    assert role.after(1) == START + ahead + S
    assert role.after(600) == pytest.approx(START + ahead + 601 * S, abs=10)


def test_time_in_which_nobody_led_counts_once_it_is_agreed_and_not_before() -> None:
    role = Role(START, None)
    assert role.after(60) == START + 60 * S
    role.agreed = START + 8 * HOUR
    assert role.after(60) == START + 8 * HOUR + 60 * S
    role.agreed = None
    assert role.after(60) == START + 8 * HOUR + 120 * S


@pytest.mark.parametrize("jump", [-HOUR, -8 * DAY])
def test_it_does_not_go_back(jump: int) -> None:
    role = Role(START, START)
    assert role.after(1) == START + S
    role.agreed = START + jump
    assert role.after(1) == START + 2 * S


def test_a_log_without_a_time_gets_the_first_one_that_is_agreed() -> None:
    role = Role(0, None)
    assert (role.after(0), role.after(1000)) == (0, 0)
    role.agreed = START
    assert role.after(0) == START, "at once, whenever it was looked at"


def test_producers_and_marks_of_before_the_first_time_count_from_there() -> None:
    limits = ProducerLimits(max_producers=10, expiration_ms=10_000)
    table = ProducerTable(limits=limits)
    early = header(0, 0, producer=1)._replace(append_time=0)
    table.record(early)
    table.restore(table.known._replace(id_marks=IdMarks(((0, 0),), 0)))
    table.record(header(1, 0, producer=2)._replace(append_time=START))
    assert set(table.known.producers) == {1, 2}
    assert table.id_marks.begin(START - S) == Offset(0)
    table.record(header(2, 1, producer=2)._replace(append_time=START + 9 * S))
    assert set(table.known.producers) == {1, 2}
    table.record(header(3, 2, producer=2)._replace(append_time=START + 10 * S))
    assert set(table.known.producers) == {2}
