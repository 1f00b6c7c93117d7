"""The controller's decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller import Phase
from metadata.controller.descriptions import describe_form, routes_form
from metadata.controller.leader_rebalancing import MAX_MOVES_OF_STOPPING, SHORTEST_PAUSE_S
from metadata.raft.types import MAX_COMMAND_BYTES
from tests.turns import finished
from tests.unit.metadata.controlling import SETTINGS, Controller
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, LeaderEpoch, LeaderReport, PartitionKey, Room, StreamName


@pytest.fixture
def controller() -> Controller:
    """Brokers a, b, c; a is the controller, in controller epoch 2; stream s: partition 0 led by b, 1 by c."""
    controller = Controller("a", "b", "c")
    controller.lead()
    controller.cluster.create("s", ["b a c", "c b a"])
    controller.run(3)
    controller.kinds.clear()
    return controller


# ---- controller epochs ---------------------------------------------------------------------------------------------


def test_it_decides_nothing_before_its_own_controller_epoch_is_applied() -> None:
    controller = Controller("a", "b", "c")
    controller.hold_proposals = True
    controller.lead()
    assert (controller.core.phase, controller.core.controller_epoch, controller.story) == (Phase.STARTING, 0, [])
    with pytest.raises(TidelogError, match="not the controller"):
        finished(controller.core.requests.create_stream("s", "s", 1, 1, {}))
    controller.commit(controller.held.pop())
    assert (controller.core.phase, controller.core.controller_epoch, controller.story) == (Phase.ACTIVE, 2, ["begin 2"])


def test_it_begins_a_new_epoch_each_time_that_it_leads(controller: Controller) -> None:
    controller.perform(controller.core.on_raft(False, True, controller.now))
    assert controller.story == ["begin 2", "resign"]
    controller.lead()
    assert controller.story == ["begin 2", "resign", "begin 3"]


def test_it_leaves_when_another_epoch_is_applied_and_begins_its_own_again_while_it_leads(
    controller: Controller,
) -> None:
    controller.hold_proposals = True
    controller.perform(
        controller.core.on_applied(controller.cluster.begin_controller_epoch("b").changes, controller.now)
    )
    assert controller.story == ["begin 2", "resign"]
    controller.commit(controller.held.pop())
    assert controller.core.controller_epoch == 4


def test_a_begin_controller_epoch_without_an_outcome_is_tried_again() -> None:
    controller = Controller("a", "b", "c")
    controller.hold_proposals = True
    controller.lead()
    controller.perform(controller.core.on_outcome(controller.held.pop().ticket, None, controller.now))
    controller.hold_proposals = False
    controller.run(0.2)
    assert controller.story == ["begin 2"]


def test_an_epoch_refused_for_an_unknown_earlier_one_is_asked_for_again_at_once() -> None:
    controller = Controller("a", "b", "c")
    controller.hold_proposals = True
    controller.lead()
    controller.cluster.begin_controller_epoch("b")
    controller.hold_proposals = False
    controller.commit(controller.held.pop())
    assert controller.story == ["begin 3"]


def test_without_a_raft_majority_it_does_not_probe(controller: Controller) -> None:
    controller.perform(controller.core.on_raft(True, False, controller.now))
    controller.behaviour["b"] = "refuses"
    for _ in range(5):
        controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
        controller.run(0.1)
        controller.perform(controller.core.tick(controller.now))
    assert controller.kinds == []
    controller.perform(controller.core.on_raft(True, True, controller.now))
    controller.run(1)
    assert controller.kinds == ["begin_controller_epoch", "brokers_dead"]


# ---- failed leaders ------------------------------------------------------------------------------------------------


def test_a_lost_raft_connection_has_the_broker_declared_dead_within_twenty_milliseconds(controller: Controller) -> None:
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    assert controller.kinds == []
    controller.run(0.02)
    assert controller.kinds == ["brokers_dead"]
    assert controller.cluster.shown(0) == "a | a c |  | @2"
    assert controller.cluster.partition(1).isr == ("c", "a")


def test_a_lost_raft_connection_to_a_broker_that_answers_means_nothing(controller: Controller) -> None:
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    controller.run(5)
    assert controller.kinds == []


def test_one_report_of_a_leader_without_responders_elects_at_once(controller: Controller) -> None:
    """Where its Raft connection has closed, too."""
    controller.behaviour["b"] = "refuses"
    controller.report("c")
    assert controller.kinds == []
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    controller.report("c")
    assert controller.kinds == ["elect_leaders"]
    assert controller.cluster.shown(0) == "a | a c |  | @2"
    controller.run(0.02)
    assert controller.kinds == ["elect_leaders", "brokers_dead"]


def test_a_leader_that_answers_is_moved_by_most_of_the_isr_only(controller: Controller) -> None:
    controller.report("c")
    assert controller.kinds == []
    controller.report("c")
    assert controller.kinds == []
    controller.report("a")
    assert controller.kinds == ["elect_leaders"]
    # a and c led equally few; a comes first among the replicas.
    assert controller.cluster.shown(0) == "a | a c |  | @2"


def test_a_silent_leader_is_left_to_the_witnesses_after_the_probe_timeout(controller: Controller) -> None:
    controller.behaviour["b"] = "silent"
    controller.report("a")
    controller.report("c")
    assert controller.kinds == []
    controller.run(SETTINGS.probe_timeout_s + 0.1)
    assert controller.kinds == ["elect_leaders"]


@pytest.mark.parametrize(
    "wrong", [{"epoch": 9}, {"leader_epoch": 9}, {"leader": BrokerId("a")}, {"replica": BrokerId("b")}]
)
def test_reports_of_another_epoch_or_from_outside_the_isr_do_not_count(
    controller: Controller, wrong: dict[str, Any]
) -> None:
    controller.behaviour["b"] = "refuses"
    controller.report("c", **wrong)
    assert controller.kinds == []


def test_a_replica_outside_the_isr_is_no_witness(controller: Controller) -> None:
    controller.cluster.alter(controller.cluster.alteration("b a"))
    controller.report("c")
    assert controller.kinds == []
    controller.report("a")
    assert controller.kinds == ["elect_leaders"]


def test_witnesses_count_within_the_window_only(controller: Controller) -> None:
    controller.report("c")
    controller.run(SETTINGS.witness_window_s + 0.1)
    controller.report("a")
    assert controller.kinds == []


def test_reports_of_a_leader_do_not_depose_the_next_one_whose_election_has_just_been_applied(
    controller: Controller,
) -> None:
    controller.behaviour["b"] = "silent"
    controller.report("c")
    controller.cluster.elect(0, planned=True, target="a")  # applied; the core has not been told yet
    controller.behaviour["b"] = "refuses"
    controller.run(SETTINGS.probe_timeout_s)
    assert "elect_leaders" not in controller.kinds


def test_the_end_of_a_wait_for_others_does_not_depose_the_leader_whose_election_has_just_been_applied(
    controller: Controller,
) -> None:
    """Its log reaches furthest of those that are back: another leader may lack records of it."""
    cluster = controller.cluster
    cluster.die("a", "b", "c")
    for broker in "ac":
        controller.perform(controller.core.on_applied(cluster.register(broker).changes, controller.now))
    controller.hold_proposals = True
    controller.run(SETTINGS.election_wait_s + 0.3)
    for proposal in controller.held:  # applied; the core has not been told yet
        cluster.apply(proposal.command)
    assert {cluster.partition(number).leader for number in (0, 1)} <= {"a", "c"}
    controller.held.clear()
    controller.run(1)
    assert controller.held == []


def test_a_new_leader_epoch_clears_the_witnesses(controller: Controller) -> None:
    controller.report("c")
    changes = controller.cluster.elect(0, planned=True, target="a").changes
    controller.perform(controller.core.on_applied(changes, controller.now))
    controller.perform(
        controller.core.on_applied(controller.cluster.elect(0, planned=True, target="b").changes, controller.now)
    )
    controller.report("a")
    assert controller.kinds == []


def test_a_new_controller_clears_the_witnesses(controller: Controller) -> None:
    controller.report("c")
    controller.perform(controller.core.on_raft(False, True, controller.now))
    controller.lead()
    controller.kinds.clear()
    controller.report("a")
    assert controller.kinds == []


def test_a_decision_on_its_way_is_not_repeated_before_its_time_and_lost_ones_are(controller: Controller) -> None:
    controller.behaviour["b"] = "refuses"
    controller.hold_proposals = True
    controller.report("c")
    controller.report("c")
    controller.run(0.3)
    assert [p.command.WhichOneof("body") for p in controller.held] == ["elect_leaders", "brokers_dead"]
    controller.hold_proposals = False
    controller.run(0.5)
    assert "brokers_dead" in controller.kinds
    assert not controller.cluster.state.is_alive(BrokerId("b"))


def test_a_report_costs_the_same_however_many_partitions_have_failed(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[PartitionKey] = []
    find = ClusterState.partition

    def counted(state: ClusterState, key: PartitionKey) -> Partition | None:
        looked_at.append(key)
        return find(state, key)

    controller.cluster.create("many", ["b a c"] * 200)
    controller.behaviour["b"] = "silent"
    stream = controller.cluster.state.streams[StreamName("many")]
    reports = [
        LeaderReport(
            key=stream.key(number),
            replica=BrokerId(witness),
            leader=BrokerId("b"),
            epoch=partition.epoch,
            leader_epoch=partition.leader_epoch,
        )
        for number, partition in stream.partitions.items()
        for witness in "ac"
    ]
    monkeypatch.setattr(ClusterState, "partition", counted)
    for first in range(0, len(reports), 50):
        controller.perform(controller.core.on_reports(reports[first : first + 50], controller.now))
    assert len(looked_at) < 5 * len(reports)
    controller.run(SETTINGS.probe_timeout_s + 0.1)
    assert controller.kinds == ["elect_leaders"]
    stream = controller.cluster.state.streams[StreamName("many")]
    assert all(partition.leader != "b" for partition in stream.partitions.values())


def test_elections_of_any_number_of_partitions_fit_into_raft_commands(controller: Controller) -> None:
    name = "n" * 200
    for part in range(2):
        controller.cluster.create(f"{name}-{part}", ["b a c"] * 3000)
    controller.hold_proposals = True
    controller.behaviour["b"] = "refuses"
    controller.core.on_peer_lost(BrokerId("b"), controller.now)
    controller.perform(
        controller.core.on_reports(
            [
                LeaderReport(
                    key=key, replica=BrokerId("c"), leader=BrokerId("b"), epoch=p.epoch, leader_epoch=LeaderEpoch(1)
                )
                for key, p in controller.cluster.state.partitions()
                if p.leader == "b"
            ],
            controller.now,
        )
    )
    controller.run(0.1)
    proposed = [proposal.command for proposal in controller.held]
    assert sum(len(command.elect_leaders.items) for command in proposed) == 6001
    assert max(command.ByteSize() for command in proposed) < MAX_COMMAND_BYTES


def test_a_partition_led_alone_by_a_voter_without_nats_moves_to_an_eligible_replica(
    controller: Controller,
) -> None:
    controller.cluster.alter(controller.cluster.alteration("b"))
    assert controller.cluster.shown(0) == "b | b | a c | @1"
    controller.run(0.3)
    controller.core.on_raft_peers([BrokerId("b"), BrokerId("c")])
    controller.behaviour["b"] = "refuses"
    controller.run(SETTINGS.broker_silence_timeout_s + 0.5)
    assert controller.kinds == []
    controller.run(SETTINGS.leader_lease_s)
    assert controller.kinds == ["elect_leaders"]
    assert controller.cluster.shown(0) == "a | a | b c | @2"


def test_it_says_once_that_a_voter_is_cut_off_from_nats(controller: Controller) -> None:
    controller.core.on_raft_peers([BrokerId("b"), BrokerId("c")])
    controller.cluster.elect(0, planned=True, target="a")
    controller.behaviour["b"] = "silent"
    controller.run(3 * SETTINGS.leader_lease_s)
    assert sum("check its connection to the NATS server" in note for note in controller.notes) == 1
    assert controller.kinds == []


def test_a_mass_fall_hands_the_controller_over_once(controller: Controller) -> None:
    controller.behaviour |= {"b": "refuses", "c": "refuses"}
    controller.run(6)
    assert controller.kinds == []
    assert controller.story == ["begin 2", "hand over"]


def test_a_controller_without_a_successor_believes_its_probes_in_the_end(controller: Controller) -> None:
    controller.successors = False
    controller.behaviour |= {"b": "refuses", "c": "refuses"}
    controller.run(4 * SETTINGS.broker_silence_timeout_s)
    assert controller.kinds == ["brokers_dead"]
    assert controller.story == ["begin 2", "hand over"]


def test_a_controller_that_lost_nats_for_long_hands_over_once(controller: Controller) -> None:
    controller.perform(controller.core.on_connection(False, controller.now))
    controller.run(3 * SETTINGS.broker_silence_timeout_s)
    assert controller.story == ["begin 2", "hand over"]


# ---- requests ------------------------------------------------------------------------------------------------------


def create(controller: Controller, **arguments: Any) -> pb.Command:
    defaults: dict[str, Any] = {"name": "t", "subject": "t", "partitions": 3, "replication_factor": 3, "config": {}}
    return finished(controller.core.requests.create_stream(**(defaults | arguments)))


def test_a_stream_is_placed_on_live_brokers(controller: Controller) -> None:
    outcome = controller.cluster.apply(create(controller))
    assert outcome.code is None
    view = [controller.cluster.partition(number, "t") for number in range(3)]
    assert sorted(str(partition.leader) for partition in view) == ["a", "b", "c"]
    assert all(sorted(partition.isr) == ["a", "b", "c"] for partition in view)


def test_a_broker_that_stopped_listening_gets_no_replicas(controller: Controller) -> None:
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    assert [*create(controller, replication_factor=2).create_stream.brokers] == ["a", "c"]


def test_a_partition_that_is_not_there_is_told_from_those_that_are(controller: Controller) -> None:
    """Of those that a repartition leaves over, some are removed before others."""
    controller.cluster.apply(create(controller, partitions=6))
    for number in (2, 3, 5):
        del controller.cluster.state.streams[StreamName("t")].partitions[number]
    with pytest.raises(TidelogError, match="stream t has partitions 0 to 1, 4, not 3"):
        controller.core.requests.set_readonly("t", True, [3])


@pytest.mark.parametrize(("asked", "made"), [(None, "crc32c"), ("crc32c", "crc32c"), ("murmur2", "murmur2")])
def test_a_stream_has_a_partitioner_for_its_life(controller: Controller, asked: str | None, made: str) -> None:
    assert controller.cluster.apply(create(controller, partitioner=asked)).code is None
    state = controller.cluster.state
    stream = state.streams[StreamName("t")]
    assert finished(routes_form(state, stream))["partitioner"] == made
    assert finished(describe_form(stream, {}, {}, numbers=[0]))["partitioner"] == made
    again = ClusterState()
    again.restore(state.snapshot())
    assert again.streams[StreamName("t")].partitioner == made


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"name": "no dots."}, Code.BAD_NAME, "no dots."),
        ({"name": "api"}, Code.BAD_NAME, "reserved"),
        ({"subject": "tidelog.x"}, Code.BAD_SUBJECT, "namespace"),
        ({"subject": "x.*"}, Code.BAD_SUBJECT, "wildcard"),
        ({"partitions": 0}, Code.BAD_CONFIG, "1 to 10000"),
        ({"partitions": 10_001}, Code.BAD_CONFIG, "1 to 10000"),
        (
            {"partitioner": "murmur3"},
            Code.BAD_CONFIG,
            "partitioner='murmur3' is neither 'crc32c' nor 'murmur2'; give one of them",
        ),
        ({"replication_factor": 0}, Code.BAD_REPLICATION_FACTOR, "1 to 16"),
        ({"replication_factor": 17}, Code.BAD_REPLICATION_FACTOR, "1 to 16"),
        ({"replication_factor": 4}, Code.BAD_REPLICATION_FACTOR, "3 (a, b, c); start more brokers or ask for 3"),
        ({"config": {"min_isr": "4"}}, Code.BAD_CONFIG, "replication factor 3"),
        ({"config": {"min_isr": "many"}}, Code.BAD_CONFIG, "many"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_in_a_sentence(
    controller: Controller, arguments: dict[str, Any], code: Code, says: str
) -> None:
    with pytest.raises(TidelogError) as refused:
        create(controller, **arguments)
    assert refused.value.code is code
    assert says in refused.value.message


def test_brokers_that_are_known_and_do_not_live_may_be_waited_for(controller: Controller) -> None:
    controller.cluster.die("c")
    with pytest.raises(TidelogError) as refused:
        create(controller, replication_factor=3)
    assert refused.value.code is Code.NOT_ENOUGH_BROKERS
    assert refused.value.retriable
    assert "2 (a, b): c is dead; start what is missing, or ask for 2 at most" in refused.value.message
    with pytest.raises(TidelogError, match="start more brokers or ask for 2 at most") as refused:
        create(controller, replication_factor=4)
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR, "that many are not known at all"


def test_voters_that_have_never_registered_may_be_waited_for() -> None:
    controller = Controller("a", "b")
    controller.lead()
    for factor in (3, None):
        with pytest.raises(TidelogError, match="1 of 3 voters has not started yet") as refused:
            create(controller, replication_factor=factor, voters=3)
        assert refused.value.code is Code.NOT_ENOUGH_BROKERS
    with pytest.raises(TidelogError, match="start more brokers") as refused:
        create(controller, replication_factor=4, voters=3)
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR


def test_the_default_replication_factor_is_three_or_the_whole_cluster(controller: Controller) -> None:
    assert create(controller, replication_factor=None).create_stream.replication_factor == 3
    alone = Controller("a")
    alone.lead()
    assert create(alone, replication_factor=None).create_stream.replication_factor == 1


def test_voters_that_have_not_registered_yet_count_for_the_default_replication_factor() -> None:
    """A stream that is created while the brokers start would else have fewer replicas for ever."""
    early = Controller("a", "b", controller="a")
    early.lead()
    assert create(early, replication_factor=None, voters=1).create_stream.replication_factor == 2
    with pytest.raises(TidelogError, match="replication_factor=3 is above the number of live brokers, 2"):
        create(early, replication_factor=None, voters=3)


def test_the_largest_stream_fits_into_a_raft_command() -> None:
    brokers = [f"broker-{number:02}" for number in range(16)]
    controller = Controller(*brokers, controller=brokers[0])
    controller.lead()
    command = create(controller, partitions=10_000, replication_factor=16)
    assert len(command.SerializeToString()) < 1 << 20


def test_deleting_an_unknown_stream_is_refused(controller: Controller) -> None:
    with pytest.raises(TidelogError, match="nowhere"):
        controller.core.requests.delete_stream("nowhere")


def test_a_planned_move_is_a_compare_and_set_on_the_leader_that_drained(controller: Controller) -> None:
    move = controller.core.requests.plan_move("s", 0, BrokerId("c"))
    assert (move.leader, move.leader_epoch, move.target) == ("b", 1, "c")
    late = controller.core.requests.carry_out(move)
    assert controller.cluster.apply(controller.core.requests.carry_out(move)).items == (None,)
    assert controller.cluster.shown(0) == "c | b a c |  | @2", "the old leader stays in the ISR"
    assert controller.cluster.apply(late).items == (Code.FENCED_LEADER_EPOCH,)


def test_a_move_away_from_a_disk_that_hangs_drops_the_old_leader(controller: Controller) -> None:
    move = replace(controller.core.requests.plan_move("s", 0, BrokerId("c")), disk_hangs=True)
    assert controller.cluster.apply(controller.core.requests.carry_out(move)).items == (None,)
    assert controller.cluster.shown(0) == "c | a c |  | @2"


def test_a_leader_whose_disk_hangs_stays_in_an_isr_that_would_be_too_small_without_it(controller: Controller) -> None:
    move = replace(controller.core.requests.plan_move("s", 0, BrokerId("c")), disk_hangs=True)
    controller.cluster.die("a")  # during the drain
    assert controller.cluster.apply(controller.core.requests.carry_out(move)).items == (None,)
    assert controller.cluster.shown(0) == "c | b c |  | @2"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("t", 0, "a"), Code.UNKNOWN_STREAM, "'t' does not exist"),
        (("s", 7, "a"), Code.BAD_REQUEST, "0 to 1, not 7"),
        (("s", 0, "x"), Code.BAD_REQUEST, "x holds no replica of s/0; its replicas are b, a, c"),
        (("s", 0, "b"), Code.BAD_REQUEST, "b leads s/0 already"),
    ],
)
def test_a_move_that_cannot_be_is_refused_in_a_sentence(
    controller: Controller, arguments: tuple[str, int, str], code: Code, says: str
) -> None:
    name, number, target = arguments
    with pytest.raises(TidelogError) as refused:
        controller.core.requests.plan_move(name, number, BrokerId(target))
    assert refused.value.code is code
    assert says in refused.value.message


def test_a_leadership_moves_to_live_members_of_the_isr_only(controller: Controller) -> None:
    controller.cluster.alter(controller.cluster.alteration("a b"))
    with pytest.raises(TidelogError, match="c is not in the ISR of s/0, b, a"):
        controller.core.requests.plan_move("s", 0, BrokerId("c"))
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    with pytest.raises(TidelogError, match="b is not alive"):
        controller.core.requests.plan_move("s", 1, BrokerId("b"))
    controller.cluster.die("a", "b")
    with pytest.raises(TidelogError, match="nobody leads s/0"):
        controller.core.requests.plan_move("s", 0, BrokerId("a"))


def test_a_controller_out_of_controller_moves_nothing(controller: Controller) -> None:
    move = controller.core.requests.plan_move("s", 0, BrokerId("c"))
    controller.perform(controller.core.on_raft(False, True, controller.now))
    for step in (
        lambda: controller.core.requests.plan_move("s", 0, BrokerId("c")),
        lambda: controller.core.requests.carry_out(move),
    ):
        with pytest.raises(TidelogError) as refused:
            step()
        assert refused.value.code is Code.NOT_CONTROLLER


def test_an_unclean_election_is_refused_before_it_is_proposed(controller: Controller) -> None:
    with pytest.raises(TidelogError, match="0 to 1"):
        controller.core.requests.elect_unclean("s", 7, BrokerId("a"))
    with pytest.raises(TidelogError, match="led by b") as refused:
        controller.core.requests.elect_unclean("s", 0, BrokerId("c"))
    assert refused.value.code is Code.BAD_REQUEST
    with pytest.raises(TidelogError, match="x is not a live replica"):
        controller.core.requests.elect_unclean("s", 0, BrokerId("x"))


# ---- rebalancing
# ----------------------------------------------------------------------------------------------------------


def conditions(controller: Controller, **rooms: Room) -> None:
    for broker, room in rooms.items():
        controller.perform(
            controller.core.on_condition(
                BrokerId(broker), room=room, disk_hangs=False, has_master_key=True, now=controller.now
            )
        )


def test_leaderships_of_a_broker_whose_disk_runs_full_move_away(controller: Controller) -> None:
    conditions(controller, a=Room.AMPLE, c=Room.AMPLE, b=Room.FULL)
    (move,) = controller.moves
    assert (move.key.partition, move.leader, move.target) == (0, "b", "a")
    conditions(controller, b=Room.FULL)
    assert controller.moves == [move], "it is under way"
    controller.perform(controller.core.on_move_ended(move, False, controller.now))
    controller.now += SHORTEST_PAUSE_S
    conditions(controller, b=Room.FULL)
    assert controller.moves == [move, move]


def test_a_move_begins_as_soon_as_another_one_ends(controller: Controller) -> None:
    controller.cluster.create("t", ["b a c"] * (2 * MAX_MOVES_OF_STOPPING))
    conditions(controller, a=Room.AMPLE, b=Room.AMPLE, c=Room.AMPLE)
    stopping(controller, "b")
    assert len(controller.moves) == MAX_MOVES_OF_STOPPING
    for ended in range(1, MAX_MOVES_OF_STOPPING + 1):
        controller.perform(controller.core.on_move_ended(controller.moves[ended], True, controller.now))
        assert len(controller.moves) == MAX_MOVES_OF_STOPPING + ended
    assert len({move.key for move in controller.moves}) == len(controller.moves)


def stopping(controller: Controller, *brokers: str, leaves: bool = False) -> None:
    for broker in brokers:
        life = controller.cluster.state.brokers[BrokerId(broker)].incarnation
        controller.perform(
            controller.core.on_condition(
                BrokerId(broker),
                room=Room.AMPLE,
                disk_hangs=False,
                has_master_key=True,
                now=controller.now,
                is_stopping=True,
                leaves=life if leaves else None,
            )
        )


def test_a_broker_that_leaves_counts_as_dead_while_another_one_stays(controller: Controller) -> None:
    stopping(controller, "b", "a")
    stopping(controller, "b", leaves=True)
    assert controller.kinds == [], "c has not said yet whether it stays"
    conditions(controller, c=Room.AMPLE)
    stopping(controller, "b", leaves=True)
    assert controller.kinds == ["brokers_dead"]
    assert controller.cluster.partition(1).isr == ("c", "a")


def test_a_stop_of_all_brokers_leaves_every_isr_whole(controller: Controller) -> None:
    stopping(controller, "a", "b", "c")
    stopping(controller, "c", "b", leaves=True)
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    controller.report("c", refused=True)
    controller.report("a")
    controller.run(5)
    assert controller.kinds == []
    assert [controller.cluster.partition(number).isr for number in (0, 1)] == [("b", "a", "c"), ("c", "b", "a")]
    conditions(controller, c=Room.AMPLE)
    controller.run(1)
    assert controller.kinds == ["elect_leaders", "brokers_dead"], "c has returned, and stays"
    assert [controller.cluster.partition(number).isr for number in (0, 1)] == [("a", "c"), ("c", "a")]


def test_the_next_controller_knows_who_was_stopping(controller: Controller) -> None:
    """The controller may be the first one that ends when all are stopped."""
    controller.perform(controller.core.on_raft(False, True, controller.now))
    controller.kinds.clear()
    controller.lead()
    controller.core.presume_stopping([BrokerId(broker) for broker in "abc"])
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    controller.run(5)
    assert controller.kinds == ["begin_controller_epoch"]


def test_a_killed_broker_counts_as_dead_though_all_others_are_stopping(controller: Controller) -> None:
    stopping(controller, "a", "c")
    controller.behaviour["b"] = "refuses"
    controller.perform(controller.core.on_peer_lost(BrokerId("b"), controller.now))
    controller.run(1)
    assert controller.kinds == ["brokers_dead"]


def test_a_broker_that_is_not_the_controller_moves_no_leadership(controller: Controller) -> None:
    controller.perform(controller.core.on_raft(False, True, controller.now))
    conditions(controller, a=Room.AMPLE, c=Room.AMPLE, b=Room.FULL)
    assert controller.moves == []


def test_streams_and_partitions_of_a_cluster_are_bounded(controller: Controller) -> None:
    for stream in list(controller.cluster.state.streams):
        controller.cluster.apply(controller.core.requests.delete_stream(stream))
    controller.core.requests._settings = replace(SETTINGS, max_streams=2, max_partitions=5)
    steps = (("s", 4, None), ("t", 2, "max_partitions"), ("t", 1, None), ("u", 1, "max_streams"))
    for name, partitions, limit in steps:
        if limit is None:
            controller.cluster.apply(create(controller, name=name, subject=name, partitions=partitions))
            continue
        with pytest.raises(TidelogError, match=rf"and {limit} is \d; delete streams, or raise {limit}") as refused:
            create(controller, name=name, subject=name, partitions=partitions)
        assert (refused.value.code, refused.value.detail(LIMIT)) == (Code.LIMIT_REACHED, limit)


def test_commands_hold_settings_without_units(controller: Controller) -> None:
    """Brokers of an earlier version read no units, and apply the same commands."""
    made = create(controller, config={"retention_max_age_ms": "7d"})
    assert dict(made.create_stream.config) == {"retention_max_age_ms": "604800000"}
    controller.cluster.apply(made)
    requests = controller.core.requests
    altered = requests.alter_stream("t", {"segment_bytes": "512KiB"}, [])
    assert dict(altered.alter_stream.set) == {"segment_bytes": "524288"}
    defaults = requests.alter_cluster({"retention_max_bytes": "1.5GB"}, [])
    assert dict(defaults.alter_cluster.set) == {"retention_max_bytes": "1500000000"}
