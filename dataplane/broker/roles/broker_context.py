"""The parts that a broker's whole data plane shares: its name, the connections, the clocks, the ports to the rest.

Features keep their state themselves: `BrokerContext.the` makes the one object of a broker that their parts share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from dataplane.broker.disk.disk_watch import DiskWatch
from dataplane.broker.disk.space_watch import SpaceWatch
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.encryption.keyring import Keyring
from dataplane.log.storage.group_commit import Syncer
from dataplane.replica.replica_settings import ReplicaSettings
from dataplane.replica.traffic import TrafficMeter
from wire.batch import EncodedBatch
from wire.errors import TidelogError
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import PeerTransport, Transport
from wire.security.producer_keys import ProducerKeys
from wire.security.tickets import Tickets
from wire.subjects import Subjects
from wire.types import (
    BrokerId,
    Buffer,
    CutoverReport,
    Generation,
    Incarnation,
    IsrChange,
    LeaderEpoch,
    LeaderReport,
    LossReport,
    Offset,
    PartitionKey,
    PauseChange,
    RetiredReport,
    Withdrawal,
)


class LedPartition(Protocol):
    """A partition that this broker leads, for coordinators in the same process.

    `tidelog.server.coordinators.driver.coordinator` drives them. A coordinator reads what is committed and appends,
    beside the leader and without a message. Its LeaderEpoch is the leader's: what it appends is stored by no other
    leader, and after `on_end` nothing is.
    """

    @property
    def key(self) -> PartitionKey: ...

    @property
    def subject(self) -> str:
        """The subject of the partition."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def max_batch_bytes(self) -> int:
        """Most bytes of a batch that `append` takes."""
        ...

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        """Whole batches below the last stable offset, from the one with `offset` on, those of aborted transactions
        without their records; none: there are no more at present. Raises TidelogError, LogDamaged, CorruptData."""
        ...

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        """`done(None)`: it is committed. An error: as of an acks=all publish."""
        ...

    def on_committed(self, end: Offset, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        """`done(None)`: everything below `end` is committed. An error: it was not within `timeout` seconds, or this
        broker leads no more."""
        ...

    def on_end(self, handler: Callable[[], None]) -> None:
        """To be called when this broker leads it no more in this LeaderEpoch."""
        ...


ANSWER_OVERHEAD = 1024
"""Room in a message for the 16-byte header, NATS headers and an append preamble, or for the bytes that encryption adds
to a batch that came with one."""


class MetadataPort(Protocol):
    """Requests of the data plane to the metadata plane. All of them are fire and forget: outcomes are read from later
    views."""

    def alter_isr(self, change: IsrChange) -> None: ...
    def alter_paused(self, change: PauseChange) -> None: ...
    def report_cutover(self, report: CutoverReport) -> None: ...
    def report_retired(self, report: RetiredReport) -> None: ...
    def report_leader(self, report: LeaderReport) -> None: ...
    def withdraw(self, withdrawal: Withdrawal) -> None: ...
    def report_loss(self, report: LossReport) -> None: ...
    def lease_valid(self, now: float) -> bool:
        """A controller has probed this broker within its lease."""
        ...

    def led_at(self, moment: float) -> bool:
        """The leaderships that this broker believes to have were its own at that moment, or later."""
        ...

    def agreed_time_ns(self) -> int | None:
        """The time by which this broker may forget, ns since 1970; None: it may not now (R72)."""
        ...

    def next_producer_id(self) -> int:
        """No producer without transactions has been given this id or a higher one, as far as is applied here."""
        ...

    @property
    def generation(self) -> Generation:
        """The generation of the cluster state that is applied."""
        ...

    @property
    def recovered_at(self) -> Generation:
        """The last generation before the cluster last began anew; 0: it never did."""
        ...

    def is_of_lost_decisions(self, key: PartitionKey, assigned_at: Generation | None) -> bool:
        """The partition may have been made, or given to this broker, by a decision that was lost when the cluster began
        anew. `assigned_at`: the generation of the state by which this broker has it; None: an earlier process had it.
        """
        ...


class OfBroker(Protocol):
    """State of a feature of which a broker has one object."""

    @classmethod
    def of_broker(cls, context: BrokerContext) -> Self: ...


_Kind = TypeVar("_Kind", bound=OfBroker)


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    broker: BrokerId
    incarnation: Incarnation
    """0 until the registration of this process is applied; nothing is led or followed before."""
    ingest: Transport
    """Carries the messages of clients and the answers to them."""
    control: Transport
    """Carries acknowledgements, so that a flood of publishes does not starve them."""
    peers: PeerTransport
    """Carries replication and notifications, over the connection of `control`."""
    subjects: Subjects
    replies: ReplySubjects
    tickets: Tickets
    """Tickets under the brokers' secret: transactional batches show one."""
    producer_keys: ProducerKeys
    """Proofs of batches with a producer id are checked with them."""
    settings: ReplicaSettings
    metadata: MetadataPort
    syncer: Syncer
    executor: Executor
    """For blocking work on logs that roles wait for: opening, cutting, a leader's first sync."""
    checkpoints: Syncer
    """For the periodic checkpoints and syncs, so that nothing else waits for a log that hangs in one of them."""
    decoders: Executor
    """One thread, for clients' batches that take long to decode: see `dataplane.broker.leading.append_requests`."""
    readers: Executor
    """For cold reads: however many there are, a change of role does not stand behind them."""
    housekeeping: Executor
    """One thread, for work that no role or request waits for: see `dataplane.broker.upkeep.housekeeping`."""
    space: SpaceWatch
    loop: asyncio.AbstractEventLoop
    time_ns: Callable[[], int]
    storage: StorageSettings = field(default_factory=StorageSettings)
    traffic: TrafficMeter = field(default_factory=TrafficMeter)
    """What clients send and are sent, without that of internal streams."""
    cluster_id: str = ""
    """Id of the cluster; empty until the registration of this process is applied."""
    replication_budget: Callable[[], int] = lambda: 0
    """Bytes a second for replicas outside the ISR of the partitions that this broker leads; 0: no limit."""
    on_led: Callable[[LedPartition], None] = lambda _: None
    """A leader has begun to serve."""
    keyring: Keyring = field(default_factory=Keyring)
    """For streams with `encryption`."""
    disk: DiskWatch = field(init=False)
    now: Callable[[], float] = field(init=False)
    """Monotonic seconds."""
    _of_broker: dict[type[OfBroker], OfBroker] = field(default_factory=dict, init=False)

    def the(self, kind: type[_Kind]) -> _Kind:
        """The broker's one object of that kind. It is made when it is first asked for, so that each feature keeps its
        own state and the context knows none of them."""
        found = self._of_broker.get(kind)
        if found is None:
            found = self._of_broker[kind] = kind.of_broker(self)
        assert isinstance(found, kind)
        return found

    @property
    def max_batch_bytes(self) -> int:
        """Largest batch that is taken in; a message of NATS has room for it and its headers."""
        return min(self.ingest.max_payload, self.control.max_payload) - ANSWER_OVERHEAD

    def not_permitted(self, subjects: Iterable[str]) -> list[str]:
        """Those that NATS does not let this broker subscribe to."""
        refused, also = self.ingest.violations.subscriptions, self.control.violations.subscriptions
        return [subject for subject in subjects if subject in refused or subject in also]

    def __post_init__(self) -> None:
        self.disk = DiskWatch(self.settings, (self.syncer, self.checkpoints), self.loop)
        self.now = self.loop.time
