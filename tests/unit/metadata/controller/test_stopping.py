"""The leaderships of a broker that is about to stop: which can move, and why the others stay."""

# Rules: R88.

from __future__ import annotations

from metadata.cluster.named_partitions import MAX_NAMED
from metadata.controller.stopping import Leaderships, leaderships
from tests.unit.metadata.cluster_bench import Cluster
from wire.turns import Turns
from wire.types import BrokerId


def found(cluster: Cluster, broker: str, *stopping: str) -> Leaderships:
    return Turns(leaderships(cluster.state, BrokerId(broker), [BrokerId(each) for each in stopping])).finish()


def counts(cluster: Cluster, broker: str, *stopping: str) -> tuple[int, int, int]:
    it = found(cluster, broker, *stopping)
    return it.movable.count, it.alone.count, it.out_of_sync.count


def test_what_can_move_and_what_stays() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a"])
    cluster.create("t", ["a b"])
    cluster.create("u", ["a"])
    assert counts(cluster, "a") == (2, 1, 0)
    assert counts(cluster, "b") == (1, 0, 0)
    assert counts(cluster, "c") == (0, 0, 0)


def test_members_that_are_dead_out_of_sync_or_stopping_take_nothing_over() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"])
    cluster.create("t", ["a b"])
    assert counts(cluster, "a", "b") == (1, 0, 1)
    assert counts(cluster, "a", "b", "c") == (0, 0, 2)
    cluster.alter(cluster.alteration("a"))
    assert counts(cluster, "a") == (1, 0, 1), "the other members have left the ISR"
    cluster.die("b")
    assert counts(cluster, "a") == (0, 0, 2)


def test_a_few_are_named_and_all_are_counted() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a"] * (MAX_NAMED + 2))
    alone = found(cluster, "a").alone
    assert len(alone.named) == MAX_NAMED
    assert str(alone).startswith(f"{MAX_NAMED + 2} (s/0, s/1, ")
    assert str(alone).endswith(", …)")
