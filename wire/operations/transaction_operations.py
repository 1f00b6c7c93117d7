"""Operations on transactions, declared as those of `wire.operations.api_operations`, which has them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from wire.errors import Code
from wire.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class TransactionRef:
    transactional_id: str


class TransactionCoordinator(TypedDict):
    partition: int
    """The partition of the internal stream `__transactions`; its leader is the coordinator."""


TRANSACTION_COORDINATOR = Operation(
    name="transaction.coordinator",
    request=TransactionRef,
    answer=TransactionCoordinator,
    help="where the coordinator of a transactional id is; makes the internal streams for it if need be",
    writes=False,
    refusals=(Code.BAD_NAME, Code.NOT_ENOUGH_BROKERS, Code.STREAM_EXISTS),
)


class TransactionSummary(TypedDict):
    transactional_id: str
    state: str
    """"idle", "open", "committing" or "aborting" (decided, and not known everywhere yet)."""
    producer_id: int
    producer_epoch: int
    """The epoch of the transaction that is open or ends; of the next one, if there is none."""
    opened_at_ns: int
    """Since 1970; 0: no transaction is open."""
    timeout_ms: int
    """A transaction that is open for longer is aborted."""
    partitions: int
    """That take part, and have no marker yet."""
    groups: int
    """That take part, and have not been told yet."""


class TransactionList(TypedDict):
    transactions: list[TransactionSummary]
    """Those that are open or end, the oldest first; then the idle ones, if they are asked for, by id."""
    left_out: int
    """So many more are not shown."""
    unanswered: list[int]
    """Partitions of `__transactions` whose coordinators did not answer: their transactions are missing."""


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    idle: bool = False
    """Also the ids without a transaction."""
    with_stream: str = ""
    """Only transactions in which a partition of this stream takes part; empty: all."""
    with_group: str = ""
    """Only transactions in which this consumer group takes part; empty: all."""


def place_in_list(summary: TransactionSummary) -> tuple[bool, int, str]:
    """What lists are sorted by."""
    return summary["state"] == "idle", summary["opened_at_ns"], summary["transactional_id"]


MAX_LISTED: Final = 1000
"""Transactions in one answer, so that NATS carries it."""

TRANSACTION_LIST = Operation(
    name="transaction.list",
    request=ListTransactionsRequest,
    answer=TransactionList,
    help="the transactions that are open or end; with `idle` also the transactional ids without one",
    writes=False,
)


class TransactionPartition(TypedDict):
    stream: str
    incarnation: int
    """Life of the stream."""
    partition: int


class TransactionDescription(TransactionSummary):
    coordinator: str
    """Id of the broker."""
    partition: int
    """The partition of `__transactions`."""
    client: str
    """Who began the producer."""
    changed_at_ns: int
    """Since 1970; 0: not known."""
    last: str
    """Outcome of the transaction that ends, or else of the one before: "committed", "aborted" (by its producer), "timed
    out", or "none": a newer producer or an operator has fenced the producer, or there was none."""
    waits_for_partitions: list[TransactionPartition]
    """`partitions`, each of them."""
    waits_for_groups: list[str]


TRANSACTION_DESCRIBE = Operation(
    name="transaction.describe",
    request=TransactionRef,
    answer=TransactionDescription,
    help="what is known of a transactional id, and for which partitions and groups its transaction waits",
    writes=False,
    transaction="transactional_id",
    refusals=(Code.UNKNOWN_TRANSACTION, Code.BAD_NAME),
)

TRANSACTION_ABORT = Operation(
    name="transaction.abort",
    request=TransactionRef,
    answer=TransactionDescription,
    help="abort the open transaction of a transactional id, and fence its producer",
    writes=True,
    transaction="transactional_id",
    refusals=(Code.UNKNOWN_TRANSACTION, Code.NOT_IN_TRANSACTION, Code.BAD_NAME),
)
