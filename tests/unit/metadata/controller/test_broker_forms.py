"""The list of brokers, as the controller answers it."""

from __future__ import annotations

from metadata.controller.broker_forms import listed_brokers
from tests.unit.metadata.brokers import CREATE, running, until
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId


def test_each_registered_broker_is_listed_with_its_life() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b", "b c"])
    cluster.die("c")
    found = listed_brokers(
        cluster.state,
        stopping=[BrokerId("b")],
        dead_for={BrokerId("c"): 61.26},
        bytes_on_disk={BrokerId("a"): 5, BrokerId("b"): None},
    )
    assert [(each["id"], each["state"], each["dead_for_s"]) for each in found] == [
        ("a", "alive", None),
        ("b", "stopping", None),
        ("c", "dead", 61.3),
    ]
    assert [(each["replicas"], each["leaders"], each["bytes_on_disk"]) for each in found] == [
        (1, 1, 5),
        (2, 1, None),
        (1, 0, None),
    ]


async def test_the_time_of_a_death_is_known_to_the_controller() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        found = (await world.api("broker.list"))["brokers"]
        assert [(each["id"], each["state"], each["replicas"]) for each in found] == [
            ("a", "alive", 3),
            ("b", "alive", 3),
            ("c", "alive", 3),
        ]
        assert sum(each["is_controller"] for each in found) == 1
        await world.brokers["c"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("c")))
        *_, last = (await world.api("broker.list"))["brokers"]
        assert (last["state"], last["leaders"], last["bytes_on_disk"]) == ("dead", 0, None)
        assert 0 <= last["dead_for_s"] < 30
