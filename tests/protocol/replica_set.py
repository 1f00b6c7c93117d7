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

Requests of clients are made at once, and are answered on inboxes that only `told` reads. Three things are simpler than
in a broker: no periodic work runs (checkpoints, housekeeping, the watches of the disk), no sync is quick enough to be
made on the loop, and timers are exact, where a broker puts those that are far off to a common beat.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

from dataplane.broker import replica as replica_module
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading import follower_service
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.roles import role
from dataplane.broker.roles.broker_context import ANSWER_OVERHEAD
from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring
from dataplane.log.compaction.compaction_pass import CompactionPass
from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX, Snapshot
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.producer_table import DEFAULT_LIMITS, ProducerLimits
from dataplane.replica.leader.leader import Leader
from dataplane.replica.replica_effects import (
    CompleteProduce,
    FollowerEffect,
    LeaderEffect,
    SendOffsetRequest,
    SendSnapshotRequest,
)
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.cluster.references import ref_of
from tests.protocol.notation import error_shown, token_shown
from tests.protocol.running_broker import (
    CLIENT,
    DATA,
    META,
    MIN_FREE_BYTES,
    NATS,
    SUBJECTS,
    Asked,
    Body,
    Broker,
    Connection,
    DiskCall,
    Message,
    Told,
    batch_of,
    records_in,
    told_drivers,
)
from tests.simulation.machines.disk import SimDisk
from tests.simulation.world import World, inhabited
from tests.tickets import add_proof_of
from tests.unit.metadata.cluster_bench import Cluster
from wire.batch import iter_batches
from wire.durability import Durability
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS, BulkHandler
from wire.messaging.transport import Message as NatsMessage
from wire.partition_messages.append import ask_durability, encode_append
from wire.partition_messages.replication import HEADER_SIZE, OFFSET_HEADER
from wire.protobuf import metadata_pb2 as pb
from wire.protobuf.tidelog_pb2 import (
    AppendRequest,
    EndTransactionRequest,
    FetchRequest,
    LeaderEpochOffsetResponse,
    ReplicationRequest,
)
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    BrokerId,
    Buffer,
    CutoverReport,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderMove,
    LossReport,
    Offset,
    PartitionView,
    PauseChange,
    Withdrawal,
)


class ReplicaSet:
    """`told(broker, effect or text)` is called with what happens, before an effect is carried out; `arrived(message,
    outcome)` with each message before anything comes of it, and with the outcome of a disk call.
    """

    def __init__(
        self,
        brokers: str = "a b c",
        *,
        replicas: str | None = None,
        partitions: int = 1,
        number: int = 0,
        config: dict[str, str] | None = None,
        settings: ReplicaSettings | None = None,
        producers: ProducerLimits = DEFAULT_LIMITS,
        segment_bytes: int = 1 << 20,
        replication_budget: int = 0,
        told: Callable[[str, Told], None] = lambda _broker, _effect: None,
        arrived: Callable[[Message, str], None] = lambda _message, _outcome: None,
    ) -> None:
        self.settings = settings or ReplicaSettings()
        self.producers = producers
        self.replication_budget = replication_budget
        """Bytes a second for replicas outside the ISR; 0: no limit."""
        self.next_producer_id = FIRST_TRANSACTIONAL_ID
        """That the metadata have given out."""
        self.log_config = LogConfig(segment_bytes=segment_bytes, producers=producers)
        self.max_payload = 1 << 20
        self.world = World(0)
        self.world.now = 100.0
        self.cluster = Cluster(*brokers.split())
        self.cluster.create("s", [replicas or brokers] * partitions, config=config)
        self.key = self.cluster.key(number)
        self.directory = DATA / "s-1" / f"{number}-1"
        self.network: list[Message] = []
        self.held: set[str] = set()
        """Links on which everything waits; the name of a broker is its disk's."""
        self.tellings = 0
        self._told = told
        self._arrived = arrived
        self._answers: list[list[TidelogError | None]] = []
        """Answers to clients, for each effect that is being carried out."""
        self.after_event: Callable[[Broker], None] = lambda _broker: None
        """Called when a broker has done all that comes of an event."""
        self._asked: dict[str, Asked] = {}
        """By inbox."""
        self._read: set[str] = set()
        """Tokens of consumers whose records are told."""
        self._sent = 0
        """Partition epoch of the newest view on its way."""
        self.brokers = {name: Broker(self, name) for name in brokers.split()}
        self._stack = ExitStack()
        self._stack.enter_context(inhabited(self.world))
        self._stack.enter_context(mock.patch.multiple(role, BEAT=0.0, NEAR=math.inf))
        leader, follower = told_drivers(self)
        patched = mock.patch.multiple(replica_module, LeaderDriver=leader, FollowerDriver=follower)
        self._stack.enter_context(patched)

    def close(self) -> None:
        self._stack.close()

    @property
    def now(self) -> float:
        return self.world.now

    # ---- logs

    def open_log(self, disk: SimDisk, *, page_cache_survived: bool = True) -> PartitionLog:
        disk.make_directory(self.directory)
        log, _ = PartitionLog.open(self.directory, self.log_config, files=disk, page_cache_survived=page_cache_survived)
        return log

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

    def set_leader_epoch(self, leader_epoch: int, unclean: int = 0) -> None:
        """As if there had been that many changes before, and an operator's election had begun LeaderEpoch `unclean`."""
        stream = self.cluster.state.streams[self.key.stream]
        number = self.key.partition
        stream.partitions[number] = replace(
            stream.partitions[number],
            leader_epoch=LeaderEpoch(leader_epoch),
            unclean_epoch=LeaderEpoch(unclean),
            loss_epoch=LeaderEpoch(unclean),
        )

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
            caught_up=change.caught_up,
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
            case PauseChange():
                code = self.cluster.alter_paused(body).items[0]
                self.tell(META, "pause changed" if code is None else f"pause not changed: {code.name}")
                self.spread()
            case CutoverReport():
                code = self.cluster.report_cutover(body).items[0]
                self.tell(META, "cutover told" if code is None else f"cutover not told: {code.name}")
                self.spread()
            case LossReport():
                self.cluster.withdraw(body.leader, reported_by=source)
                self.spread()
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
        if isinstance(effect, SendOffsetRequest | SendSnapshotRequest):
            self.brokers[broker].life.connection.asking = effect.number
        self.tell(broker, effect)
        self._answers.append([])
        try:
            run()
        finally:
            answers = self._answers.pop()
        if isinstance(effect, CompleteProduce):
            if not answers:
                self.tell(broker, "silent")
            for error in answers:
                if (error and error.code) != (effect.error and effect.error.code):
                    self.tell(broker, f"refuse {token_shown(effect.token)} {error_shown(error)}" if error else "ack")

    def acked_bare(self) -> None:
        """Bare publishes were acknowledged, in one write."""
        self._answers[-1].append(None)

    def _answer_client(self, broker: Broker, message: NatsMessage) -> None:
        error = TidelogError.from_headers(message.headers)
        token = message.subject.removeprefix(CLIENT)
        if error is None and token in self._read:
            self._read.discard(token)
            self.tell(broker.name, f"{token} gets {_answer_shown(message.data[HEADER_SIZE:])}")
        elif self._answers:
            self._answers[-1].append(error)
        elif error is not None:  # outside of an effect: the request was answered at once
            self.tell(broker.name, f"refuse {token} {error_shown(error)}")
        elif message.headers and OFFSET_HEADER in message.headers:
            self.tell(broker.name, f"{token} {message.headers[OFFSET_HEADER]}")

    # ---- what others do to brokers

    def _request(self, name: str, subject: str, data: bytes, token: str) -> None:
        broker = self.brokers[name]
        handler = broker.life.connection.subscribed[subject]
        broker.runs(partial(handler, NatsMessage(subject, data, CLIENT + token)))

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
        expects: int | None = None,
        ids: list[str | None] | None = None,
        ticket: bytes | None = None,
        version: int = 0,
        prover: int | None = None,
    ) -> None:
        """An append request with one batch, a record for each character; `expects`: the offset of the first; `ids`:
        their message ids; `ticket`: of a transactional batch, None for any other; `version`: the partitioning version
        that it names; `prover`: the producer by whose key it is proven, None for no proof."""
        view = self.brokers[name].life.replica.view
        assert view is not None
        request = AppendRequest(
            leader_epoch=view.leader_epoch,
            acks=AppendRequest.Acks.Value(acks.upper()),
            confirm_timeout_ms=round((timeout or 0) * 1000),
            partitioning_version=version,
        )
        if durability:
            ask_durability(request, Durability.parse(durability))
        if expects is not None:
            request.expected_last_offset = expects - 1
        if ticket is not None:
            request.ticket = ticket
        time_ns = self.brokers[name].life.process.time_ns()
        sent = batch_of(values, time_ns, producer, ids, is_transactional=ticket is not None)
        batch, _ = sent.stamp(Offset(0), LeaderEpoch(0))
        if prover is not None:
            add_proof_of(request, self.key, batch, prover)
        data = b"".join(encode_append(request, batch))
        self._request(name, SUBJECTS.append(self.key.stream, self.key.partition), data, token or values)

    def publish_bare(
        self, name: str, values: str, token: str, ids: list[str | None], headers: Mapping[str, str], subject: str = ""
    ) -> None:
        """NATS messages to the partition's subject, or another one, which arrive in one chunk."""
        sink: BulkHandler | None = self.brokers[name].life.connection.subscribed.get(subject or self.view().subject)
        if sink is None:
            self.tell(name, f"does not listen to {token}")
            return

        def chunk() -> None:
            blocks = [_header_block({"Nats-Msg-Id": each, **headers} if each else headers) for each in ids]
            replies: list[bytes | None] = [(CLIENT + token).encode()] * len(values)
            sink.on_messages([value.encode() for value in values], replies, blocks)
            sink.chunk_done()

        self.brokers[name].runs(chunk)

    def mark(self, name: str, request: EndTransactionRequest, token: str) -> None:
        """A coordinator of transactions ends one."""
        self._request(name, SUBJECTS.mark(self.key.stream, self.key.partition), request.SerializeToString(), token)

    def fetch(self, name: str, request: FetchRequest, token: str, *, tells_records: bool = False) -> None:
        """Of the replica itself. `tells_records`: those of the answer."""
        if tells_records:
            self._read.add(token)
        subject = SUBJECTS.fetch_from(self.key.stream, self.key.partition, self.brokers[name].name)
        self._request(name, subject, request.SerializeToString(), token)

    def replicate(self, name: str, request: ReplicationRequest) -> None:
        """A request made by hand; the answer is lost."""
        key = self.key
        request.stream_incarnation, request.partition_incarnation = key.stream_incarnation, key.partition_incarnation
        token = f"hand.{len(self._asked)}"
        self._asked[CLIENT + token] = Asked(request.replicaID, "replicate", request.sequence)
        subject = SUBJECTS.replicate(key.stream, key.partition)
        self._request(name, subject, request.SerializeToString(), token)

    def parked(
        self, name: str, e: int | None = None, seq: int | None = None, life: int | None = None
    ) -> tuple[str, int, int, bool] | None:
        """A question about the fetch of a follower that waits. Returns whom it goes to, its number and LeaderEpoch, and
        whether it is held; None: there is nothing to ask."""
        role = self.brokers[name].role
        assert isinstance(role, FollowerDriver), f"{name} does not follow"
        sequence = role.parked if seq is None else seq
        leader = role.view.leader
        if sequence is None or leader is None:
            return None
        epoch = role.leader_epoch if e is None else LeaderEpoch(e)
        incarnation = role.context.incarnation if life is None else Incarnation(life)
        there = self.brokers[leader]
        leading = there.life.replica.role if there.running else None  # one that has ended, too
        held = isinstance(leading, LeaderDriver) and leading.holds(BrokerId(name), incarnation, epoch, sequence)
        return leader, sequence, epoch, held

    def on_parked_answer(self, name: str, sequence: int, is_held: bool) -> None:
        role = self.brokers[name].role
        assert isinstance(role, FollowerDriver)
        self.brokers[name].runs(lambda: role.on_parked_answer(sequence, is_held, role.context.now()))

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

    def lose_snapshots(self, name: str) -> None:
        """The files of its derived state are gone; it does not run."""
        disk = self.brokers[name].disk
        for path, _ in disk.files_below(Path("/")):
            if path.suffix == SNAPSHOT_SUFFIX:
                disk.remove(path)

    def limit_pieces(self, size: int) -> None:
        """Pieces of derived state are no larger, because NATS carries no larger messages."""
        self.max_payload = size + ANSWER_OVERHEAD + follower_service._RESPONSE_FIELDS
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
            broker.runs(broker.life.process.fire)

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

    def register(self, name: str) -> None:
        """A new life of that broker, or a new registration of the one that runs."""
        broker = self.brokers[name]
        logs = {self.key: broker.log.reach}
        outcome = self.cluster.register(name, page_cache_survived=broker.cache_survived, logs=logs)
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


def _answer_shown(batches: Buffer) -> str:
    """OFFSET:VALUE of each record, + and - for markers; and how far the batches reach."""
    records = [f"{offset}:{value}" for offset, _, value in records_in(batches)]
    end = max((header.end_offset for _, header in iter_batches(batches)), default=None)
    return " ".join(records or ["no record"]) + ("" if end is None else f", up to {end}")


def _header_block(headers: Mapping[str, str]) -> bytes | None:
    """As NATS carries them."""
    if not headers:
        return None
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
