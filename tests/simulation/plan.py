"""What differs from run to run besides the faults: brokers, streams and their settings, drawn from the seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from dataplane.replica.derived.producer_table import DEFAULT_LIMITS, ProducerLimits
from tests.simulation.scenarios.catalog import REQUIRED_PLANS
from wire.durability import ACCEPTED, DURABLE, Durability, DurabilityKind

WINDOW_MS = 24 * 3_600_000
"""Of message ids: longer than a run."""

TRANSACTIONS_SHARE = 0.12
"""Of the runs without a scenario: these take ten times as long as others."""


SHIPPED_RAFT_SHARE = 0.3
"""Of the runs without a scenario, which are half of all."""


REPARTITIONS_SHARE = 0.5
"""Of the runs without a scenario, of streams that are not compacted."""


REASSIGNMENTS_SHARE = 0.3
"""Of the runs without a scenario."""


def draw_transactions(rng: Random, scenario: str | None) -> bool:
    return scenario is None and rng.random() < TRANSACTIONS_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Settings that differ from run to run, besides the faults."""

    brokers: int
    replication_factor: int
    streams: int
    partitions: int
    durability: Durability
    segment_bytes: int
    duration: float
    rate: float
    push_to_waiters: bool
    min_isr: int
    latency: float
    """Mean of one way to or from NATS, in seconds: it decides how much is on its way when a leader dies."""
    disk_delay: float
    """Mean of a call that waits for the disk, in seconds."""
    gather_from: int
    """See `ReplicaSettings`."""
    quick: bool
    """Timeouts a fraction of the usual ones: more happens in a simulated second."""

    asked: Durability
    """Level that a producer asks for, in place of the stream's."""

    fetch_max_bytes: int
    """Of one answer to a follower: below a batch's size at times."""
    retention: tuple[tuple[str, int], ...] = ()
    """Settings of the streams that make old records go."""
    housekeeping_interval: float = 5.0
    """Seconds."""
    identifies: bool = False
    """Records have message ids, and are sent again under them."""
    keys: int = 0
    """Of the records, and then the streams are compacted; 0: records without keys."""
    producers: ProducerLimits = DEFAULT_LIMITS
    """How many are remembered, and for how long."""
    auto_pause_time_ms: int = 0
    has_group: bool = False
    """A consumer group reads the first stream."""
    has_transactions: bool = False
    """Programs write to the streams in transactions, and copy the first one to another."""
    has_repartitions: bool = False
    """An operator changes the number of the first stream's partitions, producers write keys, and a group reads them in
    their order."""
    adoption_timeout_s: float = 30.0
    has_reassignments: bool = False
    """An operator gives partitions other replicas, of four brokers."""
    ships_raft: bool = False
    """The metadata group runs on the shipped Raft, not on a model."""
    tombstone_retention_ms: int = 0
    min_dirty_ratio: float = 0.5

    @classmethod
    def drawn(cls, rng: Random, scenario: str | None) -> RunPlan:
        plan = cls(
            brokers=3,
            replication_factor=3,
            streams=rng.choice((1, 1, 1, 2)),
            partitions=rng.choice((1, 1, 2)),
            durability=ACCEPTED if rng.random() < 0.25 else DURABLE,
            asked=DURABLE,
            segment_bytes=rng.choice((4096, 16384, 1 << 20)),
            duration=rng.choice((1.5, 3.0, 6.0)),
            rate=rng.choice((2.0, 5.0, 12.0)),
            push_to_waiters=rng.random() < 0.6,
            quick=rng.random() < 0.6,
            min_isr=rng.choice((1, 2, 2, 2, 2, 3)),
            latency=rng.choice((0.0001, 0.002, 0.015)),
            disk_delay=rng.choice((0.0003, 0.003, 0.015)),
            gather_from=rng.choice((1, 2, 4)),
            fetch_max_bytes=rng.choice((1 << 20, 1 << 20, 4096, 256)),
        )
        if plan.latency > 0.001:  # a batch a round trip, and each takes long: followers would not catch up in time
            plan = replace(plan, fetch_max_bytes=1 << 20)
        if scenario is not None:
            plan = replace(plan, **({"duration": 6.0} | REQUIRED_PLANS.get(scenario, {})))
        levels = (DURABLE, Durability(DurabilityKind.REPLICA_DURABLE, 3))
        if plan.durability.is_synced:
            levels = (ACCEPTED, Durability(DurabilityKind.REPLICA_ACCEPTED, 3))
        return replace(plan, asked=rng.choice(levels))

    def keeping_less(self, rng: Random) -> RunPlan:
        """Some runs have streams that forget."""
        if self.retention or self.keys or rng.random() >= 0.4:
            return self
        limits: tuple[tuple[str, int], ...] = rng.choice(
            (
                (("retention_max_messages", rng.choice((1, 20, 80))),),
                (("retention_max_bytes", rng.choice((1, 8192))),),
                (
                    ("retention_max_age_ms", rng.choice((200, 1000, 3000))),
                    ("segment_max_age_ms", rng.choice((0, 200, 1000))),
                ),
            )
        )
        return replace(self, segment_bytes=4096, retention=limits, housekeeping_interval=rng.choice((0.05, 0.3, 1.0)))

    def forgetting(self, rng: Random) -> RunPlan:
        """Some runs have brokers that forget producers which are still at work."""
        if rng.random() >= 0.3:
            return self
        limits = ProducerLimits(
            max_producers=rng.choice((1, 2, 3, 20)), expiration_ms=rng.choice((300, 1500, 7 * 24 * 3_600_000))
        )
        return replace(self, producers=limits)

    def pausing(self, rng: Random) -> RunPlan:
        """Some runs have streams whose partitions are paused when no record comes."""
        if rng.random() >= 0.25:
            return self
        return replace(self, auto_pause_time_ms=rng.choice((50, 300, 1000)))

    def grouping(self, rng: Random, scenario: str | None) -> RunPlan:
        """Some runs without a scenario have a consumer group."""
        if scenario is not None or rng.random() >= 0.5:
            return self
        return replace(self, has_group=True, duration=max(self.duration, 3.0), partitions=3)

    def transacting(self, rng: Random, scenario: str | None) -> RunPlan:
        """Some runs without a scenario have programs with transactions."""
        if not draw_transactions(rng, scenario):
            return self
        return replace(
            self, has_transactions=True, duration=max(self.duration, 3.0), partitions=max(self.partitions, 2)
        )

    def compacting(self, rng: Random) -> RunPlan:
        """Some runs have streams that are compacted."""
        if self.keys or rng.random() >= 0.35:
            return self
        return replace(
            self,
            segment_bytes=4096,
            housekeeping_interval=rng.choice((0.05, 0.2, 0.6)),
            keys=rng.choice((2, 5, 20)),
            tombstone_retention_ms=rng.choice((0, 0, 300, 2000)),
            min_dirty_ratio=rng.choice((0.01, 0.3)),
        )

    def of_later_scenario(self, scenario: str) -> RunPlan:
        return replace(self, **({"duration": 6.0} | REQUIRED_PLANS.get(scenario, {})))

    def repartitioning(self, rng: Random, scenario: str | None) -> RunPlan:
        """Some runs have an operator who repartitions. Not where old records go: what was sent is sought in the end."""
        timeout = rng.choice((0.1, 0.7, 3.0, 15.0))
        if scenario is not None or self.keys or self.retention or rng.random() >= REPARTITIONS_SHARE:
            return self
        return replace(self, has_repartitions=True, adoption_timeout_s=timeout, duration=max(self.duration, 3.0))

    def reassigning(self, rng: Random, scenario: str | None) -> RunPlan:
        """Some runs have an operator who gives partitions other replicas."""
        if scenario is not None or rng.random() >= REASSIGNMENTS_SHARE:
            return self
        factor = rng.choice((3, 3, 2))
        return replace(
            self,
            has_reassignments=True,
            brokers=4,
            replication_factor=factor,
            min_isr=min(self.min_isr, factor),
            duration=max(self.duration, 3.0),
            asked=self.asked if factor == 3 else self.durability,
        )

    def shipping(self, rng: Random, scenario: str | None) -> RunPlan:
        """Some runs without a scenario have the shipped Raft below them; scenarios rely on the model."""
        return replace(self, ships_raft=scenario is None and rng.random() < SHIPPED_RAFT_SHARE)

    def identifying(self, rng: Random) -> RunPlan:
        """Some runs have records with message ids; not where records go, for their ids go with them."""
        return self if self.keys or self.retention or rng.random() >= 0.5 else replace(self, identifies=True)
