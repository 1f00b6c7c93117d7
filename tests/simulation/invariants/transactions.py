"""Promises of transactions: to producers about what was decided, to consumers about what they are handed out, to
programs that read, process and write about what is processed.

A decision is committed with a record of `__transactions` (`CommittedHistory.decisions`). All else is compared with it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.replica.derived.transaction_table import AbortedBatches
from tests.simulation.invariants.base import Invariant, Move, Scene
from tests.simulation.invariants.history import rows
from wire.batch import BatchHeader, Marker, iter_batches, parse_header
from wire.internal_records.transaction_records import TransactionKey, decode_key
from wire.internal_streams import TRANSACTIONS, is_reserved
from wire.protobuf.transactions_pb2 import TransactionRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataplane.broker.leading.leader_driver import LeaderDriver
    from tests.simulation.invariants.history import CommittedHistory, History
    from tests.simulation.machines.broker import SimBroker
    from wire.batch import RecordBatch
    from wire.internal_records.group_records import StreamPartition
    from wire.types import PartitionKey

OUTPUTS = "o"
"""The stream with the outputs of a program that reads, processes and writes. Values: `o:<life of the input>:<partition
of the input>:<its offset>`. And with the batches of a family: `f:<sequence>:<number>`."""

_DECIDED = {TransactionRecord.COMMITTING: True, TransactionRecord.ABORTING: False}
_LAST = {TransactionRecord.COMMITTED: True, TransactionRecord.ABORTED: False, TransactionRecord.TIMED_OUT: False}


@dataclass(frozen=True, slots=True)
class Ended:
    """A producer was told how its transaction has ended."""

    who: str
    producer_id: int
    producer_epoch: int
    commits: bool


@dataclass(frozen=True, slots=True)
class OffsetInTransaction:
    """A transaction commits an offset of a group."""

    producer_id: int
    producer_epoch: int
    group: str
    of: StreamPartition
    offset: int


class DecidedOnce(Invariant):
    """To transactional producers: a transaction is committed or aborted, and stays so."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        if move.replica.key.stream != TRANSACTIONS.name:
            return
        for row in rows(data):
            key = decode_key(row.key or b"")
            if not isinstance(key, TransactionKey) or row.value is None:
                continue
            record = TransactionRecord.FromString(row.value)
            commits, epoch = _DECIDED.get(record.state), record.producer_epoch
            epochs = self.history.epochs
            epochs[record.producer_id] = max(epoch, epochs.get(record.producer_id, 0))
            if record.state == TransactionRecord.IDLE:  # nobody needed to be told: its streams were deleted
                commits, epoch = _LAST.get(record.last), epoch - 1
            if commits is None:
                continue
            place = record.producer_id, epoch
            if place not in self.history.decisions:
                self.world.say(f"decided: epoch {epoch} of {key.transactional_id} is {_word(commits)}")
            known = self.history.decisions.setdefault(place, commits)
            if known is not commits:
                self.broken(
                    f"the transaction of {key.transactional_id} in epoch {epoch} was {_word(known)}, and is"
                    f" {_word(commits)} at offset {row.offset} of {move.replica.key}"
                )


class MarkersSayWhatWasDecided(Invariant):
    """To consumers: a marker in a partition says what is committed to be decided, and nothing of the transaction comes
    behind it."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._next: dict[tuple[PartitionKey, int], int] = {}
        """By partition and producer: the epoch of its newest marker."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        key = move.replica.key
        if is_reserved(key.stream) or base in history.at:
            return
        for _, header in iter_batches(data):
            if header.is_transactional:
                self._check(key, header)

    def _check(self, key: PartitionKey, header: BatchHeader) -> None:
        producer, epoch = header.producer_id, header.producer_epoch
        marker, before = header.marker, self._next.get((key, producer), 0)
        if marker is None:
            if epoch < before:
                self.broken(f"{key} has a batch of producer {producer} at {header.base_offset}, of the ended {epoch=}")
            return
        if epoch <= before:
            return  # it ends nothing: an end that came twice
        self._next[key, producer] = epoch
        commits = self.history.decisions.get((producer, epoch - 1))
        if commits is not (marker is Marker.COMMIT):
            decided = "nothing" if commits is None else f"that it is {_word(commits)}"
            self.broken(
                f"{key} has a marker of producer {producer} at {header.base_offset} with which epoch {epoch - 1} is"
                f" {_word(marker is Marker.COMMIT)}; decided is {decided}"
            )


class TransactionalAnswersHold(Invariant):
    """To transactional producers: one that is told that its transaction is committed has it committed, and one that is
    told that it is not never."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._told: list[Ended] = []

    def on_transaction_told(self, told: Ended) -> None:
        self._told.append(told)
        self._check(told)

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for told in self._told:
            self._check(told)

    def _check(self, told: Ended) -> None:
        commits = self.history.decisions.get((told.producer_id, told.producer_epoch))
        if commits is None and self.history.epochs.get(told.producer_id, -1) > told.producer_epoch:
            return  # its streams were deleted, and the next producer's record was written with the decision
        if commits is not told.commits and (told.commits or commits is not None):
            decided = "nothing" if commits is None else f"that it is {_word(commits)}"
            self.broken(
                f"{told.who} was told that its transaction in epoch {told.producer_epoch} is {_word(told.commits)};"
                f" decided is {decided}"
            )


class OnlyCommittedTransactionsAreRead(Invariant):
    """To consumers, at leaders and followers: they get no record of a transaction that is not committed."""

    def on_consumed(self, who: str, where: str, history: History | None, batch: RecordBatch) -> None:
        header = batch.header
        if not header.is_transactional or len(batch) == 0:
            return
        commits = self.history.decisions.get((header.producer_id, header.producer_epoch))
        if commits is not True:
            state = "open" if commits is None else "aborted"
            self.broken(
                f"{who} got {where} offset {header.base_offset}, of the {state} transaction of producer"
                f" {header.producer_id} in epoch {header.producer_epoch}"
            )


class LastStableNeverGoesBack(Invariant):
    """To consumers: the last stable offset of a leader grows in its LeaderEpoch, and lies at or below the HW and each
    transaction whose marker is not committed."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._seen: dict[LeaderDriver, int] = {}
        self._open: dict[PartitionKey, dict[int, int]] = {}
        """The first batch of each producer's transaction that has no committed marker."""

    def on_covered(self, move: Move, history: History, base: int, data: bytes) -> None:
        header = parse_header(data)
        if not header.is_transactional or base in history.at:
            return
        of_partition = self._open.setdefault(move.replica.key, {})
        if header.marker is not None:
            of_partition.pop(header.producer_id, None)
        else:
            of_partition.setdefault(header.producer_id, base)

    def on_leading(self, broker: SimBroker, role: LeaderDriver) -> None:
        state, key = role.core._state, role.view.key
        stable, before = state.last_stable_offset, self._seen.get(role, 0)
        self._seen[role] = stable
        if stable < before:
            self.broken(f"{key} on {broker.id}: the last stable offset went from {before} to {stable}")
        if stable > max(state.high_watermark, state.log_start_offset):
            self.broken(f"{key} on {broker.id}: {stable} is stable, and {state.high_watermark} the HW")
        if state.high_watermark > self.history.history(key).end:
            return  # what it covers now is looked at next
        unended = min(self._open.get(key, {}).values(), default=stable)
        if state.log_start_offset <= unended < stable:
            self.broken(f"{key} on {broker.id}: {stable} is stable, and the transaction at {unended} has no marker")


class TransactionsEndEverywhere(Invariant):
    """To consumers: in the end every transaction has ended in each of its partitions, and each replica knows which of
    its batches belong to aborted ones."""

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        for key, history in self.history.of.items():
            if is_reserved(key.stream) or self.raft.truth.partition(key) is None:
                continue
            headers = [parse_header(data) for _, data in history.batches]
            self._check_ends(key, headers)
            self._check_replicas(key, [header for header in headers if _is_data(header)])

    def _check_ends(self, key: PartitionKey, headers: list[BatchHeader]) -> None:
        unended: dict[tuple[int, int], int] = {}
        for header in headers:
            if _is_data(header):
                unended[header.producer_id, header.producer_epoch] = header.base_offset
            elif header.marker is not None:
                unended.pop((header.producer_id, header.producer_epoch - 1), None)
        for (producer, epoch), offset in unended.items():
            self.broken(f"{key} has a batch at {offset} of producer {producer} in {epoch=}, and no end of it")

    def _check_replicas(self, key: PartitionKey, headers: list[BatchHeader]) -> None:
        partition = self.raft.truth.partition(key)
        assert partition is not None
        logs = {}
        for name in partition.replicas:
            running = self.brokers[name].broker
            log = running._replicas[key]._log if running is not None else None
            if log is not None:
                logs[name] = log
        # A replica may have copied what another one had compacted, where nothing is left of aborted transactions.
        clean_end = max((log.compaction_point.clean_end for log in logs.values()), default=0)
        for name, log in logs.items():
            for header in headers:
                if header.base_offset < max(log.log_start_offset, clean_end):
                    continue
                known = AbortedBatches(log.transactions.aborted(header.base_offset, header.end_offset))
                commits = self.history.decisions[header.producer_id, header.producer_epoch]
                if known.has(header.producer_id, header.base_offset) is commits:
                    self.broken(
                        f"{key} on {name} takes the batch at {header.base_offset} for {_word(not commits)}, and it is"
                        f" {_word(commits)}"
                    )


class OffsetsMoveWithTransactions(Invariant):
    """To programs that read, process and write: offsets that a transaction commits are committed if it is, and nobody
    is told older ones from then on."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._sent: dict[tuple[str, StreamPartition], dict[OffsetInTransaction, None]] = {}

    def on_transactional_offset(self, sent: OffsetInTransaction) -> None:
        self._sent.setdefault((sent.group, sent.of), {})[sent] = None

    def _committed(self, group: str, of: StreamPartition) -> int:
        """Below this nothing may be told from now on."""
        decisions = self.history.decisions
        return max(
            (
                sent.offset
                for sent in self._sent.get((group, of), ())
                if decisions.get((sent.producer_id, sent.producer_epoch))
            ),
            default=-1,
        )

    def on_transactional_offset_told(self, group: str, of: StreamPartition, offset: int, floor: int) -> None:
        newest = self._committed(group, of)
        if not floor <= offset <= newest:
            self.broken(
                f"{offset} is told to be committed of {of} by group {group}; transactions had committed {floor} when it"
                f" was asked, and {newest} by now"
            )


class FamiliesCommitWhole(Invariant):
    """To families: in the end a batch whose commit was answered is there, once, and of another one all or nothing."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._batches: dict[int, tuple[bytes, ...]] = {}
        self._committed: set[int] = set()

    def on_batch(self, sequence: int, values: tuple[bytes, ...], *, is_committed: bool) -> None:
        self._batches[sequence] = values
        if is_committed:
            self._committed.add(sequence)

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        counts = Counter(outputs(self.history))
        for sequence, values in self._batches.items():
            found = {counts[value] for value in values}
            if found != {1} and (sequence in self._committed or found != {0}):
                told = "was told to be committed" if sequence in self._committed else "is not known to be committed"
                times = ", ".join(f"{value.decode()} {counts[value]} times" for value in values)
                self.broken(f"batch {sequence} of a family {told}, and is there in part: {times}")


def outputs(history: CommittedHistory) -> Iterator[bytes]:
    for key, of_partition in history.of.items():
        if key.stream == OUTPUTS:
            for _, data in of_partition.batches:
                yield from (row.value or b"" for row in of_partition.visible_rows(data))


class InputsAreProcessedOnce(Invariant):
    """To programs that read, process and write: in the end each record of the input has one output, and no more."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._end: dict[tuple[int, int], int] = {}
        """By life and partition of the input stream: all below was to be processed."""

    def on_processed(self, incarnation: int, partition: int, end: int) -> None:
        self._end[incarnation, partition] = end

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        found = Counter(outputs(self.history))
        for value, count in found.items():
            if count > 1:
                self.broken(f"{value!r} is there {count} times")
        for key, history in self.history.of.items():
            end = self._end.get((key.stream_incarnation, key.partition), 0)
            if key.stream != "s" or self.raft.truth.partition(key) is None:
                continue
            for _, data in history.batches:
                for row in history.visible_rows(data):
                    value = b"o:%d:%d:%d" % (key.stream_incarnation, key.partition, row.offset)
                    if history.removed_to <= row.offset < end and row.key is None and value not in found:
                        self.broken(f"offset {row.offset} of {key} was not processed, and all below {end} was")


def _is_data(header: BatchHeader) -> bool:
    return header.is_transactional and not header.is_control


def _word(commits: bool) -> str:
    return "committed" if commits else "aborted"
