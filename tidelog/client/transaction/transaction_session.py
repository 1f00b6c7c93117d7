"""Drives the `Transactions` of a producer: sends requests to their coordinator, and hands their effects on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, assert_never

from tidelog.client.base.exceptions import BadRequest, TransactionAborted
from tidelog.client.cluster.coordinator_link import Attempts, CoordinatorLink
from tidelog.client.group.group_commits import TransactionPart
from tidelog.client.producer.batches import ProducerSession
from tidelog.client.producer.producer_config import TransactionConfig
from tidelog.client.producer.upkeep import TransactionPolicy
from tidelog.client.transaction.producer_transactions import (
    Drop,
    Effects,
    Gather,
    Grant,
    PartitionLife,
    SendAdd,
    SendEnd,
    State,
    Transactions,
)
from tidelog.client.transaction.transaction_work import TransactionWork, TransactionWriter
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import ADD_PARTITIONS, END, INIT
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndRequest,
    EndResponse,
    InitRequest,
    InitResponse,
    TransactionPartition,
)
from wire.security.transaction_proofs import add_proof
from wire.types import StreamName

_log = logging.getLogger(__name__)

_OF_DELIVERY = 0.9
"""Part of the delivery timeout after which an add is given up: its error says more than that of the records."""
_GONE = frozenset({Code.WRONG_INCARNATION, Code.UNKNOWN_STREAM})
MAX_ADDS = 8
"""Adds under way at once. A coordinator holds twice as many while the transaction before ends."""
CLOSE_TIMEOUT = 5.0
"""Seconds that an abort has where no caller waits for its outcome."""


class TransactionSession:
    """`client`: the name of the program, for operators. `make_writer`: that of `TransactionWork`."""

    def __init__(
        self,
        link: CoordinatorLink,
        transactional_id: str,
        config: TransactionConfig[Any, Any],
        *,
        client: str,
        make_writer: Callable[[StreamName, TransactionPolicy], TransactionWriter[Any, Any]],
    ) -> None:
        self._link = link
        self._timeout_ms = round(config.transaction_timeout * 1000)
        self._client = client
        self._answer_timeout = config.delivery_timeout
        """Seconds that the coordinator has, with all repetitions."""
        self.work: TransactionWork[Any, Any] = TransactionWork(make_writer, self)
        self.machine = Transactions(transactional_id)
        self._initializing = asyncio.Lock()
        self._adding: set[asyncio.Task[None]] = set()
        self._may_add = asyncio.Semaphore(MAX_ADDS)
        self._ending: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Future[TidelogError | None]] = set()
        """Futures of calls that wait for the outcome of a commit or an abort."""
        self._changes: set[asyncio.Future[None]] = set()
        self._is_untold = False
        """A commit was begun, and its outcome was not returned to the program."""
        self._numbers = itertools.count(1)
        """Numbers of commits of offsets."""

    async def init(self, *, fences: bool = True) -> None:
        """Gets a producer id, if there is none. Raises NoServer, NotPermitted, and other refusals of the coordinator;
        without `fences` ProducerFenced where an older producer's transaction is open."""
        machine = self.machine
        async with self._initializing:
            if machine.state is not State.NEW:
                return
            request = InitRequest(
                transactional_id=machine.name,
                timeout_ms=self._timeout_ms,
                client=self._client,
                yields=not fences,
                cluster_id=await self._link.cluster_id(),
            )
            answer = await self._link.ask(INIT, machine.name, request, InitResponse, timeout=self._answer_timeout)
            machine.on_init(ProducerSession(answer.producer_id, answer.producer_epoch, answer.key))

    async def begin(self) -> None:
        """Begins a transaction. Raises like `Transactions.begin`; NoServer where the coordinator does not answer; the
        failure of a commit that went on."""
        machine = self.machine
        if machine.is_ending:
            is_commit = machine.state is not State.ABORTING
            failure = await self._outcome()
            self._is_untold = False
            if is_commit and failure is not None:
                raise failure
        elif self._has_ended_untold:
            self._is_untold = False
            if machine.failure is not None:
                raise machine.failure
        if machine.state is State.ABORTING:
            await self.abort()
        await self.init()
        machine.begin()

    async def commit(self) -> None:
        """Commits; goes on when the caller is cancelled. Raises like `TransactionalProducer.commit`."""
        if not self._has_ended_untold:
            self.carry_out(self.machine.commit())
        if self.machine.state is State.CLOSING:
            self.work.close(self.machine.being_committed())
            self.on_progress()
        self._is_untold = True
        failure = await self._outcome()
        self._is_untold = False
        if failure is not None:
            raise failure

    def untell(self) -> None:
        """Notes that the outcome of `commit` did not reach the program: another `commit` returns it."""
        self._is_untold = True

    async def prepare(self) -> ProducerSession | None:
        """Returns the session of the transaction, which others end; None: nothing was written in it, and it has ended.
        Goes on when the caller is cancelled. Raises like `TransactionalProducer.prepare`."""
        machine = self.machine
        self.carry_out(machine.prepare())
        if machine.state is State.CLOSING:
            self.work.close(machine.being_committed())
            self.on_progress()
        failure = await self._outcome()
        if failure is not None:
            raise failure
        return machine.session if machine.state is State.PREPARED else None

    async def abort(self) -> None:
        """Aborts; goes on when the caller is cancelled. Raises BadRequest; NoServer where the coordinator does not
        answer."""
        if self._has_ended_untold and self.machine.failure is None:
            raise BadRequest(
                Code.BAD_REQUEST,
                f"the transaction of {self.machine.name!r} is committed, for its commit went on when it was cancelled;"
                " begin() another one",
            )
        self.carry_out(self.machine.abort())
        self._is_untold = False
        await self._outcome()
        if self.machine.unconfirmed is not None:
            raise self.machine.unconfirmed

    async def try_to_abort(self) -> None:
        """Aborts within CLOSE_TIMEOUT; a failure is logged."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self.abort()
        except (TidelogError, TimeoutError) as error:
            _log.warning(
                "the transaction of %r is not known to be aborted (%s): its coordinator aborts it after its timeout of"
                " %g s at the latest, if it is not committed",
                self.machine.name,
                str(error) or f"no answer within {CLOSE_TIMEOUT:g} s",
                self._timeout_ms / 1000,
            )

    def on_progress(self) -> None:
        """Notes that a record or an offset of the transaction was acknowledged, or has failed."""
        if self.machine.state is State.CLOSING and self.work.is_done:
            self.carry_out(self.machine.on_written())

    async def part_of(self, group: str, number: int) -> TransactionPart:
        """Returns the fields for the group's coordinator in the `number`th transaction. Raises errors that keep offsets
        from being taken."""
        machine = self.machine
        self.carry_out(machine.on_wanted(group) if machine.ticket(group) is None else [])
        while True:
            self.check_present(number)
            ticket = machine.ticket(group)
            if ticket is not None:
                session = machine.session
                return TransactionPart(session, ticket, self._numbers)
            await self._changed()

    def check_present(self, number: int) -> None:
        """Raises the error that keeps the `number`th transaction from going on, if there is one."""
        machine = self.machine
        if machine.number != number:
            raise TransactionAborted(Code.TRANSACTION_ABORTED, f"that transaction of {machine.name!r} is over")
        if not machine.is_taking:
            raise machine.refusal() or TidelogError(Code.INTERNAL, "a transaction that takes nothing has no reason")

    async def wait_for_outcome(self) -> None:
        """Waits for the outcome of a commit or an abort that goes on; CLOSE_TIMEOUT at most."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._outcome()
        except TimeoutError:
            _log.warning("whether the last transaction of %r is committed is not known", self.machine.name)

    def end(self, gone: TidelogError) -> None:
        """Ends all requests to the coordinator. Calls that wait for it raise `gone`, or that the outcome is not
        known."""
        for task in (*self._adding, *([self._ending] if self._ending is not None else [])):
            task.cancel()
        for change in self._changes:
            if not change.done():
                change.set_exception(gone)
        if self.machine.state is State.COMMITTING:
            why = f"{gone.message}; its last transaction may or may not be committed"
            gone = type(gone)(Code.OUTCOME_UNKNOWN, why, [OUTCOME.of("unknown")])
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(gone)

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Gather():
                    asyncio.get_running_loop().call_soon(lambda: self.carry_out(self.machine.gathered()))
                case SendAdd():
                    self._adding.add(task := _spawn(self._add(effect)))
                    task.add_done_callback(self._adding.discard)
                case SendEnd():
                    self._ending = _spawn(self._end(effect))
                case Grant():
                    self.work.grant(effect)
                case Drop(error):
                    self.work.drop(error)
                case _:
                    assert_never(effect)
        self._wake()

    # ----

    @property
    def _has_ended_untold(self) -> bool:
        """The commit of the newest transaction was cancelled, and has come to its end since."""
        is_over = self.machine.state in (State.NEW, State.READY, State.ABORTING) and not self.machine.is_ending
        return self._is_untold and is_over

    async def _add(self, add: SendAdd) -> None:
        request = AddRequest(
            transactional_id=self.machine.name,
            producer_id=add.session.producer_id,
            producer_epoch=add.session.producer_epoch,
            partitions=[
                TransactionPartition(**each._asdict()) for each in add.participants if isinstance(each, PartitionLife)
            ],
            groups=[each for each in add.participants if isinstance(each, str)],
            cluster_id=await self._link.cluster_id(),
        )
        add_proof(request, add.session.key)
        timeout = self._answer_timeout * _OF_DELIVERY
        try:
            async with self._may_add:
                answer = await self._link.ask(
                    add.kind, self.machine.name, request, AddResponse, timeout=timeout, added=add.added
                )
        except TidelogError as error:
            if error.code in _GONE and add.kind == ADD_PARTITIONS:
                self.work.on_gone(add.added)
            self.carry_out(self.machine.on_add_refused(add, error))
        else:
            self.carry_out(self.machine.on_added(add, answer.tickets))

    async def _end(self, end: SendEnd) -> None:
        attempts = Attempts()
        try:
            request = EndRequest(
                transactional_id=self.machine.name,
                producer_id=end.session.producer_id,
                producer_epoch=end.session.producer_epoch,
                commits=end.commits,
                cluster_id=await self._link.cluster_id(),
            )
            add_proof(request, end.session.key)
            answer = await self._link.ask(
                END, self.machine.name, request, EndResponse, timeout=self._answer_timeout, attempts=attempts
            )
        except TidelogError as error:
            self.carry_out(self.machine.on_end_failed(end, error, attempts.repeated))
            return
        if answer.waits_for:
            _log.warning(
                "the transaction of %r is %s, and %s do not show it yet, for they cannot be reached",
                self.machine.name,
                "committed" if end.commits else "aborted",
                ", ".join(answer.waits_for)[:1000],
            )
        self.carry_out(self.machine.on_ended(end, answer.next_epoch))

    async def _outcome(self) -> TidelogError | None:
        """Returns `Transactions.failure` as soon as no outcome is pending any more."""
        if not self.machine.is_ending:
            return self.machine.failure
        waiting: asyncio.Future[TidelogError | None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)

    async def _changed(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        try:
            await change
        finally:
            self._changes.discard(change)

    def _wake(self) -> None:
        for change in self._changes:
            if not change.done():
                change.set_result(None)
        if not self.machine.is_taking:
            for task in self._adding:
                task.cancel()
        if not self.machine.is_ending:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(self.machine.failure)


def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)
