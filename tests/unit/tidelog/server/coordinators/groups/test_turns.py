"""Targets of a group are computed in turns, and what happens between two turns counts when they are put in force."""

from __future__ import annotations

from random import Random

import pytest

import tidelog.server.coordinators.groups.assignor as assignor_module
import tidelog.server.coordinators.groups.consumer_group as group_module
import tidelog.server.coordinators.groups.group_shard as shard_module
from tests.unit.tidelog.server.coordinators.groups.assigned import assign
from tests.unit.tidelog.server.coordinators.groups.groups_world import GROUP, RETENTION, Member, World, view
from tidelog.server.coordinators.groups.assignor import MOST_LOOKS, Assignment, assigning
from tidelog.server.coordinators.groups.consumer_group import MAX_MEMBERS, MAX_PARTITIONS, MAX_SUBSCRIPTIONS, TURN
from tidelog.server.coordinators.groups.group_shard import Request
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView
from tidelog.server.coordinators.shard import Admin
from wire.internal_records.group_records import StreamPartition
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommittedOffset,
    HeartbeatRequest,
    OffsetsRequest,
    OffsetsResponse,
    StreamPartitions,
    Subscription,
)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """It looks at one partition in each turn, and takes a turn with each request."""
    monkeypatch.setattr(group_module, "TURN", 1)
    monkeypatch.setattr(assignor_module, "PIECE", 1)
    world = World(view(s=(1, 4), t=(2, 4)))
    world.most_turns = 1
    return world


def finish(world: World) -> None:
    world.most_turns = None
    world.settle()
    world.most_turns = 1


def is_computing(world: World) -> bool:
    return world.shard.groups[GROUP]._assigning is not None


def assigned(world: World, member: str) -> set[str]:
    return set(map(str, world.shard.groups[GROUP].members[member].assigned))


def test_who_leaves_while_targets_are_computed_gets_nothing(world: World) -> None:
    Member(world, "m0", "s")
    leaving = Member(world, "m1", "s")
    assert is_computing(world)
    world.heartbeat(leaving.name, HeartbeatRequest.LEAVE)
    finish(world)
    assert assigned(world, "m0") == {"s/0", "s/1", "s/2", "s/3"}


def test_a_stream_that_goes_while_targets_are_computed_is_given_to_nobody(world: World) -> None:
    Member(world, "m0", "s", "t")
    assert is_computing(world)
    world.change(view(20, t=(2, 4)))
    while is_computing(world):
        assert not assigned(world, "m0")
        world.settle()
        assert not {name for name in assigned(world, "m0") if name.startswith("s/")}
    finish(world)
    assert assigned(world, "m0") == {f"t/{number}" for number in range(4)}


def test_who_subscribes_to_something_else_meanwhile_gets_nothing_of_before(world: World) -> None:
    Member(world, "m0", "s")
    assert is_computing(world)
    world.heartbeat("m0", subscription=Subscription(streams=["t"]))
    while world.shard.is_waiting:
        assert not {name for name in assigned(world, "m0") if name.startswith("s/")}
        world.settle()
    assert assigned(world, "m0") == {f"t/{number}" for number in range(4)}


def test_who_is_expelled_meanwhile_gets_nothing(world: World) -> None:
    first = Member(world, "m0", "s", rebalance_timeout_ms=1000, session_timeout_ms=100_000)
    finish(world)
    second = Member(world, "m1", "s", session_timeout_ms=100_000)
    finish(world)
    third = Member(world, "m2", "t", session_timeout_ms=100_000)
    assert is_computing(world)
    assert world.shard.groups[GROUP].members[first.name].revoking
    world.shard.groups[GROUP].members[first.name].revoke_by = world.now
    world.now += 0.5
    world.settle()  # it has not given up in time
    assert world.shard.groups[GROUP].members[first.name].is_expelled
    finish(world)
    assert not world.shard.groups[GROUP].members[first.name].target
    assert assigned(world, third.name) == {f"t/{number}" for number in range(4)}
    assert world.shard.groups[GROUP].members[second.name].target == frozenset(world.view.partitions("s"))


def test_one_process_takes_the_place_of_another_while_targets_are_computed(world: World) -> None:
    Member(world, "m0", "s", instance="i")
    Member(world, "m1", "s")
    finish(world)
    world.heartbeat("m0", applied=world.shard.groups[GROUP].members["m0"].version)
    finish(world)
    before = assigned(world, "m0")
    assert len(before) == 2
    Member(world, "m2", "t")
    assert is_computing(world)
    Member(world, "m3", "s", instance="i")
    finish(world)
    assert assigned(world, "m3") == before, "nothing has moved"
    assert world.shard.groups[GROUP].state == "stable"


def test_the_largest_group_is_assigned_in_many_turns() -> None:
    world = World(StreamsView(10, {"s": StreamLife(1, dict.fromkeys(range(MAX_PARTITIONS), 1))}))
    world.join("m0")
    for number in range(1, 200):
        world.shard.take(number, HeartbeatRequest(
            group=GROUP, member=f"m{number}", kind=HeartbeatRequest.JOIN, session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000, subscription=Subscription(streams=["s"]),
        ))  # fmt: skip
    turns = 0
    while world.shard.is_waiting:
        world.shard.settle(world.now, world.times)
        turns += 1
    assert turns > 3 * MAX_PARTITIONS / TURN
    assert world.shard.groups[GROUP].members["m199"].target


def test_a_piece_of_work_is_no_larger_than_the_largest_group() -> None:
    """So many members, each with one of as many subscriptions as a group can have, which overlap at random: each stream
    is of a class of its own, with half of the members."""
    rng = Random(1)
    streams = [f"s{number:04}" for number in range(2000)]
    partitions = {name: [StreamPartition(name, 1, number) for number in range(10)] for name in streams}
    subscriptions = [frozenset(rng.sample(streams, 1000)) for _ in range(MAX_SUBSCRIPTIONS)]
    subscribed = {f"m{number:03}": subscriptions[number % MAX_SUBSCRIPTIONS] for number in range(MAX_MEMBERS)}
    before = assign(subscribed, partitions, {})
    del subscribed["m000"]
    work = assigning(subscribed, partitions, before)
    looked: list[int] = []
    targets: Assignment | None = None
    while targets is None:
        try:
            looked.append(next(work))
        except StopIteration as done:
            targets = done.value
    assert max(looked) <= MAX_PARTITIONS + MAX_MEMBERS
    assert sum(looked) <= 2 * MOST_LOOKS + 10 * MAX_PARTITIONS + MAX_SUBSCRIPTIONS * len(streams)
    assert sum(map(len, targets.values())) == MAX_PARTITIONS
    assert sum(len(before[member] - targets[member]) for member in targets) < 100, "few have moved"


def test_there_is_one_computation_at_a_time(world: World) -> None:
    """Each has the partitions of a whole group in memory."""
    for group in "abc":
        world.ask(HeartbeatRequest(
            group=group, member="m", kind=HeartbeatRequest.JOIN, session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000, subscription=Subscription(streams=["s"]),
        ))  # fmt: skip
    while world.shard.is_waiting:
        world.settle()
        assert sum(group.is_computing for group in world.shard.groups.values()) <= 1
    assert {len(group.members["m"].assigned) for group in world.shard.groups.values()} == {4}


# ---- requests, and groups that go ------------------------------------------------------------------------------------


def with_offsets(streams: int) -> World:
    world = World(StreamsView(10, {f"s{number}": StreamLife(1, {0: 1}) for number in range(streams)}))
    for number in range(streams):
        world.commit("", {0: number}, stream=f"s{number}")
    return world


def test_requests_that_look_at_much_are_carried_out_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_ASKED", 20)
    world = with_offsets(10)
    asked: list[Request] = [
        OffsetsRequest(group=GROUP),
        OffsetsRequest(group=GROUP, partitions=[StreamPartitions(stream="s1", incarnation=1, partitions=range(10))]),
        Admin(op.GROUP_LIST, op.GROUP_LIST.request_kind()),
        Admin(op.GROUP_DESCRIBE, op.GROUP_DESCRIBE.request_kind(group=GROUP)),
        CommitRequest(group=GROUP, offsets=[CommittedOffset(stream="s1", incarnation=1, offset=9)] * 10),
    ]
    for number, request in enumerate(asked * 10):
        world.shard.take(number, request)
    answered = 0
    while world.shard.is_waiting:
        answers = world.shard.settle(world.now, world.times).answers
        assert len(answers) <= 3
        answered += len(answers)
    assert answered == 50


def test_a_large_group_is_deleted_in_turns_and_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_FORGOTTEN", 4)
    world = with_offsets(10)
    world.shard.take("delete", Admin(op.GROUP_DELETE, op.GROUP_DELETE.request_kind(group=GROUP)))
    world.shard.take("commit", CommitRequest(
        group=GROUP, offsets=[CommittedOffset(stream="s3", incarnation=1, offset=77)]
    ))  # fmt: skip
    answered: list[object] = []
    deleted: list[int] = []
    while world.shard.is_waiting:
        settled = world.shard.settle(world.now, world.times)
        world.log += settled.records
        answered += [token for token, _ in settled.answers]
        deleted.append(sum(value is None for _, value in settled.records))
    assert answered == ["delete", "commit"]
    assert (max(deleted), sum(deleted)) == (4, 11)
    for compacted in (False, True):
        known = world.successor(compacted=compacted).groups[GROUP]
        assert {of.stream: record.offset for of, record in known.offsets.items()} == {"s3": 77}


def test_a_deletion_that_is_given_up_is_told_as_one_that_may_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_FORGOTTEN", 4)
    world = with_offsets(10)
    world.shard.take("delete", Admin(op.GROUP_DELETE, op.GROUP_DELETE.request_kind(group=GROUP)))
    world.shard.settle(world.now, world.times)
    world.log += world.shard.settle(world.now, world.times).records
    assert world.shard.abandon() == ([], ["delete"])
    successor = world.successor()
    assert len(successor.groups[GROUP].offsets) == 6
    assert not successor.is_waiting or not successor._forgotten


def test_old_groups_are_forgotten_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_FORGOTTEN", 4)
    world = with_offsets(3)
    for group in "abcdef":
        world.ask(CommitRequest(group=group, offsets=[CommittedOffset(stream="s1", incarnation=1, offset=9)]))
    world.now += 100
    world.time_ns += int(2 * RETENTION * 1e9)
    deleted: list[int] = []
    while not deleted or world.shard.is_waiting:
        deleted.append(len(world.shard.settle(world.now, world.times).records))
    assert not world.shard.groups
    assert sum(deleted) == 4 + 6 * 2
    assert max(deleted) <= 4 + 2


def test_members_whose_sessions_are_over_are_removed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_GONE", 2)
    world = World()
    for group in "abcdef":
        world.ask(HeartbeatRequest(
            group=group, member="m", kind=HeartbeatRequest.JOIN, session_timeout_ms=1000,
            rebalance_timeout_ms=1000, subscription=Subscription(streams=["s"]),
        ))  # fmt: skip
    removed: list[int] = []
    while any(group.members for group in world.shard.groups.values()) or world.shard.is_waiting:
        world.now += 0.0 if world.shard.is_waiting else 0.4
        records = world.shard.settle(world.now, world.times).records
        removed.append(sum(value is None for _, value in records))
    assert (max(removed), sum(removed)) == (2, 6)


def test_offsets_that_are_told_in_turns_are_those_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction commits its offsets together: whoever reads some of them has to read all of them."""
    monkeypatch.setattr(shard_module, "MAX_ASKED", 20)
    monkeypatch.setattr(shard_module, "_TOLD_AT_ONCE", 4)
    world = with_offsets(40)
    world.shard.take("asked", OffsetsRequest(group=GROUP))
    assert not world.shard.settle(world.now, world.times).answers
    world.shard.take("committed", CommitRequest(
        group=GROUP,
        offsets=[CommittedOffset(stream=f"s{number}", incarnation=1, offset=1000) for number in range(40)],
    ))  # fmt: skip
    answers = dict[object, object]()
    while world.shard.is_waiting:
        answers.update(world.shard.settle(world.now, world.times).answers)
    answer = answers["asked"]
    assert isinstance(answer, OffsetsResponse)
    assert sorted(each.offset for each in answer.offsets) == [*range(40)]
    again = world.ask(OffsetsRequest(group=GROUP))
    assert isinstance(again, OffsetsResponse)
    assert {each.offset for each in again.offsets} == {1000}


def test_requests_that_are_answered_in_turns_are_given_up_with_their_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_module, "MAX_ASKED", 20)
    world = with_offsets(40)
    reset = op.GROUP_RESET.request_kind(group=GROUP, offsets=[{"stream": "s1", "partition": 0, "offset": 7}])
    world.shard.take("reset", Admin(op.GROUP_RESET, reset))
    world.shard.take("asked", OffsetsRequest(group=GROUP))
    for _ in range(2):
        assert not world.shard.settle(world.now, world.times).answers
    assert world.shard.waiting == 2
    assert world.shard.abandon() == (["asked"], ["reset"])
    assert world.shard.waiting == 0


def test_of_requests_whose_answers_take_turns_one_is_carried_out_at_a_time_and_others_pass_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "MAX_ASKED", 20)
    monkeypatch.setattr(shard_module, "_TOLD_AT_ONCE", 5)
    asked = [StreamPartitions(stream="s", incarnation=1, partitions=range(100))]
    for number in range(10):
        world.shard.take(number, OffsetsRequest(group=GROUP, partitions=asked))
    of_each = world.shard.waiting_bytes // 10
    few = [StreamPartitions(stream="s", incarnation=1, partitions=range(2))]
    world.shard.take("few", OffsetsRequest(group=GROUP, partitions=few))
    assert not world.settle()
    assert (world.shard.waiting, world.shard.waiting_bytes > 9 * of_each) == (11, True)
    assert [token for token, _ in world.settle()] == ["few"]
    assert (world.shard.waiting, world.shard.waiting_bytes) == (10, 9 * of_each), "what waits is bounded by its bytes"
    world.most_turns = None
    assert [token for token, _ in world.settle()] == [*range(10)]
    assert (world.shard.waiting, world.shard.waiting_bytes) == (0, 0)
