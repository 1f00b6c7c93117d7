"""The follower's rules, one by one. Each test names the rule; breaking the rule in the code makes it fail."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from dataplane.replica.follower.follower_states import (
    Diverged,
    Idle,
    Leaderless,
    OffsetAnswer,
    Reconciling,
    SnapshotAnswer,
)
from dataplane.replica.replica_effects import (
    AppendReplicated,
    FollowerEffect,
    InstallSnapshot,
    ReportLeader,
    ReportLoss,
    RequestSync,
    SendFetch,
    SendOffsetRequest,
    SendSnapshotRequest,
    StartOver,
    Truncate,
)
from tests.unit.dataplane.replica.cores import answer, ends, follower
from tests.views import A, B
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import LeaderEpoch, Offset


def asked(effects: list[FollowerEffect]) -> int:
    (request,) = [e for e in effects if isinstance(e, SendOffsetRequest)]
    return request.asked_epoch


def fetched(effects: list[FollowerEffect]) -> SendFetch:
    (request,) = [e for e in effects if isinstance(e, SendFetch)]
    return request


# ---------------------------------------------------------------- reconciliation
def test_it_reconciles_before_its_first_fetch() -> None:
    assert asked(follower((1, 0), (4, 10), log_end=20).start(0.0)) == 4


def test_an_empty_log_has_nothing_to_reconcile() -> None:
    assert fetched(follower().start(0.0)).offset == 0


def test_truncation_follows_the_leaders_epochs_and_not_the_high_watermark() -> None:
    """KIP-101: committed records above the follower's HW must survive its restart."""
    core = follower((4, 0), log_end=20, high_watermark=5)
    core.start(0.0)
    assert fetched(ends(core, 4, 20)).offset == 20


def test_records_that_the_leader_does_not_have_are_cut() -> None:
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    assert ends(core, 4, 15) == [Truncate(Offset(15))]
    assert fetched(core.on_truncated(Offset(0), Offset(15), 0.0)).offset == 15


def test_fast_leader_changes_walk_back_until_the_epochs_agree() -> None:
    """KIP-279: the leader never had epoch 3; cutting at the end of its epoch 2 alone would leave the logs diverged."""
    core = follower((1, 0), (3, 10), log_end=20)
    assert asked(core.start(0.0)) == 3
    assert asked(ends(core, 2, 30)) == 1  # ours at or below 2 is 1: ask where that ends
    assert ends(core, 1, 8) == [Truncate(Offset(8))]


def test_the_cut_is_the_smallest_of_both_ends_on_the_way() -> None:
    core = follower((1, 0), (3, 10), log_end=20)
    core.start(0.0)
    ends(core, 2, 30)
    assert ends(core, 1, 25) == [Truncate(Offset(10))]


def test_with_no_common_epoch_the_log_is_dropped() -> None:
    core = follower((3, 0), log_end=20)
    core.start(0.0)
    assert ends(core, 0, 0) == [Truncate(Offset(0))]


def test_without_an_answer_it_asks_again_and_cuts_nothing() -> None:
    core = follower((4, 0), log_end=20, high_watermark=5)
    core.start(0.0)
    effects = core.tick(0.3)
    assert asked(effects) == 4
    assert not [e for e in effects if isinstance(e, (Truncate, InstallSnapshot, StartOver))]


def test_it_asks_again_soon_at_first_then_less_often() -> None:
    """After a planned move the old leader still listens, silent: an acknowledgement of the others waits for us."""
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    times: list[float] = []
    while len(times) < 10:
        assert isinstance(core.state, Reconciling)
        now = core.state.ask_again_at
        assert asked(core.tick(now)) == 4
        times.append(now)
    pauses = [after - before for before, after in pairwise([0.0, *times])]
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 3.0, 3.0])


def test_an_answer_of_a_zombie_to_an_offset_request_is_dropped() -> None:
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    assert ends(core, 4, 3, leader_epoch=4) == []
    assert isinstance(core.state, Reconciling)


def test_an_answer_to_an_older_offset_request_is_dropped() -> None:
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    core.on_connection(0.0, 0.3)
    assert ends(core, 4, 3, number=1) == []


def test_a_question_that_is_repeated_for_silence_is_the_same_question_and_its_first_answer_counts() -> None:
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    for now in (0.1, 0.3, 0.7):
        assert core.tick(now) == [SendOffsetRequest(LeaderEpoch(4), 1)]
    assert fetched(ends(core, 4, 20, number=1)).offset == 20


def test_a_question_after_a_refusal_or_an_answer_that_said_nothing_is_another_one() -> None:
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    error = TidelogError(Code.WRONG_INCARNATION, "deleted and created again")
    core.on_offset_answer(OffsetAnswer(number=1, leader_epoch=LeaderEpoch(5), error=error), 0.0)
    assert core.tick(1.0) == [SendOffsetRequest(LeaderEpoch(4), 2)]
    core.on_no_responders(1.0)
    assert SendOffsetRequest(LeaderEpoch(4), 3) in core.tick(2.0)
    assert ends(core, 4, 20, number=1) == []


def test_an_offset_request_that_is_refused_is_repeated_before_anything_is_fetched() -> None:
    """For instance by the leader of a deleted stream of this name, which has not heard of the deletion."""
    core = follower((4, 0), log_end=20)
    core.start(0.0)
    error = TidelogError(Code.WRONG_INCARNATION, "deleted and created again")
    assert core.on_offset_answer(OffsetAnswer(number=1, leader_epoch=LeaderEpoch(5), error=error), 0.1) == []
    assert isinstance(core.state, Reconciling)
    assert not any(isinstance(effect, SendFetch) for effect in core.tick(1.0))
    assert isinstance(core.state, Reconciling)


def test_a_truncation_takes_the_high_watermark_along() -> None:
    core = follower((4, 0), log_end=20, high_watermark=18, loss_epoch=5)
    core.start(0.0)
    assert ends(core, 4, 15) == [Truncate(Offset(15), gives_up_committed=True)]
    core.on_truncated(Offset(0), Offset(15), 0.0)
    assert core.high_watermark == 15


@pytest.mark.parametrize(
    ("entries", "log", "committed", "told", "options"),
    [
        (((4, 0),), (0, 20), 18, (4, 15), {}),
        (((4, 0),), (0, 20), 18, (4, 15), {"isr": (A,)}),
        (((4, 0),), (0, 20), 18, (4, 15), {"loss_epoch": 4}),
        (((4, 0),), (0, 20), 18, (0, 0), {}),
        (((4, 0),), (0, 20), 18, (0, 17), {"isr": (A,)}),
        (((4, 0),), (20, 20), 20, (4, 15), {}),
        (((3, 15),), (20, 30), 20, (2, 18), {"isr": (A,)}),
        (((4, 0),), (0, 20), 18, (4, 15), {"compact": True}),
    ],
)
def test_committed_records_are_not_cut_for_a_leader_that_lacks_them(
    entries: tuple[tuple[int, int], ...],
    log: tuple[int, int],
    committed: int,
    told: tuple[int, int],
    options: dict[str, Any],
) -> None:
    """Nor for one whose log was lost and that does not know it: only an election after those records, which the
    metadata knows of, explains that they are missing."""
    core = follower(*entries, log_start=log[0], log_end=log[1], high_watermark=committed, **options)
    core.start(0.0)
    (report,) = ends(core, *told)
    assert isinstance(report, ReportLoss)
    assert (report.report.leader, report.report.leader_epoch) == (A, core.leader_epoch)
    assert core.stopped is not None
    assert isinstance(core.state, Diverged)
    assert core.tick(100.0) == [], "it neither asks nor suspects"
    assert core.on_connection(200.0, 200.0) == core.on_notification(core.leader_epoch, 200.0) == []
    core.validate()


@pytest.mark.parametrize(
    ("entries", "log", "committed", "told", "options"),
    [
        (((4, 0),), (0, 20), 15, (4, 15), {}),
        (((4, 0),), (0, 20), 18, (4, 15), {"loss_epoch": 5}),
        (((4, 0),), (0, 20), 18, (0, 18), {"isr": (A,)}),
        (((4, 0),), (0, 20), 18, (4, 15), {"leaders_start": 18}),
    ],
)
def test_records_are_cut_that_are_not_committed_or_that_a_known_election_gave_up(
    entries: tuple[tuple[int, int], ...],
    log: tuple[int, int],
    committed: int,
    told: tuple[int, int],
    options: dict[str, Any],
) -> None:
    leader = {"leaders_start": options.pop("leaders_start", 0)}
    core = follower(*entries, log_start=log[0], log_end=log[1], high_watermark=committed, **options)
    core.start(0.0)
    (effect,) = ends(core, *told, **leader)
    assert isinstance(effect, (Truncate, SendSnapshotRequest))


# ---------------------------------------------------------------- fetching
def test_batches_are_appended_then_the_next_fetch_leaves_before_the_sync() -> None:
    core = follower()
    core.start(0.0)
    assert answer(core, first=0, hw=0) == [AppendReplicated(Offset(0))]
    effects = core.on_appended(Offset(7), Offset(3), 0.0)
    assert [type(e) for e in effects] == [SendFetch, RequestSync]
    assert (fetched(effects).offset, fetched(effects).durable_end) == (7, 0)
    assert core.high_watermark == 3


def test_the_durable_end_is_reported_after_the_sync_as_progress() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    core.on_appended(Offset(7), Offset(0), 0.0)
    report = fetched(core.on_synced(Offset(7), 0.0))
    assert (report.durable_end, report.progress_only) == (7, True)


def test_the_next_fetch_reports_a_sync_that_was_done_with_the_append() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    effects = core.on_appended(Offset(7), Offset(0), 0.0, durable_end=Offset(7))
    assert [type(e) for e in effects] == [SendFetch]
    assert (fetched(effects).durable_end, fetched(effects).progress_only) == (7, False)


def test_where_many_logs_wait_for_the_disk_one_request_after_the_sync_does_for_two() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    assert [type(e) for e in core.on_appended(Offset(7), Offset(0), 0.0, sync_first=True)] == [RequestSync]
    assert core.on_notification(core.leader_epoch, 0.0) == []
    assert core.on_synced(Offset(6), 0.1) == [], "not all of it is synced"
    request = fetched(core.on_synced(Offset(7), 0.1))
    assert (request.offset, request.durable_end, request.progress_only) == (7, 7, False)
    assert answer(core, first=7) == [AppendReplicated(Offset(0))]


def test_a_sync_that_takes_long_is_not_waited_for_with_the_next_request() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    core.on_appended(Offset(7), Offset(0), 0.0, sync_first=True)
    due = core.next_deadline()
    assert 0.1 < due < 0.5
    assert core.tick(due - 0.01) == []
    assert fetched(core.tick(due)).durable_end == 0
    report = fetched(core.on_synced(Offset(7), 1.0))
    assert (report.durable_end, report.progress_only) == (7, True)


def test_a_request_does_not_wait_for_a_sync_that_was_not_asked_for() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    effects = core.on_appended(Offset(7), Offset(0), 0.0, durable_end=Offset(7), sync_first=True)
    assert fetched(effects).durable_end == 7


def test_a_durable_end_that_is_told_with_an_append_is_neither_above_the_log_nor_below_an_earlier_one() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    assert fetched(core.on_appended(Offset(7), Offset(0), 0.0, durable_end=Offset(9))).durable_end == 7
    answer(core, first=7)
    assert fetched(core.on_appended(Offset(8), Offset(0), 0.0, durable_end=Offset(5))).durable_end == 7


def test_progress_reports_leave_the_data_request_the_newest() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0)
    request = fetched(core.on_appended(Offset(7), Offset(0), 0.0))
    core.on_synced(Offset(7), 0.0)
    assert answer(core, sequence=request.sequence, first=7) == [AppendReplicated(Offset(0))]


def test_the_high_watermark_adopted_is_never_above_the_log() -> None:
    core = follower()
    core.start(0.0)
    answer(core, first=0, hw=100)
    core.on_appended(Offset(7), Offset(100), 0.0)
    assert core.high_watermark == 7


@pytest.mark.parametrize(
    "how",
    [
        {"sequence": 999, "first": 7},  # of another request
        {"leader_epoch": 4, "first": 7},  # of a zombie
        {"leader_epoch": 6, "first": 7},  # of a leader we do not know of yet
        {"first": 6},  # begins below our LEO
    ],
)
def test_late_reordered_or_foreign_answers_append_nothing(how: dict[str, Any]) -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    assert not [e for e in answer(core, **how) if isinstance(e, AppendReplicated)]


def test_a_zombies_answer_does_not_end_the_wait_for_the_leaders_own() -> None:
    core = follower()
    request = fetched(core.start(0.0))
    answer(core, leader_epoch=4, first=0)
    assert answer(core, sequence=request.sequence, first=0) == [AppendReplicated(Offset(0))]


def test_an_answer_may_begin_above_the_log_end_after_compaction() -> None:
    core = follower()
    core.start(0.0)
    assert answer(core, first=12) == [AppendReplicated(Offset(0))]


def test_a_batch_that_does_not_decode_is_refused_and_the_leader_told() -> None:
    core = follower()
    request = fetched(core.start(0.0))
    again = fetched(core.on_bad_answer(request.sequence, "bad CRC", 0.0))
    assert (again.refused_batch, again.offset) == ("bad CRC", 0)


def test_a_batch_that_stays_bad_is_asked_for_ever_more_slowly_and_the_leader_told_each_time() -> None:
    core = follower()
    settings = core.settings
    request = fetched(core.start(0.0))
    now, waits = 0.0, []
    for number in range(7):
        effects = core.on_bad_answer(request.sequence, f"bad CRC {number}", now)
        asked_at = now
        if not effects:
            state = core.state
            assert isinstance(state, Idle)
            asked_at = state.until
            assert core.on_notification(core.leader_epoch, now) == [], "nor does a notification make it ask sooner"
            assert not [e for e in core.tick(asked_at - 0.01) if isinstance(e, SendFetch)]
            effects = core.tick(asked_at)
        request = fetched(effects)
        assert (request.refused_batch, request.offset) == (f"bad CRC {number}", 0)
        waits.append(round(asked_at - now, 6))
        now = asked_at
    assert waits == [0.0, 0.2, 0.4, 0.8, 1.6, settings.replica_max_idle_wait, settings.replica_max_idle_wait]
    assert answer(core, first=0, now=now), "the pause is over with a good answer"
    request = fetched(core.on_appended(Offset(5), Offset(0), now))
    assert request.refused_batch == ""
    assert fetched(core.on_bad_answer(request.sequence, "bad CRC", now)).refused_batch == "bad CRC"


def test_a_good_answer_that_comes_while_it_paces_itself_is_used_and_nothing_is_refused_any_more() -> None:
    core = follower()
    request = fetched(core.start(0.0))
    again = fetched(core.on_bad_answer(request.sequence, "bad CRC", 0.0))
    assert core.on_bad_answer(again.sequence, "bad CRC", 0.0) == []
    assert isinstance(core.state, Idle)
    assert answer(core, first=0) == [AppendReplicated(Offset(0))], "a second answer on the same inbox"
    assert fetched(core.on_appended(Offset(5), Offset(0), 0.0)).refused_batch == ""


# ---------------------------------------------------------------- idling
def test_an_empty_answer_makes_it_sleep_for_the_idle_wait() -> None:
    core = follower()
    core.start(0.0)
    assert answer(core) == []
    assert core.next_deadline() == pytest.approx(2.0)
    assert core.tick(1.9) == []
    assert fetched(core.tick(2.0)).offset == 0


def test_a_notification_preempts_the_sleep() -> None:
    core = follower()
    core.start(0.0)
    answer(core)
    assert fetched(core.on_notification(LeaderEpoch(5), 0.5)).offset == 0


def test_a_notification_of_another_epoch_does_not() -> None:
    core = follower()
    core.start(0.0)
    answer(core)
    assert core.on_notification(LeaderEpoch(4), 0.5) == []


def test_a_notification_that_meets_a_fetch_is_remembered() -> None:
    core = follower()
    core.start(0.0)
    answer(core)
    fetched(core.on_notification(LeaderEpoch(5), 0.0))
    assert core.on_notification(LeaderEpoch(5), 0.0) == []
    assert fetched(answer(core)).offset == 0
    assert answer(core) == [], "remembered once"


def test_a_follower_with_an_empty_log_asks_again_when_its_leader_begins_and_once_for_each_wait() -> None:
    """The leader may have opened its log for long, and heard nothing; should it have heard, its answer is given up."""
    core = follower()
    first = fetched(core.start(0.0))
    again = fetched(core.on_notification(LeaderEpoch(5), 0.1))
    assert (again.offset, again.sequence > first.sequence) == (0, True)
    assert core.on_notification(LeaderEpoch(5), 0.15) == [], "a slow answer comes through"
    (third,) = (effect for effect in core.tick(core.next_deadline()) if isinstance(effect, SendFetch))
    assert third.sequence > again.sequence
    fetched(core.on_notification(LeaderEpoch(5), core.next_deadline() - 0.1))


def test_a_second_answer_on_the_same_inbox_brings_data() -> None:
    core = follower()
    core.start(0.0)
    answer(core)
    assert answer(core, first=0) == [AppendReplicated(Offset(0))]


def test_a_second_answer_that_only_tells_the_high_watermark_registers_a_new_waiter() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    answer(core, hw=3)
    assert fetched(answer(core, hw=7)).offset == 7
    assert core.high_watermark == 7


# ---------------------------------------------------------------- errors
def error(code: Code, **details: str) -> TidelogError:
    return TidelogError(code, "refused", details)


def test_offset_ahead_sends_it_back_to_reconciliation() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    assert asked(answer(core, error=error(Code.OFFSET_AHEAD))) == 5


def test_behind_the_leaders_log_start_it_starts_anew_there() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    (request,) = answer(core, error=error(Code.OFFSET_BEFORE_LOG, log_start="50"))
    assert isinstance(request, SendSnapshotRequest)
    assert (request.offset, request.position) == (None, 0)
    piece = SnapshotAnswer(
        number=request.number, leader_epoch=core.leader_epoch, offset=Offset(50), size=3, piece=b"abc"
    )
    assert core.on_snapshot_answer(piece, 0.0) == [InstallSnapshot(Offset(50), (b"abc",))]
    assert fetched(core.on_truncated(Offset(50), Offset(50), 0.0)).offset == 50


def test_a_log_start_at_or_below_its_own_end_is_no_reason_to_drop_the_log() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    effects = answer(core, error=error(Code.OFFSET_BEFORE_LOG, log_start="7"))
    assert not [effect for effect in effects if isinstance(effect, SendSnapshotRequest)]


def test_back_pressure_counts_as_life() -> None:
    core = follower()
    core.start(0.0)
    answer(core, error=error(Code.BACKPRESSURE, retry_after_ms="100"), now=2.9)
    assert not [e for e in core.tick(3.1) if isinstance(e, ReportLeader)]


def test_a_batch_that_no_message_has_room_for_is_asked_for_ever_more_slowly_and_reported() -> None:
    """Nothing but an operator ends it; until then it costs the leader next to nothing, and is no ground for a
    report."""
    core = follower()
    core.start(0.0)
    refusal = error(Code.MESSAGE_TOO_LARGE, size="2000000", max_payload="1048576")
    now, waits = 0.0, []
    for _ in range(8):
        assert answer(core, error=refusal, now=now) == []
        assert core.stopped is refusal
        assert core.on_notification(core.leader_epoch, now) == []
        waits.append(round(core.next_deadline() - now, 3))
        now = core.next_deadline()
        fetched(core.tick(now))
    settings = core.settings
    assert waits[0] == settings.offset_retry
    assert waits[1] == 2 * waits[0]
    assert waits[-1] == settings.replica_max_idle_wait
    answer(core, first=0, hw=0, now=now)
    assert core.stopped is None


def test_a_fenced_fetch_waits_for_metadata() -> None:
    core = follower()
    core.start(0.0)
    assert answer(core, error=error(Code.FENCED_LEADER_EPOCH, leader_epoch="6")) == []
    assert isinstance(core.state, Idle)


# ---------------------------------------------------------------- suspicion
def reports(effects: list[FollowerEffect]) -> list[ReportLeader]:
    return [e for e in effects if isinstance(e, ReportLeader)]


def test_no_responders_is_suspicion_now_once_the_leader_has_answered_in_this_epoch() -> None:
    core = follower()
    core.start(0.0)
    answer(core)
    core.tick(2.0)
    (report,) = reports(core.on_no_responders(2.0))
    assert (report.report.leader, report.report.leader_epoch) == (A, 5)


def test_no_responders_from_a_leader_that_has_not_begun_is_no_suspicion() -> None:
    core = follower()
    core.start(0.0)
    assert reports(core.on_no_responders(0.1)) == []
    assert core.next_deadline() == pytest.approx(0.12)


def test_no_responders_right_after_our_own_reconnect_is_no_suspicion() -> None:
    core = follower(connected_since=0.0)
    core.start(0.0)
    answer(core)
    core.tick(0.5)
    assert reports(core.on_no_responders(0.9)) == []
    assert reports(core.on_no_responders(1.1)) != []


def test_silence_is_suspicion_after_the_leader_timeout_and_reports_repeat() -> None:
    core = follower()
    core.start(0.0)
    for tenth in range(30):
        assert reports(core.tick(tenth / 10)) == []
    assert len(reports(core.tick(3.0))) == 1
    assert reports(core.tick(3.1)) == []
    assert len(reports(core.tick(3.25))) == 1


def test_a_follower_that_slept_does_not_take_its_own_silence_for_the_leaders() -> None:
    core = follower()
    core.start(0.0)
    answer(core, now=0.1)
    assert reports(core.tick(60.0)) == [], "answers may lie unread"
    for tenth in range(30):
        assert reports(core.tick(60.0 + tenth / 10)) == []
    assert len(reports(core.tick(63.0))) == 1, "the leader is silent indeed"


def test_a_good_answer_ends_the_suspicion() -> None:
    core = follower()
    core.start(0.0)
    core.tick(3.0)
    answer(core, now=3.1)
    assert reports(core.tick(3.5)) == []


def test_an_unanswered_fetch_is_followed_by_an_offset_probe() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    assert asked(core.tick(0.5)) == 5


def test_while_our_own_connection_is_down_the_leader_is_not_suspected() -> None:
    core = follower()
    core.start(0.0)
    core.on_connection(math.inf, 0.1)
    assert reports(core.tick(10.0)) == []
    assert core.next_deadline() > 10.0


def test_after_a_reconnect_it_reconciles_anew() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    ends(core, 5, 7)
    assert asked(core.on_connection(4.0, 4.0)) == 5


def test_a_follower_of_an_offline_partition_asks_no_broker() -> None:
    core = follower(leader=None)
    assert core.start(0.0) == []
    assert isinstance(core.state, Leaderless)
    assert core.next_deadline() == math.inf


def test_a_replica_does_not_follow_itself() -> None:
    with pytest.raises(InvariantViolation):
        follower(leader=B)
