"""All invariants together: calls each one that has a hook for an event, in the order of `INVARIANTS`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from tests.simulation.invariants.base import Acknowledged, Commit, Given, Invariant, Move, Numbered, Scene
from tests.simulation.invariants.clients import (
    AckedIsCommitted,
    ConsumersSeeOneValue,
    ConsumersSeeOnlyCommitted,
    ConsumersSeeTheNewest,
    MessageIdsAreStoredOnce,
    NoAcknowledgedRecordLost,
    NoDuplicates,
    NoFalseAlarm,
    ProducerOrder,
    RefusedIsNotStored,
)
from tests.simulation.invariants.commits import (
    CommittedIsHeldByIsr,
    LogMatching,
    MonotonicHighWatermark,
    NoCommitBelowMinIsr,
    OnlyLeadersCommit,
)
from tests.simulation.invariants.groups import CommittedOffsetsStay, OneReaderPerPartition, OnlyHoldersCommit
from tests.simulation.invariants.history import CommittedHistory, batches_of
from tests.simulation.invariants.key_readers import (
    CommittedIsNotGivenAgain,
    NobodyWaitsForDeletedRecords,
    OnlyDeletedRecordsAreSkipped,
    WhatIsSettledIsServedByNobody,
)
from tests.simulation.invariants.levels import FloorHolds, HeldByAllStays, SyncedByAllStays
from tests.simulation.invariants.metadata import (
    CompareAndSet,
    ElectionsHaveCause,
    EpochsGrow,
    IsrNeverEmpty,
    NoMassDeath,
    OneControllerEpoch,
    PartitionState,
    ReassignmentsKeepCopies,
)
from tests.simulation.invariants.operators import OnlyCommittedIsDeleted, ReadonlyTakesNothing
from tests.simulation.invariants.replicas import (
    CommittedIsNotCut,
    CoresAreValid,
    DerivedStateFollowsFromTheLog,
    EpochBehindSyncedTail,
    IsrMembersHoldCommitted,
    KnownCommittedIsNotCut,
    LeaderCompleteness,
    LeaseEnds,
    OnlyDisksFailReplicas,
    OnlyLossesAreReported,
    OnlyTheRegisteredAct,
    SingleLeaderPerEpoch,
    SyncedStays,
)
from tests.simulation.invariants.retention import OnlyCommittedIsRemoved, OnlyWhatHasOutlivedItsLimitsIsRemoved
from tests.simulation.invariants.routing import (
    AdoptionIsTrue,
    CutoversAreExact,
    KeysAreGivenInOrder,
    KeysAreStoredInOrder,
    RepartitionsFinishWhenTold,
)
from tests.simulation.invariants.transactions import (
    DecidedOnce,
    Ended,
    FamiliesCommitWhole,
    InputsAreProcessedOnce,
    LastStableNeverGoesBack,
    MarkersSayWhatWasDecided,
    OffsetInTransaction,
    OffsetsMoveWithTransactions,
    OnlyCommittedTransactionsAreRead,
    TransactionalAnswersHold,
    TransactionsEndEverywhere,
)
from wire.batch import RecordBatch
from wire.internal_streams import is_reserved
from wire.protobuf import metadata_pb2 as pb
from wire.types import StreamName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dataplane.broker.replica import Replica
    from dataplane.log.partition_log import PartitionLog
    from metadata.cluster.model import Outcome
    from tests.simulation.invariants.groups import OffsetCommit
    from tests.simulation.machines.broker import SimBroker
    from tests.simulation.raft.group_model import RaftGroup
    from tests.simulation.world import World
    from wire.internal_records.group_records import StreamPartition
    from wire.types import LeaderReport, PartitionKey

INVARIANTS: tuple[type[Invariant], ...] = (
    OneControllerEpoch,
    CompareAndSet,
    ElectionsHaveCause,
    NoMassDeath,
    IsrNeverEmpty,
    PartitionState,
    ReassignmentsKeepCopies,
    OnlyDisksFailReplicas,
    SyncedStays,
    IsrMembersHoldCommitted,
    CommittedIsNotCut,
    KnownCommittedIsNotCut,
    OnlyLossesAreReported,
    OnlyCommittedIsRemoved,
    OnlyWhatHasOutlivedItsLimitsIsRemoved,
    CoresAreValid,
    EpochsGrow,
    OnlyTheRegisteredAct,
    LeaseEnds,
    SingleLeaderPerEpoch,
    EpochBehindSyncedTail,
    LeaderCompleteness,
    DerivedStateFollowsFromTheLog,
    MonotonicHighWatermark,
    NoCommitBelowMinIsr,
    LogMatching,
    OnlyLeadersCommit,
    CommittedIsHeldByIsr,
    NoAcknowledgedRecordLost,
    AckedIsCommitted,
    NoFalseAlarm,
    SyncedByAllStays,
    HeldByAllStays,
    FloorHolds,
    RefusedIsNotStored,
    ConsumersSeeOnlyCommitted,
    ConsumersSeeOneValue,
    ConsumersSeeTheNewest,
    MessageIdsAreStoredOnce,
    NoDuplicates,
    ProducerOrder,
    ReadonlyTakesNothing,
    OnlyCommittedIsDeleted,
    OneReaderPerPartition,
    OnlyHoldersCommit,
    CommittedOffsetsStay,
    DecidedOnce,
    MarkersSayWhatWasDecided,
    TransactionalAnswersHold,
    OnlyCommittedTransactionsAreRead,
    LastStableNeverGoesBack,
    TransactionsEndEverywhere,
    OffsetsMoveWithTransactions,
    FamiliesCommitWhole,
    InputsAreProcessedOnce,
    RepartitionsFinishWhenTold,
    AdoptionIsTrue,
    CutoversAreExact,
    KeysAreStoredInOrder,
    KeysAreGivenInOrder,
    CommittedIsNotGivenAgain,
    OnlyDeletedRecordsAreSkipped,
    NobodyWaitsForDeletedRecords,
    WhatIsSettledIsServedByNobody,
)
"""The first that falls is the one that is named."""


@dataclass(slots=True)
class _Seen:
    """Of a replica, in one life of its broker, when last looked at."""

    role: object = None
    high_watermark: int = -1
    has_led: bool = False
    """In this role."""
    end: int = -1
    """Its LEO."""
    start: int = -1
    """Of its log."""
    failure: str | None = None
    state: tuple[object, ...] = ()
    """See `_state_of`."""

    def takes(self, role: object) -> None:
        self.role, self.high_watermark, self.has_led = role, -1, False


def _state_of(replica: Replica) -> tuple[object, ...]:
    """All that invariants look at after a turn, but for what leaders believe. Where it is the same, they have looked at
    it before."""
    role, log, life = replica.role, replica._log, replica.machine
    of_role: tuple[object, ...] = ()
    if isinstance(role, LeaderDriver):
        of_role = role.ended, role.failed, role.core.high_watermark, role.core.isr
    elif isinstance(role, FollowerDriver):
        of_role = role.ended, role.failed, role.core.high_watermark, role.core.state
    elif role is not None:
        of_role = role.ended, role.failed
    of_log = () if log is None else (log.log_end_offset, log.durable_end, log.log_start_offset)
    return role, log, life.view, life.health, life.step, life.acting, *of_role, *of_log


class Invariants:
    """One method for each event that an invariant can look at."""

    def __init__(self, world: World, raft: RaftGroup, brokers: dict[str, SimBroker]) -> None:
        self.world = world
        self.raft = raft
        self.brokers = brokers
        self.history = CommittedHistory(world)
        scene = Scene(world, raft, brokers, self.history)
        self._all = tuple(invariant(scene) for invariant in INVARIANTS)
        self.committed_reading = next(one for one in self._all if isinstance(one, CommittedIsNotGivenAgain))
        self._on_commit = self._that_override("on_commit")
        self._on_partition = self._that_override("on_partition")
        self._on_report = self._that_override("on_report")
        self._on_failure = self._that_override("on_failure")
        self._on_open = self._that_override("on_open")
        self._on_cut = self._that_override("on_cut")
        self._on_log_start = self._that_override("on_log_start")
        self._on_log = self._that_override("on_log")
        self._on_wipe = self._that_override("on_wipe")
        self._on_left = self._that_override("on_left")
        self._on_role = self._that_override("on_role")
        self._on_leading = self._that_override("on_leading")
        self._on_lead = self._that_override("on_lead")
        self._on_high_watermark = self._that_override("on_high_watermark")
        self._on_covered = self._that_override("on_covered")
        self._on_committed = self._that_override("on_committed")
        self._on_acked = self._that_override("on_acked")
        self._on_refused = self._that_override("on_refused")
        self._on_alarm = self._that_override("on_alarm")
        self._on_consumed = self._that_override("on_consumed")
        self._at_the_end = self._that_override("at_the_end")
        self._on_numbered = self._that_override("on_numbered")
        self._on_readers = self._that_override("on_readers")
        self._on_offset_committed = self._that_override("on_offset_committed")
        self._on_offset_told = self._that_override("on_offset_told")
        self._on_key_given = self._that_override("on_key_given")
        self._on_given = self._that_override("on_given")
        self._on_read_to = self._that_override("on_read_to")
        self._on_waiting = self._that_override("on_waiting")
        self._on_adoption_told = self._that_override("on_adoption_told")
        self._on_key_acked = self._that_override("on_key_acked")
        self._on_transaction_told = self._that_override("on_transaction_told")
        self._on_transactional_offset = self._that_override("on_transactional_offset")
        self._on_transactional_offset_told = self._that_override("on_transactional_offset_told")
        self._on_processed = self._that_override("on_processed")
        self._on_batch = self._that_override("on_batch")
        self._seen: dict[tuple[str, int, PartitionKey], _Seen] = {}
        self._leaders: dict[tuple[str, int, PartitionKey], Replica] = {}
        self._acked_ends: dict[tuple[str, int, int], int] = {}

    def _that_override(self, hook: str) -> tuple[Invariant, ...]:
        nothing = getattr(Invariant, hook)
        return tuple(invariant for invariant in self._all if getattr(type(invariant), hook) is not nothing)

    # ---- the metadata group

    def committing(self, command: bytes) -> Callable[[Outcome], None]:
        """A command is about to be applied; the returned function is called with its outcome."""
        truth = self.raft.truth
        message = pb.Command.FromString(command)
        epoch = truth.controller_epoch
        before = dict(truth.partitions())
        alive = sum(broker.alive for broker in truth.brokers.values())
        return lambda outcome: self._committed(Commit(message, epoch, before, alive, outcome))

    def _committed(self, commit: Commit) -> None:
        for invariant in self._on_commit:
            invariant.on_commit(commit)
        for key in commit.outcome.changes.gone:
            self._acked_ends.pop((key.stream, key.stream_incarnation, key.partition), None)
        for key in commit.outcome.changes.partitions:
            partition = self.raft.truth.partition(key)
            if partition is None:
                continue
            for invariant in self._on_partition:
                invariant.on_partition(key, commit.before.get(key), partition)
            if self.world.is_traced:
                self.world.say(
                    f"metadata: {key} leader {partition.leader} ISR {','.join(partition.isr)}"
                    f" eligible {','.join(partition.eligible) or '-'} epoch {partition.epoch}"
                    f" LeaderEpoch {partition.leader_epoch}"
                )

    def reported(self, report: LeaderReport) -> None:
        """A follower's word to the controller."""
        for invariant in self._on_report:
            invariant.on_report(report)

    # ---- a broker's turn

    def after_turn(self, broker: SimBroker) -> None:
        if broker.broker is None:
            return
        for key in broker.broker._leaving:
            seen = self._seen.get((broker.id, broker.lives, key))
            if seen is not None and seen.end != -1:
                seen.end = seen.start = -1
                for invariant in self._on_left:
                    invariant.on_left(broker, key)
        with broker.disk.as_written():
            for replica in tuple(broker.broker._replicas.values()):
                self._look(broker, replica)
            self._look_at_deposed(broker, broker.broker._replicas)

    def _look_at_deposed(self, broker: SimBroker, kept: Mapping[PartitionKey, Replica]) -> None:
        """Leaders of a stream whose deletion was heard: until they end they may commit, and say so."""
        for place in [place for place in self._leaders if place[:2] == (broker.id, broker.lives)]:
            if place[2] in kept:
                continue
            replica = self._leaders[place]
            role = replica.role
            if isinstance(role, LeaderDriver) and replica._log is not None:
                self._led_to(broker, replica, self._seen[place], role.core.high_watermark)
            if role is None or role.ended:
                del self._leaders[place]

    def _look(self, broker: SimBroker, replica: Replica) -> None:
        place = (broker.id, broker.lives, replica.key)
        seen = self._seen.get(place)
        if seen is None:
            seen = self._seen[place] = _Seen()
        role = replica.role
        log = replica._log
        state = _state_of(replica)
        if state == seen.state:
            if isinstance(role, LeaderDriver) and seen.has_led and not role.ended:
                for invariant in self._on_leading:
                    invariant.on_leading(broker, role)
            return
        seen.state = state
        replica.machine.validate()
        if replica.failure is not None and replica.failure != seen.failure:
            for invariant in self._on_failure:
                invariant.on_failure(broker, replica)
            seen.failure = replica.failure
        if log is not None:
            self._look_at_log(broker, replica, log, seen)
        if role is None or role.ended or log is None or role.failed is not None:
            if role is not seen.role:
                seen.takes(role)
            elif isinstance(role, LeaderDriver) and log is not None and seen.has_led:
                # It fell in the turn in which it committed, and said so.
                self._led_to(broker, replica, seen, role.core.high_watermark)
            return
        if role is not seen.role:
            seen.takes(role)
            for invariant in self._on_role:
                invariant.on_role(broker, replica)
        if isinstance(role, LeaderDriver):
            core = role.core
            for invariant in self._on_leading:
                invariant.on_leading(broker, role)
            if not seen.has_led:
                seen.has_led = True
                for invariant in self._on_lead:
                    invariant.on_lead(broker, replica, role)
            self._leaders[place] = replica
            self._led_to(broker, replica, seen, core.high_watermark)
        elif isinstance(role, FollowerDriver) and role.core.high_watermark != seen.high_watermark:
            self._moved(Move(broker, replica, seen.high_watermark, role.core.high_watermark, leads=False))
            seen.high_watermark = role.core.high_watermark

    def _look_at_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, seen: _Seen) -> None:
        end = log.log_end_offset
        if seen.end == -1:
            for invariant in self._on_open:
                invariant.on_open(broker, replica, end)
        elif end < seen.end:
            for invariant in self._on_cut:
                invariant.on_cut(broker, replica, seen.end, end)
        start = log.log_start_offset
        if 0 <= seen.start < start:
            self.history.removed(replica.key, start)
            if start <= seen.end:  # or else it was dropped
                for invariant in self._on_log_start:
                    invariant.on_log_start(broker, replica, seen.start, start)
        seen.end, seen.start = end, start
        for invariant in self._on_log:
            invariant.on_log(broker, replica, log, end)

    def _led_to(self, broker: SimBroker, replica: Replica, seen: _Seen, high_watermark: int) -> None:
        if high_watermark != seen.high_watermark:
            if self.world.is_traced:
                self.world.say(f"{broker.id} commits {replica.key} up to {high_watermark}")
            self._moved(Move(broker, replica, seen.high_watermark, high_watermark, leads=True))
            seen.high_watermark = high_watermark

    def _moved(self, move: Move) -> None:
        for invariant in self._on_high_watermark:
            invariant.on_high_watermark(move)
        if move.leads or move.end > move.start:
            history = self.history.history(move.replica.key)
            for base, data in batches_of(move.replica, move.start, move.end):
                for invariant in self._on_covered:
                    invariant.on_covered(move, history, base, data)
                if base not in history.at:
                    history.add(base, data, move.broker.id)
        if move.commits:
            for invariant in self._on_committed:
                invariant.on_committed(move)

    def wiped(self, broker: SimBroker) -> None:
        """Its disk is another, empty one."""
        for invariant in self._on_wipe:
            invariant.on_wipe(broker)

    def deleted_end(self, key: PartitionKey) -> int:
        """Offset below which records of the partition are deleted, or are so on some broker."""
        partition, history = self.raft.truth.partition(key), self.history.of.get(key)
        return max(
            partition.purged_end if partition is not None else 0, history.removed_to if history is not None else 0
        )

    def has_zombie(self, stream: str, partition: int) -> bool:
        """A broker believes that it leads, and another was elected."""
        for broker in self.brokers.values():
            for replica in broker.broker._replicas.values() if broker.broker is not None else ():
                key = replica.key
                truth = self.raft.truth.partition(key)
                role = replica.role
                if (
                    (key.stream, key.partition) == (stream, partition)
                    and isinstance(role, LeaderDriver)
                    and (truth is None or role.leader_epoch != truth.leader_epoch)
                ):
                    return True
        return False

    # ---- clients

    def alarmed(self, who: str, what: str) -> None:
        for invariant in self._on_alarm:
            invariant.on_alarm(who, what)

    def acked(self, ack: Acknowledged, *, promised: bool) -> None:
        """`promised`: as acks=all, which must survive."""
        if promised:
            named = ack.stream, ack.stream_incarnation, ack.partition
            self._acked_ends[named] = max(self._acked_ends.get(named, 0), ack.offset + 1)
        for invariant in self._on_acked:
            invariant.on_acked(ack, promised=promised)

    def refused(self, stream: str, partition: int, value: bytes) -> None:
        for invariant in self._on_refused:
            invariant.on_refused(stream, partition, value)

    @property
    def losses(self) -> int:
        """How often a disk has lost anything."""
        return sum(broker.disk.losses for broker in self.brokers.values())

    def acked_end(self, stream: str, incarnation: int, partition: int) -> int:
        """End of the records that were acknowledged to a client with acks=all."""
        return self._acked_ends.get((stream, incarnation, partition), 0)

    def consumed(self, who: str, stream: str, incarnation: int, batch: RecordBatch, partition: int) -> None:
        known = self.history.named(stream, incarnation, partition)
        history = known[1] if known is not None else None
        for invariant in self._on_consumed:
            invariant.on_consumed(who, f"{stream}/{partition}", history, batch)

    # ---- members of groups

    def readers(self, readers: Mapping[StreamPartition, Sequence[str]]) -> None:
        for invariant in self._on_readers:
            invariant.on_readers(readers)

    def offset_committed(self, commit: OffsetCommit) -> None:
        for invariant in self._on_offset_committed:
            invariant.on_offset_committed(commit)

    def offset_told(self, of: StreamPartition, offset: int, floor: int) -> None:
        for invariant in self._on_offset_told:
            invariant.on_offset_told(of, offset, floor)

    def key_given(self, who: str, where: str, key: bytes, value: bytes, *, is_settled: bool) -> None:
        for invariant in self._on_key_given:
            invariant.on_key_given(who, where, key, value, is_settled=is_settled)

    def given(self, given: Given) -> None:
        for invariant in self._on_given:
            invariant.on_given(given)

    def read_to(self, key: PartitionKey, offset: int) -> None:
        for invariant in self._on_read_to:
            invariant.on_read_to(key, offset)

    def waiting(self, who: str, of: StreamPartition, sources: Mapping[StreamPartition, int]) -> None:
        for invariant in self._on_waiting:
            invariant.on_waiting(who, of, sources)

    def adoption_told(self, who: str, stream: str, generation: int, version: int) -> None:
        for invariant in self._on_adoption_told:
            invariant.on_adoption_told(who, stream, generation, version)

    def key_acked(self, value: bytes, sent_at: float) -> None:
        for invariant in self._on_key_acked:
            invariant.on_key_acked(value, sent_at)

    # ---- transactions

    def transaction_told(self, told: Ended) -> None:
        for invariant in self._on_transaction_told:
            invariant.on_transaction_told(told)

    def transactional_offset(self, sent: OffsetInTransaction) -> None:
        for invariant in self._on_transactional_offset:
            invariant.on_transactional_offset(sent)

    def transactional_offset_told(self, group: str, of: StreamPartition, offset: int, floor: int) -> None:
        for invariant in self._on_transactional_offset_told:
            invariant.on_transactional_offset_told(group, of, offset, floor)

    def processed(self, incarnation: int, partition: int, end: int) -> None:
        for invariant in self._on_processed:
            invariant.on_processed(incarnation, partition, end)

    def batch(self, sequence: int, values: tuple[bytes, ...], *, is_committed: bool) -> None:
        for invariant in self._on_batch:
            invariant.on_batch(sequence, values, is_committed=is_committed)

    # ---- the end

    def at_the_end(self) -> None:
        """Every acknowledged record is in the history; producers' records are there once, in order."""
        records = self.records()
        for invariant in self._at_the_end:
            invariant.at_the_end(records)
        for (stream, _, partition), values in records.items():
            if not is_reserved(stream):
                purged_end = self.raft.truth.streams[StreamName(stream)].partitions[partition].purged_end
                self._look_at_order(f"{stream}/{partition}", values, purged_end)

    def records(self) -> dict[tuple[str, int, int], list[bytes]]:
        """(stream, incarnation, partition) -> the committed values, of streams that exist."""
        out: dict[tuple[str, int, int], list[bytes]] = {}
        for key, history in self.history.of.items():
            if self.raft.truth.partition(key) is None:
                continue
            values: list[bytes] = []
            for _, data in history.batches:
                batch = RecordBatch.decode(data)
                for offset, value in zip(batch.offsets.tolist(), batch.values, strict=True):
                    values += [b""] * (offset - len(values))  # of records that were not stored again
                    values.append(value or b"")
                values += [b""] * (batch.header.end_offset - len(values))
            out[key.stream, key.stream_incarnation, key.partition] = values
        return out

    def _look_at_order(self, where: str, values: list[bytes], purged_end: int) -> None:
        """A record that was deleted may be stored anew when it is sent again under its message id (R45), and deleted
        once more."""
        last: dict[bytes, int] = {}
        first: dict[bytes, int] = {}
        for offset, value in enumerate(values):
            if first.setdefault(value, offset) < min(offset, purged_end):
                continue
            if not value:
                continue  # a tombstone
            name, number, *_ = value.split(b":")
            if not name.startswith(b"i"):
                continue  # only idempotent producers promise it
            record = Numbered(where, offset, value, number=int(number), before=last.get(name, -1))
            for invariant in self._on_numbered:
                invariant.on_numbered(record)
            last[name] = record.number
