"""Promises to clients: to producers about acknowledged records, to consumers about the records that they get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.base import Acknowledged, Invariant, Numbered, Scene
from tests.simulation.invariants.history import Row, rows, value_at
from wire.batch import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.simulation.invariants.history import History
    from wire.types import LeaderEpoch, PartitionKey


class NoAcknowledgedRecordLost(Invariant):
    """To producers: a record acknowledged with acks=all is stored in the end, at its offset; with acks=leader, where
    the LeaderEpoch is the same.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._by_all: list[Acknowledged] = []
        self._by_leader: list[tuple[Acknowledged, PartitionKey, LeaderEpoch]] = []

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        if promised:
            self._by_all.append(ack)
            return
        if ack.durability is not None:
            return
        key = self._key(ack)
        truth = self.raft.truth.partition(key) if key is not None else None
        if key is not None and truth is not None and truth.leader is not None:
            leader = self.brokers[truth.leader]
            replica = leader.broker._replicas.get(key) if leader.broker is not None else None
            with leader.disk.as_written():
                # An answer may come late, in a LeaderEpoch that has truncated its records.
                if replica is not None and value_at(replica, ack.offset) == ack.value:
                    self._by_leader.append((ack, key, truth.leader_epoch))

    def _key(self, ack: Acknowledged) -> PartitionKey | None:
        named = ack.stream, ack.stream_incarnation, ack.partition
        return next(
            (
                key
                for key, _ in self.raft.truth.partitions()
                if (key.stream, key.stream_incarnation, key.partition) == named
            ),
            None,
        )

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for ack in self._by_all:
            found = records.get((ack.stream, ack.stream_incarnation, ack.partition))
            if found is None:
                continue  # the stream was deleted
            if not ack.is_in(found) and not self.history.was_removed_with_its_partition(ack):
                there = found[ack.offset] if 0 <= ack.offset < len(found) else None
                self.broken(f"{ack.by}: {ack.value[:40]!r} at {ack}; there is {there!r:.60}")
        for ack, key, leader_epoch in self._by_leader:
            truth = self.raft.truth.partition(key)
            if truth is None or truth.leader_epoch != leader_epoch:
                continue  # acks=leader promises nothing beyond
            found = records.get((key.stream, key.stream_incarnation, key.partition), [])
            if ack.offset >= len(found) or found[ack.offset] != ack.value:
                self.broken(f"{ack.by}: {ack.value[:40]!r} at {ack} in the same LeaderEpoch")


class AckedIsCommitted(Invariant):
    """To producers: acks=all says that a record is committed, and nothing is acknowledged before."""

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        if not promised:
            return
        lives = self.history.lives(ack.stream, ack.stream_incarnation, ack.partition)
        if not lives:
            self.broken(f"{ack} of a partition that has committed nothing")
        committed = max(history.end for _, history in lives)
        if ack.offset >= committed:
            self.broken(f"{ack.by}: offset {ack.offset} of {lives[-1][0]}, committed is {committed}")


class RefusedIsNotStored(Invariant):
    """To publishers on the stream's subject, and to producers of records that expect an offset: a record that a broker
    refuses as not stored is stored on no broker."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._refused: dict[tuple[str, int], set[bytes]] = {}

    def on_refused(self, stream: str, partition: int, value: bytes) -> None:
        self._refused.setdefault((stream, partition), set()).add(value)

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        """Streams that were deleted and made again under their name count too: bare publishes
        name no incarnation."""
        for key, history in self.history.of.items():
            refused = self._refused.get((key.stream, key.partition))
            if not refused:
                continue
            for row in (row for _, data in history.batches for row in rows(data)):
                if row.value in refused:
                    self.broken(f"{row.value[:20]!r} is at offset {row.offset} of {key}, and was said not to be stored")


class NoFalseAlarm(Invariant):
    """To producers: no producer is told that acknowledged records are lost, because acks=all prevents that."""

    def on_alarm(self, who: str, what: str) -> None:
        self.broken(f"{who} was told: {what}")


class ConsumersSeeOnlyCommitted(Invariant):
    """To consumers: the records that they get are committed."""

    def on_consumed(self, who: str, where: str, history: History | None, batch: RecordBatch) -> None:
        if history is None:
            self.broken(f"{who} got {where}, which committed nothing")
        base = batch.header.base_offset
        if base not in history.at or batch.header.end_offset > history.end:
            self.broken(f"{who} got {where} offset {base}, committed is {history.end}")


class ConsumersSeeOneValue(Invariant):
    """To consumers: at one offset all of them get the same value, for ever."""

    def on_consumed(self, who: str, where: str, history: History | None, batch: RecordBatch) -> None:
        if history is None:
            return
        base = batch.header.base_offset
        got = map(Row, batch.offsets.tolist(), batch.keys, batch.values)
        if not set(got) <= set(rows(history.at[base])):
            self.broken(f"{who} got another value at {where} offset {base}")


class ConsumersSeeTheNewest(Invariant):
    """To consumers: a consumer that reads a compacted stream to its end has seen the newest record of each key."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._seen: dict[tuple[str, str, int], dict[bytes | None, Row]] = {}

    def on_consumed(self, who: str, where: str, history: History | None, batch: RecordBatch) -> None:
        seen = self._seen.setdefault((who, where, id(history)), {})
        for row in map(Row, batch.offsets.tolist(), batch.keys, batch.values):
            seen[row.key] = row

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for (who, where, life), seen in self._seen.items():
            for partition, history in self.history.of.items():
                if id(history) != life or history.removed_to or self.raft.truth.partition(partition) is None:
                    continue
                newest = {row.key: row for _, data in history.batches for row in history.visible_rows(data)}
                for key, row in newest.items():
                    # A tombstone may have been removed before a slow consumer came to it.
                    if key is not None and row.value is not None and seen.get(key) != row:
                        self.broken(f"{who} has read {where} to its end, and saw {seen.get(key)} instead of {row}")


class NoDuplicates(Invariant):
    """To idempotent producers: a record that was sent again is stored once."""

    def on_numbered(self, record: Numbered) -> None:
        if record.number == record.before:
            self.broken(f"{record.where} offset {record.offset}: {record.value[:20]!r} twice")


class MessageIdsAreStoredOnce(Invariant):
    """To publishers: a record that is sent again under its message id, by whomever, is stored once. Windows are longer
    than runs, and no record of these streams goes but those that are deleted on request: the next leader does not know
    the ids of these (R45)."""

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for key, history in self.history.of.items():
            partition = self.raft.truth.partition(key)
            purged_end = 0 if partition is None else partition.purged_end
            found: dict[bytes, int] = {}
            for _, data in history.batches:
                for offset, message_id in RecordBatch.decode(data).message_ids():
                    if found.get(message_id, -1) >= purged_end:
                        self.broken(f"{message_id!r} is at offsets {found[message_id]} and {offset} of {key}")
                    found[message_id] = offset


class ProducerOrder(Invariant):
    """To idempotent producers: records are stored in the order in which they were sent."""

    def on_numbered(self, record: Numbered) -> None:
        if record.number < record.before:
            self.broken(f"{record.where} offset {record.offset}: {record.value[:20]!r} after number {record.before}")
