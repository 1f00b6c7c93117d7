"""The parts of the cluster state: brokers, streams, partitions, and the outcome of a command.

Partitions and brokers are values: a change replaces them, so that a value which a reader holds never changes, and the
difference between two states is a comparison.

Invariants of a partition, checked by `check`:
- `isr`, `eligible` and the withdrawn replicas are subsets of `replicas`, in its order; `isr` is never empty;
- `returned` names members of `isr` and `eligible`;
- `isr` and `eligible` are disjoint; `eligible` is empty while the ISR has min ISR members (KIP-966);
- the leader, if there is one, is in the ISR and not withdrawn;
- `epoch` grows with every change, `leader_epoch` with every change of leader, new incarnation of it, and withdrawal,
  and when replicas are removed;
- the replicas of a partition under reassignment include the original ones; once it is started they begin with its
  target, in that order.

A stream is repartitioned while it is in use (R58). The newest layout's partitions have the numbers 0 to n, exclusive;
a partition with a higher number takes no records:

    none ──Prepare──> ACTIVE, made ready ──Cutover──> ACTIVE, routed ──Cutover of fewer──> DRAINING ──Finish──> RETIRED
      ^                       |                             ^                                                    |
      +-------Cancel----------+                             +-------------------Cutover of more------------------+
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import gcd
from typing import NamedTuple

from wire.errors import Code, InvariantViolation, TidelogError
from wire.layouts import NOT_REPORTED, Layout
from wire.stream_config import StreamConfig
from wire.subjects import ingest_subject
from wire.types import (
    BrokerId,
    Generation,
    Incarnation,
    IsrMember,
    LeaderEpoch,
    LogEnd,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionState,
    PartitionView,
    StreamName,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker as last registered. `alive` is changed by commands only."""

    id: BrokerId
    life_id: str
    incarnation: Incarnation
    alive: bool
    raft_address: str
    """Empty: an observer, which does not vote."""
    earlier_lives: tuple[str, ...] = ()
    """Ids of processes that are over, as far as remembered, oldest first: a late registration of one of them is
    refused."""
    zone: str = ""
    """Where it runs: replicas of a partition are spread over zones. Empty: not given."""
    tags: tuple[str, ...] = ()
    """Sorted; streams may ask for brokers with some of them."""
    draining: bool = False
    """It gets no replicas, and those that it has go to others (R93)."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A replica that must not lead although it is in the ISR: it is unsound and no other replica can take its place.

    Where only the folder is missing in which it was sound, it leads again with that folder. The partition has been
    offline meanwhile, so nothing else was committed.
    """

    replica: BrokerId
    reason: str
    sound_incarnation: Incarnation = Incarnation(0)
    """The incarnation of the broker in which the replica was last sound; 0: it is damaged, or that is not known."""
    sound_life: str = ""
    """`life_id` of that incarnation."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A replica in the ISR, or eligible, whose broker has begun a new incarnation since a leader last saw it in sync.
    It proved that it lost nothing; the end of its log is the one that it reported."""

    replica: BrokerId
    incarnation: Incarnation
    """The new incarnation."""
    log: LogEnd


class LostDecisions(NamedTuple):
    """Generations that commands may have had which were lost when the cluster began anew. Both inclusive."""

    first: Generation
    last: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """A change of a partition's replicas that is under way (`metadata.cluster.reassignment`)."""

    target: tuple[BrokerId, ...]
    """The replicas that the partition is to have; the first one is its preferred leader."""
    original: tuple[BrokerId, ...]
    """The replicas that it had before."""
    begun: Generation
    """Generation of the command that began it. Those that were begun first start first."""
    is_started: bool = False
    """The replicas that are added copy; until then none is."""
    is_cancelled: bool = False
    """It goes back: the target is the original set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    incarnation: Incarnation
    replicas: tuple[BrokerId, ...]
    """While a reassignment copies: its target, then those that are to be removed. A replica outside the ISR and
    `eligible` counts for nothing."""
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...] = ()
    withdrawn: tuple[Withdrawn, ...] = ()
    returned: tuple[Returned, ...] = ()
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch
    unclean_epoch: LeaderEpoch = LeaderEpoch(0)
    """The last LeaderEpoch that an operator began with an unclean election; 0: none."""
    loss_epoch: LeaderEpoch = LeaderEpoch(0)
    """The last LeaderEpoch whose leader may lack committed records: an unclean election, or the last member of the ISR
    of an `accepted` stream, which has lost its page cache (R22). 0: none."""
    state: PartitionState = PartitionState.ACTIVE
    """DRAINING: the cutover to a layout without it is not finished. RETIRED: that is over; the partition can be read,
    and takes no records."""
    paused: bool = False
    """The followers sleep until a record comes (R47)."""
    resume_all: bool = False
    """While it is paused: a record that comes resumes all partitions of the stream."""
    readonly: bool = False
    """The partition takes no records (R43)."""
    purged_end: Offset = Offset(0)
    """Records below it were deleted by an operator (R44). It only grows."""
    reassignment: Reassignment | None = None

    @property
    def copies(self) -> int:
        """Number of replicas that the partition has and keeps. Those that a reassignment adds do not count while those
        that it removes are there."""
        moving = self.reassignment
        return len(self.replicas) if moving is None else min(len(moving.original), len(moving.target))

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
                (
                    "a returned replica is neither in the ISR nor eligible",
                    all(entry.replica in (*self.isr, *self.eligible) for entry in self.returned),
                ),
                ("the leader is withdrawn", self.leader is None or self.leader not in withdrawn),
                ("an epoch is below 1", self.epoch >= 1 and self.leader_epoch >= 1),
                ("a replica is named twice", len({*self.replicas}) == len(self.replicas)),
                *self._of_reassignment(),
            )
            if not holds
        ]
        if broken:
            raise InvariantViolation(f"{'; '.join(broken)}: {self}")

    def _of_reassignment(self) -> tuple[tuple[str, bool], ...]:
        moving = self.reassignment
        if moving is None:
            return ()
        return (
            ("an original replica is gone", {*moving.original} <= {*self.replicas}),
            (
                "the replicas do not begin with the target",
                not moving.is_started or self.replicas[: len(moving.target)] == moving.target,
            ),
            (
                "a replica is added that waits",
                moving.is_started or all(b in (*moving.original, *self.isr, *self.eligible) for b in self.replicas),
            ),
            ("a reassignment goes back to another set", not moving.is_cancelled or moving.target == moving.original),
        )


class RepartitionPhase(Enum):
    PREPARED = "prepared"
    """The partitions are there; keys are spread as before."""
    CUTOVER = "cutover"
    """Keys are spread anew; partitions of the layout before may have to report where it ends, and clients to apply it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """A repartition that is under way."""

    version: int
    """The partitioning version that it begins, or has begun."""
    partitions: int
    phase: RepartitionPhase
    prepared_generation: Generation
    """The generation of the command that prepared it."""
    adoption_generation: Generation = Generation(0)
    """The generation of the cutover: clients that know the stream as of this generation or later route by the new
    layout."""


@dataclass(slots=True, kw_only=True)
class Stream:
    """`kind` is stored and not yet acted on: docs/design.md."""

    name: StreamName
    subject: str
    incarnation: Incarnation
    kind: str
    config: dict[str, str]
    """The settings given at creation and altered since, with the cluster's defaults of those times; missing settings
    have their built-in defaults."""
    replication_factor: int
    """The wanted one."""
    partitioner: str
    """One of `wire.layouts.PARTITIONERS`, or of a later version's: for producers that choose none."""
    partitioning_version: int
    routing_generation: Generation
    """Generation at which leaders, partitions or layouts last changed."""
    layouts: tuple[Layout, ...]
    partitions: dict[int, Partition]
    """All partitions, also with numbers above the newest layout's, of which some may be missing."""
    repartition: Repartition | None = None
    copies: int = 0
    """The least number of replicas that a partition has and keeps, `replication_factor` at most: smaller while that
    grows. 0 is set to `replication_factor`."""
    settings: StreamConfig = field(init=False, compare=False)
    """`config`, read, with min ISR filled in."""
    _step: int = field(init=False, compare=False)
    _unreported: frozenset[int] = field(init=False, compare=False)
    """Modulo `_step`, the partitions of the layout before that have not reported where it ends."""

    def __post_init__(self) -> None:
        self.copies = self.copies or self.replication_factor
        self.settings = StreamConfig.from_strings(self.config).resolved(self.copies)
        before = self.layouts[-2].partitions if len(self.layouts) > 1 else 1
        # Of two partitions with keys in common the numbers are equal by this modulus: `wire.layouts.sources`.
        self._step = gcd(before, self.partition_count)
        starts = self.layouts[-1].starts[:before]
        self._unreported = frozenset(
            source % self._step for source, start in enumerate(starts) if start == NOT_REPORTED
        )

    @property
    def min_isr(self) -> int:
        return self.settings.min_isr

    @property
    def is_growing(self) -> bool:
        """Whether partitions have fewer replicas than are wanted (R91)."""
        return self.copies < self.replication_factor

    @property
    def durable(self) -> bool:
        return self.settings.is_durable

    @property
    def partition_count(self) -> int:
        """The number of partitions of the newest layout."""
        return self.layouts[-1].partitions

    @property
    def partitions_in_words(self) -> str:
        """Numbers of all existing partitions: "0 to 5", or "0 to 1, 4" where some were removed."""
        numbers = sorted(self.partitions)
        firsts = [number for number in numbers if number - 1 not in self.partitions]
        lasts = [number for number in numbers if number + 1 not in self.partitions]
        runs = zip(firsts, lasts, strict=True)
        return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)

    def is_made_ready(self, number: int) -> bool:
        """Whether the partition waits for the cutover to a layout that has it."""
        return number >= self.partition_count and self.partitions[number].state is PartitionState.ACTIVE

    # Keeps R59.
    def awaits_sources(self, number: int) -> bool:
        """Whether a partition from which keys come to this one in the newest layout has not reported its cutover."""
        return number < self.partition_count and number % self._step in self._unreported

    @property
    def shared(self) -> tuple[object, ...]:
        """The part of the stream on which the views of all its partitions depend."""
        beyond = (
            sorted(
                (number, partition.state)
                for number, partition in self.partitions.items()
                if number >= self.partition_count
            )
            if len(self.partitions) > self.partition_count
            else []
        )
        return self.subject, self.settings, self.partitioning_version, self.layouts, beyond

    def key(self, number: int) -> PartitionKey:
        return PartitionKey(self.name, self.incarnation, number, self.partitions[number].incarnation)

    def view(self, number: int) -> PartitionView:
        partition = self.partitions[number]
        return PartitionView(
            key=self.key(number),
            subject=ingest_subject(self.subject, number),
            config=self.settings,
            replicas=partition.replicas,
            copies=partition.copies,
            leader=partition.leader,
            isr=partition.isr,
            eligible=partition.eligible,
            epoch=partition.epoch,
            leader_epoch=partition.leader_epoch,
            loss_accepted=partition.unclean_epoch == partition.leader_epoch,
            loss_epoch=partition.loss_epoch,
            returned=tuple(IsrMember(entry.replica, entry.incarnation) for entry in partition.returned),
            state=partition.state,
            paused=partition.paused,
            readonly=partition.readonly,
            purged_end=partition.purged_end,
            partitioning_version=self.partitioning_version,
            partition_count=self.partition_count,
            awaits_cutover=self.layouts[-1].start(number) == NOT_REPORTED,
            awaits_sources=self.awaits_sources(number),
            further_subjects=self._further_subjects(number),
        )

    def _further_subjects(self, number: int) -> tuple[str, ...]:
        """Subjects of partitions that some layout has had and the newest one has not, whose leaders do not listen, also
        where the partition was removed: the one with the same number modulo the newest layout's count listens in their
        place."""
        count, newest = self.partition_count, self.layouts[-1]
        if number >= count:
            return ()
        most = max(layout.partitions for layout in self.layouts)
        return tuple(
            ingest_subject(self.subject, other)
            for other in range(number + count, most, count)
            if (partition := self.partitions.get(other)) is None
            or partition.state is not PartitionState.DRAINING
            or newest.start(other) != NOT_REPORTED
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Objects that a command or a snapshot may have changed. Readers reconcile to the state itself."""

    partitions: tuple[PartitionKey, ...] = ()
    """New or changed; sorted."""
    gone: tuple[PartitionKey, ...] = ()
    """Deleted; sorted."""
    brokers: tuple[BrokerId, ...] = ()
    """Registered, declared dead, or removed; sorted."""
    controller: bool = False
    """A new controller epoch."""
    streams: bool = False
    """Streams were created or deleted."""
    repartitioned: tuple[StreamName, ...] = ()
    """Streams with another layout, or whose repartition began or ended; sorted."""

    def __bool__(self) -> bool:
        return bool(self.partitions or self.gone or self.brokers or self.controller or self.repartitioned)


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
