"""Which partitions may append when much waits for its commit."""

from __future__ import annotations

from random import Random

import pytest

from dataplane.replica.leader.commits import LATE, MOST_OF_A_CROWD, Uncommitted
from dataplane.replica.replica_settings import ReplicaSettings
from tests.unit.dataplane.replica.cores import Driver, view
from tests.views import A, B, C

SETTINGS = ReplicaSettings(max_uncommitted_bytes=5000, max_uncommitted_bytes_of_all=6400)
LATELY = LATE * SETTINGS.replica_max_lag_time
TOO_LONG = LATELY + 0.001


def shared(size: int, *, partitions: int = 4, waiting: int = 4) -> Uncommitted:
    made = Uncommitted(SETTINGS)
    made.size, made.partitions, made.waiting = size, partitions, waiting
    return made


def test_a_partition_has_a_bound_of_its_own_whatever_the_others_hold() -> None:
    assert shared(5001, partitions=1, waiting=1).why_not(5000, 0.0) is None
    assert "5001 bytes" in (shared(5001, partitions=1, waiting=1).why_not(5001, 0.0) or "")


def test_above_the_bound_of_all_partitions_above_their_share_are_refused() -> None:
    assert shared(6400).why_not(4000, LATELY) is None
    assert shared(6401).why_not(1600, LATELY) is None
    assert shared(6401).why_not(1601, LATELY) is not None


def test_while_commits_are_late_the_bound_is_divided_by_the_waiting_partitions() -> None:
    assert shared(1600).why_not(1600, TOO_LONG) is None
    assert shared(1601).why_not(401, TOO_LONG) is not None
    assert shared(1601).why_not(400, TOO_LONG) is None
    assert shared(1601).why_not(401, LATELY) is None


def test_a_crowd_divides_it_no_further() -> None:
    crowd = 10 * MOST_OF_A_CROWD
    limit = 6400 // MOST_OF_A_CROWD
    assert shared(limit, partitions=crowd, waiting=crowd).why_not(limit, TOO_LONG) is None
    assert shared(limit + 1, partitions=1, waiting=crowd).why_not(limit + 1, TOO_LONG) is not None


def test_commits_are_not_late_while_no_publish_waits() -> None:
    assert shared(6400, waiting=0).why_not(6400 // 4, TOO_LONG) is None


def test_partitions_that_are_stuck_below_min_isr_are_no_crowd() -> None:
    shared = Uncommitted(SETTINGS)
    stuck = [Driver(shared=shared) for _ in range(SETTINGS.gather_from)]
    for each in stuck:
        each.append(5)
        each.leader.on_view(view(isr=(A,), epoch=2), 0.1)
    healthy = Driver(shared=shared)
    soon, later = SETTINGS.gather_time / 2, 3600.0
    healthy.append(1, now=soon)
    assert healthy.leader.gathers_until(soon) == soon + SETTINGS.gather_time
    for each in stuck:
        each.append(5, now=later)
    healthy.append(1, now=later)
    healthy.fetch(B, 1, now=later)
    healthy.fetch(C, 1, now=later)
    assert (healthy.high_watermark, healthy.leader.gathers_until(later)) == (1, 0.0)
    assert shared.waiting == len(stuck) + 1, "their bytes are bounded nevertheless"


@pytest.mark.parametrize("seed", range(40))
def test_a_crowd_is_those_that_wait_and_have_moved_lately(seed: int) -> None:
    rng, now = Random(seed), 0.0
    shared = Uncommitted(SETTINGS)
    moved: dict[Driver, float] = {}
    """Of those that wait: when they began to, or got a commit."""
    led = [Driver(shared=shared) for _ in range(8)]
    for _ in range(300):
        now += rng.choice((0.0, 0.01, 0.2)) * SETTINGS.gather_time
        driver = rng.choice(led)
        before = driver.high_watermark
        match rng.choice(("append", "append", "commit", "commit", "resign")):
            case "append":
                driver.append(1, now=now)
                moved.setdefault(driver, now)
            case "commit":
                end = rng.randint(before, driver.leader.log_end_offset)
                driver.fetch(B, end, now=now)
                driver.fetch(C, end, now=now)
            case "resign" if rng.random() < 0.1:
                driver.leader.resign("moved", now)
                moved.pop(driver, None)
                led[led.index(driver)] = Driver(shared=shared)
        if driver.high_watermark > before:
            moved[driver] = now
            if driver.high_watermark == driver.leader.log_end_offset:
                del moved[driver]
        lately = [at for at in moved.values() if at + SETTINGS.gather_time > now]
        assert shared.is_crowd(now) == (len(lately) >= SETTINGS.gather_from)
        assert shared.waiting == len(moved)
    for driver in led:
        if rng.random() < 0.5:
            driver.leader.resign("moved", now)
        else:
            driver.fetch(B, driver.leader.log_end_offset, now=now)
            driver.fetch(C, driver.leader.log_end_offset, now=now)
    assert (shared.size, shared.waiting, len(shared._moving)) == (0, 0, 0)
