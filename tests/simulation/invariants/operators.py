"""Promises about what operators do with partitions: they take no records, or lose their first ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.base import Invariant, Scene
from tests.simulation.invariants.history import batches_of
from wire.batch import parse_header

if TYPE_CHECKING:
    from dataplane.broker.leading.leader_driver import LeaderDriver
    from metadata.cluster.model import Partition
    from tests.simulation.machines.broker import SimBroker
    from wire.types import PartitionKey


class ReadonlyTakesNothing(Invariant):
    """To operators: a leader that knows that its partition is read-only appends no records. It ends transactions."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._ends: dict[LeaderDriver, int] = {}
        """LEO of the leaders that know it, when they heard of it."""

    def on_leading(self, broker: SimBroker, role: LeaderDriver) -> None:
        if not role.view.readonly:
            self._ends.pop(role, None)
            return
        end = self._ends.setdefault(role, role.core.log_end_offset)
        if role.core.log_end_offset == end:
            return
        self._ends[role] = role.core.log_end_offset
        replica = broker.broker._replicas.get(role.view.key) if broker.broker is not None else None
        if replica is None or any(
            not parse_header(data).is_control for _, data in batches_of(replica, end, role.core.log_end_offset)
        ):
            self.broken(f"{broker.id} appended to {role.view.key} from {end} to {role.core.log_end_offset}")


class OnlyCommittedIsDeleted(Invariant):
    """To producers and operators: an operator deletes committed records only, and they stay deleted."""

    def on_partition(self, key: PartitionKey, old: Partition | None, new: Partition) -> None:
        before = old.purged_end if old is not None else 0
        if new.purged_end < before:
            self.broken(f"{key}: records below {before} were deleted, now it is {new.purged_end}")
        if new.purged_end > before:
            history = self.history.history(key)
            if new.purged_end > history.end:
                self.broken(f"{key}: all below {new.purged_end} was deleted, committed is {history.end}")
            self.history.removed(key, new.purged_end)
