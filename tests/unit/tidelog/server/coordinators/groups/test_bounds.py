"""What groups cost at their bounds, counted where that can be counted: a coordinator shares its event loop with the
leaders of its broker. And what they refuse."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidelog.server.coordinators.groups.group_shard as shard_module
import tidelog.server.coordinators.groups.selection as selection_module
from tests.unit.tidelog.server.coordinators.groups.assigned import assign
from tests.unit.tidelog.server.coordinators.groups.groups_world import GROUP, World, view
from tidelog.server.coordinators.groups.consumer_group import (
    MAX_MEMBER_BYTES,
    MAX_METADATA,
    MAX_METADATA_BYTES,
    MAX_SUBSCRIPTIONS,
)
from tidelog.server.coordinators.groups.group_member import MAX_PATTERNS, MAX_STARS, MAX_SUBSCRIPTION
from tidelog.server.coordinators.groups.group_shard import MAX_REQUESTS, MAX_WORK
from tidelog.server.coordinators.groups.selection import MOST_KEPT, Selection, Subscribed
from tidelog.server.coordinators.known_streams import StreamLife, StreamsView, compiled
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.protobuf.groups_pb2 import HeartbeatRequest, Subscription

LONG = "x" * 50


def many_streams(count: int) -> StreamsView:
    return StreamsView(10, {f"{LONG}-{number}": StreamLife(1, {0: 1}) for number in range(count)})


def refused(world: World, member: str, **subscription: Any) -> str | None:
    """The limit that a member meets when it joins; None: it joins."""
    answer = world.join(member, *subscription.get("streams", ()), patterns=tuple(subscription.get("patterns", ())))
    if not isinstance(answer, TidelogError):
        return None
    assert answer.code is Code.LIMIT_REACHED
    return answer.detail(LIMIT)


# ---- the assignor ----------------------------------------------------------------------------------------------------


def seconds_of_a_second_member(partitions: int) -> float:
    of = {"s": [StreamPartition("s", 1, number) for number in range(partitions)]}
    names = frozenset({"s"})
    one = assign({"m0": names}, of, {})
    began = time.process_time()
    two = assign({"m0": names, "m1": names}, of, one)
    took = time.process_time() - began
    assert [len(two["m0"]), len(two["m1"])] == [partitions / 2] * 2
    assert two["m0"] < one["m0"]
    return took


def test_the_surplus_moves_in_one_pass() -> None:
    """Four times as many partitions took sixteen times as long when they moved one by one: 24 s for 20,000."""
    few = min(seconds_of_a_second_member(5_000) for _ in range(3))
    many = min(seconds_of_a_second_member(20_000) for _ in range(3))
    assert many < 1, "it takes 40 ms"
    assert many < 10 * few + 0.05


def test_members_who_overlap_in_many_streams_are_levelled_in_few_passes() -> None:
    """Each pair of neighbours shares a stream: a chain, along which loads level slowly."""
    of = {f"s{n}": [StreamPartition(f"s{n}", 1, p) for p in range(20)] for n in range(200)}
    subscribed = {f"m{n:03}": frozenset({f"s{n}", f"s{n + 1}"}) for n in range(200)}
    began = time.process_time()
    made = assign(subscribed, of, {"m000": [p for found in of.values() for p in found]})
    assert time.process_time() - began < 5, "it takes some 50 ms"
    assert sum(map(len, made.values())) == 200 * 20
    assert max(map(len, made.values())) <= 40


# ---- patterns --------------------------------------------------------------------------------------------------------


@given(st.text("ab*?-_", min_size=1, max_size=12), st.text("ab-_", max_size=16))
def test_patterns_match_as_shells_do(pattern: str, name: str) -> None:
    assert (compiled(pattern).fullmatch(name) is not None) == fnmatchcase(name, pattern)


def test_no_pattern_takes_long() -> None:
    """Stars are not tried at one place after the other: that would take longer than the universe here."""
    pattern = "*a" * 31 + "*b"
    began = time.process_time()
    for _ in range(1000):
        assert compiled("*a*a").fullmatch("a" * 64) is not None
        assert compiled(pattern).fullmatch("a" * 64) is None
    assert time.process_time() - began < 20, "it takes 0.1 s, and compiling more"


def test_a_pattern_looks_at_each_name_once() -> None:
    selection = Selection()
    selection.on_streams(many_streams(1000))
    wanted = Subscribed(frozenset(), frozenset({"x*", "*-1?"}))
    assert selection.of(wanted).bit_count() == 1000
    looks = selection.looks
    for _ in range(100):
        assert selection.of(Subscribed(frozenset(), frozenset({"*-1?", "x*"}))).bit_count() == 1000
    assert selection.looks == looks
    selection.on_streams(many_streams(1001))
    assert selection.of(wanted).bit_count() == 1001
    assert selection.looks - looks < 10, "the new name was looked at, and the selection made anew"


def names(selection: Selection, *patterns: str, streams: tuple[str, ...] = ()) -> set[str]:
    return set(selection.names(selection.of(Subscribed(frozenset(streams), frozenset(patterns)))))


def named(*streams: str) -> StreamsView:
    return StreamsView(10, {name: StreamLife(1, {0: 1}) for name in streams})


def test_streams_that_come_go_and_come_back_are_selected_while_they_are_there() -> None:
    selection = Selection()
    selection.on_streams(named("a1", "b1"))
    assert names(selection, "a*", streams=("b1", "c1")) == {"a1", "b1"}
    selection.on_streams(named("b1", "a2", "c1"))
    assert names(selection, "a*", streams=("b1", "c1")) == {"a2", "b1", "c1"}
    selection.on_streams(named("a1", "a2"))
    assert names(selection, "a*", streams=("b1", "c1")) == {"a1", "a2"}
    assert names(selection, "nothing*") == set()
    selection.on_streams(named())
    assert names(selection, "a*", streams=("b1", "c1")) == set()


def test_names_of_streams_that_are_gone_are_not_kept_without_end() -> None:
    selection = Selection()
    for number in range(30):
        selection.on_streams(named("stays", *(f"s{number}-{each}" for each in range(100))))
        assert len(names(selection, "*")) == 101
        assert names(selection, "st*", "s3-*", f"s{number}-7") == {"stays", f"s{number}-7"} | (
            {f"s3-{each}" for each in range(100)} if number == 3 else set()
        )
    assert len(selection._names) <= 2 * 101 + 1024


def test_many_subscriptions_to_all_of_many_streams_are_found_in_bounded_turns() -> None:
    """What is found for one is there when the last one is found, however many streams there are: the coordinator would
    begin anew without end."""
    selection = Selection()
    selection.on_streams(many_streams(20_000))
    wanted = [
        Subscribed(frozenset({f"other-{number}"}), frozenset({"*", "x*", f"*{number}*"}))
        for number in range(MAX_SUBSCRIPTIONS)
    ]
    turns, most = 0, 0
    while True:
        before = selection.looks
        is_prepared = selection.prepare(wanted, MAX_WORK)
        most, turns = max(most, selection.looks - before), turns + 1
        if is_prepared:
            break
        assert turns < 1000
    assert most <= MAX_WORK + 1000, "the bound, and what is compiled last"
    looks = selection.looks
    assert [selection.of(each).bit_count() for each in wanted] == [20_000] * MAX_SUBSCRIPTIONS
    assert selection.looks == looks, "all are there together"


def test_as_many_patterns_as_a_group_can_have_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_SUBSCRIPTIONS * MAX_PATTERNS <= MOST_KEPT // 2
    monkeypatch.setattr(selection_module, "MOST_KEPT", 8)
    selection = Selection()
    selection.on_streams(named("a1", "b1", "c1"))
    for round_ in range(3):
        wanted = [Subscribed(frozenset(), frozenset({f"{letter}*", f"{round_}{letter}*"})) for letter in "abc"]
        for _ in range(100):
            if selection.prepare(wanted, 1):
                break
        else:
            pytest.fail("it never ends")
        assert [selection.names(selection.of(each)) for each in wanted] == [["a1"], ["b1"], ["c1"]]
        assert len(selection._patterns) <= 8


def test_patterns_are_looked_at_in_turns_of_bounded_work() -> None:
    """So many members, each with as many patterns as it may have, over all streams: no single turn sees them all."""
    world = World(many_streams(3000))
    for member in range(10):
        patterns = [f"*{LONG[:10]}*{member}-{number}" for number in range(MAX_PATTERNS)]
        world.shard.take(member, heartbeat(f"m{member}", Subscription(patterns=patterns)))
    most = 0
    while world.shard.is_waiting:
        before = world.shard._selection.looks
        world.shard.settle(world.now, world.times)
        most = max(most, world.shard._selection.looks - before)
    assert world.shard._selection.looks > 10 * MAX_PATTERNS * 3000
    assert most < 60_000, "the bound, and the pattern that exceeds it"
    assert len(world.shard.groups[GROUP].members) == 10


def heartbeat(member: str, subscription: Subscription) -> HeartbeatRequest:
    return HeartbeatRequest(
        group=GROUP,
        member=member,
        kind=HeartbeatRequest.JOIN,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        subscription=subscription,
    )


def test_requests_are_carried_out_in_turns() -> None:
    world = World()
    for member in range(3 * MAX_REQUESTS):
        world.shard.take(member, HeartbeatRequest(group=GROUP, member=f"m{member}", kind=HeartbeatRequest.STAY))
    assert len(world.shard.settle(world.now, world.times).answers) == MAX_REQUESTS
    assert world.shard.is_waiting


# ---- what is kept, and written ---------------------------------------------------------------------------------------


def test_patterns_are_bounded_in_number_and_in_stars() -> None:
    world = World()
    assert refused(world, "a", patterns=[f"p{number}*" for number in range(MAX_PATTERNS + 1)]) == "member_patterns"
    assert refused(world, "b", patterns=["*a" * (MAX_STARS + 1)]) == "pattern_stars"
    assert refused(world, "c", patterns=[f"p{number}*" for number in range(MAX_PATTERNS)]) is None


def test_the_members_of_a_group_have_so_many_different_subscriptions() -> None:
    world = World()
    for number in range(MAX_SUBSCRIPTIONS):
        assert refused(world, f"m{number}", streams=[f"s{number}"]) is None
    assert refused(world, "x", streams=["other"]) == "group_subscriptions"
    assert refused(world, "x", streams=["s1"]) is None
    world.heartbeat("m0", HeartbeatRequest.LEAVE)
    assert refused(world, "y", streams=["other"]) is None
    world.fail_over()
    assert refused(world, "z", streams=["third"]) == "group_subscriptions"


def test_members_are_bounded_in_bytes_and_only_what_changed_is_written() -> None:
    """Heartbeats of 300 members with 1,000 long names each made a coordinator write 117 MiB and more for three joins
    and leaves."""
    world = World(view(s=(1, 4)))
    names = [f"{LONG}-{number}" for number in range(MAX_SUBSCRIPTION - 1)]
    joined = 0
    while (limit := refused(world, f"m{joined}", streams=["s", *names])) is None:
        joined += 1
    assert limit == "group_member_bytes"
    group = world.shard.groups[GROUP]
    assert joined == MAX_MEMBER_BYTES // next(iter(group.members.values())).bytes
    world.log.clear()
    for number in range(3):
        assert refused(world, f"x{number}", streams=["s"]) is None
        world.heartbeat(f"x{number}", HeartbeatRequest.LEAVE)
    written = sum(len(key) + len(value or b"") for key, value in world.log)
    assert written < 20 * len(names) * len(names[0]), "four partitions: few members change"


def test_metadata_of_offsets_is_bounded() -> None:
    partitions = 1000
    world = World(view(s=(1, 20 * partitions)))
    room, answer = MAX_METADATA_BYTES // (partitions * MAX_METADATA), None
    for number in range(room + 1):
        offsets = {number * partitions + each: 1 for each in range(partitions)}
        answer = world.commit("", offsets, metadata="m" * MAX_METADATA)
        assert isinstance(answer, TidelogError) == (number == room)
    assert isinstance(answer, TidelogError)
    assert answer.detail(LIMIT) == "group_metadata_bytes"
    assert world.shard.groups[GROUP].metadata_bytes <= MAX_METADATA_BYTES
    assert not isinstance(world.commit("", {0: 2}, metadata=""), TidelogError), "less is always taken"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_successor_knows_the_generation_that_members_have_reached(compacted: bool) -> None:
    """It is written only with what changes, and a member with nothing to give up reaches each."""
    world = World(view(s=(1, 2)))
    for member in "abc":
        world.join(member)
        for each in world.shard.groups[GROUP].members:
            world.heartbeat(each, applied=world.shard.groups[GROUP].members[each].version)
    generation = world.shard.groups[GROUP].generation
    assert {m.generation for m in world.shard.groups[GROUP].members.values()} == {generation}
    successor = world.successor(compacted=compacted)
    assert {m.generation for m in successor.groups[GROUP].members.values()} == {generation}


def test_what_all_groups_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    bounds = shard_module.MAX_OF_ALL._replace(member_bytes=1000, metadata_bytes=10)
    monkeypatch.setattr(shard_module, "MAX_OF_ALL", bounds)
    assert not isinstance(world.commit("", {0: 1}, metadata="0123456789"), TidelogError)
    assert not isinstance(world.commit("", {0: 2}, metadata="9876543210"), TidelogError), "it is not more"
    full = world.commit("", {1: 1}, metadata="x")
    assert isinstance(full, TidelogError)
    assert full.detail(LIMIT) == "group_metadata_bytes"
    joined = 0
    while (limit := refused(world, f"m{joined}", streams=[LONG])) is None:
        joined += 1
    assert limit == "group_member_bytes"
    assert 1000 // 60 <= joined <= 1000 // 50, "of 55 bytes each"
