"""The parts of the cluster state: brokers, streams, partitions, and the outcome of a command.

Partitions and brokers are values: a change replaces them, so that a value in a reader's hands never changes, and the
difference between two states is a comparison.

Invariants of a partition, checked by `check`:
- `isr`, `eligible` and the withdrawn replicas are subsets of `replicas`, in its order; `isr` is never empty;
- `isr` and `eligible` are disjoint; `eligible` is empty while the ISR has min ISR members (KIP-966);
- the leader, if there is one, is in the ISR and not withdrawn;
- `epoch` grows with every change, `leader_epoch` with every change of leader, new life of it, and withdrawal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.errors import Code, InvariantViolation, TidelogError
from wire.layouts import Layout
from wire.stream_config import StreamConfig
from wire.subjects import ingest_subject
from wire.types import (
    BrokerId,
    Generation,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionState,
    PartitionView,
    StreamName,
)

MAX_PARTITIONS = 10_000
"""Per stream; a stream is created by one Raft command of bounded size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker as last registered. `alive` is the group's word, changed by commands only."""

    id: BrokerId
    life_id: str
    incarnation: Incarnation
    alive: bool
    raft_address: str
    """Empty: an observer, which does not vote."""
    earlier_lives: tuple[str, ...] = ()
    """Ids of lives that are over, as far as remembered, oldest first: a registration of theirs that comes late counts
    for nothing."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A replica that must not lead although it is in the ISR: it is unsound and no other replica can take its place."""

    replica: BrokerId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    incarnation: Incarnation
    replicas: tuple[BrokerId, ...]
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch
    unclean_epoch: LeaderEpoch = LeaderEpoch(0)
    """The last one that an operator began with an unclean election; 0: none."""
    state: PartitionState = PartitionState.ACTIVE
    """DRAINING and RETIRED are stored and not yet acted on: docs/design.md."""
    paused: bool = False
    """Its followers sleep until a record comes (R47)."""
    resume_all: bool = False
    """While it is paused: a record that comes resumes all of the stream."""
    readonly: bool = False
    """It takes no records (R43)."""
    purged_end: Offset = Offset(0)
    """Records below it were deleted by an operator (R44). It only grows."""

    def is_withdrawn(self, broker: BrokerId) -> bool:
        return any(entry.replica == broker for entry in self.withdrawn)

    def in_replica_order(self, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in self.replicas if replica in brokers)

    def check(self, min_isr: int) -> None:
        """Raises InvariantViolation when one of the module's invariants does not hold."""
        withdrawn = tuple(entry.replica for entry in self.withdrawn)
        broken = [
            text
            for text, holds in (
                ("the ISR is empty", bool(self.isr)),
                ("the ISR is not replicas in their order", self.isr == self.in_replica_order(self.isr)),
                ("eligible is not replicas in their order", self.eligible == self.in_replica_order(self.eligible)),
                ("a withdrawn broker is not a replica", all(broker in self.replicas for broker in withdrawn)),
                ("a replica is in the ISR and eligible", not any(broker in self.isr for broker in self.eligible)),
                ("eligible replicas beside a full ISR", not self.eligible or len(self.isr) < min_isr),
                ("the leader is not in the ISR", self.leader is None or self.leader in self.isr),
                ("the leader is withdrawn", self.leader is None or self.leader not in withdrawn),
                ("an epoch is below 1", self.epoch >= 1 and self.leader_epoch >= 1),
            )
            if not holds
        ]
        if broken:
            raise InvariantViolation(f"{'; '.join(broken)}: {self}")


@dataclass(slots=True, kw_only=True)
class Stream:
    """`kind`, `partitioner`, `placement`, `leader_pin` and more than one layout are stored and not yet acted on:
    docs/design.md."""

    name: StreamName
    subject: str
    incarnation: Incarnation
    kind: str
    config: dict[str, str]
    """As given at creation and altered since, the cluster's defaults of those times included; missing settings have
    their built-in defaults."""
    replication_factor: int
    partitioner: str
    partitioning_version: int
    routing_generation: Generation
    """At which leaders, partitions or layouts last changed."""
    layouts: tuple[Layout, ...]
    placement: str
    leader_pin: str
    partitions: dict[int, Partition]
    settings: StreamConfig = field(init=False, compare=False)
    """`config`, read, with min ISR filled in."""

    def __post_init__(self) -> None:
        self.settings = StreamConfig.from_strings(self.config).resolved(self.replication_factor)

    @property
    def min_isr(self) -> int:
        return self.settings.min_isr

    @property
    def durable(self) -> bool:
        return self.settings.is_durable

    @property
    def shared(self) -> tuple[object, ...]:
        """The part that the views of all its partitions share."""
        return self.subject, self.settings, self.partitioning_version, self.layouts

    def key(self, number: int) -> PartitionKey:
        return PartitionKey(self.name, self.incarnation, number, self.partitions[number].incarnation)

    def view(self, number: int) -> PartitionView:
        partition = self.partitions[number]
        return PartitionView(
            key=self.key(number),
            subject=ingest_subject(self.subject, number),
            config=self.settings,
            replicas=partition.replicas,
            leader=partition.leader,
            isr=partition.isr,
            eligible=partition.eligible,
            epoch=partition.epoch,
            leader_epoch=partition.leader_epoch,
            loss_accepted=partition.unclean_epoch == partition.leader_epoch,
            state=partition.state,
            paused=partition.paused,
            readonly=partition.readonly,
            purged_end=partition.purged_end,
            partitioning_version=self.partitioning_version,
            partition_count=self.layouts[-1].partitions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Where to look after a command or a snapshot. Readers reconcile to the state itself."""

    partitions: tuple[PartitionKey, ...] = ()
    """New or changed; sorted."""
    gone: tuple[PartitionKey, ...] = ()
    """Deleted; sorted."""
    brokers: tuple[BrokerId, ...] = ()
    """Registered, dead; sorted."""
    controller: bool = False
    """A new controller epoch."""
    streams: bool = False
    """Streams were created or deleted."""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.gone or self.brokers or self.controller)


NOTHING = Changes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of applying a command; the same on every node.

    `value` is the command's own number: the controller epoch begun, the incarnation registered or created, the first
    producer id. `items` has one entry per item of a command with items, None for one that took effect; empty for a
    repeated command, whose items are read from the state.
    """

    code: Code | None = None
    message: str = ""
    value: int = 0
    items: tuple[Code | None, ...] = ()
    generation: Generation = Generation(0)
    changes: Changes = NOTHING
    repeated: bool = False

    def raise_for_refusal(self) -> None:
        """Raises the refusal as TidelogError."""
        if self.code is not None:
            raise TidelogError(self.code, self.message)
