"""The transactional ids that a coordinator has, what is decided of their transactions, and who is still to be told.

That everybody was told is not written at once: the record of the decision says so much that a coordinator which reads
it tells everybody again, and comes to the same. Mostly the next transaction's record takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from google.protobuf.message import Message as ProtoMessage

from tidelog.coordination.requests import Delivery
from tidelog.coordination.streams import StreamsView
from tidelog.coordination.times import UNDATED, Times
from tidelog.transactions.participants import Participant, Told
from tidelog.transactions.transaction import Ending, Idle, Open, Outcome, Transaction
from wire.errors import InvariantViolation
from wire.transactions import RecordKey, TransactionKey

Records: TypeAlias = dict[RecordKey, ProtoMessage | None]
"""To be written; None deletes."""


class Decisions:
    """`awaited`: the deliveries that were not confirmed yet; it is kept here. `on_complete`: the transaction of that id
    has ended, and everybody knows."""

    def __init__(self, awaited: set[Delivery], on_complete: Callable[[str], None]) -> None:
        self.transactions: dict[str, Transaction] = {}
        """By transactional id."""
        self.active: dict[str, None] = {}
        """Ids whose transaction is open or ends."""
        self.participants = 0
        """The number of participants of all transactions."""
        self.to_tell: list[Delivery] = []
        """The deliveries of decisions in this settlement."""
        self.told: dict[str, None] = {}
        """Ids whose transaction all participants were told of."""
        self.unwritten: dict[str, float] = {}
        """Ids that are idle, and whose record is still that of the decision: since when, in monotonic seconds."""
        self._awaited = awaited
        self._on_complete = on_complete

    # ---- a new coordinator -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """`transactions` are those of the records."""
        for name, transaction in self.transactions.items():
            if not isinstance(transaction.state, Idle):
                self.active[name] = None
                self.participants += len(transaction.participants)

    def imply(self, transaction: Transaction) -> None:
        """The record of its family says that it is committed, and its own does not say so yet. Before `begin`."""
        match transaction.state:
            case Open(opened_at=opened_at, participants=participants):
                transaction.state = Ending(opened_at, Outcome.COMMITTED, participants)
            case Idle():  # nothing of it was acknowledged
                transaction.epoch, transaction.last = transaction.epoch + 1, Outcome.COMMITTED
            case Ending():
                raise InvariantViolation(f"the transaction of {transaction.transactional_id} ends already")

    def resume(self, now: float, times: Times, patience: float) -> None:
        """Those that were decided go on; those that are open have as long as they had, or `patience`; where it is not
        known how long that is, all of their timeout."""
        for name in self.active:
            transaction = self.transactions[name]
            match transaction.state:
                case Open() as state:
                    left = timeout = transaction.timeout_ms / 1000
                    if times.agreed is not None and transaction.changed_at != UNDATED:
                        left -= (times.agreed - state.opened_at) / 1e9
                    state.deadline = now + min(timeout, max(left, patience))
                case Ending() as state:
                    state.since = now
                    self._tell(transaction)
                case Idle():
                    raise InvariantViolation(f"{name} is idle, and counted as active")

    # ---- a transaction ---------------------------------------------------------------------------------------------

    def take_in(
        self, transaction: Transaction, new: Iterable[Participant], now: float, times: Times, records: Records
    ) -> None:
        """They take part from now on."""
        date = times.date
        if isinstance(transaction.state, Idle):
            transaction.state = Open(times.shown, deadline=now + transaction.timeout_ms / 1000)
            self.active[transaction.transactional_id] = None
        elif transaction.changed_at == UNDATED:
            date = UNDATED  # says so of `opened_at`
        before = len(transaction.participants)
        transaction.participants.update(dict.fromkeys(new))
        self.participants += len(transaction.participants) - before
        transaction.changed_at = date
        self.write(transaction, records)

    def decide(
        self,
        transaction: Transaction,
        outcome: Outcome,
        view: StreamsView,
        now: float,
        times: Times,
        records: Records,
    ) -> None:
        assert isinstance(transaction.state, Open)
        left = {each: None for each in transaction.state.participants if not each.is_gone(view)}
        self.participants += len(left) - len(transaction.state.participants)
        transaction.state = Ending(transaction.state.opened_at, outcome, left, since=now)
        transaction.changed_at = times.date
        if left:
            self.write(transaction, records)
            self._tell(transaction)
        else:
            self._complete(transaction, times)
            self.write(transaction, records)

    def _tell(self, transaction: Transaction) -> None:
        told = [transaction.told(each) for each in transaction.participants]
        self._awaited.update(told)
        self.to_tell += told

    def on_told(self, told: Told) -> None:
        """Or it need not be told any more."""
        transaction = self.transactions[told.transactional_id]
        assert isinstance(transaction.state, Ending)
        self._awaited.discard(told)
        del transaction.state.left[told.to]
        self.participants -= 1
        if not transaction.state.left:
            self.told[transaction.transactional_id] = None

    def drop_gone(self, view: StreamsView) -> None:
        """Streams or partitions may have been deleted."""
        for name in self.active:
            transaction = self.transactions[name]
            if isinstance(transaction.state, Ending):
                for participant in [each for each in transaction.state.left if each.is_gone(view)]:
                    self.on_told(transaction.told(participant))

    def complete(self, now: float, times: Times) -> None:
        """Those of which everybody was told."""
        for name in self.told:
            self._complete(self.transactions[name], times)
            self.unwritten[name] = now
        self.told.clear()

    def _complete(self, transaction: Transaction, times: Times) -> None:
        assert isinstance(transaction.state, Ending)
        del self.active[transaction.transactional_id]
        self._become_idle(transaction, transaction.state.outcome, times)
        self._on_complete(transaction.transactional_id)

    def become_idle(self, transaction: Transaction, last: Outcome, times: Times, records: Records) -> None:
        """In the next epoch."""
        self._become_idle(transaction, last, times)
        self.write(transaction, records)

    def _become_idle(self, transaction: Transaction, last: Outcome, times: Times) -> None:
        transaction.state, transaction.last = Idle(), last
        transaction.epoch += 1
        transaction.changed_at = times.date

    def write(self, transaction: Transaction, records: Records) -> None:
        records[TransactionKey(transaction.transactional_id)] = transaction.to_record()
        self.unwritten.pop(transaction.transactional_id, None)

    def catch_up(self, until: float, records: Records) -> None:
        """What is unwritten since then is written."""
        for name in [name for name, since in self.unwritten.items() if since <= until]:
            self.write(self.transactions[name], records)

    def forget(
        self, kept_s: float, times: Times, records: Records, chosen: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Ids that have been idle for so long, of those that are `chosen`."""
        for name, transaction in [*self.transactions.items()]:
            if not isinstance(transaction.state, Idle):
                continue
            transaction.changed_at = times.dated(transaction.changed_at)
            if times.is_over(transaction.changed_at, kept_s) and chosen(name):
                del self.transactions[name]
                self.unwritten.pop(name, None)
                records[TransactionKey(name)] = None

    def validate(self) -> None:
        active = {name for name, each in self.transactions.items() if not isinstance(each.state, Idle)}
        if active != set(self.active):
            raise InvariantViolation(f"transactions {sorted(active ^ set(self.active))} are counted wrongly")
        if any(not isinstance(self.transactions[name].state, Idle) for name in self.unwritten):
            raise InvariantViolation(f"of {sorted(self.unwritten)}, one is not idle, and has no record of its own")
        participants, awaited = 0, set[Delivery]()
        for name, transaction in self.transactions.items():
            transaction.validate()
            participants += len(transaction.participants)
            if isinstance(transaction.state, Ending):
                awaited.update(map(transaction.told, transaction.state.left))
                if not transaction.state.left and name not in self.told:
                    raise InvariantViolation(f"everybody was told of the end of {name}'s transaction, and it goes on")
        if (participants, awaited) != (self.participants, self._awaited):
            raise InvariantViolation(
                f"{participants} participants, {len(awaited)} to be told; counted {self.participants},"
                f" {len(self._awaited)}"
            )
