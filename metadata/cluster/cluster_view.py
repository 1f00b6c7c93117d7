"""The cluster state as it can be read: brokers, streams, partitions, and which broker is the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from metadata.cluster.counts import Counts
from metadata.cluster.model import Broker, Partition, Stream
from metadata.cluster.state_snapshot import Contents
from wire.cluster_config import ClusterConfig, split
from wire.turns import pieces
from wire.types import BrokerId, Generation, Incarnation, PartitionKey, PartitionView, StreamName

PIECE: Final = 50
"""Partitions passed over that cost as much as one look (`wire.turns`)."""


class Cluster:
    """The readable state. Readers may look at every attribute and change none."""

    def __init__(self, contents: Contents, counts: Counts) -> None:
        """`counts`: `metadata.commands.ledger` keeps them up to date."""
        self._contents = contents
        self._counts = counts

    @property
    def generation(self) -> Generation:
        return self._contents.generation

    @property
    def cluster_id(self) -> str:
        """Empty before the first controller epoch."""
        return self._contents.cluster_id

    @property
    def controller_epoch(self) -> int:
        """The present controller epoch; 0: none yet."""
        return self._contents.controller_epoch

    @property
    def controller(self) -> BrokerId | None:
        return self._contents.controller

    @property
    def controller_life_id(self) -> str:
        return self._contents.controller_life_id

    @property
    def brokers(self) -> Mapping[BrokerId, Broker]:
        return self._contents.brokers

    @property
    def streams(self) -> Mapping[StreamName, Stream]:
        return self._contents.streams

    @property
    def defaults(self) -> Mapping[str, str]:
        """Cluster-wide settings that new streams get where their creation sets none."""
        return split(self._contents.cluster_config)[1]

    @property
    def cluster_config(self) -> Mapping[str, str]:
        """The settings of the cluster that an operator has given, and the defaults of new streams."""
        return self._contents.cluster_config

    @property
    def cluster_settings(self) -> ClusterConfig:
        return ClusterConfig.from_strings(self._contents.cluster_config)

    @property
    def unclean_elections(self) -> int:
        """Number of elections in which an operator let a replica lead that may lack committed records."""
        return self._contents.unclean_elections

    @property
    def rules(self) -> int:
        """The rules by which commands are applied: see `metadata.cluster.command_rules`."""
        return self._contents.rules

    def is_lost(self, decision: Incarnation | Generation) -> bool:
        """Whether only a decision that was lost when the cluster began anew may have given this incarnation."""
        return any(each.first <= decision <= each.last for each in self._contents.lost)

    @property
    def recovered_at(self) -> Generation:
        """The last generation that was skipped when the cluster last began anew (`tidelog cluster recover`); 0: it
        never did. What is decided since then has later ones."""
        return self._contents.lost[-1].last if self._contents.lost else Generation(0)

    # Keeps R86.
    def is_of_lost_decisions(self, key: PartitionKey, assigned_at: Generation | None) -> bool:
        """Whether a lost decision (`is_lost`) made the stream, or the partition, or may have made a broker its replica.
        `assigned_at`: a generation of the state by which the broker has it; None: an earlier process had it."""
        if self.is_lost(key.stream_incarnation) or self.is_lost(key.partition_incarnation):
            return True
        if assigned_at is not None:
            return self.is_lost(assigned_at)
        return bool(self._contents.lost) and self.partition(key) is not None

    @property
    def next_producer_id(self) -> int:
        """No producer without transactions has been given this id or a higher one."""
        return self._contents.next_producer_id

    def is_alive(self, broker: BrokerId) -> bool:
        found = self._contents.brokers.get(broker)
        return found is not None and found.alive

    def is_draining(self, broker: BrokerId) -> bool:
        found = self._contents.brokers.get(broker)
        return found is not None and found.draining

    def partition(self, key: PartitionKey) -> Partition | None:
        """Returns the partition of that incarnation; None when it is over or never was."""
        stream = self._contents.streams.get(key.stream)
        if stream is None or stream.incarnation != key.stream_incarnation:
            return None
        partition = stream.partitions.get(key.partition)
        return partition if partition is not None and partition.incarnation == key.partition_incarnation else None

    def view(self, key: PartitionKey) -> PartitionView | None:
        return self._contents.streams[key.stream].view(key.partition) if self.partition(key) is not None else None

    def partitions(
        self, wanted: Callable[[Partition], bool] = lambda _: True
    ) -> Iterator[tuple[PartitionKey, Partition]]:
        """Yields all wanted partitions, by stream name and number."""
        for _, stream in sorted(self._contents.streams.items()):
            for number, partition in sorted(stream.partitions.items()):
                if wanted(partition):
                    yield PartitionKey(stream.name, stream.incarnation, number, partition.incarnation), partition

    def walk(self, wanted: Callable[[Partition], bool]) -> Iterator[list[PartitionKey]]:
        """Yields the keys of wanted partitions, by stream name, in pieces of at most PIECE partitions. It goes on while
        the state changes: of partitions that are made or changed meanwhile it may give the old keys, or none."""
        for name in sorted(self._contents.streams):
            stream = self._contents.streams.get(name)
            if stream is None:
                continue
            for piece in pieces([*stream.partitions.items()], PIECE):
                yield [
                    PartitionKey(stream.name, stream.incarnation, number, partition.incarnation)
                    for number, partition in piece
                    if wanted(partition)
                ]

    def led_by(self, broker: BrokerId) -> int:
        return self._counts.led.get(broker, 0)

    def held_by(self, broker: BrokerId) -> int:
        """Number of partitions of which it has a replica."""
        return self._counts.held.get(broker, 0)

    @property
    def partition_total(self) -> int:
        return self._counts.partitions

    def check(self) -> None:
        """Raises InvariantViolation. For tests and simulations: it looks at all partitions."""
        for key, partition in self.partitions():
            partition.check(self._contents.streams[key.stream].min_isr)
