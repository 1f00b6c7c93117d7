from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from metadata.controller.placement import place
from tests.turns import finished
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId


@pytest.mark.parametrize(("brokers", "partitions", "factor"), [("abc", 3, 3), ("abcde", 10, 3), ("abcdef", 7, 2)])
def test_replicas_and_leaders_are_spread_evenly(brokers: str, partitions: int, factor: int) -> None:
    live = [BrokerId(broker) for broker in brokers]
    placements = finished(
        place(Cluster(*brokers).state, live, partitions=partitions, replication_factor=factor, chance=Random(1))
    )
    replicas = Counter(replica for placement in placements for replica in placement.replicas)
    leaders = Counter(placement.leader for placement in placements)
    assert all(len({*placement.replicas}) == factor for placement in placements)
    assert max(replicas.values()) - min(replicas[broker] for broker in live) <= 1
    assert max(leaders.values()) - min(leaders[broker] for broker in live) <= 1


def test_the_same_seed_places_the_same() -> None:
    state = Cluster("a", "b", "c", "d").state
    live = [BrokerId(broker) for broker in "abcd"]
    first, second = (
        finished(place(state, live, partitions=9, replication_factor=2, chance=Random(7))) for _ in range(2)
    )
    assert first == second


def test_streams_of_one_partition_do_not_pile_up_on_one_broker() -> None:
    cluster = Cluster("a", "b", "c")
    live = [BrokerId(broker) for broker in "abc"]
    for number in range(6):
        (placement,) = finished(place(cluster.state, live, partitions=1, replication_factor=1, chance=Random(number)))
        cluster.create(f"s{number}", [placement.leader])
    assert [cluster.state.led_by(broker) for broker in live] == [2, 2, 2]


def test_partitions_beside_others_of_their_stream_go_where_it_has_fewest() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b"])
    for number in range(3):
        cluster.create(f"other{number}", ["b c"])
    live = [BrokerId(broker) for broker in "abc"]
    beside = [cluster.partition()]
    for seed in range(5):
        placements = finished(place(
            cluster.state, live, partitions=2, replication_factor=2, chance=Random(seed), beside=beside
        ))  # fmt: skip
        replicas = Counter(replica for placement in placements for replica in placement.replicas)
        assert replicas == {"a": 1, "b": 1, "c": 2}, "with those of before, two each"
        assert {placement.leader for placement in placements} == {"b", "c"}
    (placement,) = finished(place(
        cluster.state, live[:2], partitions=1, replication_factor=2, chance=Random(1), beside=beside
    ))  # fmt: skip
    assert placement.leader == "b", "a leads the other partition of the stream"
