"""The options of `spark.read.format("tidelog")` and `spark.readStream.format("tidelog")`, parsed once into types.

Names are case-insensitive, as everywhere in Spark, which hands them over in lower case. An unknown name is refused: a
misspelt `startingOffsets` would otherwise read something else than was asked for, silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC
from difflib import get_close_matches
from enum import Enum
from typing import Any, NoReturn, TypeVar

from tidelog.client.positions import timestamp_from_text
from wire.errors import Code, TidelogError
from wire.subjects import (
    DEFAULT_NAMESPACE,
    check_inbox_prefix,
    check_namespace,
    check_stream_name,
)
from wire.types import Offset, StreamName

DEFAULT_FETCH_MAX_BYTES = 4 << 20
DEFAULT_RETRY_SECONDS = 120.0
_SWITCHES = ("tls", "tls_first")
LOGIN_OPTIONS = (
    "context", "user", "password", "password_file", "token", "token_file", "nkey", "creds", "ca", "cert", "key",
    "tls_hostname", *_SWITCHES,
)  # fmt: skip
"""Arguments of `tidelog.connect`; Spark's options are `context`, and `nats.` with each of the others."""
EARLIEST_IN_JSON = -2
LATEST_IN_JSON = -1


class Edge(Enum):
    """A position that is looked up, in each partition, when the query starts."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time."""

    timestamp_ns: int


ExplicitOffsets = Mapping[StreamName, Mapping[int, Offset | Edge]]
StartingPoint = Edge | AtTimestamp | ExplicitOffsets
_Point = TypeVar("_Point", bound="StartingPoint")
EndingPoint = Edge | AtTimestamp | ExplicitOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The user's options. `starting` and `ending` are None where the user left them to the kind of query."""

    servers: tuple[str, ...] | None = field(repr=False)
    """None: those of the context, or of the environment."""
    login: Mapping[str, str] = field(repr=False)
    """The options of the login, as `tidelog.connect` takes them: nothing in Spark shows them."""
    streams: tuple[StreamName, ...]
    assign: Mapping[StreamName, tuple[int, ...]] | None
    """The partitions of each stream that are read; None: all."""
    namespace: str
    inbox_prefix: str | None
    starting: StartingPoint | None
    ending: EndingPoint | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    fetch_max_bytes: int
    fail_on_data_loss: bool
    include_headers: bool
    retry_seconds: float
    """Seconds for which a cluster that does not answer is waited for."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises TidelogError(BAD_CONFIG) that names the option, its value and the allowed values."""
        known = {name.lower(): name for name in KNOWN_OPTIONS}
        values: dict[str, str] = {}
        for key, value in given.items():
            if key.lower() not in known:
                _refuse_unknown(key)
            values[known[key.lower()]] = value
        for name, other, role in (
            ("startingOffsets", "startingTimestamp", "be the start"),
            ("endingOffsets", "endingTimestamp", "be the end"),
            ("subscribe", "assign", "say what is read"),
        ):
            if name in values and other in values:
                _refuse(f"{name} and {other} are both given, and one of them can {role}: leave one out")
        for name, instead, example in (
            ("servers", "context", "nats://127.0.0.1:4222"),
            ("subscribe", "assign", "flights"),
        ):
            if name not in values and instead not in values:
                _refuse(f'option {name} is missing: add .option("{name}", "{example}")')
        parsed: dict[str, Any] = {
            name: parse(name, values[name]) if name in values else None for name, parse in _PARSERS.items()
        }
        options = cls(
            servers=parsed["servers"],
            login={name: parsed[_login_option(name)] for name in LOGIN_OPTIONS if parsed[_login_option(name)]},
            streams=parsed["subscribe"] or tuple(parsed["assign"]),
            assign=parsed["assign"],
            namespace=parsed["namespace"] or DEFAULT_NAMESPACE,
            inbox_prefix=parsed["inboxPrefix"],
            starting=_either(parsed["startingOffsets"], parsed["startingTimestamp"]),
            ending=_either(parsed["endingOffsets"], parsed["endingTimestamp"]),
            max_offsets_per_trigger=parsed["maxOffsetsPerTrigger"],
            min_partitions=parsed["minPartitions"] or 1,
            fetch_max_bytes=parsed["fetchMaxBytes"] or DEFAULT_FETCH_MAX_BYTES,
            fail_on_data_loss=parsed["failOnDataLoss"] is not False,
            include_headers=parsed["includeHeaders"] is True,
            retry_seconds=DEFAULT_RETRY_SECONDS if parsed["retry.timeout"] is None else parsed["retry.timeout"],
        )
        for name, point in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
            if isinstance(point, Mapping) and set(point) != set(options.streams):
                _refuse(
                    f"{name} speaks of {_names(point)} but {'assign' if options.assign else 'subscribe'} of "
                    f"{_names(options.streams)}: "
                    "give a position for each subscribed stream and no other"
                )
        return options

    def for_batch(self) -> SourceOptions:
        """Checked for `spark.read`: begins at the earliest record unless told, ends at the latest."""
        if self.starting is Edge.LATEST:
            _refuse(
                "startingOffsets=latest leaves nothing for a batch query to read: "
                "use earliest or offsets, or spark.readStream to read new records"
            )
        if self.max_offsets_per_trigger is not None:
            _refuse("maxOffsetsPerTrigger has no meaning in a batch query: leave it out, or set endingOffsets")
        return self

    def for_stream(self) -> SourceOptions:
        """Checked for `spark.readStream`: begins at the latest record unless told, and has no end."""
        if self.ending is not None:
            _refuse(
                "endingOffsets and endingTimestamp have no meaning in a streaming query: leave them out, "
                "or use spark.read, or trigger(availableNow=True) to stop at the present end"
            )
        return self


def _either(first: _Point | None, second: _Point | None) -> _Point | None:
    return second if first is None else first


def _refuse(message: str) -> NoReturn:
    raise TidelogError(Code.BAD_CONFIG, message)


def _refuse_unknown(key: str) -> NoReturn:
    if key.lower() == "pushdownfilters":
        _refuse(
            "option pushDownFilters is gone, because Spark gives the filters of one query to the others of the same "
            "load(), and rows were missing: use assign, startingOffsets or startingTimestamp, endingOffsets or "
            "endingTimestamp to read less"
        )
    if key.lower() == "path":
        _refuse('a stream is not a path: use .option("subscribe", "NAME") and load() without an argument')
    close = get_close_matches(key.lower(), [name.lower() for name in KNOWN_OPTIONS], n=1)
    meant = next((f" (did you mean {name}?)" for name in KNOWN_OPTIONS if [name.lower()] == close), "")
    _refuse(f"unknown option {key!r} of the tidelog data source{meant}; known: {', '.join(KNOWN_OPTIONS)}")


def _names(streams: Any) -> str:
    return ", ".join(sorted(streams)) or "no stream"


def _parse_list(name: str, text: str) -> tuple[str, ...]:
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        told = name if "@" in text else f"{name}={text!r}"
        _refuse(f"{told} holds an empty item: separate items by one comma")
    return items


def _parse_servers(name: str, text: str) -> tuple[str, ...]:
    servers = _parse_list(name, text)
    for server in servers:
        if "://" not in server:
            told = name if "@" in text else f"{name}={text!r}: {server!r}"
            _refuse(f"{told} is not a URL such as nats://127.0.0.1:4222")
    return servers


def _parse_streams(name: str, text: str) -> tuple[StreamName, ...]:
    streams = _parse_list(name, text)
    if len(set(streams)) != len(streams):
        _refuse(f"{name}={text!r} names a stream twice: name each once")
    return tuple(check_stream_name(stream) for stream in streams)


def _parse_assign(name: str, text: str) -> Mapping[StreamName, tuple[int, ...]]:
    """`{"flights": [0, 2]}`, as Kafka's connector has it."""
    form = 'a list of partitions for each stream, such as {"flights": [0, 2]}'
    try:
        streams = json.loads(text)
    except ValueError:
        _refuse(f"{name}={text!r} is not {form}")
    if not isinstance(streams, dict) or not streams or not all(map(_are_partitions, streams.values())):
        _refuse(f"{name}={text!r} is not {form}")
    return {check_stream_name(stream): tuple(sorted(partitions)) for stream, partitions in streams.items()}


def _are_partitions(value: Any) -> bool:
    """Not empty, numbers from 0 up, each once."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(number) is int and number >= 0 for number in value)
        and len(set(value)) == len(value)
    )


def _parse_namespace(_: str, text: str) -> str:
    return check_namespace(text)


def _parse_inbox_prefix(_: str, text: str) -> str:
    return check_inbox_prefix(text)


def _login_option(name: str) -> str:
    return name if name == "context" else f"nats.{name}"


def _as_given(_: str, text: str) -> str:
    return text


def _parse_bool(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        _refuse(f"{name}={text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"


def _between(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            _refuse(f"{name}={text!r} is not a whole number from {low} to {high}")
        if not low <= number <= high:
            _refuse(f"{name}={text!r} is outside {low} to {high}")
        return number

    return parse


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _parse_duration(name: str, text: str) -> float:
    """Seconds."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|h)\s*", text)
    if found is None:
        _refuse(f"{name}={text!r} is no duration such as 120s, 500ms, 2m or 1h")
    return int(found[1]) * _DURATION_UNITS[found[2]]


def _parse_timestamp(name: str, text: str) -> AtTimestamp:
    """Milliseconds since 1970, as Kafka's connector has them, or ISO 8601 (UTC unless it says otherwise)."""
    try:
        return AtTimestamp(int(text) * 1_000_000)
    except ValueError:
        pass
    try:
        return AtTimestamp(timestamp_from_text(text, UTC))
    except ValueError:
        _refuse(f"{name}={text!r} is neither milliseconds since 1970 nor a time such as 2030-01-31T12:00:00Z")


def _parse_starting(name: str, text: str) -> StartingPoint:
    edge = text.strip().lower()
    return Edge(edge) if edge in ("earliest", "latest") else _parse_offsets(name, text, "earliest, latest")


def _parse_ending(name: str, text: str) -> EndingPoint:
    if text.strip().lower() == "earliest":
        _refuse(f"{name}={text!r} would end before it begins: use latest or offsets")
    return Edge.LATEST if text.strip().lower() == "latest" else _parse_offsets(name, text, "latest")


def _parse_offsets(name: str, text: str, words: str) -> ExplicitOffsets:
    """`{"flights": {"0": 23, "1": -1}}`; -2 is the earliest and -1 the latest, as in Kafka's connector."""
    form = f'{words} or offsets per partition such as {{"flights": {{"0": 23, "1": 0}}}}'
    try:
        streams = json.loads(text)
    except ValueError:
        _refuse(f"{name}={text!r} is neither {form}")
    if not isinstance(streams, dict) or not all(isinstance(value, dict) for value in streams.values()):
        _refuse(f"{name}={text!r} is neither {form}")
    parsed: dict[StreamName, dict[int, Offset | Edge]] = {}
    for stream, partitions in streams.items():
        parsed[StreamName(stream)] = offsets = {}
        for partition, offset in partitions.items():
            if not partition.isdecimal():
                _refuse(f"{name}: partition {partition!r} of stream {stream!r} is not a number from 0 up")
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST_IN_JSON:
                _refuse(
                    f"{name}: offset {offset!r} of {stream}/{partition} is not a number from 0 up "
                    f"({EARLIEST_IN_JSON} = earliest, {LATEST_IN_JSON} = latest)"
                )
            if offset == EARLIEST_IN_JSON and name == "endingOffsets":
                _refuse(f"{name}: the earliest offset ({offset}) of {stream}/{partition} would end before it begins")
            offsets[int(partition)] = _IN_JSON.get(offset, Offset(offset))
    return parsed


_IN_JSON: Mapping[int, Edge] = {EARLIEST_IN_JSON: Edge.EARLIEST, LATEST_IN_JSON: Edge.LATEST}

_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "servers": _parse_servers,
    "subscribe": _parse_streams,
    "assign": _parse_assign,
    "namespace": _parse_namespace,
    "inboxPrefix": _parse_inbox_prefix,
    "startingOffsets": _parse_starting,
    "startingTimestamp": _parse_timestamp,
    "endingOffsets": _parse_ending,
    "endingTimestamp": _parse_timestamp,
    "maxOffsetsPerTrigger": _between(1, 1 << 62),
    "minPartitions": _between(1, 100_000),
    "fetchMaxBytes": _between(1 << 10, 64 << 20),
    "failOnDataLoss": _parse_bool,
    "includeHeaders": _parse_bool,
    "retry.timeout": _parse_duration,
    **{_login_option(name): _parse_bool if name in _SWITCHES else _as_given for name in LOGIN_OPTIONS},
}

KNOWN_OPTIONS = tuple(_PARSERS)
