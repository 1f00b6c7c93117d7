"""A transactional id, with its transaction: the states, and the record.

    Idle ──add──> Open ──end, by the producer──────────────────────> Ending(COMMITTED or ABORTED) ──┐
     ^              ├────it is open for longer than its timeout────> Ending(TIMED_OUT) ─────────────┤
     │              └────init of a newer producer, or an operator──> Ending(NONE) ──────────────────┤
     └──────────── the next epoch; every participant has confirmed ────────────────────────────────┘

Every transaction has an epoch of its own. Its participants get the next epoch with the decision, and take nothing
of the ended one from then on. An init gives its producer the epoch after that one, so that an older producer has no
epoch that it could use.

`last` is the outcome of the transaction before the present epoch, so that an end that is sent again is answered as the
first one. It is NONE where the producer of that transaction was fenced: all its requests are refused as fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tidelog.server.coordinators.record_times import UNDATED
from tidelog.server.coordinators.transactions.participants import GroupIn, Participant, PartitionIn, Told
from wire.errors import InvariantViolation
from wire.operations.transaction_operations import ListTransactionsRequest, TransactionDescription, TransactionSummary
from wire.protobuf.transactions_pb2 import TransactionRecord


class Outcome(Enum):
    NONE = TransactionRecord.NONE
    COMMITTED = TransactionRecord.COMMITTED
    ABORTED = TransactionRecord.ABORTED
    TIMED_OUT = TransactionRecord.TIMED_OUT

    @property
    def commits(self) -> bool:
        return self is Outcome.COMMITTED

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(slots=True)
class Idle:
    """No transaction is open."""


@dataclass(slots=True)
class Open:
    opened_at: int
    """ns since 1970."""
    participants: dict[Participant, None] = field(default_factory=dict)
    deadline: float = float("inf")
    """Monotonic seconds. Not in the record: each coordinator computes its own."""


@dataclass(slots=True)
class Ending:
    """The transaction is decided; participants are being notified."""

    opened_at: int
    outcome: Outcome
    left: dict[Participant, None]
    """Participants that have not confirmed. The record has only those left at the decision."""
    since: float = 0.0
    """Monotonic seconds. Not in the record."""


State: TypeAlias = Idle | Open | Ending


@dataclass(slots=True)
class Transaction:
    transactional_id: str
    producer_id: int
    epoch: int
    """The epoch of the transaction that is open or ends; of the next one, if there is none."""
    timeout_ms: int
    client: str
    """Text of the client that began the producer."""
    changed_at: int
    """A date of `Times`; of an open transaction UNDATED where `opened_at` is by a clock that was not agreed."""
    last: Outcome = Outcome.NONE
    state: State = field(default_factory=Idle)

    @property
    def participants(self) -> dict[Participant, None]:
        """Participants that have not confirmed an end."""
        match self.state:
            case Open(participants=participants):
                return participants
            case Ending(left=left):
                return left
            case _:
                return {}

    @property
    def opened_at(self) -> int:
        """ns since 1970; 0: no transaction is open."""
        return 0 if isinstance(self.state, Idle) else self.state.opened_at

    @property
    def state_name(self) -> str:
        match self.state:
            case Idle():
                return "idle"
            case Open():
                return "open"
            case Ending(outcome=outcome):
                return "committing" if outcome.commits else "aborting"

    def told(self, to: Participant) -> Told:
        """Returns the delivery that notifies `to` of the end."""
        assert isinstance(self.state, Ending)
        return Told(self.transactional_id, self.producer_id, self.epoch, self.state.outcome.commits, to)

    def to_record(self) -> TransactionRecord:
        record = TransactionRecord(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            timeout_ms=self.timeout_ms,
            client=self.client,
            opened_at=self.opened_at,
            changed_at=self.changed_at,
            partitions=[each.to_record() for each in self.participants if isinstance(each, PartitionIn)],
            groups=[each.group for each in self.participants if isinstance(each, GroupIn)],
            last=self.last.value,
        )
        match self.state:
            case Idle():
                record.state = TransactionRecord.IDLE
            case Open():
                record.state = TransactionRecord.OPEN
            case Ending(outcome=outcome):
                record.state = TransactionRecord.COMMITTING if outcome.commits else TransactionRecord.ABORTING
                record.last = outcome.value
        return record

    @classmethod
    def of_record(cls, transactional_id: str, record: TransactionRecord) -> Transaction:
        found = cls(
            transactional_id=transactional_id,
            producer_id=record.producer_id,
            epoch=record.producer_epoch,
            timeout_ms=record.timeout_ms,
            client=record.client,
            changed_at=record.changed_at,
            last=Outcome(record.last),
        )
        participants: dict[Participant, None] = dict.fromkeys(map(PartitionIn.of_record, record.partitions))
        participants |= dict.fromkeys(map(GroupIn, record.groups))
        match record.state:
            case TransactionRecord.OPEN:
                found.state = Open(record.opened_at, participants)
            case TransactionRecord.COMMITTING:
                found.state = Ending(record.opened_at, Outcome.COMMITTED, participants)
            case TransactionRecord.ABORTING:
                found.state = Ending(record.opened_at, Outcome(record.last), participants)
            case _:
                pass
        return found

    def validate(self) -> None:
        match self.state:
            case Open(participants=participants) if not participants:
                raise InvariantViolation(f"transaction of {self.transactional_id} is open and has no participants")
            case _:
                pass
        if self.epoch < 0:
            raise InvariantViolation(f"transaction of {self.transactional_id} has epoch {self.epoch}")


def is_asked_for(transaction: Transaction, request: ListTransactionsRequest) -> bool:
    """Returns whether the stream and the group that the list is limited to take part in the transaction."""
    if request.with_group and GroupIn(request.with_group) not in transaction.participants:
        return False
    return not request.with_stream or any(
        isinstance(each, PartitionIn) and each.stream == request.with_stream for each in transaction.participants
    )


def summary_of(transaction: Transaction) -> TransactionSummary:
    groups = sum(isinstance(each, GroupIn) for each in transaction.participants)
    return {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state_name,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "opened_at_ns": transaction.opened_at,
        "timeout_ms": transaction.timeout_ms,
        "partitions": len(transaction.participants) - groups,
        "groups": groups,
    }


def place_of(transaction: Transaction) -> tuple[bool, int, str]:
    """Returns the place of the transaction in lists, like `place_in_list` of its summary."""
    return isinstance(transaction.state, Idle), transaction.opened_at, transaction.transactional_id


def described(transaction: Transaction, broker: str, partition: int) -> TransactionDescription:
    ending = transaction.state if isinstance(transaction.state, Ending) else None
    partitions = [each for each in transaction.participants if isinstance(each, PartitionIn)]
    return {
        **summary_of(transaction),
        "coordinator": broker,
        "partition": partition,
        "client": transaction.client,
        "changed_at_ns": 0 if transaction.changed_at == UNDATED else transaction.changed_at,
        "last": str(transaction.last if ending is None else ending.outcome),
        "waits_for_partitions": [
            {"stream": each.stream, "incarnation": each.stream_incarnation, "partition": each.partition}
            for each in sorted(partitions)
        ],
        "waits_for_groups": sorted(each.group for each in transaction.participants if isinstance(each, GroupIn)),
    }
