"""Offsets that a transaction commits for a group, if it is committed.

    commit ──> record with offsets ──end──> record without, of the next epoch: proof that the transaction has ended
                   ^                            │
                   └──────── a commit ──────────┘ of that epoch

A producer proves with a ticket that the coordinator of its transaction knows of the group's part in it, and so will
notify the group of the end. A commit that comes later than the end is refused, because its epoch is over: nobody would
end it. So the proof is kept for longer than any ticket is valid, also where the group is deleted meanwhile, and an end
without offsets leaves one, too.

While offsets are pending, no committed offsets of these partitions are given out: a member that read on from there
would process again the records that the transaction has processed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.record_times import Times
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, InvariantViolation, TidelogError
from wire.internal_records.group_records import PendingKey, RecordKey, StreamPartition
from wire.protobuf.groups_pb2 import CommittedOffset, PendingRecord
from wire.security.tickets import LIFETIME_S

PROOF_S: Final = 2 * LIFETIME_S
"""Seconds for which the proof of an ended transaction is kept."""
MAX_PENDING: Final = 100_000
"""Records of one coordinator. The end of a transaction is taken nevertheless."""
MAX_PENDING_BYTES: Final = 256 << 10
"""Bytes of the offsets of one transaction in one group."""
RETRY_MS: Final = 100
OPERATORS_RETRY_MS: Final = 1000
"""Milliseconds until an operator's request is repeated, because each attempt is in the audit trail."""


class PendingOffsets:
    """Pending offsets by group, and by number of the producer."""

    def __init__(self) -> None:
        self.known: dict[str, dict[int, PendingRecord]] = {}
        self.count = 0

    def put(self, key: PendingKey, record: PendingRecord | None) -> None:
        """Sets the record of a producer in a group; None: it is forgotten."""
        of_group = self.known.setdefault(key.group, {})
        self.count += (record is not None) - (key.producer_id in of_group)
        if record is not None:
            of_group[key.producer_id] = record
        else:
            of_group.pop(key.producer_id, None)
        if not of_group:
            del self.known[key.group]

    # R80: Offsets that a transaction commits for a group are pending until the group knows the end of the transaction.
    # Until then nobody is told the committed offsets of these partitions (UNAVAILABLE), and they are neither reset nor
    # deleted.
    # Hazard: A consumer processes again what the transaction has processed, or passes over what it has not.
    def commit(
        self,
        key: PendingKey,
        producer_epoch: int,
        number: int,
        offsets: Iterable[CommittedOffset],
        times: Times,
        records: dict[RecordKey, ProtoMessage | None],
    ) -> None:
        """`number`: grows within the transaction, so that a commit that the network delivers late changes nothing; 0:
        not numbered. Raises TidelogError."""
        present = self.known.get(key.group, {}).get(key.producer_id)
        if present is None and self.count >= MAX_PENDING:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"{self.count} producers have committed offsets in transactions where group {key.group!r} belongs, the"
                " most that is kept; begin fewer producers",
                [LIMIT.of("pending_offsets")],
            )
        if present is not None and present.producer_epoch > producer_epoch:
            raise TidelogError(
                Code.PRODUCER_FENCED,
                f"the transaction in epoch {producer_epoch} of producer {key.producer_id} has ended in group"
                f" {key.group!r}; nothing was committed",
            )
        merged: dict[StreamPartition, CommittedOffset] = {}
        if present is not None and present.producer_epoch == producer_epoch:
            if 0 < number < present.number:
                raise TidelogError(
                    Code.STALE_COMMIT,
                    f"commit {number} of producer {key.producer_id} in group {key.group!r} came after its commit"
                    f" {present.number}, which holds; nothing was committed",
                )
            merged = {partition_of(offset): offset for offset in present.offsets}
            number = max(number, present.number)
        merged |= {partition_of(offset): offset for offset in offsets}
        record = PendingRecord(
            producer_epoch=producer_epoch, offsets=merged.values(), changed_at=times.date, number=number
        )
        if record.ByteSize() > MAX_PENDING_BYTES:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"the offsets of one transaction in group {key.group!r} would have {record.ByteSize()} bytes, and"
                f" {MAX_PENDING_BYTES} may; commit fewer, or with less metadata",
                [LIMIT.of("pending_offsets")],
            )
        self.put(key, record)
        records[key] = record

    def end(
        self, key: PendingKey, producer_epoch: int, times: Times
    ) -> tuple[list[CommittedOffset], PendingRecord | None]:
        """Returns the offsets left by the transaction, and the record that proves its end, to be written behind them;
        None: it has ended before."""
        present = self.known.get(key.group, {}).get(key.producer_id)
        if present is not None and present.producer_epoch > producer_epoch:
            return [], None
        left = [*present.offsets] if present is not None and present.producer_epoch == producer_epoch else []
        proof = PendingRecord(producer_epoch=producer_epoch + 1, changed_at=times.date)
        self.put(key, proof)
        return left, proof

    def of(self, group: str) -> list[tuple[int, PendingRecord]]:
        """Returns the producers whose offsets are pending, with their records."""
        return [(producer, record) for producer, record in self.known.get(group, {}).items() if record.offsets]

    def check_none(self, group: str, partitions: Iterable[StreamPartition] | None = None) -> None:
        """`partitions`: None: all, for operators. Raises TidelogError(UNAVAILABLE) where offsets are pending."""
        found = self.of(group)
        if not found:
            return
        wanted = None if partitions is None else set(partitions)
        for producer, record in found:
            for offset in record.offsets:
                if wanted is None or partition_of(offset) in wanted:
                    raise TidelogError(
                        Code.UNAVAILABLE,
                        f"a transaction of producer {producer} commits offsets of group {group!r}, such as of"
                        f" {partition_of(offset)}, and has not ended yet; try again, or see `tidelog transaction list`",
                        [RETRY_AFTER_MS.of(OPERATORS_RETRY_MS if wanted is None else RETRY_MS)],
                    )

    def forget_old(self, times: Times, records: dict[RecordKey, ProtoMessage | None]) -> None:
        """Deletes proofs that are older than any ticket."""
        for group, producers in [*self.known.items()]:
            for producer, record in [*producers.items()]:
                record.changed_at = times.dated(record.changed_at)
                if not record.offsets and times.is_over(record.changed_at, PROOF_S):
                    key = PendingKey(group, producer)
                    self.put(key, None)
                    records[key] = None

    def validate(self) -> None:
        count = sum(map(len, self.known.values()))
        if count != self.count:
            raise InvariantViolation(f"{count} records of pending offsets are counted as {self.count}")


def partition_of(offset: CommittedOffset) -> StreamPartition:
    return StreamPartition(offset.stream, offset.incarnation, offset.partition)
