"""Typed exceptions: one class per case that a caller may want to distinguish.

Every one is a `wire.errors.TidelogError`, so `except TidelogError as error` with `error.code` and `error.retriable`
works for all of them. `_CLASSES` is the only place that pairs a code of the error table with a class; `typed` applies
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from wire.error_details import CURSOR_VERSION, LAST_OFFSET, OUTCOME
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from tidelog.client.base.records import Record


class UnknownStream(TidelogError):
    """No stream of that name, or the one that was meant has been deleted."""


class StreamExists(TidelogError):
    """A stream of that name exists already."""


class SubjectTaken(TidelogError):
    """Another stream owns that NATS subject or a part of it."""


class BadName(TidelogError):
    """A name that would break a NATS subject or a path."""


class BadSubject(TidelogError):
    """A NATS subject that a stream cannot listen on."""


class BadConfig(TidelogError):
    """A setting that does not exist or a value outside its range."""


class BadReplicationFactor(TidelogError):
    """A replication factor outside 1..16 or above the number of live brokers. Known brokers that have not started yet
    are waited for, as long as any answer is."""


class BadRequest(TidelogError):
    """A request that no broker can carry out as it stands, such as a partition that does not exist."""


class OffsetOutOfRange(TidelogError):
    """The offset is below the start of the log: the records are gone. Or above its end, where reading is to end."""


class LogTruncated(TidelogError):
    """Records that were read before are no longer part of the log (an unclean election)."""


class RecordTooLarge(TidelogError):
    """A record above the stream's `max_record_bytes` or above the payload that the NATS server takes in one message."""


class LimitReached(TidelogError):
    """A limit that keeps one client's requests from costing others too much; the detail `limit` names it."""


class MessageTooLarge(TidelogError):
    """A request or an answer is larger than the NATS server takes in one message: its max_payload is too low."""


class NotEnoughReplicas(TidelogError):
    """The in-sync replicas are fewer than the stream's `min_isr`; nothing was written."""


class LeaderNotMoved(TidelogError):
    """A planned move of a leader did not come about: the old leader goes on, or another one was elected meanwhile."""


class NoKey(TidelogError):
    """The broker lacks the master key of an encrypted stream."""


class NoSpace(TidelogError):
    """The leader's disk is full; nothing was written."""


class DeliveryTimeout(TidelogError):
    """Not acknowledged within the delivery timeout, or the producer's confirm_timeout. `outcome_unknown` says whether
    the records may have been written; the code is that of the delay's reason, such as BACKPRESSURE for a quota."""

    @property
    def outcome_unknown(self) -> bool:
        """The records may have been written: read on to find out, or write them so that a duplicate does no harm."""
        return self.detail(OUTCOME) != "not_written"


class OutOfOrderSequence(TidelogError):
    """The leader's log lacks records of this producer that had been acknowledged: they were lost."""


class IncorrectOffset(TidelogError):
    """The record would not have got the offset that its `expected_offset` names: others were written before it, or
    fewer are there. Nothing was written."""

    @property
    def next_offset(self) -> int | None:
        """The offset that a record would have got; None where the leader did not say."""
        last = self.detail(LAST_OFFSET)
        return None if last is None else last + 1


class PartitionRetired(TidelogError):
    """A repartition has taken keys away from the partition that was chosen: it takes no records any more. Or the
    producer could not learn of the new layout within its delivery timeout. Nothing was written."""


class StalePartitioning(TidelogError):
    """The stream was repartitioned before a record that cannot go to another partition was written: one with an
    `expected_offset`, or one of an open transaction. Or the producer could not learn of the new layout within its
    delivery timeout. Nothing was written."""


class ProducerFenced(TidelogError):
    """A newer producer with the same transactional id has begun; this one has ended. Or an operator has aborted its
    transaction."""


class NotInTransaction(TidelogError):
    """No transaction is open where records, offsets or a commit need one."""


class TransactionAborted(TidelogError):
    """The transaction is not committed, and nothing of it is; `__cause__` is why, where a record or an answer was the
    reason. It is over, and the producer can begin another one."""


class UnknownTransaction(TidelogError):
    """The coordinator does not know the transactional id: nobody has used it, or not for a week."""


class WrongCluster(TidelogError):
    """Two clusters answer in this namespace."""


class WrongIncarnation(TidelogError):
    """The stream was deleted and created again since this producer or consumer was made."""


class UnknownGroup(TidelogError):
    """No consumer group of that name has members or committed offsets."""


class GroupNotEmpty(TidelogError):
    """The consumer group has members: only they commit, and it cannot be reset or deleted."""


class UnknownMember(TidelogError):
    """The coordinator has removed this member from its group: no heartbeat came within its session timeout, or it did
    not give up partitions in time. Its partitions are others' now."""


class FencedInstance(TidelogError):
    """Another process has joined the group under the same `instance_id`."""


class StaleGeneration(TidelogError):
    """A commit names another generation than the member has; nothing was committed."""


class StaleCommit(TidelogError):
    """A later commit, of the same member or the same family, was taken before this one came, which changed nothing. Or
    the family is not known, and may have been forgotten after it had committed these.
    `outcome_unknown` says whether the same commit may have been carried out before that, by an earlier attempt."""

    @property
    def outcome_unknown(self) -> bool:
        """An earlier attempt may have committed the same transactions, and the coordinator does not know that any more:
        do not write their records again before you have looked. False: they are not committed."""
        return self.detail(OUTCOME) != "not_written"


class NotAssigned(TidelogError):
    """A commit names a partition that is not the member's any more; nothing was committed."""


class CursorChanged(TidelogError):
    """The cursor has another version than was expected; nothing was written."""

    @property
    def version(self) -> int | None:
        """The version of the cursor, 0 if it does not exist; None where the coordinator did not say."""
        return self.detail(CURSOR_VERSION)


class ReadOnly(TidelogError):
    """The stream or partition takes no records at present."""


class CorruptBatch(TidelogError):
    """A record batch with a wrong checksum or structure."""


class CorruptEnvelope(TidelogError):
    """A published envelope with a wrong checksum or content."""


class BufferFull(TidelogError):
    """The producer's buffer has no room for another record."""


class SerializationFailed(TidelogError):
    """A serializer of the producer refused a key or a value, or made something else than bytes of it. Nothing was
    written. `__cause__` is the serializer's exception."""


class DeserializationFailed(TidelogError):
    """A deserializer of the consumer refused a key or a value. `__cause__` is its exception.

    The consumer's position stays at the record: it is raised again until `seek` passes over it.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        details: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        *,
        record: Record | None = None,
    ) -> None:
        super().__init__(code, message, details)
        self.record = record
        """The record with its stream, partition and offset, and with key and value as bytes."""


class NotPermitted(TidelogError):
    """NATS does not let this login publish to a subject, or subscribe to its inboxes."""


class NoServer(TidelogError):
    """No answer: no NATS server at that address, or no Tidelog broker behind it."""

    is_refusal = False
    """A NATS server did answer, and refused the login, the certificate or the URL: another attempt meets the same."""


class Closed(TidelogError):
    """The client, producer or consumer was closed."""


def may_be_written(error: TidelogError) -> bool:
    """Returns whether records that failed with this error of a producer may be in the stream all the same."""
    told = error.detail(OUTCOME)
    return error.code.unknown_outcome if told is None else told != "not_written"


_CLASSES: Mapping[Code, type[TidelogError]] = {
    Code.UNKNOWN_STREAM: UnknownStream,
    Code.STREAM_EXISTS: StreamExists,
    Code.SUBJECT_TAKEN: SubjectTaken,
    Code.BAD_NAME: BadName,
    Code.BAD_SUBJECT: BadSubject,
    Code.BAD_CONFIG: BadConfig,
    Code.BAD_REPLICATION_FACTOR: BadReplicationFactor,
    Code.NOT_ENOUGH_BROKERS: BadReplicationFactor,
    Code.BAD_REQUEST: BadRequest,
    Code.TRANSACTION_COMMITTED: BadRequest,
    Code.OFFSET_BEFORE_LOG: OffsetOutOfRange,
    Code.OFFSET_AHEAD: OffsetOutOfRange,
    Code.LOG_TRUNCATED: LogTruncated,
    Code.RECORD_TOO_LARGE: RecordTooLarge,
    Code.LIMIT_REACHED: LimitReached,
    Code.MESSAGE_TOO_LARGE: MessageTooLarge,
    Code.NOT_ENOUGH_REPLICAS: NotEnoughReplicas,
    Code.LEADER_NOT_MOVED: LeaderNotMoved,
    Code.NO_KEY: NoKey,
    Code.NO_SPACE: NoSpace,
    Code.CONFIRM_TIMEOUT: DeliveryTimeout,
    Code.OUTCOME_UNKNOWN: DeliveryTimeout,
    Code.OUT_OF_ORDER_SEQUENCE: OutOfOrderSequence,
    Code.INCORRECT_OFFSET: IncorrectOffset,
    Code.PARTITION_DRAINING: PartitionRetired,
    Code.PARTITION_RETIRED: PartitionRetired,
    Code.STALE_PARTITIONING: StalePartitioning,
    Code.PRODUCER_FENCED: ProducerFenced,
    Code.NOT_IN_TRANSACTION: NotInTransaction,
    Code.TRANSACTION_ABORTED: TransactionAborted,
    Code.UNKNOWN_TRANSACTION: UnknownTransaction,
    Code.WRONG_CLUSTER: WrongCluster,
    Code.WRONG_INCARNATION: WrongIncarnation,
    Code.UNKNOWN_GROUP: UnknownGroup,
    Code.GROUP_NOT_EMPTY: GroupNotEmpty,
    Code.UNKNOWN_MEMBER: UnknownMember,
    Code.FENCED_INSTANCE: FencedInstance,
    Code.STALE_GENERATION: StaleGeneration,
    Code.STALE_COMMIT: StaleCommit,
    Code.NOT_ASSIGNED: NotAssigned,
    Code.CURSOR_CHANGED: CursorChanged,
    Code.READONLY: ReadOnly,
    Code.CORRUPT_BATCH: CorruptBatch,
    Code.CORRUPT_ENVELOPE: CorruptEnvelope,
    Code.NOT_PERMITTED: NotPermitted,
    Code.UNAVAILABLE: NoServer,
}


def typed(error: TidelogError) -> TidelogError:
    """Returns the same error as an instance of its class, when its code has one."""
    cls = _CLASSES.get(error.code)
    if cls is None or isinstance(error, cls):
        return error
    return cls(error.code, error.message, error.details)
