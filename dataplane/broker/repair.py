"""The repair of a replica with a damaged log, without a restart.

    met ──marked on disk──> withdraws ──out of the ISR and of `eligible`, and ─────────> COPY: cut, then follow
                               │         the LeaderEpoch in which it was met is over
                               │
                               └──the last copy, no leader──> read only (`dataplane.broker.damaged_replica`)
                                                                      │
                                                                      └──an operator──> ACCEPT: cut, then lead

Nothing is cut before. In the LeaderEpoch in which the damage was met the leader goes by what it heard of this log: it
may have proposed to take the replica into the ISR, and would again. `PartitionView.loss_accepted` tells an operator's
election from one by a controller that has not heard of the damage yet. Before it cuts, the replica reads its whole log:
it does not come back with a second damage.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dataplane.log.damage import set_mark
from dataplane.replica.life import RepairMode
from wire.types import Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.files import FileSystem
    from dataplane.log.partition_log import PartitionLog
    from wire.types import PartitionKey

_log = logging.getLogger(__name__)


def mark(files: FileSystem, directory: Path, reason: str, key: PartitionKey) -> None:
    """So that no restart forgets it. Blocking."""
    try:
        set_mark(files, directory, reason)
    except OSError as error:
        _log.error("partition %s: that it is damaged cannot be written down: %s", key, error)


def repair(partition_log: PartitionLog, key: PartitionKey, mode: RepairMode, *, time_ns: int) -> dict[str, Any]:
    """Cut the damage and all behind it; the report of that. Blocking; in a thread. Raises LogDamaged."""
    lost = mode is RepairMode.ACCEPT
    damage = partition_log.checking.examine(without_beginning=lost)
    report = partition_log.checking.cut_damage(damage, when_ns=time_ns, lost=lost)
    if mode is RepairMode.COPY and partition_log.is_without_past():
        partition_log.drop_all(Offset(0))  # the leader tells where it may begin, and its derived state there
    _log.warning(
        "partition %s: cut a damaged log to offset %d, it went up to %d (%s): %s",
        key, damage.sound_end, damage.known_end, mode.value, damage.reason,
    )  # fmt: skip
    return report
