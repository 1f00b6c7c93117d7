"""Who gets which partition, and when: joining, leaving, dying, static members, streams that come and go."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tidelog.server.coordinators.groups.groups_world import (
    GROUP,
    PATIENCE,
    SESSION,
    Member,
    World,
    code,
    settle_members,
    view,
)
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.protobuf.groups_pb2 import HeartbeatRequest, HeartbeatResponse, Subscription


def test_the_first_member_gets_everything_with_its_first_answer() -> None:
    member = Member(World(), "a")
    assert member.numbers == [0, 1, 2, 3]
    assert (member.generation, member.version) == (1, 1)


def test_a_partition_is_assigned_when_its_holder_has_given_it_up() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    assert b.numbers == []
    a.beat()
    assert a.numbers == [0, 1]
    b.beat()
    assert b.numbers == [], "a has not said that it gave them up"
    a.beat()
    b.beat()
    assert b.numbers == [2, 3]
    assert a.generation == b.generation == 2


def test_a_join_that_comes_when_its_member_was_removed_gets_a_version_above_all_of_before() -> None:
    """Else the member would keep the assignment of before, which others have by now."""
    world = World()
    a = Member(world, "a")
    before = a.version
    world.pass_(SESSION + 1)
    b = Member(world, "b")
    assert b.numbers == [0, 1, 2, 3]
    a.hear(world.join("a"))
    assert a.version > before
    assert a.numbers == []


def test_a_member_is_told_unasked_of_what_it_must_give_up_and_of_what_it_gets() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    (told,) = [answer for _, answer in world.unasked]
    assert isinstance(told, HeartbeatResponse)
    assert told.unasked
    a.hear(told)
    assert a.numbers == [0, 1]
    world.unasked.clear()
    a.beat()
    (told,) = [answer for _, answer in world.unasked]
    b.hear(told)
    assert b.numbers == [2, 3]


def test_members_that_keep_their_partitions_are_told_nothing_but_the_generation() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    versions = a.version, b.version
    c = Member(world, "c", "t")
    settle_members(a, b, c)
    assert (a.version, b.version) == versions
    assert a.generation == b.generation == 3


def test_partitions_of_a_member_that_left_are_free_at_once() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    world.heartbeat("a", HeartbeatRequest.LEAVE)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert code(world.heartbeat("a")) is Code.UNKNOWN_MEMBER
    assert isinstance(world.heartbeat("a", HeartbeatRequest.LEAVE), HeartbeatResponse), "leaving twice is leaving"


def test_a_member_that_is_silent_for_its_session_timeout_is_removed_and_not_before() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    for _ in range(4):
        world.pass_(SESSION / 4 - 0.1)
        b.beat()
    assert b.numbers == [2, 3]
    world.pass_(1)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]
    assert code(a_says(world, "a")) is Code.UNKNOWN_MEMBER


def a_says(world: World, member: str) -> object:
    return world.heartbeat(member, applied=1)


def test_a_member_that_does_not_give_up_in_time_is_expelled_and_has_its_partitions_until_its_session_ends() -> None:
    """It may not have heard that it is expelled, and reads until then."""
    world = World()
    a = Member(world, "a", rebalance_timeout_ms=5000)
    b = Member(world, "b")
    for _ in range(4):
        world.pass_(1)
        world.heartbeat("a", applied=a.version)  # it lives, and never applies the newer version
    world.pass_(2)
    assert [code(answer) for _, answer in world.unasked if isinstance(answer, TidelogError)] == [Code.UNKNOWN_MEMBER]
    assert code(a_says(world, "a")) is Code.UNKNOWN_MEMBER
    assert code(world.commit("a", {0: 1})) is Code.UNKNOWN_MEMBER
    b.beat()
    assert b.numbers == []
    world.pass_(SESSION - 3)
    b.beat()
    assert b.numbers == []
    world.pass_(1.5)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_an_expelled_member_that_leaves_frees_its_partitions() -> None:
    world = World()
    a = Member(world, "a", rebalance_timeout_ms=1000)
    b = Member(world, "b")
    world.pass_(1.5)
    assert code(world.heartbeat("a", applied=a.version)) is Code.UNKNOWN_MEMBER
    world.heartbeat("a", HeartbeatRequest.LEAVE)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_a_successor_takes_an_expelled_member_for_one_that_lives() -> None:
    world = World()
    a = Member(world, "a", rebalance_timeout_ms=1000)
    b = Member(world, "b")
    world.pass_(1.5)
    world.fail_over()
    settle_members(a, b)
    assert sorted(a.numbers + b.numbers) == [0, 1, 2, 3]


def test_a_removed_member_is_told_on_the_inbox_of_its_last_heartbeat() -> None:
    world = World()
    Member(world, "a")
    world.unasked.clear()
    world.pass_(SESSION + 1)
    ((_, farewell),) = world.unasked
    assert code(farewell) is Code.UNKNOWN_MEMBER


def test_a_static_member_that_comes_back_has_its_partitions_and_nobody_else_moves() -> None:
    world = World()
    a, b = Member(world, "a", instance="i"), Member(world, "b")
    settle_members(a, b)
    before = b.version
    world.heartbeat("a", HeartbeatRequest.PART, instance="i")
    world.pass_(SESSION / 2)
    b.beat()
    assert b.numbers == [2, 3], "they are kept for it"
    again = Member(world, "a2", instance="i")
    settle_members(again, b)
    assert again.numbers == [0, 1]
    assert b.version == before
    assert code(a_says(world, "a")) is Code.FENCED_INSTANCE


def test_partitions_of_a_static_member_that_does_not_come_back_are_others_when_its_session_ends() -> None:
    world = World()
    a, b = Member(world, "a", instance="i"), Member(world, "b")
    settle_members(a, b)
    world.heartbeat("a", HeartbeatRequest.PART)
    for _ in range(6):
        world.pass_(2)
        b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_the_instance_of_a_living_member_is_taken_over_and_the_old_one_is_fenced_and_told() -> None:
    world = World()
    old = Member(world, "old", instance="i")
    world.unasked.clear()
    new = Member(world, "new", instance="i")
    assert new.numbers == [0, 1, 2, 3]
    assert code(a_says(world, "old")) is Code.FENCED_INSTANCE
    assert [code(answer) for _, answer in world.unasked] == [Code.FENCED_INSTANCE]
    assert code(world.commit("old", {0: 1}, generation=old.generation)) is Code.FENCED_INSTANCE
    assert code(world.join("old", instance="i")) is Code.FENCED_INSTANCE


def test_a_join_whose_answer_was_lost_is_answered_again() -> None:
    world = World()
    Member(world, "a")
    again = Member(world, "a")
    assert again.numbers == [0, 1, 2, 3]
    assert again.generation == 1


def test_a_subscription_that_changes_moves_partitions() -> None:
    world = World(view(s=(1, 2), t=(2, 2)))
    a = Member(world, "a", "s")
    a.hear(world.heartbeat("a", applied=a.version, subscription=Subscription(streams=["t"])))
    settle_members(a)
    assert {str(partition) for partition in a.has} == {"t/0", "t/1"}


def test_patterns_follow_streams_that_come_and_go() -> None:
    world = World(view(s=(1, 1)))
    a = Member(world, "a", patterns=("logs-*", "s?"))
    assert a.numbers == []
    world.change(view(11, **{"s": (1, 1), "logs-x": (11, 2), "s1": (10, 1)}))
    settle_members(a)
    assert {str(partition) for partition in a.has} == {"logs-x/0", "logs-x/1", "s1/0"}
    world.change(view(12, s=(1, 1), s1=(10, 1)))
    settle_members(a)
    assert {str(partition) for partition in a.has} == {"s1/0"}


def test_a_stream_that_is_created_again_is_assigned_anew() -> None:
    world = World()
    a = Member(world, "a")
    world.commit("a", {0: 7})
    world.change(view(20, s=(20, 2)))
    settle_members(a)
    assert a.has == {StreamPartition("s", 20, 0), StreamPartition("s", 20, 1)}
    assert world.committed() == {}, "offsets of the deleted stream are gone"


def test_metadata_that_lags_behind_takes_nothing_away() -> None:
    world = World(view(20, s=(20, 2)))
    a = Member(world, "a")
    world.commit("a", {0: 7}, incarnation=20)
    world.view = view(15)  # of a successor that has not applied the creation yet
    world.fail_over()
    settle_members(a)
    assert a.numbers == [0, 1]
    assert world.committed() == {StreamPartition("s", 20, 0): 7}
    assert code(world.commit("a", {0: 8}, incarnation=20)) is Code.UNAVAILABLE
    world.change(view(20, s=(20, 2)))
    settle_members(a)
    assert a.numbers == [0, 1]
    world.commit("a", {0: 8}, incarnation=20)
    assert world.committed() == {StreamPartition("s", 20, 0): 8}


def test_a_successor_finds_everything_as_it_was_left() -> None:
    world = World()
    a, b = Member(world, "a", instance="i"), Member(world, "b")
    settle_members(a, b)
    before = (a.version, a.generation, b.version, b.generation)
    records = len(world.log)
    world.fail_over(compacted=True)
    settle_members(a, b)
    assert (a.version, a.generation, b.version, b.generation) == before
    assert len(world.log) == records, "and writes nothing"


def test_a_successor_goes_on_in_the_middle_of_a_revocation() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    world.fail_over()
    b.beat()
    assert b.numbers == []
    settle_members(a, b)
    assert (a.numbers, b.numbers) == ([0, 1], [2, 3])


def test_a_successor_is_patient_for_the_lease_of_a_coordinator_that_was_deposed() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    world.fail_over()
    while world.now < 100 + SESSION + PATIENCE - 0.5:
        b.beat()
        world.pass_(0.5)
    assert b.numbers == [2, 3]
    world.pass_(1)
    b.beat()
    assert b.numbers == [0, 1, 2, 3]


def test_a_coordinator_that_slept_removes_nobody_for_its_own_silence() -> None:
    world = World()
    a = Member(world, "a")
    world.now += 3600
    world.settle()
    a.beat()
    assert a.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "streams"),
    [
        ({"session_timeout_ms": 10}, ("s",)),
        ({"rebalance_timeout_ms": 1 << 31}, ("s",)),
        ({"instance": "a b"}, ("s",)),
        ({}, ("a.b",)),
        ({"patterns": ("[a-z]",)}, ()),
        ({"patterns": ("",)}, ()),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_changes_nothing(more: dict[str, Any], streams: tuple[str, ...]) -> None:
    world = World()
    assert code(world.join("a", *streams, **more)) in (Code.BAD_REQUEST, Code.BAD_NAME)
    assert not world.shard.groups
    assert not world.log


def test_names_of_groups_and_members_are_tokens() -> None:
    world = World()
    assert code(world.ask(HeartbeatRequest(group="a.b", member="m", kind=HeartbeatRequest.JOIN))) is Code.BAD_NAME
    assert code(world.join("x" * 65)) is Code.BAD_NAME
    assert code(world.ask(HeartbeatRequest.FromString(b"\n\x01g\x12\x01m\x18M"))) in (
        Code.BAD_REQUEST,
        Code.UNKNOWN_MEMBER,
    )
    assert not world.shard.groups


def test_a_stay_of_a_group_that_is_not_there_makes_none() -> None:
    world = World()
    assert code(world.heartbeat("a")) is Code.UNKNOWN_MEMBER
    assert isinstance(world.heartbeat("a", HeartbeatRequest.LEAVE), HeartbeatResponse)
    assert GROUP not in world.shard.groups
