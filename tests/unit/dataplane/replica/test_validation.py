"""The invariants of the state machines, broken on purpose one by one: `validate` names the one that does not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.derived.producer_table import NOBODY, Producer, ProducerTable, RememberedBatch, packed_batches
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import Fetching, Syncing
from dataplane.replica.history import LENGTH, History
from dataplane.replica.leader.isr import CommittedIsr
from dataplane.replica.leader.leader import Leader
from dataplane.replica.replies import MoveRequest
from tests.unit.dataplane.replica.cores import Driver, follower, view
from tests.views import A, B
from wire.errors import InvariantViolation
from wire.types import BrokerId, LeaderEpoch, LeaderMove, Offset


def leading() -> Driver:
    driver = Driver(view(leader_epoch=3), log_start=10, log_end=30, high_watermark=25)
    driver.fetch(B, 30)
    driver.leader.validate()
    return driver


def log_start_above_hw(leader: Leader) -> None:
    leader._state.log_start_offset = Offset(28)


def follower_beyond_the_leader(leader: Leader) -> None:
    leader._state.followers[B].log_end_offset = Offset(31)


def isr_without_view(leader: Leader) -> None:
    leader._state.isr = CommittedIsr(frozenset({leader._state.broker}))


def uncounted_bytes(leader: Leader) -> None:
    leader._commits._uncommitted.append((Offset(30), 100, 0.0))


def unknown_replica(leader: Leader) -> None:
    leader._state.followers[BrokerId("z")] = leader._state.followers[B]


def later_epoch(leader: Leader) -> None:
    leader._epochs.assign(LeaderEpoch(4), Offset(29))


@pytest.mark.parametrize(
    ("breaks", "named"),
    [
        (log_start_above_hw, "log start <= HW <= LEO"),
        (follower_beyond_the_leader, "a follower holds part of the log"),
        (isr_without_view, "the committed ISR is that of the newest view"),
        (uncounted_bytes, "uncommitted bytes add up"),
        (unknown_replica, "each other replica is a follower"),
        (later_epoch, "no record is of a later LeaderEpoch"),
    ],
)
def test_a_leader_names_the_invariant_that_does_not_hold(breaks: Callable[[Leader], None], named: str) -> None:
    leader = leading().leader
    breaks(leader)
    with pytest.raises(InvariantViolation, match=named) as raised:
        leader.validate()
    assert "leads LeaderEpoch 3 from offset 30" in str(raised.value), "the history is attached"


def hw_above_leo(core: Follower) -> None:
    core._replica.high_watermark = Offset(8)


def fetch_for_another_offset(core: Follower) -> None:
    core._replica.state = Fetching(1, Offset(3), 1.0)


@pytest.mark.parametrize(
    ("breaks", "named"),
    [(hw_above_leo, "log start <= HW <= LEO"), (fetch_for_another_offset, "the fetch asks for the LEO")],
)
def test_a_follower_names_the_invariant_that_does_not_hold(breaks: Callable[[Follower], None], named: str) -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    core.validate()
    breaks(core)
    with pytest.raises(InvariantViolation, match=named) as raised:
        core.validate()
    assert "Reconciling, log end 7, committed end " in str(raised.value), "the history is attached"


def test_a_follower_does_not_make_a_transition_that_is_not_in_the_table() -> None:
    core = follower((5, 0), log_end=7)
    core.start(0.0)
    with pytest.raises(InvariantViolation, match="cannot go from Reconciling"):
        core._replica.enter(Syncing(1.0), 0.0)


def test_a_producer_table_names_the_invariant_that_does_not_hold() -> None:
    sound = Producer(0, 5, packed_batches([RememberedBatch(0, 100, 3), RememberedBatch(3, 110, 2)]))
    overlapping = [RememberedBatch(0, 100, 3), RememberedBatch(3, 102, 2)]
    ProducerTable().validate()
    for producer, named in (
        (sound.with_batches(packed_batches(overlapping)), "batches of a producer follow one another"),
        (Producer(0, 6, sound.packed), "the last batch says what comes next"),
        (sound.written_at(7), "the one that wrote longest ago is first"),
    ):
        table = ProducerTable()
        table.restore(NOBODY._replace(producers={1: sound}))
        table.validate()
        table.restore(NOBODY._replace(producers={1: producer}))
        with pytest.raises(InvariantViolation, match=named):
            table.validate()


def test_leader_epochs_grow_strictly() -> None:
    cache = LeaderEpochCache([EpochEntry(LeaderEpoch(1), Offset(0)), EpochEntry(LeaderEpoch(2), Offset(5))])
    cache.validate()
    cache._entries = (*cache.entries, EpochEntry(LeaderEpoch(2), Offset(6)))
    with pytest.raises(InvariantViolation, match="grow strictly"):
        cache.validate()


def test_a_story_is_bounded_and_counts_repetitions() -> None:
    history = History()
    for number in range(LENGTH + 10):
        history.add(f"event {number}", float(number))
    assert len(history.events) == LENGTH
    assert history.events[0].event == "event 10"
    for at in (100.0, 101.0):
        history.add("again", at)
    assert history.events[-1] == (101.0, "again", 2)
    assert len(history.events) == LENGTH


def test_a_leader_tells_of_its_isr_and_its_drain_and_not_of_batches() -> None:
    driver = leading()
    leader = driver.leader
    before = len(leader._state.history.events)
    for end in range(31, 131):
        leader.on_appended(Offset(end), 100, 1.0)
        driver.fetch(B, end)
    assert len(leader._state.history.events) == before
    move = LeaderMove(key=leader.view.key, leader=A, leader_epoch=leader.leader_epoch, target=B)
    leader.drain(B, MoveRequest(move, lambda _: None), 5.0, 1.0)
    leader.on_view(replace(leader.view, isr=leader.view.isr[:2], epoch=leader.view.epoch + 1), 2.0)  # type: ignore[arg-type]
    told = [event.event for event in leader._state.history.events[before:]]
    assert any(event.startswith(f"drains for {B}") for event in told)
    assert any(event.startswith("ISR ") for event in told)


def test_the_end_of_a_role_is_told_with_its_own_time() -> None:
    driver, core = leading(), follower()
    driver.leader.resign("LeaderEpoch 4 of s/0 has begun", 9.0)
    core.resign("LeaderEpoch 4 of s/0 has begun", 9.0)
    assert driver.leader._state.history.events[-1].at == 9.0
    assert core._replica.history.events[-1].at == 9.0
