"""The options of `df.write.format("tidelog")` and `df.writeStream.format("tidelog")`, parsed once into types.

As those of a read (`spark_connector.options`): names are case-insensitive, and an unknown one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, Literal, NoReturn

from spark_connector.options import (
    _SWITCHES,
    DEFAULT_RETRY_SECONDS,
    LOGIN_OPTIONS,
    _as_given,
    _between,
    _duration,
    _login_option,
    _one_of,
    _or,
    _parse_bool,
    _parse_inbox_prefix,
    _parse_namespace,
    _parse_servers,
    _refuse,
    parse_retry_timeout,
)
from wire.subjects import DEFAULT_NAMESPACE, check_stream_name
from wire.transactions import MAX_SEQUENCE, MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, check_family
from wire.types import StreamName

OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark's own that it hands to sinks, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    servers: tuple[str, ...] | None = field(repr=False)
    """None: those of the context, or of the environment."""
    login: Mapping[str, str] = field(repr=False)
    """As that of `SourceOptions`."""
    namespace: str
    inbox_prefix: str | None
    stream: StreamName | None
    """That all rows go to; None: each row names its own."""
    exactly_once: bool
    transaction_timeout: float
    """Seconds from the first record of a write, or of a micro-batch, to its commit."""
    transactional_id: str | None
    """The family under which a batch write is committed; None: one of its own."""
    sequence: int | None
    """The number of a batch write within its family; None: it has no family."""
    acks: Literal["all", "leader", "none"]
    compression: Literal["none", "lz4", "zstd"] | None
    """None: as the stream has it."""
    linger: float
    """Seconds."""
    partitioner: Literal["crc32c", "murmur2"]
    retry_seconds: float

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Raises TidelogError(BAD_CONFIG) that names the option, its value and the allowed values."""
        known = {name.lower(): name for name in _PARSERS}
        values: dict[str, str] = {}
        for key, value in given.items():
            if key.lower() in OF_SPARK:
                continue
            if key.lower() not in known:
                _refuse_unknown(key)
            values[known[key.lower()]] = value
        if "servers" not in values and "context" not in values:
            _refuse('option servers is missing: add .option("servers", "nats://127.0.0.1:4222")')
        parsed: dict[str, Any] = {
            name: parse(name, values[name]) if name in values else None for name, parse in _PARSERS.items()
        }
        options = cls(
            servers=parsed["servers"],
            login={name: parsed[_login_option(name)] for name in LOGIN_OPTIONS if parsed[_login_option(name)]},
            namespace=parsed["namespace"] or DEFAULT_NAMESPACE,
            inbox_prefix=parsed["inboxPrefix"],
            stream=parsed["stream"],
            exactly_once=parsed["guarantee"] != "at_least_once",
            transaction_timeout=_or(parsed["transaction.timeout"], MAX_TIMEOUT_MS / 1000),
            transactional_id=parsed["transactionalId"],
            sequence=parsed["sequence"],
            acks=parsed["acks"] or "all",
            compression=parsed["compression"],
            linger=_or(parsed["linger"], 0.0),
            partitioner=parsed["partitioner"] or "crc32c",
            retry_seconds=_or(parsed["retry.timeout"], DEFAULT_RETRY_SECONDS),
        )
        options._check()
        return options

    def _check(self) -> None:
        if self.exactly_once and self.acks != "all":
            _refuse(
                f"acks={self.acks} goes with guarantee=at_least_once alone: what is written exactly once is committed"
                " as its stream asks; leave acks out"
            )
        if not self.exactly_once and (self.transactional_id is not None or self.sequence is not None):
            _refuse("transactionalId and sequence are for guarantee=exactly_once: leave them out, or the guarantee")

    def for_batch(self) -> SinkOptions:
        """Checked for `df.write`."""
        if (self.transactional_id is None) is not (self.sequence is None):
            _refuse(
                "transactionalId and sequence go together: a name for all writes of one job, and a number that grows"
                " from write to write, such as the batch id that foreachBatch gives"
            )
        return self

    def for_stream(self) -> SinkOptions:
        """Checked for `df.writeStream`."""
        if self.transactional_id is not None or self.sequence is not None:
            _refuse(
                "transactionalId and sequence are for df.write: a streaming query is known by the id in its checkpoint,"
                " and numbers its micro-batches itself; leave them out"
            )
        return self


def _parse_stream(_: str, text: str) -> StreamName:
    return check_stream_name(text)


def _parse_family(_: str, text: str) -> str:
    return check_family(text)


def _parse_timeout(name: str, text: str) -> float:
    seconds = _duration()(name, text)
    if not MIN_TIMEOUT_MS <= seconds * 1000 <= MAX_TIMEOUT_MS:
        _refuse(f"{name}={text!r} is outside {MIN_TIMEOUT_MS}ms to {MAX_TIMEOUT_MS // 60_000}m")
    return seconds


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    "servers": _parse_servers,
    "stream": _parse_stream,
    "guarantee": _one_of("exactly_once", "at_least_once"),
    "transaction.timeout": _parse_timeout,
    "transactionalId": _parse_family,
    "sequence": _between(0, MAX_SEQUENCE),
    "acks": _one_of("all", "leader", "none"),
    "compression": _one_of("none", "lz4", "zstd"),
    "linger": _duration(bare="ms"),
    "partitioner": _one_of("crc32c", "murmur2"),
    "retry.timeout": parse_retry_timeout,
    "namespace": _parse_namespace,
    "inboxPrefix": _parse_inbox_prefix,
    **{_login_option(name): _parse_bool if name in _SWITCHES else _as_given for name in LOGIN_OPTIONS},
}
SINK_OPTIONS: Final = tuple(_PARSERS)

_OF_OTHERS: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "servers names the NATS servers of the cluster",
    "topic": "it is stream here",
    "subscribe": "that is an option of a read; stream names the stream that is written to",
    "path": 'a stream is not a path: use .option("stream", "NAME") and save() without an argument',
    "kafka.acks": "it is acks here",
    "kafka.linger.ms": "it is linger here",
    "kafka.compression.type": "it is compression here",
    "kafka.transactional.id": "it is transactionalId here",
}
"""In lower case, with the remedy."""


def _refuse_unknown(key: str) -> NoReturn:
    if key.lower() in _OF_OTHERS:
        _refuse(f"{key} is no option of a write: {_OF_OTHERS[key.lower()]}")
    close = get_close_matches(key.lower(), [name.lower() for name in SINK_OPTIONS], n=1)
    meant = next((f" (did you mean {name}?)" for name in SINK_OPTIONS if [name.lower()] == close), "")
    _refuse(f"unknown option {key!r} of a write to tidelog{meant}; known: {', '.join(SINK_OPTIONS)}")
