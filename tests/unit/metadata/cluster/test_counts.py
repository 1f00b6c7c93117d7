"""Which streams own subjects in common, and that the counts are those of the streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.cluster.counts import Counts
from tests.unit.metadata.cluster_bench import Cluster
from wire.subjects import ingest_subject
from wire.types import BrokerId, StreamName


def overlaps(there: str, asked: str) -> bool:
    counts = Counts()
    counts.add_subject(there, StreamName("there"))
    found = counts.taken_by(asked) is not None
    counts.remove_subject(there)
    assert counts == Counts()
    return found


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", "a.1", True),
        ("a", "a.12", True),
        ("a", "a.0", False),  # partition 0 is `a`
        ("a", "a.01", False),  # never written so
        ("a", "a.x", False),
        ("a", "a.1.1", False),  # `a` owns a.1, `a.1.1` owns a.1.1 and below
        ("a", "a.²", False),
        ("a.1", "a.2", False),
        ("a.1", "a.1.3", True),
        ("a", "ab", False),
        ("1", "a.1", False),
    ],
)
def test_overlaps(a: str, b: str, expected: bool) -> None:
    assert overlaps(a, b) is expected
    assert overlaps(b, a) is expected


@given(st.lists(st.sampled_from(["a", "b", "0", "1", "2", "10"]), min_size=2, max_size=6), st.integers(1, 5))
def test_overlap_is_a_subject_in_common(tokens: list[str], cut: int) -> None:
    a, b = ".".join(tokens[:cut]) or "a", ".".join(tokens[cut:]) or "a"
    for left, right in ((a, b), (a, f"{a}.{b}")):
        owned = [{ingest_subject(subject, partition) for partition in range(12)} for subject in (left, right)]
        assert overlaps(left, right) == bool(owned[0] & owned[1])


def test_the_first_stream_by_name_is_named() -> None:
    counts = Counts()
    for number, name in enumerate("cab", 1):
        counts.add_subject(f"s.{number}", StreamName(name))
    assert counts.taken_by("s") == "a"
    counts.remove_subject("s.2")
    assert counts.taken_by("s") == "b"
    assert counts.taken_by("s.2") is None


def test_counts_are_those_of_the_streams() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ("a b", "b c", "c a"))
    cluster.create("t", ("a b c",))
    cluster.die("a")
    cluster.delete("t")
    state = cluster.state
    brokers = [BrokerId(name) for name in "abc"]
    partitions = [partition for _, partition in state.partitions()]
    assert state.partition_total == len(partitions) == 3
    assert [state.held_by(broker) for broker in brokers] == [
        sum(broker in partition.replicas for partition in partitions) for broker in brokers
    ]
    assert [state.led_by(broker) for broker in brokers] == [
        sum(partition.leader == broker for partition in partitions) for broker in brokers
    ]
