"""A follower in step asks for nothing while its leader holds its fetch."""

# Rules: R83.

from __future__ import annotations

from dataclasses import replace

import pytest

from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import Idle
from dataplane.replica.replica_effects import ReportLeader, SendFetch
from tests.unit.dataplane.replica.cores import SETTINGS, answer, follower
from tests.views import A, C
from wire.types import PartitionEpoch

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
        assert core.on_parked_answer(number, True, float(second)) == []
        assert core.tick(second + WAIT - 0.1) == []
    assert core.next_deadline() == 9 + WAIT


def test_without_an_answer_it_fetches_when_its_idle_wait_is_over() -> None:
    core, number = parked()
    core.on_parked_answer(number, True, 1.0)
    (fetch,) = core.tick(1.0 + WAIT)
    assert isinstance(fetch, SendFetch)
    assert core.parked is None


def test_a_leader_that_falls_silent_is_reported_as_soon_as_ever() -> None:
    core, number = parked()
    core.on_parked_answer(number, True, 1.0)
    core.tick(1.0 + WAIT)
    assert not [e for e in core.tick(1.0 + SILENCE - 0.1) if isinstance(e, ReportLeader)]
    assert [e for e in core.tick(1.0 + SILENCE) if isinstance(e, ReportLeader)]


def test_what_is_not_held_is_asked_for_at_once() -> None:
    core, number = parked()
    (fetch,) = core.on_parked_answer(number, False, 0.5)
    assert isinstance(fetch, SendFetch)
    assert fetch.sequence == number + 1


def test_an_answer_about_another_fetch_says_nothing() -> None:
    core, number = parked()
    for held in (True, False):
        assert core.on_parked_answer(number + 1, held, 1.0) == []
        assert core.on_parked_answer(number - 1, held, 1.0) == []
    assert core.next_deadline() == WAIT
    core.tick(WAIT)
    for held in (True, False):
        assert core.on_parked_answer(number, held, WAIT) == []  # a fetch is out


def test_a_pause_after_a_bad_answer_is_no_parked_fetch() -> None:
    core, _ = parked()
    core.on_bad_answer(1, "it does not decode", 0.1)
    core.on_bad_answer(2, "it does not decode", 0.2)
    assert isinstance(core.state, Idle)
    assert core.parked is None
    assert core.on_parked_answer(core.state.sequence, True, 0.3) == []


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
