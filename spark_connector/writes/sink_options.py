"""The options of `df.write.format("tidelog")` and `df.writeStream.format("tidelog")`, parsed once into types.

As those of a read (`spark_connector.reads.read_options`): names are case-insensitive, and an unknown one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

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
    parsed,
    refuse,
)
from wire.internal_records.transaction_records import MAX_SEQUENCE, MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, check_family
from wire.layouts import PARTITIONERS
from wire.subjects import check_stream_name
from wire.types import StreamName

CHECKPOINT: Final = "checkpointlocation"
OF_SPARK: Final = frozenset({CHECKPOINT, "queryname"})
"""Names of Spark's own options that it hands to sinks, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ConnectionOptions):
    stream: StreamName | None
    """The stream that all rows go to; None: each row names its own."""
    exactly_once: bool
    transaction_timeout: float
    """Seconds from the first record of a write, or of a micro-batch, to its commit."""
    transactional_id: str | None
    """The family under which a batch write is committed; None: one of its own."""
    sequence: int | None
    """The number of a batch write within its family; None: it has no family."""
    checkpoint: str | None
    """The folder of a streaming query's checkpoint, if it is known."""
    skips_committed: bool
    """A committed number is taken for this batch's, without comparing the rows."""
    acks: Literal["all", "leader", "none"]
    compression: Literal["none", "lz4", "zstd"] | None
    """The codec of batches; None: as the stream has it."""
    linger: float
    """Seconds."""
    partitioner: Literal["crc32c", "murmur2"] | None
    """The hash of keys; None: the stream's."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Parses the options. Raises TidelogError(BAD_CONFIG) that names the option, its value and the allowed
        values."""
        of_ours = {key: value for key, value in given.items() if key.lower() not in OF_SPARK}
        values = by_name(of_ours, _PARSERS, _refuse_unknown)
        if not has_servers(values):
            refuse(NO_SERVERS)
        found = parsed(values, _PARSERS)
        options = cls(
            **of_connection(found),
            stream=found["stream"],
            exactly_once=found["guarantee"] != "at_least_once",
            transaction_timeout=or_default(found["transaction.timeout"], MAX_TIMEOUT_MS / 1000),
            transactional_id=found["transactionalId"],
            sequence=found["sequence"],
            checkpoint=next((value for key, value in given.items() if key.lower() == CHECKPOINT), None),
            skips_committed=found["ifCommitted"] == "skip",
            acks=found["acks"] or "all",
            compression=found["compression"],
            linger=or_default(found["linger"], 0.0),
            partitioner=found["partitioner"],
        )
        options._check()
        return options

    def _check(self) -> None:
        if self.exactly_once and self.acks != "all":
            refuse(
                f"acks={self.acks} goes with guarantee=at_least_once alone: what is written exactly once is committed"
                " as its stream asks; leave acks out"
            )
        if not self.exactly_once and (self.transactional_id is not None or self.sequence is not None):
            refuse("transactionalId and sequence are for guarantee=exactly_once: leave them out, or the guarantee")
        if not self.exactly_once and self.skips_committed:
            refuse("ifCommitted is for guarantee=exactly_once: leave it out, or the guarantee")

    def for_batch(self) -> SinkOptions:
        """Returns the options checked for `df.write`."""
        if (self.transactional_id is None) is not (self.sequence is None):
            refuse(
                "transactionalId and sequence go together: a name for all writes of one job, and a number that grows"
                " from write to write, such as the batch id that foreachBatch gives"
            )
        return self

    def for_stream(self) -> SinkOptions:
        """Returns the options checked for `df.writeStream`."""
        if self.transactional_id is not None or self.sequence is not None:
            refuse(
                "transactionalId and sequence are for df.write: a streaming query is known by the id in its checkpoint,"
                " and numbers its micro-batches itself; leave them out"
            )
        return self


def _parse_stream(_: str, text: str) -> StreamName:
    return check_stream_name(text)


def _parse_family(_: str, text: str) -> str:
    return check_family(text)


def _parse_timeout(name: str, text: str) -> float:
    seconds = duration()(name, text)
    if not MIN_TIMEOUT_MS <= seconds * 1000 <= MAX_TIMEOUT_MS:
        refuse(f"{name}={text!r} is outside {MIN_TIMEOUT_MS}ms to {MAX_TIMEOUT_MS // 60_000}m")
    return seconds


_PARSERS: Mapping[str, Parser] = {
    "stream": _parse_stream,
    "guarantee": one_of("exactly_once", "at_least_once"),
    "transaction.timeout": _parse_timeout,
    "transactionalId": _parse_family,
    "sequence": between(0, MAX_SEQUENCE),
    "ifCommitted": one_of("compare", "skip"),
    "acks": one_of("all", "leader", "none"),
    "compression": one_of("none", "lz4", "zstd"),
    "linger": duration(bare="ms"),
    "partitioner": one_of(*PARTITIONERS),
    **OF_CONNECTIONS,
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
"""Refused names in lower case, with the remedy."""


def _refuse_unknown(key: str) -> NoReturn:
    hint = _OF_OTHERS.get(key.lower()) or kafka_login_hint(key)
    if hint is not None:
        refuse(f"{key} is no option of a write: {hint}")
    meant = did_you_mean(key, SINK_OPTIONS)
    refuse(f"unknown option {key!r} of a write to tidelog{meant}; known: {', '.join(SINK_OPTIONS)}")
