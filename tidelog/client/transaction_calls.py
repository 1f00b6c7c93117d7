"""What operators ask of transactions: a part of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidelog.client.api import Api
from wire.transaction_operations import (
    TRANSACTION_ABORT,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
    TransactionDescription,
    TransactionList,
)


class TransactionCalls(ABC):
    _api: Api

    @abstractmethod
    def _check_open(self) -> None: ...

    async def transactions(self, *, idle: bool = False) -> TransactionList:
        """The transactions that are open or end, the oldest first, as many as an answer holds (`left_out` is the number
        of the others); with `idle` also the transactional ids without one. `unanswered` are partitions of
        `__transactions` whose coordinators did not answer. Raises NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_LIST, idle)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What is known of a transactional id, and for which partitions and groups its transaction waits. Raises
        UnknownTransaction, NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_DESCRIBE, transactional_id)

    async def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction of a producer that hangs, and fence that producer: it hears ProducerFenced.
        Returns when that is decided, and who is still to be told of it. Raises UnknownTransaction, NotInTransaction
        (no transaction is open, or it is being committed already), NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_ABORT, transactional_id)
