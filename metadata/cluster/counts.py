"""Numbers and names that follow from the streams of the cluster. Commands keep them up to date, so that the creation of
a stream looks at no other one."""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.cluster.model import Partition
from wire.subjects import numbered_parent
from wire.types import BrokerId, StreamName


@dataclass(slots=True)
class Counts:
    led: dict[BrokerId, int] = field(default_factory=dict)
    """Number of partitions that each broker leads."""
    held: dict[BrokerId, int] = field(default_factory=dict)
    """Number of partitions of which each broker has a replica."""
    partitions: int = 0
    _by_subject: dict[str, StreamName] = field(default_factory=dict)
    _numbered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Subjects of streams that end with a partition number, by what stands before it."""

    def copy(self) -> Counts:
        return Counts(dict(self.led), dict(self.held), self.partitions, dict(self._by_subject), dict(self._numbered))

    def count_leader(self, leader: BrokerId | None, by: int) -> None:
        if leader is not None:
            self.led[leader] = self.led.get(leader, 0) + by

    def count_partition(self, partition: Partition, by: int) -> None:
        """Counts the partition when it is created (`by` 1) and when it is removed (`by` -1)."""
        self.partitions += by
        self.count_leader(partition.leader, by)
        self.count_replicas(partition, by)

    def count_replicas(self, partition: Partition, by: int) -> None:
        for replica in partition.replicas:
            self.held[replica] = self.held.get(replica, 0) + by

    def add_subject(self, subject: str, stream: StreamName) -> None:
        self._by_subject[subject] = stream
        parent = numbered_parent(subject)
        if parent is not None:
            self._numbered[parent] = (*self._numbered.get(parent, ()), subject)

    def remove_subject(self, subject: str) -> None:
        del self._by_subject[subject]
        parent = numbered_parent(subject)
        if parent is not None:
            left = tuple(other for other in self._numbered[parent] if other != subject)
            if left:
                self._numbered[parent] = left
            else:
                del self._numbered[parent]

    # Keeps R37.
    def taken_by(self, subject: str) -> StreamName | None:
        """Returns the first stream, by name, that owns a subject in common with a stream on `subject`. Each owns X and
        X.<i>, i a partition number from 1."""
        others = [subject, *self._numbered.get(subject, ())]
        parent = numbered_parent(subject)
        if parent is not None:
            others.append(parent)
        return min((self._by_subject[other] for other in others if other in self._by_subject), default=None)
