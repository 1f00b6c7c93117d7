"""Producers of a client: of one stream, and of transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, overload

from tidelog.client.base.arguments import bad, check_number, check_text, check_texts, check_whole
from tidelog.client.base.exceptions import typed
from tidelog.client.base.records import K, V
from tidelog.client.base.serialization import Serializers
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import Started
from tidelog.client.cluster.metadata_cache import MetadataCache, stream_name
from tidelog.client.group.group_admin import GroupAdmin
from tidelog.client.producer.batches import AccumulatorSettings
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.send_buffer import SendBuffer
from tidelog.client.transaction.transaction_work import TransactionWriter
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.durability import Durability
from wire.errors import TidelogError
from wire.internal_records.transaction_records import (
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    check_transactional_id,
)
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import Acks, StreamName

_TRANSACTION_TIMEOUT = DEFAULT_TIMEOUT_MS / 1000
_Compression = Literal["none", "lz4", "zstd"]
_Partitioner = Literal["crc32c", "murmur2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(Generic[K, V]):
    """The options of both kinds of producers; checked."""

    settings: AccumulatorSettings
    buffer_bytes: int
    compression: _Compression | None
    durability: Durability | None
    confirm_timeout_ms: int
    partitioner: _Partitioner | None
    serializers: Serializers[K, V]


class ProducerCalls(ABC):
    _api: Api
    _groups: GroupAdmin
    _metadata: MetadataCache
    _name: str
    _numbers: Iterator[int]
    _producers: Started[Producer[Any, Any] | TransactionalProducer[Any, Any]]
    _subjects: Subjects
    _transactions_link: CoordinatorLink
    _transport: Transport

    @abstractmethod
    def _check_open(self) -> None: ...

    @overload
    def producer(
        self,
        stream: str,
        *,
        acks: Literal["all", "leader", "none"] = "all",
        durability: str | None = None,
        confirm_timeout: float | None = None,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 0.0,
        max_in_flight: int = 5,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_ms: float = 30_000,
        compression: Literal["none", "lz4", "zstd"] | None = None,
        partitioner: Literal["crc32c", "murmur2"] | None = None,
        dedup: bool = True,
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
    ) -> Producer[K, V]: ...

    @overload
    def producer(
        self,
        *,
        transactional_id: str,
        streams: str | Iterable[str] = (),
        transaction_timeout: float = 60.0,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 0.0,
        max_in_flight: int = 5,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_ms: float = 30_000,
        compression: Literal["none", "lz4", "zstd"] | None = None,
        partitioner: Literal["crc32c", "murmur2"] | None = None,
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
    ) -> TransactionalProducer[K, V]: ...

    def producer(
        self,
        stream: str | None = None,
        *,
        transactional_id: str | None = None,
        streams: str | Iterable[str] = (),
        transaction_timeout: float = 60.0,
        acks: Literal["all", "leader", "none"] = "all",
        durability: str | None = None,
        confirm_timeout: float | None = None,
        batch_bytes: int = 1 << 20,
        linger_ms: float = 0.0,
        max_in_flight: int = 5,
        buffer_bytes: int = 64 << 20,
        delivery_timeout_ms: float = 30_000,
        compression: Literal["none", "lz4", "zstd"] | None = None,
        partitioner: Literal["crc32c", "murmur2"] | None = None,
        dedup: bool = True,
        key_serializer: Callable[[K], bytes] | None = None,
        value_serializer: Callable[[V], bytes] | None = None,
    ) -> Producer[K, V] | TransactionalProducer[K, V]:
        """A producer for a stream; or, with `transactional_id` in place of a stream, one that writes to any streams in
        transactions.

        `acks`: "all" = committed by the in-sync replicas; "leader" = in the leader's log, lost if the leader changes;
        "none" = written to the connection. `durability`: a level of this producer's own in place of the stream's:
        "durable", "accepted", "replica_durable:N", "replica_accepted:N", "majority_durable", "local_durable" (see
        docs/operations.md). `confirm_timeout`: seconds that the leader waits for the level; then the record fails with
        DeliveryTimeout, and may have been written. A leader that refuses records for so long (a quota, too few
        replicas) ends them as well, with its refusal, and they have not been written. None: the stream's time, after
        which it is sent again, without a duplicate, until `delivery_timeout_ms` is over. `batch_bytes` is bounded by
        the payload that NATS takes in one message. `linger_ms` waits for more records before an incomplete batch is
        sent. `max_in_flight`: batches per partition, 1 to 5. `buffer_bytes` of unacknowledged records: above it `send`
        waits and `send_nowait` raises BufferFull. After `delivery_timeout_ms` a record fails with DeliveryTimeout, or
        with what its leader refuses it for. `compression` of batches; None: the stream's setting. `partitioner`: the
        hash of a key, modulo the number of partitions, is the partition of its records; "murmur2" is that of Kafka's
        Java clients (librdkafka's murmur2_random). None: the stream's (`create_stream`). A producer that chooses
        another one than its peers gives a key two homes, and the key's records have no order. `dedup=False`: message
        ids (`Nats-Msg-Id`) are stored as any other headers, so that a record is written though the stream has one with
        its id, as copies of streams ask.
        `key_serializer`, `value_serializer`: called with each key and value that is not None, to make bytes of it;
        what they refuse, `send` and its like raise as SerializationFailed. None: keys and values are bytes.

        `transactional_id`: a name that the producer keeps when its program is started anew, and that no other has at
        the same time: a newer producer of that name fences the older one. `streams`: that it is to know from its start,
        for `send_nowait`. `transaction_timeout`: seconds, 0.1 to 900; the coordinator aborts a transaction that is open
        for longer. `acks`, `durability`, `confirm_timeout` and `dedup` are not for it: each of its records is committed
        as its stream asks before the transaction is. `delivery_timeout_ms` bounds its requests to the coordinator as
        well.
        """
        self._check_open()
        level = _acks(acks)
        asked = None if durability is None else _durability(durability, level)
        if confirm_timeout is not None:
            check_number("confirm_timeout", confirm_timeout, 0.001, 3600)
        check_whole("batch_bytes", batch_bytes, 1, 1 << 30)
        check_number("linger_ms", linger_ms, 0, 60_000)
        check_whole("max_in_flight", max_in_flight, 1, 5)
        check_whole("buffer_bytes", buffer_bytes, 1, 1 << 40)
        check_number("delivery_timeout_ms", delivery_timeout_ms, 1, 24 * 3_600_000)
        options = _Options(
            settings=AccumulatorSettings(
                acks=level,
                batch_bytes=batch_bytes,
                linger=linger_ms / 1000,
                max_in_flight=max_in_flight,
                delivery_timeout=delivery_timeout_ms / 1000,
                confirm_timeout=confirm_timeout,
                dedup=dedup,
            ),
            buffer_bytes=buffer_bytes,
            compression=compression,
            durability=asked,
            confirm_timeout_ms=0 if confirm_timeout is None else max(1, round(confirm_timeout * 1000)),
            partitioner=partitioner,
            serializers=Serializers(key_serializer, value_serializer),
        )
        if transactional_id is None:
            if stream is None:
                raise bad("stream name None is no name: give the producer a stream, or a transactional_id")
            if streams != () or transaction_timeout != _TRANSACTION_TIMEOUT:
                raise bad("streams and transaction_timeout are of transactional producers; give a transactional_id")
            return self._of_stream(stream_name(stream), options)
        if stream is not None:
            raise bad(
                f"a transactional producer writes to any streams: name {stream!r} in its send(), or in streams=[...]"
            )
        if level is not Acks.ALL or asked is not None or confirm_timeout is not None or not dedup:
            raise bad(
                "acks, durability, confirm_timeout and dedup are not for a transactional producer, whose records are"
                " committed as their stream asks, and are not compared by message id; leave them out"
            )
        check_number("transaction_timeout", transaction_timeout, MIN_TIMEOUT_MS / 1000, MAX_TIMEOUT_MS / 1000)
        return self._of_transactions(transactional_id, streams, round(transaction_timeout * 1000), options)

    def _of_stream(self, stream: StreamName, options: _Options[K, V]) -> Producer[K, V]:
        buffer = SendBuffer(options.buffer_bytes, timeout=options.settings.delivery_timeout, of=repr(stream))
        return Producer(
            self._transport,
            self._subjects,
            self._api,
            self._metadata,
            stream,
            settings=options.settings,
            buffer=buffer,
            compression=options.compression,
            durability=options.durability,
            confirm_timeout_ms=options.confirm_timeout_ms,
            partitioner=options.partitioner,
            spread=next(self._numbers),
            serializers=options.serializers,
            started=self._producers,
        )

    def _of_transactions(
        self, transactional_id: str, streams: str | Iterable[str], timeout_ms: int, options: _Options[K, V]
    ) -> TransactionalProducer[K, V]:
        check_text("transactional_id", transactional_id, "billing-1")
        try:
            name = check_transactional_id(transactional_id)
        except TidelogError as error:
            raise typed(error) from None
        known = [streams] if isinstance(streams, str) else streams
        check_texts("streams", known, "['orders']")
        delivery_timeout = options.settings.delivery_timeout
        buffer = SendBuffer(options.buffer_bytes, timeout=delivery_timeout, of=f"transactions of {name!r}")

        def make_writer(stream: StreamName) -> TransactionWriter[K, V]:
            return TransactionWriter(
                self._transport,
                self._subjects,
                self._api,
                self._metadata,
                stream,
                settings=options.settings,
                buffer=buffer,
                compression=options.compression,
                durability=None,
                confirm_timeout_ms=0,
                partitioner=options.partitioner,
                spread=next(self._numbers),
                serializers=options.serializers,
                started=Started(self._check_open),
            )

        return TransactionalProducer(
            self._transactions_link,
            self._groups,
            name,
            streams=[stream_name(stream) for stream in known],
            timeout_ms=timeout_ms,
            client=self._name,
            delivery_timeout=delivery_timeout,
            make_writer=make_writer,
            started=self._producers,
        )


def _acks(text: str) -> Acks:
    try:
        return Acks(text)
    except ValueError:
        raise bad(f"acks={text!r} is none of 'all', 'leader' and 'none'") from None


def _durability(text: str, acks: Acks) -> Durability:
    check_text("durability", text, "durable")
    try:
        asked = Durability.parse(text)
    except ValueError as error:
        raise bad(f"durability={text!r}: {error}") from None
    if acks is Acks.NONE:
        raise bad(f"durability={asked} says when to acknowledge, acks='none' never to; leave one out")
    if acks is Acks.LEADER and asked.has_floor:
        raise bad(
            f"durability={asked} waits for other replicas, and acks='leader' for the leader alone; leave acks out, or"
            " ask for durability='local_durable'",
        )
    return asked
