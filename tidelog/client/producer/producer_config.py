"""The options of producers: a field of the configuration and a key of the keywords that programs give each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Literal, TypeAlias, TypedDict, get_args

from tidelog.client.base.arguments import (
    bad,
    check_choice,
    check_flag,
    check_function,
    check_number,
    check_partitioner,
    check_text,
    check_texts,
    check_whole,
)
from tidelog.client.base.options import check_options, option
from tidelog.client.base.records import K, V
from tidelog.client.cluster.metadata_cache import stream_name
from wire.durability import Durability
from wire.internal_records.transaction_records import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS, MIN_TIMEOUT_MS
from wire.types import StreamName

_Acks: TypeAlias = Literal["all", "leader", "none"]
_Compression: TypeAlias = Literal["none", "lz4", "zstd"] | None
_Partitioner: TypeAlias = Literal["crc32c", "murmur2"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(Generic[K, V]):
    """Options of a producer. Raises BadRequest for one that is wrong.

    - `acks`: "all" = committed by the in-sync replicas; "leader" = in the leader's log, lost if the leader changes;
      "none" = written to the connection.
    - `durability`: a level of this producer's own in place of the stream's: "durable", "accepted",
      "replica_durable:N", "replica_accepted:N", "majority_durable", "local_durable" (see docs/operations.md).
    - `confirm_timeout`: seconds that the leader waits for the level; then the record fails with DeliveryTimeout, and
      may have been written. A leader that refuses records for so long (a quota, too few replicas) ends them as well,
      with its refusal, and they have not been written. None: the stream's time, after which it is sent again, without
      a duplicate, until `delivery_timeout_ms` is over.
    - `batch_bytes`: most bytes of a batch, bounded by the payload that NATS takes in one message.
    - `linger_ms`: ms to wait for more records before an incomplete batch is sent.
    - `max_in_flight`: batches per partition, 1 to 5.
    - `buffer_bytes`: bytes of unacknowledged records; above it `send` waits and `send_nowait` raises BufferFull.
    - `delivery_timeout_ms`: ms after which a record fails with DeliveryTimeout, or with what its leader refuses it for.
      It bounds the requests of a transactional producer to the coordinator as well.
    - `compression`: the compression of batches; None: the stream's setting.
    - `partitioner`: the hash of a key, modulo the number of partitions, is the partition of its records; "murmur2" is
      that of Kafka's Java clients (librdkafka's murmur2_random). None: the stream's (`create_stream`). A producer that
      chooses another one than its peers gives a key two homes, and the key's records have no order.
    - `dedup`: False: message ids (`Nats-Msg-Id`) are stored as any other headers, so that a record is written though
      the stream has one with its id, as copies of streams ask.
    - `key_serializer`: called with each key that is not None, to make bytes of it; what it refuses, `send` and its like
      raise as SerializationFailed. None: keys are bytes.
    - `value_serializer`: the same for values.
    """

    acks: _Acks = option("all", partial(check_choice, choices=get_args(_Acks)))
    durability: str | None = option(None, partial(check_text, example="durable"))
    confirm_timeout: float | None = option(None, partial(check_number, low=0.001, high=3600))
    batch_bytes: int = option(1 << 20, partial(check_whole, low=1, high=1 << 30))
    linger_ms: float = option(0.0, partial(check_number, low=0, high=60_000))
    max_in_flight: int = option(5, partial(check_whole, low=1, high=5))
    """Leaders remember the last five batches of a producer; of a larger window they could not recognise repetitions."""
    buffer_bytes: int = option(64 << 20, partial(check_whole, low=1, high=1 << 40))
    delivery_timeout_ms: float = option(30_000, partial(check_number, low=1, high=24 * 3_600_000))
    compression: _Compression = option(None, partial(check_choice, choices=(None, "none", "lz4", "zstd")))
    partitioner: _Partitioner = option(None, check_partitioner)
    dedup: bool = option(default=True, check=check_flag)
    key_serializer: Callable[[K], bytes] | None = option(None, check_function)
    value_serializer: Callable[[V], bytes] | None = option(None, check_function)

    def __post_init__(self) -> None:
        check_options(self)
        level = self.level
        if level is not None and self.acks == "none":
            raise bad(f"durability={level} says when to acknowledge, acks='none' never to; leave one out")
        if level is not None and self.acks == "leader" and level.has_floor:
            raise bad(
                f"durability={level} waits for other replicas, and acks='leader' for the leader alone; leave acks out,"
                " or ask for durability='local_durable'",
            )

    @property
    def level(self) -> Durability | None:
        """The level of durability that the program asks for; None: that of the stream."""
        try:
            return None if self.durability is None else Durability.parse(self.durability)
        except ValueError as error:
            raise bad(f"durability={self.durability!r}: {error}") from None

    @property
    def delivery_timeout(self) -> float:
        """Seconds after which a record fails."""
        return self.delivery_timeout_ms / 1000


DEFAULT_TIMEOUT_S: Final = DEFAULT_TIMEOUT_MS / 1000


def _check_streams(name: str, given: str | Iterable[str]) -> None:
    known = [given] if isinstance(given, str) else given
    check_texts(name, known, "['orders']")
    for stream in known:
        stream_name(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig(ProducerConfig[K, V]):
    """Options of a transactional producer. `acks`, `durability`, `confirm_timeout` and `dedup` are not for it: each of
    its records is committed as its stream asks before the transaction is.

    - `streams`: the streams that a transactional producer is to know from its start, for `send_nowait`.
    - `transaction_timeout`: seconds, 0.1 to 900; the coordinator aborts a transaction that is open for longer.
    """

    streams: str | Iterable[str] = option((), _check_streams)
    transaction_timeout: float = option(
        DEFAULT_TIMEOUT_S, partial(check_number, low=MIN_TIMEOUT_MS / 1000, high=MAX_TIMEOUT_MS / 1000)
    )

    def __post_init__(self) -> None:
        if isinstance(self.streams, Iterable):  # an iterator is read once, and this is looked at more often
            names = (self.streams,) if isinstance(self.streams, str) else tuple(self.streams)
            object.__setattr__(self, "streams", names)
        check_options(self)
        if self.acks != "all" or self.durability is not None or self.confirm_timeout is not None or not self.dedup:
            raise bad(
                "acks, durability, confirm_timeout and dedup are not for a transactional producer, whose records are"
                " committed as their stream asks, and are not compared by message id; leave them out"
            )

    @property
    def stream_names(self) -> list[StreamName]:
        return [stream_name(each) for each in ([self.streams] if isinstance(self.streams, str) else self.streams)]


class _SendOptions(TypedDict, Generic[K, V], total=False):
    batch_bytes: int
    linger_ms: float
    max_in_flight: int
    buffer_bytes: int
    delivery_timeout_ms: float
    compression: _Compression
    partitioner: _Partitioner
    key_serializer: Callable[[K], bytes] | None
    value_serializer: Callable[[V], bytes] | None


class ProducerOptions(_SendOptions[K, V], total=False):
    """The keywords of `Client.producer` for a stream."""

    acks: _Acks
    durability: str | None
    confirm_timeout: float | None
    dedup: bool


class TransactionOptions(_SendOptions[K, V], total=False):
    """The keywords of `Client.producer` with a transactional id."""

    streams: str | Iterable[str]
    transaction_timeout: float
