"""The controller's decisions. `Office` carries out effects: proposals are applied to a real ClusterState at once
(unless held), probes reach brokers that answer, refuse or are silent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from metadata.controller import (
    AskForClusters,
    CloseOffice,
    ControllerCore,
    Effect,
    HandOver,
    Note,
    OpenOffice,
    Phase,
    Propose,
    RefuseToFound,
    SendProbe,
)
from metadata.model import Partition
from metadata.raft.types import MAX_COMMAND_BYTES
from metadata.settings import MetadataSettings
from metadata.state import ClusterState
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.errors import Code, TidelogError
from wire.types import BrokerId, Generation, LeaderEpoch, LeaderReport, PartitionKey, StreamName

SETTINGS = MetadataSettings()


class Office:
    def __init__(self, *brokers: str, controller: str = "a") -> None:
        self.cluster = Cluster(*brokers)
        self.core = ControllerCore(
            BrokerId(controller),
            f"{controller}-life",
            self.cluster.state,
            SETTINGS,
            Random(1),
            namespace="tidelog",
            new_cluster_id="new",
        )
        self.behaviour = dict.fromkeys(brokers, "answers")
        self.now = 100.0
        self.story: list[str] = []
        self.kinds: list[str] = []
        self.notes: list[str] = []
        self.hold_proposals = False
        self.held: list[Propose] = []
        self.successors = True
        self.perform(self.core.on_connection(True, 0.0))

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose() if self.hold_proposals:
                    self.held.append(effect)
                case Propose():
                    self.commit(effect)
                case SendProbe(broker, number, _, office):
                    assert office == self.core.office
                    self.probe(broker, number)
                case OpenOffice(office):
                    self.story.append(f"open {office}")
                case CloseOffice():
                    self.story.append("close")
                case HandOver():
                    self.story.append("hand over")
                    if not self.successors:
                        self.perform(self.core.on_hand_over_refused(self.now))
                case AskForClusters() | RefuseToFound():
                    raise AssertionError(f"{effect} of a group that has a cluster")
                case Note(text):
                    self.notes.append(text)

    def commit(self, proposal: Propose) -> None:
        kind = proposal.command.WhichOneof("body")
        self.kinds.append(str(kind))
        outcome = self.cluster.apply(proposal.command)
        if outcome.changes:
            self.perform(self.core.on_applied(outcome.changes, self.now))
        self.perform(self.core.on_outcome(proposal.ticket, outcome, self.now))

    def probe(self, broker: BrokerId, number: int) -> None:
        if self.behaviour[broker] == "answers":
            generation = Generation(self.cluster.state.generation)
            self.perform(self.core.on_probe_answer(broker, number, generation, self.now))
        elif self.behaviour[broker] == "refuses":
            self.perform(self.core.on_no_responders(broker, number, self.now))

    def lead(self) -> None:
        self.perform(self.core.on_raft(True, True, self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.core.next_deadline() <= end:
            self.now = max(self.now + 0.001, self.core.next_deadline())
            self.perform(self.core.tick(self.now))
        self.now = max(self.now, end)

    def report(self, witness: str, number: int = 0, **different: Any) -> None:
        partition = self.cluster.partition(number)
        assert partition.leader is not None
        report: dict[str, Any] = {
            "key": self.cluster.key(number),
            "replica": BrokerId(witness),
            "leader": partition.leader,
            "epoch": partition.epoch,
            "leader_epoch": partition.leader_epoch,
        }
        self.perform(self.core.on_reports([LeaderReport(**(report | different))], self.now))


@pytest.fixture
def office() -> Office:
    """Brokers a, b, c; a is in office 2; stream s: partition 0 led by b, 1 by c."""
    office = Office("a", "b", "c")
    office.lead()
    office.cluster.create("s", ["b a c", "c b a"])
    office.run(3)
    office.kinds.clear()
    return office


# ---- offices -------------------------------------------------------------------------------------------------------


def test_it_decides_nothing_before_its_own_office_is_applied() -> None:
    office = Office("a", "b", "c")
    office.hold_proposals = True
    office.lead()
    assert (office.core.phase, office.core.office, office.story) == (Phase.TAKING_OFFICE, 0, [])
    with pytest.raises(TidelogError, match="not the controller"):
        office.core.create_stream("s", "s", 1, 1, {})
    office.commit(office.held.pop())
    assert (office.core.phase, office.core.office, office.story) == (Phase.IN_OFFICE, 2, ["open 2"])


def test_it_takes_a_new_office_each_time_that_it_leads(office: Office) -> None:
    office.perform(office.core.on_raft(False, True, office.now))
    assert office.story == ["open 2", "close"]
    office.lead()
    assert office.story == ["open 2", "close", "open 3"]


def test_it_leaves_when_another_office_is_applied_and_takes_its_own_again_while_it_leads(office: Office) -> None:
    office.hold_proposals = True
    office.perform(office.core.on_applied(office.cluster.take_office("b").changes, office.now))
    assert office.story == ["open 2", "close"]
    office.commit(office.held.pop())
    assert office.core.office == 4


def test_a_take_office_without_an_outcome_is_tried_again() -> None:
    office = Office("a", "b", "c")
    office.hold_proposals = True
    office.lead()
    office.perform(office.core.on_outcome(office.held.pop().ticket, None, office.now))
    office.hold_proposals = False
    office.run(0.2)
    assert office.story == ["open 2"]


def test_an_office_refused_for_an_unknown_earlier_one_is_asked_for_again_at_once() -> None:
    office = Office("a", "b", "c")
    office.hold_proposals = True
    office.lead()
    office.cluster.take_office("b")
    office.hold_proposals = False
    office.commit(office.held.pop())
    assert office.story == ["open 3"]


def test_without_a_raft_majority_it_does_not_probe(office: Office) -> None:
    office.perform(office.core.on_raft(True, False, office.now))
    office.behaviour["b"] = "refuses"
    for _ in range(5):
        office.perform(office.core.on_peer_lost(BrokerId("b"), office.now))
        office.run(0.1)
        office.perform(office.core.tick(office.now))
    assert office.kinds == []
    office.perform(office.core.on_raft(True, True, office.now))
    office.run(1)
    assert office.kinds == ["brokers_dead"]


# ---- failed leaders ------------------------------------------------------------------------------------------------


def test_a_lost_raft_connection_buries_the_broker_within_twenty_milliseconds(office: Office) -> None:
    office.behaviour["b"] = "refuses"
    office.perform(office.core.on_peer_lost(BrokerId("b"), office.now))
    assert office.kinds == []
    office.run(0.02)
    assert office.kinds == ["brokers_dead"]
    assert office.cluster.shown(0) == "a | a c |  | @2"
    assert office.cluster.partition(1).isr == ("c", "a")


def test_a_lost_raft_connection_to_a_broker_that_answers_means_nothing(office: Office) -> None:
    office.perform(office.core.on_peer_lost(BrokerId("b"), office.now))
    office.run(5)
    assert office.kinds == []


def test_one_report_of_a_leader_that_nobody_hears_elects_at_once(office: Office) -> None:
    office.behaviour["b"] = "refuses"
    office.report("c")
    assert office.kinds == ["elect_leaders"]
    assert office.cluster.shown(0) == "a | a c |  | @2"
    office.run(0.02)
    assert office.kinds == ["elect_leaders", "brokers_dead"]


def test_a_leader_that_answers_is_moved_by_most_of_the_isr_only(office: Office) -> None:
    office.report("c")
    assert office.kinds == []
    office.report("c")
    assert office.kinds == []
    office.report("a")
    assert office.kinds == ["elect_leaders"]
    # a and c led equally few; a comes first among the replicas.
    assert office.cluster.shown(0) == "a | a c |  | @2"


def test_a_silent_leader_is_left_to_the_witnesses_after_the_probe_timeout(office: Office) -> None:
    office.behaviour["b"] = "silent"
    office.report("a")
    office.report("c")
    assert office.kinds == []
    office.run(SETTINGS.probe_timeout_s + 0.1)
    assert office.kinds == ["elect_leaders"]


@pytest.mark.parametrize(
    "wrong", [{"epoch": 9}, {"leader_epoch": 9}, {"leader": BrokerId("a")}, {"replica": BrokerId("b")}]
)
def test_reports_of_another_epoch_or_from_outside_the_isr_do_not_count(office: Office, wrong: dict[str, Any]) -> None:
    office.behaviour["b"] = "refuses"
    office.report("c", **wrong)
    assert office.kinds == []


def test_a_replica_outside_the_isr_is_no_witness(office: Office) -> None:
    office.cluster.alter(office.cluster.alteration("b a"))
    office.report("c")
    assert office.kinds == []
    office.report("a")
    assert office.kinds == ["elect_leaders"]


def test_witnesses_count_within_the_window_only(office: Office) -> None:
    office.report("c")
    office.run(SETTINGS.witness_window_s + 0.1)
    office.report("a")
    assert office.kinds == []


def test_reports_of_a_leader_do_not_depose_the_next_one_whose_election_has_just_been_applied(office: Office) -> None:
    office.behaviour["b"] = "silent"
    office.report("c")
    office.cluster.elect(0, planned=True, target="a")  # applied; the core has not been told yet
    office.behaviour["b"] = "refuses"
    office.run(SETTINGS.probe_timeout_s)
    assert "elect_leaders" not in office.kinds


def test_a_new_leader_epoch_clears_the_witnesses(office: Office) -> None:
    office.report("c")
    changes = office.cluster.elect(0, planned=True, target="a").changes
    office.perform(office.core.on_applied(changes, office.now))
    office.perform(office.core.on_applied(office.cluster.elect(0, planned=True, target="b").changes, office.now))
    office.report("a")
    assert office.kinds == []


def test_a_new_office_clears_the_witnesses(office: Office) -> None:
    office.report("c")
    office.perform(office.core.on_raft(False, True, office.now))
    office.lead()
    office.kinds.clear()
    office.report("a")
    assert office.kinds == []


def test_a_decision_on_its_way_is_not_repeated_before_its_time_and_lost_ones_are(office: Office) -> None:
    office.behaviour["b"] = "refuses"
    office.hold_proposals = True
    office.report("c")
    office.report("c")
    office.run(0.3)
    assert [p.command.WhichOneof("body") for p in office.held] == ["elect_leaders", "brokers_dead"]
    office.hold_proposals = False
    office.run(0.5)
    assert "brokers_dead" in office.kinds
    assert not office.cluster.state.is_alive(BrokerId("b"))


def test_a_report_costs_the_same_however_many_partitions_have_failed(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[PartitionKey] = []
    find = ClusterState.partition

    def counted(state: ClusterState, key: PartitionKey) -> Partition | None:
        looked_at.append(key)
        return find(state, key)

    office.cluster.create("many", ["b a c"] * 200)
    office.behaviour["b"] = "silent"
    stream = office.cluster.state.streams[StreamName("many")]
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
        office.perform(office.core.on_reports(reports[first : first + 50], office.now))
    assert len(looked_at) < 5 * len(reports)
    office.run(SETTINGS.probe_timeout_s + 0.1)
    assert office.kinds == ["elect_leaders"]
    assert all(partition.leader != "b" for partition in stream.partitions.values())


def test_elections_of_any_number_of_partitions_fit_into_raft_commands(office: Office) -> None:
    name = "n" * 200
    for part in range(2):
        office.cluster.create(f"{name}-{part}", ["b a c"] * 3000)
    office.hold_proposals = True
    office.behaviour["b"] = "refuses"
    office.perform(
        office.core.on_reports(
            [
                LeaderReport(
                    key=key, replica=BrokerId("c"), leader=BrokerId("b"), epoch=p.epoch, leader_epoch=LeaderEpoch(1)
                )
                for key, p in office.cluster.state.partitions()
                if p.leader == "b"
            ],
            office.now,
        )
    )
    sizes = [proposal.command.ByteSize() for proposal in office.held]
    assert len(sizes) > 1
    assert max(sizes) < MAX_COMMAND_BYTES


def test_what_a_voter_cut_off_from_nats_leads_alone_moves_to_an_eligible_replica(office: Office) -> None:
    office.cluster.alter(office.cluster.alteration("b"))
    assert office.cluster.shown(0) == "b | b | a c | @1"
    office.run(0.3)
    office.core.on_raft_peers([BrokerId("b"), BrokerId("c")])
    office.behaviour["b"] = "refuses"
    office.run(SETTINGS.broker_silence_timeout_s + 0.5)
    assert office.kinds == []
    office.run(SETTINGS.leader_lease_s)
    assert office.kinds == ["elect_leaders"]
    assert office.cluster.shown(0) == "a | a | b c | @2"


def test_it_says_once_that_a_voter_is_cut_off_from_nats(office: Office) -> None:
    office.core.on_raft_peers([BrokerId("b"), BrokerId("c")])
    office.cluster.elect(0, planned=True, target="a")
    office.behaviour["b"] = "silent"
    office.run(3 * SETTINGS.leader_lease_s)
    assert sum("check its connection to the NATS server" in note for note in office.notes) == 1
    assert office.kinds == []


def test_a_mass_fall_hands_the_office_over_once(office: Office) -> None:
    office.behaviour |= {"b": "refuses", "c": "refuses"}
    office.run(6)
    assert office.kinds == []
    assert office.story == ["open 2", "hand over"]


def test_a_controller_that_nobody_can_relieve_believes_its_probes_in_the_end(office: Office) -> None:
    office.successors = False
    office.behaviour |= {"b": "refuses", "c": "refuses"}
    office.run(4 * SETTINGS.broker_silence_timeout_s)
    assert office.kinds == ["brokers_dead"]
    assert office.story == ["open 2", "hand over"]


def test_a_controller_that_lost_nats_for_long_hands_over_once(office: Office) -> None:
    office.perform(office.core.on_connection(False, office.now))
    office.run(3 * SETTINGS.broker_silence_timeout_s)
    assert office.story == ["open 2", "hand over"]


# ---- requests ------------------------------------------------------------------------------------------------------


def create(office: Office, **arguments: Any) -> pb.Command:
    defaults: dict[str, Any] = {"name": "t", "subject": "t", "partitions": 3, "replication_factor": 3, "config": {}}
    return office.core.create_stream(**(defaults | arguments))


def test_a_stream_is_placed_on_live_brokers(office: Office) -> None:
    outcome = office.cluster.apply(create(office))
    assert outcome.code is None
    view = [office.cluster.partition(number, "t") for number in range(3)]
    assert sorted(str(partition.leader) for partition in view) == ["a", "b", "c"]
    assert all(sorted(partition.isr) == ["a", "b", "c"] for partition in view)


def test_a_broker_that_stopped_listening_gets_no_replicas(office: Office) -> None:
    office.behaviour["b"] = "refuses"
    office.perform(office.core.on_peer_lost(BrokerId("b"), office.now))
    assert [*create(office, replication_factor=2).create_stream.brokers] == ["a", "c"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ({"name": "no dots."}, Code.BAD_NAME, "no dots."),
        ({"name": "api"}, Code.BAD_NAME, "reserved"),
        ({"subject": "tidelog.x"}, Code.BAD_SUBJECT, "namespace"),
        ({"subject": "x.*"}, Code.BAD_SUBJECT, "wildcard"),
        ({"partitions": 0}, Code.BAD_CONFIG, "1 to 10000"),
        ({"partitions": 10_001}, Code.BAD_CONFIG, "1 to 10000"),
        ({"replication_factor": 0}, Code.BAD_REPLICATION_FACTOR, "1 to 16"),
        ({"replication_factor": 17}, Code.BAD_REPLICATION_FACTOR, "1 to 16"),
        ({"replication_factor": 4}, Code.BAD_REPLICATION_FACTOR, "3 (a, b, c); start more brokers or ask for 3"),
        ({"config": {"min_isr": "4"}}, Code.BAD_CONFIG, "replication factor 3"),
        ({"config": {"min_isr": "many"}}, Code.BAD_CONFIG, "many"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_in_a_sentence(
    office: Office, arguments: dict[str, Any], code: Code, says: str
) -> None:
    with pytest.raises(TidelogError) as refused:
        create(office, **arguments)
    assert refused.value.code is code
    assert says in refused.value.message


def test_brokers_that_are_known_and_do_not_live_may_be_waited_for(office: Office) -> None:
    office.cluster.die("c")
    with pytest.raises(TidelogError) as refused:
        create(office, replication_factor=3)
    assert refused.value.code is Code.NOT_ENOUGH_BROKERS
    assert refused.value.retriable
    assert "2 (a, b): c is dead; start what is missing, or ask for 2 at most" in refused.value.message
    with pytest.raises(TidelogError, match="start more brokers or ask for 2 at most") as refused:
        create(office, replication_factor=4)
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR, "that many are not known at all"


def test_voters_that_have_never_registered_may_be_waited_for() -> None:
    office = Office("a", "b")
    office.lead()
    for factor in (3, None):
        with pytest.raises(TidelogError, match="1 of 3 voters has not started yet") as refused:
            create(office, replication_factor=factor, voters=3)
        assert refused.value.code is Code.NOT_ENOUGH_BROKERS
    with pytest.raises(TidelogError, match="start more brokers") as refused:
        create(office, replication_factor=4, voters=3)
    assert refused.value.code is Code.BAD_REPLICATION_FACTOR


def test_the_default_replication_factor_is_three_or_the_whole_cluster(office: Office) -> None:
    assert create(office, replication_factor=None).create_stream.replication_factor == 3
    alone = Office("a")
    alone.lead()
    assert create(alone, replication_factor=None).create_stream.replication_factor == 1


def test_voters_that_have_not_registered_yet_count_for_the_default_replication_factor() -> None:
    """A stream that is created while the brokers start would else have fewer replicas for ever."""
    early = Office("a", "b", controller="a")
    early.lead()
    assert create(early, replication_factor=None, voters=1).create_stream.replication_factor == 2
    with pytest.raises(TidelogError, match="replication_factor=3 is above the number of live brokers, 2"):
        create(early, replication_factor=None, voters=3)


def test_the_largest_stream_fits_into_a_raft_command() -> None:
    brokers = [f"broker-{number:02}" for number in range(16)]
    office = Office(*brokers, controller=brokers[0])
    office.lead()
    command = create(office, partitions=10_000, replication_factor=16)
    assert len(command.SerializeToString()) < 1 << 20


def test_deleting_an_unknown_stream_is_refused(office: Office) -> None:
    with pytest.raises(TidelogError, match="nowhere"):
        office.core.delete_stream("nowhere")


def test_a_planned_move_is_a_compare_and_set_on_the_leader_that_drained(office: Office) -> None:
    move = office.core.plan_move("s", 0, BrokerId("c"))
    assert (move.leader, move.leader_epoch, move.target) == ("b", 1, "c")
    late = office.core.carry_out(move)
    assert office.cluster.apply(office.core.carry_out(move)).items == (None,)
    assert office.cluster.shown(0) == "c | b a c |  | @2", "the old leader stays in the ISR"
    assert office.cluster.apply(late).items == (Code.FENCED_LEADER_EPOCH,)


def test_a_move_away_from_a_disk_that_hangs_drops_the_old_leader(office: Office) -> None:
    move = replace(office.core.plan_move("s", 0, BrokerId("c")), drops_leader=True)
    assert office.cluster.apply(office.core.carry_out(move)).items == (None,)
    assert office.cluster.shown(0) == "c | a c |  | @2"


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
    office: Office, arguments: tuple[str, int, str], code: Code, says: str
) -> None:
    name, number, target = arguments
    with pytest.raises(TidelogError) as refused:
        office.core.plan_move(name, number, BrokerId(target))
    assert refused.value.code is code
    assert says in refused.value.message


def test_a_leadership_moves_to_live_members_of_the_isr_only(office: Office) -> None:
    office.cluster.alter(office.cluster.alteration("a b"))
    with pytest.raises(TidelogError, match="c is not in the ISR of s/0, b, a"):
        office.core.plan_move("s", 0, BrokerId("c"))
    office.behaviour["b"] = "refuses"
    office.perform(office.core.on_peer_lost(BrokerId("b"), office.now))
    with pytest.raises(TidelogError, match="b is not alive"):
        office.core.plan_move("s", 1, BrokerId("b"))
    office.cluster.die("a", "b")
    with pytest.raises(TidelogError, match="nobody leads s/0"):
        office.core.plan_move("s", 0, BrokerId("a"))


def test_a_controller_out_of_office_moves_nothing(office: Office) -> None:
    move = office.core.plan_move("s", 0, BrokerId("c"))
    office.perform(office.core.on_raft(False, True, office.now))
    for step in (lambda: office.core.plan_move("s", 0, BrokerId("c")), lambda: office.core.carry_out(move)):
        with pytest.raises(TidelogError) as refused:
            step()
        assert refused.value.code is Code.NOT_CONTROLLER


def test_an_unclean_election_is_refused_before_it_is_proposed(office: Office) -> None:
    with pytest.raises(TidelogError, match="0 to 1"):
        office.core.unclean_elect("s", 7, BrokerId("a"))
    with pytest.raises(TidelogError, match="led by b") as refused:
        office.core.unclean_elect("s", 0, BrokerId("c"))
    assert refused.value.code is Code.BAD_REQUEST
    with pytest.raises(TidelogError, match="x is not a live replica"):
        office.core.unclean_elect("s", 0, BrokerId("x"))
