"""What must always hold, each a class of its own, checked as it can change: after the turn of a broker in which its HW
or its role moved, at every commit of the metadata group, at every acknowledgement, at every record that a consumer
gets, and once more at the end.

The oracle is `CommittedHistory`: the batches that some leader's high watermark has covered. Whatever is in it stays, at
its offset, byte for byte, for ever and for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.broker.following import Following
from dataplane.broker.leading import Leading
from dataplane.broker.replica import Replica
from dataplane.log.partition_log import PartitionLog
from dataplane.replica.follower import Truncating
from metadata.state import key_of
from tests.simulation.broker import SimBroker
from tests.simulation.world import World
from wire import metadata_pb2 as pb
from wire.batch import RecordBatch, iter_batches
from wire.errors import InvariantViolation
from wire.types import Durability, LeaderEpoch, LeaderReport, Offset, PartitionEpoch, PartitionKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from metadata.model import Outcome, Partition
    from tests.simulation.raft import RaftGroup

ALL = 1 << 60
LEASE_SLACK = 0.5
"""Seconds: probes on their way when a leader was deposed, and clocks that differ."""


@dataclass(slots=True)
class _History:
    end: int = 0
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """(base offset, bytes), ascending."""
    at: dict[int, bytes] = field(default_factory=dict)
    told_by: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a client was told."""

    stream: str
    stream_incarnation: int
    partition: int
    offset: int
    value: bytes
    by: str


class CommittedHistory:
    """NoTwoValuesAtOneOffset, LogMatching: what is below any HW is the same everywhere."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.of: dict[PartitionKey, _History] = {}
        self.batches = 0

    def history(self, key: PartitionKey) -> _History:
        return self.of.setdefault(key, _History())

    def covered(self, broker: SimBroker, replica: Replica, start: int, end: int, *, leads: bool) -> None:
        """That replica's HW has come to `end`; what lies in [start, end) is committed."""
        key = replica.key
        history = self.history(key)
        for base, data in batches_of(replica, start, end):
            known = history.at.get(base)
            if known is None:
                if base < history.end:
                    self.world.broken(
                        "LogMatching",
                        f"{key} on {broker.id} has a batch at {base}, inside what was committed otherwise",
                    )
                if not leads and base >= history.end:
                    self.world.broken(
                        "OnlyLeadersCommit",
                        f"{key}: follower {broker.id} holds HW {end}, the committed log ends at {history.end}",
                    )
                history.at[base] = data
                history.batches.append((base, data))
                history.end = next(header.end_offset for _, header in iter_batches(data))
                history.told_by[base] = broker.id
                self.batches += 1
            elif known != data:
                self.world.broken(
                    "LogMatching",
                    f"{key} at offset {base}: {broker.id} has another batch than {history.told_by[base]} had committed"
                    f" (epochs {_epoch(data)} and {_epoch(known)})",
                )

    def check_prefix(self, broker: SimBroker, replica: Replica, invariant: str, why: str) -> None:
        """That replica holds all that is committed."""
        history = self.history(replica.key)
        if replica.log_end_offset < history.end:
            self.world.broken(
                invariant,
                f"{replica.key} on {broker.id} ends at {replica.log_end_offset}, committed is {history.end} ({why})",
            )
        held = dict(batches_of(replica, 0, history.end))
        for base, data in history.batches:
            if held.get(base) != data:
                self.world.broken(
                    invariant, f"{replica.key} on {broker.id} lacks the committed batch at {base} ({why})"
                )


def _epoch(data: bytes) -> int:
    return next(header.leader_epoch for _, header in iter_batches(data))


def batches_of(replica: Replica, start: int, end: int) -> list[tuple[int, bytes]]:
    log = replica._log
    if log is None or end <= start:
        return []
    out: list[tuple[int, bytes]] = []
    at = max(start, log.log_start_offset)
    while at < end:
        parts = log.read(Offset(at), max_bytes=ALL, end_offset=Offset(end))
        data = (
            b"".join(parts)
            if parts is not None
            else log.read_from_disk(Offset(at), max_bytes=1 << 20, end_offset=Offset(end))
        )
        if not data:
            break
        for position, header in iter_batches(data):
            out.append((header.base_offset, data[position : position + header.size]))
            at = header.end_offset
    return out


def _value_at(replica: Replica, offset: int) -> bytes | None:
    for base, data in batches_of(replica, offset, offset + 1):
        return RecordBatch.decode(data).values[offset - base]
    return None


@dataclass(slots=True)
class _Seen:
    role: object = None
    high_watermark: int = -1
    complete: bool = False
    end: int = -1
    """Its LEO."""
    failure: str | None = None


class Invariants:
    """All of them together."""

    def __init__(self, world: World, raft: RaftGroup, brokers: dict[str, SimBroker]) -> None:
        self.world = world
        self.raft = raft
        self.brokers = brokers
        self.history = CommittedHistory(world)
        self.acknowledged: list[Acknowledged] = []
        self.leaders: dict[tuple[PartitionKey, LeaderEpoch], tuple[str, int]] = {}
        self.epochs: dict[PartitionKey, tuple[PartitionEpoch, LeaderEpoch]] = {}
        self._seen: dict[tuple[str, int, PartitionKey], _Seen] = {}
        self._joined_blind: dict[tuple[str, int, PartitionKey], int] = {}
        """Who joined an ISR with its log not open yet -> what was committed then."""
        self._durable: dict[tuple[str, PartitionKey], int] = {}
        """What a replica of a `durable` stream said to be on its disk."""
        self._found: dict[tuple[str, str], int] = {}
        """(broker, file) -> where the last batch looked for was found on the disk."""
        self.deposed: dict[tuple[PartitionKey, LeaderEpoch], float] = {}
        """When a LeaderEpoch was over, in truth."""
        self._reports: dict[tuple[PartitionKey, LeaderEpoch], set[str]] = {}
        self._acked_by_leader: list[tuple[Acknowledged, PartitionKey, LeaderEpoch]] = []

    # ---- the metadata group

    def committing(self, command: bytes) -> Callable[[Outcome], None]:
        """A command is about to be applied; what is returned is to be called with its outcome."""
        truth = self.raft.truth
        message = pb.Command.FromString(command)
        office = truth.office
        before = dict(truth.partitions())
        alive = sum(broker.alive for broker in truth.brokers.values())
        return lambda outcome: self._committed(message, office, before, alive, outcome)

    def _committed(
        self, message: pb.Command, office: int, before: dict[PartitionKey, Partition], alive: int, outcome: Outcome
    ) -> None:
        body = getattr(message, message.WhichOneof("body") or "", None)
        if outcome.changes and getattr(body, "office", office) != office:
            self.world.broken("OneOffice", f"a decision of office {body.office} took effect in office {office}")  # type: ignore[union-attr]
        if outcome.changes and message.WhichOneof("body") == "alter_isr":
            for item, code in zip(message.alter_isr.items, outcome.items, strict=False):
                old = before.get(key_of(item.partition))
                if code is None and old is not None and old.epoch != item.expected_epoch:
                    self.world.broken("CompareAndSet", f"{key_of(item.partition)}: {item} took effect on {old}")
        if outcome.changes and message.WhichOneof("body") == "elect_leaders":
            for election, code in zip(message.elect_leaders.items, outcome.items, strict=False):
                if code is None and not election.planned:
                    self._check_elected(key_of(election.partition), before)
        if outcome.changes and message.WhichOneof("body") == "brokers_dead":
            self._check_buried([life.broker for life in message.brokers_dead.brokers], alive)
        self._check_partitions(before, outcome)

    def _check_buried(self, dead: list[str], alive: int) -> None:
        """NoMassDeath: most brokers do not die at once; whoever sees that has lost its own sight."""
        living = [
            name
            for name in dead
            if (process := self.brokers[name].process) is not None
            and not process.paused
            and self._has_begun(self.brokers[name])
            and self.raft.reaches(self.brokers[name].raft_address)
        ]
        if 2 * len(living) > alive:
            self.world.broken("NoMassDeath", f"{', '.join(living)} are called dead in one command, and live")

    def reported(self, report: LeaderReport) -> None:
        """A follower's word to the controller."""
        self._reports.setdefault((report.key, report.leader_epoch), set()).add(report.replica)

    def _check_elected(self, key: PartitionKey, olds: dict[PartitionKey, Partition]) -> None:
        """ElectionsHaveCause: a leader that lives falls by the word of most of its ISR, in its own LeaderEpoch."""
        old = olds.get(key)
        if old is None or old.leader is None or self.raft.is_late:
            return
        witnesses = self._reports.get((key, old.leader_epoch), set())
        leader = self.brokers[old.leader]
        is_there = leader.process is not None and not leader.process.paused and leader.is_reachable
        is_there = is_there and self._has_begun(leader)
        if self.raft.is_behind(leader.raft_address):
            return  # by its own word, in its answers to probes
        needed = (len(old.isr) - 1) // 2 + 1 if is_there else 1
        if len(witnesses) < needed:
            self.world.broken(
                "ElectionsHaveCause",
                f"{key}: {old.leader} lost LeaderEpoch {old.leader_epoch} by the word of"
                f" {', '.join(sorted(witnesses)) or 'nobody'}; its ISR is {','.join(old.isr)}",
            )

    def _check_joined(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        """IsrMembersHoldCommitted: who enters the ISR holds all that is committed."""
        for member in new.isr:
            if old is None or member in old.isr or member in old.eligible:
                continue
            broker = self.brokers[member]
            replica = broker.broker._replicas.get(key) if broker.broker is not None else None
            end = self.history.history(key).end
            if replica is None or replica._log is None:
                self._joined_blind[member, broker.lives, key] = end
                continue
            if replica.log_end_offset < end:
                self.world.broken(
                    "IsrMembersHoldCommitted",
                    f"{key}: {member} entered the ISR {','.join(new.isr)} with LEO {replica.log_end_offset},"
                    f" committed is {end}",
                )

    def _check_partitions(self, olds: dict[PartitionKey, Partition], outcome: Outcome) -> None:
        """IsrNeverEmpty and what else a partition promises; epochs only grow."""
        truth = self.raft.truth
        for key in outcome.changes.partitions:
            partition = truth.partition(key)
            if partition is None:
                continue
            try:
                partition.check(truth.streams[key.stream].min_isr)
            except InvariantViolation as error:
                self.world.broken("IsrNeverEmpty" if not partition.isr else "PartitionState", str(error))
            self._check_joined(key, olds.get(key), partition)
            before = self.epochs.get(key, (0, 0))
            if partition.epoch <= before[0] or partition.leader_epoch < before[1]:
                self.world.broken("EpochsGrow", f"{key} went from {before} to {partition}")
            if partition.leader_epoch > before[1]:
                self.deposed[key, LeaderEpoch(before[1])] = self.world.now
            self.epochs[key] = (partition.epoch, partition.leader_epoch)
            if self.world.tells:
                self.world.say(
                    f"metadata: {key} leader {partition.leader} ISR {','.join(partition.isr)}"
                    f" eligible {','.join(partition.eligible) or '-'} epoch {partition.epoch}"
                    f" LeaderEpoch {partition.leader_epoch}"
                )

    # ---- a broker's turn

    def after_turn(self, broker: SimBroker) -> None:
        if broker.broker is None:
            return
        for replica in tuple(broker.broker._replicas.values()):
            self._look(broker, replica)

    def _look(self, broker: SimBroker, replica: Replica) -> None:
        key = (broker.id, broker.lives, replica.key)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen()
        role = replica.role
        if replica.failure is not None and replica.failure != seen.failure:
            self._check_failure(broker, replica)
            seen.failure = replica.failure
        if replica._log is not None:
            self._check_log(broker, replica, replica._log, seen)
        if role is None or role.ended or replica._log is None or role.failed is not None:
            if role is not seen.role:
                seen.role, seen.high_watermark, seen.complete = role, -1, False
            return
        if role is not seen.role:
            seen.role, seen.high_watermark, seen.complete = role, -1, False
            self._check_registered(broker, replica)
        if isinstance(role, Leading):
            core = role.core
            self._check_lease(broker, role)
            if core is None:
                return
            if not seen.complete:
                seen.complete = True
                self._took_the_lead(broker, replica, role)
            if core.high_watermark != seen.high_watermark:
                self._moved(broker, replica, seen, core.high_watermark, leads=True)
        elif isinstance(role, Following) and role.core.high_watermark != seen.high_watermark:
            self._moved(broker, replica, seen, role.core.high_watermark, leads=False)

    def _check_failure(self, broker: SimBroker, replica: Replica) -> None:
        """OnlyDisksFailReplicas: a replica gives up because of its disk, and for no reason of our own making."""
        # On an `accepted` stream the HW may be on the disk, and what it covers not.
        durable = replica.view is not None and replica.view.config.durability is Durability.DURABLE
        if durable and not broker.disk.has_failed:
            self.world.broken("OnlyDisksFailReplicas", f"{replica.key} on {broker.id}: {replica.failure}")

    def _check_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, seen: _Seen) -> None:
        key = replica.key
        end = log.log_end_offset
        truth = self.raft.truth.partition(key)
        counts = truth is not None and broker.id in (*truth.isr, *truth.eligible) and not truth.is_withdrawn(broker.id)
        counts = counts and replica.failure is None
        promised = self._durable.get((broker.id, key), 0)
        if seen.end == -1:
            # SyncedStays: as it was opened. A replica that says that it is damaged may end before.
            if end < promised and replica.failure is None:
                self.world.broken(
                    "SyncedStays", f"{key} on {broker.id} opens with LEO {end}, up to {promised} was said to be synced"
                )
            blind = self._joined_blind.pop((broker.id, broker.lives, key), 0)
            if end < blind and counts and truth is not None and broker.id in truth.isr:
                self.world.broken(
                    "IsrMembersHoldCommitted",
                    f"{key}: {broker.id} joined the ISR with LEO {end}, committed was {blind}",
                )
        elif end < seen.end:
            # CommittedIsNotCut: nobody on whom others count gives up what is committed.
            committed = self.history.history(key).end
            if end < min(committed, seen.end) and counts:
                self.world.broken(
                    "CommittedIsNotCut",
                    f"{key}: {broker.id} cut its log from {seen.end} to {end}, committed is {committed}, and it is in"
                    f" ISR {','.join(truth.isr) if truth else ''} or eligible",
                )
        seen.end = end
        if isinstance(replica.role, Following) and isinstance(replica.role.core.state, Truncating):
            promised = 0  # how far it is being cut is not to be seen from outside
        elif replica.view is not None and replica.view.config.durability is Durability.DURABLE:
            promised = max(min(promised, end), log.durable_end)
        self._durable[broker.id, key] = promised

    def wiped(self, broker: SimBroker) -> None:
        """Its disk is another, empty one."""
        for place in [place for place in self._durable if place[0] == broker.id]:
            del self._durable[place]

    def _check_registered(self, broker: SimBroker, replica: Replica) -> None:
        """OnlyTheRegisteredAct: no role begins before the registration of this life is applied."""
        known = self.raft.truth.brokers.get(broker.id)
        if known is None or known.life_id != f"{broker.id}-{broker.lives}":
            self.world.broken(
                "OnlyTheRegisteredAct", f"{replica.key}: {broker.id} acts in life {broker.lives}, registered is {known}"
            )

    def _check_lease(self, broker: SimBroker, role: Leading) -> None:
        """LeaseEnds: some time after another was elected, a leader that does not know does know that much."""
        deposed_at = self.deposed.get((role.view.key, role.leader_epoch))
        if deposed_at is None or broker.process is None or broker.metadata is None:
            return
        late = self.world.now - deposed_at - broker.metadata_settings.leader_lease_s - LEASE_SLACK
        if late > 0 and broker.metadata.lease_valid(broker.process.time()):
            self.world.broken(
                "LeaseEnds",
                f"{role.view.key}: {broker.id} believes in its lease of LeaderEpoch {role.leader_epoch},"
                f" {self.world.now - deposed_at:.2f} s after that was over",
            )

    def _took_the_lead(self, broker: SimBroker, replica: Replica, role: Leading) -> None:
        """SingleLeaderPerEpoch, and LeaderCompleteness: who leads holds all that was ever committed."""
        epoch = role.leader_epoch
        life = (broker.id, broker.lives)
        known = self.leaders.setdefault((replica.key, epoch), life)
        if known != life:
            self.world.broken("SingleLeaderPerEpoch", f"{replica.key} epoch {epoch}: {known} and {life}")
        assert role.core is not None
        if role.log.durable_end < role.core.epoch_start:
            self.world.broken(
                "EpochBehindSyncedTail",
                f"{replica.key} on {broker.id}: LeaderEpoch {epoch} begins at {role.core.epoch_start},"
                f" the log is synced up to {role.log.durable_end}",
            )
        truth = self.raft.truth.partition(replica.key)
        if truth is not None and truth.leader_epoch == epoch:
            self.history.check_prefix(broker, replica, "LeaderCompleteness", f"leads LeaderEpoch {epoch}")

    def _moved(self, broker: SimBroker, replica: Replica, seen: _Seen, end: int, *, leads: bool) -> None:
        before = seen.high_watermark
        if end < before and leads:
            self.world.broken(
                "MonotonicHighWatermark", f"{replica.key} on leader {broker.id} went from {before} to {end}"
            )
        if leads and before >= 0:
            view = replica.role.view if replica.role is not None else None
            if view is not None and len(view.isr) < view.config.min_isr:
                self.world.broken(
                    "NoCommitBelowMinIsr",
                    f"{replica.key}: {broker.id} moved the HW from {before} to {end} with ISR {','.join(view.isr)}",
                )
        start = max(before, 0)
        if leads or end > start:
            self.history.covered(broker, replica, start, end, leads=leads and before >= 0)
        if leads and before >= 0:
            self._check_holders(broker, replica, start, end)
        seen.high_watermark = end

    def _check_holders(self, broker: SimBroker, replica: Replica, start: int, end: int) -> None:
        """CommittedIsHeldByIsr: at the moment of the commit every member of the ISR holds it, byte for byte, on its
        disk where that was promised."""
        role = replica.role
        truth = self.raft.truth.partition(replica.key)
        if truth is None or role is None or truth.leader_epoch != role.leader_epoch:
            return
        durable = role.view.config.durability.value == "durable"
        for member in truth.isr:
            other = self.brokers[member]
            if other.broker is None:
                continue
            held = other.broker._replicas.get(replica.key)
            if held is None:
                if any(view == replica.key for view in other.broker._replicas) or not self._has_begun(other):
                    continue
                self.world.broken(
                    "CommittedIsHeldByIsr",
                    f"{replica.key}: {broker.id} committed up to {end} in LeaderEpoch {role.leader_epoch},"
                    f" ISR member {member} has no replica",
                )
            if held._log is None or held.failure is not None:
                continue
            known = self.raft.truth.brokers.get(member)
            if not durable and (known is None or known.life_id != f"{other.id}-{other.lives}"):
                continue  # what it acknowledged before it lost its power counts, and others hold it
            has = held._log.durable_end if durable else held._log.log_end_offset
            if has < end:
                self.world.broken(
                    "CommittedIsHeldByIsr",
                    f"{replica.key}: {broker.id} committed up to {end} in LeaderEpoch {role.leader_epoch},"
                    f" ISR member {member} holds up to {has}",
                )
            for base, data in batches_of(held, start, end):
                if self.history.history(replica.key).at.get(base) != data:
                    self.world.broken(
                        "CommittedIsHeldByIsr",
                        f"{replica.key}: {broker.id} committed up to {end} in LeaderEpoch {role.leader_epoch},"
                        f" ISR member {member} holds something else at {base}",
                    )
                if durable and not self._is_on_disk(other, held._log, base, data):
                    self.world.broken(
                        "CommittedIsHeldByIsr",
                        f"{replica.key}: {broker.id} committed up to {end} in LeaderEpoch {role.leader_epoch},"
                        f" ISR member {member} says that it synced offset {base}, and it is not on its disk",
                    )

    def _has_begun(self, broker: SimBroker) -> bool:
        """It opened its logs in this life, and knows of some registration of it."""
        known = self.raft.truth.brokers.get(broker.id)
        return known is not None and known.life_id == f"{broker.id}-{broker.lives}"

    def _is_on_disk(self, broker: SimBroker, log: PartitionLog, base: int, data: bytes) -> bool:
        segment = next(segment for segment in reversed(log._segments) if segment.base_offset <= base)
        place = broker.id, str(segment.path)
        content = broker.disk.synced(segment.path)
        at = content.find(data, self._found.get(place, 0))
        if at < 0:
            at = content.find(data)
        self._found[place] = max(at, 0)
        return at >= 0

    # ---- clients

    def acked(self, ack: Acknowledged, *, promised: bool) -> None:
        """`promised`: as acks=all, which must survive. AckedIsCommitted: nothing is acknowledged before."""
        if not promised:
            key = self._key(ack.stream, ack.stream_incarnation, ack.partition)
            truth = self.raft.truth.partition(key) if key is not None else None
            if key is not None and truth is not None and truth.leader is not None:
                broker = self.brokers[truth.leader].broker
                replica = broker._replicas.get(key) if broker is not None else None
                # An answer may come late, in a LeaderEpoch that has cut what it tells of.
                if replica is not None and _value_at(replica, ack.offset) == ack.value:
                    self._acked_by_leader.append((ack, key, truth.leader_epoch))
            return
        self.acknowledged.append(ack)
        for key, history in self.history.of.items():
            if (key.stream, key.stream_incarnation, key.partition) == (
                ack.stream,
                ack.stream_incarnation,
                ack.partition,
            ):
                if ack.offset >= history.end:
                    self.world.broken(
                        "AckedIsCommitted", f"{ack.by}: offset {ack.offset} of {key}, committed is {history.end}"
                    )
                return
        self.world.broken("AckedIsCommitted", f"{ack} of a partition that has committed nothing")

    def consumed(self, who: str, stream: str, incarnation: int, batch: RecordBatch, partition: int) -> None:
        """ConsumersSeeOnlyCommitted, and the same value at one offset as everybody."""
        for key, history in self.history.of.items():
            if (key.stream, key.stream_incarnation, key.partition) != (stream, incarnation, partition):
                continue
            base = batch.header.base_offset
            known = history.at.get(base)
            if known is None or batch.header.end_offset > history.end:
                self.world.broken(
                    "ConsumersSeeOnlyCommitted", f"{who} got {key} offset {base}, committed is {history.end}"
                )
            committed = RecordBatch.decode(known)
            first = int(batch.offsets[0]) - base if len(batch.offsets) else 0
            if committed.values[first : first + len(batch.values)] != batch.values:
                self.world.broken("ConsumersSeeOneValue", f"{who} got another value at {key} offset {base}")
            return
        self.world.broken("ConsumersSeeOnlyCommitted", f"{who} got {stream}/{partition}, which committed nothing")

    def _key(self, stream: str, incarnation: int, partition: int) -> PartitionKey | None:
        return next(
            (
                key
                for key, _ in self.raft.truth.partitions()
                if (key.stream, key.stream_incarnation, key.partition) == (stream, incarnation, partition)
            ),
            None,
        )

    def acked_end(self, stream: str, incarnation: int, partition: int) -> int:
        """What a client was told, with acks=all, to be stored: its end."""
        return max(
            (
                ack.offset + 1
                for ack in self.acknowledged
                if (ack.stream, ack.stream_incarnation, ack.partition) == (stream, incarnation, partition)
            ),
            default=0,
        )

    def has_zombie(self, stream: str, partition: int) -> bool:
        """Somebody believes that it leads, and another was elected."""
        for broker in self.brokers.values():
            for replica in broker.broker._replicas.values() if broker.broker is not None else ():
                key = replica.key
                truth = self.raft.truth.partition(key)
                role = replica.role
                if (
                    (key.stream, key.partition) == (stream, partition)
                    and isinstance(role, Leading)
                    and (truth is None or role.leader_epoch != truth.leader_epoch)
                ):
                    return True
        return False

    # ---- the end

    def at_the_end(self) -> None:
        """All replicas hold the history; every acknowledged record is in it; producers' records are there once, in
        order."""
        records = self.records()
        for ack in self.acknowledged:
            found = records.get((ack.stream, ack.stream_incarnation, ack.partition))
            if found is None:
                continue  # the stream was deleted
            if ack.offset >= len(found) or found[ack.offset] != ack.value:
                there = found[ack.offset] if ack.offset < len(found) else None
                self.world.broken(
                    "NoAcknowledgedRecordLost", f"{ack.by}: {ack.value[:40]!r} at {ack}; there is {there!r:.60}"
                )
        for ack, key, leader_epoch in self._acked_by_leader:
            truth = self.raft.truth.partition(key)
            if truth is None or truth.leader_epoch != leader_epoch:
                continue  # acks=leader promises nothing beyond
            found = records.get((key.stream, key.stream_incarnation, key.partition), [])
            if ack.offset >= len(found) or found[ack.offset] != ack.value:
                self.world.broken(
                    "NoAcknowledgedRecordLost", f"{ack.by}: {ack.value[:40]!r} at {ack} in the same LeaderEpoch"
                )
        for (stream, _, partition), values in records.items():
            self._check_order(f"{stream}/{partition}", values)

    def records(self) -> dict[tuple[str, int, int], list[bytes]]:
        """(stream, incarnation, partition) -> the committed values, of streams that exist."""
        out: dict[tuple[str, int, int], list[bytes]] = {}
        for key, history in self.history.of.items():
            if self.raft.truth.partition(key) is None:
                continue
            values: list[bytes] = []
            for _, data in history.batches:
                values += [value or b"" for value in RecordBatch.decode(data).values]
            out[key.stream, key.stream_incarnation, key.partition] = values
        return out

    def _check_order(self, where: str, values: list[bytes]) -> None:
        last: dict[bytes, int] = {}
        for offset, value in enumerate(values):
            name, number, *_ = value.split(b":")
            if not name.startswith(b"i"):
                continue  # only idempotent producers promise it
            before = last.get(name, -1)
            if int(number) == before:
                self.world.broken("NoDuplicates", f"{where} offset {offset}: {value[:20]!r} twice")
            if int(number) < before:
                self.world.broken("ProducerOrder", f"{where} offset {offset}: {value[:20]!r} after number {before}")
            last[name] = int(number)
