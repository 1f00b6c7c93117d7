"""The options of `spark.read.format("tidelog")` and `spark.readStream.format("tidelog")`, parsed once into types.

Names are case-insensitive, as everywhere in Spark, which hands them over in lower case. Names, meanings and precedence
are those of Spark's Kafka source where it has the option; docs/spark.md has them side by side. An unknown name is
refused: a misspelt `startingOffsets` would otherwise silently read other records than requested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC
from enum import Enum
from typing import Any, Literal, NoReturn

from spark_connector.shared.option_values import (
    NO_SERVERS,
    OF_CONNECTIONS,
    ConnectionOptions,
    Parser,
    between,
    by_name,
    did_you_mean,
    duration,
    has_servers,
    kafka_login_hint,
    of_connection,
    one_of,
    or_default,
    parse_bool,
    parse_list,
    parsed,
    refuse,
)
from tidelog.client.base.read_positions import timestamp_from_text
from wire.internal_records.group_records import check_group_name
from wire.notation import check_rack
from wire.subjects import check_stream_name
from wire.types import Offset, StreamName

DEFAULT_FETCH_MAX_BYTES = 4 << 20
DEFAULT_MAX_TRIGGER_DELAY_SECONDS = 900.0
EARLIEST_IN_JSON = -2
LATEST_IN_JSON = -1
_MAX_COUNT = (1 << 63) - 1
"""Java's Long.MaxValue, which programs give for "no limit" or "no end"."""
_END_OF_TIME_NS = 1 << 63
"""ns since 1970, in either direction."""


class Edge(Enum):
    """A position that is looked up, in each partition, when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first record at or after a time of each partition's own."""

    timestamps_ns: Mapping[StreamName, Mapping[int, int]]


ExplicitOffsets = Mapping[StreamName, Mapping[int, Offset | Edge] | Edge]
Point = Edge | AtTimestamp | AtTimestamps | ExplicitOffsets
"""A position at which a query starts, or ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ConnectionOptions):
    """The user's options. `starting` and `ending` are None where the kind of query decides."""

    streams: tuple[StreamName, ...]
    """The streams to read; empty with a pattern."""
    pattern: str | None
    """A regular expression, for the whole name of a stream; None: `streams` are read."""
    assign: Mapping[StreamName, tuple[int, ...]] | None
    """The partitions of each stream that are read; None: all."""
    starting: Point | None
    latest_without_match: bool
    """A start at a time that lies behind the last record is the end of the log; else it is refused."""
    ending: Point | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: float
    """Seconds after which a micro-batch is made of fewer than `min_offsets_per_trigger`."""
    max_bytes_per_trigger: int | None
    min_partitions: int
    max_records_per_partition: int | None
    """Offsets that a range of a Spark task has at most; None: no limit."""
    fetch_max_bytes: int
    fail_on_data_loss: bool
    include_headers: bool
    columns: tuple[str, ...] | None
    """Names of the columns of the schema, in this order; None: all."""
    read_from: Literal["leader", "follower", "nearest"]
    rack: str | None
    read_uncommitted: bool
    in_key_order: bool
    """The records of a key come in their order, also where a repartition has taken the key to another partition."""
    group: str | None
    """The consumer group that a streaming query commits its positions for."""
    gc_freeze: bool
    """A worker of Spark looks at the objects of its modules only once when it collects garbage."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parses the options. Raises TidelogError(BAD_CONFIG) that names the option, its value and the allowed
        values."""
        values = by_name(given, _PARSERS, _refuse_unknown)
        _check_what_is_read(values)
        found = parsed(values, _PARSERS)
        options = cls(
            **of_connection(found),
            streams=found["subscribe"] or tuple(found["assign"] or ()),
            pattern=found["subscribePattern"],
            assign=found["assign"],
            # Precedence is that of Kafka's source.
            starting=next((found[name] for name in STARTING_OPTIONS if found[name] is not None), None),
            latest_without_match=found["startingOffsetsByTimestampStrategy"] == "latest",
            ending=next((found[name] for name in ENDING_OPTIONS if found[name] is not None), None),
            max_offsets_per_trigger=found["maxOffsetsPerTrigger"],
            min_offsets_per_trigger=found["minOffsetsPerTrigger"],
            max_trigger_delay=or_default(found["maxTriggerDelay"], DEFAULT_MAX_TRIGGER_DELAY_SECONDS),
            max_bytes_per_trigger=found["maxBytesPerTrigger"],
            min_partitions=found["minPartitions"] or 1,
            max_records_per_partition=found["maxRecordsPerPartition"],
            fetch_max_bytes=found["fetchMaxBytes"] or DEFAULT_FETCH_MAX_BYTES,
            fail_on_data_loss=found["failOnDataLoss"] is not False,
            include_headers=found["includeHeaders"] is True,
            columns=found["columns"],
            read_from=found["readFrom"] or "leader",
            rack=found["rack"],
            read_uncommitted=found["isolationLevel"] == "read_uncommitted",
            in_key_order=found["order"] == "key",
            group=found["groupId"],
            gc_freeze=found["gc.freeze"] is not False,
        )
        for name in _BY_PARTITION:
            if found[name] is not None and options.pattern is None:
                _check_streams(name, found[name], options)
        _check_rack(options)
        most, least = options.max_offsets_per_trigger, options.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            refuse(f"minOffsetsPerTrigger={least} is above maxOffsetsPerTrigger={most}: lower it")
        return options

    def for_batch(self) -> SourceOptions:
        """Returns the options checked for `spark.read`: by default from the earliest record to the latest."""
        if self.starting is Edge.LATEST:
            refuse(
                "startingOffsets=latest leaves nothing for a batch query to read: "
                "use earliest or offsets, or spark.readStream to read new records"
            )
        if isinstance(self.starting, Mapping):
            for stream, partitions in self.starting.items():
                if partitions is Edge.LATEST:
                    refuse(f"startingOffsets: the latest offset of {stream} leaves nothing for a batch query to read")
                for partition, offset in [] if isinstance(partitions, Edge) else partitions.items():
                    if offset is Edge.LATEST:
                        refuse(
                            f"startingOffsets: the latest offset ({LATEST_IN_JSON}) of {stream}/{partition} leaves "
                            "nothing for a batch query to read: use an offset, or leave the partition out with assign"
                        )
        for name, value in (
            ("maxOffsetsPerTrigger", self.max_offsets_per_trigger),
            ("minOffsetsPerTrigger", self.min_offsets_per_trigger),
            ("maxBytesPerTrigger", self.max_bytes_per_trigger),
        ):
            if value is not None:
                refuse(f"{name} has no meaning in a batch query: leave it out, or set endingOffsets")
        if self.in_key_order:
            refuse("order=key has no meaning in a batch query, which reads everything at once: leave it out")
        if self.group is not None:
            refuse("groupId has no meaning in a batch query, which has no positions to commit: leave it out")
        return self

    def for_stream(self) -> SourceOptions:
        """Returns the options checked for `spark.readStream`: by default from the latest record on, without an end."""
        if self.ending is not None:
            refuse(
                "endingOffsets, endingOffsetsByTimestamp and endingTimestamp have no meaning in a streaming query: "
                "leave them out, or use spark.read, or trigger(availableNow=True) to stop at the present end"
            )
        return self


def _check_what_is_read(values: Mapping[str, str]) -> None:
    given = [name for name in _WHAT_IS_READ if name in values]
    if len(given) > 1:
        refuse(f"{' and '.join(given)} are both given, and one of them can say what is read: leave one out")
    if not has_servers(values):
        # A table of the catalog that was declared with its columns gets here, and looks like an empty load().
        refuse(
            NO_SERVERS + ("" if values else f", or if this is a table in Spark's catalog, use a view instead: {_VIEW}")
        )
    if not given:
        refuse('option subscribe is missing: add .option("subscribe", "flights"), or subscribePattern, or assign')


def _check_streams(name: str, point: Point, options: SourceOptions) -> None:
    if isinstance(point, (Edge, AtTimestamp)):
        return
    named = point.timestamps_ns if isinstance(point, AtTimestamps) else point
    if set(named) != set(options.streams):
        refuse(
            f"{name} speaks of {_names(named)} but {'assign' if options.assign else 'subscribe'} of "
            f"{_names(options.streams)}: give a position for each subscribed stream and no other"
        )


def _check_rack(options: SourceOptions) -> None:
    if options.read_from == "nearest" and options.rack is None:
        refuse('readFrom=nearest needs the rack of the readers: add .option("rack", "zone-a")')
    if options.read_from != "nearest" and options.rack is not None:
        refuse(f"rack={options.rack!r} is for readFrom=nearest: add that option, or leave rack out")


_OF_A_TABLE = ("provider", "owner", "location", "external", "is_managed_location")
"""Properties of a table, which `CREATE TABLE … USING` gives in place of the options."""
_VIEW = "CREATE TEMPORARY VIEW name USING tidelog OPTIONS (…)"


def _refuse_unknown(key: str) -> NoReturn:
    if key.lower() == "pushdownfilters":
        refuse(
            "option pushDownFilters is gone, because Spark gives the filters of one query to the others of the same "
            "load(), and rows were missing: use assign, startingOffsets or startingTimestamp, endingOffsets or "
            "endingTimestamp to read less"
        )
    if key.lower() == "path":
        refuse('a stream is not a path: use .option("subscribe", "NAME") and load() without an argument')
    if key.lower() in _OF_A_TABLE or key.lower().startswith("option."):
        refuse(f"a table in Spark's catalog cannot be a stream, because Spark keeps its options from it: {_VIEW}")
    hint = _OF_KAFKA.get(key.lower()) or kafka_login_hint(key)
    if hint is not None:
        refuse(f"{key} is an option of Spark's Kafka source: {hint}")
    meant = did_you_mean(key, KNOWN_OPTIONS)
    refuse(f"unknown option {key!r} of the tidelog data source{meant}; known: {', '.join(KNOWN_OPTIONS)}")


def _names(streams: Any) -> str:
    return ", ".join(sorted(streams)) or "no stream"


def _parse_streams(name: str, text: str) -> tuple[StreamName, ...]:
    streams = parse_list(name, text)
    if len(set(streams)) != len(streams):
        refuse(f"{name}={text!r} names a stream twice: name each once")
    return tuple(check_stream_name(stream) for stream in streams)


def _parse_pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        refuse(f"{name}={text!r} is not a regular expression: {error}")
    return text


def _parse_columns(name: str, text: str) -> tuple[str, ...]:
    columns = parse_list(name, text)
    if len(set(columns)) != len(columns):
        refuse(f"{name}={text!r} names a column twice: name each once")
    return columns


def _parse_group(_: str, text: str) -> str:
    return check_group_name(text)


def _parse_rack(_: str, text: str) -> str:
    return check_rack(text)


def _parse_assign(name: str, text: str) -> Mapping[StreamName, tuple[int, ...]]:
    """`{"flights": [0, 2]}`, as Kafka's connector has it."""
    form = 'a list of partitions for each stream, such as {"flights": [0, 2]}'
    try:
        streams = json.loads(text)
    except ValueError:
        refuse(f"{name}={text!r} is not {form}")
    if not isinstance(streams, dict) or not streams or not all(map(_are_partitions, streams.values())):
        refuse(f"{name}={text!r} is not {form}")
    return {check_stream_name(stream): tuple(sorted(partitions)) for stream, partitions in streams.items()}


def _are_partitions(value: Any) -> bool:
    """Returns whether the value is a list, not empty, of numbers from 0 up, each once."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(number) is int and number >= 0 for number in value)
        and len(set(value)) == len(value)
    )


_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
"""Bytes; the units of Spark's own sizes."""


def _bytes(name: str, text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    size = 0 if found is None else int(found[1]) * _SIZES[found[2]]
    if not 0 < size <= _MAX_COUNT:
        refuse(f"{name}={text!r} is not a number of bytes from 1 up, such as 16777216 or 16m")
    return size


def _parse_timestamp(name: str, text: str) -> AtTimestamp:
    """Milliseconds since 1970, as Kafka's connector has them, or ISO 8601 (UTC unless it says otherwise)."""
    try:
        timestamp_ns = int(text) * 1_000_000
    except ValueError:
        try:
            timestamp_ns = timestamp_from_text(text, UTC)
        except ValueError:
            refuse(f"{name}={text!r} is neither milliseconds since 1970 nor a time such as 2030-01-31T12:00:00Z")
    return AtTimestamp(_checked_time(f"{name}={text!r}", timestamp_ns))


def _checked_time(told: str, timestamp_ns: int) -> int:
    """Returns the time, checked; Long.MaxValue ms become the last possible time."""
    if timestamp_ns == _MAX_COUNT * 1_000_000:
        return _END_OF_TIME_NS - 1
    if not -_END_OF_TIME_NS <= timestamp_ns < _END_OF_TIME_NS:
        refuse(f"{told} is outside the years 1678 to 2261, which records can have: a number is in milliseconds")
    return timestamp_ns


def _parse_timestamps(name: str, text: str) -> AtTimestamps:
    """`{"flights": {"0": 1893456000000}}`: milliseconds since 1970."""
    form = 'milliseconds since 1970 per partition such as {"flights": {"0": 1893456000000}}'
    parsed: dict[StreamName, dict[int, int]] = {}
    for stream, partition, timestamp in _by_partition(name, _by_stream(name, text, form), form):
        if type(timestamp) is not int or timestamp < 0:
            refuse(f"{name}: time {timestamp!r} of {stream}/{partition} is not in milliseconds since 1970")
        told = f"{name}: time {timestamp} of {stream}/{partition}"
        parsed.setdefault(stream, {})[partition] = _checked_time(told, timestamp * 1_000_000)
    return AtTimestamps(parsed)


def _parse_starting(name: str, text: str) -> Point:
    edge = text.strip().lower()
    return Edge(edge) if edge in ("earliest", "latest") else _parse_offsets(name, text, "earliest, latest")


def _parse_ending(name: str, text: str) -> Point:
    if text.strip().lower() == "earliest":
        refuse(f"{name}={text!r} would end before it begins: use latest or offsets")
    return Edge.LATEST if text.strip().lower() == "latest" else _parse_offsets(name, text, "latest")


def _parse_offsets(name: str, text: str, words: str) -> ExplicitOffsets:
    """`{"flights": {"0": 23, "1": -1}}`; -2 is the earliest and -1 the latest, as in Kafka's connector."""
    form = f'{words} or offsets per partition such as {{"flights": {{"0": 23, "1": 0}}}}'
    streams = _by_stream(name, text, form)
    whole = {StreamName(stream): value.lower() for stream, value in streams.items() if isinstance(value, str)}
    if not {*whole.values()} <= {*words.split(", ")}:
        refuse(f"{name}={text!r} is not {form}")
    parsed: dict[StreamName, dict[int, Offset | Edge]] = {}
    split = {stream: value for stream, value in streams.items() if not isinstance(value, str)}
    for stream, partition, offset in _by_partition(name, split, form):
        if type(offset) is not int or offset < EARLIEST_IN_JSON:
            refuse(
                f"{name}: offset {offset!r} of {stream}/{partition} is not a number from 0 up "
                f"({EARLIEST_IN_JSON} = earliest, {LATEST_IN_JSON} = latest)"
            )
        if offset == EARLIEST_IN_JSON and name == "endingOffsets":
            refuse(f"{name}: the earliest offset ({offset}) of {stream}/{partition} would end before it begins")
        parsed.setdefault(stream, {})[partition] = _IN_JSON.get(offset, Offset(offset))
    return parsed | {stream: Edge(word) for stream, word in whole.items()}


def _by_stream(name: str, text: str, form: str) -> Mapping[str, Any]:
    try:
        streams = json.loads(text)
    except ValueError:
        refuse(f"{name}={text!r} is not {form}")
    if not isinstance(streams, dict):
        refuse(f"{name}={text!r} is not {form}")
    return streams


def _by_partition(name: str, streams: Mapping[str, Any], form: str) -> Iterator[tuple[StreamName, int, Any]]:
    """Yields (stream, partition, value) of `{"flights": {"0": value}}`."""
    if not all(isinstance(value, dict) and value for value in streams.values()):
        refuse(f"{name}={json.dumps(streams)!r} is not {form}")
    for stream, partitions in streams.items():
        for partition, value in partitions.items():
            if not partition.isdecimal():
                refuse(f"{name}: partition {partition!r} of stream {stream!r} is not a number from 0 up")
            yield StreamName(stream), int(partition), value


_IN_JSON: Mapping[int, Edge] = {EARLIEST_IN_JSON: Edge.EARLIEST, LATEST_IN_JSON: Edge.LATEST}

_WHAT_IS_READ = ("subscribe", "subscribePattern", "assign")
STARTING_OPTIONS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDING_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
"""Options in the order of precedence: the first one given counts."""
_BY_PARTITION = (*STARTING_OPTIONS[1:], *ENDING_OPTIONS[1:])

_PARSERS: Mapping[str, Parser] = {
    "subscribe": _parse_streams,
    "subscribePattern": _parse_pattern,
    "assign": _parse_assign,
    "startingOffsets": _parse_starting,
    "startingOffsetsByTimestamp": _parse_timestamps,
    "startingTimestamp": _parse_timestamp,
    "startingOffsetsByTimestampStrategy": one_of("error", "latest"),
    "endingOffsets": _parse_ending,
    "endingOffsetsByTimestamp": _parse_timestamps,
    "endingTimestamp": _parse_timestamp,
    "maxOffsetsPerTrigger": between(1, _MAX_COUNT),
    "minOffsetsPerTrigger": between(1, _MAX_COUNT),
    "maxTriggerDelay": duration(bare="ms"),
    "maxBytesPerTrigger": _bytes,
    "minPartitions": between(1, 100_000),
    "maxRecordsPerPartition": between(1, _MAX_COUNT),
    "fetchMaxBytes": between(1 << 10, 64 << 20),
    "failOnDataLoss": parse_bool,
    "includeHeaders": parse_bool,
    "columns": _parse_columns,
    "gc.freeze": parse_bool,
    "readFrom": one_of("leader", "follower", "nearest"),
    "rack": _parse_rack,
    "isolationLevel": one_of("read_committed", "read_uncommitted"),
    "order": one_of("partition", "key"),
    "groupId": _parse_group,
    **OF_CONNECTIONS,
}

KNOWN_OPTIONS = tuple(_PARSERS)

_OF_KAFKA: Mapping[str, str] = {
    "kafka.bootstrap.servers": "servers names the NATS servers of the cluster",
    "kafka.group.id": "groupId names the consumer group that a streaming query commits its positions for",
    "groupidprefix": "a reader here needs no group: leave it out, or name one with groupId",
    "kafka.isolation.level": "it is isolationLevel here",
    "kafkaconsumer.polltimeoutms": "retry.timeout says for how long a read is tried again",
    "fetchoffset.numretries": "retry.timeout says for how long a read is tried again",
    "fetchoffset.retryintervalms": "retry.timeout says for how long a read is tried again",
}
"""Options that have another name here, in lower case, with the remedy."""
