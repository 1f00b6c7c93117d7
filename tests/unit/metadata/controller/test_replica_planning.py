"""Plans of other replicas: as few moves as can be, and as even as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.controller.replica_planning import Plan, PlannedBroker, PlannedPartition, digest, plan
from tests.turns import finished
from wire.stream_config import StreamConfig
from wire.turns import Steps
from wire.types import BrokerId, Incarnation, PartitionKey, StreamName

PLAIN = StreamConfig()


def brokers(names: Iterable[str], zones: dict[str, str] | None = None, **different: set[str]) -> list[PlannedBroker]:
    """`different`: names of brokers for which a field is the other value."""
    return [
        PlannedBroker(
            id=BrokerId(name),
            zone=(zones or {}).get(name, ""),
            alive=name not in different.get("dead", ()),
            draining=name in different.get("draining", ()),
            has_room=name not in different.get("full", ()),
        )
        for name in names
    ]


def partitions(
    sets: Sequence[str], *, stream: str = "s", factor: int | None = None, **config: str
) -> list[PlannedPartition]:
    """`sets`: the replicas of each partition, a letter each, the leader first."""
    return [
        PlannedPartition(
            key=PartitionKey(StreamName(stream), Incarnation(1), number, Incarnation(1)),
            replicas=tuple(map(BrokerId, replicas)),
            isr=tuple(map(BrokerId, replicas)),
            leader=BrokerId(replicas[0]),
            replication_factor=len(replicas) if factor is None else factor,
            settings=StreamConfig.from_strings(config),
        )
        for number, replicas in enumerate(sets)
    ]


def planned(
    who: Sequence[PlannedBroker], of: Sequence[PlannedPartition], *, evacuate: str = "", balance: bool = False
) -> Plan:
    return finished(plan(who, of, evacuate=[*map(BrokerId, evacuate)], balance=balance))


def after(of: Sequence[PlannedPartition], made: Plan) -> list[tuple[BrokerId, ...]]:
    targets = {change.key: change.target for change in made.changes}
    return [targets.get(known.key, known.replicas) for known in of]


def moves(made: Plan) -> int:
    return sum(len(change.added) for change in made.changes)


def spread(counts: Counter[BrokerId], names: Iterable[str]) -> int:
    found = [counts[BrokerId(name)] for name in names]
    return max(found) - min(found)


def counted(sets: Iterable[Sequence[BrokerId]]) -> Counter[BrokerId]:
    return Counter(broker for replicas in sets for broker in replicas)


def test_a_drained_broker_keeps_nothing_and_nothing_else_moves() -> None:
    of = partitions(["abc", "bcd", "cda", "dab"] * 3)
    made = planned(brokers("abcde", draining={"c"}), of, evacuate="c")
    assert all("c" not in replicas for replicas in after(of, made))
    assert moves(made) == 9
    assert all(change.removed == ("c",) for change in made.changes)
    assert counted(after(of, made))[BrokerId("e")] >= 7, "the empty one takes most of them"
    assert not made.stuck


def test_a_drain_without_another_broker_says_so_and_leaves_the_replica() -> None:
    of = partitions(["abc"])
    made = planned(brokers("abc", draining={"c"}), of, evacuate="c")
    assert not made.changes
    ((key, why),) = made.stuck
    assert key == of[0].key
    assert why == "the cluster leaves no other broker for it beside a, b"
    pinned = planned(brokers("abcd", draining={"c"}), partitions(["abc"], placement="pinned:a,b,c"), evacuate="c")
    assert "placement=pinned:a,b,c leaves no other broker" in pinned.stuck[0][1]


def test_a_partition_without_another_broker_names_draining_ones_that_could_take_it() -> None:
    who, of = brokers("abcd", draining={"c", "d"}), partitions(["ab"], factor=3)
    ((_, why),) = planned(who, of).stuck
    assert why.endswith(
        "c, d are draining, and may take it after `tidelog broker drain c --cancel` and"
        " `tidelog broker drain d --cancel`"
    )
    ((_, why),) = planned(who, partitions(["ab"], factor=3, placement="pinned:a,b,d")).stuck
    assert why.endswith("; d is draining, and may take it after `tidelog broker drain d --cancel`")
    ((_, why),) = planned(who, partitions(["bc"]), evacuate="ac").stuck
    assert why.endswith("; d is draining, and may take it after `tidelog broker drain d --cancel`")


def test_another_replication_factor_adds_or_removes_what_is_needed() -> None:
    of = partitions(["ab", "bc", "ca"], factor=3)
    more = planned(brokers("abcd"), of)
    assert moves(more) == 3
    assert all(change.target[:2] == change.before for change in more.changes), "leaders stay first"
    assert counted(after(of, more)) == {"a": 2, "b": 3, "c": 2, "d": 2}
    fewer = planned(brokers("abcd"), partitions(["abcd", "bcda"], factor=2))
    assert moves(fewer) == 0
    assert [change.target[0] for change in fewer.changes] == ["a", "b"], "leaders stay"
    zoned = planned(brokers("abcd", {"a": "x", "b": "x", "c": "y", "d": "z"}), partitions(["abcd"], factor=3))
    assert zoned.changes[0].target == ("a", "c", "d"), "of two in a zone one goes"


def test_a_new_broker_gets_its_share_and_leads_some() -> None:
    of = partitions(["abc", "bca", "cab"] * 4)
    made = planned(brokers("abcd"), of, balance=True)
    assert counted(after(of, made)) == dict.fromkeys("abcd", 9)
    assert moves(made) == 9, "no replica moves but to the new broker"
    assert spread(Counter(replicas[0] for replicas in after(of, made)), "abcd") <= 1


def test_a_balanced_cluster_stays_as_it_is() -> None:
    of = partitions(["abc", "bcd", "cda", "dab"] * 5)
    assert not planned(brokers("abcd"), of, balance=True).changes


def test_a_rebalance_spreads_over_zones_first() -> None:
    of = partitions(["ab", "ba"])
    made = planned(brokers("abc", {"a": "x", "b": "x", "c": "y"}), of, balance=True)
    assert all("c" in replicas for replicas in after(of, made))
    assert moves(made) == 2


def test_dead_and_full_brokers_get_nothing_and_a_dead_one_keeps_what_it_holds() -> None:
    of = partitions(["ab", "ba"] * 4)
    assert not planned(brokers("abcd", dead={"c"}, full={"d"}), of, balance=True).changes
    assert not planned(brokers("abc", dead={"a"}), of, balance=True).changes


def test_a_rebalance_leaves_partitions_with_a_dead_replica_as_they_are_and_names_them() -> None:
    of = [*partitions(["abc", "bac"] * 4), *partitions(["abe", "bae"] * 4, stream="t", leader_pin="b")]
    made = planned(brokers("abcde", dead={"c"}), of, balance=True)
    assert {change.key.stream for change in made.changes} == {"t"}
    assert [key for key, _ in made.stuck] == [known.key for known in of[:8]]
    assert made.stuck[0][1] == "its replicas stay where they are while c is dead"
    fewer = planned(brokers("abcd", dead={"c"}), partitions(["abc"], factor=2), balance=True)
    assert [change.removed for change in fewer.changes] == [("c",)], "of too many the dead one goes"
    more = planned(brokers("abcd", dead={"c"}), partitions(["ac"], factor=3), balance=True)
    assert [change.target for change in more.changes] == [("a", "c", "b")], "what is missing comes beside it"


def test_a_rebalance_copies_nothing_onto_brokers_without_room() -> None:
    zoned = brokers("abc", {"a": "x", "b": "x", "c": "y"}, full={"c"})
    assert not moves(planned(zoned, partitions(["ab", "ba"] * 2), balance=True))
    for policy in ({"leader_pin": "c"}, {"placement": "pinned:b,c"}):
        of = [replace(known, settings=StreamConfig.from_strings(policy)) for known in partitions(["ab", "ba"] * 2)]
        assert not moves(planned(brokers("abc", full={"c"}), of, balance=True))
    assert moves(planned(brokers("abc", full={"a"}), partitions(["ab"] * 3), balance=True)), "a gives some"


def test_a_rebalance_copies_nothing_onto_a_broker_that_is_drained() -> None:
    assert not planned(brokers("abc", draining={"c"}), partitions(["ab", "ba"] * 4), balance=True).changes


def test_a_rebalance_keeps_to_the_policies_of_streams() -> None:
    first = partitions(["ab", "bc", "ca"], stream="orders")
    strict = partitions(["ad", "db", "cb"], stream="beside", placement="colocation_strict:orders")
    pinned = partitions(["ab", "ab"], stream="pinned", placement="pinned:c,d")
    led = partitions(["ab", "bc"], stream="led", leader_pin="d")
    made = planned(brokers("abcd"), [*first, *strict, *pinned, *led], balance=True)
    targets = after([*first, *strict, *pinned, *led], made)
    for number in range(3):
        assert {*targets[3 + number]} == {*targets[number]}
    assert {frozenset(replicas) for replicas in targets[6:8]} == {frozenset("cd")}
    assert all(replicas[0] == "d" for replicas in targets[8:])
    again = planned(
        brokers("abcd"),
        [
            PlannedPartition(
                key=known.key,
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                replication_factor=2,
                settings=known.settings,
            )
            for known, replicas in zip([*first, *strict, *pinned, *led], targets, strict=True)
        ],
        balance=True,
    )
    assert moves(again) == 0


def test_streams_of_one_partition_are_balanced_over_the_cluster() -> None:
    of = [known for number in range(12) for known in partitions(["ab"], stream=f"s{number:02}")]
    made = planned(brokers("abcd"), of, balance=True)
    assert counted(after(of, made)) == dict.fromkeys("abcd", 6)
    assert moves(made) == 12
    assert Counter(replicas[0] for replicas in after(of, made)) == dict.fromkeys("abcd", 3)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[PlannedBroker], list[PlannedPartition], int]:
    """Brokers in zones of equal size, one stream, anyhow placed but with no two replicas on one broker."""
    zones, each = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    names = [f"b{zone}{number}" for zone in range(zones) for number in range(each)]
    factor = draw(st.integers(1, min(4, len(names))))
    rng = Random(draw(st.integers(0, 1 << 30)))
    some = names[: draw(st.integers(factor, len(names)))]
    sets = [tuple(map(BrokerId, rng.sample(some, factor))) for _ in range(draw(st.integers(1, 30)))]
    of = [
        PlannedPartition(
            key=PartitionKey(StreamName("s"), Incarnation(1), number, Incarnation(1)),
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
            replication_factor=factor,
            settings=StreamConfig(),
        )
        for number, replicas in enumerate(sets)
    ]
    return brokers(names, {name: f"z{name[1]}" for name in names}), of, zones


def fewest_moves(of: Sequence[PlannedPartition], names: Sequence[BrokerId]) -> int:
    """The least number of moves to numbers that differ by one at most, where all may move."""
    held = counted(known.replicas for known in of)
    total = sum(held.values())
    low, more = divmod(total, len(names))
    wanted = sorted(names, key=lambda broker: -held[broker])
    return sum(max(0, held[broker] - (low + (place < more))) for place, broker in enumerate(wanted))


@settings(max_examples=max(300, settings().max_examples))
@given(clusters())
def test_any_cluster_is_rebalanced(cluster: tuple[list[PlannedBroker], list[PlannedPartition], int]) -> None:
    who, of, zones = cluster
    names = [broker.id for broker in who]
    zone = {broker.id: broker.zone for broker in who}
    made = planned(who, of, balance=True)
    targets = after(of, made)
    factor = of[0].replication_factor
    for replicas in targets:
        assert len({*replicas}) == len(replicas) == factor
        assert len({zone[broker] for broker in replicas}) == min(factor, zones)
    assert spread(counted(targets), names) <= 1
    assert spread(Counter(replicas[0] for replicas in targets), names) <= 1
    if zones == 1 or zones == len(names):
        assert moves(made) == fewest_moves(of, names)
    settled = [
        PlannedPartition(
            key=known.key, replicas=replicas, isr=replicas, leader=replicas[0], replication_factor=factor,
            settings=known.settings,
        )
        for known, replicas in zip(of, targets, strict=True)
    ]  # fmt: skip
    assert not planned(who, settled, balance=True).changes, "once is enough"


@settings(max_examples=max(300, settings().max_examples))
@given(clusters(), st.data())
def test_any_broker_is_drained(
    cluster: tuple[list[PlannedBroker], list[PlannedPartition], int], data: st.DataObject
) -> None:
    who, of, zones = cluster
    gone = data.draw(st.sampled_from([broker.id for broker in who]))
    zone = {broker.id: broker.zone for broker in who}
    made = finished(plan(who, of, evacuate=[gone]))
    held = [known for known in of if gone in known.replicas]
    if len(who) - 1 < of[0].replication_factor:
        assert {key for key, _ in made.stuck} == {known.key for known in held}
        return
    assert moves(made) == len(held) == len(made.changes)
    left = {zone[broker.id] for broker in who if broker.id != gone}
    for change in made.changes:
        assert gone not in change.target
        kept = {zone[broker] for broker in change.before if broker != gone}
        assert len({zone[broker] for broker in change.target}) == min(len(kept) + 1, len(left)) or kept == left
    assert zones >= len(left)


def of_any_kind(rng: Random) -> tuple[list[PlannedBroker], list[PlannedPartition]]:
    """Brokers of all kinds in zones of any size, and streams with all policies, anyhow placed."""
    names = [f"b{number}" for number in range(rng.randint(1, 10))]
    zones = rng.randint(1, 4)
    who = [
        PlannedBroker(
            id=BrokerId(name),
            zone=f"z{rng.randrange(zones)}",
            tags=frozenset(tag for tag in ("ssd", "big") if rng.random() < 0.6),
            alive=rng.random() < 0.9,
            draining=rng.random() < 0.1,
            has_room=rng.random() < 0.9,
        )
        for name in names
    ]
    of: list[PlannedPartition] = []
    factors: dict[str, int] = {}
    for number in range(rng.randint(1, 4)):
        config: dict[str, str] = {}
        factor = rng.randint(1, min(4, len(names)))
        kind, other = rng.random(), f"s{rng.randrange(number)}" if number else ""
        if kind < 0.15:
            config["placement"] = f"pinned:{','.join(rng.sample(names, factor))}"
        elif kind < 0.3 and other:
            config["placement"] = f"colocation_strict:{other}"
            factor = min(factor, factors[other])
        elif kind < 0.4 and other:
            config["colocate_with"] = other
        for key in ("require_tags", "prefer_tags"):
            if rng.random() < 0.2:
                config[key] = rng.choice(["ssd", "big", "ssd,big"])
        if rng.random() < 0.15:
            config["leader_pin"] = rng.choice(
                config["placement"].removeprefix("pinned:").split(",") if kind < 0.15 else names
            )
        factors[f"s{number}"] = factor
        held = rng.randint(1, min(4, len(names))) if rng.random() < 0.3 else factor
        sets = ["".join(name[1:] for name in rng.sample(names, held)) for _ in range(rng.randint(1, 8))]
        of += [
            replace(known, replicas=found, isr=found, leader=found[0])
            for known in partitions(sets, stream=f"s{number}", factor=factor, **config)
            for found in [tuple(BrokerId(f"b{digit}") for digit in known.replicas)]
        ]
    return who, of


@settings(max_examples=max(1000, settings().max_examples), deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_cluster_with_any_policy_is_rebalanced(seed: int) -> None:
    rng = Random(seed)
    who, of = of_any_kind(rng)
    by_id = {broker.id: broker for broker in who}
    gone = [broker.id for broker in who if broker.draining and rng.random() < 0.5]
    made = finished(plan(who, of, evacuate=gone, balance=True))
    targets = after(of, made)
    stuck = {key for key, _ in made.stuck}
    planned_sets = {(known.key.stream, known.key.partition): found for known, found in zip(of, targets, strict=True)}

    def is_allowed(known: PlannedPartition, broker: BrokerId) -> bool:
        policy = known.settings.placement
        beside = planned_sets.get((StreamName(policy.stream), known.key.partition), ())
        return (
            by_id[broker].tags.issuperset(known.settings.require_tags)
            and (not policy.brokers or broker in policy.brokers)
            and (not policy.stream or broker in beside)
        )

    def takes(broker: BrokerId) -> bool:
        return by_id[broker].alive and not by_id[broker].draining and broker not in gone

    for known, found in zip(of, targets, strict=True):
        assert len({*found}) == len(found)
        assert len(found) == known.replication_factor or known.key in stuck
        assert not {*found}.intersection(gone) or known.key in stuck
        assert all(takes(broker) and is_allowed(known, broker) for broker in found if broker not in known.replicas)
        if any(not by_id[broker].alive for broker in found):
            assert known.key in stuck
            assert {*found} <= {*known.replicas} or len(known.replicas) < len(found) or {*known.replicas} & {*gone}
            continue
        able = [broker.id for broker in who if takes(broker.id) and is_allowed(known, broker.id)]
        others = [broker for broker in able if broker not in found]
        stays_wrongly = [broker for broker in found if takes(broker) and not is_allowed(known, broker)]
        assert not (stays_wrongly and any(by_id[broker].has_room for broker in others))
        in_zone = Counter(by_id[broker].zone for broker in found)
        crowded = [
            broker
            for broker in found
            if takes(broker) and broker != known.settings.leader_pin and in_zone[by_id[broker].zone] > 1
        ]
        assert not crowded or not {by_id[broker].zone for broker in others if by_id[broker].has_room} - in_zone.keys()
    settled = [
        replace(known, replicas=found, isr=found, leader=found[0]) for known, found in zip(of, targets, strict=True)
    ]
    assert not finished(plan(who, settled, evacuate=gone, balance=True)).changes, "once is enough"


def test_only_one_stream_changes_where_only_that_is_asked_for() -> None:
    of = [*partitions(["ab"] * 4, stream="s", factor=3), *partitions(["ab"] * 4, stream="other", factor=3)]
    made = finished(plan(brokers("abcd"), of, of=StreamName("s")))
    assert {change.key.stream for change in made.changes} == {"s"}
    assert counted(after(of[:4], made)) == {"a": 4, "b": 4, "c": 2, "d": 2}


def counting(steps: Steps[Plan], looks: list[int]) -> Steps[Plan]:
    while True:
        try:
            looks.append(next(steps))
        except StopIteration as end:
            made: Plan = end.value
            return made
        yield looks[-1]


LIMIT = 2_500_000
"""Looks, of some 0.5 to 1 µs."""


@pytest.mark.parametrize("zones", ["z0 z1 z2 z3 z4", "z0 z1 z1 z1 z1 z2 z2 z2 z2 z2", "z0"])
@pytest.mark.parametrize("streams", [1, 100, 10_000])
def test_ten_thousand_partitions_on_fifty_brokers(streams: int, zones: str) -> None:
    """Ten brokers are new. Zones of unequal size stay unequally full."""
    of_zone = zones.split()
    names = [f"b{number:02}" for number in range(50)]
    rng = Random(1)
    of = []
    for number in range(10_000):
        key = PartitionKey(StreamName(f"s{number % streams:05}"), Incarnation(1), number // streams, Incarnation(1))
        replicas = tuple(BrokerId(names[(number * 7 + step) % 40]) for step in rng.sample(range(40), 3))
        of.append(
            PlannedPartition(
                key=key, replicas=replicas, isr=replicas, leader=replicas[0], replication_factor=3, settings=PLAIN
            )
        )
    zone = {name: of_zone[number % len(of_zone)] for number, name in enumerate(names)}
    looks: list[int] = []
    made = finished(counting(plan(brokers(names, zone), of, balance=True), looks))
    assert sum(looks) < LIMIT
    held = counted(after(of, made))
    for each in {*of_zone}:
        assert spread(held, [name for name in names if zone[name] == each]) <= 1
    if len({*of_zone}) == 1:
        assert moves(made) == 6000 or streams == 100


def test_a_digest_tells_plans_apart() -> None:
    of = partitions(["ab", "ba"] * 4)
    made = planned(brokers("abc"), of, balance=True)
    other = planned(brokers("abcd"), of, balance=True)
    nothing = planned(brokers("ab"), of, balance=True)
    assert finished(digest(made)) == finished(digest(planned(brokers("abc"), of, balance=True)))
    assert len({finished(digest(each)) for each in (made, other, nothing)}) == 3
