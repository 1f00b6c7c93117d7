"""A follower always gets on: no state in which it asks the same question for ever, or never asks again."""

from __future__ import annotations

import pytest

from dataplane.replica.effects import FollowerEffect, SendFetch, SendOffsetRequest, StartOver
from dataplane.replica.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.follower import Follower
from dataplane.replica.follower_states import FetchAnswer, Fetching, Idle, OffsetAnswer, Reconciling
from dataplane.replica.settings import ReplicaSettings
from wire.errors import Code, TidelogError
from wire.stream_config import StreamConfig
from wire.types import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

A, B = BrokerId("a"), BrokerId("b")
EPOCH = LeaderEpoch(5)


def follower(*, log_start: int = 0, log_end: int = 0) -> Follower:
    """Follower B whose log was written in epoch 5."""
    view = PartitionView(
        key=PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1)),
        subject="s",
        config=StreamConfig(min_isr=1),
        replicas=(A, B),
        leader=A,
        isr=(A,),
        eligible=(),
        epoch=PartitionEpoch(1),
        leader_epoch=EPOCH,
    )
    entries = [EpochEntry(EPOCH, Offset(log_start))] if log_end > log_start else []
    return Follower(
        view=view,
        broker=B,
        log_start_offset=Offset(log_start),
        log_end_offset=Offset(log_end),
        durable_end=Offset(log_end),
        high_watermark=Offset(log_start),
        epochs=LeaderEpochCache(entries),
        settings=ReplicaSettings(),
        first_sequence=0,
        connected_since=-100.0,
        now=0.0,
    )


def agree(core: Follower, now: float) -> list[FollowerEffect]:
    """The leader has the same log."""
    state = core.state
    assert isinstance(state, Reconciling)
    return core.on_offset_answer(
        OffsetAnswer(number=state.number, leader_epoch=EPOCH, epoch=EPOCH, end=core.log_end_offset), now
    )


def refuse(core: Follower, code: Code, now: float) -> list[FollowerEffect]:
    state = core.state
    assert isinstance(state, (Fetching, Idle))
    return core.on_answer(
        FetchAnswer(
            sequence=state.sequence,
            leader_epoch=EPOCH,
            high_watermark=Offset(0),
            error=TidelogError(code, "refused"),
        ),
        now,
    )


def test_an_empty_log_that_begins_above_the_leaders_end_begins_anew() -> None:
    """It skipped ahead once; then an unclean election took the log back. It has nothing to reconcile by, so asking the
    leader again would get the same refusal for ever."""
    core = follower(log_start=50, log_end=50)
    core.start(0.0)
    assert refuse(core, Code.OFFSET_AHEAD, 0.0) == [StartOver()]
    (fetch,) = core.on_truncated(Offset(0), Offset(0), 0.0)
    assert isinstance(fetch, SendFetch)
    assert fetch.offset == 0


def test_slow_answers_get_more_time_with_every_try() -> None:
    """A cold read behind many others takes longer than the fetch timeout. Given up each time it would be in vain."""
    core = follower(log_end=10)
    core.start(0.0)
    agree(core, 0.0)
    waits, now = [], 0.0
    for _ in range(6):
        due = core.next_deadline()
        effects = core.tick(due)
        if any(isinstance(e, SendOffsetRequest) for e in effects):
            waits.append(due - now)
            now = due
            agree(core, now)
    assert waits[0] == pytest.approx(0.5)
    assert waits[1] == pytest.approx(1.0)
    assert max(waits) <= ReplicaSettings().replica_max_leader_timeout


def test_an_answer_makes_the_leader_quick_again() -> None:
    core = follower(log_end=10)
    core.start(0.0)
    agree(core, 0.0)
    core.tick(0.5)
    agree(core, 0.5)
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
    core = follower(log_end=10)
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
    core = follower(log_end=10)
    core.start(0.0)
    core.tick(0.2)
    agree(core, 0.3)
    core.on_connection(0.0, 1.0)
    assert isinstance(core.state, Reconciling)
    assert core.state.ask_again_at == pytest.approx(1.0 + ReplicaSettings().no_leader_retry)


def test_where_nobody_listens_is_asked_ever_more_slowly_until_the_leader_answers_or_says_that_it_has_begun() -> None:
    settings = ReplicaSettings()
    core = follower(log_end=10)
    core.start(0.0)
    now, wait = 0.0, settings.no_leader_retry
    for _ in range(10):
        core.on_no_responders(now)
        assert isinstance(core.state, Reconciling)
        assert core.state.ask_again_at == pytest.approx(now + wait)
        now, wait = core.state.ask_again_at, min(2 * wait, settings.offset_retry)
        core.tick(now)
    assert isinstance(core.state, Reconciling)
    asked = core.state.number
    assert core.on_notification(EPOCH, now) == [SendOffsetRequest(EPOCH, asked + 1)]
    agree(core, now)
    core.on_no_responders(now)
    assert core.next_deadline() == pytest.approx(now + settings.no_leader_retry)


def test_notifications_do_not_make_it_miss_the_answer_for_ever() -> None:
    """A leader whose answers take longer than `notify_retry` repeats its notification before each of them has come, and
    each question has its own inbox: asked anew at every notification, none would be answered."""
    settings = ReplicaSettings()
    core = follower(log_end=10)
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
