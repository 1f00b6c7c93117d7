"""A planned move, seen from the leader: it sequences nothing more, says when the target holds everything, and goes on
when that, or the change, does not come."""

from __future__ import annotations

import pytest

from dataplane.replica.leader.leader import Leader
from dataplane.replica.replica_effects import CompleteDrain, CompleteProduce, LeaderEffect, Respond
from dataplane.replica.replies import MarkReply, MoveRequest
from tests.unit.dataplane.replica.cores import ALL, LOCAL, Driver, of, view
from tests.views import KEY, A, B, C
from wire.durability import ACCEPTED
from wire.errors import Code, TidelogError
from wire.types import BrokerId, LeaderEpoch, LeaderMove, Offset


def refusal(leader: Leader, *, acks_all: bool = True) -> TidelogError | None:
    return leader.admission.refuse(ALL if acks_all else LOCAL, lease_valid=True, now=0.0)


def drained(effects: list[LeaderEffect]) -> list[TidelogError | None]:
    return [effect.error for effect in of(CompleteDrain, effects)]


FIRST, SECOND = (
    MoveRequest(LeaderMove(key=KEY, leader=A, leader_epoch=LeaderEpoch(1), target=target), lambda _: None)
    for target in (B, C)
)


def drain(driver: Driver, target: BrokerId = B, *, token: MoveRequest = FIRST, now: float = 0.0) -> list[LeaderEffect]:
    return driver.leader.drain(target, token, 2.0, now)


def caught_up() -> Driver:
    """Five records, all of them committed."""
    driver = Driver()
    driver.append(5)
    driver.fetch(B, 5)
    driver.fetch(C, 5)
    assert driver.high_watermark == 5
    return driver


def test_with_nothing_under_way_the_target_can_lead_at_once() -> None:
    assert drain(caught_up()) == [CompleteDrain(FIRST)]


def test_a_publish_is_refused_as_one_that_may_be_sent_again() -> None:
    driver = caught_up()
    driver.append(1)
    drain(driver)
    for acks_all in (True, False):
        error = refusal(driver.leader, acks_all=acks_all)
        assert error is not None
        assert (error.code, error.retriable) == (Code.UNAVAILABLE, True)
        assert "moving from a to b" in error.message
        assert "retry_after_ms" in error.details


def test_followers_are_answered_until_the_target_and_the_high_watermark_are_at_the_end() -> None:
    driver = caught_up()
    driver.append(3)
    driver.leader.await_ack(ALL, Offset(8), MarkReply("ack"), 10.0, 0.0)
    assert drained(drain(driver)) == []
    (answer,) = of(Respond, driver.fetch(B, 5))
    assert answer.max_bytes > 0
    assert drained(driver.fetch(B, 8)) == [], "C holds up the commit"
    out = driver.fetch(C, 8)
    assert drained(out) == [None]
    assert of(CompleteProduce, out) == [CompleteProduce(MarkReply("ack"))], (
        "no acknowledgement is left when the target can lead"
    )


def test_fetched_is_not_enough_on_a_durable_stream() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver)
    driver.fetch(C, 8)
    assert drained(driver.fetch(B, 8, durable=5)) == []
    assert drained(driver.fetch(B, 8, durable=8, progress_only=True)) == [None]


def test_a_drain_may_wait_for_the_leaders_own_sync() -> None:
    driver = caught_up()
    driver.append(3, synced=False)
    driver.fetch(B, 8)
    driver.fetch(C, 8)
    assert drained(drain(driver)) == []
    assert drained(driver.leader.on_synced(Offset(8), 0.0)) == [None]


def test_the_end_of_a_target_in_an_earlier_epoch_does_not_count() -> None:
    """The HW of a new leader may be its LEO before anybody has fetched from it."""
    driver = Driver(view(leader_epoch=2), log_end=5, high_watermark=5)
    assert drained(drain(driver)) == []
    assert drained(driver.fetch(B, 5)) == [None]


def test_once_the_target_can_lead_an_unacknowledged_publish_gets_no_answer_from_the_old_leader() -> None:
    """The new one may have stored it: plain publishes are never answered with NOT_LEADER."""
    driver = caught_up()
    drain(driver)
    error = refusal(driver.leader)
    assert error is not None
    assert error.code is Code.NOT_LEADER


def test_a_target_that_does_not_get_there_in_time_leaves_the_leader_going() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver)
    assert driver.leader.next_deadline() <= 2.0
    assert drained(driver.leader.tick(1.9)) == []
    (error,) = drained(driver.leader.tick(2.0))
    assert error is not None
    assert error.code is Code.LEADER_NOT_MOVED
    assert "the log ends at 8, b holds it to 5, it is committed to 5" in error.message
    assert refusal(driver.leader) is None
    assert drained(driver.fetch(B, 8)) == [], "answered once"


def test_a_change_that_does_not_come_leaves_the_leader_going() -> None:
    driver = caught_up()
    drain(driver, now=1.0)
    driver.leader.tick(2.9)
    assert refusal(driver.leader) is not None
    assert driver.leader.next_deadline() <= 3.0
    assert drained(driver.leader.tick(3.0)) == [], "whoever asked has its answer"
    assert refusal(driver.leader) is None
    driver.append(1, now=3.0)


def test_a_target_that_leaves_the_isr_ends_the_drain_at_once() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver)
    (error,) = drained(driver.leader.on_view(view(isr=(A, C), epoch=2), 0.1))
    assert error is not None
    assert "b is not in its ISR, a, c" in error.message
    assert refusal(driver.leader) is None
    done = caught_up()
    drain(done)
    assert drained(done.leader.on_view(view(isr=(A, C), epoch=2), 0.1)) == []
    assert refusal(done.leader) is None


@pytest.mark.parametrize("target", [A, BrokerId("x")])
def test_a_target_that_is_no_follower_in_the_isr_is_refused(target: BrokerId) -> None:
    driver = caught_up()
    (error,) = drained(drain(driver, target))
    assert error is not None
    assert error.code is Code.LEADER_NOT_MOVED
    assert refusal(driver.leader) is None


def test_a_later_request_replaces_an_earlier_one() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver, B, token=FIRST)
    (ended,) = of(CompleteDrain, drain(driver, C, token=SECOND, now=1.0))
    assert ended.token == FIRST
    assert ended.error is not None
    driver.fetch(B, 8)
    assert of(CompleteDrain, driver.fetch(C, 8)) == [CompleteDrain(SECOND)]


def test_a_later_request_may_come_when_the_first_one_was_ready_and_nothing_came_of_it() -> None:
    driver = caught_up()
    drain(driver, B)
    assert of(CompleteDrain, drain(driver, C, token=SECOND, now=1.0)) == [CompleteDrain(SECOND)]


def test_a_shrink_of_the_isr_may_let_the_target_lead() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver)
    driver.fetch(B, 8)
    assert drained(driver.leader.on_view(view(isr=(A, B), epoch=2), 0.1)) == [None]


def test_below_min_isr_nothing_commits_and_the_target_is_not_told_to_lead() -> None:
    driver = Driver(view(isr=(A, B), min_isr=3, durability=ACCEPTED))
    driver.append(3)
    drain(driver)
    assert drained(driver.fetch(B, 3)) == []
    (error,) = drained(driver.leader.tick(2.0))
    assert error is not None


def test_when_leadership_ends_otherwise_the_requester_is_told() -> None:
    driver = caught_up()
    driver.append(3)
    drain(driver)
    (error,) = drained(driver.leader.resign("LeaderEpoch 7 of s/0 has begun", 1.0))
    assert error is not None
    assert "LeaderEpoch 7" in error.message
    done = caught_up()
    drain(done)
    assert drained(done.leader.resign("the move", 1.0)) == []
