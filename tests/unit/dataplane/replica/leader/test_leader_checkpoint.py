"""A leader's answers to a follower that lacks the records below its log start."""

from __future__ import annotations

from dataclasses import replace

from dataplane.replica.leader.leadership import SnapshotFetch
from dataplane.replica.replica_effects import Refuse, SendSnapshot
from tests.unit.dataplane.replica.cores import Driver, view
from tests.views import B
from wire.errors import Code
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset

ASKED = SnapshotFetch(
    replica=B, incarnation=Incarnation(20), leader_epoch=LeaderEpoch(3), offset=None, position=0, inbox="i"
)


def leading() -> Driver:
    return Driver(view(leader_epoch=3), log_start=10, log_end=30, high_watermark=25)


def test_it_is_told_the_state_at_the_log_start_from_where_it_wants() -> None:
    leader = leading().leader
    assert leader.on_snapshot_request(ASKED, 0.0) == [SendSnapshot(B, "i", Offset(10), 0, Offset(25))]
    later = replace(ASKED, offset=Offset(10), position=400)
    assert leader.on_snapshot_request(later, 0.0) == [SendSnapshot(B, "i", Offset(10), 400, Offset(25))]


def test_of_a_state_that_is_not_at_the_log_start_any_more_it_is_told_to_begin_again() -> None:
    leader = leading().leader
    leader.on_log_start(Offset(20))
    (refusal,) = leader.on_snapshot_request(replace(ASKED, offset=Offset(10), position=400), 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is Code.OFFSET_BEFORE_LOG
    assert refusal.error.details["log_start"] == "20"
    assert leader.on_snapshot_request(ASKED, 0.0) == [SendSnapshot(B, "i", Offset(20), 0, Offset(25))]


def test_fenced_below_and_silent_above() -> None:
    leader = leading().leader
    assert leader.on_snapshot_request(replace(ASKED, leader_epoch=LeaderEpoch(4)), 0.0) == []
    (refusal,) = leader.on_snapshot_request(replace(ASKED, leader_epoch=LeaderEpoch(2)), 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.error.code is Code.FENCED_LEADER_EPOCH


def test_strangers_and_earlier_lives_are_refused() -> None:
    driver = leading()
    driver.fetch(B, 12)
    known = next(follower for name, follower in driver.leader._state.followers.items() if name == B)
    for stranger in (
        replace(ASKED, replica=BrokerId("z")),
        replace(ASKED, incarnation=Incarnation(known.incarnation - 1)),
    ):
        (refusal,) = driver.leader.on_snapshot_request(stranger, 0.0)
        assert isinstance(refusal, Refuse)
        assert refusal.error.code is Code.STALE_EPOCH
