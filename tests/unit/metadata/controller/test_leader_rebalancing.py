"""Leaderships leave a broker whose disk runs full: which ones, when, and where they go."""

# Rules: R88, R93.

from __future__ import annotations

import pytest

from metadata.controller.leader_rebalancing import (
    LONGEST_PAUSE_S,
    LOOK_INTERVAL_S,
    MAX_MOVES,
    MAX_MOVES_OF_STOPPING,
    LeaderRebalancing,
)
from tests.unit.metadata.cluster_bench import Cluster
from wire.stream_config import StreamConfig
from wire.types import BrokerId, LeaderMove, Room

AMPLE, SHORT, FULL = Room.AMPLE, Room.SHORT, Room.FULL


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a", "a c b"])
    return cluster


class Script:
    def __init__(self, cluster: Cluster) -> None:
        self.rebalancing = LeaderRebalancing(cluster.state)
        self.now = 0.0

    def rooms(self, **rooms: Room) -> None:
        for broker, room in rooms.items():
            self.rebalancing.on_room(BrokerId(broker), room)

    def moves(self) -> list[LeaderMove]:
        self.now += LOOK_INTERVAL_S
        return self.rebalancing.due(self.now)

    def shown(self) -> list[str]:
        return [f"{move.key} {move.leader}>{move.target}" for move in self.moves()]


@pytest.fixture
def script(cluster: Cluster) -> Script:
    return Script(cluster)


def test_nothing_moves_while_all_have_room(script: Script) -> None:
    script.rooms(a=AMPLE, b=AMPLE, c=AMPLE)
    assert script.shown() == []


@pytest.mark.parametrize("room", [SHORT, FULL])
def test_leaderships_of_a_broker_without_room_go_to_brokers_that_lead_fewest(script: Script, room: Room) -> None:
    script.rooms(a=room, b=AMPLE, c=AMPLE)
    assert script.shown() == ["s/0 a>c", "s/2 a>c"]
    assert script.shown() == []  # under way


def test_a_move_is_not_asked_for_twice_and_a_failed_one_waits_longer_each_time(script: Script) -> None:
    script.rooms(a=FULL, b=SHORT, c=AMPLE)
    pauses = []
    ended_at = script.now
    for _ in range(7):
        moves: list[LeaderMove] = []
        while not moves:
            moves = [move for move in script.moves() if move.key.partition == 0]
        pauses.append(script.now - ended_at)
        assert [move.target for move in moves] == ["c"]
        assert not [move for move in script.moves() if move.key.partition == 0]
        script.rebalancing.on_ended(moves[0], False, script.now)
        ended_at = script.now
    assert [round(pause) for pause in pauses] == [0, 1, 2, 4, 8, 15, 15]
    assert pauses[-1] >= LONGEST_PAUSE_S


def test_a_full_broker_gives_to_a_short_one_and_a_short_one_keeps_the_rest(script: Script) -> None:
    script.rooms(a=FULL, b=SHORT, c=FULL)
    assert script.shown() == ["s/0 a>b", "s/2 a>b"]


def test_without_a_broker_better_off_everything_stays(script: Script) -> None:
    script.rooms(a=SHORT, b=SHORT, c=FULL)
    assert script.shown() == []


def test_a_broker_that_has_not_reported_its_room_is_given_nothing(script: Script) -> None:
    script.rooms(a=FULL)
    assert script.shown() == []


def test_a_dead_broker_or_one_out_of_the_isr_is_given_nothing(cluster: Cluster, script: Script) -> None:
    script.rooms(a=FULL, b=AMPLE, c=AMPLE)
    cluster.die("c")
    cluster.alter(cluster.alteration("a"))
    assert script.shown() == ["s/2 a>b"]


def test_a_stream_that_evicts_moves_only_when_that_did_not_help() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"], config={"on_under_capacity": "evict_oldest", "retention_max_bytes": "100000"})
    script = Script(cluster)
    script.rooms(a=SHORT, b=AMPLE, c=AMPLE)
    assert script.shown() == []
    script.rooms(a=FULL)
    assert script.shown() == ["s/0 a>b"]


def test_a_few_at_a_time() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"] * (2 * MAX_MOVES))
    script = Script(cluster)
    script.rooms(a=FULL, b=AMPLE, c=AMPLE)
    moves = script.moves()
    assert len(moves) == MAX_MOVES
    assert {move.target for move in moves} == {"b", "c"}
    script.rebalancing.on_ended(moves[0], True, script.now)
    assert len(script.moves()) == 1


def test_a_broker_that_is_stopping_gives_all_away_to_members_that_stay(script: Script) -> None:
    script.rooms(a=AMPLE, b=AMPLE, c=FULL)
    script.rebalancing.on_stopping(BrokerId("a"), True)
    assert script.rebalancing.stopping == ["a"]
    assert script.shown() == ["s/0 a>b", "s/2 a>b"], "whether they have more room or not; roomy ones first"
    script.rebalancing.on_stopping(BrokerId("a"), False)
    assert script.rebalancing.stopping == []


def test_a_broker_that_is_stopping_is_given_nothing(cluster: Cluster, script: Script) -> None:
    script.rooms(a=FULL, b=AMPLE, c=AMPLE)
    for broker in "abc":
        script.rebalancing.on_stopping(BrokerId(broker), True)
    assert script.shown() == []
    script.rebalancing.on_stopping(BrokerId("c"), False)
    assert script.shown() == ["s/0 a>c", "s/1 b>c", "s/2 a>c"]
    cluster.die("a", "b")
    assert script.rebalancing.stopping == [], "a dead broker hands nothing over"


def test_many_leaderships_of_a_stopping_broker_move_at_a_time() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"] * (2 * MAX_MOVES_OF_STOPPING))
    script = Script(cluster)
    script.rooms(a=AMPLE, b=AMPLE, c=AMPLE)
    script.rebalancing.on_stopping(BrokerId("a"), True)
    assert len(script.moves()) == MAX_MOVES_OF_STOPPING


def test_new_replicas_go_to_a_stopping_broker_only_where_others_do_not_suffice(script: Script) -> None:
    brokers = [BrokerId(broker) for broker in "abc"]
    script.rooms(a=AMPLE, b=SHORT, c=AMPLE)
    script.rebalancing.on_stopping(BrokerId("a"), True)
    assert script.rebalancing.with_room(brokers, 1) == ["c"]
    assert script.rebalancing.with_room(brokers, 2) == ["b", "c"]
    assert script.rebalancing.with_room(brokers, 3) == ["a", "b", "c"]


def test_another_controller_believes_nothing_that_was_heard_before(script: Script) -> None:
    script.rooms(a=FULL, b=AMPLE, c=AMPLE)
    script.rebalancing.clear()
    assert script.shown() == []


def test_new_replicas_go_where_there_is_room_if_there_is_enough(script: Script) -> None:
    brokers = [BrokerId(name) for name in "abc"]
    script.rooms(a=FULL, b=AMPLE)
    assert script.rebalancing.with_room(brokers, 2) == ["b", "c"]
    assert script.rebalancing.with_room(brokers, 3) == ["a", "b", "c"]


@pytest.fixture
def vault() -> Script:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"])
    cluster.create("vault", ["a b c", "b c a"], config={"encryption": "true"})
    script = Script(cluster)
    script.rooms(a=AMPLE, b=AMPLE, c=AMPLE)
    return script


def test_a_broker_without_the_key_leads_no_encrypted_stream(vault: Script) -> None:
    vault.rebalancing.on_master_key(BrokerId("a"), False)
    vault.rebalancing.on_master_key(BrokerId("b"), True)
    assert vault.shown() == ["vault/0 a>c"]


def test_leaderships_of_encrypted_streams_go_to_brokers_with_a_key_only(vault: Script) -> None:
    for broker in ("a", "c"):
        vault.rebalancing.on_master_key(BrokerId(broker), False)
    vault.rooms(b=FULL)
    # b has no room and a key: it may lead the partitions that a and c cannot, and gives nothing to them.
    assert vault.shown() == ["vault/0 a>b"]


def test_without_any_broker_with_a_key_everything_stays(vault: Script) -> None:
    for broker in ("a", "b", "c"):
        vault.rebalancing.on_master_key(BrokerId(broker), False)
    assert vault.shown() == []


def test_a_key_that_was_given_is_heard_of(vault: Script) -> None:
    vault.rebalancing.on_master_key(BrokerId("a"), False)
    vault.rebalancing.on_master_key(BrokerId("a"), True)
    assert vault.shown() == []


def test_a_broker_whose_disk_hangs_gives_all_it_leads_to_brokers_that_take_records(script: Script) -> None:
    script.rooms(a=AMPLE, b=SHORT, c=FULL)
    script.rebalancing.on_disk(BrokerId("a"), True)
    moves = script.moves()
    assert [(str(move.key), move.target, move.disk_hangs) for move in moves] == [
        ("s/0", "b", True),
        ("s/2", "b", True),
    ]


def test_it_is_given_nothing_back_before_and_keeps_later_leaderships(script: Script) -> None:
    script.rooms(a=AMPLE, b=FULL, c=FULL)
    script.rebalancing.on_disk(BrokerId("a"), True)
    assert script.shown() == []
    script.rebalancing.on_disk(BrokerId("a"), False)
    assert script.shown() == ["s/1 b>a"]


def test_with_all_disks_hanging_everything_stays(script: Script) -> None:
    script.rooms(a=AMPLE, b=AMPLE, c=AMPLE)
    for broker in "abc":
        script.rebalancing.on_disk(BrokerId(broker), True)
    assert script.shown() == []


def test_new_replicas_go_to_brokers_whose_disks_answer_if_there_are_enough(script: Script) -> None:
    brokers = [BrokerId(broker) for broker in "abc"]
    script.rebalancing.on_disk(BrokerId("a"), True)
    assert script.rebalancing.with_room(brokers, 2) == ["b", "c"]
    assert script.rebalancing.with_room(brokers, 3) == ["a", "b", "c"]


def test_a_broker_that_is_drained_gives_all_away_and_is_given_nothing(cluster: Cluster, script: Script) -> None:
    cluster.drain("a")
    script.rooms(a=AMPLE, b=FULL, c=AMPLE)
    assert script.rebalancing.why_not(BrokerId("a"), StreamConfig()) == "a is draining"
    assert script.rebalancing.with_room([*map(BrokerId, "abc")], 1) == ["c"]
    assert not script.rebalancing.may_lead(BrokerId("a"), cluster.key())
    assert sorted(script.shown()) == ["s/0 a>c", "s/1 b>c", "s/2 a>c"]


def test_a_draining_broker_leads_only_where_nobody_else_takes_over_from_one_that_stops(
    cluster: Cluster, script: Script
) -> None:
    cluster.drain("c")
    script.rooms(a=AMPLE, b=FULL, c=AMPLE)
    script.rebalancing.on_stopping(BrokerId("a"), True)
    assert sorted(script.shown()) == ["s/0 a>b", "s/2 a>b"]
    cluster.die("b")
    for move in [*script.rebalancing._under_way.values()]:
        script.rebalancing.on_ended(move, False, script.now)
    script.now += LONGEST_PAUSE_S
    assert {move.target for move in script.moves()} == {"c"}
