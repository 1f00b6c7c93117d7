"""Which fetches a leader holds, and what that counts for."""

# Rules: R83.

from __future__ import annotations

import pytest

from tests.unit.dataplane.replica.cores import Driver, view
from tests.views import A, B, C
from wire.durability import ACCEPTED
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset

LAG = 6.0
"""Seconds; more than `replica_max_lag_time`."""


def parked_at(driver: Driver, replica: BrokerId, *, now: float = 0.0) -> int:
    """A fetch that waits. Returns its number."""
    driver.fetch(replica, driver.leader.log_end_offset, now=now)
    return driver.sequence


def holds(
    driver: Driver, sequence: int, *, replica: BrokerId = B, incarnation: int = 20, epoch: int = 1, now: float = 1.0
) -> bool:
    return driver.leader.on_parked(replica, Incarnation(incarnation), LeaderEpoch(epoch), sequence, now)


def test_a_fetch_that_waits_is_held() -> None:
    driver = Driver()
    assert holds(driver, parked_at(driver, B))


def test_only_that_very_fetch_is_held() -> None:
    driver = Driver()
    number = parked_at(driver, B)
    other = parked_at(driver, C)
    assert not holds(driver, other)
    assert not holds(driver, number, replica=C)
    assert not holds(driver, number, replica=BrokerId("stranger"))
    assert not holds(driver, number, incarnation=21)
    assert not holds(driver, number, epoch=2)
    assert not holds(driver, number, epoch=0)
    assert holds(driver, number)
    assert holds(driver, other, replica=C)


def test_a_later_fetch_takes_the_place_of_an_earlier_one() -> None:
    driver = Driver()
    number = parked_at(driver, B)
    later = parked_at(driver, B)
    assert not holds(driver, number)
    assert holds(driver, later)


def test_a_report_leaves_it_where_it_is() -> None:
    driver = Driver()
    number = parked_at(driver, B)
    driver.fetch(B, 0, progress_only=True)
    assert holds(driver, number)


def test_a_waiter_that_has_fired_holds_nothing() -> None:
    """Its answer may be lost."""
    driver = Driver()
    number = parked_at(driver, B)
    driver.append(1)
    assert not holds(driver, number)


def test_a_fetch_without_an_answer_is_not_held() -> None:
    driver = Driver()
    driver.append(1, now=0.0)
    driver.fetch(B, 1, now=0.001)  # an empty answer to it is put off
    assert not holds(driver, driver.sequence, now=0.002)


def test_a_follower_whose_report_was_lost_has_something_to_say() -> None:
    driver = Driver()
    driver.append(1, now=0.0)
    driver.fetch(B, 1, durable=0, now=0.0)
    number = driver.sequence
    driver.fetch(C, 1, now=0.0)
    driver.leader.tick(0.9)  # the answer that was put off leaves
    assert not holds(driver, number)
    driver.fetch(B, 1, durable=1, progress_only=True, now=1.0)
    assert holds(driver, number)


def test_a_follower_outside_the_isr_fetches() -> None:
    driver = Driver(view(isr=(A, C)))
    assert not holds(driver, parked_at(driver, B))


def test_a_follower_without_room_fetches() -> None:
    driver = Driver()
    driver.fetch(B, 0, no_space=True)
    assert not holds(driver, driver.sequence)


def test_a_follower_that_does_not_know_the_leaders_start_fetches() -> None:
    """A risen log start reaches the follower with the answer to its fetch (R82)."""
    driver = Driver(log_end=8, high_watermark=8)
    number = parked_at(driver, B)
    driver.leader.on_log_start(Offset(5))
    assert driver.leader.start_to_tell(B) == 5
    assert not holds(driver, number)


@pytest.mark.parametrize("durable", [True, False])
def test_a_follower_whose_fetch_is_held_does_not_lag(durable: bool) -> None:
    driver = Driver() if durable else Driver(view(durability=ACCEPTED))
    numbers = [(replica, parked_at(driver, replica)) for replica in (B, C)]
    for second in range(1, 10):
        for replica, number in numbers[: 1 if second > 2 else 2]:
            assert holds(driver, number, replica=replica, now=float(second))
        driver.leader.tick(float(second))
    assert sorted(driver.leader.isr.maximal - driver.leader.isr.members) == []
    change = getattr(driver.leader.isr, "change", None)
    assert change is not None, "C has not been held since, and lags"
    assert [member.broker for member in change.new_isr] == [A, B]


def test_what_is_not_held_counts_for_nothing() -> None:
    driver = Driver()
    number = parked_at(driver, B)
    parked_at(driver, C)
    driver.append(1, now=0.5)
    for second in range(1, 10):
        assert not holds(driver, number, now=float(second))
        driver.leader.tick(float(second))
    assert getattr(driver.leader.isr, "change", None) is not None


def test_a_waiter_that_has_fired_with_an_empty_answer_holds_nothing() -> None:
    """The committed end has risen above what the follower knows, and that answer may be lost."""
    driver = Driver()
    driver.append(1)
    driver.fetch(B, 1, now=0.1)
    number = driver.sequence
    driver.leader.tick(0.4)  # the answer that was put off leaves
    assert holds(driver, number, now=0.45)
    driver.fetch(C, 1, now=0.5)
    driver.leader.tick(0.6)
    assert not holds(driver, number, now=0.7)


def test_a_follower_whose_disk_hangs_fetches() -> None:
    driver = Driver()
    driver.fetch(B, 0, disk_hangs=True)
    assert not holds(driver, driver.sequence)
