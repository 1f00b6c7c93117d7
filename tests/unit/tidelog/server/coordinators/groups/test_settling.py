"""What one step of a shard does, and what it leaves for the next one."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.server.coordinators.groups.groups_world import GROUP, SESSION, Member, World, code, view
from tidelog.server.coordinators.groups import consumer_group as group_module
from tidelog.server.coordinators.groups import group_member
from tidelog.server.coordinators.groups import group_shard as shard_module
from tidelog.server.coordinators.groups.group_shard import BARRIER, BEAT
from tidelog.server.coordinators.shard import Admin
from wire.errors import Code
from wire.internal_records.group_records import GroupKey, MemberKey, StreamPartition, decode_key
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommittedOffset,
    CursorRequest,
    HeartbeatRequest,
    MemberRecord,
    OffsetsRequest,
    Subscription,
)


def join(name: str, *streams: str, **more: int) -> HeartbeatRequest:
    return HeartbeatRequest(
        group=GROUP,
        member=name,
        kind=HeartbeatRequest.JOIN,
        subscription=Subscription(streams=streams or ["s"]),
        session_timeout_ms=more.get("session_timeout_ms", round(SESSION * 1000)),
        rebalance_timeout_ms=30_000,
    )


def stay(name: str, applied: int) -> HeartbeatRequest:
    return HeartbeatRequest(group=GROUP, member=name, applied=applied)


def leave(name: str) -> HeartbeatRequest:
    return HeartbeatRequest(group=GROUP, member=name, kind=HeartbeatRequest.LEAVE)


# ---- a barrier -----------------------------------------------------------------------------------------------------


def test_an_answer_that_tells_what_is_so_needs_a_committed_record() -> None:
    """A deposed coordinator inside its lease would say that a member of its successor's is not known."""
    for request in (
        OffsetsRequest(group=GROUP),
        CursorRequest(cursor="c"),
        stay("nobody", 0),
        CommitRequest(group=GROUP, member="nobody", offsets=[CommittedOffset(stream="s", incarnation=1)]),
        CursorRequest(cursor="c", writes=True, expected_version=7),
    ):
        world = World()
        world.shard.take(1, request)
        settled = world.shard.settle(world.now, world.times)
        assert settled.records == [BARRIER], request
        assert len(settled.answers) == 1


def test_a_heartbeat_that_changes_nothing_and_a_request_that_nobody_would_take_need_no_record() -> None:
    world = World()
    a = Member(world, "a")
    a.beat()
    for request in (stay("a", a.version), OffsetsRequest(group="a b"), CommitRequest(group=GROUP)):
        world.shard.take(1, request)
        settled = world.shard.settle(world.now, world.times)
        assert settled.records == [], request
    assert world.admin(op.GROUP_LIST)["groups"]
    assert BARRIER not in world.log


def test_a_barrier_is_asked_for_only_where_nothing_else_is_written() -> None:
    world = World()
    world.shard.take(1, OffsetsRequest(group=GROUP))
    world.shard.take(2, join("a"))
    settled = world.shard.settle(world.now, world.times)
    assert BARRIER not in settled.records
    assert len(settled.answers) == 2


def test_a_barrier_changes_nothing_for_a_successor() -> None:
    world = World()
    world.committed()
    assert world.log == [BARRIER]
    successor = world.successor()
    assert (successor.groups, successor.unknown_records) == ({}, 0)


def test_records_of_kinds_that_this_version_does_not_know_are_skipped() -> None:
    world = World()
    Member(world, "a")
    world.log += [(b"z\0new", b"?"), (b"\xff", b""), (b"g\0too\0many", b""), (b"", None)]
    assert world.successor().unknown_records == 4
    assert list(world.successor().groups) == [GROUP]


# ---- several batches -----------------------------------------------------------------------------------------------


def holders(shard: shard_module.GroupShard) -> dict[StreamPartition, str]:
    shard.validate()
    return {p: member.id for group in shard.groups.values() for member in group.members.values() for p in member.held}


def test_a_partition_that_becomes_free_is_assigned_in_the_next_step() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    a.hear(world.unasked[-1][1])
    world.shard.take(1, stay("a", a.version))
    first = world.shard.settle(world.now, world.times)
    assert [decode_key(key) for key, _ in first.records] == [("g", "a")]
    second = world.shard.settle(world.now, world.times)
    assert [decode_key(key) for key, _ in second.records] == [("g", "b")]
    assert not world.shard.is_waiting
    b.hear(second.unasked[0][1])
    assert b.numbers == [2, 3]


def test_any_part_of_the_records_of_a_step_leaves_no_partition_with_two_members() -> None:
    """So they need not be in one batch."""
    world = World(view(s=(1, 7), t=(2, 5)))
    for name in "abc":
        Member(world, name, "s", "t")

    def step(*requests: HeartbeatRequest) -> None:
        for request in requests:
            world.shard.take(0, request)
        while world.shard.is_waiting:
            settled = world.shard.settle(world.now, world.times)
            for end in range(len(settled.records) + 1):
                part = World(world.view)
                part.log = world.log + settled.records[:end]
                part.now = world.now
                holders(part.successor())
                part.fail_over()
                holders(part.shard)
            world.log += settled.records

    def beats() -> list[HeartbeatRequest]:
        return [stay(m.id, m.version) for m in world.shard.groups[GROUP].members.values()]

    step(*beats())
    step(join("d", "s"), leave("a"))
    step(*beats())
    step(join("e", "t"), *beats())
    step(leave("b"), *beats(), join("f", "s", "t"))
    step(*beats())
    step(*beats())
    assert len(holders(world.shard)) == 12


def test_a_group_that_was_deleted_in_part_can_be_deleted_again() -> None:
    world = World()
    world.commit("", {0: 1, 1: 2})
    world.shard.take(1, Admin(op.GROUP_DELETE, op.GroupRef(GROUP)))
    settled = world.shard.settle(world.now, world.times)
    assert isinstance(decode_key(settled.records[-1][0]), GroupKey)
    world.log += settled.records[:1]
    world.shard = world.successor(compacted=True)
    assert len(world.committed()) == 1
    assert world.admin(op.GROUP_DELETE, GROUP) == {}
    assert not world.successor(compacted=True).groups


def test_one_step_takes_so_many_requests_and_groups_that_their_records_stay_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_module, "MAX_BYTES", 500)
    world = World()
    for number in range(100):
        request = join("a" * 40)
        request.group = f"g{number}"
        world.shard.take(number, request)
    sizes, answered = [], 0
    while world.shard.is_waiting:
        settled = world.shard.settle(world.now, world.times)
        world.shard.validate()
        sizes.append(sum(len(value or b"") for _, value in settled.records))
        answered += len(settled.answers)
    assert answered == 100
    assert max(sizes) < 1000
    assert len(sizes) > 3
    assert all(group.state == "stable" for group in world.shard.groups.values())


def test_the_record_of_a_member_that_has_everything_fits_in_a_batch() -> None:
    streams = {f"{'s' * 60}{number}": (5, 1) for number in range(3000)}
    world = World(view(10, **streams))
    Member(world, "a", patterns=("*",))
    largest = max(len(value or b"") for _, value in world.log)
    assert 100_000 < largest < 900_000
    # A few partitions each in many streams are no way around it, and a great number of them is taken.
    world = World(view(10, s=(5, 30_000)))
    Member(world, "a")
    (group,) = world.shard.groups.values()
    assert len(group.members["a"].target) == group_module.MAX_PARTITIONS
    records = len(world.log)
    world.change(view(11, s=(5, 30_000), other=(11, 1)))
    assert len(world.log) == records, "what is beyond the limit makes nothing new of it"


def test_partitions_beyond_the_limit_of_a_group_are_told_to_members_operators_and_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "MAX_TARGET_BYTES", 36)  # of four partitions
    world = World(view(10, s=(1, 6)))
    a = Member(world, "a", "s", "t")
    assert a.numbers == [0, 1, 2, 3]
    assert len(world.warnings) == 1
    assert a.beat().left_out == 2
    assert world.admin(op.GROUP_DESCRIBE, GROUP)["left_out"] == 2
    world.change(view(11, s=(1, 6), t=(11, 3)))
    assert (a.beat().left_out, a.numbers) == (5, [0, 1, 2, 3])
    world.fail_over()
    assert a.beat().left_out == 5
    world.change(view(12, t=(11, 3)))
    a.beat()
    a.beat()
    assert (a.beat().left_out, a.numbers) == (0, [0, 1, 2])
    assert [sentence[:31] for sentence in world.warnings] == [f"{n} partitions that group 'g' has" for n in (2, 5, 5)]


# ---- time ----------------------------------------------------------------------------------------------------------


def test_nobody_is_removed_while_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_BYTES", 1)
    world = World()
    a = Member(world, "a")
    world.pass_(SESSION - 0.1)
    world.now += BEAT
    for number in range(20):
        world.shard.take(number, join(f"m{number}"))
    world.shard.take("a", stay("a", a.version))
    world.settle()
    assert "a" in world.shard.groups[GROUP].members


def test_the_shortest_session_outlives_a_coordinator_that_stood_still_for_any_time() -> None:
    """Its timer fires before it has read the heartbeats that have come."""
    for stood_still in (0.1, 0.4, 0.6, 0.9, 1.4, 1.9, 3.0, 60.0):
        world = World()
        a = Member(world, "a", session_timeout_ms=1000)
        world.now += 0.25  # it is about to hear the next heartbeat
        world.settle()
        world.now += BEAT + stood_still
        world.settle()
        a.beat()
        assert a.numbers == [0, 1, 2, 3], stood_still


def test_a_session_lasts_longer_here_than_by_a_clock_that_is_a_little_slower() -> None:
    world = World()
    Member(world, "a")
    joined = world.now
    while "a" in world.shard.groups[GROUP].members:
        world.now += 0.05
        world.settle()
    assert world.now - joined > SESSION * 1.019


# ---- a settle that fails, and the first generation -----------------------------------------------------------------


def test_requests_of_a_step_that_met_a_bug_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(group_module, "assigning", fails)
    world.shard.take("first", OffsetsRequest(group=GROUP))
    world.shard.take("second", join("a"))
    with pytest.raises(KeyError):
        world.shard.settle(world.now, world.times)
    world.shard.take("third", OffsetsRequest(group=GROUP))
    assert world.shard.abandon() == (["first", "second", "third"], [])
    assert world.shard.abandon() == ([], [])


def test_a_member_that_joins_and_leaves_in_one_step_leaves_a_group_that_successors_know() -> None:
    world = World()
    world.shard.take(1, join("a"))
    world.shard.take(2, leave("a"))
    world.settle()
    assert list(world.shard.groups) == [GROUP]
    assert world.shard.groups[GROUP].emptied_at
    assert list(world.successor().groups) == [GROUP]


def test_the_generation_grows_with_the_first_member_whatever_there_is_to_read() -> None:
    world = World()
    a = Member(world, "a", "not-there-yet")
    assert (a.generation, a.numbers) == (1, [])


def test_a_member_that_gets_nothing_makes_a_generation_after_a_failover_too() -> None:
    world = World(view(s=(1, 1)))
    a = Member(world, "a")
    world.shard = world.successor()
    world.shard.take(1, join("b"))
    world.settle()
    assert world.shard.groups[GROUP].generation == a.generation + 1


def test_what_is_asked_at_once_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_PARTITIONS", 3)
    world = World()
    request = OffsetsRequest(group=GROUP)
    request.partitions.add(stream="s", incarnation=1, partitions=range(4))
    assert code(world.ask(request)) is Code.BAD_REQUEST


def test_a_member_record_holds_all_that_a_successor_needs() -> None:
    world = World()
    Member(world, "a", instance="i", client="host 1")
    (value,) = [value for key, value in world.log if isinstance(decode_key(key), MemberKey)]
    assert value is not None
    record = MemberRecord.FromString(value)
    member = group_member.Member.of_record("a", record)
    assert member == world.shard.groups[GROUP].members["a"]
    assert member.to_record() == record
