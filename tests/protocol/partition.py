"""One partition on several brokers: the production state machines, logs in memory, and a network of messages that go
nowhere until somebody says so.

Each broker runs what `dataplane.broker` would run, one step per message:

    b>a        fetches, progress and `.offset` requests; every broker that leads hears those of all, as on NATS subjects
    a>b        answers and notifications
    nats>b     503: nobody was subscribed when the request was sent
    b>b        completions of b's disk: syncs and truncations
    b>meta     ISR changes and reports; `meta` is the production ClusterState
    meta>b     views, in the order in which they were applied

Answers reach the role that asked: its inboxes are gone with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dataplane.log.checkpoints import CompactionPoint
from dataplane.log.snapshot import Snapshot, decode_snapshot
from dataplane.replica.ack_levels import AckLevel, ack_level
from dataplane.replica.effects import (
    AppendReplicated,
    CompleteDrain,
    CompleteProduce,
    FollowerEffect,
    InstallCheckpoint,
    LeaderEffect,
    Notify,
    ProposeIsr,
    Refuse,
    RefuseConsumer,
    ReportLeader,
    RequestSync,
    Respond,
    SendCheckpoint,
    SendCheckpointRequest,
    SendFetch,
    SendOffsetRequest,
    ServeConsumer,
    StartOver,
    Truncate,
    VerifyOwnCopy,
)
from dataplane.replica.follower import Follower
from dataplane.replica.follower_states import CheckpointAnswer, FetchAnswer, OffsetAnswer
from dataplane.replica.leader import Leader
from dataplane.replica.producers import DEFAULT_LIMITS, ProducerLimits, ProducerTable
from dataplane.replica.requests import CheckpointFetch, FollowerFetch
from dataplane.replica.settings import ReplicaSettings
from metadata.references import ref_of
from tests.protocol.memory_log import RECORD_BYTES, Batch, MemoryLog
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.durability import Durability
from wire.errors import TidelogError
from wire.types import (
    BrokerId,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderReport,
    Offset,
    PartitionView,
)

META = "meta"
NATS = "nats"


@dataclass(frozen=True, slots=True)
class Answer:
    answer: FetchAnswer
    batches: tuple[Batch, ...] = ()
    damaged: bool = False
    """Its CRCs do not hold."""


@dataclass(frozen=True, slots=True)
class OffsetRequest:
    replica: BrokerId
    asked: LeaderEpoch
    current: LeaderEpoch
    number: int
    role: int
    """Of the asker: its inbox."""


@dataclass(frozen=True, slots=True)
class Notification:
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class NoResponders:
    pass


@dataclass(frozen=True, slots=True)
class Synced:
    end: Offset
    cuts: int


@dataclass(frozen=True, slots=True)
class CutDone:
    pass


Body: TypeAlias = (
    FollowerFetch
    | Answer
    | OffsetRequest
    | OffsetAnswer
    | CheckpointFetch
    | CheckpointAnswer
    | Notification
    | NoResponders
    | Synced
    | CutDone
    | IsrChange
    | LeaderReport
    | PartitionView
)


@dataclass(frozen=True, slots=True)
class Message:
    source: str
    target: str
    body: Body
    role: int = 0
    """The role of the target that it is for; 0: whichever it has then."""

    @property
    def link(self) -> str:
        return f"{self.source}>{self.target}"


Role: TypeAlias = Leader | Follower
Told: TypeAlias = LeaderEffect | FollowerEffect | str


class Broker:
    def __init__(self, name: str, producers: ProducerLimits) -> None:
        self.name = BrokerId(name)
        self.incarnation = Incarnation(0)
        self.log = MemoryLog(producers)
        self.producers = ProducerTable(limits=producers)
        self.view: PartitionView | None = None
        self.role: Role | None = None
        self.role_number = 0
        self.high_watermark = Offset(0)
        self.checkpoint = Offset(0)
        self.sequence = 0
        self.running = True
        self.connected_since = -math.inf
        """inf: its connection is down."""
        self.is_full = False
        """Its disk has no room for records."""
        self.disk_hangs = False
        """It knows that its disk has not answered for long."""

    @property
    def leading(self) -> Leader | None:
        return self.role if isinstance(self.role, Leader) else None

    @property
    def following(self) -> Follower | None:
        return self.role if isinstance(self.role, Follower) else None

    @property
    def listens(self) -> bool:
        return self.running and self.connected_since < math.inf and self.leading is not None


class PartitionWorld:
    """`told(broker, effect or text)` hears what happens; `views_wait` keeps views in `unlearned` until `learn`."""

    def __init__(
        self,
        brokers: str = "a b c",
        *,
        replicas: str | None = None,
        config: dict[str, str] | None = None,
        settings: ReplicaSettings | None = None,
        producers: ProducerLimits = DEFAULT_LIMITS,
        told: Callable[[str, Told], None] | None = None,
    ) -> None:
        self.settings = settings or ReplicaSettings()
        self.cluster = Cluster(*brokers.split())
        self.brokers = {name: Broker(name, producers) for name in brokers.split()}
        for broker in self.brokers.values():
            broker.incarnation = Incarnation(self.cluster.incarnation(broker.name))
        self.network: list[Message] = []
        self.now = 100.0
        self.piece_bytes = 1 << 20
        """Most bytes of derived state in one answer."""
        self._told = told or (lambda _broker, _effect: None)
        self._roles = 0
        self._watched: list[Callable[[Broker], None]] = []
        self.cluster.create("s", [replicas or brokers], config=config)
        self._sent = 0
        """Partition epoch of the newest view on its way."""

    # ---- metadata --------------------------------------------------------------------------------------------------

    def view(self) -> PartitionView:
        found = self.cluster.state.view(self.cluster.key())
        assert found is not None
        return found

    def set_leader_epoch(self, leader_epoch: int, **changes: object) -> None:
        """As if there had been that many changes before."""
        stream = self.cluster.state.streams[self.view().key.stream]
        partition = stream.partitions[0]
        stream.partitions[0] = replace(partition, leader_epoch=LeaderEpoch(leader_epoch), **changes)  # type: ignore[arg-type]

    def spread(self, to: str | None = None) -> None:
        """The applied state goes to everybody (or to one), unless all have been sent it."""
        view = self.view()
        if to is None and view.epoch == self._sent:
            return
        self._sent = view.epoch
        for name, broker in self.brokers.items():
            if broker.running and to in (None, name):
                self.network.append(Message(META, name, view))

    # ---- messages --------------------------------------------------------------------------------------------------

    def _send(self, source: str, target: str, body: Body, role: int = 0) -> None:
        if source != target and META not in (source, target):
            ends = [broker for name, broker in self.brokers.items() if name in (source, target)]
            if any(broker.connected_since == math.inf for broker in ends):
                return
        self.network.append(Message(source, target, body, role))

    def receive(self, message: Message) -> None:
        """The message arrives. What arrives at nobody is lost."""
        body = message.body
        if message.target == META:
            if isinstance(body, IsrChange):
                self._alter_isr(body)
            return
        broker = self.brokers[message.target]
        if not broker.running or (message.role and message.role != broker.role_number):
            if isinstance(body, Synced) and broker.running:
                self._disk_synced(broker, body)
            return
        match body:
            case PartitionView():
                self._learn(broker, body)
            case FollowerFetch():
                if broker.leading is not None:
                    broker.leading.deletions_end = broker.log.compaction_point.deletions_end
                    self._lead(broker, broker.leading.on_fetch(body, self.now))
            case OffsetRequest():
                self._on_offset_request(broker, body)
            case CheckpointFetch():
                if broker.leading is not None:
                    self._lead(broker, broker.leading.on_checkpoint_request(body))
            case CheckpointAnswer():
                if broker.following is not None:
                    self._follow(broker, broker.following.on_checkpoint_answer(body, self.now))
            case Answer(answer, batches, damaged):
                if broker.following is not None:
                    if damaged:
                        effects = broker.following.on_bad_answer(answer.sequence, "CRC", self.now)
                    else:
                        effects = broker.following.on_answer(answer, self.now)
                    self._follow(broker, effects, batches)
            case OffsetAnswer():
                if broker.following is not None:
                    self._follow(broker, broker.following.on_offset_answer(body, self.now))
            case Notification(leader_epoch):
                if broker.following is not None:
                    self._follow(broker, broker.following.on_notification(leader_epoch, self.now))
            case NoResponders():
                if broker.following is not None:
                    self._follow(broker, broker.following.on_no_responders(self.now))
            case Synced():
                self._disk_synced(broker, body)
                if broker.leading is not None:
                    self._lead(broker, broker.leading.on_synced(body.end, self.now))
                elif broker.following is not None:
                    self._follow(broker, broker.following.on_synced(body.end, self.now))
            case CutDone():
                assert broker.following is not None
                self._follow(broker, broker.following.on_truncated(broker.log.start, broker.log.end, self.now))
            case _:
                raise TypeError(f"{body} is not for a broker")

    @staticmethod
    def _disk_synced(broker: Broker, done: Synced) -> None:
        if done.cuts == broker.log.cuts:
            broker.log.durable_end = max(broker.log.durable_end, done.end)

    def _alter_isr(self, change: IsrChange) -> None:
        item = pb.IsrAlteration(
            partition=ref_of(change.key),
            leader=change.leader,
            leader_epoch=change.leader_epoch,
            expected_epoch=change.expected_epoch,
            new_isr=[pb.BrokerLife(broker=member.broker, incarnation=member.incarnation) for member in change.new_isr],
        )
        outcome = self.cluster.alter(item)
        code = outcome.items[0]
        self._told(META, "ISR change done" if code is None else f"ISR change refused: {code.name}")
        self.spread()

    def _on_offset_request(self, broker: Broker, request: OffsetRequest) -> None:
        leader = broker.leading
        if leader is None:
            return
        found = leader.on_offset_request(request.asked, request.current)
        if found is None:
            self._told(broker.name, "silent")
            return
        answer = OffsetAnswer(number=request.number, leader_epoch=leader.leader_epoch)
        if isinstance(found, TidelogError):
            answer = replace(answer, error=found)
            self._told(broker.name, f"refuse {request.replica} .offset#{request.number} {found.code.name}")
        else:
            answer = replace(answer, epoch=found[0], end=found[1])
            text = f"epoch {found[0]} ends at {found[1]}" if found[0] else "no such epoch"
            self._told(broker.name, f"answer {request.replica} .offset#{request.number}: {text}")
        self._send(broker.name, request.replica, answer, request.role)

    # ---- roles -----------------------------------------------------------------------------------------------------

    def _learn(self, broker: Broker, view: PartitionView) -> None:
        if broker.view is not None and view.epoch < broker.view.epoch:
            return
        broker.view = view
        role = broker.role
        leads = view.leader == broker.name
        if (
            role is not None
            and role.leader_epoch == view.leader_epoch
            and leads == isinstance(role, Leader)
            and role.view.leader == view.leader
        ):
            if isinstance(role, Leader):
                self._lead(broker, role.on_view(view, self.now))
            else:
                self._follow(broker, role.on_view(view, self.now))
            return
        self.end_role(broker, f"LeaderEpoch {view.leader_epoch} has begun")
        self._roles += 1
        broker.role_number = self._roles
        broker.log.compaction_point = broker.log.compaction_point.in_role(view.leader_epoch, broker.log.end)
        if leads:
            broker.log.assign_epoch(view.leader_epoch)
            self._told(broker.name, f"leads epoch {view.leader_epoch} from {broker.log.end}")
            leader = broker.role = Leader(
                view=view,
                broker=broker.name,
                incarnation=broker.incarnation,
                log_start_offset=broker.log.start,
                log_end_offset=broker.log.end,
                durable_end=broker.log.durable_end,
                high_watermark=broker.high_watermark,
                epochs=broker.log.epochs,
                settings=self.settings,
                now=self.now,
                no_space=broker.is_full,
                disk_hangs=broker.disk_hangs,
            )
            self._lead(broker, leader.tick(self.now))
        else:
            self._told(broker.name, f"follows {view.leader or 'nobody'} in epoch {view.leader_epoch}")
            follower = broker.role = Follower(
                view=view,
                broker=broker.name,
                log_start_offset=broker.log.start,
                log_end_offset=broker.log.end,
                durable_end=broker.log.durable_end,
                high_watermark=broker.high_watermark,
                epochs=broker.log.epochs,
                settings=self.settings,
                first_sequence=broker.sequence,
                connected_since=broker.connected_since,
                now=self.now,
                no_space=broker.is_full,
                disk_hangs=broker.disk_hangs,
            )
            self._follow(broker, follower.start(self.now))
            if follower.owes_a_sync:
                self._request_sync(broker)

    def set_full(self, name: str, is_full: bool) -> None:
        broker = self.brokers[name]
        broker.is_full = is_full
        if broker.leading is not None:
            self._lead(broker, broker.leading.on_space(is_full, self.now))
        elif broker.following is not None:
            self._follow(broker, broker.following.on_space(is_full, self.now))

    def set_hanging(self, name: str, hangs: bool) -> None:
        broker = self.brokers[name]
        broker.disk_hangs = hangs
        if broker.leading is not None:
            self._lead(broker, broker.leading.on_disk(hangs, self.now))
        elif broker.following is not None:
            self._follow(broker, broker.following.on_disk(hangs, self.now))

    def end_role(self, broker: Broker, reason: str) -> None:
        role = broker.role
        if role is None:
            return
        if isinstance(role, Leader):
            self._lead(broker, role.resign(reason, self.now))
        broker.high_watermark = max(broker.log.start, min(role.high_watermark, broker.log.end))
        broker.role = None
        broker.role_number = 0

    # ---- effects ---------------------------------------------------------------------------------------------------

    def _lead(self, broker: Broker, effects: list[LeaderEffect]) -> None:
        leader = broker.leading
        assert leader is not None
        for effect in effects:
            self._told(broker.name, effect)
            match effect:
                case Respond():
                    batches = broker.log.read(effect.offset, effect.max_bytes) if effect.max_bytes else ()
                    self._answer(broker, effect.inbox, effect.high_watermark, batches, sync_to=effect.sync_to)
                case Refuse(inbox, error) if inbox.startswith("checkpoint"):
                    self._answer_checkpoint(broker, inbox, error=error)
                case Refuse(inbox, error):
                    self._answer(broker, inbox, leader.high_watermark, error=error)
                case SendCheckpoint(_, inbox, offset, position):
                    content = broker.log.snapshot()
                    piece = content[position : position + self.piece_bytes]
                    deleted_end = broker.log.compaction_point.copies_deleted_end
                    self._answer_checkpoint(
                        broker,
                        inbox,
                        offset=offset,
                        size=len(content),
                        position=position,
                        piece=piece,
                        deleted_end=deleted_end,
                    )
                case Notify(replica):
                    self._send(broker.name, replica, Notification(leader.leader_epoch))
                case ProposeIsr(change):
                    self._send(broker.name, META, change)
                case RequestSync():
                    self._request_sync(broker)
                case CompleteProduce() | CompleteDrain() | ServeConsumer() | RefuseConsumer() | VerifyOwnCopy():
                    pass
        for watch in self._watched:
            watch(broker)

    def _answer_checkpoint(self, broker: Broker, inbox: str, **found: Any) -> None:
        _, replica, number, role = inbox.split("#")
        leader = broker.leading
        assert leader is not None
        answer = CheckpointAnswer(number=int(number), leader_epoch=leader.leader_epoch, **found)
        self._send(broker.name, replica, answer, int(role))

    def _answer(
        self,
        broker: Broker,
        inbox: str,
        high_watermark: Offset,
        batches: tuple[Batch, ...] = (),
        error: TidelogError | None = None,
        sync_to: Offset = Offset(0),
    ) -> None:
        if not inbox:
            return  # a progress report asks for no answer
        replica, sequence, role = inbox.split("#")
        leader = broker.leading
        assert leader is not None
        answer = FetchAnswer(
            sequence=int(sequence),
            leader_epoch=leader.leader_epoch,
            high_watermark=high_watermark,
            first_offset=batches[0].base if batches else None,
            sync_to=sync_to,
            error=error,
        )
        self._send(broker.name, replica, Answer(answer, batches), int(role))

    def _follow(self, broker: Broker, effects: list[FollowerEffect], batches: tuple[Batch, ...] = ()) -> None:
        follower = broker.following
        assert follower is not None
        for effect in effects:
            self._told(broker.name, effect)
            match effect:
                case SendFetch():
                    self._send_fetch(broker, follower, effect)
                case SendOffsetRequest(asked, number):
                    self._ask(
                        broker,
                        OffsetRequest(broker.name, asked, follower.leader_epoch, number, broker.role_number),
                    )
                case AppendReplicated(_) if broker.is_full:
                    self._told(broker.name, "no room for what came")
                case AppendReplicated(high_watermark):
                    for batch in batches:
                        broker.log.append(batch)
                        broker.producers.record(batch.header())
                    self._follow(broker, follower.on_appended(broker.log.end, high_watermark, self.now))
                case ServeConsumer() | RefuseConsumer():
                    pass
                case RequestSync():
                    self._request_sync(broker)
                case Truncate(offset):
                    broker.log.truncate(offset)
                    broker.log.rebuild(broker.producers)
                    self._send(broker.name, broker.name, CutDone(), broker.role_number)
                case StartOver():
                    self._install(broker, Snapshot(Offset(0)), CompactionPoint())
                case SendCheckpointRequest(number, offset, position):
                    self._ask(
                        broker,
                        CheckpointFetch(
                            replica=broker.name,
                            incarnation=broker.incarnation,
                            leader_epoch=follower.leader_epoch,
                            offset=offset,
                            position=position,
                            inbox=f"checkpoint#{broker.name}#{number}#{broker.role_number}",
                        ),
                    )
                case InstallCheckpoint(_, pieces, deleted_end):
                    copied = CompactionPoint.of_copy(deleted_end, follower.leader_epoch)
                    self._install(broker, decode_snapshot(b"".join(pieces)), copied)
                case ReportLeader(report):
                    self._send(broker.name, META, report)

    def _install(self, broker: Broker, snapshot: Snapshot, copied: CompactionPoint) -> None:
        broker.log.install(snapshot, copied)
        broker.log.rebuild(broker.producers)
        self._send(broker.name, broker.name, CutDone(), broker.role_number)

    def _send_fetch(self, broker: Broker, follower: Follower, effect: SendFetch) -> None:
        broker.sequence = effect.sequence
        fetch = FollowerFetch(
            replica=broker.name,
            incarnation=broker.incarnation,
            leader_epoch=follower.leader_epoch,
            sequence=effect.sequence,
            offset=effect.offset,
            durable_end=effect.durable_end,
            progress_only=effect.progress_only,
            inbox="" if effect.progress_only else f"{broker.name}#{effect.sequence}#{broker.role_number}",
            refused_batch=effect.refused_batch,
            no_space=effect.no_space,
            disk_hangs=effect.disk_hangs,
            deleted_end=broker.log.compaction_point.deleted_end,
        )
        self._ask(broker, fetch)

    def _ask(self, broker: Broker, request: FollowerFetch | OffsetRequest | CheckpointFetch) -> None:
        listeners = [other for other in self.brokers.values() if other.listens and other is not broker]
        for other in listeners:
            self._send(broker.name, other.name, request)
        if not listeners and not (isinstance(request, FollowerFetch) and request.progress_only):
            self._send(NATS, broker.name, NoResponders(), broker.role_number)

    def _request_sync(self, broker: Broker) -> None:
        done = Synced(broker.log.end, broker.log.cuts)
        self._send(broker.name, broker.name, done, broker.role_number)

    # ---- what others do to brokers ---------------------------------------------------------------------------------

    def watch(self, after_leader_effects: Callable[[Broker], None]) -> None:
        self._watched.append(after_leader_effects)

    def publish(
        self,
        name: str,
        values: str,
        *,
        acks: str = "none",
        token: str = "",
        timeout: float | None = None,
        lease_valid: bool = True,
        durability: str = "",
    ) -> TidelogError | None:
        """One batch, a record for each character. What refused it, if anything."""
        broker = self.brokers[name]
        leader = broker.leading
        assert leader is not None, f"{name} does not lead"
        try:
            level = self.level(broker, acks, durability)
        except TidelogError as error:
            return error
        refused = leader.refuse_publish(level, lease_valid=lease_valid, now=self.now)
        if refused is not None:
            return refused
        self.append(broker, Batch(broker.log.end, leader.leader_epoch, values), level, token, timeout)
        return None

    @staticmethod
    def level(broker: Broker, acks: str, durability: str = "") -> AckLevel | None:
        """`durability`: the publish's own; empty: the stream's. Raises TidelogError."""
        if acks == "none":
            return None
        assert broker.leading is not None
        asked = Durability.parse(durability) if durability else None
        return ack_level(broker.leading.view, asked, by_leader=acks == "leader")

    def append(
        self, broker: Broker, batch: Batch, level: AckLevel | None, token: str, timeout: float | None = None
    ) -> None:
        leader = broker.leading
        assert leader is not None
        batch = replace(batch, appended=self.now)
        broker.log.append(batch)
        broker.producers.record(batch.header())
        self.wait_for(broker, batch.end, level, token, timeout)
        self._lead(broker, leader.on_appended(batch.end, RECORD_BYTES * len(batch.values), self.now))

    def wait_for(
        self, broker: Broker, end: Offset, level: AckLevel | None, token: str, timeout: float | None = None
    ) -> None:
        leader = broker.leading
        assert leader is not None
        patience = self.settings.confirm_timeout if timeout is None else timeout
        if level is not None:
            self._lead(broker, leader.await_ack(level, end, token, patience, self.now))

    def lead_effects(self, name: str, effects: list[LeaderEffect]) -> None:
        self._lead(self.brokers[name], effects)

    def retain(self, name: str, offset: int) -> None:
        """What lies below `offset` has outlived the stream's limits there."""
        broker = self.brokers[name]
        broker.log.remove_before(Offset(offset))
        if broker.role is not None:
            broker.role.on_log_start(broker.log.start)

    def tick(self, name: str) -> None:
        broker = self.brokers[name]
        if broker.running and broker.role is not None:
            if isinstance(broker.role, Leader):
                self._lead(broker, broker.role.tick(self.now))
            else:
                self._follow(broker, broker.role.tick(self.now))

    def next_deadline(self) -> float:
        return min(
            (broker.role.next_deadline() for broker in self.brokers.values() if broker.running and broker.role),
            default=math.inf,
        )

    def connect(self, name: str, connected: bool) -> None:
        """Its connection to NATS is lost, with everything on its way from and to it, or made again."""
        broker = self.brokers[name]
        broker.connected_since = self.now if connected else math.inf
        if not connected:
            self.network = [
                message
                for message in self.network
                if name not in (message.source, message.target)
                or message.source == message.target
                or META in (message.source, message.target)
            ]
        if isinstance(broker.role, Leader):
            broker.role.on_connection(connected, self.now)
        elif broker.role is not None:
            self._follow(broker, broker.role.on_connection(broker.connected_since, self.now))

    def kill(self, name: str, *, power: bool = False) -> None:
        """The process ends; with `power`, what was not synced goes too. Requests on their way to it are lost."""
        broker = self.brokers[name]
        broker.running = False
        broker.role = None
        broker.role_number = 0
        broker.view = None
        self.network = [
            message for message in self.network if message.target != name and message.link != f"{name}>{name}"
        ]
        if power:
            broker.log.lose_power()
        else:
            broker.log.recover()
        broker.log.rebuild(broker.producers)
        broker.high_watermark = max(broker.log.start, min(broker.checkpoint, broker.log.end))

    def register(self, name: str, *, folder_same: bool = True, cache_survived: bool = True) -> None:
        """A new life of that broker, running or not."""
        broker = self.brokers[name]
        self.end_role(broker, "a new life begins")
        broker.view = None
        broker.running = True
        broker.sequence = 0
        if broker.connected_since == math.inf:
            broker.connected_since = self.now
        self.network = [message for message in self.network if message.target != name]
        outcome = self.cluster.register(name, folder_same=folder_same, page_cache_survived=cache_survived)
        outcome.raise_for_refusal()
        broker.incarnation = Incarnation(outcome.value)
        before = self._sent
        self.spread()
        if before == self._sent:
            self.spread(to=name)

    def leaders(self) -> Iterator[tuple[Broker, Leader]]:
        for broker in self.brokers.values():
            if broker.running and broker.leading is not None:
                yield broker, broker.leading
