"""Promises to a group that reads with order="key", where records are deleted before it has read them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from dataplane.broker.following.follower_driver import FollowerDriver
from tests.simulation.invariants.base import Given, Invariant, Scene
from wire.layouts import KeyOrder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dataplane.broker.leading.leader_driver import LeaderDriver
    from dataplane.broker.replica import Replica
    from tests.simulation.machines.broker import SimBroker
    from wire.internal_records.group_records import StreamPartition
    from wire.types import PartitionKey

PATIENCE: Final = 11.5
"""Seconds for which a member of a sound cluster may wait for records that are deleted: it looks every 5 s. A log start
that a follower does not confirm is settled 4 s after that (R82), and it looks again within 2 s."""


class CommittedIsNotGivenAgain(Invariant):
    """To members of a group: no record comes again that was committed."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._read_to: dict[PartitionKey, int] = {}
        self.passed_committed = 0
        """Times at which the log start of a partition passed what was committed there."""
        self.passed_cutovers = 0
        """Times at which it passed the end of a layout up to which nothing was committed."""

    def on_read_to(self, key: PartitionKey, offset: int) -> None:
        self._read_to[key] = max(self._read_to.get(key, 0), offset)

    def on_given(self, given: Given) -> None:
        committed = self._read_to.get(given.key, 0)
        if given.first < committed:
            self.broken(f"{given.who} was given {given.key} offset {given.first}, and {committed} was committed")

    def on_log_start(self, broker: SimBroker, replica: Replica, before: int, start: int) -> None:
        key, read_to = replica.key, self._read_to.get(replica.key)
        partition = self.raft.truth.partition(key)
        if read_to is None or partition is None or partition.leader != broker.id:
            return
        self.passed_committed += before <= read_to < start
        layouts = self.raft.truth.streams[key.stream].layouts
        ends = {layout.start(key.partition) for layout in layouts if layout.generation > key.partition_incarnation}
        self.passed_cutovers += sum(max(before, read_to) < end <= start for end in ends)


class OnlyDeletedRecordsAreSkipped(Invariant):
    """To members of a group: over all members, each record of a partition comes that was not deleted before; and a
    member is told how many it has missed. A group that starts at the newest record starts there anew, in a partition
    whose first member has gone before anything was committed: of a partition that a repartition has made, before
    anything was in the partitions that its keys come from (R65)."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._given_to: dict[PartitionKey, int] = {}
        """Exclusive end of what any member was given."""
        self._missed: dict[object, int] = {}
        """By reading, records that it passed over."""
        self._readings: set[object] = set()
        self._committed: dict[PartitionKey, int] = {}
        """The lowest offset of which a member was told that it is committed."""
        self._committed_since: dict[PartitionKey, float] = {}
        """When a member was told so at first."""

    def on_read_to(self, key: PartitionKey, offset: int) -> None:
        self._committed[key] = min(offset, self._committed.get(key, offset))
        self._committed_since.setdefault(key, self.world.now)

    def on_given(self, given: Given) -> None:
        key, history = given.key, self.history.history(given.key)
        is_first = key.partition_incarnation == key.stream_incarnation
        came_to = self._given_to.get(key, given.began if is_first else 0)
        if given.is_from_newest and given.reading not in self._readings and not self._had_committed(given):
            came_to = max(came_to, given.began)
        self._readings.add(given.reading)
        self._given_to[key] = max(came_to, given.end)
        skipped = history.visible(came_to, given.first) if came_to < given.first else ()
        if skipped and skipped[-1] >= history.removed_to:
            self.broken(
                f"{given.who} was given {key} offset {given.first} when members had come to {came_to}, and only what is"
                f" below {history.removed_to} was deleted"
            )
        if given.began < given.first:
            missed = self._missed.get(given.reading, 0) + len(history.visible(given.began, given.first))
            self._missed[given.reading] = missed
            if missed > given.missed:
                self.broken(
                    f"{given.who} was given {key} offset {given.first} after {given.began}: it has missed {missed}"
                    f" records, and was told of {given.missed}"
                )

    def _had_committed(self, given: Given) -> bool:
        """Whether something was committed before this reading began. What it has committed itself, before it was given
        anything, is where it began."""
        key, own = given.key, self._committed.get(given.key)
        if own is not None and own < given.began:
            return True
        return any(self._committed_since.get(origin, inf) <= given.since for origin in self._origins(key))

    def _origins(self, key: PartitionKey) -> list[PartitionKey]:
        """The partitions that its keys come from, if a repartition made it, as far as they exist."""
        stream = self.raft.truth.streams.get(key.stream)
        if stream is None or stream.incarnation != key.stream_incarnation:
            return []
        others = {other.partition: other for other, _ in self.raft.truth.partitions() if other.stream == key.stream}
        incarnations = {number: other.partition_incarnation for number, other in others.items()}
        if incarnations.get(key.partition) != key.partition_incarnation:
            return []
        order = KeyOrder(stream.layouts, incarnations)
        return (
            [others[number] for number in order.origins(key.partition)] if order.has_begun_later(key.partition) else []
        )


class WhatIsSettledIsServedByNobody(Invariant):
    """To members of a group that reads with order="key": no follower serves what is below the settled log start of its
    leader, for the others do not wait for that."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._settled: dict[LeaderDriver, int] = {}

    def on_leading(self, broker: SimBroker, role: LeaderDriver) -> None:
        settled = role.core._settled_start.settled
        if settled <= self._settled.get(role, 0):
            return
        self._settled[role] = settled
        history = self.history.history(role.view.key)
        history.settled_to = max(history.settled_to, settled)
        for name in role.view.replicas:
            other = self.brokers[name]
            replica = other.broker._replicas.get(role.view.key) if other.broker is not None else None
            follower = replica.role if replica is not None else None
            if not isinstance(follower, FollowerDriver) or follower.leader_epoch != role.leader_epoch:
                continue
            readable = follower.core._reads._readable(follower.context.now())
            start = readable.view.first_record(readable.log_start_offset)
            if readable.refusal is None and not follower.ended and start < settled:
                self.broken(f"{role.view.key}: {settled} is settled on {broker.id}, and {name} serves from {start} on")


class NobodyWaitsForDeletedRecords(Invariant):
    """To members of a group: nothing is waited for that is below the start of a log, whoever has that partition. Looked
    at while the cluster is sound."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._since: dict[tuple[str, StreamPartition, StreamPartition, int], float] = {}

    def on_waiting(self, who: str, of: StreamPartition, sources: Mapping[StreamPartition, int]) -> None:
        for source, end in sources.items():
            if not 0 <= end <= self._log_start(source):
                continue
            since = self._since.setdefault((who, of, source, end), self.world.now)
            if self.world.now > since + PATIENCE:
                self.broken(
                    f"{who} has waited for {source} up to {end} since {since:.3f} to read {of}, and its log starts at"
                    f" {self._log_start(source)}"
                )

    def _log_start(self, of: StreamPartition) -> int:
        """As its leader has it; -1 where there is none."""
        for key, partition in self.raft.truth.partitions():
            if (key.stream, key.stream_incarnation, key.partition) == of and partition.leader is not None:
                broker = self.brokers[partition.leader].broker
                replica = broker._replicas.get(key) if broker is not None else None
                if replica is not None and replica._log is not None:
                    return max(replica._log.log_start_offset, partition.purged_end)
        return -1
