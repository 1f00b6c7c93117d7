"""The states of a partition's ISR as its leader knows it.

    CommittedIsr ──propose expand──> PendingExpandIsr ──a view with a higher epoch──> CommittedIsr
         └────────propose shrink──> PendingShrinkIsr ──a view with a higher epoch──> CommittedIsr

A proposal is a compare-and-set on the partition epoch. Whether it took effect is read from applied metadata only: a
view with a higher epoch settles it either way. While it is pending its outcome is unknown, so:

* the MAXIMAL ISR (committed plus proposed) must hold a record before it commits: no replica that may already count as
  in sync may lack it;
* the COMMITTED ISR is compared with min ISR: no replica that may not count yet helps to reach it.

One proposal at a time. The ISR is never empty and always holds the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from wire.errors import require
from wire.types import BrokerId, IsrChange, PartitionView


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
    """Committed: the members to be dropped are still in it."""
    change: IsrChange
    sent_at: float

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.members


IsrState: TypeAlias = CommittedIsr | PendingExpandIsr | PendingShrinkIsr


def validate(isr: IsrState, view: PartitionView) -> None:
    """Raises InvariantViolation. `view`: the newest one that the leader has applied."""
    require(isr.members == frozenset(view.isr), "the committed ISR is that of the newest view", (isr, view.isr))
    require(view.leader in isr.members, "the ISR holds the leader", isr)
    if isinstance(isr, CommittedIsr):
        return
    change = isr.change
    require(change.expected_epoch == view.epoch, "a proposal is made on the newest partition epoch", (isr, view.epoch))
    proposed = frozenset(member.broker for member in change.new_isr)
    require(view.leader in proposed, "no proposal drops the leader", change)
    if isinstance(isr, PendingExpandIsr):
        require(proposed == isr.members | {isr.added} != isr.members, "an expansion adds one replica", isr)
    else:
        require(proposed < isr.members, "a shrinking only drops members", isr)
