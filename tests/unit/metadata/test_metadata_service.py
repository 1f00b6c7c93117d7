"""The asyncio driver over an in-process hub in place of NATS, and a group in place of Raft that applies at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from random import Random
from typing import Any, get_type_hints

import pytest

from metadata.controller import ControllerCore
from metadata.effects import Effect
from metadata.model import Outcome
from metadata.raft.types import (
    CommandTooLarge,
    RaftApplyFailed,
    RaftError,
    RaftOutcomeUnknown,
    RaftRole,
    RaftStatus,
    RaftUnavailable,
    StateMachine,
)
from metadata.references import ref_of
from metadata.runtime.namespace import MAX_CLUSTERS
from metadata.runtime.registration import Registration
from metadata.runtime.service import MetadataService
from metadata.settings import MetadataSettings
from tests.fake_nats import FakeTransport, Hub
from tidelog.server.api import Api
from wire import metadata_pb2 as pb
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.operation import ALWAYS_POSSIBLE
from wire.operations import OPERATIONS, Nothing
from wire.reports import BrokerReport, ReplicaReport, StreamReport
from wire.subjects import Subjects
from wire.transport import NO_RESPONDERS, Message
from wire.types import (
    BrokerId,
    DrainAnswer,
    Incarnation,
    IsrChange,
    IsrMember,
    LeaderMove,
    LeaderReport,
    PartitionGone,
    PartitionKey,
    PartitionView,
    Room,
    StreamName,
    Withdrawal,
)

SUBJECTS = Subjects()
SETTINGS = MetadataSettings(
    liveness_grace_s=0.001, heartbeat_interval_s=0.02, retry_interval_s=0.01, founding_wait_s=0.05
)


class Group:
    """Raft without faults, except the ones that a test asks for: the first member that starts leads."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.log: list[bytes] = []
        self.lose_outcomes = 0
        self.unavailable = 0
        self.refusals: list[RaftError] = []

    def commit(self, command: bytes, by: Member) -> object:
        if self.unavailable:
            self.unavailable -= 1
            raise RaftUnavailable("no leader")
        if self.refusals and pb.Command.FromString(command).HasField("register_broker"):
            raise self.refusals.pop()
        self.log.append(command)
        result: object = None
        for member in self.members:
            outcome = member.machine.apply(command)
            if member is by:
                result = outcome
        if self.lose_outcomes:
            self.lose_outcomes -= 1
            raise RaftOutcomeUnknown("lost")
        return result


class Member:
    def __init__(
        self,
        group: Group,
        address: str,
        machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
    ) -> None:
        self.group, self.address, self.machine = group, address, machine
        self.on_status, self.on_peer_lost = on_status, on_peer_lost

    async def start(self) -> None:
        for command in self.group.log:
            self.machine.apply(command)
        self.group.members.append(self)

    async def close(self) -> None:
        if self in self.group.members:
            self.group.members.remove(self)
            for member in self.group.members:
                member.on_peer_lost(self.address)
                member.on_status(member.status())

    def hand_over(self) -> bool:
        return False

    async def propose(self, command: bytes, *, timeout: float) -> object:
        assert timeout > 0
        await asyncio.sleep(0)
        return self.group.commit(command, self)

    def status(self) -> RaftStatus:
        leads = bool(self.group.members) and self.group.members[0] is self
        return RaftStatus(
            role=RaftRole.LEADER if leads else RaftRole.FOLLOWER,
            leader=None,
            term=1,
            commit_index=1,
            applied_index=1,
            has_quorum=True,
            connected=tuple(member.address for member in self.group.members if member is not self),
        )


class Broker:
    """A broker without logs: the service's `BrokerPort`."""

    def __init__(
        self,
        world: World,
        name: str,
        registration: Registration | None = None,
        life: str = "1",
        settings: MetadataSettings = SETTINGS,
    ) -> None:
        self.id = BrokerId(name)
        self.transport = FakeTransport(world.hub, connected_since=asyncio.get_running_loop().time())
        self.views: dict[PartitionKey, PartitionView] = {}
        self.gone: list[PartitionKey] = []
        self.recorded: list[tuple[str, Incarnation]] = []
        self.fatal: list[TidelogError] = []
        self.too_early = False
        self.calls = 0
        self.asked: list[tuple[LeaderMove, float]] = []
        """Leaderships that it was asked to drain; `answers` says how that ended."""
        self.answers: list[DrainAnswer] = []
        self.reports: list[ReplicaReport] | None = None
        """In place of reports of the replicas that it leads."""
        self.service = MetadataService(
            broker_id=self.id,
            life_id=f"{name}-{life}",
            port=self,
            make_raft=lambda *arguments: Member(world.group, f"{name}:1", *arguments),
            transport=self.transport,
            subjects=SUBJECTS,
            settings=settings,
            rng=Random(name),
            monotonic=asyncio.get_running_loop().time,
            registration=registration
            or Registration(
                folder_same=True, page_cache_survived=True, raft_address=f"{name}:1", labels={"zone": name}
            ),
        )
        self.totals = BrokerReport()
        self.serve: Callable[[bool], Awaitable[None]] = Api(self.service, self.transport, SUBJECTS).on_controller

    def on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        self.recorded.append((cluster_id, incarnation))

    def on_fatal(self, error: TidelogError) -> None:
        self.fatal.append(error)

    async def on_controller(self, is_controller: bool) -> None:
        await self.serve(is_controller)

    def broker_report(self) -> BrokerReport:
        return self.totals

    def room(self) -> Room:
        return Room.AMPLE

    def disk_hangs(self) -> bool:
        return False

    def drain_leader(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        self.asked.append((move, timeout))
        self.answers.append(answer)

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        self.too_early = self.too_early or not self.recorded
        self.calls += 1
        for change in changes:
            if isinstance(change, PartitionView):
                self.views[change.key] = change
            else:
                self.gone.append(change.key)
                self.views.pop(change.key)

    def stream_report(self, stream: StreamName, story_of: int | None) -> StreamReport:
        if self.reports is not None:
            return {"partitions": self.reports}
        return {
            "partitions": [
                {
                    "partition": key.partition,
                    "incarnation": key.partition_incarnation,
                    "leader_epoch": view.leader_epoch,
                    "log_start_offset": 0,
                    "log_end_offset": 7,
                    "high_watermark": 6,
                    "replicas_progress": {self.id: {"log_end_offset": 7, "in_sync": True}},
                    "story": [{"seconds_ago": 1.5, "event": "leads", "times": 1}] if story_of == key.partition else [],
                }
                for key, view in self.views.items()
                if key.stream == stream and view.leader == self.id
            ]
        }

    async def kill(self) -> None:
        self.service._context.closed = True
        self.service._context.tasks.end()
        self.transport.cut()
        await self.service._raft.close()


class World:
    def __init__(self) -> None:
        self.hub, self.group = Hub(), Group()
        self.brokers: dict[str, Broker] = {}
        self.client = FakeTransport(self.hub)

    async def start(
        self,
        name: str,
        registration: Registration | None = None,
        life: str = "1",
        settings: MetadataSettings = SETTINGS,
    ) -> Broker:
        broker = self.brokers[name] = Broker(self, name, registration, life, settings)
        await broker.service.start()
        return broker

    async def api(self, endpoint: str, **body: Any) -> Any:
        async with asyncio.timeout(5):
            while True:
                answer = await self.client.request(SUBJECTS.api(endpoint), json.dumps(body).encode(), timeout=5)
                if answer.status != NO_RESPONDERS:
                    operation, error = OPERATIONS[endpoint], TidelogError.from_headers(answer.headers)
                    if error is not None:
                        assert json.loads(answer.data)["error"]["code"] == error.code.name
                        assert error.code in (*operation.refusals, *ALWAYS_POSSIBLE)
                        raise error
                    assert operation.decode_answer(answer.data, None).keys() == get_type_hints(operation.answer).keys()
                    return json.loads(answer.data)
                await asyncio.sleep(0.001)

    async def one_partition(self, **config: str) -> tuple[PartitionView, Broker]:
        """Of stream `s`, and its leader; every broker knows of it."""
        await self.api("stream.create", **(CREATE | {"partitions": 1, "config": config}))
        await until(lambda: all(broker.views for broker in self.brokers.values()))
        view = self.view()
        return view, self.brokers[str(view.leader)]

    def view(self, partition: int = 0, by: str = "a") -> PartitionView:
        return next(view for key, view in self.brokers[by].views.items() if key.partition == partition)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is another component's state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*names: str) -> AsyncIterator[World]:
    world = World()
    for name in names:
        await world.start(name)
    for broker in world.brokers.values():
        await asyncio.wait_for(broker.service.wait_registered(), 5)
    try:
        yield world
    finally:
        for broker in world.brokers.values():
            if not broker.service._context.closed:
                await broker.service.close()


def meet(one: World, other: World) -> None:
    """Messages of each are heard in the other from now on, as when two parts of NATS are connected."""
    for subject, entries in other.hub.handlers.items():
        one.hub.handlers.setdefault(subject, []).extend(entries)
    for transport in (other.client, *(broker.transport for broker in other.brokers.values())):
        transport.hub = one.hub
    other.hub = one.hub


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
    patient = replace(SETTINGS, founding_wait_s=1.0)
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
            await asyncio.wait_for(world.brokers[name].service.wait_registered(), 5)
            assert world.brokers[name].recorded[-1][0] == own
            assert world.brokers[name].fatal == []


async def test_an_answer_to_a_probe_tells_of_the_brokers_own_connection() -> None:
    async with running("a", "b") as world:
        world.brokers["b"].transport.connected_since -= 5.0
        probe = pb.Probe(controller="a", office=1, number=1, cluster_id=world.brokers["a"].service.cluster_id)
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

        def on_probe_answer(broker: BrokerId, *told: Any, vouches: bool) -> list[Effect]:
            if broker == "b":
                heard.append(vouches)
            return hear(broker, *told, vouches=vouches)

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
    await until(lambda: "founds no cluster yet" in caplog.text)
    assert f"its questions on {SUBJECTS.cluster()} do not come back to it" in caplog.text
    assert "do not come back" in broker.service.namespace.founding_obstacle
    await broker.service.close()


async def test_a_founder_that_gives_way_says_to_which_broker(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    broker = await world.start("a")
    claim = pb.ClusterClaim(broker="z", life_id="z", candidate="other", decided=True).SerializeToString()

    def is_told() -> bool:
        world.client.publish(SUBJECTS.cluster(), [claim])
        return "founds no cluster yet" in caplog.text

    await until(is_told)
    assert "broker z is about to found a cluster in this namespace, too, and goes first" in caplog.text
    await broker.service.close()


CREATE = {"name": "s", "subject": "s", "partitions": 3, "replication_factor": 3, "config": {}}


async def test_brokers_register_and_record_their_incarnation_before_anything_else() -> None:
    async with running("a", "b", "c") as world:
        for name, broker in world.brokers.items():
            assert broker.recorded == [(broker.service.cluster_id, broker.service.incarnation)], name
        assert world.brokers["a"].service.is_controller


async def test_a_new_stream_reaches_its_replicas_and_is_described_with_progress() -> None:
    async with running("a", "b", "c") as world:
        form = await world.api("stream.create", **CREATE)
        assert [partition["log_end_offset"] for partition in form["partitions"]] == [7, 7, 7]
        assert sorted(partition["leader"] for partition in form["partitions"]) == ["a", "b", "c"]
        await until(lambda: all(len(broker.views) == 3 for broker in world.brokers.values()))
        assert (await world.api("stream.list"))["streams"][0]["name"] == "s"
        known = await world.api("metadata", stream="s")
        assert [partition["leader_epoch"] for partition in known["partitions"]] == [1, 1, 1]
        assert await world.api("stream.delete", name="s") == {}
        await until(lambda: all(len(broker.gone) == 3 for broker in world.brokers.values()))
        with pytest.raises(TidelogError, match="'s' does not exist"):
            await world.api("stream.describe", name="s")


async def test_a_leader_that_does_not_answer_leaves_nulls_in_a_description() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        world.hub.lose = lambda subject: subject == SUBJECTS.broker_status(BrokerId("b"))
        form = await world.api("stream.describe", name="s")
        assert {p["leader"]: p["high_watermark"] for p in form["partitions"]} == {"a": 6, "b": None, "c": 6}


async def test_a_broker_whose_status_no_message_has_room_for_says_so() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        b = world.brokers["b"]
        b.reports = [{"partition": n, "failed": "." * 1000} for n in range(2000)]
        b.totals = {"failed": ["s/0" * 1000] * 1000}
        form = await world.api("stream.describe", name="s")
        assert {p["leader"]: p["high_watermark"] for p in form["partitions"]} == {"a": 6, "b": None, "c": 6}
        assert list(form["refusals"]) == ["b"]
        assert "the status of broker b takes a message of" in form["refusals"]["b"]
        brokers = {broker["id"]: broker for broker in (await world.api("cluster.status"))["brokers"]}
        assert {name: broker["counters"] is None for name, broker in brokers.items()} == {
            "a": False, "b": True, "c": False
        }  # fmt: skip
        assert "raise max_payload" in brokers["b"]["refusal"]


async def test_a_description_that_no_message_has_room_for_is_an_error_to_the_requester() -> None:
    async with running("a") as world:
        await world.api("stream.create", name="s", partitions=8, replication_factor=1)
        world.brokers["a"].transport.max_payload = 2000
        with pytest.raises(TidelogError, match=r"the answer to tidelog\.api\.stream\.describe takes") as caught:
            await world.api("stream.describe", name="s")
        assert caught.value.code is Code.MESSAGE_TOO_LARGE
        assert "raise max_payload" in caught.value.message


async def test_the_cluster_status_counts_and_carries_labels() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await until(lambda: len(world.brokers["a"].service._controller._labels) == 3)
        status = await world.api("cluster.status")
        assert status["controller"] == "a"
        assert (status["streams"], status["partitions"], status["offline_partitions"]) == (1, 3, 0)
        assert [broker["labels"] for broker in status["brokers"]] == [{"zone": "a"}, {"zone": "b"}, {"zone": "c"}]
        assert [broker["leaders"] for broker in status["brokers"]] == [1, 1, 1]


async def test_the_cluster_status_counts_the_dropped_messages_of_each_broker() -> None:
    async with running("a", "b", "c") as world:
        world.brokers["b"].totals = {"failed": ["s/0"], "counters": {"dropped_too_large": 3}}
        for subject in (SUBJECTS.probe(BrokerId("b")), SUBJECTS.broker_status(BrokerId("b"))):
            with contextlib.suppress(TimeoutError):
                await world.client.request(subject, b"\xff", timeout=0.05)
        await world.client.request(SUBJECTS.api("stream.create"), b"{", timeout=5)
        world.hub.lose = lambda subject: subject == SUBJECTS.broker_status(BrokerId("c"))
        a, b, c = (await world.api("cluster.status"))["brokers"]
        assert a["counters"] == {
            "dropped_metadata_messages": 0,
            "dropped_of_other_clusters": 0,
            "refused_api_requests": 1,
        }
        assert b["counters"] == {
            "dropped_too_large": 3,
            "dropped_metadata_messages": 2,
            "dropped_of_other_clusters": 0,
            "refused_api_requests": 0,
        }
        assert b["failed"] == ["s/0"]
        assert (c["alive"], c["counters"], c["failed"]) == (True, None, None), "it did not answer"


async def test_a_report_that_is_none_counts_for_nothing() -> None:
    async with running("a", "b") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "replication_factor": 2})
        wrong: Any = {"partitions": [{"partition": "zero"}], "counters": {"records_in": "many"}}
        world.brokers["b"].reports, world.brokers["b"].totals = wrong["partitions"], wrong
        partitions = (await world.api("stream.describe", name="s"))["partitions"]
        assert {part["leader"]: part["log_end_offset"] for part in partitions} == {"a": 7, "b": None}
        told = {each["id"]: each["counters"] for each in (await world.api("cluster.status"))["brokers"]}
        assert told["a"] is not None
        assert told["b"] is None


async def test_a_broker_is_described_with_every_replica_that_it_holds() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "config": {"min_isr": "1"}})
        (listed,) = [each for each in (await world.api("cluster.status"))["brokers"] if each["id"] == "b"]
        form = await world.api("broker.describe", broker="b")
        held = form.pop("held")
        assert form.keys() == listed.keys()
        assert [(each["stream"], each["partition"], each["standing"]) for each in held] == [
            ("s", 0, "isr"),
            ("s", 1, "isr"),
        ]
        assert [each["leads"] for each in held] == [world.view(number).leader == "b" for number in range(2)]
        assert all((sorted(each["isr"]), each["min_isr"]) == (["a", "b", "c"], 1) for each in held)
        await world.brokers["c"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("c")))
        dead = await world.api("broker.describe", broker="c")
        assert (dead["alive"], dead["counters"], [each["standing"] for each in dead["held"]]) == (
            False,
            None,
            ["out of sync"] * 2,
        )
        with pytest.raises(TidelogError, match="broker 'd' is not registered; those that are: a, b, c"):
            await world.api("broker.describe", broker="d")


async def test_the_story_of_a_partition_is_that_of_each_replica() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "config": {"min_isr": "1"}})
        form = await world.api("partition.story", stream="s", partition=1)
        leader = world.view(1).leader
        assert {(each["broker"], each["leads"], each["standing"]) for each in form["replicas"]} == {
            (broker, broker == leader, "isr") for broker in "abc"
        }
        told = {each["broker"]: each["events"] for each in form["replicas"]}
        assert told.pop(leader) == [{"seconds_ago": 1.5, "event": "leads", "times": 1}]
        assert set(told.values()) == {None}, "the fakes of followers report nothing"
        with pytest.raises(TidelogError, match="stream s has no partition 2"):
            await world.api("partition.story", stream="s", partition=2)


async def test_producer_ids_differ() -> None:
    async with running("a") as world:
        ids = [(await world.api("producer.init"))["producer_id"] for _ in range(3)]
        assert len({*ids}) == 3


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 1_000_000, b"[]", b'{"name": 3, "subject": "x"}', b'{"name": "x", "partitions": true}']
)
async def test_a_request_that_cannot_be_read_is_refused(body: bytes) -> None:
    async with running("a") as world:
        answer = await world.client.request(SUBJECTS.api("stream.create"), body, timeout=5)
        error = TidelogError.from_headers(answer.headers)
        assert error is not None
        assert error.code is Code.BAD_REQUEST


async def test_a_killed_leader_is_replaced_and_leaves_the_isr() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["b"].kill()
        await until(lambda: all(view.leader != "b" for view in world.brokers["a"].views.values()))
        await until(lambda: all("b" not in view.isr for view in world.brokers["c"].views.values()))


async def test_a_killed_controller_is_replaced() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["a"].kill()
        await until(lambda: world.brokers["b"].service.is_controller)
        await until(lambda: all(view.leader != "a" for view in world.brokers["c"].views.values()))
        assert (await world.api("cluster.status"))["controller"] == "b"


async def test_a_broker_that_finds_itself_declared_dead_registers_again_with_proof() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        service = world.brokers["b"].service
        first = service.incarnation
        assert first is not None
        state = world.brokers["a"].service.state
        dead = pb.BrokersDead(office=state.controller_epoch, brokers=[pb.BrokerLife(broker="b", incarnation=first)])
        world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), world.group.members[0])
        await until(lambda: service.incarnation is not None and service.incarnation > first)
        assert [incarnation for _, incarnation in world.brokers["b"].recorded] == [first, service.incarnation]
        assert world.brokers["b"].fatal == []


async def test_a_broker_declared_dead_before_it_heard_of_its_registration_keeps_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 1, "config": {"min_isr": "3"}}))
        await until(lambda: world.brokers["c"].views)
        _, incarnation = world.brokers["c"].recorded[-1]
        await world.brokers["c"].kill()
        await until(lambda: BrokerId("c") in world.view().eligible)
        commit = Group.commit
        declared_dead: list[object] = []

        def declaring_dead(group: Group, command: bytes, by: Member) -> object:
            result = commit(group, command, by)
            message = pb.Command.FromString(command)
            if message.HasField("register_broker") and not declared_dead:
                state = world.brokers["a"].service.state
                life = pb.BrokerLife(broker="c", incarnation=state.brokers[BrokerId("c")].incarnation)
                dead = pb.Command(brokers_dead=pb.BrokersDead(office=state.controller_epoch, brokers=[life]))
                declared_dead.append(commit(group, dead.SerializeToString(), by))
            return result

        monkeypatch.setattr(Group, "commit", declaring_dead)
        returned = await world.start(
            "c",
            Registration(folder_same=True, page_cache_survived=True, last_incarnation=incarnation, raft_address="c:1"),
            life="2",
        )
        await asyncio.wait_for(returned.service.wait_registered(), 5)
        assert declared_dead
        assert BrokerId("c") in world.view(by="c").eligible


async def test_a_second_process_under_the_same_id_ends_the_first() -> None:
    async with running("a", "b") as world:
        first = world.brokers["b"]
        await world.start("b", life="2")
        await until(lambda: first.fatal)
        assert "another process" in first.fatal[0].message
        await first.service.close()


async def test_a_folder_of_another_cluster_is_fatal() -> None:
    async with running("a") as world:
        registration = Registration(folder_same=True, page_cache_survived=True, cluster_id="elsewhere")
        stranger = await world.start("b", registration)
        await until(lambda: stranger.fatal)
        assert "elsewhere" in stranger.fatal[0].message


async def test_a_restarted_broker_acts_on_no_partition_before_its_registration() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        world.group.unavailable = 3
        again = await world.start("c", life="2")
        await asyncio.wait_for(again.service.wait_registered(), 5)
        assert len(again.views) == 3
        assert not again.too_early
        assert all(view.leader != "c" for view in again.views.values())


async def test_a_broker_whose_streams_were_deleted_while_it_was_down_is_told_that_it_has_none() -> None:
    """Else their folders would stay: only folders that the first call does not name are removed."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        await world.api("stream.delete", name="s")
        again = await world.start("c", life="2")
        await asyncio.wait_for(again.service.wait_registered(), 5)
        assert (again.calls, again.views, again.gone) == (1, {}, [])
        assert not again.too_early


async def test_a_registration_survives_lost_outcomes_and_a_missing_leader() -> None:
    world = World()
    world.group.lose_outcomes, world.group.unavailable = 2, 2
    broker = await world.start("a")
    await asyncio.wait_for(broker.service.wait_registered(), 5)
    assert len(broker.recorded) == 1
    await broker.service.close()


async def test_altered_settings_reach_every_replica_and_no_leader_epoch_ends() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await until(lambda: all(broker.views for broker in world.brokers.values()))
        before = {key: view.leader_epoch for key, view in world.brokers["a"].views.items()}
        form = await world.api("stream.alter", name="s", config={"confirm_timeout_ms": "700", "min_isr": "1"})
        assert (form["config"]["confirm_timeout_ms"], form["config"]["min_isr"]) == ("700", "1")
        await until(
            lambda: all(
                (view.config.confirm_timeout_ms, view.config.min_isr) == (700, 1)
                for broker in world.brokers.values()
                for view in broker.views.values()
            )
        )
        assert {key: view.leader_epoch for key, view in world.brokers["a"].views.items()} == before
        form = await world.api("stream.alter", name="s", unset=["min_isr"])
        assert form["config"]["min_isr"] == "2"


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        ({"name": "nosuch", "config": {"compact": "true"}}, Code.UNKNOWN_STREAM, "nosuch"),
        ({"name": "s"}, Code.BAD_REQUEST, "name a setting"),
        ({"name": "s", "config": {"compact": True}}, Code.BAD_REQUEST, "config.compact is true, not a text"),
        ({"name": "s", "unset": "compact"}, Code.BAD_REQUEST, 'unset is "compact", not a list'),
        ({"name": "s", "config": {"min_isr": "4"}}, Code.BAD_CONFIG, "replication factor 3"),
        ({"name": "s", "config": {"durability": "accepted"}}, Code.BAD_CONFIG, "while the stream lives"),
    ],
)
async def test_an_alteration_that_cannot_be_is_refused(request_: dict[str, Any], code: Code, text: str) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        with pytest.raises(TidelogError, match=text) as refused:
            await world.api("stream.alter", **request_)
        assert refused.value.code is code


async def test_defaults_of_the_cluster_are_for_streams_to_come() -> None:
    async with running("a", "b", "c") as world:
        answer = await world.api("cluster.alter", config={"durability": "majority_durable"})
        assert answer == {"config": {"durability": "majority_durable"}}
        form = await world.api("stream.create", **CREATE)
        assert form["config"]["durability"] == "majority_durable"
        assert (await world.api("cluster.status"))["config"] == {"durability": "majority_durable"}
        assert await world.api("cluster.alter", unset=["durability"]) == {"config": {}}


async def test_a_create_whose_outcome_was_lost_is_not_repeated() -> None:
    async with running("a", "b", "c") as world:
        world.group.lose_outcomes = 1
        form = await world.api("stream.create", **CREATE)
        assert form["name"] == "s"


def isr_change(view: PartitionView, *members: tuple[str, Incarnation | None]) -> IsrChange:
    assert view.leader is not None
    return IsrChange(
        key=view.key,
        leader=view.leader,
        leader_epoch=view.leader_epoch,
        expected_epoch=view.epoch,
        new_isr=tuple(IsrMember(BrokerId(name), incarnation or Incarnation(0)) for name, incarnation in members),
        reason="test",
    )


async def test_an_isr_change_is_repeated_until_it_is_applied() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.alter_isr() or len(lost) == 3:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        others = [broker for broker in "abc" if broker != view.leader]
        leader.service.alter_isr(
            isr_change(view, *((name, world.brokers[name].service.incarnation) for name in (leader.id, others[0])))
        )
        await until(lambda: others[1] not in world.view().isr)
        assert len(lost) == 3
        assert leader.service.status()["open_wishes"] == 0


async def test_a_stale_isr_change_is_forgotten() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        world.hub.lose = lambda subject: subject == SUBJECTS.alter_isr()
        leader.service.alter_isr(isr_change(view, (leader.id, leader.service.incarnation)))
        state = world.brokers["a"].service.state
        follower = next(broker for broker in view.replicas if broker != view.leader)
        withdrawal = pb.WithdrawReplica(
            partition=pb.PartitionRef(
                stream="s",
                stream_incarnation=view.key.stream_incarnation,
                partition_incarnation=view.key.partition_incarnation,
            ),
            broker=follower,
            incarnation=state.brokers[follower].incarnation,
            expected_epoch=view.epoch,
        )
        command = pb.Command(withdraw=pb.Withdraw(items=[withdrawal]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        await until(lambda: leader.service.status()["open_wishes"] == 0)


async def test_a_withdrawal_is_repeated_in_whatever_epoch_until_the_replica_is_out() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        stale = Withdrawal(key=view.key, broker=leader.id, expected_epoch=view.epoch, reason="bad CRC")
        follower = next(broker for broker in "abc" if broker != leader.id)
        world.brokers[follower].service.withdraw(
            Withdrawal(key=view.key, broker=BrokerId(follower), expected_epoch=view.epoch, reason="bad CRC")
        )
        leader.service.withdraw(stale)
        await until(lambda: len(world.view().isr) == 1)
        assert world.view().leader not in (None, leader.id, follower)


async def test_a_report_reaches_the_controller() -> None:
    async with running("a", "b", "c") as world:
        view, _ = await world.one_partition()
        assert view.leader is not None
        for follower in (broker for broker in "abc" if broker != view.leader):
            world.brokers[follower].service.report_leader(
                LeaderReport(
                    key=view.key,
                    replica=BrokerId(follower),
                    leader=view.leader,
                    epoch=view.epoch,
                    leader_epoch=view.leader_epoch,
                )
            )
        await until(lambda: world.view().leader != view.leader)


async def test_a_broker_that_is_probed_has_a_lease_until_it_is_not_probed_any_more() -> None:
    async with running("a", "b") as world:
        service = world.brokers["b"].service
        now = asyncio.get_running_loop().time
        await until(lambda: service.lease_valid(now()))
        assert not service.lease_valid(now() + SETTINGS.leader_lease_s)


async def test_answers_of_a_process_that_is_not_registered_do_not_keep_the_life_before_it_alive() -> None:
    async with running("a", "b", "c") as world:
        known = world.brokers["a"].service.state.brokers
        await world.brokers["b"].kill()
        stranger = FakeTransport(world.hub)

        def answer(message: Message) -> None:
            number = pb.Probe.FromString(message.data).number
            said = pb.ProbeAnswer(broker="b", life_id="b-2", number=number, generation=1)
            assert message.reply is not None
            stranger.publish(message.reply, [said.SerializeToString()])

        await stranger.subscribe(SUBJECTS.probe(BrokerId("b")), answer)
        await until(lambda: not known[BrokerId("b")].alive)


async def test_a_process_whose_id_was_taken_ends_although_the_other_has_died_since() -> None:
    async with running("a", "b") as world:
        first, leader = world.brokers["b"], world.group.members[0]
        state = world.brokers["a"].service.state
        register = pb.RegisterBroker(broker="b", life_id="b-2", cluster_id=state.cluster_id)
        world.group.commit(pb.Command(register_broker=register).SerializeToString(), leader)
        life = pb.BrokerLife(broker="b", incarnation=state.brokers[BrokerId("b")].incarnation)
        dead = pb.BrokersDead(office=state.controller_epoch, brokers=[life])
        world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), leader)
        await until(lambda: first.fatal)
        assert "another process" in first.fatal[0].message


async def test_a_registration_that_raft_refuses_for_good_is_tried_again() -> None:
    world = World()
    world.group.refusals = [RaftApplyFailed("a bug"), CommandTooLarge("too large")]
    broker = await world.start("a")
    await asyncio.wait_for(broker.service.wait_registered(), 5)
    await broker.service.close()


@pytest.mark.parametrize("step", ["on_registered", "on_partitions"])
async def test_a_broker_that_cannot_take_its_registration_or_its_partitions_over_ends(step: str) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        again = world.brokers["c"] = Broker(world, "c", life="2")

        def fail(*_: object) -> None:
            raise OSError("the disk is gone")

        setattr(again, step, fail)
        await again.service.start()
        await until(lambda: again.fatal)
        assert "the disk is gone" in again.fatal[0].message


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[World, Broker, str]]:
    """A stream of one partition on three brokers: its leader, and the broker that is to lead."""
    async with running("a", "b", "c") as world:
        _, leader = await world.one_partition()
        target = next(broker for broker in "cba" if broker != leader.id)
        yield world, leader, target


async def test_a_leader_drains_before_the_target_of_a_move_is_elected() -> None:
    async with moving() as (world, leader, target):
        before = world.view()
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        ((move, timeout),) = leader.asked
        assert (move.key, move.leader_epoch, move.target) == (before.key, before.leader_epoch, target)
        assert SETTINGS.drain_timeout_s - 1 < timeout < SETTINGS.drain_timeout_s, "what is left of it"
        assert world.view() == before, "nothing is decided before the leader is ready"
        leader.answers[0](None)
        form = await asking
        assert (form["stream"], form["leader"], form["leader_epoch"]) == ("s", target, before.leader_epoch + 1)
        assert form["log_end_offset"] == 7, "the new leader serves"
        assert world.view().isr == before.isr
        assert leader.id in before.isr


@pytest.mark.parametrize("stood_still", [SETTINGS.drain_timeout_s, SETTINGS.leader_lease_s])
async def test_a_request_to_drain_that_lay_unread_is_refused(stood_still: float) -> None:
    async with moving() as (world, leader, target):
        now = asyncio.get_running_loop().time
        unread: list[Message] = []
        subject = SUBJECTS.drain(leader.id)
        ((_, handler),) = world.hub.handlers[subject]
        world.hub.handlers[subject] = [(None, unread.append)]
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: unread)
        leader.service._context.monotonic = lambda: now() + stood_still
        handler(unread[0])
        with pytest.raises(TidelogError, match=f"{leader.id} read the request to hand over s/0 too late") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED
        assert leader.asked == []
        leader.service._context.monotonic = now


@pytest.mark.parametrize("lacks", ["office", "answered"])
async def test_a_request_to_drain_that_cannot_be_told_from_an_old_one_is_refused(lacks: str) -> None:
    async with moving() as (world, leader, target):
        service = leader.service
        controller = next(broker.service for broker in world.brokers.values() if broker.service.is_controller)
        request = pb.DrainRequest(
            partition=ref_of(world.view().key),
            leader_epoch=1,
            target=target,
            timeout_ms=2000,
            office=controller.state.controller_epoch - (lacks == "office"),
            answered=0 if lacks == "answered" else controller._context.core.newest_answer(BrokerId(leader.id)),
            cluster_id=controller.cluster_id,
        )
        service._requests._on_drain_request(Message("drain", request.SerializeToString(), "_INBOX.x"))
        assert leader.asked == []


async def test_a_leader_that_cannot_hand_over_is_the_operators_error_and_nothing_changes() -> None:
    async with moving() as (world, leader, target):
        before, log = world.view(), len(world.group.log)
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        leader.answers[0](TidelogError(Code.LEADER_NOT_MOVED, "the target did not get to its end"))
        with pytest.raises(TidelogError, match="did not get to its end") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED
        assert (world.view(), len(world.group.log)) == (before, log)


@pytest.mark.parametrize("silence", ["nobody listens", "no answer"])
async def test_a_leader_that_says_nothing_is_not_waited_for_for_ever(
    silence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.runtime.moves.ANSWER_MARGIN_S", 0.1 - SETTINGS.drain_timeout_s)
    async with moving() as (world, leader, target):
        subject = SUBJECTS.drain(leader.id)
        if silence == "nobody listens":
            world.hub.handlers[subject].clear()
        with pytest.raises(TidelogError, match=rf"its leader {leader.id} .*; {leader.id} leads it, in LeaderEpoch 1"):
            await world.api("partition.move_leader", stream="s", partition=0, broker=target)


async def test_a_failover_to_the_target_while_the_leader_drains_is_a_move_that_came_about() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        state = world.brokers["a"].service.state
        ref = ref_of(world.view().key)
        election = pb.Election(partition=ref, leader_epoch=1, target=target)
        command = pb.Command(elect_leaders=pb.ElectLeaders(office=state.controller_epoch, items=[election]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        leader.answers[0](TidelogError(Code.LEADER_NOT_MOVED, f"{leader.id} leads no more"))
        assert (await asking)["leader"] == target


async def test_a_leader_that_was_deposed_while_it_drained_does_not_hand_over() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        third = next(broker for broker in "abc" if broker not in (leader.id, target))
        state = world.brokers["a"].service.state
        election = pb.Election(partition=ref_of(world.view().key), leader_epoch=1, target=third)
        command = pb.Command(elect_leaders=pb.ElectLeaders(office=state.controller_epoch, items=[election]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        leader.answers[0](None)
        with pytest.raises(TidelogError, match=f"the election of {target} was refused; {third} leads it") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED


async def test_a_request_for_the_move_that_is_under_way_gets_its_outcome_and_another_one_is_refused() -> None:
    async with moving() as (world, leader, target):
        body = {"stream": "s", "partition": 0, "broker": target}
        asking = [asyncio.ensure_future(world.api("partition.move_leader", **body)) for _ in range(2)]
        await until(lambda: leader.asked)
        third = next(broker for broker in "abc" if broker not in (leader.id, target))
        with pytest.raises(TidelogError, match=f"s/0 is moving to {target}; wait"):
            await world.api("partition.move_leader", **(body | {"broker": third}))
        leader.answers[0](None)
        assert [form["leader"] for form in await asyncio.gather(*asking)] == [target, target]
        assert len(leader.asked) == 1
        with pytest.raises(TidelogError, match=f"{target} leads s/0 already"):
            await world.api("partition.move_leader", **body)


async def test_a_move_whose_election_had_an_unknown_outcome_is_found_done() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        world.group.lose_outcomes = 1
        leader.answers[0](None)
        assert (await asking)["leader"] == target


async def test_an_unclean_election_names_the_records_given_up_and_needs_accept_loss() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition(min_isr="1")
        chosen = next(broker for broker in "abc" if broker != leader.id)
        body = {"stream": "s", "partition": 0, "broker": chosen}
        with pytest.raises(TidelogError, match=f"is led by {leader.id}"):
            await world.api("partition.unclean_elect", **body)
        leader.service.alter_isr(isr_change(view, (leader.id, leader.service.incarnation)))
        await until(lambda: world.view().isr == (leader.id,))
        leader.service.withdraw(
            Withdrawal(key=view.key, broker=leader.id, expected_epoch=world.view().epoch, reason="bad CRC")
        )
        await until(lambda: world.view().leader is None)

        world.brokers[chosen].reports = [
            {
                "partition": 0,
                "incarnation": view.key.partition_incarnation,
                "log_start_offset": 0,
                "log_end_offset": 4,
                "high_watermark": 3,
            }
        ]
        before = world.view()
        told = await world.api("partition.unclean_elect", **body)
        assert (told["elected"], told["log_end_offset"]) == (False, 4)
        assert told["loss"].startswith("records from offset 4 on, which only ")
        assert f"{leader.id} (withdrawn, alive)" in told["loss"]
        assert (world.view(), world.brokers["a"].service.status()["unclean_elections"]) == (before, 0)
        done = await world.api("partition.unclean_elect", accept_loss=True, **body)
        assert done == {**told, "elected": True}
        assert (world.view().leader, world.view().isr) == (chosen, (chosen,))
        assert (await world.api("cluster.status"))["unclean_elections"] == 1
        assert [b.service.status()["unclean_elections"] for b in world.brokers.values()] == [1, 1, 1]


async def test_a_controller_that_failed_to_subscribe_tries_again() -> None:
    world = World()
    broker = Broker(world, "a")
    serve, failures = broker.serve, [OSError("no room"), OSError("no room")]

    async def on_controller(is_controller: bool) -> None:
        if is_controller and failures:
            raise failures.pop()
        await serve(is_controller)

    broker.serve = on_controller
    await broker.service.start()
    assert (await world.api("cluster.status"))["controller"] == "a"
    assert len(world.hub.handlers[SUBJECTS.alter_isr()]) == 1
    await broker.service.close()


async def test_a_controller_that_meets_a_bug_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("a", "b", "c") as world:
        tick, failures = ControllerCore.tick, [ValueError("a bug"), ValueError("a bug")]

        def failing(core: ControllerCore, now: float) -> list[Effect]:
            if failures:
                raise failures.pop()
            return tick(core, now)

        # Probes whose answers would wake the controller come no more, so that its timer alone does.
        world.hub.lose = lambda subject: bool(failures) and ".probe" in subject
        monkeypatch.setattr(ControllerCore, "tick", failing)
        await until(lambda: not failures)
        world.hub.seen.clear()
        await until(lambda: SUBJECTS.probe(BrokerId("b")) in world.hub.seen)


async def test_an_epoch_whose_command_met_a_bug_is_proposed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failures = Group.commit, [ValueError("a bug")]

    def failing(group: Group, command: bytes, by: Member) -> object:
        if failures and pb.Command.FromString(command).HasField("take_office"):
            raise failures.pop()
        return commit(group, command, by)

    monkeypatch.setattr(Group, "commit", failing)
    world = World()
    broker = await world.start("a")
    await until(lambda: broker.service.is_controller)
    await broker.service.close()


@pytest.mark.parametrize("subject", [SUBJECTS.alter_isr(), SUBJECTS.report_leader(), SUBJECTS.withdraw()])
async def test_garbage_on_the_controllers_subjects_is_dropped(subject: str) -> None:
    async with running("a") as world:
        await until(lambda: world.hub.handlers.get(subject))
        world.client.publish(subject, [b"\xff\xff"])
        await world.api("cluster.status")


def test_an_outcome_that_refuses_raises_its_code() -> None:
    with pytest.raises(TidelogError) as refused:
        Outcome(code=Code.STREAM_EXISTS, message="stream s exists").raise_for_refusal()
    assert refused.value.code is Code.STREAM_EXISTS
