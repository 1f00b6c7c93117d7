"""The settings of streams, declared once.

Each field of StreamConfig is one setting: its default, the values that it takes, its effect, and whether a stream
in use can change it. The rest is made from these entries: the reading of texts (`--config KEY=VALUE` and the maps
of strings in metadata.proto) and the sentences that refuse them, `stream describe`, help and completion on the command
line, the table in docs/reference.md.

To add a setting: an entry here, the code that obeys it, its test; then `scripts/docs-tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from wire.durability import DURABLE, MAX_REPLICAS, Durability
from wire.echo import echo
from wire.errors import Code, TidelogError
from wire.notation import BYTES, TIME, amount, tags_of, units_in_words
from wire.placement import STANDARD, PlacementPolicy, Strategy, broker_named, stream_named

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)

_DAY_MS = 24 * 3_600_000

MAX_CONFIRM_TIMEOUT_MS = 3_600_000
"""Limit of the time that a publish waits, whatever it asks for."""


class OnUnderCapacity(Enum):
    """Behaviour of a broker whose disk is full, towards a replica of the stream."""

    WITHDRAW = "withdraw"
    """It takes no more records, and gives leadership and ISR membership to brokers with room."""
    EVICT_OLDEST = "evict_oldest"
    """Retention runs early, within its limits."""


class StreamCompression(Enum):
    """Compression of batches whose producer does not choose one."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


# ---- kinds of settings -----------------------------------------------------------------------------------------------


class Kind(Protocol[_T]):
    """The values of a setting, and their spelling."""

    def parse(self, text: str) -> _T:
        """Raises ValueError with the fault of the text and the remedy, to be read after `KEY='TEXT' `."""

    def spell(self, value: _T) -> str:
        """Returns the text from which `parse` makes the value."""

    @property
    def values(self) -> str:
        """The possible values, for help: "0 to 16", "true, false"."""

    @property
    def choices(self) -> tuple[str, ...]:
        """All values, or the beginnings of them, where there are few; for completion."""


@dataclass(frozen=True, slots=True)
class WholeNumber(Kind[int]):
    low: int
    high: int

    def parse(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(f"is not a whole number from {self.low} to {self.high}") from None
        if not self.low <= number <= self.high:
            raise ValueError(f"is outside {self.low} to {self.high}; give a number between them")
        return number

    def spell(self, value: int) -> str:
        return str(value)

    @property
    def values(self) -> str:
        return f"{self.low} to {_power_of_two(self.high)}"

    @property
    def choices(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Fraction(Kind[float]):
    """A number between two others, such as 0.5."""

    low: float
    high: float

    def parse(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"is not a number from {self.low:g} to {self.high:g}, such as 0.5") from None
        if not self.low <= number <= self.high:
            raise ValueError(f"is outside {self.low:g} to {self.high:g}; give a number between them")
        return number

    def spell(self, value: float) -> str:
        return f"{value:g}"

    @property
    def values(self) -> str:
        return f"{self.low:g} to {self.high:g}"

    @property
    def choices(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class _Amount(WholeNumber):
    """A plain number, or one with a unit."""

    factors: ClassVar[dict[str, int]]
    plain: ClassVar[str]
    """The unit of the plain number."""
    example: ClassVar[str]

    def parse(self, text: str) -> int:
        found = amount(text, self.factors)
        if found is not None:
            if not self.low <= found <= self.high:
                raise ValueError(
                    f"is {found} {self.plain}, outside {self.low} to {self.high}; give an amount between them"
                )
            return found
        try:
            int(text)
        except ValueError:
            raise ValueError(
                f"is not a whole number of {self.plain} from {self.low} to {self.high}, and none with a unit"
                f" ({units_in_words(self.factors)}), such as {self.example}"
            ) from None
        return WholeNumber.parse(self, text)


@dataclass(frozen=True, slots=True)
class Milliseconds(_Amount):
    factors = TIME
    plain = "ms"
    example = "7d"


@dataclass(frozen=True, slots=True)
class Bytes(_Amount):
    factors = BYTES
    plain = "bytes"
    example = "512KiB or 10GB"


@dataclass(frozen=True, slots=True)
class OneOf(Kind[_E]):
    enum: type[_E]

    def parse(self, text: str) -> _E:
        for choice in self.enum:
            if choice.value == text.lower():
                return choice
        raise ValueError(_neither_nor(self.choices))

    def spell(self, value: _E) -> str:
        return str(value.value)

    @property
    def values(self) -> str:
        return ", ".join(self.choices)

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(choice.value for choice in self.enum)


@dataclass(frozen=True, slots=True)
class Flag(Kind[bool]):
    def parse(self, text: str) -> bool:
        if text.lower() not in self.choices:
            raise ValueError(_neither_nor(self.choices))
        return text.lower() == "true"

    def spell(self, value: bool) -> str:
        return "true" if value else "false"

    @property
    def values(self) -> str:
        return "true, false"

    @property
    def choices(self) -> tuple[str, ...]:
        return "true", "false"


@dataclass(frozen=True, slots=True)
class Level(Kind[Durability]):
    def parse(self, text: str) -> Durability:
        try:
            return Durability.parse(text)
        except ValueError as error:
            raise ValueError(f"is no durability level: {error}") from None

    def spell(self, value: Durability) -> str:
        return str(value)

    @property
    def values(self) -> str:
        return ", ".join(Durability.spellings())

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(spelling.removesuffix("N") for spelling in Durability.spellings())


@dataclass(frozen=True, slots=True)
class Policy(Kind[PlacementPolicy]):
    def parse(self, text: str) -> PlacementPolicy:
        policy = PlacementPolicy.parse(text)
        if len(policy.brokers) > MAX_REPLICAS:
            raise ValueError(f"names {len(policy.brokers)} brokers; name {MAX_REPLICAS} at most")
        return policy

    def spell(self, value: PlacementPolicy) -> str:
        return str(value)

    @property
    def values(self) -> str:
        return "standard, pinned:BROKER,BROKER,…, colocation_strict:STREAM"

    @property
    def choices(self) -> tuple[str, ...]:
        return "standard", "pinned:", "colocation_strict:"


@dataclass(frozen=True, slots=True)
class Tags(Kind[tuple[str, ...]]):
    def parse(self, text: str) -> tuple[str, ...]:
        return tags_of(tag.strip() for tag in text.split(",")) if text else ()

    def spell(self, value: tuple[str, ...]) -> str:
        return ",".join(value)

    @property
    def values(self) -> str:
        return "TAG,TAG,… or empty"

    @property
    def choices(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class NameOf(Kind[str]):
    """The name of a broker or a stream; empty: none."""

    what: str
    named: Callable[[str], str]

    def parse(self, text: str) -> str:
        return self.named(text) if text else ""

    def spell(self, value: str) -> str:
        return value

    @property
    def values(self) -> str:
        return f"{self.what} or empty"

    @property
    def choices(self) -> tuple[str, ...]:
        return ()


def _neither_nor(choices: tuple[str, ...]) -> str:
    return f"is neither {' nor '.join(map(repr, choices))}; give one of them"


def _power_of_two(number: int) -> str:
    """Spells large powers of two as 2^52, which is easier to read than digits."""
    return f"2^{number.bit_length() - 1}" if number >= 1 << 20 and number & (number - 1) == 0 else str(number)


# ---- the declaration of a setting ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The part of a setting that cannot change once the stream is made."""

    part: Callable[[Any], object]
    """Gives the part of a value that must stay the same."""
    why: str
    remedy: str
    """A sentence; `{wanted}` stands for the requested value."""
    name: str = ""
    """Name of that part; empty: the whole value is fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One entry of the table."""

    name: str
    kind: Kind[Any]
    default: Any
    help: str
    shown_default: str
    """Shown in place of the default where that stands for something else; else empty."""
    fixed: Fixed | None
    since: str
    """The first version of Tidelog that has it."""

    @property
    def default_in_words(self) -> str:
        days = self.default / _DAY_MS if self.name.endswith("_ms") else 0
        in_days = f" ({days:g} day{'' if days == 1 else 's'})" if days >= 1 else ""
        return self.shown_default or (self.kind.spell(self.default) or "none") + in_days

    @property
    def alterable_in_words(self) -> str:
        if self.fixed is None:
            return "can be altered"
        return f"cannot be altered: {self.fixed.name}" if self.fixed.name else "cannot be altered"

    def parse(self, text: str) -> Any:
        """Raises TidelogError(BAD_CONFIG), which names the setting, the value and the remedy."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise TidelogError(Code.BAD_CONFIG, f"{self.name}={echo(text)} {error}") from None

    def check_change(self, before: Any, after: Any) -> None:
        """Checks that a stream in use may change this setting so. Raises TidelogError(BAD_CONFIG)."""
        if self.fixed is not None and self.fixed.part(before) != self.fixed.part(after):
            raise TidelogError(
                Code.BAD_CONFIG,
                f"{self.name}={self.kind.spell(before)} cannot become {self.kind.spell(after)} while the stream lives:"
                f" {self.fixed.why}; {self.fixed.remedy.format(wanted=self.kind.spell(after))}",
            )


def setting_field(
    default: _T,
    kind: Kind[_T],
    help: str,  # noqa: A002 - its name in dataclass fields and in click
    *,
    shown_default: str = "",
    fixed: Fixed | None = None,
    since: str = "0.1.0",
) -> _T:
    """A field of StreamConfig. `help` is one line of plain text, which begins with a small letter."""
    declared: _T = field(
        default=default,
        metadata={"kind": kind, "help": help, "shown_default": shown_default, "fixed": fixed, "since": since},
    )
    return declared


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """The settings of a stream, one field for each."""

    min_isr: int = setting_field(
        0,
        WholeNumber(0, MAX_REPLICAS),
        "members of the ISR that must have a record before it commits",
        shown_default="what durability says, else 2 from replication factor 3 up, else 1",
    )
    durability: Durability = setting_field(
        DURABLE,
        Level(),
        "what an acknowledgement waits for",
        fixed=Fixed(
            part=lambda level: level.is_synced,
            name="whether copies count once they are synced",
            why="its replicas have reported copies under the old rule",
            remedy="ask for durability={wanted} at each publish, or create another stream",
        ),
    )
    reply_acks: bool = setting_field(
        True,
        Flag(),
        "answer bare publishes that carry a reply subject; false for subjects that serve requests of others",
    )
    max_record_bytes: int = setting_field(
        1 << 20,
        Bytes(1, 64 << 20),
        "largest record, key, value and headers together; never above what one NATS message holds",
    )
    segment_bytes: int = setting_field(256 << 20, Bytes(4096, 1 << 30), "a log segment is rolled at this size")
    segment_max_age_ms: int = setting_field(
        7 * _DAY_MS,
        Milliseconds(0, 1 << 52),
        "a log segment is rolled when its first record is this old; 0 = never for its age",
    )
    producer_byte_rate: int = setting_field(
        0,
        Bytes(0, 1 << 40),
        "per partition: its leader takes so many bytes a second, and refuses more with BACKPRESSURE; 0 = no limit",
    )
    producer_record_rate: int = setting_field(
        0,
        WholeNumber(0, 1 << 40),
        "per partition: its leader takes so many records a second, and refuses more with BACKPRESSURE; 0 = no limit",
    )
    confirm_timeout_ms: int = setting_field(
        10_000,
        Milliseconds(1, MAX_CONFIRM_TIMEOUT_MS),
        "an acknowledged publish waits at most this long for what its level asks for; then CONFIRM_TIMEOUT",
    )
    dedup_window_ms: int = setting_field(
        120_000,
        Milliseconds(0, _DAY_MS),
        "per partition: a record whose message id (msg_id, header Nats-Msg-Id) was stored within so long is not stored"
        " again; 0 = message ids mean nothing",
    )
    retention_max_age_ms: int = setting_field(
        0, Milliseconds(0, 1 << 52), "segments whose newest record is older are removed; 0 = kept whatever their age"
    )
    retention_max_bytes: int = setting_field(
        0, Bytes(0, 1 << 60), "per partition: the oldest segments beyond so many bytes are removed; 0 = no limit"
    )
    retention_max_messages: int = setting_field(
        0,
        WholeNumber(0, 1 << 60),
        "per partition: the oldest segments beyond so many records are removed; 0 = no limit",
    )
    compact: bool = setting_field(False, Flag(), "keep the newest record of each key, at its offset")
    tombstone_retention_ms: int = setting_field(
        _DAY_MS,
        Milliseconds(0, 1 << 52),
        "of a compacted stream: a key without a value is remembered so long at least, once it was compacted",
    )
    on_under_capacity: OnUnderCapacity = setting_field(
        OnUnderCapacity.WITHDRAW,
        OneOf(OnUnderCapacity),
        "what a broker does with its replica when its disk runs full: withdraw (give leadership away, refuse publishes)"
        " or evict_oldest (retention before its time), which needs a retention limit",
    )
    compression: StreamCompression = setting_field(
        StreamCompression.NONE,
        OneOf(StreamCompression),
        "lz4 (fast) or zstd (dense): how the leader compresses the batches that it makes of plain publishes and"
        " envelopes, and what producers do that do not choose",
    )
    auto_pause_time_ms: int = setting_field(
        0,
        Milliseconds(0, 1 << 52),
        "a partition to which no record came for so long is paused until one comes; 0 = never",
    )
    auto_pause_disable_if_subscribers: bool = setting_field(
        False, Flag(), "a partition is not paused by itself while consumers wait for its records at the leader"
    )
    delete_protection: bool = setting_field(
        False, Flag(), "the stream cannot be deleted before this is false again, or unset"
    )
    encryption: bool = setting_field(
        False,
        Flag(),
        "batches lie encrypted on disk (AES-256-GCM); needs a master key on every broker",
        fixed=Fixed(
            part=bool,
            why="what is on the disks would stay as it is",
            remedy="create another stream",
        ),
    )
    placement: PlacementPolicy = setting_field(
        STANDARD,
        Policy(),
        "which brokers hold the replicas: standard (even, spread over zones), pinned (these brokers; their number is"
        " the replication factor), or colocation_strict (brokers that hold the same partition of STREAM); a change is"
        " for partitions that are placed from then on",
    )
    require_tags: tuple[str, ...] = setting_field(
        (), Tags(), "replicas are placed only on brokers that have all of these tags"
    )
    prefer_tags: tuple[str, ...] = setting_field(
        (),
        Tags(),
        "replicas are placed on brokers that have most of these tags where that does not bring two into one zone",
    )
    colocate_with: str = setting_field(
        "",
        NameOf("STREAM", stream_named),
        "partition i is placed on brokers that hold partition i of that stream where that does not bring two replicas"
        " into one zone",
    )
    leader_pin: str = setting_field(
        "", NameOf("BROKER", broker_named), "this broker leads the partitions of which it has a replica"
    )

    @classmethod
    def from_strings(cls, values: Mapping[str, str]) -> StreamConfig:
        """Reads KEY -> text, as users type it. Raises TidelogError(BAD_CONFIG) that names the key, the value and the
        remedy."""
        return cls(**{key: setting_named(key).parse(text) for key, text in values.items()})

    @staticmethod
    def plain(values: Mapping[str, str]) -> dict[str, str]:
        """Returns the settings as brokers keep them and brokers of any version read them: without units. Raises
        TidelogError(BAD_CONFIG)."""
        return {key: (setting := setting_named(key)).kind.spell(setting.parse(text)) for key, text in values.items()}

    @classmethod
    def from_strings_known(cls, values: Mapping[str, str]) -> StreamConfig:
        """Reads the settings of a stream that another version of Tidelog may have made: unknown settings and values
        get their defaults."""
        known: dict[str, Any] = {}
        for name in SETTINGS.keys() & values.keys():
            with suppress(TidelogError):
                known[name] = SETTINGS[name].parse(values[name])
        return cls(**known)

    def to_strings(self) -> dict[str, str]:
        return {name: setting.kind.spell(getattr(self, name)) for name, setting in SETTINGS.items()}

    @property
    def is_durable(self) -> bool:
        """A replica reports an offset as acknowledged only after fdatasync; else once it is in the page cache."""
        return self.durability.is_synced

    def resolved(self, replication_factor: int) -> StreamConfig:
        """Fills in `min_isr`: by `durability`, else 2 from replication factor 3 up, else 1."""
        if self.min_isr:
            return self
        floor = self.durability.in_sync_floor(replication_factor)
        return replace(self, min_isr=floor or (2 if replication_factor >= 3 else 1))

    def check(self, replication_factor: int) -> None:
        """Refuses settings that are valid singly and do not go together. Of settings as given: min ISR is not filled
        in. Raises TidelogError(BAD_CONFIG)."""
        floor = self.durability.in_sync_floor(replication_factor)
        limits = self.retention_max_age_ms or self.retention_max_bytes or self.retention_max_messages
        wrong: str | None = None
        if self.min_isr > replication_factor:
            wrong = f"min_isr={self.min_isr} is above the replication factor {replication_factor}; lower it"
        elif floor > replication_factor:
            wrong = (
                f"durability={self.durability} needs {floor} replicas and the replication factor is"
                f" {replication_factor}; ask for {replication_factor} at most"
            )
        elif 0 < self.min_isr < floor:
            wrong = (
                f"min_isr={self.min_isr} is below the {floor} in-sync replicas of durability={self.durability};"
                " raise it, or leave it out"
            )
        elif self.on_under_capacity is OnUnderCapacity.EVICT_OLDEST and self.compact:
            wrong = (
                "on_under_capacity=evict_oldest would take the newest records of quiet keys from a stream with"
                " compact=true; use withdraw"
            )
        elif self.on_under_capacity is OnUnderCapacity.EVICT_OLDEST and not limits:
            wrong = (
                "on_under_capacity=evict_oldest has nothing that it may evict: set retention_max_age_ms,"
                " retention_max_bytes or retention_max_messages, or use withdraw"
            )
        elif self.placement.strategy is Strategy.PINNED and len(self.placement.brokers) != replication_factor:
            named = len(self.placement.brokers)
            wrong = (
                f"placement={self.placement} names {named} broker{'' if named == 1 else 's'} and the replication factor"
                f" is {replication_factor}; name {replication_factor}, or give another replication factor"
            )
        elif self.leader_pin and self.placement.brokers and self.leader_pin not in self.placement.brokers:
            wrong = (
                f"leader_pin={self.leader_pin} is none of the brokers of placement={self.placement}; pin one of them,"
                " or name it there"
            )
        if wrong is not None:
            raise TidelogError(Code.BAD_CONFIG, wrong)

    def check_change(self, after: StreamConfig) -> None:
        """Checks that a stream in use may change from these settings to `after`. Raises TidelogError(BAD_CONFIG)."""
        for name, setting in SETTINGS.items():
            setting.check_change(getattr(self, name), getattr(after, name))


SETTINGS: Mapping[str, Setting] = {
    entry.name: Setting(name=entry.name, default=entry.default, **entry.metadata) for entry in fields(StreamConfig)
}
"""All settings by name, in the order of the table."""


_GIVEN_APART = ("subject", "partitions", "replication_factor", "partitioner")
"""Arguments of a stream's creation that are no settings."""


def setting_named(name: str) -> Setting:
    """Returns the setting. Raises TidelogError(BAD_CONFIG) for an unknown name."""
    if name in _GIVEN_APART:
        change = (
            "changed by repartition (`tidelog stream alter --partitions`)"
            if name == "partitions"
            else "the same as long as the stream lives"
        )
        raise TidelogError(
            Code.BAD_CONFIG,
            f"{name} is no setting: it is given to create_stream as {name}= (`tidelog stream create"
            f" --{name.replace('_', '-')}`), and {change}",
        )
    if name not in SETTINGS:
        raise TidelogError(
            Code.BAD_CONFIG, f"unknown stream setting {echo(name)}; known: {', '.join(sorted(SETTINGS))}"
        )
    return SETTINGS[name]
