"""What leaders and followers refuse in the same words."""

from __future__ import annotations

from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset, PartitionKey, PartitionView

DELETIONS_GONE = "deletions_gone"
"""Detail of an OFFSET_BEFORE_LOG: the offset is in the log, and yet nothing can be appended to what lies below it."""


def fenced(view: PartitionView, theirs: LeaderEpoch) -> TidelogError:
    """The request is of an older LeaderEpoch than the partition."""
    return TidelogError(
        Code.FENCED_LEADER_EPOCH,
        f"partition {view.key} is in LeaderEpoch {view.leader_epoch}, the request in {theirs}; refresh the metadata",
        {"leader_epoch": str(view.leader_epoch), "leader": view.leader or ""},
    )


def deletions_gone(key: PartitionKey, log_start: Offset, offset: Offset) -> TidelogError:
    """Tombstones at or above `offset` were compacted away: who goes on from there keeps what they deleted."""
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"deletions that follow offset {offset} of {key} were compacted away; begin anew at the log start {log_start}",
        {"log_start": str(log_start), DELETIONS_GONE: "true"},
    )


def before_log(key: PartitionKey, log_start: Offset, offset: Offset) -> TidelogError:
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"offset {offset} of {key} is below the log start {log_start}; start there",
        {"log_start": str(log_start)},
    )
