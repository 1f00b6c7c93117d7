"""The domain's types. Every other package speaks in these.

Offsets are dense positions of records in a partition, from 0. Two ends matter: the log end offset (LEO) and the high
watermark (HW). Both are EXCLUSIVE here: the next offset to be assigned, and the end of the committed log. On the wire
and towards users the HW is inclusive (-1 = none); `wire.partition_messages.replication` and `high_watermark_to_wire`
convert, no other module does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple, NewType, TypeAlias

from wire.errors import TidelogError
from wire.stream_config import StreamConfig

Buffer: TypeAlias = bytes | bytearray | memoryview
BrokerId = NewType("BrokerId", str)
StreamName = NewType("StreamName", str)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
"""+1 at every change of leader and new incarnation of the same leader; from 1; 0 on the wire = missing, refused."""
PartitionEpoch = NewType("PartitionEpoch", int)
"""+1 at every change of the partition's metadata."""
Incarnation = NewType("Incarnation", int)
"""Identifies one registration of a broker, or one creation of a stream or partition, by its generation. Grows."""
Generation = NewType("Generation", int)
"""Counter of the commands that changed the cluster state."""

NO_PRODUCER = -1
"""producer_id of batches that no idempotent producer wrote."""
FIRST_TRANSACTIONAL_ID = 1 << 62
"""Producer ids from here on are given out by the coordinators of transactions, lower ones by the controller."""
REMEMBERED_BATCHES = 5
"""Number of a producer's last batches, per partition, among which a leader recognises a repetition; so a producer has
no more of them unresolved."""


def high_watermark_to_wire(high_watermark: Offset) -> int:
    """Exclusive end of the committed log -> last committed offset, -1 for none."""
    return high_watermark - 1


def high_watermark_from_wire(value: int) -> Offset:
    return Offset(value + 1)


class Acks(Enum):
    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class Room(Enum):
    """Free space on a broker's disk."""

    AMPLE = "ample"
    SHORT = "short"
    """The broker takes records, and gives leaderships to brokers that have more."""
    FULL = "full"
    """The broker takes no records."""


class PartitionState(Enum):
    ACTIVE = "active"
    DRAINING = "draining"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One incarnation of one partition. Deleting and recreating a stream gives another key."""

    stream: StreamName
    stream_incarnation: Incarnation
    partition: int
    partition_incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


KEY_ORDER: Final = attrgetter("stream", "stream_incarnation", "partition", "partition_incarnation")
"""Sorts very many keys in their order: tuples are compared much faster than keys."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    broker: BrokerId
    incarnation: Incarnation
    """The broker's incarnation in which it was, or must be, seen to hold everything that an ISR member must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """The state of a partition that its replicas must know, as last applied by the metadata group."""

    key: PartitionKey
    subject: str
    """The NATS subject that the leader listens on."""
    config: StreamConfig
    """Resolved: min_isr is set."""
    replicas: tuple[BrokerId, ...]
    """While a reassignment is under way, also those that it adds and those that it will remove."""
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...]
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch
    copies: int = 0
    """Number of replicas that the partition has and keeps; 0: all."""
    loss_accepted: bool = False
    """This LeaderEpoch began with an unclean election: an operator knows that the leader lacks committed records."""
    loss_epoch: LeaderEpoch = LeaderEpoch(0)
    """The last LeaderEpoch whose leader may lack committed records, as the metadata group knows (R74); 0: none."""
    returned: tuple[IsrMember, ...] = ()
    """Members of the ISR, and eligible replicas, in incarnations that no leader has seen to be in sync (R71)."""
    state: PartitionState = PartitionState.ACTIVE
    paused: bool = False
    """The followers sleep until a record comes (R47)."""
    readonly: bool = False
    """The partition takes no records (R43)."""
    purged_end: Offset = Offset(0)
    """Records below it were deleted by an operator, and are served no more (R44)."""
    partitioning_version: int = 1
    partition_count: int = 1
    """Partitions of the stream's newest layout. One with a higher number takes no records: it is made ready for the
    next layout (ACTIVE), or is left from an earlier one (DRAINING, RETIRED)."""
    awaits_cutover: bool = False
    """Its leader has not reported yet where the layout before the newest one ends here (`CutoverReport`); until then it
    appends nothing that names the newest partitioning version."""
    awaits_sources: bool = False
    """The leader of a partition from which keys come here has not reported its end of that layout yet, and may still
    acknowledge records of these keys; until then this leader appends nothing that names the newest partitioning version
    either."""
    further_subjects: tuple[str, ...] = ()
    """Subjects of partitions that keys are not spread over any more, on which the leader listens in their place."""

    @property
    def kept_copies(self) -> int:
        """Number of replicas that the partition has and keeps, whatever a reassignment adds and removes."""
        return self.copies or len(self.replicas)

    @property
    def is_routed(self) -> bool:
        """Whether producers write to it."""
        return self.key.partition < self.partition_count and self.state is PartitionState.ACTIVE

    def first_record(self, log_start_offset: Offset) -> Offset:
        """Returns the first offset that consumers may read, in a replica whose log begins at `log_start_offset`."""
        return max(log_start_offset, self.purged_end)


@dataclass(frozen=True, slots=True)
class PartitionGone:
    """This broker has no part in that partition any more: its stream was deleted or the replica moved away."""

    key: PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A leader's request to change the ISR; compare-and-set on `expected_epoch`, outcome read from later views only."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    expected_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]
    reason: str
    caught_up: tuple[BrokerId, ...] = ()
    """Members that hold all records that the leader had when its LeaderEpoch began (R71)."""


class LogEnd(NamedTuple):
    """How far a log reaches. Of two logs of a partition, neither of which lacks committed records, the larger one
    reaches further."""

    leader_epoch: LeaderEpoch
    """LeaderEpoch of the last record; 0: unknown."""
    offset: Offset
    """Exclusive end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossReport:
    """A follower's report that its leader lacks committed records which the follower holds (R74)."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChange:
    """A leader's request to pause its partition, or to resume it; a compare-and-set as `IsrChange`."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    expected_epoch: PartitionEpoch
    paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoverReport:
    """A leader's report of where its partition's part of the layout before `version` ends: it appends nothing of that
    layout any more, and all below `end_offset` is committed. A compare-and-set on `leader_epoch` and `version`."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    version: int
    """The newest partitioning version."""
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredReport:
    """A leader's report that its partition is RETIRED and has no records any more, so that it can be removed; a
    compare-and-set as `IsrChange`."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    expected_epoch: PartitionEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMove:
    """An operator's request that `target` lead in place of `leader`; compare-and-set on `leader_epoch`."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    target: BrokerId
    disk_hangs: bool = False
    """The disk of `leader` hangs: it leaves the ISR with the change if enough members remain, so that no commit waits
    for it."""


DrainAnswer: TypeAlias = Callable[[TidelogError | None], None]
"""Called once by the leader: with None when the target of a move holds everything, else with why it does not move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReport:
    """A follower's suspicion that its leader has failed."""

    key: PartitionKey
    replica: BrokerId
    leader: BrokerId
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch
    refused: bool = False
    """A 503 is the only ground: the leader is to be probed, and this report is no witness."""
    unopened: bool = False
    """The leader has never answered this replica in this LeaderEpoch and this life of the replica's process: it may not
    serve yet."""


class RoleProgress(NamedTuple):
    """How far a broker is with roles that it has to take up."""

    pending: int
    """Steps of replicas towards a role that have not ended."""
    done: int
    """Such steps that have ended in this process."""


ALL_TAKEN_UP: Final = RoleProgress(pending=0, done=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A broker's report that its replica is unsound: it leaves the ISR and `eligible` before anything is truncated."""

    key: PartitionKey
    broker: BrokerId
    expected_epoch: PartitionEpoch
    reason: str
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    """The request is open until this LeaderEpoch is over, wherever the replica is: leaders rely on reports in it."""
