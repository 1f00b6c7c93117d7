"""Looks that the controller takes at reassignments: it asks for what is due with every answer to a probe."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

# Rules: R84.
from metadata.cluster.model import Outcome
from metadata.cluster.reassignment import what_it_waits_for
from metadata.commands.cluster_state import ClusterState
from metadata.controller import reassignments
from metadata.controller.admin_requests import AdminRequests
from metadata.controller.controller_effects import Effect, MoveLeader, Propose
from metadata.controller.leader_rebalancing import LeaderRebalancing
from metadata.controller.metadata_settings import MetadataSettings
from metadata.controller.reassignments import LOOK_INTERVAL_S, LOOKED_AT, Reassigning
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId, LeaderMove, Room

WAITING = 40
MOST_AT_BROKER = MetadataSettings().moves_per_broker


class World:
    """A cluster of one stream whose partitions are on a, b and c, and that are to move from a to d."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = Cluster("a", "b", "c", "d", "e", "f")
        self.cluster.create(assignments=["b a c"] * WAITING)
        self.unable: set[str] = set()
        self.looks = 0
        look = ClusterState.partition

        def counted(state: ClusterState, *arguments: object) -> object:
            self.looks += 1
            return look(state, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ClusterState, "partition", counted)
        self.now = 0.0
        self.reassigning = Reassigning(
            self.cluster.state,
            MetadataSettings(),
            may_lead=lambda broker, _: broker not in self.unable,
            propose=lambda command: Propose(command, 1),
            epoch=lambda: self.cluster.state.controller_epoch,
        )
        self.reassigning.begin()
        while self.reassigning.has_more:
            self.due()

    def applied(self, outcome: Outcome) -> None:
        assert outcome.code is None
        self.reassigning.on_applied(outcome.changes)

    def reassign(self, targets: Mapping[int, str]) -> None:
        self.applied(self.cluster.reassign(targets))

    def due(self) -> list[Effect]:
        return [effect for effect in self.reassigning.due(self.now) if isinstance(effect, Propose | MoveLeader)]

    def looks_of(self, calls: int) -> int:
        self.looks = 0
        for _ in range(calls):
            assert self.due() == []
        return self.looks

    def start(self) -> list[int]:
        (effect,) = self.due()
        assert isinstance(effect, Propose)
        numbers = [item.partition.partition for item in effect.command.start_reassignments.items]
        self.applied(self.cluster.apply(effect.command))
        return numbers

    def join(self, number: int, members: str) -> None:
        self.applied(self.cluster.alter(self.cluster.alteration(members, number=number)))

    def moves(self) -> list[LeaderMove]:
        return [effect.move for effect in self.due() if isinstance(effect, MoveLeader)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_nothing_is_looked_at_while_nothing_changes(world: World) -> None:
    world.reassign(dict.fromkeys(range(WAITING), "b c d"))
    assert world.start() == [*range(MOST_AT_BROKER)]
    assert world.due() == []
    assert world.looks_of(500) == 0
    world.now += LOOK_INTERVAL_S
    assert 0 < world.looks_of(500) <= LOOKED_AT


def test_a_partition_that_is_not_copied_any_more_makes_room_at_once(world: World) -> None:
    world.reassign(dict.fromkeys(range(WAITING), "b c d"))
    started = world.start()
    world.due()
    world.join(started[0], "b a c d")
    complete, start = (effect.command for effect in world.due() if isinstance(effect, Propose))
    assert [item.partition.partition for item in complete.complete_reassignments.items] == [started[0]]
    assert [item.partition.partition for item in start.start_reassignments.items] == [MOST_AT_BROKER]


def test_a_dead_broker_takes_up_no_room_and_one_that_is_back_gets_its_partitions(world: World) -> None:
    world.reassign(dict.fromkeys(range(10), "b c d"))
    world.start()
    world.reassign(dict.fromkeys(range(10, WAITING), "b c e"))
    assert world.due() == [], "b copies as many as it may"
    world.applied(world.cluster.die("d"))
    assert world.start() == [*range(10, 10 + MOST_AT_BROKER)]
    for number in range(10, WAITING):
        world.applied(world.cluster.cancel_reassignment(number))
    assert world.due() == [], "d is dead, and the others wait for it"
    world.applied(world.cluster.register("d"))
    assert world.due() == [], "those that were started are copied first"
    assert world.looks_of(500) == 0


def test_new_replicas_are_copied_while_an_old_one_is_dead(world: World) -> None:
    world.applied(world.cluster.die("c"))
    world.reassign({0: "d b c", 1: "b c a"})
    assert world.start() == [0, 1]
    world.join(0, "b a d")
    assert world.due() == [], "it is over when c is in sync, too"
    world.applied(world.cluster.register("c"))
    world.join(0, "b a d c")
    (complete,) = (effect.command for effect in world.due() if isinstance(effect, Propose))
    assert [item.partition.partition for item in complete.complete_reassignments.items] == [0]


def test_dead_brokers_that_a_move_waits_for_are_named(world: World) -> None:
    def waits_for(number: int) -> str | None:
        return what_it_waits_for(world.cluster.partition(number), 1, world.cluster.state.is_alive)

    world.reassign({0: "d b c", 1: "b e c"})
    for broker in "ce":
        world.applied(world.cluster.die(broker))
    assert world.start() == [0]
    assert waits_for(0) == "not in sync yet: d, c; dead: c"
    assert waits_for(1) == "it waits for its turn; dead: e, c"
    world.applied(world.cluster.register("c"))
    assert waits_for(0) == "not in sync yet: d, c"


def test_those_that_wait_for_dead_brokers_only_do_not_keep_others_from_their_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignments, "MOST_STARTED", 2)
    world.applied(world.cluster.die("c"))
    world.reassign(dict.fromkeys(range(4), "b c a"))
    assert world.start() == [0, 1]
    assert world.start() == [2, 3]
    world.applied(world.cluster.register("c"))
    world.reassign({4: "b d c"})
    assert world.due() == [], "those that were started count again"
    world.applied(world.cluster.die("c"))
    assert world.start() == [4]


def test_a_command_that_is_lost_takes_up_room_until_it_is_proposed_again(world: World) -> None:
    world.reassign(dict.fromkeys(range(WAITING), "b c d"))
    assert len(world.due()) == 1
    world.reassigning.on_applied(world.cluster.die("f").changes)
    assert world.due() == []
    world.now += 0.6
    assert world.start() == [*range(MOST_AT_BROKER)]
    world.due()
    assert world.looks_of(500) == 0


def test_a_leadership_that_cannot_move_is_tried_again(world: World) -> None:
    world.unable = {"d", "e", "f"}
    world.reassign({0: "d e f"})
    world.start()
    world.join(0, "b a c d e f")
    assert world.moves() == []
    assert world.looks_of(500) == 0
    world.unable = {"d"}
    world.now += LOOK_INTERVAL_S
    (move,) = world.moves()
    assert move.target == BrokerId("e")
    assert world.looks_of(500) == 0
    assert world.reassigning.on_move_ended(move, False, world.now)
    assert world.moves() == []
    world.now += 30.0
    assert [each.target for each in world.moves()] == ["e"]


def test_the_reason_is_named_for_which_no_replica_of_the_target_may_lead(world: World) -> None:
    cluster = world.cluster
    rebalancing = LeaderRebalancing(cluster.state)
    requests = AdminRequests(
        BrokerId("a"),
        cluster.state,
        rebalancing,
        Random(1),
        MetadataSettings(),
        namespace="tidelog",
        epoch=lambda: cluster.state.controller_epoch,
        live_brokers=lambda: [*cluster.state.brokers],
    )
    key = cluster.key()
    for broker in "def":
        rebalancing.on_room(BrokerId(broker), Room.AMPLE)
    rebalancing.on_room(BrokerId("d"), Room.FULL)
    world.reassign({0: "d e f"})
    world.start()
    assert requests.why_no_new_leader(key, cluster.partition()) == ""
    world.join(0, "b a c d e f")
    assert requests.why_no_new_leader(key, cluster.partition()) == "", "e may lead"
    rebalancing.on_disk(BrokerId("e"), True)
    rebalancing.on_stopping(BrokerId("f"), True)
    said = "the disk of d runs full; the disk of e hangs; f is stopping"
    assert requests.why_no_new_leader(key, cluster.partition()) == said
