"""What a leader asks of a transactional batch before it looks at the log: the bit and the producer belong together, it
wants an answer, and it shows a ticket of its coordinator for this life of the partition (R48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.replica.leader.ack_levels import AckLevel
from wire.batch import BatchHeader
from wire.errors import Code, TidelogError
from wire.security.tickets import partition_target
from wire.types import FIRST_TRANSACTIONAL_ID

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext
    from wire.protobuf.tidelog_pb2 import AppendRequest
    from wire.types import PartitionKey


class TransactionRules:
    """The rules of one partition. `is_internal`: it belongs to a stream of Tidelog's own, which no transaction writes
    to."""

    def __init__(self, key: PartitionKey, context: BrokerContext, *, is_internal: bool) -> None:
        self._key = key
        self._context = context
        self._is_internal = is_internal
        self._target = partition_target(key.stream, key.stream_incarnation, key.partition, key.partition_incarnation)

    def checked_level(
        self, request: AppendRequest, level: AckLevel | None, sent: BatchHeader, *, is_durable: bool
    ) -> AckLevel | None:
        """When the batch is acknowledged: a transactional one not before the HW has passed it, whatever it asks for. A
        producer commits when all of its batches are acknowledged, and none of these may be lost with the leader
        afterwards. `level`: as it asks, None where no acknowledgement is wanted; `is_durable`: of the stream. Raises
        TidelogError."""
        is_of_transactions = sent.producer_id >= FIRST_TRANSACTIONAL_ID
        if not is_of_transactions and not sent.is_transactional:
            return level
        if not is_of_transactions:
            raise _bad(f"producer {sent.producer_id} has no transactions; leave the transactional bit of its batch out")
        if not sent.is_transactional:
            raise _bad(f"producer {sent.producer_id} writes in transactions alone; set the bit of its batch")
        if self._is_internal:
            raise _bad(f"no transaction writes to {self._key}")
        if level is None:
            raise _bad("a transaction cannot know what became of a batch with acks=none; use acks=all")
        if sent.has_message_ids:
            raise _bad(
                "a transaction stores no message ids: an aborted record would keep out its repetition; leave them out"
            )
        self._context.tickets.check(request.ticket, sent.producer_id, sent.producer_epoch, self._target)
        return AckLevel(is_local=False, is_synced=level.is_synced or is_durable, floor=level.floor)


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, sentence)
