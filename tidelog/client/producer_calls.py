"""Producers of a client: of one stream, and of transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Unpack, overload

from tidelog.client.base.arguments import bad, check_text
from tidelog.client.base.exceptions import typed
from tidelog.client.base.options import takes
from tidelog.client.base.records import K, V
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import Started
from tidelog.client.cluster.metadata_cache import MetadataCache, stream_name
from tidelog.client.group.group_admin import GroupAdmin
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.producer_config import (
    ProducerConfig,
    ProducerOptions,
    TransactionConfig,
    TransactionOptions,
)
from tidelog.client.producer.send_buffer import SendBuffer
from tidelog.client.producer.upkeep import Transactions
from tidelog.client.transaction.transaction_work import TransactionWriter
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.errors import TidelogError
from wire.internal_records.transaction_records import check_transactional_id
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import StreamName


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
    def producer(self, stream: str, **options: Unpack[ProducerOptions[K, V]]) -> Producer[K, V]: ...

    @overload
    def producer(
        self, *, transactional_id: str, **options: Unpack[TransactionOptions[K, V]]
    ) -> TransactionalProducer[K, V]: ...

    @takes(TransactionConfig)
    def producer(
        self, stream: str | None = None, *, transactional_id: str | None = None, **options: Any
    ) -> Producer[K, V] | TransactionalProducer[K, V]:
        """A producer for a stream; or, with `transactional_id` in place of a stream, one that writes to any streams in
        transactions.

        `transactional_id`: a name that the producer keeps when its program is started anew, and that no other has at
        the same time: a newer producer of that name fences the older one. `acks`, `durability`, `confirm_timeout` and
        `dedup` are not for it: each of its records is committed as its stream asks before the transaction is.
        """
        self._check_open()
        if transactional_id is not None:
            transaction_config: TransactionConfig[K, V] = TransactionConfig(**options)
            if stream is not None:
                raise bad(
                    f"a transactional producer writes to any streams: name {stream!r} in its send(), or in"
                    " streams=[...]"
                )
            return self._of_transactions(transactional_id, transaction_config)
        if "streams" in options or "transaction_timeout" in options:
            raise bad("streams and transaction_timeout are of transactional producers; give a transactional_id")
        config: ProducerConfig[K, V] = ProducerConfig(**options)
        if stream is None:
            raise bad("stream name None is no name: give the producer a stream, or a transactional_id")
        return Producer(
            self._transport,
            self._subjects,
            self._api,
            self._metadata,
            stream_name(stream),
            config,
            buffer=SendBuffer(config.buffer_bytes, timeout=config.delivery_timeout, of=repr(stream)),
            spread=next(self._numbers),
            started=self._producers,
        )

    def _of_transactions(self, transactional_id: str, config: TransactionConfig[K, V]) -> TransactionalProducer[K, V]:
        check_text("transactional_id", transactional_id, "billing-1")
        try:
            name = check_transactional_id(transactional_id)
        except TidelogError as error:
            raise typed(error) from None
        buffer = SendBuffer(config.buffer_bytes, timeout=config.delivery_timeout, of=f"transactions of {name!r}")

        def make_writer(stream: StreamName, transactions: Transactions) -> TransactionWriter[K, V]:
            return TransactionWriter(
                self._transport,
                self._subjects,
                self._api,
                self._metadata,
                stream,
                config,
                buffer=buffer,
                spread=next(self._numbers),
                started=Started(self._check_open),
                transactions=transactions,
            )

        return TransactionalProducer(
            self._transactions_link,
            self._groups,
            name,
            config,
            client=self._name,
            make_writer=make_writer,
            started=self._producers,
        )
