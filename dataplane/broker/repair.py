"""How a replica whose log is damaged comes right again, without a restart.

    met ──marked on disk──> withdraws ──out of the ISR and of `eligible`, and ─────────> COPY: cut, then follow
                               │         the LeaderEpoch in which it was met is over
                               │
                               └──the last copy, nobody leads──> read only (`dataplane.broker.remnant`)
                                                                      │
                                                                      └──an operator──> ACCEPT: cut, then lead

Nothing is cut before. In the LeaderEpoch in which the damage was met the leader goes by what it heard of this log: it
may have proposed to take the replica into the ISR, and would again. `PartitionView.loss_accepted` tells an operator's
election from one by a controller that has not heard of the damage yet. Before it cuts, the replica reads its whole log:
it does not come back with a second damage.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Any

from dataplane.log.damage import set_mark
from wire.types import Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.files import FileSystem
    from dataplane.log.partition_log import PartitionLog
    from wire.types import BrokerId, LeaderEpoch, PartitionKey, PartitionView

log = logging.getLogger(__name__)


class WayBack(Enum):
    COPY = "the records come from the leader"
    ACCEPT = "an operator accepts the loss of what is damaged and of what lies behind it"


def way_back(view: PartitionView, broker: BrokerId, met_in: LeaderEpoch) -> WayBack | None:
    """How the damaged replica of `broker` may be repaired; None: others may count on it, or nobody could help it.
    `met_in`: the damage was met in that LeaderEpoch; 0: before this life of the process had one."""
    if view.leader == broker:
        # It may have been met long after the operator's word, in the LeaderEpoch that the word began.
        return WayBack.ACCEPT if view.loss_accepted and view.leader_epoch > met_in else None
    if view.leader is None or broker in view.isr or broker in view.eligible:
        return None
    return WayBack.COPY if view.leader_epoch > met_in else None


def mark(files: FileSystem, directory: Path, reason: str, key: PartitionKey) -> None:
    """So that no restart forgets it. Blocking."""
    try:
        set_mark(files, directory, reason)
    except OSError as error:
        log.error("partition %s: that it is damaged cannot be written down: %s", key, error)


def repair(partition_log: PartitionLog, key: PartitionKey, way: WayBack, *, time_ns: int) -> dict[str, Any]:
    """Cut the damage and all behind it; the report of that. Blocking; in a thread. Raises LogDamaged."""
    lost = way is WayBack.ACCEPT
    damage = partition_log.checking.examine(without_beginning=lost)
    report = partition_log.checking.cut_damage(damage, when_ns=time_ns, lost=lost)
    if way is WayBack.COPY and partition_log.is_without_past():
        partition_log.drop_all(Offset(0))  # the leader says where it may begin, and what is to be known there
    log.warning(
        "partition %s: cut a damaged log to offset %d, it went up to %d (%s): %s",
        key, damage.sound_end, damage.known_end, way.value, damage.reason,
    )  # fmt: skip
    return report
