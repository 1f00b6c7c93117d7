"""Sizes and times of a producer's partitions."""

from __future__ import annotations

from dataclasses import dataclass

from wire.types import Acks


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorSettings:
    """Times in seconds, sizes in bytes."""

    acks: Acks = Acks.ALL
    batch_bytes: int = 1 << 20
    linger: float = 0.0
    max_in_flight: int = 5
    """Leaders remember the last five batches of a producer; a larger window could not be told from repetitions."""
    delivery_timeout: float = 30.0
    confirm_timeout: float | None = None
    """How long the producer has said that a publish waits: a leader's CONFIRM_TIMEOUT ends a batch, and so do refusals
    that pass (a quota, too few replicas) once they have lasted so long. None: the batch is sent again until
    `delivery_timeout`."""
    dedup: bool = True
    """False: headers that could be message ids are stored as any others."""
    probe_after: float = 0.1
    probe_every: float = 0.1
    resend_after: float = 2.0
    backoff: float = 0.01
    """The first wait after a refusal; each further one is half as long again."""
    probe_backoff_max: float = 0.05
    refusal_backoff_max: float = 0.25
    refresh_after: float = 1.0
    """Metadata is asked for again when the link has been down this long."""
