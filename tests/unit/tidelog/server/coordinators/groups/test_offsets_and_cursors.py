"""Commits, resets, what is forgotten, and cursors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tidelog.server.coordinators.groups.groups_world import (
    GROUP,
    RETENTION,
    Member,
    World,
    code,
    settle_members,
    view,
)
from tidelog.server.coordinators.groups import consumer_group as group_module
from tidelog.server.coordinators.groups import group_shard as shard_module
from tidelog.server.coordinators.shard import encoded
from wire.error_details import CURSOR_VERSION, LIMIT
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.operations import api_operations as op
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    CursorResponse,
    HeartbeatRequest,
    OffsetsRequest,
    OffsetsResponse,
)

S0 = StreamPartition("s", 1, 0)


def test_what_was_committed_is_told_to_everybody_and_to_a_successor() -> None:
    world = World()
    Member(world, "a")
    assert isinstance(world.commit("a", {0: 7, 2: 9}, metadata="x"), CommitResponse)
    world.fail_over(compacted=True)
    assert world.committed() == {S0: 7, S0._replace(partition=2): 9}
    answer = world.ask(OffsetsRequest(group=GROUP))
    assert isinstance(answer, OffsetsResponse)
    assert answer.offsets[0].metadata == "x"
    assert answer.offsets[0].partition_incarnation == 1


def test_a_partition_of_which_nothing_is_committed_is_told_as_such() -> None:
    world = World()
    asked = OffsetsRequest(group="nobody")
    entry = asked.partitions.add()
    entry.stream, entry.incarnation = "s", 1
    entry.partitions.append(0)
    answer = world.ask(asked)
    assert isinstance(answer, OffsetsResponse)
    assert [offset.offset for offset in answer.offsets] == [-1]
    assert not world.shard.groups


def test_a_commit_of_another_generation_is_refused_as_a_whole() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    assert code(world.commit("a", {0: 5}, generation=1)) is Code.STALE_GENERATION
    assert code(world.commit("a", {0: 5}, generation=3)) is Code.STALE_GENERATION
    assert world.committed() == {}


def test_a_commit_of_a_partition_that_is_anothers_is_refused_as_a_whole() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    assert code(world.commit("a", {0: 5, 3: 5})) is Code.NOT_ASSIGNED
    assert world.committed() == {}


def test_a_member_commits_what_it_still_has_to_give_up_and_not_what_it_has_given_up() -> None:
    world = World()
    a = Member(world, "a")
    Member(world, "b")
    assert isinstance(world.commit("a", {3: 5}), CommitResponse)
    a.beat()
    a.beat()
    assert code(world.commit("a", {3: 6})) is Code.NOT_ASSIGNED
    assert world.committed() == {S0._replace(partition=3): 5}


def test_a_commit_that_was_sent_before_another_one_and_comes_later_changes_nothing() -> None:
    world = World()
    Member(world, "a")
    assert isinstance(world.commit("a", {0: 5}, number=1), CommitResponse)
    assert isinstance(world.commit("a", {0: 9}, number=3), CommitResponse)
    assert code(world.commit("a", {0: 5}, number=1)) is Code.STALE_COMMIT
    assert code(world.commit("a", {1: 5}, number=2)) is Code.STALE_COMMIT
    assert world.committed() == {S0: 9}


def test_a_commit_that_is_repeated_is_taken_again_and_a_later_one_may_go_back() -> None:
    world = World()
    Member(world, "a")
    for number, offset in ((1, 9), (1, 9), (2, 4)):
        assert isinstance(world.commit("a", {0: offset}, number=number), CommitResponse)
    assert world.committed() == {S0: 4}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_new_coordinator_knows_which_commit_of_a_member_was_the_newest(compacted: bool) -> None:
    world = World()
    Member(world, "a")
    world.commit("a", {0: 5, 1: 5}, number=2)
    world.commit("a", {0: 9}, number=4)
    world.fail_over(compacted=compacted)
    assert code(world.commit("a", {0: 5}, number=3)) is Code.STALE_COMMIT
    assert code(world.commit("a", {1: 4}, number=1)) is Code.STALE_COMMIT
    assert world.committed() == {S0: 9, S0._replace(partition=1): 5}
    assert isinstance(world.commit("a", {0: 10}, number=5), CommitResponse)


def test_members_number_their_commits_by_themselves_and_one_that_does_not_commits_as_before() -> None:
    world = World()
    a, b = Member(world, "a"), Member(world, "b")
    settle_members(a, b)
    assert isinstance(world.commit("a", {0: 5}, number=7), CommitResponse)
    assert isinstance(world.commit("b", {3: 5}, number=1), CommitResponse)
    assert isinstance(world.commit("a", {0: 6}), CommitResponse)
    world.heartbeat("a", HeartbeatRequest.LEAVE)
    again = Member(world, "a2")
    settle_members(b, again)
    assert isinstance(world.commit("a2", {again.numbers[0]: 7}, number=1), CommitResponse)


def test_a_member_that_was_removed_commits_nothing() -> None:
    world = World()
    Member(world, "a")
    world.pass_(20)
    assert code(world.commit("a", {0: 5}, generation=1)) is Code.UNKNOWN_MEMBER
    assert world.committed() == {}


def test_a_program_that_is_no_member_commits_while_there_is_none() -> None:
    world = World()
    assert isinstance(world.commit("", {0: 5}), CommitResponse)
    assert world.committed() == {S0: 5}
    Member(world, "a")
    assert code(world.commit("", {0: 1})) is Code.GROUP_NOT_EMPTY
    assert world.committed() == {S0: 5}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"offsets": {0: -1}}, Code.BAD_REQUEST),
        ({"offsets": {}}, Code.BAD_REQUEST),
        ({"offsets": {9: 1}}, Code.WRONG_INCARNATION),
        ({"offsets": {0: 1}, "stream": "t"}, Code.WRONG_INCARNATION),
        ({"offsets": {0: 1}, "incarnation": 2}, Code.WRONG_INCARNATION),
        ({"offsets": {0: 1}, "incarnation": 99}, Code.UNAVAILABLE),
        ({"offsets": {0: 1}, "partition_incarnation": 2}, Code.WRONG_INCARNATION),
        ({"offsets": {0: 1}, "metadata": "x" * 1025}, Code.BAD_REQUEST),
    ],
)
def test_a_commit_that_cannot_be_is_refused_and_changes_nothing(change: dict[str, Any], expected: Code) -> None:
    world = World()
    offsets = change.pop("offsets")
    assert isinstance(offsets, dict)
    assert code(world.commit("", offsets, **change)) is expected
    assert not world.log
    assert not world.shard.groups


def test_offsets_of_a_stream_that_was_deleted_while_nobody_coordinated_are_removed() -> None:
    world = World()
    world.commit("", {0: 5})
    world.view = view(12)
    world.fail_over()
    assert world.committed() == {}
    assert world.successor().groups[GROUP].offsets == {}


# ---- operators


def test_a_group_is_listed_and_described() -> None:
    world = World()
    a, b = Member(world, "a", instance="i", client="me@here"), Member(world, "b")
    assert world.admin(op.GROUP_LIST)["groups"][0]["state"] == "reconciling"
    settle_members(a, b)
    world.commit("a", {0: 5})
    found = world.admin(op.GROUP_DESCRIBE, GROUP)
    assert (found["state"], found["members"], found["coordinator"], found["partition"]) == ("stable", 2, "b1", 3)
    assert found["details"][0]["assigned"] == {"s": [0, 1]}
    assert (found["details"][0]["client"], found["details"][0]["instance"]) == ("me@here", "i")
    assert [(o["stream"], o["partition"], o["offset"]) for o in found["offsets"]] == [("s", 0, 5)]
    assert code(world.admin(op.GROUP_DESCRIBE, "other")) is Code.UNKNOWN_GROUP


def test_a_reset_is_refused_while_there_are_members() -> None:
    world = World()
    Member(world, "a")
    new: op.NewOffset = {"stream": "s", "partition": 0, "offset": 3}
    assert code(world.admin(op.GROUP_RESET, GROUP, [new])) is Code.GROUP_NOT_EMPTY
    world.pass_(20)
    assert world.admin(op.GROUP_RESET, GROUP, [new])["offsets"][0]["offset"] == 3
    assert world.committed() == {S0: 3}
    for wrong in ({**new, "offset": -1}, {**new, "stream": "x"}, {**new, "partition": 4}):
        assert isinstance(world.admin(op.GROUP_RESET, GROUP, [new, wrong]), TidelogError)
    assert world.committed() == {S0: 3}


def test_a_reset_makes_a_group_and_one_that_is_refused_makes_none() -> None:
    world = World()
    assert isinstance(world.admin(op.GROUP_RESET, "new", [{"stream": "x", "partition": 0, "offset": 3}]), TidelogError)
    assert not world.shard.groups
    world.admin(op.GROUP_RESET, "new", [{"stream": "s", "partition": 0, "offset": 3}])
    assert [group["name"] for group in world.admin(op.GROUP_LIST)["groups"]] == ["new"]


def test_a_deleted_group_is_gone_for_a_successor_too() -> None:
    world = World()
    world.commit("", {0: 5})
    assert world.admin(op.GROUP_DELETE, GROUP) == {}
    assert code(world.admin(op.GROUP_DELETE, GROUP)) is Code.UNKNOWN_GROUP
    assert not world.successor().groups
    assert not world.successor(compacted=True).groups
    Member(world, "a")
    assert code(world.admin(op.GROUP_DELETE, GROUP)) is Code.GROUP_NOT_EMPTY


def _left_with_its_step_to_come(world: World) -> None:
    """The last member of the group leaves while the coordinator has too much to write for another step."""
    Member(world, "a")
    group = world.shard.groups[GROUP]
    records: dict[Any, Any] = {}
    group.heartbeat(HeartbeatRequest(kind=HeartbeatRequest.LEAVE, group=GROUP, member="a"), None, world.now, records)
    world.log += encoded(records)
    assert not group.emptied_at
    world.shard._unsettled[GROUP] = None


def test_a_group_whose_streams_change_as_its_last_member_leaves_is_forgotten() -> None:
    world = World()
    _left_with_its_step_to_come(world)
    world.change(view(generation=11, s=(1, 6)))
    assert world.shard.groups[GROUP].emptied_at
    world.time_ns += round(2 * RETENTION * 1e9)
    world.pass_(70)
    assert GROUP not in world.shard.groups


def test_a_group_whose_coordinator_dies_as_its_last_member_leaves_is_forgotten() -> None:
    world = World()
    _left_with_its_step_to_come(world)
    world.fail_over()
    assert world.shard.groups[GROUP].emptied_at
    world.fail_over()
    world.time_ns += round(2 * RETENTION * 1e9)
    world.pass_(70)
    assert GROUP not in world.shard.groups


def test_a_group_without_members_is_forgotten_after_its_retention_and_not_before() -> None:
    world = World()
    a = Member(world, "a")
    world.commit("a", {0: 5})
    world.pass_(2 * RETENTION - 2 * RETENTION)
    world.time_ns += round(5 * RETENTION * 1e9)
    world.pass_(70)
    assert GROUP in world.shard.groups, "its members have just gone"
    assert not world.shard.groups[GROUP].members, a
    world.time_ns += round(0.8 * RETENTION * 1e9)
    world.pass_(70)
    assert world.committed() == {S0: 5}
    world.time_ns += round(0.2 * RETENTION * 1e9)
    world.pass_(70)
    assert GROUP not in world.shard.groups
    assert not world.successor().groups


@pytest.mark.parametrize("days", [8, -8])
def test_a_coordinator_whose_clock_is_off_deletes_no_group(days: int) -> None:
    """And one that was emptied meanwhile is kept for as long from the moment at which the time is agreed again."""
    ahead = days * 24 * 3600 * 10**9
    world = World()
    world.commit("", {0: 5})
    world.agrees, world.time_ns = False, world.time_ns + ahead
    world.pass_(70)
    assert world.committed() == {S0: 5}
    world.commit("", {0: 6})
    world.agrees, world.time_ns = True, world.time_ns - ahead
    world.pass_(70)
    world.time_ns += round(0.9 * RETENTION * 1e9)
    world.pass_(70)
    assert world.committed() == {S0: 6}
    world.time_ns += round(0.2 * RETENTION * 1e9)
    world.pass_(70)
    assert GROUP not in world.shard.groups


# ---- limits


def test_limits_of_members_offsets_and_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MAX_MEMBERS", 2)
    world = World()
    Member(world, "a"), Member(world, "b")
    refused = world.join("c")
    assert code(refused) is Code.LIMIT_REACHED
    Member(world, "a")  # a repetition is no new one
    monkeypatch.setattr(shard_module, "MAX_OF_ALL", shard_module.MAX_OF_ALL._replace(members=2))
    monkeypatch.setattr(group_module, "MAX_MEMBERS", 9)
    assert world.join("c").detail(LIMIT) == "group_members"
    monkeypatch.setattr(shard_module, "MAX_OF_ALL", shard_module.MAX_OF_ALL._replace(offsets=1))
    other = CommitRequest(group="other", offsets=[CommittedOffset(stream="s", incarnation=1, partition=0, offset=1)])
    assert isinstance(world.ask(other), CommitResponse)
    assert isinstance(world.ask(other), CommitResponse), "the same partition again is no new one"
    other.offsets[0].partition = 1
    refused = world.ask(other)
    assert isinstance(refused, TidelogError)
    assert refused.detail(LIMIT) == "group_offsets"
    monkeypatch.setattr(shard_module, "MAX_GROUPS", 2)
    other.group = "third"
    refused = world.ask(other)
    assert isinstance(refused, TidelogError)
    assert refused.detail(LIMIT) == "groups"


# ---- cursors


def test_a_cursor_is_written_by_compare_and_set() -> None:
    world = World()
    absent = world.cursor("c")
    assert isinstance(absent, CursorResponse)
    assert absent.version == 0
    made = world.cursor("c", writes=True, value=b"1", expected_version=0)
    assert isinstance(made, CursorResponse)
    refused = world.cursor("c", writes=True, value=b"2", expected_version=0)
    assert isinstance(refused, TidelogError)
    assert refused.detail(CURSOR_VERSION) == made.version
    written = world.cursor("c", writes=True, value=b"3", expected_version=made.version)
    assert isinstance(written, CursorResponse)
    assert written.version > made.version
    world.fail_over(compacted=True)
    found = world.cursor("c")
    assert isinstance(found, CursorResponse)
    assert (found.value, found.version) == (b"3", written.version)


def test_a_cursor_that_was_deleted_and_made_again_has_a_version_that_it_never_had() -> None:
    world = World()
    first = world.cursor("c", writes=True, value=b"1")
    assert isinstance(first, CursorResponse)
    assert code(world.cursor("c", writes=True, deletes=True, expected_version=1)) is Code.CURSOR_CHANGED
    world.cursor("c", writes=True, deletes=True, expected_version=first.version)
    assert code(world.cursor("c", writes=True, value=b"x", expected_version=first.version)) is Code.CURSOR_CHANGED
    world.fail_over()
    world.time_ns += 1
    again = world.cursor("c", writes=True, value=b"1", expected_version=0)
    assert isinstance(again, CursorResponse)
    assert again.version != first.version


def test_limits_of_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    assert code(world.cursor("a.b")) is Code.BAD_NAME
    assert code(world.cursor("c", writes=True, value=b"x" * 4097)) is Code.BAD_REQUEST
    monkeypatch.setattr("tidelog.server.coordinators.groups.cursor_values.MAX_CURSORS", 1)
    world.cursor("c", writes=True, value=b"x")
    refused = world.cursor("d", writes=True, value=b"x")
    assert isinstance(refused, TidelogError)
    assert refused.detail(LIMIT) == "cursors"
    assert isinstance(world.cursor("c", writes=True, value=b"y"), CursorResponse)


def test_offsets_are_told_in_the_order_of_streams_and_numbers() -> None:
    world = World(view(s=(1, 12), a=(1, 3)))
    for stream, partition in (("s", 11), ("s", 2), ("a", 1), ("s", 10), ("a", 0)):
        world.commit("", {partition: 1}, stream=stream)
    told = [("a", 0), ("a", 1), ("s", 2), ("s", 10), ("s", 11)]
    assert [(of.stream, of.partition) for of in world.committed()] == told
    described = world.admin(op.GROUP_DESCRIBE, GROUP)
    assert [(each["stream"], each["partition"]) for each in described["offsets"]] == told
