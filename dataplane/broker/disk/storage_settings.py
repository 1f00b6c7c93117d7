"""A broker's settings for the storage of its replicas: section `[storage]` of its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.replica.derived.producer_table import EXPIRATION_MS, MAX_PRODUCERS, ProducerLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    housekeeping_interval: float = 5.0
    """Seconds from one visit of the housekeeping to a replica to the next."""
    scrub_bytes_per_second: int = 4_000_000
    """At most so much is read again to find damage, of all logs together; 0: nothing is."""
    scrub_interval: float = 3600.0
    """Seconds from the end of one reading of a log to the beginning of the next, at the soonest."""
    quick_sync_below: float = 0.001
    """Seconds. While syncs take less, small ones stand on the event loop, which saves an acknowledged publish the way
    to a thread and back. 0: none does."""
    min_free_bytes: int = 0
    """No record is written that leaves less than this free on the disk; from twice as much on leaderships are handed
    over. 0: 5 % of the disk, at least 1 MiB, at most 256."""
    space_check_interval: float = 1.0
    """Seconds from one look at the free room to the next."""
    compaction_min_dirty_ratio: float = 0.5
    """A log of a stream with `compact` is compacted once this share of its finished segments was not yet."""
    compaction_memory: int = field(default=24 << 20, metadata={"counts": "bytes"})
    """Bytes; of the one map of keys that there is at a time. About 700,000 keys; more take several passes."""
    compaction_bytes_per_second: int = 32 << 20
    """Read and written by compaction, of all partitions together. 0 = as fast as it goes."""
    producer_id_expiration_ms: int = EXPIRATION_MS
    """A producer that has been silent for so long (a week) in a partition is forgotten there; it goes on under a new
    id."""
    max_producers_per_partition: int = MAX_PRODUCERS
    """When more write to a partition, the one that has been silent for longest is forgotten."""
    max_producers_of_all: int = 1_000_000
    """Producers that a broker remembers, of all its partitions: each takes 0.2 to 0.3 kB in each partition to which it
    has written, and up to 1 kB while it writes. Above it a leader refuses those that are new in a partition, with
    BACKPRESSURE, and takes those that are known."""
    group_retention_ms: int = 7 * 24 * 3_600_000
    """A consumer group without members, and what it has committed, is forgotten so long (a week) after its last member
    left or its last commit."""

    def __post_init__(self) -> None:
        if self.group_retention_ms < 1:
            raise ValueError(f"group_retention_ms ({self.group_retention_ms}) must be 1 at least")
        if self.quick_sync_below < 0:
            raise ValueError(f"quick_sync_below ({self.quick_sync_below} s) must not be negative")
        if self.min_free_bytes < 0:
            raise ValueError(f"min_free_bytes ({self.min_free_bytes}) must not be below 0")
        if not self.space_check_interval > 0:
            raise ValueError(f"space_check_interval ({self.space_check_interval} s) must be above 0")
        if not self.housekeeping_interval > 0:
            raise ValueError(f"housekeeping_interval ({self.housekeeping_interval} s) must be above 0")
        if self.scrub_bytes_per_second < 0:
            raise ValueError(f"scrub_bytes_per_second ({self.scrub_bytes_per_second}) must not be below 0")
        if self.scrub_interval < 0:
            raise ValueError(f"scrub_interval ({self.scrub_interval} s) must not be below 0")
        if not 0 < self.compaction_min_dirty_ratio <= 1:
            raise ValueError(
                f"compaction_min_dirty_ratio ({self.compaction_min_dirty_ratio}) must be above 0, and 1 at most"
            )
        if self.compaction_memory < 1 << 20:
            raise ValueError(f"compaction_memory ({self.compaction_memory} bytes) must be 1 MiB at least")
        if self.producer_id_expiration_ms < 1:
            raise ValueError(f"producer_id_expiration_ms ({self.producer_id_expiration_ms}) must be 1 at least")
        if self.max_producers_per_partition < 1:
            raise ValueError(f"max_producers_per_partition ({self.max_producers_per_partition}) must be 1 at least")
        if self.max_producers_of_all < 1:
            raise ValueError(f"max_producers_of_all ({self.max_producers_of_all}) must be 1 at least")
        if self.compaction_bytes_per_second < 0:
            raise ValueError(f"compaction_bytes_per_second ({self.compaction_bytes_per_second}) must not be negative")

    @property
    def producers(self) -> ProducerLimits:
        return ProducerLimits(
            max_producers=self.max_producers_per_partition, expiration_ms=self.producer_id_expiration_ms
        )
