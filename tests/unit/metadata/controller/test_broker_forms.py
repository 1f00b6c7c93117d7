"""The list of brokers, and the removal of one, as the controller answers them."""

# Rules: R92.

from __future__ import annotations

import asyncio

import pytest

from metadata.controller.broker_forms import listed_brokers
from metadata.runtime.registration import Registration
from tests.unit.metadata.brokers import CREATE, running, until
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Turns
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
    assert not any(each["draining"] for each in found)
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


async def test_a_dead_broker_is_removed_and_its_id_is_free() -> None:
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        with pytest.raises(TidelogError, match="broker d votes in the metadata group"):
            await world.api("broker.remove", broker="d")
        requests = world.brokers["a"].service._context.core.requests
        with pytest.raises(TidelogError, match="broker d is alive"):
            Turns(requests.remove_broker(BrokerId("d"), ["b:1", "c:1"])).finish()
        with pytest.raises(TidelogError, match="broker e is not registered"):
            await world.api("broker.remove", broker="e")
        await world.brokers["d"].kill()
        state = world.brokers["a"].service.state
        await until(lambda: not state.is_alive(BrokerId("d")))
        assert (await world.api("broker.remove", broker="d", dry_run=True)) == {"broker": "d", "removed": False}
        assert BrokerId("d") in state.brokers
        assert (await world.api("broker.remove", broker="d")) == {"broker": "d", "removed": True}
        assert [each["id"] for each in (await world.api("broker.list"))["brokers"]] == ["a", "b", "c"]
        await world.brokers["c"].kill()
        await until(lambda: not state.is_alive(BrokerId("c")))
        with pytest.raises(TidelogError, match=r"c is needed, and stays. It is a replica of 3 \(s/0, s/1, s/2\)"):
            await world.api("broker.remove", broker="c")
        empty = Registration(folder_same=False, page_cache_survived=False, replace=False, raft_address="d:1")
        again = await world.start("d", empty, "2")
        await asyncio.wait_for(again.service.wait_registered(), 30)
        assert not again.fatal
        assert state.is_alive(BrokerId("d"))


async def test_a_voter_is_not_removed_while_the_group_counts_it() -> None:
    async with running("a", "b", "c") as world:
        requests = world.brokers["a"].service._context.core.requests
        for alive in ("a", "c"):
            with pytest.raises(TidelogError, match=f"broker {alive} votes in the metadata group"):
                Turns(requests.remove_broker(BrokerId(alive), ["b:1", "c:1"])).finish()
        await world.brokers["c"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("c")))
        with pytest.raises(TidelogError, match=r"broker c votes in the metadata group \(c:1\)"):
            Turns(requests.remove_broker(BrokerId("c"), ["b:1", "c:1"])).finish()
        assert Turns(requests.remove_broker(BrokerId("c"), ["b:1"])).finish().HasField("remove_broker")


async def test_a_broker_that_is_removed_while_its_process_lives_registers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running("a", "b") as world:
        state, incarnation = world.brokers["a"].service.state, world.brokers["b"].service.incarnation
        assert incarnation is not None
        life = pb.BrokerLife(broker="b", incarnation=incarnation)
        for body in (
            {"brokers_dead": pb.BrokersDead(controller_epoch=state.controller_epoch, brokers=[life])},
            {"remove_broker": pb.RemoveBroker(controller_epoch=state.controller_epoch, broker=life)},
        ):
            world.group.commit(pb.Command(**body).SerializeToString(), world.group.members[0])
        assert BrokerId("b") not in state.brokers
        await until(lambda: state.is_alive(BrokerId("b")))
        assert state.brokers[BrokerId("b")].incarnation > incarnation
        await until(lambda: world.brokers["b"].service.incarnation == state.brokers[BrokerId("b")].incarnation)
        assert "broker b was removed from the cluster, and registers again" in caplog.text
