"""A transactional producer: records of several partitions and streams, and offsets of groups, all of them or none.

    async with client.producer(transactional_id="billing-1") as producer:
        async with producer.transaction():
            await producer.send("invoices", b"...", key=b"ada")
            await producer.send_offsets(group=consumer)

`Transactions` decides, `TransactionSession` asks the coordinator, and a `TransactionWriter` for each stream sends
records.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import random
from types import TracebackType
from typing import Any, Generic, Self

from tidelog.client.base.arguments import bad, shown
from tidelog.client.base.exceptions import BadRequest, Closed, UnknownStream
from tidelog.client.base.read_positions import Moment
from tidelog.client.base.records import BatchReceipt, K, Receipt, V
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import HomeLoop, Started
from tidelog.client.group.group_admin import GroupAdmin
from tidelog.client.group.group_commits import TransactionPart
from tidelog.client.group.group_consumer import GroupConsumer
from tidelog.client.group.subscription import Name
from tidelog.client.producer.producer_config import TransactionConfig
from tidelog.client.producer.upkeep import TransactionPolicy
from tidelog.client.transaction.prepared_transactions import PreparedTransaction
from tidelog.client.transaction.producer_transactions import State
from tidelog.client.transaction.transaction_session import TransactionSession
from tidelog.client.transaction.transaction_work import TransactionWork, TransactionWriter
from wire.batch import GivenHeaders
from wire.batch.message_ids import NAME as MESSAGE_ID
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import TILDE
from wire.retry import Retry
from wire.security.producer_keys import prove
from wire.security.transaction_proofs import proven_of_prepared
from wire.types import StreamName

_AGAIN = 0.05
"""Seconds until offsets are sent again whose ticket was refused."""


class TransactionalProducer(Generic[K, V]):
    """Writes records to any streams, in transactions. Use it with `async with`, or `await start()` and
    `await close()`.

    Consumers see the records of a transaction once it is committed, and never those of one that was aborted. Of several
    producers with one transactional id the newest goes on: it aborts the others' open transactions, and they get
    ProducerFenced.

    Raised by most calls: NotInTransaction where no transaction is open; TransactionAborted where it cannot be committed
    any more (abort it, and begin another one); ProducerFenced, for good.
    """

    def __init__(
        self,
        link: CoordinatorLink,
        groups: GroupAdmin,
        transactional_id: str,
        config: TransactionConfig[K, V],
        *,
        client: str,
        make_writer: Callable[[StreamName, TransactionPolicy], TransactionWriter[K, V]],
        started: Started[Any],
    ) -> None:
        self._groups = groups
        self._streams = config.stream_names
        self._delivery_timeout = config.delivery_timeout
        self._started = started
        self._session = TransactionSession(link, transactional_id, config, client=client, make_writer=make_writer)
        self._machine = self._session.machine
        self._work: TransactionWork[K, V] = self._session.work
        self._closed = False
        self._one_at_a_time = asyncio.Lock()
        """Orders commits of offsets: the coordinator of a group takes none that comes behind a later one."""
        self._home = HomeLoop(f"the producer {transactional_id!r}")

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def transactional_id(self) -> str:
        """The transactional id, as it was given."""
        return self._machine.name

    @property
    def in_transaction(self) -> bool:
        """A transaction is open, which `commit` or `abort` ends: also one that can only be aborted, because a record
        or an offset was not written, and one whose commit is pending."""
        return self._machine.state in (State.OPEN, State.ABORT_ONLY, State.CLOSING, State.COMMITTING)

    async def start(self, *, fences: bool = True) -> None:
        """Gets a producer id, fences earlier producers of this transactional id, and aborts their open transaction.
        One that they were committing is committed when this returns. `begin` does it when it has not been done. Without
        `fences` an open transaction is left alone: ProducerFenced is raised, and the program takes another id.

        Raises NoServer, NotPermitted, UnknownStream.
        """
        self._check_usable()
        self._started.add(self)
        try:
            await self._session.init(fences=fences)
            for stream in self._streams:
                await self._work.open(stream)
        except BaseException:
            if self._machine.state in (State.NEW, State.READY):  # no transaction is open: `begin` starts it again
                self._work.abandon(self._gone())
                self._started.discard(self)
            raise

    # Transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of a `with` statement that begins a transaction, and at its end commits it, or aborts it after an
        exception. A commit or an abort within it ends it earlier. Raises as `begin` and `commit`."""
        await self.begin()
        machine, number = self._machine, self._machine.number
        try:
            yield
        except BaseException:
            if machine.number == number and machine.state in (State.OPEN, State.CLOSING, State.ABORT_ONLY):
                await self._session.try_to_abort()
            raise
        if machine.number == number and machine.state in (State.OPEN, State.ABORT_ONLY, State.FENCED):
            await self.commit()

    async def begin(self) -> None:
        """Begins a transaction. A stream that was deleted and made again is opened anew. Raises BadRequest where one is
        open, ProducerFenced, NoServer."""
        self._check_usable()
        if self._machine.state is State.NEW:
            await self.start()
        self._started.add(self)
        await self._work.catch_up()
        if not self.in_transaction:
            self._work.leave_gone()
            for stream in self._streams:
                if self._work.opened(stream) is None:
                    with suppress(UnknownStream):  # `send` to it raises that
                        await self._work.open(stream)
        await self._session.begin()
        self._work.begin()

    async def commit(self) -> None:
        """Waits until all sent records are acknowledged, and commits: all are visible when this returns, but for
        partitions that cannot be reached at present, which the log names.

        Raises TransactionAborted: nothing is committed, since a record or an offset could not be written, or since the
        transaction was open for longer than its timeout; it has been aborted. Raises DeliveryTimeout where the
        coordinator was asked and does not answer: the transaction may be committed; another `commit()` asks again.
        Where the call is cancelled, the commit goes on: another `commit()` gives its outcome, and `begin()` raises its
        failure. Raises NotInTransaction, ProducerFenced.
        """
        self._check_usable()
        await self._session.commit()

    async def prepare(self) -> PreparedTransaction | None:
        """Waits until all sent records are acknowledged, and leaves the transaction to others: it stays open until
        `Client.commit_prepared` or `abort_prepared` ends it, in any process, or until its timeout is over. Returns the
        argument of these, which can be pickled; None if nothing was sent. The producer takes no other transaction, for
        the next producer of its transactional id aborts an uncommitted one; close it. That ends nothing.

        The transactional id is a child of a family, `FAMILY~CHILD`. Raises BadRequest where it is not;
        TransactionAborted as `commit`, NotInTransaction, ProducerFenced.
        """
        self._check_usable()
        if TILDE not in self.transactional_id:
            raise bad(
                f"transactional id {self.transactional_id!r} is of no family, so nobody could commit what is prepared"
                f" under it; name the producer FAMILY{TILDE}CHILD, such as {self.transactional_id[:40]}{TILDE}1"
            )
        session = await self._session.prepare()
        if session is None:
            return None
        proof = prove(session.key, proven_of_prepared(self.transactional_id, session.producer_epoch))
        return PreparedTransaction(self.transactional_id, session.producer_id, session.producer_epoch, proof)

    async def abort(self) -> None:
        """Aborts the open transaction: none of its records will be read. Unacknowledged ones are given up. Does
        nothing where none is open, as after a commit that has failed.

        Raises BadRequest where it is or may be committed, also by a call that was cancelled; NoServer where the
        coordinator does not answer: it is aborted before the next one begins, or after its timeout.
        """
        self._check_usable()
        await self._session.abort()

    # Records

    async def send(
        self,
        stream: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        expected_offset: int | None = None,
    ) -> Receipt:
        """Appends one record to a stream, as a part of the transaction, and waits until it is acknowledged. The
        arguments are those of `Producer.send`. A record that fails makes the transaction one that can only be aborted.

        Raises NotInTransaction, TransactionAborted, ProducerFenced, UnknownStream, and as `Producer.send`.
        """
        writer = await self._writer(stream)
        return await writer.send(
            value,
            key=key,
            headers=_without_id(headers),
            partition=partition,
            timestamp=timestamp,
            expected_offset=expected_offset,
        )

    def send_nowait(
        self,
        stream: str,
        value: V | None,
        *,
        key: K | None = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        expected_offset: int | None = None,
    ) -> asyncio.Future[Receipt]:
        """Appends like `send`; the future gives the receipt, and need not be awaited: `commit` waits for all. The
        stream is one of `streams`, or was sent to before. Raises BufferFull, BadRequest, and like `send`.
        """
        self._check_taking()
        writer = self._work.opened(stream)
        if writer is None:
            raise bad(
                f"stream {shown(stream)} has not been opened: name it in streams=[...] of the producer, or await a"
                " send() to it first"
            )
        return writer.send_nowait(
            value,
            key=key,
            headers=_without_id(headers),
            partition=partition,
            timestamp=timestamp,
            expected_offset=expected_offset,
        )

    async def send_many(
        self,
        stream: str,
        values: Sequence[V | None],
        *,
        keys: Sequence[K | None] | None = None,
        partition: int | None = None,
    ) -> list[BatchReceipt]:
        """Appends many records to a stream, like `Producer.send_many`, and waits until all are acknowledged. Raises
        like `send`."""
        writer = await self._writer(stream)
        return await writer.send_many(values, keys=keys, partition=partition)

    async def send_offsets(
        self, offsets: Mapping[Name, int] | None = None, *, group: GroupConsumer[Any, Any] | str
    ) -> None:
        """Commits offsets of a consumer group as a part of the transaction: {(stream, partition): next one to read}.
        They are committed when it is, and never if it is aborted. Returns when the group's coordinator has them.

        `group`: a consumer of it, whose place in the group is checked then; it must not commit by itself
        (`auto_commit=False`), and `offsets` None means all that it has handed out. Or the name of a group without
        members, whose partitions the program chooses itself.

        Raises NotAssigned (also where records were handed out of a partition that has gone since: abort, and call
        `seek_to_committed`), UnknownMember, GroupNotEmpty, NotPermitted, NoServer: the transaction can only be aborted
        then. Raises BadRequest, NotInTransaction, TransactionAborted, ProducerFenced.
        """
        self._check_taking()
        number = self._machine.number
        name = group if isinstance(group, str) else group.group
        commit: Callable[[TransactionPart], Awaitable[None]] | None = None
        with self._work.offsets():
            try:
                commit = await self._prepare(offsets, group)
                if commit is None:
                    return
                self._session.check_present(number)
                async with self._one_at_a_time:
                    await self._commit_offsets(name, number, commit)
            except BaseException as error:
                is_wrong_use = commit is None and isinstance(error, BadRequest)
                if self._machine.number == number and not is_wrong_use:
                    self._session.carry_out(self._machine.require_abort(_cause(error, name)))
                raise

    async def flush(self) -> None:
        """Sends lingering records and waits until all records given before are acknowledged or have failed, as `commit`
        does too. Raises the first failure of a record given to `send_nowait` since the last flush."""
        self._check_usable()
        for writer in self._work.writers:
            await writer.flush()

    def delay(self) -> tuple[float, str] | None:
        """Returns the longest `Producer.delay` of all streams."""
        return max((waits for writer in self._work.writers if (waits := writer.delay())), default=None)

    async def close(self) -> None:
        """Aborts the open transaction, and lets go; one that is prepared stays open. A commit that has begun has
        some seconds to end. Safe to call twice."""
        if self._closed:
            return
        self._home.check()
        self._closed = True
        try:
            if self._machine.state in (State.OPEN, State.ABORT_ONLY):
                await self._session.try_to_abort()
            elif self._machine.is_ending:
                await self._session.wait_for_outcome()
        finally:
            self._work.abandon(self._gone())
            self._session.end(self._gone())
            self._started.discard(self)

    # ----

    async def _writer(self, stream: str) -> TransactionWriter[K, V]:
        self._check_taking()
        writer = self._work.opened(stream)
        if writer is not None:
            return writer
        number = self._machine.number
        writer = await self._work.open(stream)
        self._session.check_present(number)
        return writer

    async def _prepare(
        self, offsets: Mapping[Name, int] | None, group: GroupConsumer[Any, Any] | str
    ) -> Callable[[TransactionPart], Awaitable[None]] | None:
        """Returns the call that commits the offsets as a part of a transaction; None: there are none to commit."""
        if isinstance(group, GroupConsumer):
            return await group._prepare_commit(offsets)
        if offsets is None:
            raise bad("offsets are needed where a group is named; give some such as {('orders', 0): 17}")
        return await self._groups.prepare_commit(group, offsets) if offsets else None

    async def _commit_offsets(
        self, group: str, number: int, commit: Callable[[TransactionPart], Awaitable[None]]
    ) -> None:
        clock = asyncio.get_running_loop().time
        retry = Retry(_AGAIN, chance=random, deadline=clock() + self._delivery_timeout)
        while True:
            part = await self._session.part_of(group, number)
            try:
                await commit(part)
            except TidelogError as error:
                if error.code not in (Code.NOT_IN_TRANSACTION, Code.PRODUCER_FENCED) or not retry.left_s(clock()):
                    raise
                self._session.check_present(number)
                self._session.carry_out(self._machine.on_ticket_refused(group))
                await asyncio.sleep(retry.failed(clock()))
            else:
                return

    def _on_connection_change(self, connected: bool) -> None:
        for writer in self._work.writers:
            writer._on_connection_change(connected)

    def _check_usable(self) -> None:
        if self._closed:
            raise self._gone()
        self._home.check()

    def _check_taking(self) -> None:
        self._check_usable()
        refusal = self._machine.refusal()
        if refusal is not None:
            raise refusal

    def _gone(self) -> Closed:
        return Closed(
            Code.BAD_REQUEST, f"the producer with transactional id {self.transactional_id!r} is closed; make a new one"
        )


def _without_id(headers: GivenHeaders | None) -> GivenHeaders | None:
    """Raises BadRequest for a message id: that of an aborted record would hide the one that is sent again."""
    if headers is not None and MESSAGE_ID.decode() in headers:
        raise bad(f"a record of a transaction cannot have a message id ({MESSAGE_ID.decode()}); leave the header out")
    return headers


def _cause(error: BaseException, group: str) -> TidelogError:
    if isinstance(error, TidelogError):
        return error
    return TidelogError(Code.OUTCOME_UNKNOWN, f"sending offsets of group {group!r} was interrupted")
