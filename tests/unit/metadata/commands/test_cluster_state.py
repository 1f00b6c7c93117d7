"""The rules of ClusterState, one by one. `Cluster.shown`: leader | ISR | eligible | withdrawn @ LeaderEpoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.cluster.command_rules import FURTHEST_LOG_LEADS
from metadata.cluster.model import Changes, Returned
from metadata.commands.cluster_state import MAX_CLIENTS, OUTCOMES_PER_CLIENT, ClusterState
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code, CorruptData
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, Incarnation, LeaderEpoch, LogEnd, Offset, PartitionEpoch, PartitionKey, StreamName

ACCEPTED = {"durability": "accepted"}


def unchanged(cluster: Cluster, before: bytes) -> bool:
    return cluster.state.snapshot() == before


# ---- controller epochs, registration -------------------------------------------------------------------------------


def test_the_first_controller_epoch_names_the_cluster_and_later_ones_keep_the_name() -> None:
    cluster = Cluster("a", "b")
    assert cluster.state.cluster_id == "c1"
    outcome = cluster.apply(
        pb.Command(
            begin_controller_epoch=pb.BeginControllerEpoch(
                controller="b", life_id="x", expected_controller_epoch=1, cluster_id="other"
            )
        )
    )
    assert (outcome.value, cluster.state.cluster_id, cluster.state.controller) == (2, "c1", "b")


def test_a_late_begin_controller_epoch_is_refused() -> None:
    cluster = Cluster("a", "b")
    cluster.begin_controller_epoch("b", expected=1)
    assert cluster.begin_controller_epoch("a", expected=1).code is Code.NOT_CONTROLLER
    assert cluster.state.controller == "b"


def test_commands_queued_by_a_deposed_controller_change_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.begin_controller_epoch("b")
    before = cluster.state.snapshot()
    assert cluster.die("c", epoch=1).code is Code.NOT_CONTROLLER
    assert cluster.create("t", epoch=1).code is Code.NOT_CONTROLLER
    assert cluster.elect(epoch=1).code is Code.NOT_CONTROLLER
    assert unchanged(cluster, before)


def test_no_broker_registers_before_the_first_controller_epoch() -> None:
    cluster = Cluster()
    outcome = cluster.register("a")
    assert outcome.code is Code.UNAVAILABLE
    assert outcome.code.retriable


def test_the_same_living_life_registers_once() -> None:
    cluster = Cluster("a")
    generation = cluster.state.generation
    outcome = cluster.register("a", same_life=True)
    assert outcome.value == cluster.incarnation("a")
    assert cluster.state.generation == generation
    cluster.die("a")
    again = cluster.register("a", same_life=True)
    assert again.value == cluster.state.generation > outcome.value


def test_an_incarnation_is_the_generation_of_its_registration() -> None:
    cluster = Cluster("a", "b")
    assert [cluster.incarnation(broker) for broker in "ab"] == [2, 3]


def test_a_folder_of_another_cluster_is_refused_by_name() -> None:
    cluster = Cluster("a")
    outcome = cluster.register("b", cluster_id="elsewhere")
    assert outcome.code is Code.BAD_CONFIG
    assert "elsewhere" in outcome.message
    assert "c1" in outcome.message


def test_no_process_continues_a_leader_epoch_of_an_earlier_life() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.register("a")
    assert cluster.shown() == "b | a b c |  | @2"


def test_a_restarted_leader_gives_way_even_to_a_busier_one() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b", "b a", "b a"])
    cluster.register("a")
    assert cluster.shown(0) == "b | a b |  | @2"


def test_brokers_that_are_all_back_share_the_partitions_equally() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "b c a", "c a b"] * 3)
    for broker in "abc":
        cluster.register(broker)
    assert [cluster.state.led_by(BrokerId(broker)) for broker in "abc"] == [3, 3, 3]


def test_of_two_brokers_that_are_back_one_after_the_other_none_leads_all() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "b c a"] * 2)
    cluster.die("c")
    for broker in "ab":
        cluster.register(broker)
    assert [cluster.state.led_by(BrokerId(broker)) for broker in "ab"] == [2, 2]


def test_by_earlier_rules_a_broker_that_comes_back_gives_all_of_its_partitions_away() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "b c a"] * 2)
    cluster.die("c")
    cluster.state._contents.rules = FURTHEST_LOG_LEADS
    for broker in "ab":
        cluster.register(broker)
    assert [cluster.state.led_by(BrokerId(broker)) for broker in "ab"] == [4, 0]


def test_a_leader_that_is_alone_in_the_isr_gets_it_back_in_a_new_leader_epoch() -> None:
    cluster = Cluster("a")
    cluster.create(assignments=["a"])
    cluster.register("a")
    assert cluster.shown() == "a | a |  | @2"


def test_a_follower_that_restarts_with_proof_stays_in_the_isr_and_says_how_far_its_log_reaches() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    before = cluster.partition()
    reach = LogEnd(LeaderEpoch(1), Offset(7))
    cluster.register("b", logs={cluster.key(): reach})
    assert cluster.partition() == replace(
        before,
        epoch=PartitionEpoch(before.epoch + 1),
        returned=(Returned(BrokerId("b"), Incarnation(cluster.incarnation("b")), reach),),
    )


@pytest.mark.parametrize(
    ("config", "folder_same", "cache", "stays"),
    [
        ({}, True, False, True),
        ({}, False, True, False),
        (ACCEPTED, True, True, True),
        (ACCEPTED, True, False, False),
        (ACCEPTED, False, True, False),
    ],
)
def test_the_proof_of_a_restart(config: dict[str, str], folder_same: bool, cache: bool, stays: bool) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config=config)
    cluster.register("b", folder_same=folder_same, page_cache_survived=cache)
    assert ("b" in cluster.partition().isr) is stays


def test_a_folder_restored_from_an_earlier_life_proves_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    first = cluster.incarnation("b")
    cluster.register("b")
    cluster.register("b", last_incarnation=first)
    assert cluster.partition().isr == ("a", "c")


def test_a_folder_knows_a_life_that_was_killed_before_it_heard_of_its_registration() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    recorded = cluster.incarnation("b")
    cluster.register("b", last_incarnation=recorded)
    unheard = cluster.state.brokers[BrokerId("b")].life_id
    cluster.register("b", last_incarnation=recorded, earlier_lives=["another", unheard])
    assert cluster.partition().isr == ("a", "b", "c")


def test_without_proof_the_last_member_gives_way_to_an_eligible_one() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    cluster.die("b")
    assert cluster.shown() == "a | a | b | @1"
    cluster.die("a")
    assert cluster.shown() == "- | a | b | @2"
    cluster.register("a", folder_same=False)
    assert cluster.shown() == "- | b |  | @2"
    cluster.register("b")
    assert cluster.shown() == "b | b |  | @3"


def test_a_registration_of_a_life_that_is_over_counts_for_nothing_when_it_comes_late() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"], config={"min_isr": "1"})
    cluster.die("b")
    first = cluster.incarnation("a")
    cluster.register("a", life_id="second")
    cluster.register("a", life_id="fourth", earlier_lives=["third"])
    before = cluster.state.snapshot()
    for late in ("second", "third"):
        outcome = cluster.register("a", life_id=late, last_incarnation=first)
        assert outcome.code is Code.WRONG_INCARNATION
        assert not outcome.changes
    assert cluster.state.snapshot() == before
    restored = ClusterState()
    restored.restore(before)
    assert restored.brokers[BrokerId("a")].earlier_lives[-2:] == ("second", "third")


def test_the_very_last_member_with_another_folder_waits_for_an_operator() -> None:
    """It holds no committed record: were it to lead, the others would be cut to its log."""
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"], config={"min_isr": "1"})
    cluster.die("b")
    cluster.register("b", folder_same=False)
    cluster.register("a", folder_same=False)
    assert cluster.partition().leader is None
    assert [entry.replica for entry in cluster.partition().withdrawn] == ["a"]


def test_without_proof_the_very_last_member_leads_again() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"], config=ACCEPTED)
    cluster.die("a", "b")
    assert cluster.shown() == "- | a b |  | @2"
    cluster.register("a", page_cache_survived=False)
    assert cluster.shown() == "- | b |  | @2"
    cluster.register("b", page_cache_survived=False)
    assert cluster.shown() == "b | b |  | @3"


def test_an_unsound_replica_leaves_the_isr_when_it_registers() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.register("a", unsound=[cluster.key()])
    assert cluster.shown() == "b | b c |  | @2"


def test_an_unsound_last_member_is_offline_until_an_operator_accepts_the_loss() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    cluster.die("b")
    cluster.register("a", unsound=[cluster.key()])
    assert cluster.shown() == "- | a |  | a@2"
    cluster.register("b")
    cluster.register("a")
    assert cluster.shown() == "- | a |  | a@2"
    assert cluster.unclean("b").code is None
    assert cluster.shown() == "b | b |  | @3"


def test_the_first_sound_member_to_register_leads_an_offline_partition() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.die("a", "b", "c")
    assert cluster.shown() == "- | a b c |  | @2"
    cluster.register("c")
    assert cluster.shown() == "- | a b c |  | @2", "others may hold more, and are waited for"
    cluster.elect()
    assert cluster.shown() == "c | c | a b | @3"
    cluster.register("a")
    assert cluster.shown() == "c | c | a b | @3"


def test_a_replica_that_a_registration_does_not_name_is_taken_for_an_empty_one() -> None:
    """An earlier version names none."""
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"])
    cluster.die("a", "b")
    cluster.register("a")
    cluster.register("b", logs={cluster.key(): LogEnd(LeaderEpoch(1), Offset(1))})
    assert cluster.partition().leader == "b"


def test_a_partition_with_one_replica_waits_for_nobody_and_keeps_no_ends() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a"])
    cluster.die("a")
    cluster.register("a", logs={cluster.key(): LogEnd(LeaderEpoch(1), Offset(1))})
    assert (cluster.partition().leader, cluster.partition().returned) == ("a", ())


def test_a_broker_outside_isr_and_eligible_does_not_lead_an_offline_partition() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1"})
    cluster.die("c")
    cluster.die("a", "b")
    cluster.register("c")
    assert cluster.shown() == "- | a b |  | @2"


# ---- death ---------------------------------------------------------------------------------------------------------


def test_a_dead_leader_leaves_the_isr_in_the_command_that_moves_its_partitions() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "b c a", "a c b"])
    generation = cluster.state.generation
    outcome = cluster.die("a")
    assert cluster.state.generation == generation + 1
    assert outcome.changes.partitions == tuple(cluster.key(number) for number in range(3))
    # b leads one already, so c takes the first; then b and c are even and the earlier replica takes the third.
    assert [cluster.shown(number) for number in range(3)] == ["c | b c |  | @2", "b | b c |  | @1", "c | c b |  | @2"]


def test_only_the_incarnation_that_died_is_dead() -> None:
    cluster = Cluster("a", "b")
    old = cluster.incarnation("b")
    cluster.register("b")
    assert cluster.die("b", incarnation=old).items == (Code.WRONG_INCARNATION,)
    assert cluster.state.is_alive(BrokerId("b"))


def test_the_isr_never_empties_when_all_its_members_die() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.die("a", "b")
    cluster.die("c")
    assert cluster.shown() == "- | c | a b | @3"


def test_an_eligible_replica_leads_when_the_isr_is_dead() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    # c fell behind while two were in sync, so it may lack records; b left when one was: it holds all that is committed.
    cluster.alter(cluster.alteration("a"))
    assert cluster.shown() == "a | a | b | @1"
    cluster.die("a")
    assert cluster.shown() == "b | b | a | @2"


def test_eligible_replicas_are_forgotten_when_the_isr_is_large_enough_again() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a"))
    assert cluster.partition().eligible == ("b", "c")
    cluster.alter(cluster.alteration("a c"))
    assert cluster.shown() == "a | a c |  | @1"


# ---- ISR changes ---------------------------------------------------------------------------------------------------


def test_an_isr_change_raises_the_partition_epoch_and_not_the_leader_epoch() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    assert cluster.alter(cluster.alteration("a c")).items == (None,)
    partition = cluster.partition()
    assert (partition.isr, partition.epoch, partition.leader_epoch) == (("a", "c"), 2, 1)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"expected_epoch": 1}, Code.STALE_EPOCH),
        ({"leader_epoch": 2}, Code.FENCED_LEADER_EPOCH),
        ({"leader": "b"}, Code.FENCED_LEADER_EPOCH),
    ],
)
def test_a_stale_isr_change_changes_nothing_and_says_so(wrong: dict[str, str | int], code: Code) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    before = cluster.state.snapshot()
    item = cluster.alteration("a b c")
    for name, value in wrong.items():
        setattr(item, name, value)
    assert cluster.alter(item).items == (code,)
    assert unchanged(cluster, before)


@pytest.mark.parametrize("isr", ["", "b c", "a a", "a d"])
def test_an_impossible_isr_is_refused(isr: str) -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster.create()
    before = cluster.state.snapshot()
    assert cluster.alter(cluster.alteration(isr)).items == (Code.BAD_REQUEST,)
    assert unchanged(cluster, before)


def test_an_expansion_with_a_life_that_is_over_ends_in_a_new_epoch_and_the_old_isr() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    old = cluster.incarnation("c")
    cluster.register("c", folder_same=False)
    item = cluster.alteration("a b c", incarnations={"c": old})
    assert cluster.alter(item).items == (Code.WRONG_INCARNATION,)
    partition = cluster.partition()
    assert (partition.isr, partition.epoch) == (("a", "b"), 3)
    # A copy that comes late is outdated now.
    assert cluster.alter(item).items == (Code.STALE_EPOCH,)
    assert cluster.partition() == partition


def test_a_dead_broker_cannot_join_the_isr() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    cluster.die("c")
    assert cluster.alter(cluster.alteration("a b c")).items == (Code.WRONG_INCARNATION,)
    assert cluster.partition().isr == ("a", "b")


def test_a_member_that_the_leader_has_not_seen_yet_may_stay_and_not_join() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    assert cluster.alter(cluster.alteration("a b", incarnations={"b": 0})).items == (None,)
    assert cluster.alter(cluster.alteration("a b c", incarnations={"c": 0})).items == (Code.WRONG_INCARNATION,)
    assert cluster.partition().isr == ("a", "b")


def test_proposing_the_present_isr_outdates_earlier_proposals() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    late = cluster.alteration("a b c")
    assert cluster.alter(cluster.alteration("a b")).items == (None,)
    assert cluster.alter(late).items == (Code.STALE_EPOCH,)


def test_many_partitions_change_in_one_command_each_on_its_own() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "a b c", "a b c"])
    stale = cluster.alteration("a b", number=1, expected_epoch=9)
    outcome = cluster.alter(cluster.alteration("a b", number=0), stale, cluster.alteration("a c", number=2))
    assert outcome.items == (None, Code.STALE_EPOCH, None)
    assert outcome.changes.partitions == (cluster.key(0), cluster.key(2))


# ---- elections, withdrawals ----------------------------------------------------------------------------------------


def test_a_failover_drops_the_old_leader_and_a_planned_move_keeps_it() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "a b c"])
    cluster.elect(0)
    cluster.elect(1, planned=True, target="c")
    assert cluster.shown(0) == "b | b c |  | @2"
    assert cluster.shown(1) == "c | a b c |  | @2"


def test_a_planned_move_goes_to_isr_members_only() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a b"))
    assert cluster.elect(planned=True, target="c").items == (Code.NOT_ENOUGH_REPLICAS,)


def test_a_planned_move_of_an_earlier_leader_epoch_changes_nothing() -> None:
    """The leader that drained was deposed, or died, before the command arrived."""
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.elect()
    before = cluster.state.snapshot()
    assert cluster.elect(planned=True, target="c", leader_epoch=1).items == (Code.FENCED_LEADER_EPOCH,)
    assert unchanged(cluster, before)


def test_a_planned_move_does_not_keep_a_leader_that_is_dead_by_then() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    epoch = cluster.partition().leader_epoch
    cluster.die("a")
    assert cluster.elect(planned=True, target="c", leader_epoch=epoch).items == (Code.FENCED_LEADER_EPOCH,)
    assert cluster.shown() == "b | b c |  | @2"


def test_an_election_decided_on_an_earlier_leader_epoch_changes_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.elect()
    before = cluster.state.snapshot()
    assert cluster.elect(leader_epoch=1).items == (Code.FENCED_LEADER_EPOCH,)
    assert unchanged(cluster, before)


def test_a_failover_of_the_last_isr_member_needs_an_eligible_replica() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    assert cluster.elect().items == (Code.NOT_ENOUGH_REPLICAS,)
    frozen = Cluster("a", "b", "c")
    frozen.create(assignments=["a b c"], config={"min_isr": "2"})
    frozen.alter(frozen.alteration("a"))
    assert frozen.elect().items == (None,)
    assert frozen.shown() == "b | b | a c | @2"


def test_a_withdrawn_follower_leaves_and_the_leader_epoch_rises() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    assert cluster.withdraw("c").items == (None,)
    assert cluster.shown() == "a | a b |  | @2"
    assert cluster.alter(cluster.alteration("a b c")).items == (None,)


def test_the_leader_epoch_rises_when_a_replica_outside_the_isr_withdraws() -> None:
    """An expansion may be on its way, by the leader's knowledge of its log before it was damaged."""
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a b"))
    coming = cluster.alteration("a b c")
    assert cluster.withdraw("c").items == (None,)
    assert cluster.shown() == "a | a b |  | @2"
    assert cluster.alter(coming).items == (Code.FENCED_LEADER_EPOCH,)


def test_nothing_is_changed_by_a_withdrawal_from_outside_without_a_leader() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    cluster.die("a")
    before = cluster.state.snapshot()
    cluster.withdraw("c")
    assert unchanged(cluster, before)


def test_a_withdrawn_leader_hands_over() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.withdraw("a")
    assert cluster.shown() == "b | b c |  | @2"


def test_a_withdrawn_replica_is_not_eligible() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    cluster.alter(cluster.alteration("a"))
    cluster.withdraw("b")
    assert cluster.shown() == "a | a | c | @2"


def test_a_withdrawn_last_member_cannot_lead_or_be_elected() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    cluster.alter(cluster.alteration("a"))
    cluster.withdraw("a")
    assert cluster.shown() == "- | a |  | a@2"
    assert cluster.elect().items == (Code.NOT_ENOUGH_REPLICAS,)


def test_a_stale_withdrawal_changes_nothing() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    before = cluster.state.snapshot()
    assert cluster.withdraw("b", expected_epoch=7).items == (Code.STALE_EPOCH,)
    assert cluster.withdraw("b", incarnation=99).items == (Code.WRONG_INCARNATION,)
    assert unchanged(cluster, before)


def test_an_unclean_election_needs_a_live_replica() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b"])
    cluster.die("a", "b")
    assert cluster.unclean("b").code is Code.BAD_REQUEST
    assert cluster.unclean("c").code is Code.BAD_REQUEST


def test_unclean_elections_are_counted_in_the_state_and_its_snapshots() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    cluster.die("a")
    assert cluster.shown() == "- | a |  | @2"
    assert cluster.unclean("a").code is Code.BAD_REQUEST
    assert cluster.state.unclean_elections == 0
    assert cluster.unclean("b").code is None
    cluster.begin_controller_epoch("b")
    copy = Cluster()
    copy.state.restore(cluster.state.snapshot())
    assert cluster.state.unclean_elections == copy.state.unclean_elections == 1


def test_replicas_are_told_in_which_leader_epoch_a_loss_is_accepted() -> None:
    """A damaged replica that is elected cuts its log in that case only: a controller may not have heard of the
    damage."""
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    assert not accepted(cluster)
    cluster.register("a", unsound=[cluster.key()])
    assert cluster.shown().startswith("- | a |")
    assert not accepted(cluster)
    assert cluster.unclean("a").code is None
    assert accepted(cluster)
    copy = Cluster()
    copy.state.restore(cluster.state.snapshot())
    assert accepted(copy, cluster.key())
    cluster.register("a")
    assert cluster.shown().startswith("a | a |")
    assert not accepted(cluster)


def accepted(cluster: Cluster, key: PartitionKey | None = None) -> bool:
    view = cluster.state.view(key or cluster.key())
    assert view is not None
    return view.loss_accepted


def test_an_unclean_election_is_refused_while_somebody_leads() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    before = cluster.state.snapshot()
    assert cluster.unclean("b").code is Code.BAD_REQUEST
    assert unchanged(cluster, before)


# ---- streams -------------------------------------------------------------------------------------------------------


def test_a_new_stream_is_in_sync_on_all_replicas_in_its_first_epochs() -> None:
    cluster = Cluster("a", "b", "c")
    outcome = cluster.create(assignments=["b a c", "c b a"])
    view = cluster.state.view(cluster.key(1))
    assert view is not None
    assert {view.key.stream_incarnation, view.key.partition_incarnation} == {outcome.value}
    assert outcome.value == cluster.state.generation
    assert (view.subject, view.leader, view.isr) == ("s.1", "c", ("c", "b", "a"))
    assert (view.epoch, view.leader_epoch, view.config.min_isr, view.partition_count) == (1, 1, 2, 2)
    assert [cluster.state.led_by(BrokerId(broker)) for broker in "abc"] == [0, 1, 1]


def test_a_recreated_stream_is_another_one() -> None:
    cluster = Cluster("a")
    cluster.create(assignments=["a"])
    old = cluster.key()
    assert cluster.delete().changes == Changes(gone=(old,), streams=True)
    cluster.create(assignments=["a"])
    assert cluster.key() != old
    assert cluster.state.view(old) is None
    assert cluster.delete(incarnation=old.stream_incarnation).code is Code.UNKNOWN_STREAM


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"name": "s"}, Code.STREAM_EXISTS),
        ({"name": "t", "subject": "s.7"}, Code.SUBJECT_TAKEN),
        ({"name": "t", "assignments": ["a b a"], "factor": 3}, Code.BAD_REQUEST),
        ({"name": "t", "factor": 2}, Code.BAD_REQUEST),
        ({"name": "t", "factor": 17}, Code.BAD_REPLICATION_FACTOR),
        ({"name": "t", "factor": 0}, Code.BAD_REPLICATION_FACTOR),
        ({"name": "t", "config": {"min_isr": "4"}}, Code.BAD_CONFIG),
        ({"name": "t", "config": {"colour": "red"}}, Code.BAD_CONFIG),
        ({"name": "", "subject": "x"}, Code.BAD_NAME),
    ],
)
def test_streams_that_cannot_be_are_refused(arguments: dict[str, object], code: Code) -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    before = cluster.state.snapshot()
    outcome = cluster.create(**arguments)  # type: ignore[arg-type]  # a table of keyword arguments
    assert outcome.code is code
    assert outcome.message
    assert unchanged(cluster, before)


def test_a_stream_is_created_on_live_brokers_only() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.die("c")
    outcome = cluster.create()
    assert outcome.code is Code.UNAVAILABLE
    assert outcome.code.retriable


def test_deleting_an_unknown_stream_says_so() -> None:
    cluster = Cluster("a")
    assert cluster.delete("nowhere").code is Code.UNKNOWN_STREAM


def test_producer_ids_are_handed_out_once() -> None:
    cluster = Cluster("a")
    allocate = pb.Command(allocate_producer_ids=pb.AllocateProducerIds(count=10))
    assert [cluster.apply(allocate).value for _ in range(2)] == [1, 11]
    allocate.allocate_producer_ids.count = 0
    assert cluster.apply(allocate).code is Code.BAD_REQUEST


# ---- repeats, garbage, snapshots -----------------------------------------------------------------------------------


def test_a_repeated_command_gets_its_first_outcome() -> None:
    cluster = Cluster("a", "b", "c")
    first = cluster.create(client="x", sequence=1)
    cluster.delete()
    again = cluster.create(client="x", sequence=1)
    assert (again.code, again.value, again.repeated) == (None, first.value, True)
    assert StreamName("s") not in cluster.state.streams


def test_a_repeated_refusal_is_the_same_refusal() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create()
    assert cluster.create(client="x", sequence=1).code is Code.STREAM_EXISTS
    cluster.delete()
    assert cluster.create(client="x", sequence=1).code is Code.STREAM_EXISTS


def test_the_memory_of_clients_is_bounded() -> None:
    cluster = Cluster("a")

    def allocate(client: str, sequence: int) -> None:
        cluster.apply(
            pb.Command(client=client, sequence=sequence, allocate_producer_ids=pb.AllocateProducerIds(count=1))
        )

    for sequence in range(OUTCOMES_PER_CLIENT + 5):
        allocate("busy", sequence)
    too_old = pb.Command(client="busy", sequence=0, allocate_producer_ids=pb.AllocateProducerIds(count=1))
    assert cluster.apply(too_old).code is Code.OUTCOME_UNKNOWN
    for number in range(MAX_CLIENTS + 5):
        allocate(f"client {number}", 1)
    assert len(cluster.state._contents.clients) == MAX_CLIENTS
    assert "busy" not in cluster.state._contents.clients


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"\x52\x7fabc", pb.Command().SerializeToString()])
def test_garbage_is_refused_and_changes_nothing(garbage: bytes) -> None:
    cluster = Cluster("a")
    before = cluster.state.snapshot()
    assert cluster.state.apply(garbage).code is Code.BAD_REQUEST
    assert unchanged(cluster, before)


def test_a_snapshot_restores_the_same_state_and_tells_the_difference() -> None:
    ahead = Cluster("a", "b", "c")
    ahead.create("s", ["a b c", "b c a"])
    ahead.create("old", ["a b c"], subject="old")
    behind = ClusterState()
    behind.restore(ahead.state.snapshot())
    gone, changed = ahead.key(name="old"), ahead.key(0)
    ahead.delete("old")
    ahead.alter(ahead.alteration("a b"))
    ahead.create("new", ["c a b"], subject="new", client="x", sequence=3)
    ahead.die("b")
    ahead.begin_controller_epoch("c")
    changes = behind.restore(ahead.state.snapshot())
    assert changes.gone == (gone,)
    assert changes.partitions == tuple(sorted((changed, ahead.key(1), ahead.key(name="new"))))
    assert (changes.brokers, changes.controller) == (("b",), True)
    assert behind.snapshot() == ahead.state.snapshot()
    assert [behind.led_by(BrokerId(b)) for b in "abc"] == [ahead.state.led_by(BrokerId(b)) for b in "abc"]
    assert not behind.restore(ahead.state.snapshot())


def test_a_restored_state_goes_on_like_the_original() -> None:
    original = Cluster("a", "b", "c")
    original.create(client="x", sequence=1)
    copy = Cluster()
    copy.state.restore(original.state.snapshot())
    copy.lives = dict(original.lives)
    for cluster in (original, copy):
        cluster.die("a")
        cluster.create(client="x", sequence=1)
        cluster.register("a")
        cluster.create("t", ["c b"], client="y", sequence=1)
    assert original.state.snapshot() == copy.state.snapshot()


@pytest.mark.parametrize("data", [b"", b"junk", b"\x08\x02", b"\x08\x01\x5a\x05\x62\x03\x22\x01\x07"])
def test_a_snapshot_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        ClusterState().restore(data)
