"""Another replication factor: one command begins it for all partitions, and min ISR follows what is there."""

# Rules: R91.

from __future__ import annotations

from metadata.cluster.model import Stream
from metadata.commands.cluster_state import ClusterState
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code
from wire.types import StreamName


def stream(cluster: Cluster) -> Stream:
    return cluster.state.streams[StreamName("s")]


def copied(cluster: Cluster, number: int) -> None:
    """The partition's reassignment starts, and all of its replicas join the ISR."""
    assert cluster.start(number).items == (None,)
    cluster.alter(cluster.alteration(" ".join(cluster.partition(number).replicas), number=number))
    assert cluster.complete(number).items == (None,)


def of_two(config: dict[str, str] | None = None) -> Cluster:
    cluster = Cluster("a", "b", "c", "d")
    assert cluster.create(assignments=["a b", "b a"], config=config).code is None
    return cluster


GROWN = {0: "a b c", 1: "b a d"}


def test_a_larger_min_isr_counts_when_the_last_partition_has_its_replicas() -> None:
    cluster = of_two()
    assert stream(cluster).min_isr == 1
    assert cluster.alter_factor(3, GROWN).code is None
    assert (stream(cluster).replication_factor, stream(cluster).copies, stream(cluster).min_isr) == (3, 2, 1)
    copied(cluster, 0)
    assert stream(cluster).min_isr == 1
    epoch = cluster.partition(0).epoch
    copied(cluster, 1)
    assert (stream(cluster).copies, stream(cluster).min_isr) == (3, 2)
    assert cluster.partition(0).epoch == epoch + 1, "its replicas hear of it, too"
    assert stream(cluster).view(0).config.min_isr == 2


def test_a_smaller_min_isr_counts_at_once() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b c", "b c a"])
    assert stream(cluster).min_isr == 2
    assert cluster.alter_factor(2, {0: "a b", 1: "b c"}).code is None
    assert (stream(cluster).copies, stream(cluster).min_isr) == (2, 1)
    assert stream(cluster).view(0).config.min_isr == 1
    copied(cluster, 0)
    assert cluster.partition(0).replicas == ("a", "b")


def test_a_min_isr_that_was_given_stays_and_bounds_the_factor() -> None:
    cluster = of_two({"min_isr": "2"})
    cluster.alter_factor(3, GROWN)
    assert stream(cluster).min_isr == 2
    refused = cluster.alter_stream(config={"min_isr": "3"})
    assert refused.code is Code.BAD_CONFIG
    assert "min_isr=3 is above the 2 replicas that each partition of stream s has by now" in refused.message
    for number in (0, 1):
        copied(cluster, number)
    assert stream(cluster).min_isr == 2
    assert cluster.alter_stream(config={"min_isr": "3"}).code is None
    refused = cluster.alter_factor(2, {0: "a b", 1: "b a"})
    assert (refused.code, "min_isr=3 is above the replication factor 2" in refused.message) == (Code.BAD_CONFIG, True)
    assert stream(cluster).replication_factor == 3


def test_a_majority_follows_the_replicas_that_are_there() -> None:
    cluster = Cluster("a", "b", "c", "d", "e")
    cluster.create(assignments=["a b c"], config={"durability": "majority_durable"})
    cluster.alter_factor(5, {0: "a b c d e"})
    assert stream(cluster).min_isr == 2
    copied(cluster, 0)
    assert stream(cluster).min_isr == 3


def test_a_cancelled_growth_leaves_min_isr_and_the_same_command_goes_on() -> None:
    cluster = of_two()
    cluster.alter_factor(3, GROWN)
    copied(cluster, 0)
    assert cluster.cancel_reassignment(1).items == (None,)
    assert (stream(cluster).replication_factor, stream(cluster).copies, stream(cluster).min_isr) == (3, 2, 1)
    assert cluster.alter_factor(3, {1: "b a c"}).code is None
    copied(cluster, 1)
    assert stream(cluster).min_isr == 2


def test_a_growth_that_is_taken_back_copies_nothing() -> None:
    cluster = of_two()
    cluster.alter_factor(3, GROWN)
    assert cluster.alter_factor(2, {0: "a b", 1: "b a"}).code is None
    assert (stream(cluster).replication_factor, stream(cluster).copies) == (2, 2)
    for number in (0, 1):
        cluster.start(number)
        assert cluster.complete(number).items == (None,)
    assert cluster.partition(0).replicas == ("a", "b")


def test_all_partitions_begin_or_none_does() -> None:
    cluster = of_two()
    before = cluster.state.snapshot()
    assert cluster.alter_factor(3, {0: "a b c"}).code is Code.UNAVAILABLE
    assert cluster.alter_factor(3, {0: "a b c", 1: "b a"}).code is Code.UNAVAILABLE
    assert cluster.alter_factor(3, {0: "a b c", 1: "b a a"}).code is Code.UNAVAILABLE
    assert cluster.alter_factor(17, {}).code is Code.BAD_REPLICATION_FACTOR
    assert cluster.alter_factor(3, GROWN, epoch=9).code is Code.NOT_CONTROLLER
    assert cluster.alter_factor(3, GROWN, name="t").code is Code.UNKNOWN_STREAM
    assert cluster.alter_factor(2, {}).code is None
    assert cluster.state.snapshot() == before
    cluster.die("d")
    assert cluster.alter_factor(3, GROWN).code is Code.UNAVAILABLE


def test_pinned_and_strictly_colocated_streams_are_refused_with_the_remedy() -> None:
    cluster = of_two({"placement": "pinned:a,b"})
    refused = cluster.alter_factor(3, GROWN)
    assert refused.code is Code.BAD_CONFIG
    assert "`tidelog stream alter s --config placement=standard`" in refused.message


def test_a_snapshot_keeps_what_is_there() -> None:
    cluster = of_two()
    cluster.alter_factor(3, GROWN)
    restored = ClusterState()
    restored.restore(cluster.state.snapshot())
    assert restored.streams[StreamName("s")].copies == 2
    assert restored.streams[StreamName("s")].min_isr == 1
    assert restored.snapshot() == cluster.state.snapshot()
