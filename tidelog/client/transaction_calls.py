"""What operators ask of transactions, and the end of those that are prepared: a part of the client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from tidelog.client.base.arguments import bad, check_text, check_whole
from tidelog.client.base.exceptions import typed
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.transaction.prepared_transactions import FamilyCommit, PreparedTransaction, end_family, last_commit
from wire.errors import TidelogError
from wire.internal_records.transaction_records import MAX_METADATA, MAX_SEQUENCE, check_family, check_transactional_id
from wire.operations.transaction_operations import (
    TRANSACTION_ABORT,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
    TransactionDescription,
    TransactionList,
)

END_TIMEOUT: Final = 120.0
"""Seconds that a coordinator has to answer, with all repetitions."""


class TransactionCalls(ABC):
    _api: Api
    _transactions_link: CoordinatorLink

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

    # Prepared transactions

    async def commit_prepared(
        self,
        family: str,
        transactions: Iterable[PreparedTransaction],
        *,
        sequence: int,
        abort_others: bool = True,
        once: bool = False,
        metadata: str = "",
        timeout: float = END_TIMEOUT,
    ) -> bool:
        """Commit transactions that producers of a family have prepared (`TransactionalProducer.prepare`), all of them
        or none, once for each `sequence`, a number that grows from commit to commit. True: they are committed, now or
        by an earlier call with the same ones. False: others were committed with this sequence before, and these are
        aborted. `abort_others`: whatever else is open under the family is aborted, such as attempts that were given up.
        `once`: the family was made for this commit, and is forgotten after two hours with its transactional ids; others
        are kept for 30 days. `metadata`: up to 512 characters that are kept with the commit, such as a digest of what
        was written; `last_commit` returns them.

        Raises TransactionAborted where one of them is not open any more (its timeout is over, say): nothing is
        committed, and all are aborted. Raises StaleCommit where the family has committed a later sequence: they are
        aborted, unless an earlier call has committed them. Raises DeliveryTimeout where the coordinator was asked and
        did not answer for `timeout` seconds: they may be committed, and another call with the same ones tells. Raises
        NoServer, NotPermitted, BadName, BadRequest.
        """
        self._check_open()
        check_whole("sequence", sequence, 0, MAX_SEQUENCE)
        check_text("metadata", metadata, "")
        if len(metadata) > MAX_METADATA:
            raise bad(
                f"metadata has {len(metadata)} characters, and {MAX_METADATA} are kept at most: give a digest of it"
            )
        return await end_family(
            self._transactions_link,
            _family(family),
            transactions,
            commits=True,
            sequence=sequence,
            others=abort_others,
            once=once,
            metadata=metadata,
            timeout=timeout,
        )

    async def abort_prepared(
        self,
        family: str,
        transactions: Iterable[PreparedTransaction] = (),
        *,
        abort_others: bool = False,
        timeout: float = END_TIMEOUT,
    ) -> None:
        """Abort transactions that producers of a family have prepared; with `abort_others` all that are open under it.
        Those that have ended otherwise stay aborted. Raises BadRequest where one is committed (the others are aborted),
        NoServer, NotPermitted, BadName."""
        self._check_open()
        await end_family(
            self._transactions_link,
            _family(family),
            transactions,
            commits=False,
            sequence=0,
            others=abort_others,
            timeout=timeout,
        )

    async def committed_sequence(self, family: str, *, timeout: float = END_TIMEOUT) -> int | None:
        """The sequence of the last commit of prepared transactions of a family. None: there was none, or the family has
        committed nothing for 30 days. Raises NoServer, NotPermitted, BadName."""
        last = await self.last_commit(family, timeout=timeout)
        return None if last is None else last.sequence

    async def last_commit(self, family: str, *, timeout: float = END_TIMEOUT) -> FamilyCommit | None:
        """The last commit of prepared transactions of a family: its sequence, and the metadata that was given with it.
        None and errors as of `committed_sequence`."""
        self._check_open()
        return await last_commit(self._transactions_link, _family(family), timeout)


def _family(name: str) -> str:
    """Raises BadName."""
    try:
        return check_family(name)
    except TidelogError as error:
        raise typed(error) from None


def _checked(transactional_id: str) -> str:
    """Raises BadName."""
    try:
        return check_transactional_id(transactional_id)
    except TidelogError as error:
        raise typed(error) from None
