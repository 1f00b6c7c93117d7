"""The leader's rules, one by one. Each test names the rule; breaking the rule in the code makes it fail."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.leader.commits import Uncommitted
from dataplane.replica.leader.data_waiters import UNCOMMITTED_DELAYS
from dataplane.replica.leader.isr import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from dataplane.replica.replica_effects import (
    CompleteProduce,
    Notify,
    ProposeIsr,
    Refuse,
    RefuseConsumer,
    Respond,
    ServeConsumer,
    VerifyOwnCopy,
)
from dataplane.replica.replica_settings import ReplicaSettings
from dataplane.replica.replies import MarkReply, Reader
from tests.unit.dataplane.replica.cores import ALL, LOCAL, SETTINGS, Driver, of, view
from tests.views import A, B, C, partition_view
from wire.durability import ACCEPTED
from wire.error_details import DELETIONS_GONE
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import BrokerId, Incarnation, IsrMember, LeaderEpoch, Offset, PartitionView


# ---------------------------------------------------------------- commit
def test_a_record_commits_when_every_member_of_the_isr_has_it_durably() -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch(B, 5)
    assert driver.high_watermark == 0
    driver.fetch(C, 5)
    assert driver.high_watermark == 5


def test_appended_is_not_enough_on_a_durable_stream() -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch(B, 5, durable=0)
    driver.fetch(C, 5)
    assert driver.high_watermark == 0
    driver.fetch(B, 5, durable=5, progress_only=True)
    assert driver.high_watermark == 5


def test_the_leaders_own_sync_counts_like_anybody_elses() -> None:
    driver = Driver()
    driver.append(5, synced=False)
    driver.fetch(B, 5)
    driver.fetch(C, 5)
    assert driver.high_watermark == 0
    driver.leader.on_synced(Offset(5), 0.0)
    assert driver.high_watermark == 5


def test_an_accepted_stream_commits_from_the_page_cache() -> None:
    driver = Driver(view(durability=ACCEPTED))
    driver.append(5, synced=False)
    driver.fetch(B, 5, durable=0)
    driver.fetch(C, 5, durable=0)
    assert driver.high_watermark == 5


def test_the_high_watermark_begins_at_the_replicas_own_and_never_moves_back() -> None:
    driver = Driver(view(leader_epoch=2), log_end=10, high_watermark=7)
    driver.fetch(B, 3)
    driver.fetch(C, 3)
    assert driver.high_watermark == 7


def test_a_high_watermark_above_the_log_is_cut_to_it() -> None:
    assert Driver(log_end=4, high_watermark=9).high_watermark == 4


def test_the_high_watermark_is_frozen_while_the_committed_isr_is_below_min_isr() -> None:
    driver = Driver(view(isr=(A,)))
    driver.append(5)
    assert driver.high_watermark == 0
    driver.fetch(B, 5)  # proposed, not committed: it does not help to reach min ISR
    assert driver.high_watermark == 0
    driver.leader.on_view(view(isr=(A, B), epoch=2), 0.0)
    assert driver.high_watermark == 5


def test_a_proposed_member_holds_commits_up_before_it_is_committed() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.append(5)
    driver.fetch(B, 5)
    assert driver.high_watermark == 5
    assert of(ProposeIsr, driver.fetch(C, 5))
    driver.append(5)
    driver.fetch(B, 10)
    assert driver.high_watermark == 5, "C may count as in sync already: what it lacks is not committed"
    driver.fetch(C, 10)
    assert driver.high_watermark == 10


def test_progress_of_an_earlier_life_does_not_count() -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch(B, 5, incarnation=20)
    driver.fetch(B, 0, incarnation=21)
    driver.fetch(C, 5)
    assert driver.high_watermark == 0
    refused = driver.fetch(B, 5, incarnation=20)
    assert of(Refuse, refused)[0].error.code is Code.STALE_EPOCH
    assert driver.high_watermark == 0


def test_late_and_repeated_requests_change_nothing() -> None:
    driver = Driver()
    driver.append(5)
    driver.fetch(B, 0, sequence=7)
    assert driver.fetch(B, 5, sequence=7) == []
    assert driver.fetch(B, 5, sequence=6) == []
    driver.fetch(C, 5, sequence=9)
    assert driver.high_watermark == 0


# ---------------------------------------------------------------- fencing
def test_a_request_of_a_newer_epoch_meets_silence() -> None:
    assert Driver(view(leader_epoch=3)).fetch(B, 0, leader_epoch=4) == []


def test_a_request_of_an_older_epoch_is_fenced_with_our_own() -> None:
    effects = Driver(view(leader_epoch=3)).fetch(B, 0, leader_epoch=2)
    (refusal,) = of(Refuse, effects)
    assert refusal.error.code is Code.FENCED_LEADER_EPOCH
    assert refusal.error.details["leader_epoch"] == "3"


def test_an_offset_request_is_fenced_in_the_same_way() -> None:
    driver = Driver(view(leader_epoch=3), log_end=10)
    assert driver.leader.on_offset_request(LeaderEpoch(1), LeaderEpoch(4)) is None
    refused = driver.leader.on_offset_request(LeaderEpoch(1), LeaderEpoch(2))
    assert isinstance(refused, TidelogError)
    assert refused.code is Code.FENCED_LEADER_EPOCH
    assert driver.leader.on_offset_request(LeaderEpoch(2), LeaderEpoch(3)) == (1, 10)


def test_a_follower_ahead_of_the_log_is_sent_back_to_reconcile() -> None:
    driver = Driver(log_end=3)
    assert of(Refuse, driver.fetch(B, 4))[0].error.code is Code.OFFSET_AHEAD
    assert driver.high_watermark == 0


def test_a_follower_below_the_log_start_is_told_where_it_begins() -> None:
    driver = Driver(log_end=10, log_start=5)
    (refusal,) = of(Refuse, driver.fetch(B, 4))
    assert refusal.error.code is Code.OFFSET_BEFORE_LOG
    assert refusal.error.details["log_start"] == "5"


def test_a_follower_that_lacks_deletions_that_are_gone_is_told_to_begin_anew() -> None:
    driver = Driver(log_end=10)
    driver.leader.deletions_end = Offset(8)
    effects = driver.fetch(B, 7)
    (refusal,) = of(Refuse, effects)
    assert (refusal.error.code, refusal.error.details["log_start"]) == (Code.OFFSET_BEFORE_LOG, "0")
    assert refusal.error.detail(DELETIONS_GONE)
    assert not of(Respond, effects)
    assert of(Refuse, driver.fetch(B, 3, deleted_end=7))
    assert of(Respond, driver.fetch(B, 3, deleted_end=8))
    assert of(Respond, driver.fetch(B, 8))


def test_a_late_request_does_not_tell_the_present_end_of_its_replica() -> None:
    """A follower's report of deletions is looked at again once its records have been read from the disk."""
    driver = Driver(log_end=10)
    driver.fetch(B, 3, deleted_end=4)
    driver.leader.deletions_end = Offset(6)
    driver.fetch(B, 3, deleted_end=8, leader_epoch=driver.leader.leader_epoch - 1)
    driver.fetch(B, 3, deleted_end=8, sequence=0)
    assert driver.leader.lacks_deletions(B, Offset(3))
    assert not driver.leader.lacks_deletions(B, Offset(6))


def test_a_broker_that_is_no_replica_is_refused() -> None:
    assert of(Refuse, Driver().fetch(BrokerId("x"), 0))[0].error.code is Code.STALE_EPOCH


# ---------------------------------------------------------------- data waiters
def test_a_caught_up_follower_is_answered_at_once_and_its_waiter_fires_once() -> None:
    driver = Driver()
    (empty,) = of(Respond, driver.fetch(B, 0))
    assert empty.max_bytes == 0
    (pushed,) = of(Respond, driver.append(3))
    assert (pushed.inbox, pushed.offset, pushed.max_bytes > 0) == (empty.inbox, 0, True)
    assert of(Respond, driver.append(3)) == [], "the waiter is gone until the follower fetches again"


def test_without_push_the_waiter_notifies_and_repeats_until_the_follower_fetches() -> None:
    driver = Driver(settings=ReplicaSettings(push_to_waiters=False))
    driver.fetch(B, 0)
    assert of(Notify, driver.append(3)) == [Notify(B)]
    assert of(Notify, driver.leader.tick(0.01)) == []
    assert of(Notify, driver.leader.tick(0.06)) == [Notify(B)]
    driver.fetch(B, 0, now=0.07)
    assert of(Notify, driver.leader.tick(0.2)) == []


def test_a_push_that_brings_no_fetch_is_followed_by_a_notification() -> None:
    driver = Driver()
    driver.fetch(B, 0)
    driver.append(3)
    assert driver.leader.next_deadline() == pytest.approx(0.05)
    assert of(Notify, driver.leader.tick(0.06)) == [Notify(B)]


def test_a_progress_report_does_not_supersede_the_waiting_request() -> None:
    driver = Driver()
    driver.fetch(B, 0)
    driver.fetch(B, 0, progress_only=True)
    assert len(of(Respond, driver.append(1))) == 1


def test_an_idle_follower_learns_of_a_new_high_watermark() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.append(3)
    driver.fetch(B, 3, durable=0)
    driver.fetch(B, 3, durable=3, progress_only=True)
    assert driver.high_watermark == 3
    assert of(Respond, driver.leader.tick(0.01)) == []
    (told,) = of(Respond, driver.leader.tick(0.03))
    assert (told.replica, told.max_bytes, told.high_watermark) == (B, 0, 3)


# ---------------------------------------------------------------- ISR
def test_a_lagging_member_is_proposed_to_be_dropped_but_never_the_leader() -> None:
    driver = Driver()
    driver.append(5)
    for t in (1.0, 2.0, 3.0, 4.0, 5.0):
        driver.leader.tick(t)
        driver.fetch(B, 5, now=t)
    (proposal,) = of(ProposeIsr, driver.leader.tick(5.5))
    assert [m.broker for m in proposal.change.new_isr] == [A, B]
    assert proposal.change.expected_epoch == 1
    assert isinstance(driver.leader.isr, PendingShrinkIsr)
    assert driver.high_watermark == 0, "the shrink is not committed yet"
    driver.leader.on_view(view(isr=(A, B), epoch=2), 5.6)
    assert driver.high_watermark == 5


def test_a_member_whose_disk_hangs_is_dropped_though_it_fetches() -> None:
    driver = Driver()
    driver.append(5)
    proposals: list[ProposeIsr] = []
    for t in range(1, 7):
        driver.fetch(B, 5, now=float(t))
        driver.fetch(C, 5, durable=0, now=float(t))
        proposals = of(ProposeIsr, driver.leader.tick(float(t)))
    assert [m.broker for m in proposals[0].change.new_isr] == [A, B]


def test_lag_is_not_judged_by_a_time_in_which_the_leader_slept() -> None:
    driver = Driver()
    driver.append(5)
    driver.leader.tick(1.0)
    assert of(ProposeIsr, driver.leader.tick(60.0)) == []
    assert isinstance(driver.leader.isr, CommittedIsr)


def test_a_leader_whose_followers_are_in_step_ticks_rarely_and_finds_a_lag_with_the_second_of_two_near_ticks() -> None:
    driver = Driver(view(isr=(A, B, C)))
    settings = driver.leader.settings
    near = settings.replica_max_lag_time / 4
    driver.fetch(B, 0, now=0.5)
    driver.fetch(C, 0, now=1.0)
    driver.leader.tick(1.0)
    first = driver.leader.next_deadline()
    assert first == pytest.approx(0.5 + settings.replica_max_lag_time - near)
    # The process sleeps, and the tick is as late as one that is not taken for a sleep.
    late = first + settings.late_tick
    assert of(ProposeIsr, driver.leader.tick(late)) == []
    assert driver.leader.next_deadline() == pytest.approx(late + near)
    (proposal,) = of(ProposeIsr, driver.leader.tick(late + near))
    assert [m.broker for m in proposal.change.new_isr] == [A]


def test_a_leader_with_a_member_that_returned_ticks_as_often_as_ever() -> None:
    """Its confirmation (R71) may be lost, and a tick repeats it."""
    driver = Driver(replace(view(isr=(A, B, C)), returned=(IsrMember(B, Incarnation(2)),)))
    driver.fetch(B, 0, now=1.0)
    driver.fetch(C, 0, now=1.0)
    driver.leader.tick(1.0)
    assert driver.leader.next_deadline() <= 1.0 + driver.leader.settings.replica_max_lag_time / 4


def back(*isr: BrokerId, epoch: int = 1) -> PartitionView:
    """B has returned."""
    return replace(view(isr=isr, epoch=epoch), returned=(IsrMember(B, Incarnation(20)),))


def test_an_expansion_does_not_confirm_a_member_that_is_back_and_lacks_records() -> None:
    driver = Driver(back(A, B), log_end=3, high_watermark=3)
    driver.fetch(B, 2)
    (expansion,) = of(ProposeIsr, driver.fetch(C, 3))
    assert expansion.change.caught_up == ()


def test_an_expansion_waits_for_a_confirmation_that_is_out_and_no_longer_than_until_it_would_be_repeated() -> None:
    driver = Driver(back(A, B))
    (confirmation,) = of(ProposeIsr, driver.fetch(B, 0))
    assert confirmation.change.caught_up == (B,)
    assert not of(ProposeIsr, driver.fetch(C, 0))
    due = driver.leader.next_deadline()
    assert due == SETTINGS.alter_isr_retry
    (expansion,) = of(ProposeIsr, driver.leader.tick(due))
    assert {m.broker for m in expansion.change.new_isr} == {A, B, C}
    assert expansion.change.caught_up == (B,)


def test_an_expansion_follows_the_view_in_which_the_members_are_confirmed() -> None:
    driver = Driver(back(A, B))
    driver.fetch(B, 0)
    driver.fetch(C, 0)
    (expansion,) = of(ProposeIsr, driver.leader.on_view(view(isr=(A, B), epoch=2), 0.1))
    assert {m.broker for m in expansion.change.new_isr} == {A, B, C}


def test_a_leader_that_slept_until_its_members_lag_drops_none() -> None:
    driver = Driver(view(isr=(A, B, C)))
    driver.fetch(B, 0, now=1.0)
    driver.fetch(C, 0, now=1.0)
    driver.leader.tick(1.0)
    assert of(ProposeIsr, driver.leader.tick(1.01 + driver.leader.settings.replica_max_lag_time)) == []


def test_a_leader_without_followers_has_nothing_to_tick_for() -> None:
    driver = Driver(partition_view(A))
    driver.leader.tick(1.0)
    assert driver.leader.next_deadline() == math.inf
    driver.leader.on_view(partition_view(A, epoch=2), 100.0)
    assert driver.leader.next_deadline() < 102.0
    driver.leader.tick(101.0)
    assert driver.leader.next_deadline() == math.inf


def test_a_member_outside_of_the_isr_is_looked_at_as_often_as_ever() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.fetch(B, 0, now=1.0)
    driver.leader.tick(1.0)
    assert driver.leader.next_deadline() == pytest.approx(1.0 + driver.leader.settings.replica_max_lag_time / 4)


def test_lag_clocks_stand_while_the_leader_is_disconnected() -> None:
    driver = Driver()
    driver.append(5)
    driver.leader.on_connection(False, 1.0)
    for t in range(1, 9):
        assert of(ProposeIsr, driver.leader.tick(float(t))) == []
    driver.leader.on_connection(True, 9.0)
    assert of(ProposeIsr, driver.leader.tick(10.0)) == []


def test_a_follower_is_proposed_only_with_everything_to_the_high_watermark() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.append(5)
    driver.fetch(B, 5)
    assert of(ProposeIsr, driver.fetch(C, 4)) == []
    (proposal,) = of(ProposeIsr, driver.fetch(C, 5))
    assert {m.broker: m.incarnation for m in proposal.change.new_isr} == {A: 10, B: 20, C: 20}


def test_a_follower_is_proposed_only_with_everything_to_the_epochs_start() -> None:
    """The new leader's HW lags behind the one of its predecessor: the HW alone would let C in too early."""
    driver = Driver(view(isr=(A, B), leader_epoch=2), log_end=10, high_watermark=3)
    assert of(ProposeIsr, driver.fetch(C, 5)) == []
    assert of(ProposeIsr, driver.fetch(C, 10)) != []


def test_fetched_but_not_synced_is_not_caught_up_on_a_durable_stream() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.append(5)
    driver.fetch(B, 5)
    assert of(ProposeIsr, driver.fetch(C, 5, durable=0)) == []


def test_an_unknown_outcome_is_asked_again_and_settled_by_applied_state_only() -> None:
    driver = Driver(view(isr=(A, B)))
    (first,) = of(ProposeIsr, driver.fetch(C, 0))
    assert isinstance(driver.leader.isr, PendingExpandIsr)
    (again,) = of(ProposeIsr, driver.leader.tick(0.6))
    assert again.change == first.change
    driver.leader.on_view(view(isr=(A, B, C), epoch=2), 0.7)
    assert driver.leader.isr.members == {A, B, C}


def test_a_follower_that_fetched_while_another_proposal_was_out_is_looked_at_when_that_is_settled() -> None:
    driver = Driver(view(isr=(A,)))
    driver.fetch(B, 0)
    assert not of(ProposeIsr, driver.fetch(C, 0)), "one proposal at a time"
    (proposal,) = of(ProposeIsr, driver.leader.on_view(view(isr=(A, B), epoch=2), 0.1))
    assert {m.broker for m in proposal.change.new_isr} == {A, B, C}


def test_a_refused_expansion_is_repeated_without_another_fetch() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.fetch(C, 0)
    assert not of(ProposeIsr, driver.leader.on_view(view(isr=(A, B), epoch=2), 0.1))
    due = driver.leader.next_deadline()
    assert due == 0.1 + SETTINGS.alter_isr_retry
    assert of(ProposeIsr, driver.leader.tick(due))


def test_a_follower_that_is_silent_is_not_proposed_again() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.fetch(C, 0)
    driver.fetch(B, 0, now=3.0)
    assert not of(ProposeIsr, driver.leader.on_view(view(isr=(A, B), epoch=2), 3.0))
    assert not of(ProposeIsr, driver.leader.tick(4.0))


def test_a_follower_that_has_just_left_the_isr_is_proposed_only_once_it_has_fetched_anew() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.fetch(C, 0)
    driver.leader.on_view(view(epoch=2), 0.1)
    assert not of(ProposeIsr, driver.leader.on_view(view(isr=(A, B), epoch=3), 0.2)), "its disk may have failed"
    assert not of(ProposeIsr, driver.leader.tick(1.0))
    assert of(ProposeIsr, driver.fetch(C, 0, now=1.1))


def test_a_refused_expansion_is_not_repeated_at_once() -> None:
    driver = Driver(view(isr=(A, B)))
    driver.fetch(C, 0)
    driver.leader.on_view(view(isr=(A, B), epoch=2), 0.1)  # a raised epoch without C: refused
    assert of(ProposeIsr, driver.fetch(C, 0, now=0.2)) == []
    assert of(ProposeIsr, driver.fetch(C, 0, now=1.0)) != []


def test_an_older_view_changes_nothing() -> None:
    driver = Driver(view(epoch=5))
    driver.leader.on_view(view(isr=(A,), epoch=4), 0.0)
    assert driver.leader.isr.members == {A, B, C}


def test_a_view_of_another_epoch_is_a_bug_of_the_driver() -> None:
    with pytest.raises(InvariantViolation):
        Driver().leader.on_view(view(leader_epoch=2), 0.0)


# ---------------------------------------------------------------- publishes
def test_an_acknowledgement_waits_for_the_commit() -> None:
    driver = Driver()
    assert driver.leader.await_ack(ALL, Offset(5), MarkReply("token"), 10.0, 0.0) == []
    assert of(CompleteProduce, driver.append(5)) == []
    driver.fetch(B, 5)
    assert of(CompleteProduce, driver.fetch(C, 5)) == [CompleteProduce(MarkReply("token"))]


def test_a_duplicate_of_an_uncommitted_batch_waits_for_the_originals_commit() -> None:
    driver = Driver()
    driver.append(5)
    driver.append(5)
    driver.leader.await_ack(ALL, Offset(10), MarkReply("second"), 10.0, 0.0)
    assert driver.leader.await_ack(ALL, Offset(5), MarkReply("first again"), 10.0, 0.0) == []
    driver.fetch(B, 5)
    assert of(CompleteProduce, driver.fetch(C, 5)) == [CompleteProduce(MarkReply("first again"))]


def test_a_confirm_timeout_says_that_the_outcome_is_unknown() -> None:
    driver = Driver()
    driver.append(5)
    driver.leader.await_ack(ALL, Offset(5), MarkReply("token"), 2.0, 0.0)
    assert of(CompleteProduce, driver.leader.tick(1.9)) == []
    (done,) = of(CompleteProduce, driver.leader.tick(2.0))
    assert done.error is not None
    assert done.error.code is Code.CONFIRM_TIMEOUT
    driver.fetch(B, 5)
    assert of(CompleteProduce, driver.fetch(C, 5)) == [], "answered once"


def test_when_leadership_ends_publishes_that_wait_are_unknown_never_failed() -> None:
    driver = Driver()
    driver.append(5)
    driver.leader.await_ack(ALL, Offset(5), MarkReply("token"), 2.0, 0.0)
    (done,) = of(CompleteProduce, driver.leader.resign("a new LeaderEpoch", 1.0))
    assert done.error is not None
    assert done.error.code is Code.OUTCOME_UNKNOWN
    assert done.error.code.unknown_outcome


def test_an_acknowledged_publish_below_min_isr_is_refused_before_it_is_appended() -> None:
    leader = Driver(view(isr=(A,))).leader
    refused = leader.admission.refuse(ALL, lease_valid=True, now=0.0)
    assert refused is not None
    assert refused.code is Code.NOT_ENOUGH_REPLICAS
    assert leader.admission.refuse(None, lease_valid=True, now=0.0) is None


def test_without_a_lease_only_work_guarded_by_the_isr_goes_on() -> None:
    leader = Driver().leader
    assert leader.admission.refuse(ALL, lease_valid=False, now=0.0) is None
    refused = leader.admission.refuse(LOCAL, lease_valid=False, now=0.0)
    assert refused is not None
    assert refused.code is Code.UNAVAILABLE


def test_without_pushes_an_empty_answer_is_never_put_off() -> None:
    """The empty answer makes the follower listen to notifications."""
    pushed, notified = Driver(), Driver(settings=ReplicaSettings(push_to_waiters=False))
    for driver in (pushed, notified):
        driver.append(1)
    assert of(Respond, pushed.fetch(B, 1)) == []
    assert [answer.max_bytes for answer in of(Respond, notified.fetch(B, 1))] == [0]


DELAY = SETTINGS.empty_answer_delay


def test_no_answer_is_put_off_for_longer_than_a_follower_waits_for_one() -> None:
    with pytest.raises(ValueError, match="empty_answer_delay"):
        ReplicaSettings(empty_answer_delay=0.5, replica_fetch_timeout=0.5)


def test_a_put_off_answer_is_left_out_when_data_go_first() -> None:
    driver = Driver()
    driver.append(1)
    assert of(Respond, driver.fetch(B, 1)) == []
    (data,) = of(Respond, driver.append(1, now=DELAY / 2))
    assert (data.replica, data.offset, data.max_bytes > 0) == (B, 1, True)
    assert of(Respond, driver.leader.tick(2 * UNCOMMITTED_DELAYS * DELAY)) == []


def test_a_later_request_takes_the_place_of_one_whose_answer_is_put_off() -> None:
    driver = Driver()
    driver.append(1)
    assert of(Respond, driver.fetch(B, 1)) == []
    assert len(of(Respond, driver.fetch(B, 1, no_space=True))) == 1
    assert of(Respond, driver.leader.tick(2 * UNCOMMITTED_DELAYS * DELAY)) == []


def test_a_progress_report_leaves_the_put_off_answer_due_and_it_tells_the_commit() -> None:
    driver = Driver()
    driver.append(1)
    driver.fetch(C, 1)
    assert of(Respond, driver.fetch(B, 1, durable=0)) == []
    driver.fetch(B, 1, progress_only=True, now=DELAY / 2)
    assert driver.high_watermark == 1
    assert driver.leader.next_deadline() == pytest.approx(1.5 * DELAY), "from the commit on"
    late = {answer.replica: answer for answer in of(Respond, driver.leader.tick(1.5 * DELAY))}
    assert [(late[r].offset, late[r].max_bytes, late[r].high_watermark) for r in (B, C)] == [(1, 0, 1)] * 2
    assert of(Respond, driver.leader.tick(3 * DELAY)) == [], "they know that HW"
    assert {answer.replica for answer in of(Respond, driver.append(1, now=1.0))} == {B, C}, "their waiters stay"


def test_a_late_answer_asks_for_the_sync_that_is_wanted_by_then() -> None:
    driver = Driver(view(durability=ACCEPTED), log_end=5)
    driver.append(1, synced=False)
    assert of(Respond, driver.fetch(C, 6, durable=None)) == []
    driver.leader.on_view(view(isr=(A, B), epoch=2, durability=ACCEPTED), 0.0)
    assert of(Respond, driver.leader.tick(DELAY)) == [], "it is not committed"
    (late,) = of(Respond, driver.leader.tick(UNCOMMITTED_DELAYS * DELAY))
    assert (late.replica, late.sync_to) == (C, 5), "to come back it has to sync what earlier epochs wrote"


def test_a_follower_whose_late_answer_went_before_the_commit_is_told_of_it() -> None:
    driver = Driver()
    driver.append(1)
    driver.fetch(B, 1)
    waited = UNCOMMITTED_DELAYS * DELAY
    (late,) = of(Respond, driver.leader.tick(waited))
    assert (late.replica, late.high_watermark) == (B, 0)
    driver.fetch(C, 1, now=waited + DELAY)
    due = driver.leader.next_deadline()
    assert due == pytest.approx(waited + DELAY + SETTINGS.high_watermark_notify_delay)
    (told,) = of(Respond, driver.leader.tick(due + 0.001))
    assert (told.replica, told.high_watermark) == (B, 1)


def test_too_much_uncommitted_is_back_pressure() -> None:
    driver = Driver(settings=ReplicaSettings(max_uncommitted_bytes=400))
    driver.append(5)
    refused = driver.leader.admission.refuse(ALL, lease_valid=True, now=0.0)
    assert refused is not None
    assert refused.code is Code.BACKPRESSURE
    driver.fetch(B, 5)
    driver.fetch(C, 5)
    assert driver.leader.admission.refuse(ALL, lease_valid=True, now=0.0) is None


def test_late_commits_of_all_partitions_together_are_back_pressure_for_partitions_above_their_share() -> None:
    settings = ReplicaSettings(max_uncommitted_bytes_of_all=2 * 800)
    shared = Uncommitted(settings)
    busy, idle = Driver(settings=settings, shared=shared), Driver(settings=settings, shared=shared)
    late = settings.replica_max_lag_time / 2

    def refused(driver: Driver, now: float) -> Code | None:
        error = driver.leader.admission.refuse(None, lease_valid=True, now=now)
        return None if error is None else error.code

    busy.append(7, now=0.0)
    idle.append(2, now=0.0)
    assert refused(busy, 0.1) is None, "nothing is late"
    assert refused(busy, late) is Code.BACKPRESSURE
    assert refused(idle, late) is None, "it has less than its share"
    busy.append(300, now=0.1)
    assert refused(busy, 0.2) is Code.BACKPRESSURE, "too much, late or not"
    assert shared.waiting == 2
    busy.fetch(B, 307, now=late)
    busy.fetch(C, 307, now=late)
    assert (shared.size, shared.waiting) == (2 * 100, 1)
    assert refused(busy, late) is None
    busy.leader.resign("moved", 1.0)
    idle.leader.resign("moved", 1.0)
    assert (shared.size, shared.partitions, shared.waiting) == (0, 0, 0)


def test_a_commit_is_late_by_the_oldest_record_that_waits_for_one() -> None:
    driver = Driver(settings=(settings := ReplicaSettings(max_uncommitted_bytes_of_all=1000)), shared=None)
    other = Driver(settings=settings, shared=driver.leader._commits.shared)
    other.append(1)
    late = settings.replica_max_lag_time / 2
    driver.append(4)
    driver.append(2, now=late)
    refused = driver.leader.admission.refuse(None, lease_valid=True, now=late)
    assert refused is not None
    assert refused.code is Code.BACKPRESSURE
    driver.fetch(B, 4, now=late)
    driver.fetch(C, 4, now=late)
    assert driver.leader.admission.refuse(None, lease_valid=True, now=late) is None


def test_read_only_partitions_refuse() -> None:
    driver = Driver()
    driver.leader.on_view(replace(view(epoch=2), readonly=True), 0.0)
    refused = driver.leader.admission.refuse(ALL, lease_valid=True, now=0.0)
    assert refused is not None
    assert refused.code is Code.READONLY


# ---------------------------------------------------------------- consumers
def consumer(offset: int, *, wait: float = 1.0, last_epoch: int = 0, leader_epoch: int = 0) -> ConsumerFetch:
    return ConsumerFetch(
        offset=Offset(offset),
        leader_epoch=LeaderEpoch(leader_epoch),
        max_bytes=1 << 20,
        max_wait=wait,
        last_record_epoch=LeaderEpoch(last_epoch),
        token=Reader("consumer"),
    )


def test_consumers_wait_for_the_commit_and_see_nothing_above_it() -> None:
    driver = Driver()
    driver.append(5)
    assert driver.leader.on_consumer_fetch(consumer(0), 0.0) == []
    driver.fetch(B, 3)
    (served,) = of(ServeConsumer, driver.fetch(C, 5))
    assert (served.offset, served.end) == (0, 3)


def test_a_consumers_wait_ends_with_an_empty_answer() -> None:
    driver = Driver()
    driver.leader.on_consumer_fetch(consumer(0, wait=0.5), 0.0)
    (served,) = of(ServeConsumer, driver.leader.tick(0.5))
    assert served.max_bytes == 0


def test_latest_is_not_told_before_the_high_watermark_reaches_the_epochs_start() -> None:
    driver = Driver(view(leader_epoch=2), log_end=10, high_watermark=3)
    assert isinstance(driver.leader.latest(), TidelogError)
    driver.fetch(B, 10)
    driver.fetch(C, 10)
    assert driver.leader.latest() == 10


def test_out_of_range_means_below_the_log_start_only() -> None:
    driver = Driver(log_end=10, high_watermark=10, log_start=5)
    (refused,) = of(RefuseConsumer, driver.leader.on_consumer_fetch(consumer(4), 0.0))
    assert refused.error.code is Code.OFFSET_BEFORE_LOG
    assert driver.leader.on_consumer_fetch(consumer(99), 0.0) == []


def test_a_consumer_whose_last_record_was_cut_away_is_told() -> None:
    driver = Driver(view(leader_epoch=3), log_end=10, high_watermark=10)
    (refused,) = of(RefuseConsumer, driver.leader.on_consumer_fetch(consumer(12, last_epoch=1), 0.0))
    assert refused.error.code is Code.LOG_TRUNCATED
    assert refused.error.details["offset"] == "10"


def test_a_deposed_leader_does_not_call_records_of_its_successor_cut_away() -> None:
    """The request names no LeaderEpoch, and reaches both."""
    driver = Driver(view(leader_epoch=3), log_end=10, high_watermark=10)
    assert driver.leader.on_consumer_fetch(consumer(12, last_epoch=4), 0.0) == []


def test_waiting_consumers_are_bounded() -> None:
    driver = Driver(settings=ReplicaSettings(max_waiting_fetches=1))
    driver.leader.on_consumer_fetch(consumer(0), 0.0)
    (refused,) = of(RefuseConsumer, driver.leader.on_consumer_fetch(consumer(0), 0.0))
    assert refused.error.code is Code.BACKPRESSURE


def test_a_refused_batch_makes_the_leader_look_at_its_own_copy() -> None:
    driver = Driver(log_end=5)
    assert of(VerifyOwnCopy, driver.fetch(B, 2, refused="bad CRC")) == [VerifyOwnCopy(Offset(2), "bad CRC")]


def test_a_member_that_syncs_one_round_behind_a_steady_stream_stays_in_sync() -> None:
    """It fetches on before its sync is through, so its reports are always behind its last fetch."""
    driver = Driver(view(isr=(A, B)))
    fetched = synced = 0
    now = 0.0
    while now < 3 * SETTINGS.replica_max_lag_time:
        now += 0.005
        driver.append(10, now=now)
        driver.fetch(B, fetched, durable=synced, now=now)
        driver.append(10, now=now)
        synced = fetched
        driver.fetch(B, fetched, durable=synced, now=now, progress_only=True)
        fetched = driver.leader.log_end_offset
        assert not of(ProposeIsr, driver.leader.tick(now)), f"dropped after {now} s, {fetched - synced} records behind"
    assert driver.leader.high_watermark >= fetched - 40


def test_a_follower_that_never_fetches_again_is_not_notified_for_ever() -> None:
    driver = Driver(view(isr=(A,), min_isr=1))
    driver.fetch(B, 0)
    driver.append(5, synced=False)
    leader, silent = driver.leader, SETTINGS.replica_max_lag_time + 1.0
    assert len(of(Notify, leader.tick(0.1))) == 1
    assert len(of(Notify, leader.tick(1.0))) == 1
    leader.tick(silent)
    assert of(Notify, leader.tick(silent + 1.0)) == []
    assert leader.next_deadline() > silent + 1.4, "nothing to wake for every notify_retry"
