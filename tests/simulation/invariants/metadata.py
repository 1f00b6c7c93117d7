"""Promises of the metadata group to brokers: about commands, checked as each is applied."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from dataplane.broker.broker import DiskCounters
from metadata.cluster.references import key_of
from tests.simulation.invariants.base import Commit, Invariant, Scene
from wire.errors import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from metadata.cluster.model import Partition
    from wire.types import LeaderEpoch, LeaderReport, PartitionEpoch, PartitionKey


class OneControllerEpoch(Invariant):
    """To all brokers: a controller decides nothing any more once another has succeeded it."""

    def on_commit(self, commit: Commit) -> None:
        body = getattr(commit.message, commit.kind or "", None)
        decided_in = getattr(body, "controller_epoch", commit.controller_epoch)
        if commit.outcome.changes and decided_in != commit.controller_epoch:
            self.broken(f"a decision of controller epoch {decided_in} took effect in {commit.controller_epoch}")


class CompareAndSet(Invariant):
    """To leaders: an AlterIsr that was asked for in another PartitionEpoch takes no effect."""

    def on_commit(self, commit: Commit) -> None:
        if not commit.outcome.changes or commit.kind != "alter_isr":
            return
        for item, code in zip(commit.message.alter_isr.items, commit.outcome.items, strict=False):
            old = commit.before.get(key_of(item.partition))
            if code is None and old is not None and old.epoch != item.expected_epoch:
                self.broken(f"{key_of(item.partition)}: {item} took effect on {old}")


DECISION_ON_ITS_WAY_S = 0.05
"""Seconds from a decision to its commit, where Raft is not late."""


class ElectionsHaveCause(Invariant):
    """To leaders: one that lives falls by the word of most of its ISR as it was decided on, in its own LeaderEpoch, or
    by its own word that its disk hangs."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._reports: dict[tuple[PartitionKey, LeaderEpoch], set[str]] = {}
        self._replaced: dict[PartitionKey, tuple[float, int]] = {}
        """When the ISR last changed, and how many it had before."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        if old is not None and old.isr != new.isr:
            self._replaced[key] = self.raft.world.now, len(old.isr)

    def on_report(self, report: LeaderReport) -> None:
        self._reports.setdefault((report.key, report.leader_epoch), set()).add(report.replica)

    def on_commit(self, commit: Commit) -> None:
        if not commit.outcome.changes or commit.kind != "elect_leaders":
            return
        for election, code in zip(commit.message.elect_leaders.items, commit.outcome.items, strict=False):
            if code is not None or election.planned:
                continue
            if election.target:
                self._check_its_disk(key_of(election.partition), commit.before)
            else:
                self._check(key_of(election.partition), commit.before)

    def _check_its_disk(self, key: PartitionKey, olds: Mapping[PartitionKey, Partition]) -> None:
        old = olds.get(key)
        broker = self.brokers[old.leader].broker if old is not None and old.leader is not None else None
        if broker is not None and not broker.context.the(DiskCounters).times_disk_hung:
            self.broken(f"{key}: {old} lost its leader, whose disk has not hung")

    def _check(self, key: PartitionKey, olds: Mapping[PartitionKey, Partition]) -> None:
        old = olds.get(key)
        if old is None or old.leader is None or self.raft.is_late:
            return
        witnesses = self._reports.get((key, old.leader_epoch), set())
        leader = self.brokers[old.leader]
        is_there = leader.process is not None and not leader.process.paused and leader.is_reachable
        is_there = is_there and self.scene.has_begun(leader)
        if not is_there or self.raft.is_behind(leader.raft_address):
            return  # the controller's own probes say so
        replaced_at, size_before = self._replaced.get(key, (-inf, 0))
        is_on_its_way = replaced_at >= self.raft.world.now - DECISION_ON_ITS_WAY_S
        if 2 * len(witnesses) <= (min(size_before, len(old.isr)) if is_on_its_way else len(old.isr)) - 1:
            self.broken(
                f"{key}: {old.leader} lost LeaderEpoch {old.leader_epoch} by the word of"
                f" {', '.join(sorted(witnesses)) or 'nobody'}; its ISR is {','.join(old.isr)}"
            )


MASS_DEATH_WINDOW_S = 0.5
"""Deaths that are told in this time are told at once: a controller hears of each broker by itself."""


class NoMassDeath(Invariant):
    """To brokers: most of them do not die at once; a controller that sees that is itself cut off. A declaration that is
    committed late was right or wrong when it was proposed."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._lately: list[tuple[float, str]] = []

    def on_commit(self, commit: Commit) -> None:
        if not commit.outcome.changes or commit.kind != "brokers_dead" or self.raft.is_late:
            return
        living = [
            life.broker
            for life in commit.message.brokers_dead.brokers
            if (process := self.brokers[life.broker].process) is not None
            and not process.paused
            and self.scene.has_begun(self.brokers[life.broker])
            and self.raft.reaches(self.brokers[life.broker].raft_address)
        ]
        now = self.raft.world.now
        self._lately = [(at, broker) for at, broker in self._lately if at > now - MASS_DEATH_WINDOW_S]
        alive = commit.alive + len(self._lately)
        self._lately += [(now, broker) for broker in living]
        if 2 * len(self._lately) > alive:
            self.broken(f"{', '.join(broker for _, broker in self._lately)} are called dead at once, and live")


class IsrNeverEmpty(Invariant):
    """To clients: some replica holds all committed records, and may lead."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        if not new.isr:
            self.broken(f"{key}: {new}")


class PartitionState(Invariant):
    """To brokers: a partition satisfies the invariants of `Partition.check`."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        try:
            new.check(self.raft.truth.streams[key.stream].min_isr)
        except InvariantViolation as error:
            self.broken(str(error))


class ReassignmentsKeepCopies(Invariant):
    """To clients: what a change of the replicas removes was not needed. When it is over the replicas are its target,
    all of them in the ISR, or, where it was cancelled, the original ones, and enough of those are. No other change of
    a partition removes a replica."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        if old is None or old.incarnation != new.incarnation:
            return
        moving, left = old.reassignment, {*old.replicas} - {*new.replicas}
        if moving is None and {*old.replicas} != {*new.replicas}:
            self.broken(f"{key} had no other replicas to get, and went from {old} to {new}")
        members = {*old.isr, *old.eligible}
        min_isr = self.raft.truth.streams[key.stream].min_isr
        if left & members and len(new.isr) < min_isr:
            self.broken(f"{key} loses {', '.join(sorted(left & members))}, and goes from {old} to {new}")
        if left and new.leader_epoch == old.leader_epoch:
            self.broken(f"{key} loses {', '.join(sorted(left))} within LeaderEpoch {old.leader_epoch}: {old}, {new}")
        if moving is None or new.reassignment is not None:
            return
        if new.replicas == moving.target and not moving.is_cancelled:
            if new.isr != new.replicas:
                self.broken(f"{key} has its new replicas, and not all are in the ISR: {old}, {new}")
        elif new.replicas != moving.original:
            self.broken(f"{key} was to go from {moving.original} to {moving.target}: {old}, {new}")


class EpochsGrow(Invariant):
    """To brokers: every change has a higher PartitionEpoch, and no LeaderEpoch comes back."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._epochs: dict[PartitionKey, tuple[PartitionEpoch, LeaderEpoch]] = {}

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        before = self._epochs.get(key, (0, 0))
        if new.epoch <= before[0] or new.leader_epoch < before[1]:
            self.broken(f"{key} went from {before} to {new}")
        self._epochs[key] = (new.epoch, new.leader_epoch)
