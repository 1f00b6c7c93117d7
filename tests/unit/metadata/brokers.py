"""Brokers whose metadata service is driven on asyncio, over an in-process hub in place of NATS and a group in place of
Raft that applies at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, get_type_hints

from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft.types import (
    RaftError,
    RaftOutcomeUnknown,
    RaftRole,
    RaftStatus,
    RaftUnavailable,
    StateMachine,
)
from metadata.runtime.metadata_service import MetadataService
from metadata.runtime.registration import Registration
from tests.fake_nats import FakeTransport, Hub
from tidelog.server.api.handover import GroupRequests, TransactionRequests
from tidelog.server.api.json_api import Api
from tidelog.server.audit.audit_trail import AuditTrail
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS
from wire.operations.api_operations import OPERATIONS, ReplicaEvent
from wire.operations.operation import ALWAYS_POSSIBLE
from wire.operations.reports import BrokerReport, ReplicaReport, StreamReport, UsageReport
from wire.protobuf import metadata_pb2 as pb
from wire.security.cluster_secrets import public_secrets
from wire.subjects import Subjects
from wire.turns import Steps
from wire.types import (
    ALL_TAKEN_UP,
    BrokerId,
    CutoverReport,
    DrainAnswer,
    Incarnation,
    IsrChange,
    IsrMember,
    LeaderMove,
    LogEnd,
    Offset,
    PartitionGone,
    PartitionKey,
    PartitionView,
    RoleProgress,
    Room,
    StreamName,
)

SUBJECTS = Subjects()
SETTINGS = MetadataSettings(
    liveness_grace_s=0.001, heartbeat_interval_s=0.02, retry_interval_s=0.01, bootstrap_wait_s=0.05
)
LED: ReplicaEvent = {"seconds_ago": 1.5, "time": "2026-01-01T00:00:00.000+00:00", "event": "leads", "times": 1}
"""What a fake broker tells of a partition that it leads."""
CREATE = {"name": "s", "subject": "s", "partitions": 3, "replication_factor": 3, "config": {}}


class Group:
    """Raft without faults, except the ones that a test asks for: the first member that starts leads."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.log: list[bytes] = []
        self.lose_outcomes = 0
        self.unavailable = 0
        self.refusals: list[RaftError] = []

    def elect(self, member: Member) -> None:
        """It leads from now on."""
        self.members.remove(member)
        self.members.insert(0, member)
        for each in self.members:
            each.on_status(each.status())

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
        self.outcomes_may_come = asyncio.Event()
        """While it is not set the outcomes of this member's commands are on their way."""
        self.outcomes_may_come.set()

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
        outcome = self.group.commit(command, self)
        await self.outcomes_may_come.wait()
        return outcome

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
        self.knows_all = 0
        """How often it was told that all of its partitions were handed over."""
        self.asked: list[tuple[LeaderMove, float]] = []
        """Leaderships that it was asked to drain; `answers` says how that ended."""
        self.answers: list[DrainAnswer] = []
        self.tells_cutovers = True
        self.reports: list[ReplicaReport] | None = None
        self.logs: dict[PartitionKey, LogEnd] = {}
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
            secrets=public_secrets(),
            monotonic=asyncio.get_running_loop().time,
            time_ns=lambda: 10**18 + int(asyncio.get_running_loop().time() * 1e9),
            registration=registration
            or Registration(
                folder_same=True, page_cache_survived=True, raft_address=f"{name}:1", labels={"zone": name}
            ),
        )
        self.totals = BrokerReport()
        self.usage: UsageReport = {"streams": {}}
        self.serve: Callable[[bool], Awaitable[None]] = Api(
            self.service,
            self.transport,
            SUBJECTS,
            AuditTrail(self.id, life_id=self.id, epoch=lambda: self.service.controller_epoch, time_ns=lambda: 0),
            [kind(self.service, self.transport, SUBJECTS) for kind in (GroupRequests, TransactionRequests)],
        ).on_controller

    def on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        self.recorded.append((cluster_id, incarnation))

    def on_fatal(self, error: TidelogError) -> None:
        self.fatal.append(error)

    async def on_controller(self, is_controller: bool) -> None:
        await self.serve(is_controller)

    def usage_report(self, after: str = "", upto: str | None = None) -> Steps[UsageReport]:
        yield 1
        return self.usage

    def broker_report(self) -> Steps[BrokerReport]:
        yield 1
        return self.totals

    def room(self) -> Room:
        return Room.AMPLE

    def disk_hangs(self) -> bool:
        return False

    def role_progress(self) -> RoleProgress:
        return ALL_TAKEN_UP

    def drain_leader(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        self.asked.append((move, timeout))
        self.answers.append(answer)

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        self.too_early = self.too_early or not self.recorded
        for change in changes:
            if isinstance(change, PartitionView):
                self.views[change.key] = change
                if change.leader == self.id and change.awaits_cutover and self.tells_cutovers:
                    self.tell_cutover(change)
            else:
                self.gone.append(change.key)
                self.views.pop(change.key)

    def on_all_partitions(self) -> None:
        self.knows_all += 1

    def tell_cutover(self, view: PartitionView) -> None:
        self.service.report_cutover(
            CutoverReport(
                key=view.key,
                leader=self.id,
                leader_epoch=view.leader_epoch,
                version=view.partitioning_version,
                end_offset=Offset(7),
            )
        )

    def log_ends(self) -> Steps[dict[PartitionKey, LogEnd]]:
        yield from ()
        return self.logs

    def stream_report(
        self, stream: StreamName, partitions: Collection[int], history_of: int | None
    ) -> Steps[StreamReport]:
        if self.reports is not None:
            return {"partitions": self.reports}
        reports: list[ReplicaReport] = []
        for key, view in [*self.views.items()]:
            if key.stream == stream and (not partitions or key.partition in partitions):
                reports.append(self._report(key, view, history_of))
            yield 2
        return {"partitions": reports}

    def _report(self, key: PartitionKey, view: PartitionView, history_of: int | None) -> ReplicaReport:
        report: ReplicaReport = {
            "partition": key.partition,
            "incarnation": key.partition_incarnation,
            "leader_epoch": view.leader_epoch,
            "partition_epoch": view.epoch,
        }
        if view.leader == self.id:
            report["committed_end"] = 7
            report["log_start_offset"] = view.purged_end
            report["log_end_offset"] = 7
            report["high_watermark"] = 6
            report["replicas_progress"] = {self.id: {"log_end_offset": 7, "in_sync": True}}
            report["history"] = [LED] if history_of == key.partition else []
        return report

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

    def make(
        self,
        name: str,
        registration: Registration | None = None,
        life: str = "1",
        settings: MetadataSettings = SETTINGS,
    ) -> Broker:
        """Without a `registration` of its own a later life begins on the folder of the one before."""
        before = self.brokers.get(name)
        if registration is None and before is not None:
            registration = Registration(
                folder_same=True,
                page_cache_survived=True,
                last_incarnation=before.recorded[-1][1] if before.recorded else Incarnation(0),
                earlier_lives=(before.service._context.life_id,),
                raft_address=f"{name}:1",
                labels={"zone": name},
            )
        self.brokers[name] = Broker(self, name, registration, life, settings)
        return self.brokers[name]

    async def start(
        self,
        name: str,
        registration: Registration | None = None,
        life: str = "1",
        settings: MetadataSettings = SETTINGS,
    ) -> Broker:
        broker = self.make(name, registration, life, settings)
        await broker.service.start()
        return broker

    async def api(self, endpoint: str, **body: Any) -> Any:
        subject = SUBJECTS.api(endpoint, body.get(OPERATIONS[endpoint].stream))
        async with asyncio.timeout(30):
            while True:
                answer = await self.client.request(subject, json.dumps(body).encode(), timeout=5)
                if answer.status != NO_RESPONDERS:
                    operation, error = OPERATIONS[endpoint], TidelogError.from_headers(answer.headers)
                    if error is not None:
                        assert json.loads(answer.data)["error"]["code"] == error.code.name
                        assert error.code in (*operation.refusals, *ALWAYS_POSSIBLE)
                        raise error
                    told, known = (
                        operation.decode_answer(answer.data, None).keys(),
                        get_type_hints(operation.answer).keys(),
                    )
                    assert told <= known
                    # There are no more pages, and nothing to note; nothing gets other replicas.
                    assert known - told <= {"next", "notes", "reassignment"}
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
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the condition is another component's state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*names: str) -> AsyncIterator[World]:
    world = World()
    for name in names:
        await world.start(name)
    for broker in world.brokers.values():
        await asyncio.wait_for(broker.service.wait_registered(), 30)
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
