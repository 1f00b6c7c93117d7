"""Promises to a publish that asked for a durability level of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.base import Acknowledged, Invariant, Move, Scene
from tests.simulation.invariants.history import may_be_compacted, value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dataplane.broker.replica import Replica
    from dataplane.log.partition_log import PartitionLog
    from metadata.cluster.model import Partition
    from tests.simulation.machines.broker import SimBroker
    from wire.types import BrokerId, PartitionKey


class _Look:
    """State that these invariants look at."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def partition_of(self, ack: Acknowledged) -> tuple[PartitionKey, Partition] | None:
        """None: the stream is gone."""
        named = ack.stream, ack.stream_incarnation, ack.partition
        return next(
            (
                (key, partition)
                for key, partition in self._scene.raft.truth.partitions()
                if (key.stream, key.stream_incarnation, key.partition) == named
            ),
            None,
        )

    def is_durable(self, key: PartitionKey) -> bool:
        return self._scene.raft.truth.streams[key.stream].durable

    def sound(self, key: PartitionKey, members: Iterable[BrokerId]) -> list[tuple[SimBroker, Replica, PartitionLog]]:
        """The replicas that serve, and that others count on."""
        found = []
        for member in members:
            broker = self._scene.brokers[member]
            replica = broker.broker._replicas.get(key) if broker.broker is not None else None
            if replica is None or replica._log is None or not self._scene.has_begun(broker):
                continue
            if self._scene.relied_on(broker, replica) is not None:
                found.append((broker, replica, replica._log))
        return found

    @property
    def losses(self) -> int:
        """How often a disk has lost anything."""
        return sum(broker.disk.losses for broker in self._scene.brokers.values())


class SyncedByAllStays(Invariant):
    """To publishes at `durable` on an `accepted` stream: each ISR member has it on its disk, from the
    acknowledgement on. So it survives a power loss of all of them.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._look = _Look(scene)
        self._last: dict[PartitionKey, Acknowledged] = {}

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        found = self._look.partition_of(ack)
        if not promised or found is None or ack.durability is None or not ack.durability.is_synced:
            return
        key, partition = found
        if self._look.is_durable(key):
            return
        known = self._last.get(key)
        if known is None or known.offset < ack.offset:
            self._last[key] = ack
        self._check(key, partition, ack)

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        if key in self._last:
            self._check(key, new, self._last[key])

    def _check(self, key: PartitionKey, partition: Partition, ack: Acknowledged) -> None:
        for broker, replica, log in self._look.sound(key, (*partition.isr, *partition.eligible)):
            if ack.offset < log.log_start_offset:
                continue  # removed for its age
            if log.durable_end <= ack.offset:
                self.broken(f"{ack.by}: {ack} was synced by all, {broker.id} has synced up to {log.durable_end}")
            if may_be_compacted(replica):
                continue  # a newer record of its key may have come
            with broker.disk.as_written():
                is_there = any(ack.value in broker.disk.synced(segment.path) for segment in log.segments)
            if not is_there:
                self.broken(f"{ack.by}: {ack} was synced by all and is not on the disk of {broker.id}")


class HeldByAllStays(Invariant):
    """To publishes at `accepted` on a `durable` stream: each ISR member holds it, from the acknowledgement on,
    and it is stored in the end, unless a disk lost something before the HW covered it.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._look = _Look(scene)
        self._kept: list[Acknowledged] = []
        self._uncovered: dict[PartitionKey, list[Acknowledged]] = {}

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        found = self._look.partition_of(ack)
        if found is None or ack.durability is None or ack.durability.is_synced:
            return
        key, partition = found
        if not self._look.is_durable(key):
            return
        self._forget_records_that_may_be_lost()
        if self.history.history(key).end > ack.offset:
            self._kept.append(ack)
        elif ack.losses == self._look.losses:
            self._uncovered.setdefault(key, []).append(ack)
            self._check(key, partition, ack)

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        self._forget_records_that_may_be_lost()
        for ack in self._uncovered.get(key, ())[-1:]:
            self._check(key, new, ack)

    def on_committed(self, move: Move) -> None:
        waiting = self._uncovered.get(move.replica.key)
        if waiting:
            self._forget_records_that_may_be_lost()
            waiting = self._uncovered.pop(move.replica.key, [])
            self._kept += [ack for ack in waiting if ack.offset < move.end]
            self._uncovered[move.replica.key] = [ack for ack in waiting if ack.offset >= move.end]

    def _forget_records_that_may_be_lost(self) -> None:
        now = self._look.losses
        for key, acks in self._uncovered.items():
            self._uncovered[key] = [ack for ack in acks if ack.losses == now]

    def _check(self, key: PartitionKey, partition: Partition, ack: Acknowledged) -> None:
        for broker, replica, log in self._look.sound(key, (*partition.isr, *partition.eligible)):
            with broker.disk.as_written():
                is_held = ack.offset < log.log_start_offset or value_at(replica, ack.offset) == ack.value
            if not is_held:
                self.broken(f"{ack.by}: {ack} was held by all, {broker.id} does not hold it (to {log.log_end_offset})")

    def at_the_end(self, records: Mapping[tuple[str, int, int], list[bytes]]) -> None:
        self._forget_records_that_may_be_lost()
        for ack in [*self._kept, *(ack for acks in self._uncovered.values() for ack in acks)]:
            found = records.get((ack.stream, ack.stream_incarnation, ack.partition))
            is_here = found is None or ack.is_in(found)
            if not is_here and not self.history.was_removed_with_its_partition(ack):
                self.broken(f"{ack.by}: {ack.value[:40]!r} at {ack} is lost")


class FloorHolds(Invariant):
    """To publishes at N in-sync replicas: so many held it when it was acknowledged."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._look = _Look(scene)
        self._ends: dict[tuple[PartitionKey, str], tuple[int, int]] = {}
        """Of each replica, when last seen and sound: its LEO, and its synced end. An acknowledgement can be on its way
        while a replica that held the record is started again and finds that its disk has damaged the log."""

    def on_log(self, broker: SimBroker, replica: Replica, log: PartitionLog, end: int) -> None:
        if not replica.is_damaged:
            self._ends[replica.key, broker.id] = end, log.durable_end

    def on_acked(self, ack: Acknowledged, *, promised: bool) -> None:
        found = self._look.partition_of(ack)
        if found is None or ack.durability is None or ack.losses != self._look.losses:
            return
        key, partition = found
        floor = ack.durability.in_sync_floor(len(partition.replicas))
        ends = [self._ends.get((key, replica), (0, 0))[ack.durability.is_synced] for replica in partition.replicas]
        if sum(end > ack.offset for end in ends) < floor:
            self.broken(f"{ack.by}: {ack} asked for {ack.durability}, and replicas hold it to {ends}")
