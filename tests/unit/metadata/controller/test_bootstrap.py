"""Of several brokers that found a cluster one does, and two clusters in one namespace do not obey each other."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from metadata.controller.controller_effects import Effect
from metadata.controller.metadata_settings import MetadataSettings
from metadata.runtime import namespace
from metadata.runtime.namespace import MAX_CLAIM_BYTES, MAX_CLUSTERS
from tests.unit.metadata.brokers import CREATE, SETTINGS, SUBJECTS, Group, World, meet, running, until
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.operations.api_operations import Nothing
from wire.protobuf import metadata_pb2 as pb
from wire.types import (
    BrokerId,
    LeaderReport,
)


async def test_no_cluster_is_founded_beside_a_living_one() -> None:
    async with running("a", "b", "c") as world:
        stranger = World()
        stranger.hub = world.hub
        for name in ("z", "a"):
            broker = await stranger.start(name)
            await until(lambda broker=broker: broker.fatal)  # type: ignore[misc]
            own = world.brokers["a"].service.cluster_id
            assert broker.fatal[0].code is Code.BAD_CONFIG
            assert re.search(f"cluster {own} .*'tidelog'.*--raft-peer.*--namespace", broker.fatal[0].message)
            assert broker.service.cluster_id == ""
            assert broker.recorded == []
            await broker.service.close()
            stranger.group = Group()
        assert [broker.fatal for broker in world.brokers.values()] == [[], [], []]
        assert (await world.api("cluster.status"))["other_clusters"] == []


async def test_of_two_founders_at_once_one_founds() -> None:
    world, rival = World(), World()
    rival.hub = world.hub
    # Both run in this process: when it stands still for the whole wait, neither hears the other.
    patient = replace(SETTINGS, bootstrap_wait_s=1.0)
    one, two = await world.start("a", settings=patient), await rival.start("z", settings=patient)
    try:
        await until(lambda: (one.recorded and two.fatal) or (two.recorded and one.fatal))
        assert bool(one.recorded) != bool(two.recorded)
        founder, other = (one, two) if one.recorded else (two, one)
        assert founder.service.cluster_id in other.fatal[0].message
    finally:
        await one.service.close()
        await two.service.close()


async def test_a_group_that_comes_back_has_its_cluster() -> None:
    async with running("a", "b", "c") as world:
        own = world.brokers["a"].service.cluster_id
        for name in ("a", "b"):
            await world.brokers[name].kill()
        # c answers for the cluster, as its controller, while the others come back: one of them with an empty folder.
        for name in ("a", "b"):
            await world.start(name, life="2")
        for name in ("a", "b"):
            await asyncio.wait_for(world.brokers[name].service.wait_registered(), 30)
            assert world.brokers[name].recorded[-1][0] == own
            assert world.brokers[name].fatal == []


async def test_an_answer_to_a_probe_tells_of_the_brokers_own_connection() -> None:
    async with running("a", "b") as world:
        world.brokers["b"].transport.connected_since -= 5.0
        probe = pb.Probe(controller="a", controller_epoch=1, number=1, cluster_id=world.brokers["a"].service.cluster_id)
        answer = await world.client.request(SUBJECTS.probe(BrokerId("b")), probe.SerializeToString(), timeout=5)
        told = pb.ProbeAnswer.FromString(answer.data)
        assert told.nats_server == "nats-1"
        assert 5000 <= told.connected_ms < 20_000
        world.brokers["b"].transport.connected_since = inf  # the connection was lost meanwhile
        answer = await world.client.request(SUBJECTS.probe(BrokerId("b")), probe.SerializeToString(), timeout=5)
        assert pb.ProbeAnswer.FromString(answer.data).connected_ms == 0


@pytest.mark.parametrize(
    ("server", "age_s", "vouches"), [("nats-1", 10.0, True), ("nats-2", 10.0, False), ("nats-1", 0.1, False)]
)
async def test_brokers_vouch_for_the_controllers_nats_server(server: str, age_s: float, vouches: bool) -> None:
    async with running("a", "b") as world:
        controller, transport = world.brokers["a"].service, world.brokers["b"].transport
        heard: list[bool] = []
        core = controller._context.core
        hear = core.on_probe_answer

        def on_probe_answer(broker: BrokerId, *told: Any, vouches: bool, **more: Any) -> list[Effect]:
            if broker == "b":
                heard.append(vouches)
            return hear(broker, *told, vouches=vouches, **more)

        core.on_probe_answer = on_probe_answer  # type: ignore[method-assign,assignment]
        controller._context.settings = MetadataSettings()
        transport.server_id, transport.connected_since = server, asyncio.get_running_loop().time() - age_s
        await until(lambda: len(heard) > 3)
        assert heard[-1] is vouches


async def test_another_cluster_is_counted_told_and_not_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    async with running("a", "b") as world, running("b", "z") as other:
        await world.api("stream.create", **{**CREATE, "replication_factor": 2})
        mine, foreign = (w.brokers["b"].service for w in (world, other))
        meet(world, other)
        await until(world.brokers["a"].service.namespace.others)
        await until(other.brokers["b"].service.namespace.others)
        # Both controllers probe a broker b: each b answers its own, and both stay alive and have their leases.
        dropped = mine.namespace.dropped, foreign.namespace.dropped
        await until(lambda: mine.namespace.dropped > dropped[0] + 5 and foreign.namespace.dropped > dropped[1])
        now = asyncio.get_running_loop().time()
        for service in (mine, foreign):
            assert service.lease_valid(now)
            assert all(broker.alive for broker in service.state.brokers.values())
        form = await world.brokers["a"].service.admin.cluster_status(Nothing())
        assert [entry["cluster_id"] for entry in form["other_clusters"]] == [foreign.cluster_id]
        counters = {broker["id"]: broker["counters"] or {} for broker in form["brokers"]}
        assert counters["b"]["dropped_of_other_clusters"] > 0
        # The controller of one cluster ignores requests of the other's leaders.
        before = mine.state.generation, foreign.state.generation
        key, view = next(item for item in world.brokers["b"].views.items() if item[1].leader == "b")
        heard = foreign.namespace.dropped
        mine.report_leader(
            LeaderReport(
                key=key, replica=BrokerId("b"), leader=BrokerId("a"), epoch=view.epoch, leader_epoch=view.leader_epoch
            )
        )
        await until(lambda: foreign.namespace.dropped > heard)
        assert (mine.state.generation, foreign.state.generation) == before
        # Nor is a request of the API that names it.
        answer = await world.client.request(
            SUBJECTS.api("stream.list"), b"{}", timeout=5, headers={CLUSTER_HEADER: "neither"}
        )
        refused = TidelogError.from_headers(answer.headers)
        assert refused is not None
        assert refused.code is Code.WRONG_CLUSTER
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert any(foreign.cluster_id in record.getMessage() for record in errors)


async def test_claims_under_ever_new_ids_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running("a") as world:
        mine = world.brokers["a"].service.namespace
        for number in range(100):
            claim = pb.ClusterClaim(broker="x", life_id="x", cluster_id=f"forged-{number}")
            world.client.publish(SUBJECTS.cluster(), [claim.SerializeToString()])
        await until(lambda: mine.dropped == 100)
        assert len(mine.others()) == MAX_CLUSTERS
    assert sum("hears another cluster" in record.getMessage() for record in caplog.records) == MAX_CLUSTERS


async def test_a_founder_whose_questions_do_not_come_back_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.hub.lose = lambda subject: subject == SUBJECTS.cluster()
    broker = await world.start("a")
    # A process that stands still for half of `bootstrap_wait_s` asks anew, and has another reason for a moment.
    why = f"founds no cluster yet: its questions on {SUBJECTS.cluster()} do not come back to it"
    await until(lambda: why in caplog.text)
    await until(lambda: "do not come back" in broker.service.namespace.bootstrap_obstacle)
    await broker.service.close()


async def test_a_founder_that_gives_way_says_to_which_broker(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    broker = await world.start("a")
    claim = pb.ClusterClaim(broker="z", life_id="z", candidate="other", decided=True).SerializeToString()

    def is_reported() -> bool:
        world.client.publish(SUBJECTS.cluster(), [claim])
        why = "founds no cluster yet: broker z is about to found a cluster in this namespace, too, and goes first"
        return why in caplog.text

    await until(is_reported)
    await broker.service.close()


async def test_of_many_claims_the_rest_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the questions is answered all the same, together: a second cluster could be founded beside this one
    else."""
    monkeypatch.setattr(namespace, "MAX_CLAIMS", 3)
    monkeypatch.setattr(namespace, "MAX_QUESTIONS", 4)
    async with running("a", "b") as world:
        driver = world.brokers["a"].service._controller
        context = driver._context
        now = context.monotonic()
        context.monotonic = lambda: now + 1000.0
        monkeypatch.setattr(driver.namespace, "announce", lambda: None)
        before, sent = driver.namespace.dropped, len(world.brokers["a"].transport.sent)
        claim = pb.ClusterClaim(broker="x", life_id="x", cluster_id="other").SerializeToString()
        for _ in range(10):
            driver.on_claim(claim, None, unasked)
        assert (driver.namespace.dropped - before, driver.namespace.dropped_claims) == (3, 7)
        for number in range(10):
            driver.on_claim(claim, f"inbox.{number}", unasked)
        assert (driver.namespace.dropped - before, driver.namespace.dropped_claims) == (7, 13)

        def answers() -> list[str]:
            told = [subject for subject, *_ in world.brokers["a"].transport.sent[sent:]]
            return [subject for subject in told if subject.startswith("inbox.") or subject == SUBJECTS.cluster()]

        one_by_one = [f"inbox.{number}" for number in range(4)]
        assert answers() == one_by_one
        await until(lambda: len(answers()) > 4)
        assert answers() == [*one_by_one, SUBJECTS.cluster()], "one answer for all others"
        driver.on_claim(claim, "inbox.10", unasked)
        await until(lambda: answers() == [*one_by_one, SUBJECTS.cluster(), SUBJECTS.cluster()])
        context.monotonic = lambda: now + 1001.0
        driver.on_claim(claim, None, unasked)
        driver.on_claim(claim, "inbox.11", unasked)
        assert driver.namespace.dropped - before == 9, "a second later"
        assert answers()[-1] == "inbox.11"


async def test_a_founder_hears_a_cluster_that_is_asked_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "MAX_QUESTIONS", 0)
    patient = replace(SETTINGS, bootstrap_wait_s=0.5)
    async with running("b") as world:
        stranger = World()
        stranger.hub = world.hub
        broker = await stranger.start("z", settings=patient)
        try:
            await until(lambda: broker.fatal)
            assert world.brokers["b"].service.cluster_id in broker.fatal[0].message
        finally:
            await broker.service.close()


async def test_a_founder_in_a_flood_waits_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "FLOOD", 20)
    world = World()
    flooding = asyncio.create_task(_flood(world))
    broker = await world.start("a", settings=replace(SETTINGS, bootstrap_wait_s=0.2))
    try:
        await until(lambda: "so much is sent" in broker.service.namespace.bootstrap_obstacle)
        await asyncio.sleep(1.0)
        assert broker.service.cluster_id == ""
        flooding.cancel()
        await until(lambda: broker.service.cluster_id)
    finally:
        flooding.cancel()
        await broker.service.close()


async def _flood(world: World) -> None:
    claim = pb.ClusterClaim(broker="x", life_id="x").SerializeToString()
    while True:
        for _ in range(10):
            world.client.publish(SUBJECTS.cluster(), [claim])
        await asyncio.sleep(0.01)


async def test_a_founder_looks_into_each_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "MAX_CLAIMS", 0)
    world = World()
    broker = await world.start("a", settings=replace(SETTINGS, bootstrap_wait_s=1000.0))
    try:
        driver = broker.service._controller
        await until(lambda: driver._context.core.bootstrap is not None)
        driver.on_claim(pb.ClusterClaim(broker="x", life_id="x").SerializeToString(), None, unasked)
        own = pb.ClusterClaim(broker="a", life_id=driver._context.life_id).SerializeToString()
        asked: list[bool] = []
        driver.on_claim(own, None, lambda: bool(asked.append(True)))  # type: ignore[func-returns-value]
        assert not asked, "it is no question"
        driver.on_claim(own, "inbox", lambda: bool(asked.append(True)))  # type: ignore[func-returns-value]
        assert asked, "whether it is its own question"
        living = pb.ClusterClaim(broker="x", life_id="x", cluster_id="other").SerializeToString()
        driver.on_claim(living, None, unasked)
        await until(lambda: broker.fatal)
        assert "other" in broker.fatal[0].message
    finally:
        await broker.service.close()


async def test_a_claim_that_is_too_long_is_not_decoded() -> None:
    async with running("a") as world:
        driver = world.brokers["a"].service._controller
        dropped, heard = driver._context.messages.dropped, driver.namespace.dropped
        for size in (MAX_CLAIM_BYTES // 2, MAX_CLAIM_BYTES):
            claim = pb.ClusterClaim(broker="x" * size, life_id="x", cluster_id="other")
            driver.on_claim(claim.SerializeToString(), None, unasked)
        assert (driver._context.messages.dropped - dropped, driver.namespace.dropped - heard) == (1, 1)


def unasked() -> bool:
    raise AssertionError("a proof costs more than the claim of a stranger may")
