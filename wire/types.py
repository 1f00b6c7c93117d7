"""The domain's types. Every other package speaks in these.

Offsets are dense positions of records in a partition, from 0. Two ends matter: the log end offset (LEO) and the high
watermark (HW). Both are EXCLUSIVE here: the next offset to be assigned, and the end of what is committed. On the wire
and towards users the HW is inclusive (-1 = none); `wire.replication` and `high_watermark_to_wire` convert, nobody else
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, NewType, TypeAlias

from wire.durability import DURABLE, Durability
from wire.errors import Code, TidelogError

BrokerId = NewType("BrokerId", str)
StreamName = NewType("StreamName", str)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
"""+1 at every change of leader and at every new life of the same leader; from 1; 0 on the wire = missing, refused."""
PartitionEpoch = NewType("PartitionEpoch", int)
"""+1 at every change of the partition's metadata."""
Incarnation = NewType("Incarnation", int)
"""One life of a broker, a stream or a partition: the generation of the command that began it. Grows."""
Generation = NewType("Generation", int)
"""Counter of the commands that changed the cluster state."""

NO_PRODUCER = -1
"""producer_id of batches that no idempotent producer wrote."""
REMEMBERED_BATCHES = 5
"""A leader tells a repetition from a new batch among so many last ones of a producer, per partition; so a producer
has no more of them unresolved."""


def high_watermark_to_wire(high_watermark: Offset) -> int:
    """Exclusive end of the committed log -> last committed offset, -1 for none."""
    return high_watermark - 1


def high_watermark_from_wire(value: int) -> Offset:
    return Offset(value + 1)


class Acks(Enum):
    NONE = "none"
    LEADER = "leader"
    ALL = "all"


class OnUnderCapacity(Enum):
    """What a broker does with a replica when its disk is full."""

    WITHDRAW = "withdraw"
    """It takes no more records, and gives leadership and ISR membership to those who have room."""
    EVICT_OLDEST = "evict_oldest"
    """Retention runs early, within its limits."""


class StreamCompression(Enum):
    """How batches are compressed where nobody says otherwise."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Room(Enum):
    """On a broker's disk."""

    AMPLE = "ample"
    SHORT = "short"
    """It takes records, and gives leaderships to those who have more."""
    FULL = "full"
    """It takes no records."""


class PartitionState(Enum):
    ACTIVE = "active"
    DRAINING = "draining"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What can be set per stream (`--config KEY=VALUE`)."""

    min_isr: int = field(
        default=0,
        metadata={
            "help": "members that must have a record before it commits; 0 = what durability says, else 2 from RF 3 up,"
            " else 1"
        },
    )
    durability: Durability = field(
        default=DURABLE,
        metadata={
            "help": "what an ack waits for: durable (synced by the ISR), accepted (page cache), replica_durable:N,"
            " replica_accepted:N, majority_durable, local_durable"
        },
    )
    reply_acks: bool = field(default=True, metadata={"help": "answer bare publishes that carry a reply subject"})
    max_record_bytes: int = field(
        default=1 << 20, metadata={"help": "largest record (key + value + headers), in bytes"}
    )
    segment_bytes: int = field(default=256 << 20, metadata={"help": "a log segment is rolled at this size, in bytes"})
    segment_max_age_ms: int = field(
        default=7 * 24 * 3_600_000,
        metadata={"help": "a log segment is rolled when its first record is this old; 0 = never for its age"},
    )
    confirm_timeout_ms: int = field(
        default=10_000, metadata={"help": "an acknowledged publish waits at most this long for its commit"}
    )
    retention_max_age_ms: int = field(
        default=0, metadata={"help": "segments whose newest record is older are removed; 0 = kept whatever their age"}
    )
    retention_max_bytes: int = field(
        default=0,
        metadata={"help": "per partition: the oldest segments beyond so many bytes are removed; 0 = no limit"},
    )
    retention_max_messages: int = field(
        default=0, metadata={"help": "per partition: the oldest segments beyond so many records go; 0 = no limit"}
    )
    compact: bool = field(default=False, metadata={"help": "keep the newest record of each key, at its offset"})
    tombstone_retention_ms: int = field(
        default=24 * 3_600_000,
        metadata={
            "help": "of a compacted stream: a key without a value is remembered so long at least once it was compacted"
        },
    )
    on_under_capacity: OnUnderCapacity = field(
        default=OnUnderCapacity.WITHDRAW,
        metadata={
            "help": "a full disk: withdraw (give leadership away, refuse publishes) or evict_oldest (early retention)"
        },
    )
    compression: StreamCompression = field(
        default=StreamCompression.NONE,
        metadata={
            "help": "none, lz4 (fast) or zstd (dense): of what the leader batches, and of producers that do not choose"
        },
    )
    encryption: bool = field(default=False, metadata={"help": "batches lie encrypted on disk (AES-256-GCM)"})

    _LIMITS: ClassVar[Mapping[str, tuple[int, int]]] = {
        "min_isr": (0, 16),
        "max_record_bytes": (1, 64 << 20),
        "segment_bytes": (4096, 1 << 30),
        "segment_max_age_ms": (0, 1 << 52),
        "confirm_timeout_ms": (1, 3_600_000),
        "retention_max_age_ms": (0, 1 << 52),
        "retention_max_bytes": (0, 1 << 60),
        "retention_max_messages": (0, 1 << 60),
        "tombstone_retention_ms": (0, 1 << 52),
    }
    _CHOICES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "on_under_capacity": {choice.value: choice for choice in OnUnderCapacity},
        "compression": {choice.value: choice for choice in StreamCompression},
        "reply_acks": {"true": True, "false": False},
        "compact": {"true": True, "false": False},
        "encryption": {"true": True, "false": False},
    }

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> StreamConfig:
        """KEY -> text, as typed by a user. Raises TidelogError(BAD_CONFIG) that names the key, the value and what is
        allowed."""
        known = {f.name: f for f in fields(cls)}
        parsed: dict[str, Any] = {}
        for key, text in values.items():
            if key not in known:
                raise TidelogError(
                    Code.BAD_CONFIG, f"unknown stream setting {key!r}; known: {', '.join(sorted(known))}"
                )
            parsed[key] = cls._parse(key, text)
        return cls(**parsed)

    @classmethod
    def _parse(cls, key: str, text: str) -> Any:
        if key == "durability":
            try:
                return Durability.parse(text)
            except ValueError as error:
                raise TidelogError(Code.BAD_CONFIG, f"durability={text!r}: {error}") from None
        choices = cls._CHOICES.get(key)
        if choices is not None:
            if text.lower() not in choices:
                raise TidelogError(
                    Code.BAD_CONFIG, f"{key}={text!r} is neither {' nor '.join(map(repr, choices))}; give one of them"
                )
            return choices[text.lower()]
        low, high = cls._LIMITS[key]
        try:
            number = int(text)
        except ValueError:
            raise TidelogError(Code.BAD_CONFIG, f"{key}={text!r} is not a whole number from {low} to {high}") from None
        if not low <= number <= high:
            raise TidelogError(
                Code.BAD_CONFIG, f"{key}={text!r} is outside {low} to {high}; give a number between them"
            )
        return number

    def to_strings(self) -> dict[str, str]:
        out: dict[str, str] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            out[f.name] = (
                value.value
                if isinstance(value, Enum)
                else str(value).lower()
                if isinstance(value, bool)
                else str(value)
            )
        return out

    @property
    def is_durable(self) -> bool:
        """A replica reports an offset as acknowledged only after fdatasync; else once it is in the page cache."""
        return self.durability.is_synced

    def resolved(self, replication_factor: int) -> StreamConfig:
        """With `min_isr` filled in: as `durability` says, else 2 from replication factor 3 up, else 1."""
        if self.min_isr:
            return self
        floor = self.durability.in_sync_floor(replication_factor)
        return replace(self, min_isr=floor or (2 if replication_factor >= 3 else 1))


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One life of one partition. Deleting and recreating a stream gives another key."""

    stream: StreamName
    stream_incarnation: Incarnation
    partition: int
    partition_incarnation: Incarnation

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


@dataclass(frozen=True, slots=True)
class IsrMember:
    broker: BrokerId
    incarnation: Incarnation
    """The broker's life in which it was seen to hold what an ISR member must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What the replicas of a partition must know of it, as last applied by the metadata group."""

    key: PartitionKey
    subject: str
    """The NATS subject that the leader listens on."""
    config: StreamConfig
    """Resolved: min_isr is set."""
    replicas: tuple[BrokerId, ...]
    leader: BrokerId | None
    isr: tuple[BrokerId, ...]
    eligible: tuple[BrokerId, ...]
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch
    loss_accepted: bool = False
    """This LeaderEpoch began with an unclean election: an operator knows that the leader lacks committed records."""
    state: PartitionState = PartitionState.ACTIVE
    paused: bool = False
    readonly: bool = False
    partitioning_version: int = 1
    partition_count: int = 1
    """Partitions of the stream's newest layout."""


@dataclass(frozen=True, slots=True)
class PartitionGone:
    """This broker has no part in that partition any more: its stream was deleted or the replica moved away."""

    key: PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A leader's wish to change the ISR; compare-and-set on `expected_epoch`, outcome read from later views only."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    expected_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMove:
    """An operator's wish that `target` lead in place of `leader`; compare-and-set on `leader_epoch`."""

    key: PartitionKey
    leader: BrokerId
    leader_epoch: LeaderEpoch
    target: BrokerId


DrainAnswer: TypeAlias = Callable[[TidelogError | None], None]
"""How a leader tells, once, that the target of a move holds everything (None), or why leadership is not handed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReport:
    """A follower's suspicion that its leader has failed."""

    key: PartitionKey
    replica: BrokerId
    leader: BrokerId
    epoch: PartitionEpoch
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A broker's word that its replica is unsound: out of the ISR and of `eligible` before anything is cut."""

    key: PartitionKey
    broker: BrokerId
    expected_epoch: PartitionEpoch
    reason: str
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    """It is not over before this LeaderEpoch is, wherever the replica is: leaders go by what it said in it."""
