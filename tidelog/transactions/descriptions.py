"""What operators see of a transaction."""

from __future__ import annotations

from tidelog.coordination.times import UNDATED
from tidelog.transactions.participants import GroupIn, PartitionIn
from tidelog.transactions.transaction import Ending, Idle, Transaction
from wire.operations.transaction_operations import ListTransactionsRequest, TransactionDescription, TransactionSummary


def is_asked_for(transaction: Transaction, request: ListTransactionsRequest) -> bool:
    """Whether the stream and the group that the list is limited to take part in it."""
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
    """As `place_in_list` of its summary."""
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
