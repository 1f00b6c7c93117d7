"""What a cluster that begins anew after the loss of a majority goes on with."""

from __future__ import annotations

from dataclasses import replace

from metadata.cluster.cluster_recovery import PRODUCER_STEP, STEP, advanced
from metadata.commands.cluster_state import ClusterState
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, Generation, Incarnation, StreamName


def recovered(cluster: Cluster) -> Cluster:
    state = ClusterState()
    state.restore(advanced(cluster.state.snapshot()))
    cluster.state = state
    return cluster


def test_what_the_lost_decisions_made_is_known_by_its_number() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    known = cluster.key()
    before = cluster.state.generation
    recovered(cluster)
    cluster.register("a")
    cluster.create("t", ["a"])
    state = cluster.state
    lost = Incarnation(before + 1)
    assert state.is_of_lost_decisions(replace(known, stream=StreamName("u"), stream_incarnation=lost), before)
    assert state.is_of_lost_decisions(replace(known, partition=7, partition_incarnation=lost), before)
    assert not any(state.is_of_lost_decisions(key, before) for key in (known, cluster.key(name="t")))
    again = ClusterState()
    again.restore(state.snapshot())
    assert again.is_of_lost_decisions(replace(known, stream_incarnation=lost), before)


def test_a_log_that_a_lost_decision_may_have_placed_on_a_broker_is_known() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    known, before = cluster.key(), cluster.state.generation
    assert not cluster.state.is_of_lost_decisions(known, None)
    recovered(cluster)
    state = cluster.state
    assert state.is_of_lost_decisions(known, Generation(before + 1))
    assert not state.is_of_lost_decisions(known, Generation(state.generation + 1))
    # A log of an earlier process may have been placed by one.
    assert state.is_of_lost_decisions(known, None)
    cluster.delete()
    assert not state.is_of_lost_decisions(known, None)


def test_a_folder_whose_broker_was_registered_by_a_lost_decision_proves_what_it_holds() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c"])
    registered = recovered(cluster).state.generation - STEP + 3
    cluster.register("a", last_incarnation=registered, replace=False)
    cluster.register("b", last_incarnation=registered + 1, folder_same=False, replace=False)
    assert cluster.partition().isr == ("a", "c")
    late = cluster.register("a", last_incarnation=registered, replace=False)
    assert late.code is Code.ID_IN_USE, "it has registered since, and the folder does not know that"


def test_no_number_is_given_out_once_more_and_folders_still_prove_what_they_hold() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    cluster.apply(pb.Command(allocate_producer_ids=pb.AllocateProducerIds(count=7)))
    before, state = cluster.state, ClusterState()
    state.restore(advanced(before.snapshot()))
    assert state.generation == before.generation + STEP
    assert state.controller_epoch == before.controller_epoch + STEP
    assert (state.cluster_id, state.controller, [*state.brokers]) == (before.cluster_id, None, ["a", "b"])
    assert not any(broker.alive for broker in state.brokers.values())
    ((key, partition),) = state.partitions()
    old = before.partition(key)
    assert old is not None
    assert (partition.leader, partition.isr, partition.replicas) == (None, old.isr, old.replicas)
    assert (partition.leader_epoch, partition.epoch) == (old.leader_epoch + STEP, old.epoch + STEP)
    assert state.streams[key.stream].routing_generation == state.generation
    state.check()

    cluster.state = state
    ids = cluster.apply(pb.Command(allocate_producer_ids=pb.AllocateProducerIds(count=1)))
    assert ids.value > PRODUCER_STEP
    cluster.register("b")  # on the folder that it had
    cluster.elect()  # as the controller does when it has waited for a
    assert cluster.partition().leader == "b"
    assert state.brokers[BrokerId("b")].incarnation > STEP
