"""Which broker may be stopped now, and why the others may not."""

from __future__ import annotations

from metadata.controller.restart_order import restart_order
from tests.unit.metadata.cluster_bench import Cluster
from wire.operations.replica_operations import RestartVerdict
from wire.turns import Turns
from wire.types import BrokerId


def order(cluster: Cluster, *stopping: str, voters: int = 3) -> dict[str, RestartVerdict]:
    found = Turns(restart_order(cluster.state, [BrokerId(each) for each in stopping], voters)).finish()
    return {verdict["broker"]: verdict for verdict in found["brokers"]}


def test_in_a_sound_cluster_each_may_be_stopped_and_the_controller_comes_last() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a"])
    found = order(cluster)
    assert [verdict["may_restart"] for verdict in found.values()] == [True, True, True]
    controllers = [verdict["is_controller"] for verdict in found.values()]
    assert controllers == sorted(controllers)
    assert (found["a"]["leaders"], found["a"]["replicas"]) == (1, 2)
    assert not any(verdict["waits_for"] or verdict["costs"] for verdict in found.values())


def test_a_broker_without_which_a_partition_would_stand_still_waits_for_the_others() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"], config={"min_isr": "2"})
    cluster.alter(cluster.alteration("a b"))
    found = order(cluster)
    assert found["a"]["waits_for"] == ["fewer than min_isr replicas in sync would be left of 1 (s/0)"]
    assert found["b"]["waits_for"] == found["a"]["waits_for"]
    assert found["c"]["may_restart"], "it is in no ISR: nothing gets worse"
    cluster.alter(cluster.alteration("a"))
    assert order(cluster)["a"]["waits_for"] == ["no replica in sync would be left of 1 (s/0)"]
    assert order(cluster)["b"]["may_restart"]


def test_what_no_waiting_helps_is_a_cost_and_no_obstacle() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("one", ["a"])
    cluster.create("both", ["a b"], config={"min_isr": "2"})
    found = order(cluster)["a"]
    assert found["may_restart"]
    assert found["costs"] == [
        "offline while it is down, for there is no other replica: 1 (one/0)",
        "acknowledged publishes are refused while it is down, for min_isr needs all replicas: 1 (both/0)",
    ]


def test_one_broker_at_a_time() -> None:
    cluster = Cluster("a", "b", "c")
    found = order(cluster, "b")
    assert found["a"]["waits_for"] == ["b is about to stop: wait until it is back"]
    assert found["b"]["may_restart"]
    cluster.die("c")
    found = order(cluster)
    assert next(iter(found)) == "c", "it comes first: it is to be started"
    assert found["c"]["waits_for"] == ["c is not alive: start it"]
    assert found["a"]["waits_for"][0] == "c is not alive: one broker at a time"


def test_the_metadata_group_keeps_its_majority() -> None:
    cluster = Cluster("a", "b", "c")
    for broker in "abc":
        assert cluster.state.brokers[BrokerId(broker)].raft_address
    cluster.die("c")
    assert "1 of 3 voters would be left, and the metadata group needs 2" in order(cluster)["a"]["waits_for"]
