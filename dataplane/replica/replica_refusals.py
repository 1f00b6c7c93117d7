"""Refusals that leaders and followers give in the same words."""

from __future__ import annotations

from typing import Final

from wire.error_details import (
    DELETIONS_GONE,
    EXPECTED_SEQUENCE,
    LEADER,
    LEADER_EPOCH,
    LOG_START,
    REASON,
    RETRY_AFTER_MS,
)
from wire.errors import Code, TidelogError
from wire.types import BrokerId, LeaderEpoch, Offset, PartitionKey, PartitionView

REFUSED_BY_ANY_LEADER: Final = frozenset(
    {
        Code.RECORD_TOO_LARGE,
        Code.CORRUPT_ENVELOPE,
        Code.CORRUPT_BATCH,
        Code.LIMIT_REACHED,
        Code.BAD_REQUEST,
        Code.WRONG_STREAM,
        Code.NOT_SUPPORTED,
        Code.WRONG_INCARNATION,
        Code.STALE_PARTITIONING,
        Code.PARTITION_DRAINING,
        Code.PARTITION_RETIRED,
        Code.READONLY,
    }
)
"""They follow from the message itself, or from the stream's settings: a successor refuses the same message as well. All
other refusals follow from the state of one broker."""


# R35: A bare publish, an envelope, and an `.append` without a LeaderEpoch are answered by the leader alone. A broker
# that does not lead, or has no lease, says nothing. Inside the lease, "not stored" is said only where it holds for
# every leader, since it follows from the message or from the stream's settings; every other refusal becomes
# OUTCOME_UNKNOWN with the code as detail `reason`.
# Hazard: A publisher takes "not stored" for final, or sends again, and the record is there, or there twice.
# Not covered: A setting that is changed in the same seconds in which the leader changes, while the deposed leader is
# inside its lease and knows of neither.
def answer_without_epoch(
    error: TidelogError, broker: BrokerId, view: PartitionView, *, lease_valid: bool
) -> TidelogError | None:
    """The answer to a publish that names no LeaderEpoch (a bare one, an envelope, an `.append` with epoch 0), where
    `broker`, which believes that it leads, has nothing better for it than `error`. None: nothing is said.

    Every broker that believes it leads receives such a publish. A broker without a lease is silent: another one may
    lead, and the answer is its. Inside the lease it may have been deposed all the same. So it knows that it did not
    store the record, and does not know that no other broker did.
    """
    if not lease_valid or error.code is Code.NOT_LEADER:
        return None
    if error.code.unknown_outcome or error.code in REFUSED_BY_ANY_LEADER or len(view.replicas) == 1:
        return error
    return TidelogError(
        Code.OUTCOME_UNKNOWN,
        f"{error.message} ({broker} did not store the record; should another broker lead {view.key} by now, that one"
        " may have)",
        [*error.details.items(), REASON.of(error.code.name)],
    )


def fenced(view: PartitionView, theirs: LeaderEpoch) -> TidelogError:
    """The request is of an older LeaderEpoch than the partition."""
    return TidelogError(
        Code.FENCED_LEADER_EPOCH,
        f"partition {view.key} is in LeaderEpoch {view.leader_epoch}, the request in {theirs}; refresh the metadata",
        [LEADER_EPOCH.of(view.leader_epoch), LEADER.of(view.leader or "")],
    )


def not_denied(view: PartitionView, refusal: TidelogError) -> TidelogError:
    """In place of `refusal`, which says that no log holds a batch, while another replica may hold it (R33)."""
    expected = refusal.detail(EXPECTED_SEQUENCE)
    return TidelogError(
        Code.UNAVAILABLE,
        f"{view.leader} does not know yet whether another replica of {view.key} holds a batch that its own log lacks"
        f" ({refusal.message}); try again",
        [RETRY_AFTER_MS.of(20), *([] if expected is None else [EXPECTED_SEQUENCE.of(expected)])],
    )


def deletions_gone(key: PartitionKey, log_start: Offset, offset: Offset) -> TidelogError:
    """Tombstones at or above `offset` were compacted away: a follower that goes on from there keeps deleted records."""
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"deletions that follow offset {offset} of {key} were compacted away; begin anew at the log start {log_start}",
        [LOG_START.of(log_start), DELETIONS_GONE.of(True)],
    )


def over_budget(key: PartitionKey, replica: BrokerId, wait_s: float) -> TidelogError:
    """A replica outside the ISR asks while its leader's budget for catching up is used up."""
    return TidelogError(
        Code.BACKPRESSURE,
        f"{replica}, which catches up with {key}, has to wait {wait_s:.3f} s for the replication budget of the leader's"
        " broker (network_capacity x replication_budget_fraction of the cluster)",
        [RETRY_AFTER_MS.of(round(wait_s * 1000) + 1)],
    )


def before_log(key: PartitionKey, log_start: Offset, offset: Offset) -> TidelogError:
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"offset {offset} of {key} is below the log start {log_start}; start there",
        [LOG_START.of(log_start)],
    )
