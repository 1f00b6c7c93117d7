"""A partition's log in memory: what `dataplane.log` promises, without disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dataplane.log.checkpoints import CompactionPoint
from dataplane.log.snapshot import Snapshot, encode_snapshot
from dataplane.replica.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.producers import ProducerLimits, ProducerTable
from wire.batch import BatchBuilder, BatchHeader
from wire.errors import InvariantViolation
from wire.types import NO_PRODUCER, LeaderEpoch, Offset

RECORD_BYTES = 100
"""What one record counts for where bytes are counted."""
HOLE = "."
"""In the place of a record that was compacted away."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Records are told apart by their values."""

    base: Offset
    epoch: LeaderEpoch
    values: str
    """One character per record."""
    producer: int = NO_PRODUCER
    producer_epoch: int = 0
    sequence: int = -1
    appended: float = 0.0
    """When its leader appended it, s."""

    @property
    def end(self) -> Offset:
        return Offset(self.base + len(self.values))

    def header(self) -> BatchHeader:
        builder = BatchBuilder()
        builder.add_values([value.encode() for value in self.values])
        built = builder.build(
            1, producer_id=self.producer, producer_epoch=self.producer_epoch, base_sequence=self.sequence
        )
        return built.stamp(self.base, self.epoch, round(self.appended * 1e9))[1]


class MemoryLog:
    """`durable_end` is what survives a loss of power; everything survives a killed process."""

    def __init__(self, producers: ProducerLimits) -> None:
        self.start = Offset(0)
        self.batches: list[Batch] = []
        self.durable_end = Offset(0)
        self.epochs = LeaderEpochCache()
        self.compaction_point = CompactionPoint()
        self.before = ProducerTable(limits=producers)
        """What was known of producers at the log start."""
        self.cuts = 0
        """Truncations so far: a sync that began before one says nothing about what was written after it."""

    @property
    def end(self) -> Offset:
        return self.batches[-1].end if self.batches else self.start

    def append(self, batch: Batch) -> None:
        latest = self.epochs.latest
        if batch.base < self.end or (self.batches and batch.epoch < self.batches[-1].epoch):
            raise InvariantViolation(f"{batch} does not continue a log that ends at {self.end} in epoch {latest}")
        if batch.epoch != latest:
            self.epochs.assign(batch.epoch, batch.base)
        self.batches.append(batch)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        """A new leader's first act: the tail is synced, then the epoch."""
        self.durable_end = self.end
        self.epochs.assign(epoch, self.end)

    def read(self, offset: Offset, max_bytes: int) -> tuple[Batch, ...]:
        """Whole batches from `offset` on, at least one."""
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            if batch.end <= offset:
                continue
            size += RECORD_BYTES * len(batch.values)
            if found and size > max_bytes:
                break
            found.append(batch)
        return tuple(found)

    def truncate(self, offset: Offset) -> Offset:
        """A cut inside a batch takes the whole batch. The new end."""
        self.batches = [batch for batch in self.batches if batch.end <= offset]
        self.durable_end = self.end
        self.epochs.truncate_from(self.end)
        if self.end < self.compaction_point.deleted_end:
            self.compaction_point = self.compaction_point.cut(self.end)
        self.cuts += 1
        return self.end

    def compact(self, end: Offset, *, tombstones: bool) -> None:
        """A pass up to `end`: of each letter the last record stays. A capital is the tombstone of its letter;
        `tombstones`: those below the end of the pass before go."""
        point = self.compaction_point
        gone_below = max(point.deletions_end, point.clean_end if tombstones else Offset(0))
        newest = {value.lower(): offset for offset, _, value in self.records() if offset < end}

        def left(offset: int, value: str) -> str:
            is_gone = offset < end and (newest[value.lower()] > offset or (value.isupper() and offset < gone_below))
            return HOLE if is_gone else value

        self.batches = [
            replace(batch, values="".join(left(batch.base + n, value) for n, value in enumerate(batch.values)))
            for batch in self.batches
        ]
        self.compaction_point = point._replace(
            clean_end=end, deletions_end=gone_below, deleted_end=max(gone_below, end)
        )

    def remove_before(self, offset: Offset) -> None:
        """Retention: the batches that lie wholly below `offset` go."""
        while self.batches and self.batches[0].end <= offset:
            gone = self.batches.pop(0)
            self.before.record(gone.header())
            self.start = gone.end
        self.epochs.truncate_before(self.start)

    def snapshot(self) -> bytes:
        """The derived state at the log start."""
        epochs = tuple(entry for entry in self.epochs.entries if entry.start < self.start)
        return encode_snapshot(Snapshot(self.start, epochs, self.before.known))

    def install(self, snapshot: Snapshot, copied: CompactionPoint) -> None:
        self.compaction_point = copied
        self.start, self.batches, self.durable_end = snapshot.offset, [], snapshot.offset
        self.epochs.replace(snapshot.epochs)
        self.before.restore(snapshot.producers)
        self.cuts += 1

    def rebuild(self, producers: ProducerTable) -> None:
        producers.restore(self.before.known, (batch.header() for batch in self.batches))

    def lose_power(self) -> None:
        self.batches = [batch for batch in self.batches if batch.end <= self.durable_end]
        self.recover()

    def recover(self) -> None:
        """Opened again: the epochs are what the file and the batches together say."""
        self.durable_end = self.end
        self.cuts += 1
        self.epochs = LeaderEpochCache.rebuilt(
            self.epochs.entries, [(batch.epoch, batch.base) for batch in self.batches], self.start, self.end
        )

    def records(self) -> Iterator[tuple[Offset, LeaderEpoch, str]]:
        for batch in self.batches:
            for number, value in enumerate(batch.values):
                yield Offset(batch.base + number), batch.epoch, value

    def preset(self, runs: Sequence[tuple[int, str]], start: int = 0) -> None:
        """(epoch, values) in order, a batch for each record."""
        self.start = self.durable_end = Offset(start)
        for epoch, values in runs:
            if not values:  # a leader that had not written yet
                self.epochs.assign(LeaderEpoch(epoch), self.end)
            for value in values:
                self.append(Batch(self.end, LeaderEpoch(epoch), value))
        self.durable_end = self.end


def entries_shown(entries: Sequence[EpochEntry]) -> str:
    return " ".join(f"{entry.epoch}@{entry.start}" for entry in entries)
