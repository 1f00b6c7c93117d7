"""Leaderships go back to the preferred leaders of partitions."""

from __future__ import annotations

# Rules: R30.
from collections.abc import Callable

import pytest

from metadata.controller.preferred_leaders import MAX_RETURNS, THRASH_WINDOW_S, PreferredLeaders
from tests.turns import finished
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId, LeaderMove, PartitionKey

DELAY_S = 300.0


class World:
    """A cluster whose moves are carried out when `run` says so."""

    def __init__(self, *assignments: str, **config: str) -> None:
        self.cluster = Cluster("a", "b", "c")
        self.cluster.create("s", assignments or ("a b c",), config=config)
        self.obstacles: dict[str, str] = {}
        self.moving: set[PartitionKey] = set()
        self.preferred = PreferredLeaders(
            self.cluster.state,
            why_not=lambda broker, _: self.obstacles.get(broker, ""),
            is_moving=lambda key: key in self.moving,
        )
        self.now = 0.0

    def restart(self, broker: str) -> None:
        """It dies and is back, in sync."""
        self.cluster.die(broker)
        self.cluster.register(broker)
        self.join(broker)

    def join(self, broker: str) -> None:
        for number in sorted(self.cluster.state.streams[self.cluster.key(0).stream].partitions):
            partition = self.cluster.partition(number)
            members = " ".join(partition.in_replica_order((*partition.isr, BrokerId(broker))))
            self.cluster.alter(self.cluster.alteration(members, number=number))

    def run(self, seconds: float) -> list[LeaderMove]:
        """Looks so often as a driver does; returns what is to move."""
        found = []
        end = self.now + seconds
        while self.now < end:
            found += self.preferred.due(self.now)
            self.now += 0.25
        return found

    def carry_out(self, move: LeaderMove, moved: bool = True) -> None:
        if moved:
            self.cluster.elect(move.key.partition, target=move.target, planned=True)
        assert self.preferred.on_ended(move, moved, self.now)

    def leaders(self) -> str:
        stream = self.cluster.state.streams[self.cluster.key(0).stream]
        return "".join(partition.leader or "-" for _, partition in sorted(stream.partitions.items()))


@pytest.fixture
def world() -> World:
    return World()


def test_a_broker_that_is_back_leads_again_after_the_delay(world: World) -> None:
    assert world.run(DELAY_S + 10) == []
    world.restart("a")
    assert world.leaders() == "b"
    assert world.run(DELAY_S - 5) == []
    (move,) = world.run(10)
    assert (move.leader, move.target) == ("b", "a")
    world.carry_out(move)
    assert world.leaders() == "a"
    assert world.cluster.partition().isr == ("a", "b", "c"), "nobody leaves the ISR"
    assert world.run(60) == []


def test_the_delay_begins_anew_when_the_broker_cannot_lead(world: World) -> None:
    world.restart("a")
    world.run(DELAY_S - 5)
    world.obstacles["a"] = "the disk of a runs full"
    world.run(1)
    world.obstacles.clear()
    assert world.run(DELAY_S - 5) == []
    assert len(world.run(10)) == 1


@pytest.mark.parametrize(
    "hinder",
    [
        lambda world: world.cluster.alter(world.cluster.alteration("b c")),
        lambda world: world.moving.add(world.cluster.key(0)),
        lambda world: world.cluster.alter_cluster(config={"auto_leader_rebalance": "false"}),
    ],
    ids=["not in the ISR", "another move is under way", "not wanted"],
)
def test_nothing_goes_back(world: World, hinder: Callable[[World], object]) -> None:
    world.restart("a")
    hinder(world)
    assert world.run(DELAY_S + 20) == []


def test_a_few_move_at_a_time_and_all_in_the_end() -> None:
    world = World(*["a b c"] * 10)
    world.cluster.alter_cluster(config={"leader_rebalance_delay_ms": "0"})
    world.restart("a")
    moves = world.run(30)
    assert len(moves) == MAX_RETURNS
    for _ in range(10):
        for move in moves:
            world.carry_out(move)
        moves = world.run(5)
    assert world.leaders() == "a" * 10


def test_an_operator_waits_for_nothing() -> None:
    world = World(*["a b c"] * 6)
    world.cluster.alter_cluster(config={"auto_leader_rebalance": "false"})
    world.restart("a")
    away = finished(world.preferred.away())
    assert (away[0].leader, away[0].preferred, away[0].obstacle) == (world.leaders()[0], "a", "")
    world.preferred.ask([each.key for each in away])
    for _ in range(4):
        for move in world.run(1):
            world.carry_out(move)
    assert world.leaders() == "a" * 6
    world.cluster.die("a")
    assert {each.obstacle for each in finished(world.preferred.away())} == {"a is dead"}


def test_a_pinned_leader_leads_again() -> None:
    world = World("a b c", leader_pin="c")
    world.cluster.alter_cluster(config={"leader_rebalance_delay_ms": "0"})
    (move,) = world.run(3)
    assert move.target == "c"
    world.carry_out(move)
    assert world.leaders() == "c"
    assert world.run(30) == []


def test_a_leadership_that_swings_is_left_alone_for_longer_each_time(world: World) -> None:
    world.cluster.alter_cluster(config={"leader_rebalance_delay_ms": "0"})
    pauses = []
    for _ in range(4):
        world.restart("a")
        began = world.now
        moves: list[LeaderMove] = []
        while not moves:
            moves = world.run(1)
        pauses.append(world.now - began)
        world.carry_out(moves[0])
        world.run(5)
    assert world.preferred.thrash_total == 3
    assert pauses[0] < 5
    assert 2 * THRASH_WINDOW_S <= pauses[1] < pauses[2] < pauses[3]
    assert pauses[3] >= 8 * THRASH_WINDOW_S


def test_a_move_that_fails_is_tried_again_later(world: World) -> None:
    world.cluster.alter_cluster(config={"leader_rebalance_delay_ms": "0"})
    world.restart("a")
    (move,) = world.run(3)
    world.carry_out(move, moved=False)
    assert world.run(3) == []
    (again,) = world.run(10)
    assert again == move


def test_a_new_controller_waits_anew(world: World) -> None:
    world.restart("a")
    world.run(DELAY_S - 1)
    world.preferred.clear()
    assert world.run(DELAY_S - 5) == []
