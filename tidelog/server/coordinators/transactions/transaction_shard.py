"""The transactional ids of one partition of `__transactions`, in one LeaderEpoch. See the package.

- Decided, committed, delivered: `settle` returns the record of a decision together with its deliveries. These leave
  once the record is committed, as answers do. So whatever a partition or a group was notified of, every coordinator to
  come decides the same.
- The record of a transaction that ends stays as it was at the decision until all have confirmed. A coordinator that
  reads it notifies all participants again, which changes nothing where they know it already.
- A participant whose stream was deleted is not notified.
- Requests that need the end of a transaction that is decided (the end itself, an init, the first add of the next one,
  and its end, where its producer has given the next one up) are held. After HOLD_S the end is answered with the
  participants it waits for, and the others are refused: they come again. Nothing but an init, an operator or the end
  of a family fences.
- The commit of a family is the last request of its settlement, and its record goes in front of all others
  (`tidelog.server.coordinators.transactions.families`).
- The numbers of producers are never given twice: the record that counts them goes before those of their transactions.

Answers report state. Where they come without a record, `settle` asks for a BARRIER: see
`tidelog.server.coordinators.groups.group_shard`. The answer to an end, of a transaction or of a family, needs none: its
decision is committed, and never changes. So it leaves when all have confirmed, and the record of that follows
(`Decisions.unwritten`).

The event loop is shared: requests, timeouts, repeated deliveries of a new coordinator, and looks for deleted streams
are done in turns of so many requests (MAX_REQUESTS), or participants and ids (MAX_ASKED), and the rest waits for the
next call. A new coordinator carries out no request before it has looked at all transactions, and none is carried out
while the members of a family that were committed or aborted together are written in turns: the answer of that end is
due when they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.shard import Abandoned, Admin, Answer, Delivery, Settled, Shard, encoded
from tidelog.server.coordinators.transactions import transaction_refusals
from tidelog.server.coordinators.transactions.decisions import Decisions, Records
from tidelog.server.coordinators.transactions.families import Families, FamilyEnd
from tidelog.server.coordinators.transactions.held_requests import Held, HeldRequests
from tidelog.server.coordinators.transactions.participants import GroupIn, Participant, PartitionIn, Told
from tidelog.server.coordinators.transactions.transaction_metadata import (
    Ending,
    Idle,
    Open,
    Outcome,
    Transaction,
    described,
    is_asked_for,
    place_of,
    summary_of,
)
from wire.echo import one_line
from wire.error_details import LIMIT
from wire.errors import Code, InvariantViolation, TidelogError
from wire.internal_records.transaction_records import (
    MAX_ADDED,
    MAX_EPOCH,
    MAX_PARTICIPANTS,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    BarrierKey,
    FamilyKey,
    ProducerIdsKey,
    RecordKey,
    TransactionKey,
    check_family,
    check_transactional_id,
    child_id,
    decode_key,
    family_of,
    producer_id,
)
from wire.internal_streams import TRANSACTIONS
from wire.operations.transaction_operations import (
    MAX_LISTED,
    TRANSACTION_ABORT,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
    ListTransactionsRequest,
    place_in_list,
)
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndFamilyRequest,
    EndFamilyResponse,
    EndRequest,
    EndResponse,
    FamilyRecord,
    FamilyRequest,
    FamilyResponse,
    InitRequest,
    InitResponse,
    ProducerIds,
    TransactionRecord,
)
from wire.security.producer_keys import ProducerKeys
from wire.security.tickets import LIFETIME_S
from wire.turns import Steps, pieces

HOLD_S: Final = 1.5
"""Seconds for which a request is held; less than a client waits for an answer."""
MAX_HELD: Final = 16
"""Requests of one transactional id."""
LOOK_INTERVAL: Final = 0.25
"""Seconds between two looks for transactions that are open, and requests that are held, for too long."""
EXPIRY_INTERVAL: Final = 60.0
"""Seconds between two looks for ids to forget."""
KEPT_S: Final = 7 * 24 * 3600
"""Seconds for which an id without a transaction is kept."""
KEPT_WHEN_FULL_S: Final = 2 * LIFETIME_S
"""Like KEPT_S, where there is no room for new ids: after that no ticket of the last transaction is valid anywhere."""
MAX_IDS: Final = 20_000
MAX_IDS_OF_FAMILY: Final = 4096
"""So that whoever may use one family does not keep all others from new ids. MAX_MEMBERS transactions are committed
together, and a task of Spark has four attempts, each under a name of its own."""
MAX_PARTICIPANTS_OF_ALL: Final = 500_000
MAX_PARTICIPANTS_OF_FAMILY: Final = 200_000
"""Twice the most that one commit may end, for the attempts that are aborted with it."""
MAX_BYTES: Final = 256 << 10
"""Bytes of records, from which on no further request is carried out before these are committed."""
MAX_REQUESTS: Final = 200
"""Requests that are carried out before the event loop has its turn again, as the next two."""
MAX_ASKED: Final = 10_000
"""Participants and transactional ids that are looked at. One request may look at more than that."""
MAX_WRITTEN: Final = 2_000
"""Records of transactions that have ended, or that are forgotten, in one settlement."""
_LISTED_AT_ONCE: Final = 2_000
"""Transactions of which the first ones are found at once."""
_CHANGING: Final = 3
"""Looks that notifying a participant takes as long as."""
_ADDING: Final = 4
"""Looks that adding a participant and making its ticket takes as long as."""
MAX_CLIENT: Final = 200
"""Characters of the text by which a producer identifies itself; the rest is cut off."""
MAX_NAMED: Final = 20
"""Participants that an answer names as not confirmed yet."""

BARRIER: Final = (BarrierKey().encode(), b"")
_STATELESS: Final = frozenset(
    {Code.BAD_REQUEST, Code.BAD_NAME, Code.LIMIT_REACHED, Code.UNAVAILABLE, Code.BACKPRESSURE, Code.WRONG_INCARNATION}
)
"""Refusals that do not follow from the records, or that the asker takes for no answer."""

Request: TypeAlias = InitRequest | AddRequest | EndRequest | EndFamilyRequest | FamilyRequest | Admin
_OfEnd: TypeAlias = EndResponse | EndFamilyResponse
TicketMaker: TypeAlias = Callable[[int, int, str], bytes]
"""Makes the ticket of a producer, its epoch, and the target: `wire.security.tickets.Tickets.make`."""


class TransactionShard(Shard):
    """`patience`: seconds that a transaction stays open, if its timeout is not shorter, after a new coordinator has
    begun; `broker` and `partition`: for descriptions and numbers of producers."""

    def __init__(
        self,
        *,
        broker: str,
        partition: int,
        patience: float,
        make_ticket: TicketMaker,
        producer_keys: ProducerKeys,
    ) -> None:
        super().__init__()
        self.given = 0
        """Numbers of producers that were given out."""
        self._broker = broker
        self._partition = partition
        self._patience = patience
        self._make_ticket = make_ticket
        self._producer_keys = producer_keys
        self._view = StreamsView()
        self._is_view_new = False
        self._is_resumed = False
        """A new coordinator has not written the decisions that only families' records have."""
        self._to_resume: deque[str] = deque()
        """Ids whose transaction is open or ends, and that a new coordinator has not looked at."""
        self._to_look_at: deque[str] = deque()
        """Ids whose participants may be gone."""
        self._is_more_due = False
        """Some transactions that are over, or records to write or to forget, are left for the next settlement."""
        self._decisions = Decisions(self._awaited, self._release)
        self.families = Families(self._decisions, partition)
        self._held = HeldRequests()
        self._released: deque[tuple[object, Request]] = deque()
        """Requests that were held, and are to be carried out now."""
        self._due: tuple[object, Answer] | None = None
        """The answer to the end of a family whose members are being written."""
        self._looks_at = 0.0
        self._expires_at = 0.0
        self._makes_room_at = 0.0
        """ns since 1970: all ids are looked through no more often than once a second."""

    # ---- the log ---------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        try:
            found = decode_key(key)
        except ValueError:
            self.unknown_records += 1
            return
        match found:
            case TransactionKey(name):
                if value is None:
                    self.transactions.pop(name, None)
                else:
                    self.transactions[name] = Transaction.of_record(name, TransactionRecord.FromString(value))
            case FamilyKey(name):
                self.families.replay(name, None if value is None else FamilyRecord.FromString(value))
            case ProducerIdsKey():
                self.given = 0 if value is None else ProducerIds.FromString(value).given
            case BarrierKey():
                pass

    def begin(self, view: StreamsView, now: float) -> None:
        self._view, self._is_resumed = view, True
        self._looks_at = now
        self.families.begin()
        self._decisions.begin()
        unwritten = {*self.families.unwritten}
        self._to_resume.extend(name for name in self._decisions.active if name not in unwritten)

    @property
    def transactions(self) -> dict[str, Transaction]:
        """All transactions by transactional id."""
        return self._decisions.transactions

    @property
    def summary(self) -> str:
        return f"{len(self.transactions)} transactional ids, {len(self._decisions.active)} transactions"

    # ---- requests and events ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return super().waiting + self._held.count + len(self._released) + (self._due is not None)

    @property
    def waiting_bytes(self) -> int:
        return super().waiting_bytes + self._held.bytes

    @property
    def is_waiting(self) -> bool:
        return (
            bool(self._taken or self._released or self._decisions.told or self._to_resume or self._to_look_at)
            or self.is_making_answers
            or self._is_view_new
            or self._is_resumed
            or self._is_more_due
            or self.families.is_unfinished()
        )

    def abandon(self) -> Abandoned:
        """Gives up all requests. Those held have begun: they are decided, or come after a decision."""
        begun = [*(token for token, _ in self._released), *(held.token for held in self._held.take_all())]
        begun += [self._due[0]] if self._due is not None else []
        self._released.clear()
        self._due = None
        given_up = super().abandon()
        return Abandoned(given_up.without_effect, [*given_up.begun, *begun])

    def on_streams(self, view: StreamsView) -> None:
        self._view, self._is_view_new = view, True

    def on_delivered(self, delivery: Delivery) -> None:
        if self.awaits(delivery):
            assert isinstance(delivery, Told)
            self._decisions.on_told(delivery)

    # ---- settling --------------------------------------------------------------------------------------------------

    def settle(self, now: float, times: Times) -> Settled:
        settled, records, size = Settled(), Records(), 0
        if self._is_resumed:
            self._is_resumed, self._is_view_new = False, True
            self.families.resume(now)
        if self.families.is_unfinished():
            return self._go_on_with_family(now, times)
        if self._to_resume:
            self._decisions.resume(self._to_resume, MAX_ASKED // _CHANGING, now, times, self._patience)
        if self._to_resume:
            settled.records = encoded(records)
            settled.deliveries, self._decisions.to_tell = self._decisions.to_tell, []
            return settled
        if self._is_view_new:
            self._is_view_new, self._to_look_at = False, deque(self._decisions.active)
        self._decisions.drop_gone(self._to_look_at, MAX_ASKED, self._view)
        self._decisions.complete(now, times)
        asked = carried_out = 0
        is_full = False
        while (self._released or self._has_taken) and not is_full:
            token, request = self._next()
            asked, carried_out = asked + self._work_of(request), carried_out + 1
            made = Records()
            try:
                answer = self._carry_out(token, request, now, times, made)
                if answer is not None:
                    settled.answers.append((token, answer))
            except TidelogError as error:
                settled.answers.append((token, error))
            size += sum(0 if record is None else record.ByteSize() for record in made.values())
            is_full = size >= MAX_BYTES or asked >= MAX_ASKED or carried_out >= MAX_REQUESTS
            is_full = is_full or self.families.is_unfinished() or any(isinstance(key, FamilyKey) for key in made)
            records |= made
        self._make_answers(max(MAX_ASKED - asked, MAX_ASKED // 4), settled)
        self._is_more_due = False
        if now >= self._looks_at:
            self._look(now, times, records, settled)
        if now >= self._expires_at:
            if self._decisions.forget(KEPT_S, times, records, MAX_WRITTEN):
                self._expires_at = now + EXPIRY_INTERVAL
                self.families.forget(times, records)
            else:
                self._is_more_due = True
        settled.begun |= {token for token, answer in settled.answers if isinstance(answer, _OfEnd)}
        return self._settled(settled, records)

    def _settled(self, settled: Settled, records: Records) -> Settled:
        settled.records = encoded(dict(sorted(records.items(), key=_place)))
        if not settled.records and any(_tells_what_is_so(answer) for _, answer in settled.answers):
            settled.records.append(BARRIER)
        settled.deliveries, self._decisions.to_tell = self._decisions.to_tell, []
        self._is_settled()
        return settled

    def _go_on_with_family(self, now: float, times: Times) -> Settled:
        settled, records = Settled(), Records()
        self.families.go_on(MAX_ASKED // _CHANGING, self._view, now, times, records)
        if self._due is not None and not self.families.is_unfinished():
            settled.answers.append(self._due)
            settled.begun.add(self._due[0])
            self._due = None
        return self._settled(settled, records)

    def next_deadline(self) -> float:
        if self._decisions.active or self._decisions.unwritten or self.families.is_unwritten:
            return self._looks_at
        return self._expires_at if self.transactions or self.families.by_name else float("inf")

    def _next(self) -> tuple[object, Request]:
        if not self._released:
            return self._next_taken()
        token, request = self._released.popleft()
        self._in_hand.append(token)
        return token, request

    def _look(self, now: float, times: Times, records: Records, settled: Settled) -> None:
        self._looks_at = now + LOOK_INTERVAL
        is_done = self._decisions.catch_up(now - LOOK_INTERVAL, MAX_WRITTEN, records)
        self.families.catch_up(now - LOOK_INTERVAL, records)
        settled.answers += [(held.token, self._answer_of_held(held.request)) for held in self._held.take_late(now)]
        decided = 0
        # Timeouts wait: an end may be among the requests taken.
        for name in () if self._taken else [*self._decisions.active]:
            transaction = self.transactions[name]
            if isinstance(transaction.state, Open) and now >= transaction.state.deadline:
                if decided >= MAX_ASKED:
                    is_done = False
                    break
                decided += 1 + _CHANGING * len(transaction.participants)
                self._decisions.decide(transaction, Outcome.TIMED_OUT, self._view, now, times, records)
        if not is_done:
            self._looks_at, self._is_more_due = now, True

    # ---- requests that are held ------------------------------------------------------------------------------------

    def _hold(self, awaits: str, since: float, token: object, request: Request, now: float) -> Answer | None:
        """Holds the request until that transaction or family, decided at `since`, has ended. None: it is answered
        later."""
        until = (since if isinstance(request, EndRequest | EndFamilyRequest) else now) + HOLD_S
        if now >= until:
            return self._answer_of_held(request)
        if self._held.of(awaits) >= MAX_HELD:
            raise transaction_refusals.too_many_held(awaits, MAX_HELD)
        self._held.add(Held(awaits, token, request, until))
        self._in_hand.remove(token)
        return None

    def _release(self, transactional_id: str) -> None:
        """Carries out next the requests that waited for the end of the transaction, ends first: an init before them
        would hide the outcome."""
        held = self._held.take(transactional_id)
        family = self.families.on_complete(transactional_id)
        if family is not None:
            held += self._held.take(child_id(family, ""))
        held.sort(key=_place_of_held)
        self._released.extend((each.token, each.request) for each in held)

    def _answer_of_held(self, request: Request) -> Answer:
        """Returns the answer to a request that was held for too long."""
        if isinstance(request, EndFamilyRequest):
            return EndFamilyResponse(waits_for=self.families.waits_for(request.family)[:MAX_NAMED])
        assert isinstance(request, InitRequest | AddRequest | EndRequest)
        transaction = self.transactions[request.transactional_id]
        waits_for = [str(participant) for participant in transaction.participants][:MAX_NAMED]
        if isinstance(request, EndRequest) and request.producer_epoch == transaction.epoch:
            return EndResponse(next_epoch=transaction.epoch + 1, waits_for=waits_for)
        return transaction_refusals.ends_still(transaction, waits_for)

    # ---- requests --------------------------------------------------------------------------------------------------

    def _carry_out(self, token: object, request: Request, now: float, times: Times, records: Records) -> Answer | None:
        """Returns the answer; None: the request is held. Raises TidelogError."""
        match request:
            case InitRequest():
                return self._init(token, request, now, times, records)
            case AddRequest():
                return self._add(token, request, now, times, records)
            case EndRequest():
                return self._end(token, request, now, times, records)
            case EndFamilyRequest():
                return self._end_family(token, request, now, times, records)
            case FamilyRequest():
                family = self.families.by_name.get(check_family(request.family))
                if family is None:
                    return FamilyResponse()
                return FamilyResponse(sequence=family.sequence, metadata=family.metadata)
            case Admin():
                return self._administrate(token, request, now, times, records)

    def _takes_turns(self, request: Request) -> bool:
        return isinstance(request, Admin) and request.operation is TRANSACTION_LIST

    def _work_of(self, request: Request) -> int:
        """Returns the participants and ids that the request looks at, roughly."""
        match request:
            case AddRequest():
                return 1 + _ADDING * (len(request.partitions) + len(request.groups)) + self._size_of(request)
            case EndRequest():
                return 1 + _CHANGING * self._size_of(request)
            case Admin() if request.operation is not TRANSACTION_LIST:
                return 1 + _CHANGING * self._size_of(request.request)
            case _:
                return 1

    def _size_of(self, request: Any) -> int:
        transaction = self.transactions.get(request.transactional_id)
        return 0 if transaction is None else len(transaction.participants)

    def _init(self, token: object, request: InitRequest, now: float, times: Times, records: Records) -> Answer | None:
        name = check_transactional_id(request.transactional_id)
        if not MIN_TIMEOUT_MS <= request.timeout_ms <= MAX_TIMEOUT_MS:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"a transaction timeout of {request.timeout_ms} ms is outside {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS} ms",
            )
        known = self.transactions.get(name)
        if known is None:
            self._make_room(name, now, times, records)
            known = Transaction(name, self._new_id(records), -1, 0, "", 0)
            self._decisions.add(known)
        if isinstance(known.state, Open):
            if request.yields:
                raise transaction_refusals.in_use(name)
            self._decisions.decide(known, Outcome.NONE, self._view, now, times, records)
        if isinstance(known.state, Ending):
            return self._hold(name, known.state.since, token, request, now)
        if known.epoch >= MAX_EPOCH:
            known.producer_id, known.epoch = self._new_id(records), -1
        known.timeout_ms, known.client = request.timeout_ms, one_line(request.client, MAX_CLIENT)
        self._decisions.become_idle(known, Outcome.NONE, times, records)
        key = self._producer_keys.key_of(known.producer_id)
        return InitResponse(producer_id=known.producer_id, producer_epoch=known.epoch, key=key)

    def _new_id(self, records: Records) -> int:
        serial, self.given = self.given, self.given + 1
        records[ProducerIdsKey()] = ProducerIds(given=self.given)
        return producer_id(self._partition, serial)

    def _make_room(self, name: str, now: float, times: Times, records: Records) -> None:
        """Makes room for one more id, in its family and in all. Raises TidelogError(LIMIT_REACHED)."""
        family, load = family_of(name), self._decisions.load_of(name)
        if load.ids >= MAX_IDS_OF_FAMILY and now >= load.makes_room_at:
            load.makes_room_at = now + 1
            self._decisions.forget(
                KEPT_WHEN_FULL_S, times, records, MAX_WRITTEN, lambda each: family_of(each) == family
            )
        if load.ids >= MAX_IDS_OF_FAMILY:
            raise transaction_refusals.too_many_of_family(family, load.ids, KEPT_WHEN_FULL_S)
        if len(self.transactions) >= MAX_IDS and now >= self._makes_room_at:
            self._makes_room_at = now + 1
            self._decisions.forget(KEPT_WHEN_FULL_S, times, records, MAX_WRITTEN)
        if len(self.transactions) >= MAX_IDS:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"the coordinator of {TRANSACTIONS.name}/{self._partition} has {len(self.transactions)} transactional"
                f" ids, the most that it keeps; use the same ids again: one that was not used for"
                f" {KEPT_WHEN_FULL_S // 60} minutes makes room",
                [LIMIT.of("transactional_ids")],
            )

    def _of_producer(self, request: AddRequest | EndRequest) -> Transaction:
        """Returns the transaction of the request's producer. Raises TidelogError: PRODUCER_FENCED where the id has
        another producer, UNKNOWN_TRANSACTION where the id was forgotten."""
        name = check_transactional_id(request.transactional_id)
        known = self.transactions.get(name)
        if known is None:
            raise transaction_refusals.forgotten(name)
        if known.producer_id != request.producer_id or request.producer_epoch > MAX_EPOCH:
            raise transaction_refusals.fenced(known, request.producer_epoch)
        return known

    def _add(self, token: object, request: AddRequest, now: float, times: Times, records: Records) -> Answer | None:
        wanted = _wanted(request)
        transaction, epoch = self._of_producer(request), request.producer_epoch
        match transaction.state:
            case Ending(outcome=outcome) if outcome is Outcome.NONE:
                raise transaction_refusals.fenced(transaction, epoch)
            case Ending(since=since) if epoch == transaction.epoch + 1:
                return self._hold(transaction.transactional_id, since, token, request, now)
            case Ending(outcome=outcome) if epoch == transaction.epoch:
                raise transaction_refusals.ended(transaction, outcome)
            case Idle() | Open() if epoch == transaction.epoch - 1 and transaction.last is not Outcome.NONE:
                raise transaction_refusals.ended(transaction, transaction.last)
            case Idle() | Open() if epoch == transaction.epoch:
                self._take_in(transaction, wanted, now, times, records)
                targets = [each.target for each in wanted]
                return AddResponse(
                    tickets=[self._make_ticket(transaction.producer_id, epoch, target) for target in targets]
                )
            case _:
                raise transaction_refusals.fenced(transaction, epoch)

    def _take_in(
        self, transaction: Transaction, wanted: Iterable[Participant], now: float, times: Times, records: Records
    ) -> None:
        for each in wanted:
            each.check(self._view, self._broker)
        new = {each: None for each in wanted if each not in transaction.participants}
        if not new:
            return
        if len(transaction.participants) + len(new) > MAX_PARTICIPANTS:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"the transaction of {transaction.transactional_id!r} would have more than {MAX_PARTICIPANTS}"
                " partitions and groups; commit more often, or write to fewer",
                [LIMIT.of("transaction_participants")],
            )
        load = self._decisions.load_of(transaction.transactional_id)
        if load.participants + len(new) > MAX_PARTICIPANTS_OF_FAMILY:
            family = family_of(transaction.transactional_id)
            raise transaction_refusals.too_many_participants(family, load.participants, MAX_PARTICIPANTS_OF_FAMILY)
        if self._decisions.participants + len(new) > MAX_PARTICIPANTS_OF_ALL:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"{self._decisions.participants} partitions and groups take part in the transactions of"
                f" {TRANSACTIONS.name}/{self._partition}, and {MAX_PARTICIPANTS_OF_ALL} may; commit more often",
                [LIMIT.of("transaction_participants")],
            )
        self._decisions.take_in(transaction, new, now, times, records)

    def _end(self, token: object, request: EndRequest, now: float, times: Times, records: Records) -> Answer | None:
        transaction, epoch = self._of_producer(request), request.producer_epoch
        outcome = Outcome.COMMITTED if request.commits else Outcome.ABORTED
        match transaction.state:
            case Idle() if epoch == transaction.epoch:  # nothing was added; a late add would open it again
                self._decisions.become_idle(transaction, Outcome.ABORTED, times, records)
                if outcome.commits:
                    raise transaction_refusals.nothing_added(transaction)
                return EndResponse(next_epoch=transaction.epoch)
            case Open() if epoch == transaction.epoch:
                self._decisions.decide(transaction, outcome, self._view, now, times, records)
            case Ending(outcome=decided) if epoch == transaction.epoch:
                _check_same(transaction, decided, outcome, epoch)
            case Ending(outcome=decided) if epoch == transaction.epoch + 1 and decided is not Outcome.NONE:
                return self._hold(transaction.transactional_id, now, token, request, now)  # the next one's, see `_add`
            case Idle() | Open() if epoch == transaction.epoch - 1:
                _check_same(transaction, transaction.last, outcome, epoch)
                return EndResponse(next_epoch=transaction.epoch)
            case _:
                raise transaction_refusals.fenced(transaction, epoch)
        if isinstance(transaction.state, Ending):
            return self._hold(transaction.transactional_id, transaction.state.since, token, request, now)
        return EndResponse(next_epoch=transaction.epoch)

    def _end_family(
        self, token: object, request: EndFamilyRequest, now: float, times: Times, records: Records
    ) -> Answer | None:
        """Decides the end of a family. The answer may be due later, and may be a refusal then."""
        answer: Answer | None
        try:
            answer = self._decide_family(token, request, now, times, records)
        except TidelogError as error:
            answer = error
        self.families.go_on(MAX_ASKED // _CHANGING, self._view, now, times, records)
        if answer is not None and self.families.is_unfinished():
            self._due = token, answer
            return None
        return answer

    def _decide_family(
        self, token: object, request: EndFamilyRequest, now: float, times: Times, records: Records
    ) -> Answer | None:
        end = FamilyEnd.of_request(request)
        if not request.commits:
            return EndFamilyResponse(none_committed=self.families.abort(end))
        if self.families.commits_anew(end) and self._held.of(child_id(end.family, "")):
            raise transaction_refusals.family_ends_still(end.family, self.families.waits_for(end.family)[:MAX_NAMED])
        if not self.families.commit(end, now, times, records):
            return EndFamilyResponse(superseded=True)
        if not self.families.is_last(end):  # the answer to a later commit may be held
            return EndFamilyResponse(waits_for=self.families.not_told(end)[:MAX_NAMED])
        since = self.families.wait(end)
        return (
            EndFamilyResponse() if since is None else self._hold(child_id(end.family, ""), since, token, request, now)
        )

    # ---- operators -------------------------------------------------------------------------------------------------

    def _administrate(
        self, token: object, asked: Admin, now: float, times: Times, records: Records
    ) -> Mapping[str, Any] | None:
        """Returns the answer; None: it is made in turns."""
        if asked.operation is TRANSACTION_LIST:
            self._answer_in_turns(token, self._listing(asked.request))
            return None
        name = check_transactional_id(asked.request.transactional_id)
        transaction = self.transactions.get(name)
        if transaction is None:
            raise transaction_refusals.unknown(name)
        if asked.operation is TRANSACTION_ABORT:
            match transaction.state:
                case Open():
                    self._decisions.decide(transaction, Outcome.NONE, self._view, now, times, records)
                case Ending(outcome=outcome) if not outcome.commits:
                    pass
                case _:
                    raise transaction_refusals.not_to_abort(transaction)
        elif asked.operation is not TRANSACTION_DESCRIBE:
            raise InvariantViolation(f"the coordinator of transactions was asked for {asked.operation.name}")
        return described(transaction, self._broker, self._partition)

    def _listing(self, asked: ListTransactionsRequest) -> Steps[Answer]:
        count, first = 0, list[Transaction]()
        for names in pieces([*(self.transactions if asked.idle else self._decisions.active)], _LISTED_AT_ONCE):
            found: list[Transaction] = []
            for name in names:
                transaction = self.transactions.get(name)
                if transaction is None:
                    continue
                if is_asked_for(transaction, asked):
                    found.append(transaction)
                yield 1 + (len(transaction.participants) if asked.with_stream else 0)
            count += len(found)
            first = nsmallest(MAX_LISTED, [*first, *found], place_of)
            yield len(first) + len(found)
        shown = sorted(map(summary_of, first), key=place_in_list)
        return {"transactions": shown, "left_out": count - len(shown), "unanswered": []}

    def validate(self) -> None:
        self._decisions.validate({*self._to_resume, *self.families.unwritten})
        self.families.validate()
        numbers = [transaction.producer_id for transaction in self.transactions.values()]
        if len(set(numbers)) < len(numbers) or any(n >= producer_id(self._partition, self.given) for n in numbers):
            raise InvariantViolation(f"a producer's number was given twice, of {self.given}")
        waiting = [child_id(name, "") for name, family in self.families.by_name.items() if family.ending]
        held = sum(map(self._held.of, [*self._decisions.active, *waiting]))
        if held != self._held.count:
            raise InvariantViolation(f"{self._held.count} requests are held, {held} for transactions that end")


def _place_of_held(held: Held) -> tuple[bool, int]:
    """Returns the order of held requests: ends first, by epoch."""
    request = held.request
    if isinstance(request, EndRequest):
        return False, request.producer_epoch
    return isinstance(request, InitRequest | AddRequest), 0


def _wanted(request: AddRequest) -> list[Participant]:
    """Returns the participants to add, in the order of their tickets. Raises TidelogError."""
    count = len(request.partitions) + len(request.groups)
    if not 0 < count <= MAX_ADDED:
        raise TidelogError(
            Code.BAD_REQUEST, f"{count} partitions and groups; 1 to {MAX_ADDED} are added by one request"
        )
    return [*map(PartitionIn.of_record, request.partitions), *map(GroupIn, request.groups)]


def _check_same(transaction: Transaction, decided: Outcome, wanted: Outcome, epoch: int) -> None:
    """Raises TidelogError if the decision differs from the wanted outcome."""
    if decided is Outcome.NONE:
        raise transaction_refusals.fenced(transaction, epoch)
    if wanted.commits is not decided.commits:
        raise transaction_refusals.ended(transaction, decided)


def _tells_what_is_so(answer: Answer) -> bool:
    if isinstance(answer, TidelogError):
        return answer.code not in _STATELESS
    return isinstance(answer, ProtoMessage) and not isinstance(answer, _OfEnd)


def _place(record: tuple[RecordKey, object]) -> int:
    """Returns the order in the log: numbers precede their use, and a family's record decides before its members'."""
    match record[0]:
        case ProducerIdsKey():
            return 0
        case FamilyKey():
            return 1
        case _:
            return 2
