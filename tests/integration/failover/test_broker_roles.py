"""Roles of replicas on real brokers, disks and a real nats-server; metadata is played by the test, view by view.

The tests try changes of role at the worst moment, disks that fail, and invalid requests. Always: a replica that cannot
go on says so (it withdraws) and stops; no caller waits for ever; reported records are on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataplane.broker.broker import Broker, open_replicas
from dataplane.broker.disk.space_watch import SpaceWatch
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.appending import ENVELOPE_BYTES, PublishCounters
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.replica import Replica
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.log.partition_log import LogConfig
from dataplane.log.storage.checkpoints import read_offsets
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.group_commit import SyncScheduler
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.log.storage.manifest import read_manifest
from dataplane.replica.derived.producer_table import ProducerLimits
from dataplane.replica.replica_settings import ReplicaSettings
from tests.integration.rig.waiting import LIMIT, until
from tests.peers import peer_link
from tests.tickets import producer_keys, tickets
from tests.turns import finished
from tests.views import A, B, partition_view
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from wire.batch import BatchBuilder
from wire.durability import ACCEPTED, Durability
from wire.errors import Code, TidelogError
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import Message
from wire.partition_messages.append import encode_append
from wire.partition_messages.liftbridge_envelope import encode_publish
from wire.protobuf.tidelog_pb2 import (
    AckPolicy,
    AppendRequest,
    FetchRequest,
    LeaderEpochOffsetRequest,
    ReplicationRequest,
)
from wire.protobuf.tidelog_pb2 import Message as EnvelopeMessage
from wire.subjects import Subjects
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    BrokerId,
    CutoverReport,
    Generation,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderReport,
    LossReport,
    Offset,
    PartitionGone,
    PartitionKey,
    PartitionView,
    PauseChange,
    RetiredReport,
    StreamName,
    Withdrawal,
)

KEY = PartitionKey(StreamName("load"), Incarnation(3), 0, Incarnation(3))
SUBJECT = "load"
SUBJECTS = Subjects("tidelog")

view = partial(partition_view, A, B, isr=(A,), key=KEY, segment_bytes=8192)


class Metadata:
    """Records the requests of the data plane."""

    def __init__(self) -> None:
        self.lease = True
        self.changes: list[IsrChange] = []
        self.reports: list[LeaderReport] = []
        self.cutovers: list[CutoverReport] = []
        self.retired: list[RetiredReport] = []
        self.withdrawals: list[Withdrawal] = []

    def alter_isr(self, change: IsrChange) -> None:
        self.changes.append(change)

    def alter_paused(self, change: PauseChange) -> None:
        pass

    def report_retired(self, report: RetiredReport) -> None:
        self.retired.append(report)

    def report_cutover(self, report: CutoverReport) -> None:
        self.cutovers.append(report)

    def report_loss(self, report: LossReport) -> None:
        raise AssertionError(report)

    def report_leader(self, report: LeaderReport) -> None:
        self.reports.append(report)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        self.withdrawals.append(withdrawal)

    def lease_valid(self, now: float) -> bool:
        return self.lease

    def agreed_time_ns(self) -> int | None:
        return 1_000_000

    def led_at(self, moment: float) -> bool:
        return self.lease

    def next_producer_id(self) -> int:
        return FIRST_TRANSACTIONAL_ID

    @property
    def generation(self) -> Generation:
        return Generation(1)

    @property
    def recovered_at(self) -> Generation:
        return Generation(0)

    def is_of_lost_decisions(self, key: PartitionKey, assigned_at: Generation | None) -> bool:
        return False


class Node:
    """One broker's data plane, registered, on a data folder."""

    def __init__(self, name: BrokerId, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.metadata = Metadata()
        self.unsound: tuple[PartitionKey, ...] = ()

    async def start(self, url: str, settings: ReplicaSettings | None = None) -> Node:
        loop = asyncio.get_running_loop()
        self.data_dir = DataDir.open(self.directory, self.name)
        self.ingest = await NatsConnection.connect(url, name="ingest")
        self.control = await NatsConnection.connect(url, name="control")
        self.executor = ThreadPoolExecutor(4)
        self.syncer = SyncScheduler(post=loop.call_soon_threadsafe)
        self.checkpoints = SyncScheduler(post=loop.call_soon_threadsafe)
        self.space = SpaceWatch(
            self.data_dir.files, self.directory, StorageSettings(), executor=self.executor, loop=loop
        )
        self.context = BrokerContext(
            broker=self.name,
            incarnation=Incarnation(0),
            ingest=self.ingest,
            control=self.control,
            peers=peer_link(self.control),
            subjects=SUBJECTS,
            replies=ReplySubjects(SUBJECTS, list, int),
            tickets=tickets(),
            producer_keys=producer_keys(),
            settings=settings or ReplicaSettings(),
            metadata=self.metadata,
            syncer=self.syncer,
            executor=self.executor,
            checkpoints=self.checkpoints,
            decoders=self.executor,
            readers=self.executor,
            housekeeping=self.executor,
            space=self.space,
            loop=loop,
            time_ns=lambda: 1_000_000,
        )
        replicas, self.unsound = await open_replicas(self.data_dir, self.executor, self.space, ProducerLimits())
        self.broker = Broker(self.context, self.data_dir, replicas)
        await self.broker.start()
        self.data_dir.record("cluster", Incarnation(10))
        self.data_dir.mark_dirty()
        self.broker.on_registered(Incarnation(10))
        return self

    @property
    def replica(self) -> Replica:
        return self.broker._replicas[KEY]

    async def leads(self, wanted: PartitionView) -> LeaderDriver:
        self.broker.on_partitions([wanted])
        await until(lambda: isinstance(self.replica.role, LeaderDriver) and self.replica.machine.step is None)
        assert isinstance(self.replica.role, LeaderDriver)
        return self.replica.role

    async def follows(self, wanted: PartitionView) -> FollowerDriver:
        self.broker.on_partitions([wanted])
        await until(lambda: isinstance(self.replica.role, FollowerDriver) and self.replica.machine.step is None)
        assert isinstance(self.replica.role, FollowerDriver)
        return self.replica.role

    async def close(self) -> None:
        await self.broker.close()
        await self.control.close()
        await self.ingest.close()
        self.syncer.close()
        self.checkpoints.close()
        self.executor.shutdown()
        self.data_dir.close()


@pytest.fixture
async def a(nats_server: EmbeddedNatsServer, tmp_path: Path) -> AsyncIterator[Node]:
    node = await Node(A, tmp_path / "a").start(nats_server.url)
    yield node
    await asyncio.wait_for(node.close(), LIMIT)


@pytest.fixture
async def client(nats_server: EmbeddedNatsServer) -> AsyncIterator[NatsConnection]:
    connection = await NatsConnection.connect(nats_server.url)
    yield connection
    await connection.close()


async def publish(client: NatsConnection, payload: bytes = b"x", timeout: float = LIMIT) -> dict[str, Any]:
    answer = await client.request(SUBJECT, payload, timeout=timeout)
    return dict(json.loads(answer.data))


async def fetch(client: NatsConnection, **fields: Any) -> Message:
    request = FetchRequest(**{"max_bytes": 1 << 20, **fields})
    return await client.request(SUBJECTS.fetch(KEY.stream, 0), request.SerializeToString(), timeout=LIMIT)


def fills(log: Any, end: int) -> None:
    """Records into the page cache, nothing synced."""
    while log.log_end_offset < end:
        builder = BatchBuilder()
        builder.add_record(b"v" * 50)
        parts, header = builder.build(1).stamp(log.log_end_offset, LeaderEpoch(1))
        log.append(parts, [header])


# ---------------------------------------------------------------- one log that hangs
async def test_a_log_whose_sync_hangs_holds_up_the_periodic_sync_of_no_other_log(a: Node) -> None:
    keys = [KEY, *(replace(KEY, stream=StreamName(f"other{number}")) for number in range(3))]
    a.broker.on_partitions([view(key=key, durability=ACCEPTED) for key in keys])
    replicas = [a.broker._replicas[key] for key in keys]
    await until(lambda: all(isinstance(r.role, LeaderDriver) and r.machine.step is None for r in replicas))
    logs = [replica.log for replica in replicas]
    answers, hangs = threading.Event(), threading.Event()
    hanging = logs[0]
    assert hanging is not None
    sync = hanging.sync

    def hang() -> Offset:
        hangs.set()
        assert answers.wait(3 * LIMIT)
        return sync()

    hanging.sync = hang  # type: ignore[method-assign]
    try:
        fills(hanging, 3)
        await until(hangs.is_set)
        for log in logs[1:]:
            fills(log, 3)
        await until(lambda: all(log is not None and log.durable_end == 3 for log in logs[1:]))
        assert hanging.durable_end == 0
    finally:
        answers.set()
    await until(lambda: hanging.durable_end == 3)


# ---------------------------------------------------------------- publishers are answered, by leaders only
async def test_a_leader_answers_a_publish(a: Node, client: NatsConnection) -> None:
    await a.leads(view())
    assert (await publish(client))["offset"] == 0


async def test_an_ended_leader_says_nothing_to_bare_publishes(a: Node, client: NatsConnection) -> None:
    """Zombie and new leader hear the same publish: a refusal by the one would overtake the ack of the other."""
    role = await a.leads(view())
    await role.end("it is over")
    heard: list[Message] = []
    client.on_inbox(inbox := client.new_inbox(), heard.append)
    role._appending.ingest.on_messages([b"x"], [inbox.encode()], [None])
    role._appending.ingest.chunk_done()
    await a.control.flush()
    await client.flush()
    assert heard == []


async def test_a_publish_that_was_not_stored_at_the_end_of_leadership_has_an_unknown_outcome(
    a: Node, client: NatsConnection
) -> None:
    """Not refused: the new leader, on the same subject, may have stored it."""
    role = await a.leads(view())
    heard: list[Message] = []
    client.on_inbox(inbox := client.new_inbox(), heard.append)
    role._appending.syncing = True  # the open batch waits for a sync that is out
    role._appending.ingest.on_messages([b"x"], [inbox.encode()], [None])
    role._appending.ingest.chunk_done()
    await role.end("it is over")
    await until(lambda: heard)
    assert json.loads(heard[0].data)["tidelog"]["code"] == Code.OUTCOME_UNKNOWN.name


async def test_a_publish_whose_append_fails_is_answered_and_the_replica_withdraws(
    a: Node, client: NatsConnection
) -> None:
    role = await a.leads(view())

    def broken(*_: object) -> None:
        raise LogDamaged("no space left on the disk")

    role.log.append = broken  # type: ignore[assignment]
    answer = await publish(client)
    assert answer["tidelog"]["code"] == Code.OUTCOME_UNKNOWN.name
    await until(lambda: a.metadata.withdrawals)
    await until(lambda: role.ended)


async def test_publishes_while_a_log_cannot_be_written_to_are_counted(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view())

    def broken(*_: object) -> None:
        raise LogDamaged("no space left on the disk")

    role.log.append = broken  # type: ignore[assignment]
    for _ in range(10):
        client.publish(SUBJECT, [b"plain"])
    await client.flush()
    await until(lambda: role.ended)
    counters = a.context.the(PublishCounters)
    await until(lambda: counters.records_in + counters.dropped_refused == 10)


async def test_a_rule_that_is_broken_while_publishes_come_in_stops_the_leader(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view())
    core = role.core
    core._state.log_end_offset = Offset(1000)  # the log ends at 0
    client.publish(SUBJECT, [b"x"])
    await until(lambda: a.metadata.withdrawals)
    assert "a rule is broken" in a.metadata.withdrawals[0].reason
    await until(lambda: role.ended)


async def test_waiting_envelopes_count_the_memory_that_they_take(a: Node, client: NatsConnection) -> None:
    """Hundreds of bytes of objects wait with each; publishes without an acknowledgement do not wait."""
    role = await a.leads(view(isr=(A, B), min_isr=2))
    core = role.core
    told = EnvelopeMessage(value=b"v", ackInbox="inbox", ackPolicy=AckPolicy.ALL)
    for envelope in (told, EnvelopeMessage(value=b"v"), EnvelopeMessage(value=b"v", ackPolicy=AckPolicy.ALL)):
        client.publish(SUBJECT, [encode_publish(envelope)])
    await until(lambda: role.log.log_end_offset == 3)
    assert ENVELOPE_BYTES < core._commits.uncommitted_bytes < 2 * ENVELOPE_BYTES


async def test_a_bad_ack_inbox_does_not_stop_a_change_of_role(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view(isr=(A, B), min_isr=2))
    envelope = EnvelopeMessage(value=b"v", ackInbox="two words", ackPolicy=AckPolicy.ALL)
    client.publish(SUBJECT, [encode_publish(envelope)])
    await until(lambda: role.log.log_end_offset == 1)
    await a.follows(view(leader=B, leader_epoch=2, epoch=2, isr=(B,), min_isr=2))
    assert a.replica.failure is None


async def test_latest_is_not_told_without_a_lease(a: Node, client: NatsConnection) -> None:
    """Another broker may lead by now, with a higher HW: a client's latest never goes back."""
    await a.leads(view())
    await publish(client)
    a.metadata.lease = False
    for position in ({"latest": True}, {"timestamp": 1 << 60}):
        answer = await fetch(client, **position)
        error = TidelogError.from_headers(answer.headers)
        assert error is not None, position
        assert error.code is Code.UNAVAILABLE, position
    assert TidelogError.from_headers((await fetch(client, offset=0)).headers) is None


async def test_a_stream_acknowledged_by_its_leader_alone_promises_nothing_without_a_lease(
    a: Node, client: NatsConnection
) -> None:
    """The leader does not wait for its silent followers in the ISR; but another of them may lead by now."""
    role = await a.leads(view(isr=(A, B), min_isr=2, durability=Durability.parse("local_durable")))
    assert (await publish(client))["offset"] == 0
    assert role.high_watermark == 0
    sync_done = role._on_synced

    def synced(durable_end: Offset) -> None:
        a.metadata.lease = False  # between the append and the sync
        sync_done(durable_end)

    role._on_synced = synced  # type: ignore[method-assign]
    counters = a.context.the(PublishCounters)
    with pytest.raises(TimeoutError):
        await publish(client, timeout=0.3)
    await until(lambda: not a.metadata.lease, "the sync")
    with pytest.raises(TimeoutError):
        await publish(client, timeout=0.3)
    await until(lambda: counters.dropped_refused, "the refusal of the second one")
    assert role.log.log_end_offset == 2, "the second one was refused"


async def test_settings_change_while_it_leads(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view())
    await publish(client, b"x" * 500)
    changed = view(epoch=2)
    role.on_view(replace(changed, config=replace(changed.config, max_record_bytes=100, reply_acks=False)))
    with pytest.raises(TimeoutError):
        await publish(client, b"not answered", timeout=0.3)
    await until(lambda: role.log.log_end_offset == 2)
    role.on_view(replace(view(epoch=3), config=replace(changed.config, max_record_bytes=100)))
    assert (await publish(client, b"x" * 500))["tidelog"]["code"] == Code.RECORD_TOO_LARGE.name


# ---------------------------------------------------------------- disks fail
async def damage(role: LeaderDriver) -> None:
    """A flipped bit in the first header on disk; the batches in memory are gone."""
    await until(lambda: role.log.durable_end == role.log.log_end_offset)
    path = next(role.log.directory.glob("*.log"))
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")
    role.log._state.forget_tail()


@pytest.mark.parametrize("position", [{"offset": 0}, {"timestamp": 1}])
async def test_a_consumer_that_meets_damage_is_answered_and_the_replica_withdraws(
    a: Node, client: NatsConnection, position: dict[str, Any]
) -> None:
    role = await a.leads(view())
    await publish(client)
    await damage(role)
    answer = await fetch(client, **position)
    assert TidelogError.from_headers(answer.headers) is not None
    await until(lambda: a.metadata.withdrawals)


async def test_a_follower_that_meets_the_leaders_damage_makes_it_withdraw(
    a: Node, client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    role = await a.leads(view())
    await publish(client)
    await damage(role)
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        await b.follows(view())
        await until(lambda: a.metadata.withdrawals)
    finally:
        await b.close()


async def test_a_cut_that_meets_damage_makes_the_follower_withdraw(
    a: Node, client: NatsConnection, nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """Else it would be truncating for ever."""
    role = await a.leads(view())
    await publish(client)
    await damage(role)
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        await b.leads(view(leader=B, leader_epoch=2, epoch=2, isr=(B,)))
        await a.follows(view(leader=B, leader_epoch=2, epoch=2, isr=(B,)))
        await until(lambda: a.metadata.withdrawals)
    finally:
        await b.close()


async def test_a_replica_that_cannot_be_opened_withdraws(a: Node) -> None:
    directory = a.data_dir.partition_directory(KEY)
    directory.parent.mkdir(parents=True)
    directory.write_text("a file where the folder should be")
    a.broker.on_partitions([view()])
    await until(lambda: a.replica.failure is not None)
    assert [w.key for w in a.metadata.withdrawals] == [KEY]


async def test_a_checkpoint_that_fails_makes_the_replica_withdraw(a: Node, client: NatsConnection) -> None:
    """The log takes no more writes after it: an idle partition would not notice before its next record."""
    role = await a.leads(view())

    def broken(*_: object) -> None:
        raise LogDamaged("writing the checkpoint failed")

    role.log.checkpoint_at_once = lambda _: False  # type: ignore[method-assign, assignment]
    role.log.checkpoint_high_watermark = broken  # type: ignore[method-assign, assignment]
    await publish(client)
    await until(lambda: a.metadata.withdrawals)


async def test_a_rule_that_is_broken_stops_the_partition_and_not_silently(
    nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """A leader outside its own ISR finds that out in a timer, where no caller catches an exception."""
    settings = ReplicaSettings(
        replica_max_idle_wait=0.05, replica_max_leader_timeout=0.2, replica_max_lag_time=0.1, confirm_timeout=1.0
    )
    a = await Node(A, tmp_path / "a").start(nats_server.url, settings)
    try:
        role = await a.leads(view(isr=(A, B)))
        role.on_view(view(isr=(B,), epoch=2))
        await until(lambda: a.metadata.withdrawals)
        await until(lambda: role.ended)
    finally:
        await a.close()


async def test_one_partitions_trouble_does_not_keep_views_from_the_others(a: Node, client: NatsConnection) -> None:
    await a.leads(view())
    other = PartitionKey(StreamName("other"), Incarnation(4), 0, Incarnation(4))
    a.replica.role.core._state.view = None  # type: ignore[union-attr]
    a.broker.on_partitions([view(epoch=2), view(leader=B, key=other)])
    assert other in a.broker._replicas


async def test_a_failed_replica_that_is_counted_on_again_withdraws_again(a: Node) -> None:
    """It withdrew while it was out of the ISR, which changed nothing; an expansion on its way then took it in."""
    role = await a.follows(view(leader=B, isr=(B,)))
    role.fail("the disk is gone")
    a.broker.on_partitions([view(leader=B, isr=(B,), epoch=2)])
    assert len(a.metadata.withdrawals) == 1
    a.broker.on_partitions([view(leader=B, isr=(A, B), epoch=3)])
    assert len(a.metadata.withdrawals) == 2
    await until(lambda: role.ended)
    a.broker.on_partitions([view(leader=A, isr=(A,), leader_epoch=2, epoch=4)])
    assert len(a.metadata.withdrawals) == 3


async def test_a_lone_leader_knows_its_committed_records_after_a_restart(
    nats_server: EmbeddedNatsServer, client: NatsConnection, tmp_path: Path
) -> None:
    """Its checkpoint of the HW is always behind; without followers no fetch would move it on."""
    a = await Node(A, tmp_path / "a").start(nats_server.url)
    role = await a.leads(view())
    log = role.log
    log.checkpoint_at_once = lambda _: False  # type: ignore[method-assign, assignment]
    log.checkpoint_high_watermark = lambda _: None  # type: ignore[method-assign, assignment]
    await publish(client)
    assert log.durable_end == 1
    log.close = lambda: None  # type: ignore[method-assign]
    await a.close()
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        assert again.replica.high_watermark == 0
        await again.leads(view(leader_epoch=2, epoch=2))
        answer = await fetch(client, latest=True)
        assert answer.headers is not None
        assert answer.headers.get("Tidelog-Offset") == "1"
    finally:
        await again.close()


async def test_a_restarted_replica_keeps_to_the_segment_size_of_its_stream(
    nats_server: EmbeddedNatsServer, client: NatsConnection, tmp_path: Path
) -> None:
    await stored(await Node(A, tmp_path / "a").start(nats_server.url), client, 1)
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        role = await again.leads(view(leader_epoch=2, epoch=2))
        assert role.log.config.segment_bytes == view().config.segment_bytes == 8192
    finally:
        await again.close()


# ---------------------------------------------------------------- deleted and created again
REQUESTS: dict[str, tuple[str, Callable[..., bytes]]] = {
    "append": (
        SUBJECTS.append(KEY.stream, 0),
        lambda **life: b"".join(encode_append(AppendRequest(**life, leader_epoch=1), [one_record()])),
    ),
    "fetch": (
        SUBJECTS.fetch(KEY.stream, 0),
        lambda **life: FetchRequest(**life, offset=0).SerializeToString(),
    ),
    "replicate": (
        SUBJECTS.replicate(KEY.stream, 0),
        lambda **life: ReplicationRequest(**life, replicaID=B, leaderEpoch=1).SerializeToString(),
    ),
    "offset": (
        SUBJECTS.offset(KEY.stream, 0),
        lambda **life: LeaderEpochOffsetRequest(**life, leaderEpoch=1, current_leader_epoch=1).SerializeToString(),
    ),
}


def one_record() -> bytes:
    builder = BatchBuilder()
    builder.add_record(b"v")
    return b"".join(bytes(part) for part in builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0])


@pytest.mark.parametrize("kind", [*REQUESTS])
async def test_the_leader_of_a_deleted_stream_is_silent_to_requests_for_its_successor(
    a: Node, client: NatsConnection, kind: str
) -> None:
    """It woke up late and has not heard: its refusal would overtake the answer of the new leader."""
    subject, encoded = REQUESTS[kind]
    sender = peer_link(client) if kind in ("replicate", "offset") else client
    await a.leads(view())
    heard: list[tuple[str, Message]] = []

    def answered(name: str, message: Message) -> None:
        heard.append((name, message))

    lives = {
        "next stream": {"stream_incarnation": 4, "partition_incarnation": 4},
        "next partition": {"stream_incarnation": 3, "partition_incarnation": 5},
        "earlier": {"stream_incarnation": 2, "partition_incarnation": 2},
    }
    for name, life in lives.items():
        inbox = client.new_inbox()
        client.on_inbox(inbox, partial(answered, name))
        sender.publish(subject, [encoded(**life)], reply=inbox)
    await until(lambda: heard)  # requests on one subject are answered in order
    ((name, answer),) = heard
    assert name == "earlier"
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    assert error.code is Code.WRONG_INCARNATION


async def test_an_append_for_an_earlier_life_is_refused_whatever_its_leader_epoch(
    a: Node, client: NatsConnection
) -> None:
    """LeaderEpochs begin anew with each life: that of a deleted stream may well be higher."""
    await a.leads(view())
    request = AppendRequest(stream_incarnation=2, partition_incarnation=2, leader_epoch=9)
    answer = await client.request(
        SUBJECTS.append(KEY.stream, 0), b"".join(encode_append(request, [one_record()])), timeout=LIMIT
    )
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    assert error.code is Code.WRONG_INCARNATION


# ---------------------------------------------------------------- damage found at start
async def stored(node: Node, client: NatsConnection, records: int) -> Path:
    """The path of the log of a closed broker that held that many records."""
    role = await node.leads(view())
    for _ in range(records):
        await publish(client)
    directory = role.log.directory
    await node.close()
    return next(directory.glob("*.log"))


async def test_a_damaged_log_does_not_keep_the_broker_from_starting(
    nats_server: EmbeddedNatsServer, client: NatsConnection, tmp_path: Path
) -> None:
    path = await stored(await Node(A, tmp_path / "a").start(nats_server.url), client, 5)
    os.truncate(path, path.stat().st_size - 40)
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        assert again.unsound == (KEY,)
        assert again.replica.failure is not None
    finally:
        await again.close()


async def test_a_damaged_replica_copies_from_the_leader_once_it_is_out_of_the_isr(
    nats_server: EmbeddedNatsServer, client: NatsConnection, tmp_path: Path
) -> None:
    path = await stored(await Node(A, tmp_path / "a").start(nats_server.url), client, 5)
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    size = len(path.read_bytes()) // 5
    os.truncate(path, 2 * size + 40)
    again = await Node(A, tmp_path / "a").start(nats_server.url)
    try:
        assert again.unsound == (KEY,)
        # Nothing of a's log is in b's: an operator has let b lead all the same.
        elected = partial(view, leader=B, leader_epoch=2, loss_epoch=2)
        await b.leads(elected(epoch=2, isr=(B,)))
        for _ in range(7):
            await publish(client)
        again.broker.on_partitions([elected(epoch=2, isr=(A, B))])
        await asyncio.sleep(0.1)
        assert again.replica.role is None, "first it leaves the ISR, then it cuts"
        role = await again.follows(elected(epoch=3, isr=(B,)))
        await until(lambda: role.log.log_end_offset == 7)
        assert again.replica.failure is None
        assert role.log.epochs.latest == 2
    finally:
        await again.close()
        await b.close()


# ---------------------------------------------------------------- deleted streams
async def test_a_deleted_stream_leaves_no_folder_though_its_log_has_failed(a: Node, client: NatsConnection) -> None:
    role = await a.leads(view())
    await publish(client)
    role.log._state.failed("the disk refused a write")
    a.broker.on_partitions([PartitionGone(KEY)])
    await until(lambda: not role.log.directory.exists() and not a.broker._leaving)


# ---------------------------------------------------------------- state on disk
async def test_the_checkpoint_of_the_high_watermark_never_covers_unsynced_records(tmp_path: Path) -> None:
    """A follower that catches up knows a HW above its synced end. Were that checkpointed, a loss of power would
    look like damage."""
    replica = Replica(KEY, tmp_path / "log", LogConfig())
    replica.open()
    log = replica._log
    assert log is not None
    fills(log, 5)
    log.sync()
    fills(log, 10)
    replica._high_watermark = Offset(10)
    replica.checkpoint(Offset(10))
    found = read_offsets(REAL_FILES, tmp_path / "log")
    assert found is not None
    assert found.high_watermark == log.durable_end == 5


async def test_an_accepted_stream_is_synced_in_the_background(a: Node, client: NatsConnection) -> None:
    """Else its segments stay open, and every start reads all of it again."""
    role = await a.leads(view(durability=ACCEPTED))
    await publish(client)
    await until(lambda: role.log.durable_end == role.log.log_end_offset == 1)
    directory, data = role.log.directory, role.log.directory.parents[1]
    await until(lambda: (read_manifest(REAL_FILES, data) or {})[str(directory.relative_to(data))].high_watermark == 1)


async def test_a_sync_from_before_a_cut_vouches_for_nothing_written_after_it(a: Node, client: NatsConnection) -> None:
    role = await a.follows(view(leader=B))
    role.core._replica.log_end_offset = Offset(0)
    fills(role.log, 10)
    role.core._replica.log_end_offset = Offset(10)
    role._syncs.out += 1
    role._syncs._done(Offset(10))  # of a log that was cut since and written anew
    assert role.core._replica.durable_end <= role.log.durable_end


async def test_a_log_that_cannot_be_closed_in_order_leaves_no_clean_broker(
    nats_server: EmbeddedNatsServer, client: NatsConnection, tmp_path: Path
) -> None:
    a = await Node(A, tmp_path / "a").start(nats_server.url)
    role = await a.leads(view(durability=ACCEPTED))
    await publish(client)

    def broken() -> None:
        raise LogDamaged("fsync failed")

    role.log.close = broken  # type: ignore[method-assign]
    await a.close()
    assert finished(a.broker.status())["failed"] == [str(KEY)]


# ---------------------------------------------------------------- no connection
async def test_a_broker_closes_though_nats_is_gone_in_the_middle_of_a_change_of_role(
    nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    a = await Node(A, tmp_path / "a").start(nats_server.url)
    nats_server.stop()
    await until(lambda: not a.control.is_connected and not a.ingest.is_connected)
    a.broker.on_partitions([view()])
    await until(lambda: isinstance(a.replica.role, LeaderDriver))
    await asyncio.wait_for(a.close(), LIMIT)


async def test_a_newer_view_ends_a_start_that_waits_for_nats(nats_server: EmbeddedNatsServer, tmp_path: Path) -> None:
    a = await Node(A, tmp_path / "a").start(nats_server.url)
    nats_server.stop()
    await until(lambda: not a.control.is_connected and not a.ingest.is_connected)
    a.broker.on_partitions([view()])
    await until(lambda: isinstance(a.replica.role, LeaderDriver))
    await asyncio.wait_for(a.follows(view(leader=B, leader_epoch=2, epoch=2, isr=(B,))), LIMIT)
    await asyncio.wait_for(a.close(), LIMIT)


async def test_nothing_begins_after_the_end(a: Node) -> None:
    await a.broker.close()
    a.broker.on_partitions([view()])
    assert KEY not in a.broker._replicas
