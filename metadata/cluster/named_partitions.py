"""Partitions of one kind, in a sentence for an operator: their number, and the names of the first ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from wire.types import PartitionKey

MAX_NAMED: Final = 10
"""Limit of the partitions of one kind that are named; all are counted."""


@dataclass(slots=True)
class NamedPartitions:
    """Partitions of one kind."""

    count: int = 0
    named: list[PartitionKey] = field(default_factory=list)

    def add(self, key: PartitionKey) -> None:
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(key)

    def __str__(self) -> str:
        names = ", ".join(str(key) for key in self.named)
        return f"{self.count} ({names}{', …' if self.count > len(self.named) else ''})"
