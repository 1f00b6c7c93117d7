"""A follower in step asks for nothing while its leader holds its fetch."""

# Rules: R83.

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.follower.follower import SPREAD, Follower
from dataplane.replica.follower.follower_states import Idle
from dataplane.replica.replica_effects import ReportLeader, SendFetch
from dataplane.replica.replies import Reader
from tests.unit.dataplane.replica.cores import SETTINGS, answer, follower
from tests.views import KEY, A, C
from wire.types import LeaderEpoch, Offset, PartitionEpoch

WAIT = SETTINGS.replica_max_idle_wait
SILENCE = SETTINGS.replica_max_leader_timeout


def parked(**viewed: object) -> tuple[Follower, int]:
    core = follower(**viewed)  # type: ignore[arg-type]
    core.start(0.0)
    answer(core)
    assert isinstance(core.state, Idle)
    return core, core.state.sequence


def test_an_empty_answer_parks_its_fetch() -> None:
    core = follower()
    core.start(0.0)
    assert core.parked is None
    answer(core)
    assert core.parked == 1


def test_held_is_as_good_as_an_empty_answer() -> None:
    core, number = parked()
    for second in range(1, 10):
        assert core.on_parked_answer(number, True, float(second), float(second)) == []
        assert core.tick(second + WAIT * (1 - SPREAD) - 0.1) == []
    assert 9 + WAIT * (1 - SPREAD) <= core.next_deadline() <= 9 + WAIT


def test_without_an_answer_it_fetches_when_its_idle_wait_is_over() -> None:
    core, number = parked()
    core.on_parked_answer(number, True, 1.0, 1.0)
    (fetch,) = core.tick(1.0 + WAIT)
    assert isinstance(fetch, SendFetch)
    assert core.parked is None


def test_a_leader_that_falls_silent_is_reported_as_soon_as_ever() -> None:
    core, number = parked()
    core.on_parked_answer(number, True, 1.0, 1.0)
    core.tick(1.0 + WAIT)
    assert not [e for e in core.tick(1.0 + SILENCE - 0.1) if isinstance(e, ReportLeader)]
    assert [e for e in core.tick(1.0 + SILENCE) if isinstance(e, ReportLeader)]


def test_what_is_not_held_is_asked_for_at_once() -> None:
    core, number = parked()
    (fetch,) = core.on_parked_answer(number, False, 0.5, 0.5)
    assert isinstance(fetch, SendFetch)
    assert fetch.sequence == number + 1


def test_an_answer_about_another_fetch_says_nothing() -> None:
    core, number = parked()
    for held in (True, False):
        assert core.on_parked_answer(number + 1, held, 1.0, 1.0) == []
        assert core.on_parked_answer(number - 1, held, 1.0, 1.0) == []
    assert core.next_deadline() == WAIT
    core.tick(WAIT)
    for held in (True, False):
        assert core.on_parked_answer(number, held, WAIT, WAIT) == []  # a fetch is out


def test_a_pause_after_a_bad_answer_is_no_parked_fetch() -> None:
    core, _ = parked()
    core.on_bad_answer(1, "it does not decode", 0.1)
    core.on_bad_answer(2, "it does not decode", 0.2)
    assert isinstance(core.state, Idle)
    assert core.parked is None
    due = core.next_deadline()
    for held in (True, False):
        assert core.on_parked_answer(core.state.sequence, held, 0.3, 0.3) == []
    assert core.next_deadline() == due


def test_a_replica_outside_the_isr_fetches() -> None:
    core, _ = parked(isr=(A, C))
    assert core.parked is None


@pytest.mark.parametrize("trouble", ["no room", "a disk that hangs"])
def test_a_follower_whose_disk_is_in_trouble_fetches(trouble: str) -> None:
    core, _ = parked()
    of_disk = core.on_space if trouble == "no room" else core.on_disk
    numbers = []
    for now, is_bad in ((0.1, True), (0.2, False)):
        of_disk(is_bad, now)
        answer(core, now=now)
        numbers.append(core.parked)
    assert numbers == [None, 3]


def test_a_follower_that_sleeps_asks_nothing() -> None:
    core, _ = parked()
    core.on_view(replace(core.view, paused=True, epoch=PartitionEpoch(2)), 0.1)
    core.tick(WAIT)
    answer(core, now=WAIT)
    assert isinstance(core.state, Idle)
    assert core.parked is None


def test_a_follower_that_was_parked_before_the_pause_sleeps() -> None:
    core, number = parked()
    core.on_view(replace(core.view, paused=True, epoch=PartitionEpoch(2)), 0.1)
    assert core.on_parked_answer(number, True, 1.0, 1.0) == []
    assert core.parked is None
    assert core.next_deadline() == math.inf
    assert core.tick(1.0 + 10 * WAIT) == []


def test_what_is_held_is_held_since_the_question() -> None:
    """An answer that was long on its way, or that the loop has come to late."""
    core, number = parked()
    core.on_parked_answer(number, True, 1.0, 1.0 + WAIT)
    assert core.next_deadline() <= 1.0 + WAIT
    (fetch,) = core.tick(1.0 + WAIT)
    assert isinstance(fetch, SendFetch)


def reads_at(core: Follower, now: float) -> str:
    fetch = ConsumerFetch(
        offset=Offset(0),
        leader_epoch=LeaderEpoch(0),
        max_bytes=1 << 20,
        max_wait=0.0,
        last_record_epoch=LeaderEpoch(0),
        token=Reader("a reader"),
    )
    (effect,) = core.on_consumer_fetch(fetch, now)
    return type(effect).__name__


def test_held_keeps_what_consumers_read_fresh_since_the_question() -> None:
    core, number = parked()
    age = SETTINGS.follower_read_max_age
    core.on_parked_answer(number, True, 1.0, 1.5)
    assert reads_at(core, 1.0 + age - 0.1) == "ServeConsumer"
    assert reads_at(core, 1.0 + age) == "RefuseConsumer"


def test_an_earlier_question_makes_nothing_older() -> None:
    core, number = parked()
    core.on_parked_answer(number, True, 1.5, 1.6)
    core.on_parked_answer(number, True, 1.0, 1.7)
    assert reads_at(core, 1.4 + SETTINGS.follower_read_max_age) == "ServeConsumer"


def test_followers_without_an_answer_do_not_fetch_all_at_once() -> None:
    deadlines = []
    for partition in range(100):
        core, number = parked(key=replace(KEY, partition=partition))
        core.on_parked_answer(number, True, 1.0, 1.0)
        deadlines.append(core.next_deadline())
    tenth = WAIT * SPREAD / 10
    first = 1.0 + WAIT * (1 - SPREAD)
    assert first <= min(deadlines)
    assert max(deadlines) <= 1.0 + WAIT
    counts = [sum(first + n * tenth <= at < first + (n + 1) * tenth for at in deadlines) for n in range(10)]
    assert max(counts) <= 25


def test_one_question_may_be_lost() -> None:
    """Its broker asks three times in an idle wait."""
    core, number = parked()
    core.on_parked_answer(number, True, 1.0, 1.0)
    assert core.tick(1.0 + WAIT * 2 / 3) == []
    assert core.on_parked_answer(number, True, 1.0 + WAIT * 2 / 3, 1.0 + WAIT * 2 / 3) == []
    assert core.parked == number
