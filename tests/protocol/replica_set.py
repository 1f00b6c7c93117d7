"""One partition on several brokers: the production replicas, each on a simulated disk, and a network of messages that
go nowhere until the test lets them.

Each broker has a process of its own, whose loop runs to quiet after every event and whose timers fire only when
`tick` is called. All that happens elsewhere is a message:

    b>a        fetches, progress, `.offset` and `.checkpoint` requests; every leader receives those of all, as on NATS
               subjects
    a>b        answers and notifications
    nats>b     503: no broker was subscribed when the request was sent
    b>b        calls that wait for b's disk: syncs and cuts; while it is held, whatever else a role waits for, too
    b>meta     ISR changes, reports and withdrawals; `meta` is the production ClusterState
    meta>b     views, in the order in which they were applied

Requests of clients are made at once, and are answered on inboxes that only `told` reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from heapq import heappop
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, cast
from unittest import mock

from dataplane.broker import checkpoints, timer
from dataplane.broker import replica as replica_module
from dataplane.broker.context import ANSWER_OVERHEAD, BrokerContext
from dataplane.broker.follower_driver import FollowerDriver
from dataplane.broker.leader_driver import LeaderDriver
from dataplane.broker.replica import Replica
from dataplane.broker.role import RoleSetup
from dataplane.broker.settings import StorageSettings
from dataplane.broker.space import SpaceWatch
from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring
from dataplane.log.compaction import CompactionPass
from dataplane.log.group_commit import Syncable
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.snapshot import Snapshot
from dataplane.replica.effects import (
    FollowerEffect,
    LeaderEffect,
    RefuseConsumer,
    SendCheckpointRequest,
    SendOffsetRequest,
)
from dataplane.replica.leader import Leader
from dataplane.replica.producers import DEFAULT_LIMITS, ProducerLimits
from dataplane.replica.settings import ReplicaSettings
from metadata.references import ref_of
from tests.fake_nats import FakeTransport
from tests.simulation.disk import SimDisk
from tests.simulation.world import Process, SimulatedCrash, World, inhabited
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.append import ask_durability, encode_append
from wire.batch import BatchBuilder, EncodedBatch, RecordBatch, iter_batches
from wire.durability import Durability
from wire.errors import TidelogError
from wire.replication import OFFSET_HEADER
from wire.subjects import Subjects
from wire.tidelog_pb2 import (
    AppendRequest,
    FetchRequest,
    LeaderEpochOffsetResponse,
    PartitionNotification,
    ReplicationRequest,
)
from wire.transport import NO_RESPONDERS, Buffer, BulkHandler
from wire.transport import Message as NatsMessage
from wire.types import (
    NO_PRODUCER,
    BrokerId,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderMove,
    LeaderReport,
    Offset,
    PartitionView,
    Withdrawal,
)

META = "meta"
NATS = "nats"
SUBJECTS = Subjects()
DATA = Path("/data")
ROLES: Any = "roles"
"""In place of the executor that roles wait for."""
CLIENT = "_INBOX.client."
HOLE = "."
"""In the place of a record that was compacted away."""
MIN_FREE_BYTES = 1500


class Asked(NamedTuple):
    """What was asked for on an inbox."""

    replica: str
    kind: str
    """`replicate`, `offset` or `checkpoint`."""
    number: int


@dataclass(frozen=True, slots=True)
class DiskCall:
    label: str
    run: Callable[[], tuple[str, Callable[[], None]]]
    """Makes the call. Returns what the transcript says of it, and the function by which the waiting code hears of it.
    """


Body: TypeAlias = NatsMessage | DiskCall | IsrChange | LeaderReport | Withdrawal | PartitionView


@dataclass(eq=False, slots=True)
class Message:
    source: str
    target: str
    body: Body
    connection: Connection | None = None
    """The target's, when it was sent."""
    asked: Asked | None = None
    """Of a request, and of an answer."""

    @property
    def link(self) -> str:
        return self.target if self.source == self.target else f"{self.source}>{self.target}"

    @property
    def is_notification(self) -> bool:
        return isinstance(self.body, NatsMessage) and ".notify." in self.body.subject


Told: TypeAlias = LeaderEffect | FollowerEffect | str


def records_of(log: PartitionLog) -> Iterator[tuple[Offset, LeaderEpoch, str]]:
    """(offset, LeaderEpoch, value) of each record; of a tombstone the capital of its key."""
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read_from_disk(at, max_bytes=1, end_offset=log.log_end_offset)
        for position, header in iter_batches(data):
            for delta, value in _values(bytes(data[position : position + header.size])):
                yield Offset(header.base_offset + delta), header.leader_epoch, value
            at = header.end_offset


@lru_cache(maxsize=4096)
def _values(batch: bytes) -> tuple[tuple[int, str], ...]:
    decoded = RecordBatch.decode(batch)
    found = zip(decoded.offsets.tolist(), decoded.keys, decoded.values, strict=True)
    base = decoded.header.base_offset
    return tuple(
        (offset - base, (key or b"").decode().upper() if value is None else value.decode())
        for offset, key, value in found
    )


def batch_of(values: str, timestamp: int, producer: tuple[int, int, int] | None = None) -> EncodedBatch:
    """A record for each character, which is its key, too; a capital is the tombstone of its letter."""
    builder = BatchBuilder()
    for value in values:
        builder.add_record(None if value.isupper() else value.encode(), value.lower().encode())
    identity, epoch, sequence = producer or (NO_PRODUCER, -1, -1)
    return builder.build(timestamp, producer_id=identity, producer_epoch=epoch, base_sequence=sequence)


class ScriptedProcess(Process):
    """It runs only when it is told to."""

    on_call: Callable[[DiskCall, object], None]

    def _arrange(self) -> None:
        pass

    def settle(self) -> None:
        """All that can be done without time passing."""
        while self._ready and self.alive:
            self._run_ready()

    def next_timer(self) -> float:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        return timers[0][0] if timers else math.inf

    def fire(self) -> None:
        """The timers that are due."""
        while self.next_timer() <= self.world.now:
            self._ready.append(heappop(self._timers)[2])
        self.settle()

    def in_thread(
        self, work: Callable[[], Any], finished: Callable[[Any, BaseException | None], None], executor: object = None
    ) -> None:
        name = getattr(work.func if isinstance(work, partial) else work, "__qualname__", "")
        label = "cut" if name.startswith(FollowerDriver.__name__) else name

        def run() -> tuple[str, Callable[[], None]]:
            result: Any = None
            error: BaseException | None = None
            try:
                result = work()
            except Exception as e:  # noqa: BLE001 - goes to the waiting caller
                error = e
            return f"{label} done", partial(finished, result, error)

        self.on_call(DiskCall(label, run), executor)


class Connection(FakeTransport):
    """Of one life of a broker; what it sends goes to the replica set."""

    def __init__(self, name: str, on_sent: Callable[[Connection, NatsMessage], None], now: float) -> None:
        super().__init__(connected_since=now)
        self.name = name
        self.asking = 0
        """Number of the `.offset` or `.checkpoint` request that is being sent."""
        self._on_sent = on_sent

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        is_sent = super().publish(subject, parts, reply=reply, headers=headers)
        if is_sent:
            self._on_sent(self, NatsMessage(subject, b"".join(parts), reply, headers))
        return is_sent

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        """Acknowledgements of bare publishes: `told` has heard of them by their effect."""
        return self.is_connected

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        for subject in subjects:
            self.publish(subject.decode(), [payload], headers=headers)
        return 0

    def new_inbox(self) -> str:
        self._numbers += 1
        return f"_INBOX.{self.name}.{self._numbers}"

    def handler_of(self, subject: str) -> Callable[[NatsMessage], None] | None:
        return self.inboxes.get(subject) or self.subscribed.get(subject)


class Syncer:
    """`dataplane.log.group_commit.SyncScheduler` on a disk that is never quick: a sync is a message of the disk."""

    is_crowded = False
    waiting_since = math.inf

    def __init__(self, call: Callable[[DiskCall], None]) -> None:
        self._call = call

    def at_once(self, log: Syncable) -> Offset | None:
        return None

    def request(self, log: Syncable, done: Callable[[Offset | Exception], None]) -> None:
        def run() -> tuple[str, Callable[[], None]]:
            end = log.sync()
            return f"synced to {end}", partial(done, end)

        self._call(DiskCall("sync", run))


class Broker:
    """One broker's disk, and its replica while it runs."""

    def __init__(self, replicas: ReplicaSet, name: str) -> None:
        self.name = BrokerId(name)
        self.has_lease = True
        self.disk = SimDisk(crash=SimulatedCrash)
        self._set = replicas
        self._life: _Life | None = None
        self._left: PartitionLog | None = None
        """The log as a process left it that has ended."""
        self._read: tuple[object, list[tuple[Offset, LeaderEpoch, str]]] | None = None

    # ---- what is there

    @property
    def running(self) -> bool:
        return self._life is not None

    @property
    def life(self) -> _Life:
        assert self._life is not None, f"{self.name} is down"
        return self._life

    @property
    def role(self) -> LeaderDriver | FollowerDriver | None:
        role = self._life.replica.role if self._life is not None else None
        assert role is None or isinstance(role, LeaderDriver | FollowerDriver)
        return role if role is None or not role.ended else None

    @property
    def leading(self) -> Leader | None:
        return self.role.core if isinstance(self.role, LeaderDriver) else None

    @property
    def log(self) -> PartitionLog:
        """Of a broker that is down: as the next life would find it."""
        if self._life is None:
            self._left = self._left or self._set.open_log(self.disk.copy())
            return self._left
        log = self._life.replica.log
        assert log is not None
        return log

    def records(self) -> list[tuple[Offset, LeaderEpoch, str]]:
        """See `records_of`; the log is read again only when it has changed."""
        log = self.log
        version = log, log.rewrite_epoch, log.cuts, log.log_end_offset
        if self._read is None or self._read[0] != version:
            self._read = version, list(records_of(log))
        return self._read[1]

    @property
    def high_watermark(self) -> Offset:
        return self._life.replica.high_watermark if self._life is not None else self.log.high_watermark

    # ---- life

    def start(self, incarnation: Incarnation) -> None:
        self._life = _Life(self._set, self, incarnation)

    def kill(self, *, power: bool) -> None:
        life, self._life, self._left = self.life, None, None
        life.process.kill()
        self.disk.kill_process()
        if power:
            self.disk.lose_power("nothing", Random(0))

    def runs(self, event: Callable[[], object]) -> None:
        """`event` in a turn of its process, and all that comes of it without time passing."""
        process = self.life.process
        process.call_soon(event)
        process.settle()
        self._set.after_event(self)


class _Life:
    """One process of a broker."""

    def __init__(self, replicas: ReplicaSet, broker: Broker, incarnation: Incarnation) -> None:
        self._set = replicas
        self.broker = broker
        name = broker.name
        process = self.process = ScriptedProcess.begun(replicas.world, name)
        process.on_call = self._on_call
        broker.disk.clock = process.time_ns
        self.connection = Connection(f"{name}-{incarnation}", self._on_sent, process.time())
        self.connection.max_payload = replicas.max_payload
        self.connection.subscribed[SUBJECTS.notify(name)] = self._on_notification
        metadata = SimpleNamespace(
            alter_isr=self._ask_meta,
            report_leader=self._ask_meta,
            withdraw=self._ask_meta,
            lease_valid=lambda _now: broker.has_lease,
        )
        storage = StorageSettings(
            min_free_bytes=MIN_FREE_BYTES,
            max_producers_per_partition=replicas.producers.max_producers,
            producer_id_expiration_ms=replicas.producers.expiration_ms,
        )
        space = SpaceWatch(broker.disk, DATA, storage, executor=ROLES, loop=process)
        self.context = BrokerContext(
            broker=name,
            incarnation=incarnation,
            ingest=self.connection,
            control=self.connection,
            subjects=SUBJECTS,
            settings=replicas.settings,
            metadata=cast(Any, metadata),
            syncer=Syncer(lambda call: replicas.send(Message(name, name, call))),
            executor=ROLES,
            checkpoints=cast(Any, None),
            readers=cast(Any, None),
            housekeeping=cast(Any, None),
            space=space,
            loop=process,
            time_ns=process.time_ns,
            storage=storage,
        )
        space.on_room = lambda _room: self.replica.on_space(space.is_full)
        self.replica = Replica(replicas.key, replicas.directory, replicas.log_config, files=broker.disk)
        self.replica.open(page_cache_survived=True)

    def _ask_meta(self, body: IsrChange | LeaderReport | Withdrawal) -> None:
        self._set.send(Message(self.broker.name, META, body))

    def _on_sent(self, connection: Connection, message: NatsMessage) -> None:
        self._set.on_sent(self.broker, connection, message)

    def _on_call(self, call: DiskCall, executor: object) -> None:
        """Cuts are messages always, other calls that a role waits for only while the disk is held."""
        name = self.broker.name
        if executor is ROLES and (call.label == "cut" or name in self._set.held):
            self._set.send(Message(name, name, call))
        else:
            self.process.call_soon(lambda: call.run()[1]())  # noqa: PLW0108 - it is made in a turn of its own

    def _on_notification(self, message: NatsMessage) -> None:
        role = self.replica.role
        if isinstance(role, FollowerDriver):
            role.on_notification(LeaderEpoch(PartitionNotification.FromString(message.data).leader_epoch))


class ReplicaSet:
    """`told(broker, effect or text)` is called with what happens, before an effect is carried out; `arrived(message,
    outcome)` with each message before anything comes of it, and with the outcome of a disk call."""

    def __init__(
        self,
        brokers: str = "a b c",
        *,
        replicas: str | None = None,
        config: dict[str, str] | None = None,
        settings: ReplicaSettings | None = None,
        producers: ProducerLimits = DEFAULT_LIMITS,
        segment_bytes: int = 1 << 20,
        told: Callable[[str, Told], None] = lambda _broker, _effect: None,
        arrived: Callable[[Message, str], None] = lambda _message, _outcome: None,
    ) -> None:
        self.settings = settings or ReplicaSettings()
        self.producers = producers
        self.log_config = LogConfig(segment_bytes=segment_bytes, producers=producers)
        self.max_payload = 1 << 20
        self.world = World(0)
        self.world.now = 100.0
        self.cluster = Cluster(*brokers.split())
        self.cluster.create("s", [replicas or brokers], config=config)
        self.key = self.cluster.key()
        self.directory = DATA / "s-1" / "0-1"
        self.network: list[Message] = []
        self.held: set[str] = set()
        """Links on which everything waits; the name of a broker is its disk's."""
        self.tellings = 0
        self._told = told
        self._arrived = arrived
        self._is_carrying_out = 0
        self.after_event: Callable[[Broker], None] = lambda _broker: None
        """Called when a broker has done all that comes of an event."""
        self._asked: dict[str, Asked] = {}
        """By inbox."""
        self._sent = 0
        """Partition epoch of the newest view on its way."""
        self.brokers = {name: Broker(self, name) for name in brokers.split()}
        self._stack = ExitStack()
        self._stack.enter_context(inhabited(self.world))
        self._stack.enter_context(mock.patch.multiple(timer, BEAT=0.0, NEAR=math.inf))
        leader, follower = _told_drivers(self)
        patched = mock.patch.multiple(replica_module, LeaderDriver=leader, FollowerDriver=follower)
        self._stack.enter_context(patched)

    def close(self) -> None:
        self._stack.close()

    @property
    def now(self) -> float:
        return self.world.now

    # ---- logs

    def open_log(self, disk: SimDisk) -> PartitionLog:
        disk.make_directory(self.directory)
        return PartitionLog.open(self.directory, self.log_config, files=disk, page_cache_survived=True)[0]

    def write_log(self, name: str, runs: Sequence[tuple[int, str]], start: int, high_watermark: int) -> None:
        """Before `begin`: (epoch, values) in order, a batch for each record."""
        log = self.open_log(self.brokers[name].disk)
        if start:
            log.install(Snapshot(Offset(start)))
        for epoch, values in runs:
            if not values:  # a leader that had not written yet
                log.assign_epoch(LeaderEpoch(epoch), log.log_end_offset)
            for value in values:
                parts, header = batch_of(value, 1).stamp(log.log_end_offset, LeaderEpoch(epoch), 1)
                log.append(parts, [header])
        log.checkpoint_high_watermark(Offset(0))
        log.sync()
        log.checkpoint_high_watermark(Offset(high_watermark))
        log.close()
        self.brokers[name].disk.kill_process()

    # ---- metadata

    def view(self) -> PartitionView:
        found = self.cluster.state.view(self.key)
        assert found is not None
        return replace(found, config=replace(found.config, segment_bytes=self.log_config.segment_bytes))

    def set_leader_epoch(self, leader_epoch: int) -> None:
        """As if there had been that many changes before."""
        stream = self.cluster.state.streams[self.key.stream]
        stream.partitions[0] = replace(stream.partitions[0], leader_epoch=LeaderEpoch(leader_epoch))

    def begin(self) -> None:
        for broker in self.brokers.values():
            broker.start(Incarnation(self.cluster.incarnation(broker.name)))
        self._sent = 0
        self.spread()

    def spread(self, to: str | None = None) -> None:
        """The applied state goes to all brokers (or to one), unless all have been sent it."""
        view = self.view()
        if to is None and view.epoch == self._sent:
            return
        self._sent = view.epoch
        for name, broker in self.brokers.items():
            if broker.running and to in (None, name):
                self.send(Message(META, name, view))

    def _alter_isr(self, change: IsrChange) -> None:
        item = pb.IsrAlteration(
            partition=ref_of(change.key),
            leader=change.leader,
            leader_epoch=change.leader_epoch,
            expected_epoch=change.expected_epoch,
            new_isr=[pb.BrokerLife(broker=member.broker, incarnation=member.incarnation) for member in change.new_isr],
        )
        code = self.cluster.alter(item).items[0]
        self.tell(META, "ISR change done" if code is None else f"ISR change refused: {code.name}")
        self.spread()

    # ---- messages

    def send(self, message: Message) -> None:
        self.network.append(message)

    def on_sent(self, broker: Broker, connection: Connection, message: NatsMessage) -> None:
        """A broker has published it."""
        subject = message.subject
        if subject.startswith(CLIENT):
            self._answer_client(broker, message)
            return
        asked = self._asked.get(subject)
        if asked is not None:
            if asked.kind == "offset":
                self._tell_offset_answer(broker, asked, message)
            self._send_to(broker, asked.replica, message, asked)
            return
        if message.reply is not None:
            kind = subject.rpartition(".")[2]
            fetch = ReplicationRequest.FromString(message.data) if kind == "replicate" else None
            number = fetch.sequence if fetch is not None else connection.asking
            asked = self._asked[message.reply] = Asked(broker.name, kind, number)
        listeners = [
            other.name
            for other in self.brokers.values()
            if other.running
            and other is not broker
            and other.life.connection.is_connected
            and subject in other.life.connection.subscribed
        ]
        for name in listeners:
            self._send_to(broker, name, message, asked)
        if not listeners and message.reply is not None:
            nobody = NatsMessage(message.reply, b"", status=NO_RESPONDERS)
            self.send(Message(NATS, broker.name, nobody, connection))

    def _send_to(self, broker: Broker, target: str, message: NatsMessage, asked: Asked | None) -> None:
        found = self.brokers.get(target)
        if found is not None and found.running and found.life.connection.is_connected:
            self.send(Message(broker.name, target, message, found.life.connection, asked))

    def asked_on(self, inbox: str) -> Asked | None:
        return self._asked.get(inbox)

    def _tell_offset_answer(self, broker: Broker, asked: Asked, message: NatsMessage) -> None:
        error = TidelogError.from_headers(message.headers)
        about = f"{asked.replica} .offset#{asked.number}"
        if error is not None:
            self.tell(broker.name, f"refuse {about} {error.code.name}")
            return
        found = LeaderEpochOffsetResponse.FromString(message.data)
        text = f"epoch {found.leader_epoch} ends at {found.endOffset}" if found.leader_epoch else "no such epoch"
        self.tell(broker.name, f"answer {about}: {text}")

    def receive(self, message: Message) -> None:
        """The message arrives. What arrives where no process waits for it is lost."""
        self.network.remove(message)
        body = message.body
        broker = self.brokers.get(message.target)
        if isinstance(body, DiskCall):
            assert broker is not None
            outcome, finished = body.run()
            self._arrived(message, outcome)
            broker.runs(finished)
            return
        self._arrived(message, "")
        if broker is None:
            self._decide(body, message.source)
            return
        if not broker.running:
            return
        life = broker.life
        match body:
            case PartitionView():
                broker.runs(lambda: life.replica.on_view(body, life.context))
            case NatsMessage():
                handler = life.connection.handler_of(body.subject)
                if message.connection is life.connection and life.connection.is_connected and handler is not None:
                    before = self.tellings
                    broker.runs(partial(handler, body))
                    if body.subject.endswith(".offset") and self.tellings == before:
                        self.tell(broker.name, "silent")
            case _:
                raise TypeError(f"{body} is not for a broker")

    def _decide(self, body: Body, source: str) -> None:
        match body:
            case IsrChange():
                self._alter_isr(body)
            case Withdrawal():
                self.cluster.withdraw(source, expected_epoch=body.expected_epoch)
                self.spread()
            case _:
                pass

    # ---- what is told

    def tell(self, name: str, what: Told) -> None:
        self.tellings += 1
        self._told(name, what)

    def carries_out(self, broker: BrokerId, effect: LeaderEffect | FollowerEffect, run: Callable[[], None]) -> None:
        if isinstance(effect, SendOffsetRequest | SendCheckpointRequest):
            self.brokers[broker].life.connection.asking = effect.number
        self.tell(broker, effect)
        self._is_carrying_out += 1
        try:
            run()
        finally:
            self._is_carrying_out -= 1

    def _answer_client(self, broker: Broker, message: NatsMessage) -> None:
        """Outside of an effect: a request was answered at once."""
        error = TidelogError.from_headers(message.headers)
        token = message.subject.removeprefix(CLIENT)
        if self._is_carrying_out:
            return
        if error is not None:
            self.tell(broker.name, RefuseConsumer(token, error))
        elif message.headers and OFFSET_HEADER in message.headers:
            self.tell(broker.name, f"{token} {message.headers[OFFSET_HEADER]}")

    # ---- what others do to brokers

    def _request(self, name: str, subject: str, data: bytes, token: str) -> None:
        life = self.brokers[name].life
        handler = life.connection.subscribed.get(subject)
        assert handler is not None, f"{name} does not lead"
        self.brokers[name].runs(partial(handler, NatsMessage(subject, data, CLIENT + token)))

    def publish(
        self,
        name: str,
        values: str,
        *,
        acks: str = "none",
        token: str = "",
        timeout: float | None = None,
        durability: str = "",
        producer: tuple[int, int, int] | None = None,
    ) -> None:
        """An append request with one batch, a record for each character."""
        view = self.brokers[name].life.replica.view
        assert view is not None
        request = AppendRequest(
            leader_epoch=view.leader_epoch,
            acks=AppendRequest.Acks.Value(acks.upper()),
            confirm_timeout_ms=round((timeout or 0) * 1000),
        )
        if durability:
            ask_durability(request, Durability.parse(durability))
        time_ns = self.brokers[name].life.process.time_ns()
        batch, _ = batch_of(values, time_ns, producer).stamp(Offset(0), LeaderEpoch(0))
        data = b"".join(encode_append(request, batch))
        self._request(name, SUBJECTS.append(self.key.stream, 0), data, token or values)

    def publish_bare(self, name: str, values: str, token: str) -> None:
        """NATS messages to the stream's subject, which arrive in one chunk."""
        sink: BulkHandler | None = self.brokers[name].life.connection.subscribed.get(self.view().subject)
        assert sink is not None, f"{name} does not lead"

        def chunk() -> None:
            count = len(values)
            sink.on_messages([value.encode() for value in values], [(CLIENT + token).encode()] * count, [None] * count)
            sink.chunk_done()

        self.brokers[name].runs(chunk)

    def fetch(self, name: str, request: FetchRequest, token: str) -> None:
        self._request(name, SUBJECTS.fetch(self.key.stream, 0), request.SerializeToString(), token)

    def replicate(self, name: str, request: ReplicationRequest) -> None:
        """A request made by hand; the answer is lost."""
        key = self.key
        request.stream_incarnation, request.partition_incarnation = key.stream_incarnation, key.partition_incarnation
        inbox = f"_INBOX.hand.{len(self._asked)}"
        self._asked[inbox] = Asked(request.replicaID, "replicate", request.sequence)
        before = len(self.network)
        subject = SUBJECTS.replicate(key.stream, 0)
        handler = self.brokers[name].life.connection.subscribed[subject]
        reply = None if request.progress_only else inbox
        self.brokers[name].runs(partial(handler, NatsMessage(subject, request.SerializeToString(), reply)))
        self.network[before:] = [
            message
            for message in self.network[before:]
            if not (isinstance(message.body, NatsMessage) and message.body.subject == inbox)
        ]

    def drain(self, name: str, target: str, timeout: float) -> None:
        broker = self.brokers[name]
        role = broker.role
        assert isinstance(role, LeaderDriver), f"{name} does not lead"
        move = LeaderMove(key=self.key, leader=broker.name, leader_epoch=role.leader_epoch, target=BrokerId(target))
        broker.runs(lambda: role.drain(move, timeout, lambda _error: None))

    def set_full(self, name: str, is_full: bool) -> None:
        """The disk has no room for records any more, or has some again; its watch looks at it at once."""
        broker = self.brokers[name]
        broker.disk.capacity = broker.disk.used + (MIN_FREE_BYTES // 2 if is_full else 100 * MIN_FREE_BYTES)
        context = broker.life.context
        broker.runs(lambda: context.loop.create_task(context.space.look()))

    def set_hanging(self, name: str, hangs: bool) -> None:
        """The watch of its disk has found that."""
        life = self.brokers[name].life
        life.context.disk._guard.hangs = hangs
        self.brokers[name].runs(lambda: life.replica.on_disk(hangs))

    @contextmanager
    def _stored(self, name: str) -> Iterator[PartitionLog]:
        """The log of a broker, which may not run yet, with all that it holds synced and in finished segments."""
        broker = self.brokers[name]
        log = broker.log if broker.running else self.open_log(broker.disk)
        log.roll()
        log.sync()
        yield log
        if not broker.running:
            log.close()
            broker.disk.kill_process()

    def retain(self, name: str, offset: int) -> None:
        """Retention removes the segments that lie wholly below `offset`."""
        with self._stored(name) as log:
            log.remove_before(Offset(offset))
        broker = self.brokers[name]
        if broker.running:
            broker.runs(broker.life.replica.on_log_start)

    def limit_pieces(self, size: int) -> None:
        """Pieces of derived state are no larger, because NATS carries no larger messages."""
        self.max_payload = size + ANSWER_OVERHEAD + checkpoints._RESPONSE_FIELDS
        for broker in self.brokers.values():
            if broker.running:
                broker.life.connection.max_payload = self.max_payload

    def compact(self, name: str, end: int, *, tombstones: bool) -> None:
        """A pass up to `end`; `tombstones`: those that an earlier pass has met go."""
        with self._stored(name) as log:
            work = CompactionPass(
                log,
                Offset(end),
                tombstone_retention_ms=0 if tombstones else 1000,
                now_ms=time.time_ns() // 1_000_000,
                memory=1 << 20,
                max_batch_bytes=1 << 20,
                cipher=BatchCipher(Keyring(), self.key),
            )
            for _ in work.steps():
                pass

    # ---- time

    def tick(self, name: str) -> None:
        """The timers that are due fire."""
        broker = self.brokers[name]
        if broker.running:
            broker.life.process.fire()
            self.after_event(broker)

    def next_timer(self) -> float:
        return min((b.life.process.next_timer() for b in self.brokers.values() if b.running), default=math.inf)

    def pass_to(self, when: float) -> None:
        self.world.now = max(self.world.now, when)

    # ---- connections and lives

    def connect(self, name: str, connected: bool) -> None:
        """Its connection to NATS is lost, with everything on its way from and to it, or made again."""
        life = self.brokers[name].life
        life.connection.connected_since = self.now if connected else math.inf
        if not connected:
            self.network = [
                message
                for message in self.network
                if name not in (message.source, message.target) or not isinstance(message.body, NatsMessage)
            ]
        life.connection.is_connected = connected
        self.brokers[name].runs(lambda: life.replica.on_connection(connected))

    def kill(self, name: str, *, power: bool = False) -> None:
        """The process ends; with `power`, what was not synced goes too. Requests on their way to it are lost."""
        self.brokers[name].kill(power=power)
        self.network = [message for message in self.network if message.target != name]

    def register(self, name: str, *, folder_same: bool = True, cache_survived: bool = True) -> None:
        """A new life of that broker, or a new registration of the one that runs."""
        broker = self.brokers[name]
        outcome = self.cluster.register(name, folder_same=folder_same, page_cache_survived=cache_survived)
        outcome.raise_for_refusal()
        incarnation = Incarnation(outcome.value)
        if broker.running:
            broker.life.context.incarnation = incarnation
        else:
            broker.start(incarnation)
        before = self._sent
        self.spread()
        if before == self._sent:
            self.spread(to=name)

    def leaders(self) -> Iterator[tuple[Broker, Leader]]:
        for broker in self.brokers.values():
            if broker.leading is not None:
                yield broker, broker.leading


def _told_drivers(replicas: ReplicaSet) -> tuple[type[LeaderDriver], type[FollowerDriver]]:
    """The production drivers; each effect is told before it is carried out."""

    class ToldLeader(LeaderDriver):
        def __init__(self, setup: RoleSetup) -> None:
            begins = f"leads epoch {setup.view.leader_epoch} from {setup.log.log_end_offset}"
            replicas.tell(setup.context.broker, begins)
            super().__init__(setup)

        def _run(self, effects: list[LeaderEffect]) -> None:
            for effect in effects:
                replicas.carries_out(self.context.broker, effect, partial(super()._run, [effect]))

    class ToldFollower(FollowerDriver):
        def __init__(self, setup: RoleSetup, first_sequence: int) -> None:
            view = setup.view
            replicas.tell(setup.context.broker, f"follows {view.leader or 'nobody'} in epoch {view.leader_epoch}")
            super().__init__(setup, first_sequence)

        def _run(self, effects: list[FollowerEffect]) -> None:
            for effect in effects:
                replicas.carries_out(self.context.broker, effect, partial(super()._run, [effect]))

        def _append(self, high_watermark: Offset) -> None:
            refused = self.context.counters.refused_no_space
            super()._append(high_watermark)
            if self.context.counters.refused_no_space > refused:
                replicas.tell(self.context.broker, "no room for what came")

    return ToldLeader, ToldFollower
