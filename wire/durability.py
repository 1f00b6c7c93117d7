"""Durability levels: the copies that must exist of a record before its publish is acknowledged.

    level               a copy counts      who must hold one           in-sync replicas at least
    durable             once it is synced  every member of the ISR     min_isr
    accepted            in the page cache  every member of the ISR     min_isr
    replica_durable:N   once it is synced  every member of the ISR     N
    replica_accepted:N  in the page cache  every member of the ISR     N
    majority_durable    once it is synced  every member of the ISR     half of the replicas, rounded down, and one
    local_durable       once it is synced  the leader alone            -

A stream has one, and a publish may ask for another. Where a stream has it, its number is the stream's min ISR.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from wire.echo import echo


class DurabilityKind(Enum):
    DURABLE = "durable"
    ACCEPTED = "accepted"
    LOCAL_DURABLE = "local_durable"
    REPLICA_ACCEPTED = "replica_accepted"
    REPLICA_DURABLE = "replica_durable"
    MAJORITY_DURABLE = "majority_durable"

    @property
    def takes_number(self) -> bool:
        return self in (DurabilityKind.REPLICA_ACCEPTED, DurabilityKind.REPLICA_DURABLE)


DEFAULT_REPLICAS = 3
"""The replicas of each partition of a stream that is created without a number; fewer in a cluster of fewer brokers."""
MAX_REPLICAS = 16
"""Limit of the replicas of a partition."""


@dataclass(frozen=True, slots=True)
class Durability:
    kind: DurabilityKind
    replicas: int = 0
    """N of `replica_accepted:N` and `replica_durable:N`, else 0."""

    def __post_init__(self) -> None:
        """Raises ValueError with a sentence."""
        name = self.kind.value
        if not self.kind.takes_number:
            if self.replicas:
                raise ValueError(f"{name} takes no number of replicas, and {self.replicas} is given; leave it out")
        elif not 1 <= self.replicas <= MAX_REPLICAS:
            raise ValueError(
                f"the number of replicas of {name} is {self.replicas}, outside 1 to {MAX_REPLICAS};"
                f" give {name}:N with N up to the replication factor"
            )

    @classmethod
    def parse(cls, text: str) -> Durability:
        """Reads a level as users spell it: `durable`, `replica_durable:2`. Raises ValueError with a sentence."""
        name, colon, number = text.strip().lower().partition(":")
        kinds = {kind.value: kind for kind in DurabilityKind}
        kind = kinds.get(name)
        if kind is None:
            raise ValueError(f"{echo(text)} is none of {', '.join(cls.spellings())}; give one of them")
        if kind.takes_number != bool(colon) or (colon and not (number.isascii() and number.isdigit())):
            if kind.takes_number:
                raise ValueError(
                    f"{echo(text)} has no number of replicas; give {name}:N with N up to the replication factor"
                )
            raise ValueError(f"{echo(text)} has a number that {name} does not take; give {name}")
        return cls(kind, int(number) if colon else 0)

    @staticmethod
    def spellings() -> tuple[str, ...]:
        """The spellings of all levels, with N where a number goes."""
        return tuple(f"{kind.value}:N" if kind.takes_number else kind.value for kind in DurabilityKind)

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.replicas}" if self.kind.takes_number else self.kind.value

    @property
    def is_synced(self) -> bool:
        """Whether a copy counts once it is synced; else once it is in the page cache."""
        return self.kind not in (DurabilityKind.ACCEPTED, DurabilityKind.REPLICA_ACCEPTED)

    @property
    def is_local(self) -> bool:
        """Whether the leader's own copy is enough."""
        return self.kind is DurabilityKind.LOCAL_DURABLE

    @property
    def has_floor(self) -> bool:
        """Whether the level fixes the number of members that the ISR must have."""
        return self.kind.takes_number or self.kind is DurabilityKind.MAJORITY_DURABLE

    def in_sync_floor(self, replication_factor: int) -> int:
        """Returns the members that the ISR must have; 0: as many as the stream's min ISR."""
        if self.kind is DurabilityKind.MAJORITY_DURABLE:
            return replication_factor // 2 + 1
        return self.replicas


DURABLE = Durability(DurabilityKind.DURABLE)
ACCEPTED = Durability(DurabilityKind.ACCEPTED)
