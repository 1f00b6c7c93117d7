"""The transactional ids of a coordinator, the decisions of their transactions, and the participants to notify.

That every participant confirmed is not written at once: a coordinator that reads the record of the decision notifies
all of them again, with the same result. Mostly the next transaction's record takes its place.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import UNDATED, Times
from tidelog.server.coordinators.shard import Delivery
from tidelog.server.coordinators.transactions.participants import Participant, Told
from tidelog.server.coordinators.transactions.transaction_metadata import Ending, Idle, Open, Outcome, Transaction
from wire.errors import InvariantViolation
from wire.internal_records.transaction_records import RecordKey, TransactionKey, family_of

Records: TypeAlias = dict[RecordKey, ProtoMessage | None]
"""Records to be written, by key; None deletes."""


@dataclass(slots=True)
class FamilyLoad:
    """Load of a family at its coordinator. An id without a tilde is a family of its own."""

    ids: int = 0
    participants: int = 0
    """Partitions and groups that take part in its transactions, and have not confirmed an end."""
    makes_room_at: float = 0.0
    """Monotonic seconds: its idle ids are searched no more often than once a second."""


class Decisions:
    """`awaited`: the deliveries that were not confirmed yet; this class updates it. `on_complete`: called with an id
    whose transaction has ended at all participants."""

    def __init__(self, awaited: set[Delivery], on_complete: Callable[[str], None]) -> None:
        self.transactions: dict[str, Transaction] = {}
        """All transactions by transactional id."""
        self.active: dict[str, None] = {}
        """Ids whose transaction is open or ends."""
        self.participants = 0
        """The number of participants of all transactions."""
        self._loads: defaultdict[str, FamilyLoad] = defaultdict(FamilyLoad)
        """Loads of the families that have ids."""
        self.to_tell: list[Delivery] = []
        """The deliveries of decisions in this settlement."""
        self.told: dict[str, None] = {}
        """Ids whose transaction has ended at all participants."""
        self.unwritten: dict[str, float] = {}
        """Idle ids whose record is still that of the decision: since when, in monotonic seconds."""
        self._awaited = awaited
        self._on_complete = on_complete

    # ---- a new coordinator -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Counts `transactions`, which the records have filled."""
        for name, transaction in self.transactions.items():
            self._loads[family_of(name)].ids += 1
            if not isinstance(transaction.state, Idle):
                self.active[name] = None
                self._count(name, len(transaction.participants))

    def imply(self, transaction: Transaction, since: float) -> None:
        """The record of its family says that it is committed, and its own does not say so yet: `decide_implied` comes
        before anything else that may happen to it. `since`: monotonic seconds."""
        match transaction.state:
            case Open(opened_at=opened_at, participants=participants):
                transaction.state = Ending(opened_at, Outcome.COMMITTED, participants, since)
            case Idle():  # no add of this transaction was acknowledged
                transaction.epoch, transaction.last = transaction.epoch + 1, Outcome.COMMITTED
            case Ending():
                raise InvariantViolation(f"the transaction of {transaction.transactional_id} ends already")

    def resume(self, names: deque[str], most: int, now: float, times: Times, patience: float) -> None:
        """Decided transactions go on; open ones have the rest of their timeout, or `patience`, and all of their timeout
        where the rest is not known. Takes from `names`, until `most` participants are notified."""
        before = len(self.to_tell)
        while names and len(self.to_tell) < before + most:
            transaction = self.transactions[(name := names.popleft())]
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

    # ---- ids -------------------------------------------------------------------------------------------------------

    def load_of(self, transactional_id: str) -> FamilyLoad:
        """Returns the load of its family, to which a new id may be added."""
        return self._loads.get(family_of(transactional_id)) or FamilyLoad()

    def add(self, transaction: Transaction) -> None:
        """Adds a new id."""
        self.transactions[transaction.transactional_id] = transaction
        self._loads[family_of(transaction.transactional_id)].ids += 1

    def _remove(self, transactional_id: str) -> None:
        del self.transactions[transactional_id]
        family = family_of(transactional_id)
        self._loads[family].ids -= 1
        if not self._loads[family].ids:
            del self._loads[family]

    def _count(self, transactional_id: str, more: int) -> None:
        """Counts `more` participants; negative: fewer."""
        self.participants += more
        self._loads[family_of(transactional_id)].participants += more

    # ---- a transaction ---------------------------------------------------------------------------------------------

    def take_in(
        self, transaction: Transaction, new: Iterable[Participant], now: float, times: Times, records: Records
    ) -> None:
        """Adds participants to the transaction, which is opened if need be."""
        date = times.date
        if isinstance(transaction.state, Idle):
            transaction.state = Open(times.shown, deadline=now + transaction.timeout_ms / 1000)
            self.active[transaction.transactional_id] = None
        elif transaction.changed_at == UNDATED:
            date = UNDATED  # `opened_at` is by a clock that was not agreed
        before = len(transaction.participants)
        transaction.participants.update(dict.fromkeys(new))
        self._count(transaction.transactional_id, len(transaction.participants) - before)
        transaction.changed_at = date
        self.write(transaction, records)

    # R78: A transaction is decided once. The decision is one record, and nobody is told before it is committed in
    # `__transactions`; a new coordinator finds it there and tells everybody again. Each transaction has a producer
    # epoch of its own, and the next one begins when all participants know of the end. A new producer of a
    # transactional id fences the one before.
    # Hazard: One partition shows a transaction and another one does not; a decision that is taken back.
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
        state = transaction.state
        transaction.state = Ending(state.opened_at, outcome, state.participants)
        self._decided(transaction, view, now, times, records)

    def decide_implied(
        self, transaction: Transaction, view: StreamsView, now: float, times: Times, records: Records
    ) -> None:
        """Writes the own record of a transaction that `imply` was called for."""
        if isinstance(transaction.state, Ending):
            self._decided(transaction, view, now, times, records)
        else:
            self.write(transaction, records)

    def _decided(self, transaction: Transaction, view: StreamsView, now: float, times: Times, records: Records) -> None:
        assert isinstance(transaction.state, Ending)
        before = transaction.state.left
        left = {each: None for each in before if not each.is_gone(view)}
        self._count(transaction.transactional_id, len(left) - len(before))
        transaction.state.left, transaction.state.since = left, now
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
        """Notes that a participant has confirmed the end, or is gone."""
        transaction = self.transactions[told.transactional_id]
        assert isinstance(transaction.state, Ending)
        self._awaited.discard(told)
        del transaction.state.left[told.to]
        self._count(transaction.transactional_id, -1)
        if not transaction.state.left:
            self.told[transaction.transactional_id] = None

    def drop_gone(self, names: deque[str], most: int, view: StreamsView) -> None:
        """Streams or partitions may have been deleted. Takes from `names`, until `most` participants were looked at."""
        while names and most > 0:
            transaction = self.transactions.get(names.popleft())
            if transaction is not None and isinstance(transaction.state, Ending):
                most -= len(transaction.state.left)
                for participant in [each for each in transaction.state.left if each.is_gone(view)]:
                    self.on_told(transaction.told(participant))

    def complete(self, now: float, times: Times) -> None:
        """Completes the transactions that all participants have confirmed."""
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
        """Makes the id idle, in the next epoch, and writes it."""
        self._become_idle(transaction, last, times)
        self.write(transaction, records)

    def _become_idle(self, transaction: Transaction, last: Outcome, times: Times) -> None:
        transaction.state, transaction.last = Idle(), last
        transaction.epoch += 1
        transaction.changed_at = times.date

    def write(self, transaction: Transaction, records: Records) -> None:
        records[TransactionKey(transaction.transactional_id)] = transaction.to_record()
        self.unwritten.pop(transaction.transactional_id, None)

    def catch_up(self, until: float, most: int, records: Records) -> bool:
        """Writes ids that are unwritten since `until` or earlier, `most` of them. False: more is left."""
        due = [name for name, since in self.unwritten.items() if since <= until]
        for name in due[:most]:
            self.write(self.transactions[name], records)
        return len(due) <= most

    def forget(
        self,
        kept_s: float,
        times: Times,
        records: Records,
        most: int | None = None,
        chosen: Callable[[str], bool] = lambda _: True,
    ) -> bool:
        """Ids that have been idle for so long, of those that are `chosen`; `most` of them, None: all. False: some may
        be left."""
        forgotten = 0
        for name, transaction in [*self.transactions.items()]:
            if forgotten == most:
                return False
            if not isinstance(transaction.state, Idle):
                continue
            transaction.changed_at = times.dated(transaction.changed_at)
            if times.is_over(transaction.changed_at, kept_s) and chosen(name):
                self._remove(name)
                self.unwritten.pop(name, None)
                records[TransactionKey(name)] = None
                forgotten += 1
        return True

    def validate(self, to_resume: Collection[str]) -> None:
        """`to_resume`: ids whose participants were not notified yet. Raises InvariantViolation."""
        active = {name for name, each in self.transactions.items() if not isinstance(each.state, Idle)}
        if active != set(self.active):
            raise InvariantViolation(f"transactions {sorted(active ^ set(self.active))} are counted wrongly")
        if any(not isinstance(self.transactions[name].state, Idle) for name in self.unwritten):
            raise InvariantViolation(f"of {sorted(self.unwritten)}, one is not idle, and has no record of its own")
        loads: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        participants, awaited = 0, set[Delivery]()
        for name, transaction in self.transactions.items():
            transaction.validate()
            participants += len(transaction.participants)
            loads[family_of(name)][0] += 1
            loads[family_of(name)][1] += len(transaction.participants)
            if isinstance(transaction.state, Ending):
                if name not in to_resume:
                    awaited.update(map(transaction.told, transaction.state.left))
                if not transaction.state.left and name not in self.told:
                    raise InvariantViolation(f"everybody was told of the end of {name}'s transaction, and it goes on")
        if loads != {family: [load.ids, load.participants] for family, load in self._loads.items()}:
            raise InvariantViolation("the ids or the participants of a family are counted wrongly")
        if (participants, awaited) != (self.participants, self._awaited):
            raise InvariantViolation(
                f"{participants} participants, {len(awaited)} to be told; counted {self.participants},"
                f" {len(self._awaited)}"
            )
