"""The cluster state while a command is applied: the handlers change it and state their outcome through a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metadata.cluster import Cluster
from metadata.model import NOTHING, Changes, Outcome, Partition, Stream
from metadata.snapshot import Contents
from wire.errors import Code
from wire.types import BrokerId, Generation, PartitionEpoch, PartitionKey


class Ledger(Cluster):
    """`contents` may be changed by the handlers of `metadata.commands`, and by nothing else."""

    @property
    def contents(self) -> Contents:
        return self._contents

    @property
    def leaderships(self) -> dict[BrokerId, int]:
        """How many partitions each broker leads."""
        return self._led

    def refuse(self, code: Code, message: str) -> Outcome:
        return Outcome(code=code, message=message, generation=self.generation)

    def next_generation(self) -> Generation:
        return Generation(self._contents.generation + 1)

    def changed(self, changes: Changes = NOTHING, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        self._contents.generation = self.next_generation()
        return Outcome(value=value, items=items, generation=self.generation, changes=changes)

    def unchanged(self, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        return Outcome(value=value, items=items, generation=self.generation)

    def count_leader(self, leader: BrokerId | None, by: int) -> None:
        if leader is not None:
            self._led[leader] = self._led.get(leader, 0) + by

    def store(self, key: PartitionKey, changed: Partition) -> None:
        """Put a changed partition in the old one's place, one partition epoch on."""
        stream = self._contents.streams[key.stream]
        partitions = stream.partitions
        old = partitions[key.partition]
        partitions[key.partition] = replace(changed, epoch=PartitionEpoch(old.epoch + 1))
        if (changed.leader, changed.leader_epoch, changed.state) != (old.leader, old.leader_epoch, old.state):
            stream.routing_generation = self.next_generation()
        self.count_leader(old.leader, -1)
        self.count_leader(changed.leader, 1)

    def sweep(self, change: Callable[[PartitionKey, Partition, Stream], Partition]) -> tuple[PartitionKey, ...]:
        """Apply `change` to every partition; the keys of changed partitions are returned."""
        changed = []
        for key, partition in self.partitions():
            after = change(key, partition, self._contents.streams[key.stream])
            if after is not partition and after != partition:
                self.store(key, after)
                changed.append(key)
        return tuple(changed)

    def not_controller(self, epoch: int) -> Outcome | None:
        if epoch == self.controller_epoch and epoch:
            return None
        return self.refuse(
            Code.NOT_CONTROLLER,
            f"the decision was made in controller epoch {epoch}, now is {self.controller_epoch} ({self.controller});"
            " ask again",
        )
