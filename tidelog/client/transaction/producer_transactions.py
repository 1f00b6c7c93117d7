"""The transactions of one producer: which one is open, who takes part in it, and how it ends.

    NEW          no producer id: the coordinator has not been asked for one, or has forgotten it
    READY        no transaction is open
    OPEN         records and offsets are taken
    CLOSING      it is to be committed or prepared: no more records are taken, and those taken are waited for
    ABORT_ONLY   a record was not written, or the coordinator has aborted it: nothing is taken, only an abort can follow
    COMMITTING   the coordinator is asked to commit, or was asked and did not answer: it may be committed
    ABORTING     the coordinator is asked to abort, or was asked and did not answer: it will not be committed
    PREPARED     all is written; others commit or abort it, and this producer has ended
    FENCED       a newer producer has the transactional id; this one has ended

    NEW ── init ──> READY ── begin ──> OPEN ── commit ──> CLOSING ── all is written ──> COMMITTING ──> READY
                      ^                  │ a record fails    │ a record fails              │ the coordinator
                      │                  v                   │                             │ had aborted it
                      │              ABORT_ONLY              │                             │
                      │                  │ abort, commit     v                             v
                      └───────────────── └──────────────> ABORTING <───────────────────────┘

Rules:

1. Nothing is sent to a partition or a group without the ticket of the coordinator, which it gives once it is committed
   that they take part (ADD_PARTITIONS, ADD_OFFSETS). Those of a stream that are wanted in one turn of the event loop
   are added in one request, and each stream and each group in one of its own, so that NATS can refuse it; a batch
   waits for the ticket of its own partition alone.
2. A partition that refuses a ticket, or takes the producer for fenced, is added again. So the coordinator gives the
   reason: the ticket was too old (it gives a new one), the transaction was open for longer than its timeout
   (TRANSACTION_ABORTED, and the producer goes on with the next one), or a newer producer is there (PRODUCER_FENCED).
3. Sequences count from 0 in each transaction, in its own epoch. A partition whose sequence is broken cannot go on under
   another id, as an idempotent producer's can: the transaction is abort only.
4. A transaction of which a record or an offset failed is never committed, whatever the program does then.
5. Records not acknowledged when a transaction is aborted are given up at once. Copies that arrive later belong to the
   aborted transaction, or, behind its marker, to an epoch that is over.
6. Once the coordinator was asked to commit, only its answer decides the outcome of the transaction. Without one it
   stays COMMITTING: it can be asked again, and is never reported as aborted.
7. The coordinator gets no end of a transaction that it does not know.
8. A transaction that is prepared is left to whoever has its proof: no act of its producer changes it, and
   it begins no other one, for that would abort it.
9. Answers that belong to an earlier transaction change nothing.

Pure: it knows no time, since the requests to the coordinator are repeated by those who send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from tidelog.client.base.exceptions import (
    BadRequest,
    DeliveryTimeout,
    NotInTransaction,
    ProducerFenced,
    TransactionAborted,
)
from tidelog.client.producer.batches import ProducerSession
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import ADD_OFFSETS, ADD_PARTITIONS, MAX_ADDED, MAX_EPOCH
from wire.types import FIRST_TRANSACTIONAL_ID

_MAX_PRODUCER_ID = (1 << 63) - 1


class PartitionLife(NamedTuple):
    """A partition, with the incarnations in which records are written to it."""

    stream: str
    stream_incarnation: int
    partition: int
    partition_incarnation: int


Participant: TypeAlias = PartitionLife | str
"""A partition, or the name of a consumer group."""


class State(Enum):
    NEW = "new"
    READY = "ready"
    OPEN = "open"
    CLOSING = "closing"
    ABORT_ONLY = "abort only"
    COMMITTING = "committing"
    ABORTING = "aborting"
    PREPARED = "prepared"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Gather:
    """The driver calls `gathered` when the event loop comes round: more may be wanted in this turn."""


@dataclass(frozen=True, slots=True)
class SendAdd:
    """The driver asks the coordinator for these tickets; the answer goes to `on_added` or `on_add_refused`."""

    session: ProducerSession
    kind: str
    """ADD_PARTITIONS or ADD_OFFSETS."""
    added: str
    """The stream, or the group."""
    participants: tuple[Participant, ...]
    """Partitions of that stream, or that group."""


@dataclass(frozen=True, slots=True)
class SendEnd:
    """The driver asks the coordinator to end the transaction; the answer goes to `on_ended` or `on_end_failed`."""

    session: ProducerSession
    commits: bool


@dataclass(frozen=True, slots=True)
class Grant:
    """Records of the transaction may be sent to the partition, with this ticket."""

    partition: PartitionLife
    session: ProducerSession
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Drop:
    """All records that are not acknowledged are given up, with this error."""

    error: TidelogError


Effect: TypeAlias = Gather | SendAdd | SendEnd | Grant | Drop
Effects: TypeAlias = list[Effect]


class Transactions:
    """The state machine of one producer; see the module's text."""

    def __init__(self, transactional_id: str) -> None:
        self.name = transactional_id
        self.state = State.NEW
        self.number = 0
        """The number of transactions that have begun."""
        self.failure: TidelogError | None = None
        """The error that the newest transaction's commit raises: it was not committed, or is not known to be. None: it
        was committed, or is open."""
        self.unconfirmed: TidelogError | None = None
        """Why the coordinator has not confirmed the newest abort. None: it has, or was not asked."""
        self._session = ProducerSession(-1, -1)
        """The session of the transaction that is open, or of the next one."""
        self._tickets: dict[Participant, bytes] = {}
        self._wanted: dict[Participant, None] = {}
        """Participants in no request yet."""
        self._asked: set[Participant] = set()
        """Participants in a request that was not answered."""
        self._is_known = False
        """The coordinator may know the transaction."""
        self._is_asked_to_end = False
        """A SendEnd is not answered yet."""
        self._may_be_committed = False
        """An earlier request to commit may have been carried out."""
        self._prepares = False
        """The transaction is CLOSING to be prepared."""

    @property
    def session(self) -> ProducerSession:
        """The session of the transaction that is open, or of the next one."""
        return self._session

    @property
    def is_taking(self) -> bool:
        """Whether records and offsets are on their way, or may be."""
        return self.state in (State.OPEN, State.CLOSING)

    @property
    def is_ending(self) -> bool:
        """Whether the outcome of a commit or an abort is pending."""
        return self.state is State.CLOSING or self._is_asked_to_end

    # Calls of the program

    def begin(self) -> None:
        """Begins a transaction. Raises BadRequest where one is open, ProducerFenced, DeliveryTimeout where the outcome
        of the last one is not known."""
        match self.state:
            case State.READY:
                pass
            case State.FENCED | State.COMMITTING if self.failure is not None:
                raise self.failure
            case State.NEW | State.ABORTING:
                raise BadRequest(Code.BAD_REQUEST, f"the producer {self.name!r} has not started its next transaction")
            case State.PREPARED:
                raise BadRequest(Code.BAD_REQUEST, _prepared(self.name))
            case _:
                raise BadRequest(
                    Code.BAD_REQUEST, f"a transaction of {self.name!r} is open already; commit() or abort() it first"
                )
        self.state = State.OPEN
        self.number += 1
        self.failure = self.unconfirmed = None
        self._tickets, self._wanted, self._asked = {}, {}, set()
        self._is_known = self._may_be_committed = self._prepares = False

    def refusal(self) -> TidelogError | None:
        """Returns why records and offsets are not taken at present; None: they are."""
        match self.state:
            case State.OPEN:
                return None
            case State.FENCED | State.ABORT_ONLY:
                return self.failure
            case State.CLOSING | State.COMMITTING:
                return self.being_committed()
            case State.PREPARED:
                return NotInTransaction(Code.NOT_IN_TRANSACTION, _prepared(self.name))
            case State.NEW | State.READY | State.ABORTING:
                return NotInTransaction(
                    Code.NOT_IN_TRANSACTION,
                    f"no transaction of {self.name!r} is open: send within `async with producer.transaction()`, or"
                    " between begin() and commit()",
                )

    def being_committed(self) -> TidelogError:
        """Returns the refusal of calls that come after `commit` or `prepare`."""
        if self._prepares:
            return NotInTransaction(
                Code.NOT_IN_TRANSACTION, f"the transaction of {self.name!r} is being prepared, and takes nothing more"
            )
        return NotInTransaction(
            Code.NOT_IN_TRANSACTION,
            f"the transaction of {self.name!r} is being committed; begin() another one afterwards",
        )

    def commit(self) -> Effects:
        """Begins a commit. Where it is CLOSING then, `on_written` is to follow. Raises NotInTransaction,
        ProducerFenced."""
        match self.state:
            case State.OPEN:
                self.state = State.CLOSING
                return []
            case State.CLOSING if not self._prepares:
                return []
            case State.CLOSING | State.PREPARED:
                raise NotInTransaction(Code.NOT_IN_TRANSACTION, _prepared(self.name))
            case State.ABORT_ONLY:
                return self._abort()
            case State.COMMITTING:
                self.failure = None
                return self._end(commits=True)
            case State.FENCED if self.failure is not None:
                raise self.failure
            case _:
                raise NotInTransaction(
                    Code.NOT_IN_TRANSACTION,
                    f"no transaction of {self.name!r} is open that could be committed: begin() one first",
                )

    def prepare(self) -> Effects:
        """Prepares. Where it is CLOSING then, `on_written` is to follow. Raises NotInTransaction, ProducerFenced."""
        match self.state:
            case State.OPEN:
                self.state, self._prepares = State.CLOSING, True
                return []
            case State.CLOSING if self._prepares:
                return []
            case State.PREPARED:
                return []
            case State.ABORT_ONLY:
                return self._abort()
            case State.FENCED if self.failure is not None:
                raise self.failure
            case State.CLOSING | State.COMMITTING:
                raise self.being_committed()
            case _:
                raise NotInTransaction(
                    Code.NOT_IN_TRANSACTION,
                    f"no transaction of {self.name!r} is open that could be prepared: begin() one first",
                )

    def abort(self) -> Effects:
        """Aborts the open transaction, if there is one. Raises BadRequest where it may be committed already, or is
        prepared."""
        match self.state:
            case State.OPEN:
                return [*self.require_abort(None), *self._abort()]
            case State.CLOSING:
                return self.require_abort(None)
            case State.ABORT_ONLY | State.ABORTING:
                return self._abort()
            case State.COMMITTING:
                raise BadRequest(
                    Code.BAD_REQUEST,
                    f"the transaction of {self.name!r} may be committed already, and cannot be aborted any more; call"
                    " commit() again to find out",
                )
            case State.PREPARED:
                raise BadRequest(Code.BAD_REQUEST, _prepared(self.name))
            case State.NEW | State.READY | State.FENCED:
                return []

    def require_abort(self, cause: TidelogError | None, failure: TidelogError | None = None) -> Effects:
        """Makes it ABORT_ONLY, for that reason. None: the program aborts it. `failure`: the error for the program,
        where it is not that nothing is committed."""
        if not self.is_taking:
            return []
        is_closing = self.state is State.CLOSING
        self.state = State.ABORT_ONLY
        if failure is None:
            why = "its program has aborted it" if cause is None else cause.message
            failure = TransactionAborted(
                Code.TRANSACTION_ABORTED,
                f"nothing of the transaction of {self.name!r} is committed: {why}",
                [OUTCOME.of("not_written")],
            )
            failure.__cause__ = cause
        self.failure = failure
        return [Drop(failure), *(self._abort() if is_closing else [])]

    # Who takes part

    def on_wanted(self, participant: Participant) -> Effects:
        """Wants a ticket: records wait to be sent to the partition, or offsets to the group."""
        if isinstance(participant, PartitionLife) and participant in self._tickets:
            name = f"{participant.stream}/{participant.partition}"
            return self.require_abort(
                TidelogError(Code.OUT_OF_ORDER_SEQUENCE, f"records to {name} cannot go on in this transaction")
            )
        return self._want(participant)

    def on_ticket_refused(self, participant: Participant) -> Effects:
        """Asks for another ticket (rule 2)."""
        return self._want(participant) if participant in self._tickets else []

    def ticket(self, participant: Participant) -> bytes | None:
        """Returns the ticket of the participant; None: it has none, or the one that it had was refused."""
        is_missing = participant in self._wanted or participant in self._asked
        return None if is_missing else self._tickets.get(participant)

    def gathered(self) -> Effects:
        if not self._wanted or not self.is_taking:
            return []
        wanted, self._wanted = [*self._wanted], {}
        self._asked.update(wanted)
        self._is_known = True
        by_subject: dict[tuple[str, str], list[Participant]] = {}
        for each in wanted:
            key = (ADD_PARTITIONS, each.stream) if isinstance(each, PartitionLife) else (ADD_OFFSETS, each)
            by_subject.setdefault(key, []).append(each)
        return [
            SendAdd(self._session, kind, added, tuple(some[first : first + MAX_ADDED]))
            for (kind, added), some in by_subject.items()
            for first in range(0, len(some), MAX_ADDED)
        ]

    def on_added(self, add: SendAdd, tickets: Sequence[bytes]) -> Effects:
        if not self._is_of_present(add.session):
            return []
        if len(tickets) != len(add.participants):
            return self.require_abort(
                TidelogError(
                    Code.INTERNAL,
                    f"the coordinator gave {len(tickets)} tickets for {len(add.participants)} participants",
                )
            )
        self._asked -= {*add.participants}
        self._tickets.update(zip(add.participants, tickets, strict=True))
        granted = zip(add.participants, tickets, strict=True)
        return [Grant(each, self._session, ticket) for each, ticket in granted if isinstance(each, PartitionLife)]

    def on_add_refused(self, add: SendAdd, error: TidelogError) -> Effects:
        """Handles a refused add, or one without an answer for so long that the sender gave up."""
        if not self._is_of_present(add.session):
            return []
        if error.code is Code.TRANSACTION_COMMITTED:
            return self.require_abort(error, _committed_by_others(error))
        return self._fence(error, "not_written") if error.code is Code.PRODUCER_FENCED else self.require_abort(error)

    # How it ends

    def on_written(self) -> Effects:
        """Goes on with the commit: all records and offsets are acknowledged."""
        if self.state is not State.CLOSING:
            return []
        if not self._is_known:
            self.state = State.READY
            return []
        if self._prepares:
            self.state = State.PREPARED
            return []
        self.state = State.COMMITTING
        return self._end(commits=True)

    def on_ended(self, end: SendEnd, next_epoch: int) -> Effects:
        """The coordinator has ended the transaction; the next one has epoch `next_epoch`."""
        if not self._answers(end):
            return []
        self._is_asked_to_end = False
        epoch = end.session.producer_epoch
        if end.commits and next_epoch <= epoch:
            return self._lost(f"its coordinator knows nothing of it (next epoch {next_epoch}, not above {epoch})")
        self._end_with(next_epoch if epoch <= next_epoch <= MAX_EPOCH else None)
        return []

    def on_end_failed(self, end: SendEnd, error: TidelogError, may_be_done: bool) -> Effects:
        """The coordinator refused the end, or did not answer for so long that the sender gave up. `may_be_done`: an
        attempt before the last one may have been carried out."""
        if not self._answers(end):
            return []
        self._is_asked_to_end = False
        if end.commits:
            self._may_be_committed = self._may_be_committed or may_be_done or error.code.unknown_outcome
        match error.code:
            case Code.PRODUCER_FENCED:
                return self._fence(error, "unknown" if self._may_be_committed else "not_written")
            case Code.TRANSACTION_ABORTED if end.commits:  # it was not committed at any time
                self._set_failure(error)
                return self._abort()
            case Code.TRANSACTION_ABORTED:
                self._end_with(end.session.producer_epoch + 1)
                return []
            case Code.TRANSACTION_COMMITTED:
                self.failure = self.unconfirmed = _committed_by_others(error)
                self._end_with(None)
                return []
            case Code.UNPROVEN_PRODUCER if not end.commits or not self._may_be_committed:
                self._set_failure(self.failure or error)
                self._end_with(None)
                return []
            case Code.UNKNOWN_TRANSACTION if not end.commits or not self._may_be_committed:
                self._set_failure(self.failure or error)
                self._end_with(None)
                return []
            case _:
                pass
        if not end.commits:
            self.unconfirmed = error  # the abort is repeated before the next transaction begins
            return []
        if self._may_be_committed:
            self.failure = DeliveryTimeout(
                Code.OUTCOME_UNKNOWN,
                f"the transaction of {self.name!r} may or may not be committed: {error.message}; call commit() again to"
                " find out",
                [OUTCOME.of("unknown")],
            )
            return []
        self._set_failure(error)
        self.state, self.unconfirmed = State.ABORTING, error
        return []

    # Init

    def on_init(self, session: ProducerSession) -> None:
        """Takes the answer to an init. Raises TidelogError for one that no coordinator gives."""
        if not (
            FIRST_TRANSACTIONAL_ID <= session.producer_id <= _MAX_PRODUCER_ID
            and 0 <= session.producer_epoch <= MAX_EPOCH
        ):
            raise TidelogError(
                Code.INTERNAL,
                f"the coordinator of {self.name!r} gave out id {session.producer_id}, epoch {session.producer_epoch}",
            )
        if self.state is State.NEW:
            self._session = session
            self.state = State.READY

    # ----

    def _is_of_present(self, session: ProducerSession) -> bool:
        return self.is_taking and session == self._session

    def _answers(self, end: SendEnd) -> bool:
        asked = State.COMMITTING if end.commits else State.ABORTING
        return self._is_asked_to_end and self.state is asked and end.session == self._session

    def _want(self, participant: Participant) -> Effects:
        if not self.is_taking or participant in self._wanted or participant in self._asked:
            return []
        self._wanted[participant] = None
        return [Gather()] if len(self._wanted) == 1 else []

    def _abort(self) -> Effects:
        if not self._is_known:
            self.state = State.READY
            return []
        self.state = State.ABORTING
        return self._end(commits=False)

    def _end(self, *, commits: bool) -> Effects:
        if self._is_asked_to_end:
            return []
        self._is_asked_to_end, self.unconfirmed = True, None
        return [SendEnd(self._session, commits)]

    def _end_with(self, next_epoch: int | None) -> None:
        """Ends the transaction. `next_epoch` None: the producer needs another id."""
        if next_epoch is None:
            self.state = State.NEW
        else:
            self.state = State.READY
            self._session = self._session._replace(producer_epoch=next_epoch)

    def _lost(self, why: str) -> Effects:
        self.failure = DeliveryTimeout(
            Code.OUTCOME_UNKNOWN,
            f"the transaction of {self.name!r} may or may not be committed: {why}; see the log of the coordinator",
            [OUTCOME.of("unknown")],
        )
        self._end_with(None)
        return []

    def _set_failure(self, cause: TidelogError) -> None:
        """Sets `failure`: the transaction is not committed, for that reason."""
        if isinstance(cause, TransactionAborted) and cause.detail(OUTCOME) is not None:
            self.failure = cause
            return
        self.failure = TransactionAborted(
            Code.TRANSACTION_ABORTED,
            f"nothing of the transaction of {self.name!r} is committed: {cause.message}",
            [OUTCOME.of("not_written")],
        )
        self.failure.__cause__ = cause

    def _fence(self, error: TidelogError, outcome: str) -> Effects:
        text = error.message
        if outcome == "unknown":
            text += "; the transaction that was being committed may or may not be"
        self.failure = ProducerFenced(Code.PRODUCER_FENCED, text, [*error.details.items(), OUTCOME.of(outcome)])
        self.state = State.FENCED
        return [Drop(self.failure)]


def _committed_by_others(error: TidelogError) -> TidelogError:
    """Returns the error of a commit that this producer did not ask for, or whose contrary it asked for: another
    process has its key, such as a copy of the program."""
    return DeliveryTimeout(
        Code.OUTCOME_UNKNOWN,
        f"{error.message}: somebody else has committed it with what was written until then. What was sent since is"
        " not written, and which records are is not known here; read the streams before sending any of them again",
        [OUTCOME.of("unknown")],
    )


def _prepared(name: str) -> str:
    return (
        f"the transaction of {name!r} is prepared, and is committed or aborted by commit_prepared() or abort_prepared()"
        " of a client; make a new producer for the next one"
    )
