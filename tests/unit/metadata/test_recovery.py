"""What a cluster that begins anew after the loss of a majority goes on with."""

from __future__ import annotations

from metadata.recovery import PRODUCER_STEP, STEP, advanced
from metadata.state import ClusterState
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.types import BrokerId


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
