"""What operators ask of transactions: a part of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tidelog.client.api import Api
from tidelog.client.errors import typed
from wire.errors import TidelogError
from wire.transaction_operations import (
    TRANSACTION_ABORT,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
    TransactionDescription,
    TransactionList,
)
from wire.transactions import check_transactional_id


class TransactionCalls(ABC):
    _api: Api

    @abstractmethod
    def _check_open(self) -> None: ...

    async def transactions(self, *, idle: bool = False, stream: str = "", group: str = "") -> TransactionList:
        """The transactions that are open or end, the oldest first, as many as an answer holds (`left_out` is the number
        of the others); with `idle` also the transactional ids without one. `stream`, `group`: only those in which it
        takes part. `unanswered` are partitions of `__transactions` whose coordinators did not answer. Raises NoServer,
        BadRequest."""
        self._check_open()
        return await self._api.call(TRANSACTION_LIST, idle, stream, group)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What is known of a transactional id, and for which partitions and groups its transaction waits. Raises
        UnknownTransaction, BadName, NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_DESCRIBE, _checked(transactional_id))

    async def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction of a producer that hangs, and fence that producer: it hears ProducerFenced.
        Returns when that is decided, and who is still to be told of it. Raises UnknownTransaction, NotInTransaction
        (no transaction is open, or it is being committed already), BadName, NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_ABORT, _checked(transactional_id))


def _checked(transactional_id: str) -> str:
    """Raises BadName."""
    try:
        return check_transactional_id(transactional_id)
    except TidelogError as error:
        raise typed(error) from None
