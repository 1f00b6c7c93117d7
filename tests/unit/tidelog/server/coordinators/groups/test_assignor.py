"""Assignments are balanced, sticky, and go only to subscribers."""

from __future__ import annotations

import time
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidelog.server.coordinators.groups.assigned import assign
from tidelog.server.coordinators.groups.assignor import Assignment
from wire.internal_records.group_records import StreamPartition

STREAMS = ("a", "b", "c")


def partitions_of(stream: str, count: int) -> list[StreamPartition]:
    return [StreamPartition(stream, 1, number) for number in range(count)]


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assignment.values())


subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(6)]), st.frozensets(st.sampled_from(STREAMS), min_size=1), max_size=6
)
sizes = st.fixed_dictionaries({stream: st.integers(0, 7) for stream in STREAMS})


def check(
    subscribed: dict[str, frozenset[str]], partitions: dict[str, list[StreamPartition]], made: Assignment
) -> None:
    wanted = {p for stream, of in partitions.items() if any(stream in s for s in subscribed.values()) for p in of}
    given_out = [p for of in made.values() for p in of]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == wanted
    for member, of in made.items():
        assert {p.stream for p in of} <= subscribed[member]
    for member, of in made.items():
        for partition in of:
            for other, streams in subscribed.items():
                if partition.stream in streams:
                    assert len(made[other]) + 2 > len(of), f"{other} could take {partition} from {member}"


@given(subscriptions, sizes, st.randoms(use_true_random=False))
def test_every_partition_of_a_subscribed_stream_has_one_member_and_loads_are_balanced(
    subscribed: dict[str, frozenset[str]], counts: dict[str, int], rng: Random
) -> None:
    partitions = {stream: partitions_of(stream, count) for stream, count in counts.items()}
    everything = [p for of in partitions.values() for p in of]
    present = {f"m{n}": rng.sample(everything, rng.randint(0, len(everything))) for n in range(6)}
    made = assign(subscribed, partitions, present)
    check(subscribed, partitions, made)
    assert assign(subscribed, partitions, present) == made
    assert assign(subscribed, partitions, made) == made, "what is balanced stays"


def test_a_member_that_joins_gets_its_share_and_nothing_else_moves() -> None:
    partitions = {"a": partitions_of("a", 12)}
    before = assign({"m0": "a", "m1": "a"}, partitions, {})
    after = assign({"m0": "a", "m1": "a", "m2": "a"}, partitions, before)
    assert loads(after) == [4, 4, 4]
    assert all(after[member] < before[member] for member in before)


def test_partitions_of_a_member_that_leaves_are_shared_out_and_nothing_else_moves() -> None:
    partitions = {"a": partitions_of("a", 12)}
    before = assign({"m0": "a", "m1": "a", "m2": "a"}, partitions, {})
    after = assign({"m0": "a", "m2": "a"}, partitions, before)
    assert loads(after) == [6, 6]
    assert all(before[member] < after[member] for member in after)


def test_a_hundred_members_share_a_thousand_partitions_in_a_short_time() -> None:
    partitions = {"a": partitions_of("a", 1000)}
    members = {f"m{n:03}": "a" for n in range(100)}
    began = time.process_time()
    made = assign(members, partitions, {})
    again = assign({**members, "x": "a"}, partitions, made)
    assert loads(made) == [10] * 100
    assert sum(len(again[member] & made[member]) for member in members) == 1000 - len(again["x"])
    assert time.process_time() - began < 5, "it takes some 20 ms"
