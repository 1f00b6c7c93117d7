from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster_state import ClusterState
from metadata.controller.placement import Placement, candidates, check_followed, place
from tests.turns import finished
from tests.unit.metadata.cluster_bench import Cluster
from tests.unit.metadata.controlling import Controller
from wire.errors import Code, TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.stream_config import StreamConfig
from wire.types import BrokerId


def placed(
    cluster: Cluster,
    live: Sequence[str],
    partitions: int,
    factor: int,
    *,
    seed: int = 1,
    beside: Any = (),
    **config: str,
) -> list[Placement]:
    policy = StreamConfig.from_strings(config)
    able = candidates(cluster.state, [BrokerId(broker) for broker in live], policy, factor)
    return finished(
        place(
            cluster.state,
            able,
            numbers=range(partitions),
            replication_factor=factor,
            settings=policy,
            chance=Random(seed),
            beside=beside,
        )
    )


def in_zones(zones: dict[str, str], **tags: Sequence[str]) -> Cluster:
    cluster = Cluster(*zones)
    for broker, zone in zones.items():
        cluster.register(broker, zone=zone, tags=tags.get(broker, ()))
    return cluster


def spread(counts: Counter[BrokerId], brokers: Sequence[str]) -> int:
    return max(counts[BrokerId(b)] for b in brokers) - min(counts[BrokerId(b)] for b in brokers)


@pytest.mark.parametrize(("brokers", "partitions", "factor"), [("abc", 3, 3), ("abcde", 10, 3), ("abcdef", 7, 2)])
def test_replicas_and_leaders_are_spread_evenly(brokers: str, partitions: int, factor: int) -> None:
    placements = placed(Cluster(*brokers), brokers, partitions, factor)
    replicas = Counter(replica for placement in placements for replica in placement.replicas)
    leaders = Counter(placement.leader for placement in placements)
    assert all(len({*placement.replicas}) == factor for placement in placements)
    assert spread(replicas, brokers) <= 1
    assert spread(leaders, brokers) <= 1


def test_the_same_seed_places_the_same() -> None:
    cluster = Cluster("a", "b", "c", "d")
    assert placed(cluster, "abcd", 9, 2, seed=7) == placed(cluster, "abcd", 9, 2, seed=7)


def test_streams_of_one_partition_do_not_pile_up_on_one_broker() -> None:
    cluster = Cluster("a", "b", "c")
    for number in range(6):
        (placement,) = placed(cluster, "abc", 1, 1, seed=number)
        cluster.create(f"s{number}", [placement.leader])
    assert [cluster.state.led_by(BrokerId(broker)) for broker in "abc"] == [2, 2, 2]


def test_partitions_beside_others_of_their_stream_go_where_it_has_fewest() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b"])
    for number in range(3):
        cluster.create(f"other{number}", ["b c"])
    beside = [cluster.partition()]
    for seed in range(5):
        placements = placed(cluster, "abc", 2, 2, seed=seed, beside=beside)
        replicas = Counter(replica for placement in placements for replica in placement.replicas)
        assert replicas == {"a": 1, "b": 1, "c": 2}, "with those of before, two each"
        assert {placement.leader for placement in placements} == {"b", "c"}
    (placement,) = placed(cluster, "ab", 1, 2, beside=beside)
    assert placement.leader == "b", "a leads the other partition of the stream"


def test_no_two_replicas_are_in_one_zone_while_there_are_enough() -> None:
    cluster = in_zones({"a": "x", "b": "x", "c": "x", "d": "y", "e": "z"})
    for placement in placed(cluster, "abcde", 12, 3):
        assert {"x", "y", "z"} == {cluster.state.brokers[broker].zone for broker in placement.replicas}
    for placement in placed(cluster, "abcd", 12, 3):
        assert "d" in placement.replicas, "two zones for three replicas"


def test_brokers_are_chosen_by_their_tags() -> None:
    zones = {"a": "x", "b": "x", "c": "y", "d": "y"}
    cluster = in_zones(zones, a=["ssd"], c=["ssd"], d=["eu", "ssd"])
    for placement in placed(cluster, "abcd", 8, 2, require_tags="ssd"):
        assert "a" in placement.replicas
    assert {placed(cluster, "abcd", 8, 1, prefer_tags="eu,ssd")[0].leader} == {"d"}, "it has most of them"
    for placement in placed(cluster, "abcd", 8, 2, prefer_tags="eu,ssd"):
        assert {*placement.replicas} == {"a", "d"}, "c, with ssd, is in the zone of d"
    with pytest.raises(TidelogError, match=r"require_tags=ssd leaves 3 live brokers \(a, c, d\).*ask for 3 at most"):
        placed(cluster, "abcd", 1, 4, require_tags="ssd")
    with pytest.raises(TidelogError, match="d is dead; start it") as dead:
        placed(cluster, "abc", 1, 3, require_tags="ssd")
    assert dead.value.code is Code.NOT_ENOUGH_BROKERS


def test_pinned_brokers_hold_every_partition() -> None:
    cluster = Cluster("a", "b", "c", "d")
    placements = placed(cluster, "abcd", 6, 2, placement="pinned:c,b")
    assert {tuple(sorted(placement.replicas)) for placement in placements} == {("b", "c")}
    assert Counter(placement.leader for placement in placements) == {"b": 3, "c": 3}
    pinned = placed(cluster, "abcd", 6, 2, placement="pinned:c,b", leader_pin="b")
    assert {placement.replicas for placement in pinned} == {("b", "c")}
    with pytest.raises(TidelogError, match="placement names broker q, which has never registered; known are a, b"):
        placed(cluster, "abcd", 1, 2, placement="pinned:q,b")
    with pytest.raises(TidelogError, match=r"placement=pinned:a,d leaves 1 live broker .*d is dead"):
        placed(cluster, "abc", 1, 2, placement="pinned:a,d")
    tagged = in_zones({"a": "", "b": ""}, a=["ssd"])
    with pytest.raises(TidelogError, match="names b, without the tags of require_tags=ssd"):
        placed(tagged, "ab", 1, 2, placement="pinned:a,b", require_tags="ssd")


def test_a_policy_that_draining_brokers_leave_too_few_for_names_the_drain() -> None:
    cluster = in_zones({"a": "", "b": "", "c": "", "d": ""}, a=["ssd"], d=["ssd"])
    cluster.drain("d")
    with pytest.raises(TidelogError) as refused:
        placed(cluster, "abc", 1, 3, placement="pinned:a,b,d")
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR
    assert refused.value.message == (
        "placement=pinned:a,b,d leaves 2 live brokers (a, b), for d is draining, for replication_factor=3;"
        " `tidelog broker drain d --cancel`, or name another broker, or ask for 2 at most"
    )
    with pytest.raises(TidelogError, match=r"; `tidelog broker drain d --cancel`, or give more .* ask for 1 at most"):
        placed(cluster, "abc", 1, 2, require_tags="ssd")


def test_a_pinned_leader_has_a_replica_of_each_partition_and_leads_it() -> None:
    placements = placed(Cluster("a", "b", "c", "d"), "abcd", 6, 2, leader_pin="d")
    assert {placement.leader for placement in placements} == {"d"}
    others = Counter(placement.replicas[1] for placement in placements)
    assert others == {"a": 2, "b": 2, "c": 2}
    away = placed(Cluster("a", "b", "c", "d"), "abc", 6, 2, leader_pin="d")
    assert Counter(placement.leader for placement in away) == {"a": 2, "b": 2, "c": 2}, "it is not alive"


def test_partitions_are_placed_beside_those_of_another_stream() -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster.create("orders", ["a b", "c d", "b d"])
    with_others = placed(cluster, "abcd", 4, 2, colocate_with="orders")
    assert [{*placement.replicas} for placement in with_others[:3]] == [{"a", "b"}, {"c", "d"}, {"b", "d"}]
    strict = placed(cluster, "abcd", 3, 1, placement="colocation_strict:orders")
    assert all(placement.leader in holders for placement, holders in zip(strict, ("ab", "cd", "bd"), strict=True))
    with pytest.raises(TidelogError) as refused:
        placed(cluster, "abd", 3, 2, placement="colocation_strict:orders")
    assert refused.value.code is Code.NOT_ENOUGH_BROKERS
    assert "finds 1 of 2 replicas" in refused.value.message
    assert "without it are a, b" in refused.value.message


def test_a_policy_names_streams_that_are_there_and_goes_round_nowhere() -> None:
    cluster = Cluster("a", "b")
    cluster.create("first", ["a"])
    cluster.create("second", ["a"], config={"placement": "colocation_strict:first"})
    for name, placement, words in (
        ("first", "colocation_strict:second", "goes round"),
        ("first", "colocation_strict:first", "the stream itself"),
        ("third", "colocation_strict:none", "no stream"),
    ):
        with pytest.raises(TidelogError, match=words):
            check_followed(cluster.state, name, StreamConfig.from_strings({"placement": placement}))


@settings(max_examples=max(300, settings().max_examples))
@given(
    zones=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    factor=st.integers(1, 5),
    partitions=st.integers(1, 24),
    seed=st.integers(0, 1000),
)
def test_any_cluster_is_filled_evenly_and_over_its_zones(
    zones: list[int], factor: int, partitions: int, seed: int
) -> None:
    """`zones`: the number of brokers of each."""
    where = {f"b{zone}{number}": f"z{zone}" for zone, count in enumerate(zones) for number in range(count)}
    factor = min(factor, len(where))
    cluster = in_zones(where)
    placements = placed(cluster, [*where], partitions, factor, seed=seed)
    for placement in placements:
        assert len({*placement.replicas}) == factor
        used = Counter(where[broker] for broker in placement.replicas)
        assert len(used) == min(factor, len(zones)), "no two in one zone while there are enough"
    replicas = Counter(replica for placement in placements for replica in placement.replicas)
    leaders = Counter(placement.leader for placement in placements)
    for zone, count in enumerate(zones):
        assert spread(replicas, [f"b{zone}{number}" for number in range(count)]) <= 1
    if len({*zones}) == 1 or len(zones) == 1:
        assert spread(replicas, [*where]) <= 1
        assert spread(leaders, [*where]) <= 1


def created(controller: Controller, factor: int | None = None, **config: str) -> pb.CreateStream:
    command = finished(controller.core.requests.create_stream("new", "new", 2, factor, config))
    return command.create_stream


@pytest.fixture
def controller() -> Controller:
    controller = Controller("a", "b", "c")
    controller.lead()
    return controller


def test_the_replication_factor_follows_the_policy_and_the_cluster(controller: Controller) -> None:
    requests, cluster = controller.core.requests, controller.cluster
    assert created(controller).replication_factor == 3
    assert created(controller, placement="pinned:c,a").replication_factor == 2
    assert created(controller, placement="pinned:c,a").brokers == ["c", "a"]
    with pytest.raises(TidelogError, match="names 2 brokers and the replication factor is 3; name 3, or give another"):
        created(controller, 3, placement="pinned:c,a")
    with pytest.raises(TidelogError, match="leader_pin=b is none of the brokers of placement=pinned:c,a"):
        created(controller, placement="pinned:c,a", leader_pin="b")
    cluster.create("other", ["a b"])
    with pytest.raises(TidelogError, match="stream other has no partition 1; give the stream as many partitions"):
        created(controller, placement="colocation_strict:other")
    cluster.create("twice", ["a b", "b c"])
    assert created(controller, placement="colocation_strict:twice").replication_factor == 2
    cluster.alter_cluster(config={"default_replication_factor": "5"})
    small = created(controller)
    assert small.replication_factor == 3
    assert requests.notes(None, small) == [
        "replication_factor=3: the cluster has 3 brokers, fewer than default_replication_factor=5"
    ]
    assert requests.notes(3, small) == []
    assert cluster.alter_cluster(config={"max_replication_factor": "2"}).message == (
        "default_replication_factor=5 is above max_replication_factor=2; lower the one, or raise the other"
    )
    cluster.alter_cluster(config={"max_replication_factor": "2", "default_replication_factor": "2"})
    with pytest.raises(TidelogError, match="replication_factor=3 is outside 1 to 2, the cluster's max") as refused:
        created(controller, 3)
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR
    many = pb.CreateStream(replication_factor=9)
    assert "is above 8" in requests.notes(9, many)[0]


def test_settings_of_the_cluster_are_no_settings_of_streams(controller: Controller) -> None:
    controller.cluster.alter_cluster(config={"default_replication_factor": "2", "compact": "true"})
    assert controller.cluster.state.defaults == {"compact": "true"}
    assert controller.cluster.create("s", ["a"]).code is None
    assert "unknown stream setting" in controller.cluster.alter_stream(config={"max_replication_factor": "2"}).message


def test_a_policy_is_checked_when_it_is_altered(controller: Controller) -> None:
    controller.cluster.create("s", ["a b"])
    for config, words in (
        ({"placement": "pinned:a,q"}, "broker q, which has never registered"),
        ({"placement": "pinned:a"}, "names 1 broker and the replication factor is 2"),
        ({"colocate_with": "none"}, "colocate_with=none names no stream"),
        ({"leader_pin": "q"}, "leader_pin names broker q"),
    ):
        with pytest.raises(TidelogError, match=words):
            controller.core.requests.alter_stream("s", config, [])
    controller.core.requests.alter_stream("s", {"placement": "pinned:a,c", "leader_pin": "c"}, [])


def test_a_restart_changes_what_a_broker_is_like() -> None:
    cluster = Cluster("a", "b")
    cluster.register("a", zone="east", tags=["ssd"])
    fresh = ClusterState()
    fresh.restore(cluster.state.snapshot())
    assert (fresh.brokers[BrokerId("a")].zone, fresh.brokers[BrokerId("a")].tags) == ("east", ("ssd",))
    cluster.register("a", tags=["hdd"])
    assert (cluster.state.brokers[BrokerId("a")].zone, cluster.state.brokers[BrokerId("a")].tags) == ("", ("hdd",))
