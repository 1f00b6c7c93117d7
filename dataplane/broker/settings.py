"""What an operator sets per broker for the storage of its replicas: section `[storage]` of its configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    housekeeping_interval: float = 5.0
    """Seconds from one visit of the housekeeping to a replica to the next."""

    def __post_init__(self) -> None:
        if not self.housekeeping_interval > 0:
            raise ValueError(f"housekeeping_interval ({self.housekeeping_interval} s) must be above 0")
