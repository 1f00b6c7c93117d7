"""Replicas outside the ISR catch up within a budget; members of it are neither charged nor kept waiting."""

# Rules: R89.

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from dataplane.replica.leader.catch_up_budget import ASKS_PER_S, LONGEST_QUEUE_S, RATE_LOOK_S, CatchUpBudget, Uncounted
from dataplane.replica.leader.leadership import SnapshotFetch
from dataplane.replica.replica_effects import LeaderEffect, ProposeIsr, Refuse, Respond, SendSnapshot
from tests.unit.dataplane.replica.cores import SETTINGS, Driver, of, view
from tests.views import A, B, C
from wire.errors import Code
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset

RATE = 1000
"""Bytes a second. A record of `Driver` has 100 bytes."""
FETCH = 400
"""`fetch_max_bytes`."""


class Budgeted:
    """A leader A with B in the ISR and C outside; C has some of the log."""

    def __init__(self, *, rate: int = RATE, records: int = 1000) -> None:
        self.counted = Uncounted()
        self.budget = CatchUpBudget(lambda: rate, 0.0, self.counted)
        settings = replace(SETTINGS, fetch_max_bytes=FETCH)
        self.driver = Driver(view(isr=(A, B)), settings=settings, budget=self.budget)
        self.driver.append(records)
        self.driver.fetch(B, records)

    def sent(self, replica: BrokerId, effects: list[LeaderEffect], size: int, now: float) -> None:
        """The driver sends the records of an answer."""
        assert of(Respond, effects)
        self.driver.leader.on_sent(replica, size, now)

    def catch_up(self, seconds: float, *, appends_per_s: int = 0) -> int:
        """C fetches for so long as it is told to; returns how many records it has got."""
        leader, now, end, appended = self.driver.leader, 0.0, 0, 0
        while now < seconds:
            due = int(appends_per_s * now) - appended
            if due > 0:
                self.driver.append(due, now=now)
                appended += due
                self.driver.fetch(B, leader.log_end_offset, now=now)
            effects = self.driver.fetch(C, end, now=now)
            if refusals := of(Refuse, effects):
                (refused,) = refusals
                assert refused.error.code is Code.BACKPRESSURE
                wait = refused.error.retry_after
                assert wait is not None
                assert wait > 0
                now += min(wait, SETTINGS.replica_max_idle_wait)  # as a follower does
                continue
            got = min(FETCH // 100, leader.log_end_offset - end)
            if got:
                self.sent(C, effects, 100 * got, now)
            end += got
            now += 0.001
        return end


def refusal(effects: list[LeaderEffect]) -> Code | None:
    return of(Refuse, effects)[0].error.code if of(Refuse, effects) else None


# ---- the bucket


def test_what_is_sent_in_a_time_is_bounded_by_the_rate() -> None:
    budget, now, sent = CatchUpBudget(lambda: RATE, 0.0), 0.0, 0
    while now < 10:
        wait = budget.wait_s(now, FETCH)
        if not wait:
            budget.charge(FETCH, now, FETCH)
            sent += FETCH
        now += wait or 0.0001
    assert RATE * 10 <= sent <= RATE * 11 + FETCH


def test_without_a_limit_nobody_waits_and_bytes_are_counted() -> None:
    counted = Uncounted()
    budget = CatchUpBudget(lambda: 0, 0.0, counted)
    for _ in range(5):
        assert budget.wait_s(0.0, FETCH) == 0.0
        budget.charge(10**9, 0.0)
    assert (counted.catch_up_bytes, counted.catch_up_waits) == (5 * 10**9, 0)


def test_answers_that_are_being_read_count_before_they_are_sent() -> None:
    budget = CatchUpBudget(lambda: RATE, 0.0)
    admitted = sum(budget.wait_s(0.0, FETCH) == 0.0 for _ in range(1_000))
    assert admitted == -(-RATE // FETCH), "no more than the bucket holds, and a part of one answer"
    budget.charge(FETCH // 2, 0.0, FETCH)
    budget.charge(FETCH // 2, 0.0, FETCH)
    assert budget.wait_s(0.0, FETCH) == 0.0, "two were sent, and were smaller"
    assert budget.wait_s(RATE_LOOK_S, FETCH) == 0.0, "those that were never sent are forgotten"


def test_a_replica_is_never_asked_to_wait_much_longer_than_the_bucket_needs() -> None:
    budget = CatchUpBudget(lambda: RATE, 0.0)
    budget.charge(2 * RATE, 0.0)
    waits = [budget.wait_s(0.0, FETCH) for _ in range(10_000)]
    assert max(waits) <= 1.0 + LONGEST_QUEUE_S


def test_replicas_that_are_refused_come_back_one_after_the_other() -> None:
    budget = CatchUpBudget(lambda: RATE, 0.0)
    budget.charge(RATE + 500, 0.0)
    waits = [budget.wait_s(0.0, FETCH) for _ in range(10)]
    assert waits[0] == pytest.approx(0.5)
    assert [later - earlier for earlier, later in pairwise(waits)] == pytest.approx([1 / ASKS_PER_S] * 9)


def test_an_altered_rate_holds_soon() -> None:
    rates = [RATE]
    budget = CatchUpBudget(lambda: rates[-1], 0.0)
    budget.charge(2 * RATE, 0.0)
    rates.append(10 * RATE)
    assert budget.wait_s(0.1, FETCH) == pytest.approx(0.9)
    assert budget.wait_s(RATE_LOOK_S + 0.001, FETCH) == 0.0
    budget.charge(11 * RATE, RATE_LOOK_S + 0.001)
    assert budget.wait_s(RATE_LOOK_S + 0.002, FETCH) == pytest.approx(1.1, abs=0.01)


# ---- the leader


def test_a_replica_outside_the_isr_is_told_to_wait_when_the_budget_is_used_up() -> None:
    leading = Budgeted()
    leading.budget.charge(RATE + 200, 0.0)
    effects = leading.driver.fetch(C, 3)
    assert not of(Respond, effects)
    (refused,) = of(Refuse, effects)
    assert refused.error.code is Code.BACKPRESSURE
    assert refused.error.retry_after == pytest.approx(0.2, abs=0.01)
    assert leading.counted.catch_up_waits == 1
    assert leading.driver.leader.progress()[C] == (3, False), "its progress counts all the same"
    assert of(Respond, leading.driver.fetch(C, 3, now=0.5))


def test_members_are_neither_charged_nor_kept_waiting() -> None:
    leading = Budgeted()
    leading.budget.charge(100 * RATE, 0.0)
    charged = leading.counted.catch_up_bytes
    leading.driver.append(50)
    for number in range(20):
        leading.sent(B, leading.driver.fetch(B, 1000 + number), 100, 0.0)
    assert leading.counted.catch_up_bytes == charged


def test_one_that_is_proposed_for_the_isr_counts_as_a_member() -> None:
    leading = Budgeted()
    leading.budget.charge(100 * RATE, 0.0)
    charged = leading.counted.catch_up_bytes
    assert of(ProposeIsr, leading.driver.fetch(C, 1000)), "it has all that is committed, and did not wait"
    leading.driver.append(50)
    leading.sent(C, leading.driver.fetch(C, 1001), 100, 0.0)
    assert leading.counted.catch_up_bytes == charged


def test_one_that_has_all_that_is_committed_does_not_wait() -> None:
    leading = Budgeted()
    leading.budget.charge(100 * RATE, 0.0)
    leading.driver.append(50)  # B has not acknowledged them
    assert refusal(leading.driver.fetch(C, 999)) is Code.BACKPRESSURE
    assert refusal(leading.driver.fetch(C, 1000)) is None


def test_the_distance_to_the_end_shrinks_at_the_rate_of_the_budget() -> None:
    leading = Budgeted()
    got = leading.catch_up(20.0)
    assert 20 * RATE <= 100 * got <= 21 * RATE + FETCH
    assert 100 * got == leading.counted.catch_up_bytes


@pytest.mark.parametrize("appends_per_s", [5, 10, 100])
def test_records_that_come_meanwhile_do_not_starve_it(appends_per_s: int) -> None:
    """Also where as many come as the budget has bytes, or ten times as many."""
    leading = Budgeted(records=300)
    got = leading.catch_up(40.0, appends_per_s=appends_per_s)
    assert got >= leading.driver.leader.log_end_offset - appends_per_s, "it has got to the end"


def test_records_that_come_meanwhile_do_not_take_it_further_away_while_others_use_the_budget_up() -> None:
    leading = Budgeted(records=300)
    leading.budget.charge(10**9, 0.0)
    got = leading.catch_up(40.0, appends_per_s=100)
    missing = leading.driver.leader.log_end_offset - got
    assert missing <= 300 + 100 * SETTINGS.replica_max_idle_wait + FETCH


def test_what_came_while_it_was_away_is_not_free() -> None:
    leading = Budgeted()
    leading.sent(C, leading.driver.fetch(C, 0), FETCH, 0.0)
    leading.driver.append(1000)
    later = SETTINGS.replica_max_lag_time + 1
    leading.driver.fetch(B, 2000, now=later)
    leading.budget.charge(100 * RATE, later)
    assert refusal(leading.driver.fetch(C, 4, now=later)) is Code.BACKPRESSURE


def test_copies_of_the_derived_state_are_charged() -> None:
    leading = Budgeted()
    asked = SnapshotFetch(
        replica=C, incarnation=Incarnation(20), leader_epoch=LeaderEpoch(1), offset=Offset(0), position=0, inbox="i"
    )
    assert of(SendSnapshot, leading.driver.leader.on_snapshot_request(asked, 0.0))
    leading.driver.leader.on_snapshot_sent(C, RATE + 500, 0.0)
    (refused,) = of(Refuse, leading.driver.leader.on_snapshot_request(asked, 0.0))
    assert refused.error.code is Code.BACKPRESSURE
    assert of(SendSnapshot, leading.driver.leader.on_snapshot_request(replace(asked, replica=B), 0.0))
