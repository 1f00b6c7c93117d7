"""The cluster state while a command is applied: the handlers change it and state their outcome through a ledger.

A handler whose work grows with the partitions of a stream or of the cluster is `Steps` (`wire.turns`), which can be
interrupted. It may work on a `fork`, whose changes nobody sees before it takes the place of the state.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Final

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.counts import Counts
from metadata.cluster.model import NOTHING, Changes, Outcome, Partition, Stream
from metadata.cluster.state_snapshot import Contents
from wire.errors import Code
from wire.turns import Steps
from wire.types import BrokerId, Generation, PartitionEpoch, PartitionKey, StreamName

PARTITION: Final = 4
"""Cost of a partition that may be changed, in looks."""


class Ledger(Cluster):
    """The state to change. `contents` may be changed by the handlers of `metadata.commands`, and by nothing else."""

    def __init__(self, contents: Contents, counts: Counts) -> None:
        super().__init__(contents, counts)
        self._owned: set[StreamName] | None = None
        """Streams that no other ledger and no picture shares; None: all."""

    def fork(self) -> Ledger:
        """Returns a ledger of the same contents, whose changes do not show in this one. Partitions and brokers are
        values, so a stream is copied before its first change."""
        contents = replace(self._contents, brokers=dict(self._contents.brokers), streams=dict(self._contents.streams))
        forked = Ledger(contents, self._counts.copy())
        forked._owned = set()
        return forked

    def picture(self) -> Contents:
        """Returns the contents as they are now: later changes do not show in them. Streams are copied before they are
        changed, as in a fork."""
        self._owned = set()
        return replace(
            self._contents,
            brokers=dict(self._contents.brokers),
            streams=dict(self._contents.streams),
            clients={client: dict(outcomes) for client, outcomes in self._contents.clients.items()},
        )

    def take_over(self, fork: Ledger) -> None:
        """Takes the contents of `fork`, which was made of this ledger; nothing has changed this one since."""
        self._contents, self._counts = fork._contents, fork._counts
        if self._owned is not None and fork._owned is not None:
            self._owned |= fork._owned

    def own(self, name: StreamName) -> Stream:
        """Returns the stream, for changes of its partitions."""
        stream = self._contents.streams[name]
        if self._owned is None or name in self._owned:
            return stream
        self._owned.add(name)
        owned = self._contents.streams[name] = copy(stream)
        owned.partitions = dict(stream.partitions)
        return owned

    @property
    def contents(self) -> Contents:
        return self._contents

    @property
    def leaderships(self) -> dict[BrokerId, int]:
        """Number of partitions that each broker leads."""
        return self._counts.led

    @property
    def counts(self) -> Counts:
        return self._counts

    def refuse(self, code: Code, message: str) -> Outcome:
        return Outcome(code=code, message=message, generation=self.generation)

    def next_generation(self) -> Generation:
        return Generation(self._contents.generation + 1)

    def changed(self, changes: Changes = NOTHING, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        self._contents.generation = self.next_generation()
        return Outcome(value=value, items=items, generation=self.generation, changes=changes)

    def unchanged(self, *, value: int = 0, items: tuple[Code | None, ...] = ()) -> Outcome:
        return Outcome(value=value, items=items, generation=self.generation)

    def store(self, key: PartitionKey, changed: Partition) -> None:
        """Puts a changed partition in the old one's place, with the next partition epoch."""
        stream = self.own(key.stream)
        partitions = stream.partitions
        old = partitions[key.partition]
        partitions[key.partition] = replace(changed, epoch=PartitionEpoch(old.epoch + 1))
        if (changed.leader, changed.leader_epoch, changed.state) != (old.leader, old.leader_epoch, old.state):
            stream.routing_generation = self.next_generation()
        if changed.replicas != old.replicas:
            self._counts.count_replicas(old, -1)
            self._counts.count_replicas(changed, 1)
        self._counts.count_leader(old.leader, -1)
        self._counts.count_leader(changed.leader, 1)

    def sweep(self, change: Callable[[PartitionKey, Partition, Stream], Partition]) -> Steps[tuple[PartitionKey, ...]]:
        """Applies `change` to every partition; returns the keys of changed partitions."""
        changed = []
        for key, partition in self.partitions():
            yield PARTITION
            after = change(key, partition, self._contents.streams[key.stream])
            if after is not partition and after != partition:
                self.store(key, after)
                changed.append(key)
        return tuple(changed)

    # Keeps R28.
    def not_controller(self, epoch: int) -> Outcome | None:
        if epoch == self.controller_epoch and epoch:
            return None
        return self.refuse(
            Code.NOT_CONTROLLER,
            f"the decision was made in controller epoch {epoch}, now is {self.controller_epoch} ({self.controller});"
            " ask again",
        )
