"""One broker of a `ReplicaSet`: its disk, and while it runs its process, its connection and its production replica."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import heappop
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from dataplane.broker.disk.space_watch import SpaceWatch
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.replica import Replica
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.role import RoleCounters, RoleSetup
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.group_commit import QuickSyncable, Syncable
from dataplane.replica.leader.leader import Leader
from dataplane.replica.replica_effects import (
    FollowerEffect,
    LeaderEffect,
)
from tests.fake_nats import FakeTransport
from tests.simulation.machines.disk import SimDisk
from tests.simulation.world import Process, SimulatedCrash
from tests.tickets import producer_keys, tickets
from wire.batch import (
    BatchBuilder,
    EncodedBatch,
    Marker,
    RecordBatch,
    iter_batches,
    parse_header,
    with_message_id,
)
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import Message as NatsMessage
from wire.protobuf.tidelog_pb2 import (
    PartitionNotification,
)
from wire.subjects import Subjects
from wire.types import (
    NO_PRODUCER,
    BrokerId,
    Buffer,
    CutoverReport,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderReport,
    LossReport,
    Offset,
    PartitionView,
    PauseChange,
    Withdrawal,
)

if TYPE_CHECKING:
    from tests.protocol.replica_set import ReplicaSet

META = "meta"
NATS = "nats"
SUBJECTS = Subjects()
DATA = Path("/data")
ROLES: Any = "roles"
"""In place of the executor that roles wait for."""
CLIENT = "_INBOX.client."
HOLE = "."
"""In the place of a record that was compacted away."""
COMMITTED, ABORTED = "+", "-"
"""A marker, which ends a transaction."""
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
    run: Callable[[], tuple[str, Callable[[], object]]]
    """Makes the call. Returns what the transcript says of it, and the function by which the waiting code hears of it.
    """


Body: TypeAlias = (
    NatsMessage
    | DiskCall
    | IsrChange
    | PauseChange
    | CutoverReport
    | LeaderReport
    | LossReport
    | Withdrawal
    | PartitionView
)


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
    """(offset, LeaderEpoch, value) of each record, of a tombstone the capital of its key; and of each marker, as
    COMMITTED or ABORTED."""
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read_from_disk(at, max_bytes=log.size_bytes, end_offset=log.log_end_offset)
        yield from records_in(data)
        *_, (_, last) = iter_batches(data)
        at = last.end_offset


def versions_of(log: PartitionLog) -> Iterator[tuple[Offset, int]]:
    """(offset, partitioning version) of each batch that says one."""
    if log.log_start_offset < log.log_end_offset:
        data = log.read_from_disk(log.log_start_offset, max_bytes=log.size_bytes, end_offset=log.log_end_offset)
        for _, header in iter_batches(data):
            if header.partitioning_version:
                yield header.base_offset, header.partitioning_version


def records_in(batches: Buffer) -> Iterator[tuple[Offset, LeaderEpoch, str]]:
    """As `records_of`."""
    for position, header in iter_batches(batches):
        for delta, value in _values(bytes(batches[position : position + header.size])):
            yield Offset(header.base_offset + delta), header.leader_epoch, value


@lru_cache(maxsize=4096)
def _values(batch: bytes) -> tuple[tuple[int, str], ...]:
    marker = parse_header(batch).marker
    if marker is not None:
        return ((0, COMMITTED if marker is Marker.COMMIT else ABORTED),)
    decoded = RecordBatch.decode(batch)
    found = zip(decoded.offsets.tolist(), decoded.keys, decoded.values, strict=True)
    base = decoded.header.base_offset
    return tuple(
        (offset - base, (key or b"").decode().upper() if value is None else value.decode())
        for offset, key, value in found
    )


def batch_of(
    values: str,
    timestamp: int,
    producer: tuple[int, int, int] | None = None,
    ids: list[str | None] | None = None,
    *,
    is_transactional: bool = False,
) -> EncodedBatch:
    """A record for each character, which is its key, too; a capital is the tombstone of its letter. `ids`: their
    message ids."""
    builder = BatchBuilder()
    builder.has_message_ids = ids is not None
    for value, each in zip(values, ids or [None] * len(values), strict=True):
        headers = with_message_id(b"", each.encode()) if each else b""
        builder.add_record(None if value.isupper() else value.encode(), value.lower().encode(), headers)
    identity, epoch, sequence = producer or (NO_PRODUCER, -1, -1)
    return builder.build(
        timestamp,
        producer_id=identity,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


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

    def in_thread(
        self, work: Callable[[], Any], finished: Callable[[Any, BaseException | None], None], executor: object = None
    ) -> None:
        name = getattr(work.func if isinstance(work, partial) else work, "__qualname__", "")
        label = "cut" if name.startswith(FollowerDriver.__name__) else name

        def run() -> tuple[str, Callable[[], object]]:
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

    def __init__(
        self, name: str, on_sent: Callable[[Connection, NatsMessage], None], on_acked: Callable[[], None], now: float
    ) -> None:
        super().__init__(connected_since=now)
        self.name = name
        self.asking = 0
        """Number of the `.offset` or `.checkpoint` request that is being sent."""
        self._on_sent = on_sent
        self._on_acked = on_acked
        """Acknowledgements of bare publishes were sent."""

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
        to: BrokerId | None = None,
    ) -> bool:
        is_sent = super().publish(subject, parts, reply=reply, headers=headers)
        if is_sent:
            self._on_sent(self, NatsMessage(subject, b"".join(parts), reply, headers))
        return is_sent

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        if self.is_connected:
            self._on_acked()
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
    """`dataplane.log.storage.group_commit.SyncScheduler` on a disk that is never quick: a sync is a message of the
    disk. It begins when that arrives, and serves all requests that have come by then."""

    is_crowded = False
    waiting_since = math.inf

    def __init__(self, call: Callable[[DiskCall], None]) -> None:
        self._call = call
        self._waiting: list[Callable[[Offset | Exception], None]] = []

    def at_once(self, log: QuickSyncable) -> Offset | None:
        return None

    def request(self, log: Syncable, done: Callable[[Offset | Exception], None]) -> bool:
        def run() -> tuple[str, Callable[[], object]]:
            served, self._waiting = self._waiting, []
            end = log.sync()
            return f"synced to {end}", lambda: [waiting(end) for waiting in served]

        if done in self._waiting[-1:]:
            return False
        self._waiting.append(done)
        if len(self._waiting) == 1:
            self._call(DiskCall("sync", run))
        return True


class Broker:
    """One broker's disk, and its replica while it runs."""

    def __init__(self, replicas: ReplicaSet, name: str) -> None:
        self.name = BrokerId(name)
        self.has_lease = True
        self.counted_on_at = -math.inf
        """When a controller was last known to count on its leaderships."""
        self.clock_ahead_ns = 0
        """Its wall clock is not the one on which most brokers agree."""
        self.disk = SimDisk(crash=SimulatedCrash)
        self._set = replicas
        self._life: _Life | None = None
        self.cache_survived = True
        """No loss of power has taken what was not synced."""
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
            self._left = self._left or self._set.open_log(self.disk.copy(), page_cache_survived=self.cache_survived)
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
        self.cache_survived = True

    def kill(self, *, power: bool) -> None:
        life, self._life, self._left = self.life, None, None
        life.process.kill()
        self.disk.kill_process()
        self.cache_survived = not power
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
        process.wall_skew_ns = broker.clock_ahead_ns
        on_sent = partial(replicas.on_sent, broker)
        self.connection = Connection(f"{name}-{incarnation}", on_sent, replicas.acked_bare, process.time())
        self.connection.max_payload = replicas.max_payload
        self.connection.subscribed[SUBJECTS.notify(name)] = self._on_notification
        metadata = SimpleNamespace(
            alter_isr=self._ask_meta,
            alter_paused=self._ask_meta,
            report_cutover=self._ask_meta,
            report_retired=lambda _report: None,
            report_leader=self._ask_meta,
            withdraw=self._ask_meta,
            report_loss=self._ask_meta,
            lease_valid=lambda _now: broker.has_lease,
            led_at=lambda moment: broker.counted_on_at >= moment,
            agreed_time_ns=lambda: None if process.wall_skew_ns else process.time_ns(),
            next_producer_id=lambda: replicas.next_producer_id,
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
            peers=self.connection,
            subjects=SUBJECTS,
            replies=ReplySubjects(SUBJECTS, list, int),
            tickets=tickets(lambda: process.time_ns() / 1_000_000_000),
            producer_keys=producer_keys(),
            settings=replicas.settings,
            metadata=cast(Any, metadata),
            syncer=Syncer(lambda call: replicas.send(Message(name, name, call))),
            executor=ROLES,
            checkpoints=cast(Any, None),
            decoders=cast(Any, None),
            readers=ROLES,
            housekeeping=cast(Any, None),
            space=space,
            loop=process,
            time_ns=process.time_ns,
            storage=storage,
            replication_budget=lambda: replicas.replication_budget,
        )
        space.on_room = lambda _room: self.replica.on_space(space.is_full)
        self.replica = Replica(replicas.key, replicas.directory, replicas.log_config, files=broker.disk)
        self.replica.open(page_cache_survived=broker.cache_survived)

    def _ask_meta(self, body: IsrChange | PauseChange | CutoverReport | LeaderReport | LossReport | Withdrawal) -> None:
        self._set.send(Message(self.broker.name, META, body))

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


def told_drivers(replicas: ReplicaSet) -> tuple[type[LeaderDriver], type[FollowerDriver]]:
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
            refused = self.context.the(RoleCounters).refused_no_space
            super()._append(high_watermark)
            if self.context.the(RoleCounters).refused_no_space > refused:
                replicas.tell(self.context.broker, "no room for what came")

    return ToldLeader, ToldFollower
