"""The states of a partition's ISR as its leader knows it.

    CommittedIsr ──propose expand──> PendingExpandIsr ──a view with a higher epoch──> CommittedIsr
         └────────propose shrink──> PendingShrinkIsr ──a view with a higher epoch──> CommittedIsr

A proposal is a compare-and-set on the partition epoch. Whether it took effect is read from applied metadata only: a
view with a higher epoch settles it either way. While it is pending its outcome is unknown, so:

* the MAXIMAL ISR (committed plus proposed) is what must hold a record before it commits: nobody who may already count
  as in sync may lack it;
* the COMMITTED ISR is what is compared with min ISR: nobody who may not count yet helps to reach it.

One proposal at a time. The ISR is never empty and always holds the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from wire.types import BrokerId, IsrChange


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    members: frozenset[BrokerId]

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.members


@dataclass(frozen=True, slots=True)
class PendingExpandIsr:
    members: frozenset[BrokerId]
    """Committed."""
    added: BrokerId
    change: IsrChange
    sent_at: float

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.members | {self.added}


@dataclass(frozen=True, slots=True)
class PendingShrinkIsr:
    members: frozenset[BrokerId]
    """Committed: those to be dropped are still in it."""
    change: IsrChange
    sent_at: float

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.members


IsrState: TypeAlias = CommittedIsr | PendingExpandIsr | PendingShrinkIsr
