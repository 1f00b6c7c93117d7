"""A follower always gets on: no state in which it asks the same question for ever, or never asks again."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from dataplane.replica.follower.follower_states import FetchAnswer, Fetching, OffsetAnswer, Reconciling
from dataplane.replica.replica_effects import (
    FollowerEffect,
    ReportLeader,
    ReportLoss,
    SendFetch,
    SendOffsetRequest,
    StartOver,
)
from dataplane.replica.replica_settings import ReplicaSettings
from tests.unit.dataplane.replica.cores import EPOCH, agrees, follower, refused
from tests.views import A
from wire.errors import Code
from wire.types import Offset

# A replica outside the ISR whose log was written in LeaderEpoch 5.
lagging = partial(follower, isr=(A,))


def test_an_empty_log_that_begins_above_the_leaders_end_begins_anew() -> None:
    """It skipped ahead once; then an unclean election took the log back. It has nothing to reconcile by, so asking the
    leader again would get the same refusal for ever."""
    core = lagging(log_start=50, log_end=50, high_watermark=50, loss_epoch=EPOCH)
    core.start(0.0)
    assert refused(core, Code.OFFSET_AHEAD, 0.0) == [StartOver()]
    (fetch,) = core.on_truncated(Offset(0), Offset(0), 0.0)
    assert isinstance(fetch, SendFetch)
    assert fetch.offset == 0


def test_an_empty_log_above_the_leaders_end_stays_where_no_election_explains_it() -> None:
    core = lagging(log_start=50, log_end=50, high_watermark=50)
    core.start(0.0)
    (effect,) = refused(core, Code.OFFSET_AHEAD, 0.0)
    assert isinstance(effect, ReportLoss)


def test_slow_answers_get_more_time_with_every_try() -> None:
    """A cold read behind many others takes longer than the fetch timeout. Given up each time it would be in vain."""
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    agrees(core, 0.0)
    waits, now = [], 0.0
    for _ in range(6):
        due = core.next_deadline()
        effects = core.tick(due)
        if any(isinstance(e, SendOffsetRequest) for e in effects):
            waits.append(due - now)
            now = due
            agrees(core, now)
    assert waits[0] == pytest.approx(0.5)
    assert waits[1] == pytest.approx(1.0)
    assert max(waits) <= ReplicaSettings().replica_max_leader_timeout


def test_an_answer_makes_the_leader_quick_again() -> None:
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    agrees(core, 0.0)
    core.tick(0.5)
    agrees(core, 0.5)
    state = core.state
    assert isinstance(state, Fetching)
    core.on_answer(
        FetchAnswer(sequence=state.sequence, leader_epoch=EPOCH, high_watermark=Offset(10), first_offset=None), 0.6
    )
    core.tick(10.0)
    again = core.state
    assert isinstance(again, Fetching)
    assert again.sequence > state.sequence
    assert again.unanswered_at == pytest.approx(10.5)


def test_an_offset_answer_that_is_slow_to_come_is_waited_for_longer_each_time() -> None:
    """Each question has its own inbox: asked anew sooner than an answer takes, none would ever be heard."""
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    now, round_trip, asked = 0.0, 1.0, 0
    while isinstance(core.state, Reconciling):
        asked += 1
        assert asked < 10
        number, due = core.state.number, core.state.ask_again_at
        if due - now > round_trip:
            answer = OffsetAnswer(number=number, leader_epoch=EPOCH, epoch=EPOCH, end=Offset(10))
            core.on_offset_answer(answer, now + round_trip)
        else:
            now = due
            core.tick(now)
    assert isinstance(core.state, Fetching)


def test_an_offset_answer_makes_the_follower_ask_quickly_again() -> None:
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    core.tick(0.2)
    agrees(core, 0.3)
    core.on_connection(0.0, 1.0)
    assert isinstance(core.state, Reconciling)
    assert core.state.ask_again_at == pytest.approx(1.0 + ReplicaSettings().no_leader_retry)


def test_without_responders_it_asks_ever_more_slowly_until_the_leader_answers_or_says_that_it_has_begun() -> None:
    settings = ReplicaSettings()
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    now, wait = 0.0, settings.no_leader_retry
    for _ in range(10):
        core.on_no_responders(now)
        assert isinstance(core.state, Reconciling)
        assert core.state.ask_again_at == pytest.approx(now + wait)
        now, wait = core.state.ask_again_at, min(2 * wait, settings.replica_max_idle_wait)
        core.tick(now)
    assert isinstance(core.state, Reconciling)
    asked = core.state.number
    assert core.on_notification(EPOCH, now) == [SendOffsetRequest(EPOCH, asked + 1)]
    agrees(core, now)
    core.on_no_responders(now)
    assert core.next_deadline() == pytest.approx(now + settings.no_leader_retry)


def test_a_leader_that_has_never_answered_is_reported_ever_more_rarely() -> None:
    settings = ReplicaSettings()
    core = lagging((5, 0), log_end=10)
    core.start(0.0)
    reported: list[float] = []
    while len(reported) < 8:
        now = core.next_deadline()
        reported += [now for effect in core.tick(now) if isinstance(effect, ReportLeader)]
    pauses = [later - earlier for earlier, later in pairwise(reported)]
    assert reported[0] == pytest.approx(settings.replica_max_leader_timeout)
    assert pauses[0] < 2 * settings.report_interval
    assert pauses == sorted(pauses)
    assert settings.replica_max_idle_wait <= pauses[-1] < settings.replica_max_idle_wait + settings.report_interval


def test_notifications_do_not_make_it_miss_the_answer_for_ever() -> None:
    """A leader whose answers take longer than `notify_retry` repeats its notification before each of them has come, and
    each question has its own inbox: asked anew at every notification, none would be answered."""
    settings = ReplicaSettings()
    core = lagging((5, 0), log_end=10)
    round_trip = 3 * settings.notify_retry
    out = {asked.number: round_trip for asked in core.start(0.0) if isinstance(asked, SendOffsetRequest)}
    now, notified_at = 0.0, settings.notify_retry
    while isinstance(core.state, Reconciling):
        now = min([core.next_deadline(), notified_at, *out.values()])
        assert now < settings.replica_max_lag_time / 2
        effects: list[FollowerEffect] = []
        for number in [number for number, due in out.items() if due <= now]:
            del out[number]
            answer = OffsetAnswer(number=number, leader_epoch=EPOCH, epoch=EPOCH, end=Offset(10))
            effects += core.on_offset_answer(answer, now)
        if notified_at <= now:
            notified_at += settings.notify_retry
            effects += core.on_notification(EPOCH, now)
        effects += core.tick(now)
        out |= {asked.number: now + round_trip for asked in effects if isinstance(asked, SendOffsetRequest)}
    assert isinstance(core.state, Fetching)
