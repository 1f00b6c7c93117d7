"""Whether a partition takes a publish, by the partitioning version that the publish names (R61).

Routed is a partition over which the newest layout spreads keys. The other ones are made ready for the next layout
(ACTIVE), or are left from an earlier one (DRAINING, then RETIRED); they take no records of `.append` requests.

    the request names   the view: newest version, all told       newest version, cutovers awaited  not routed
    an older version    STALE_PARTITIONING                       STALE_PARTITIONING, or held       as where it is routed
    the newest one      taken                                    held until they are told          refused by state
    a newer one         held until it is applied                 held                              held
    none (0)            taken                                    taken                             refused by state

All told: the cutover of this partition, and those of all partitions from which keys come to it. A leader there that has
not heard of the newest version may still acknowledge older records of the same keys. By state: STALE_PARTITIONING where
it is made ready, PARTITION_DRAINING, PARTITION_RETIRED. Nothing that is held is in the log.

STALE_PARTITIONING says that no log holds the batch, and none ever will: its client writes the records to other
partitions. A replica that may lead next may hold what this leader lacks, until it has cut its log to the leader's. So
while the cutover of the partition is awaited, and not all these replicas have (`can_deny`), an older version is held.
"""

from __future__ import annotations

from enum import Enum

from wire.error_details import LEADER, RETRY_AFTER_MS, VERSION
from wire.errors import Code, TidelogError
from wire.types import PartitionState, PartitionView

_WHY_NOT_ROUTED = {
    PartitionState.ACTIVE: "made ready for the next layout",
    PartitionState.DRAINING: "draining",
    PartitionState.RETIRED: "retired",
}


class VersionAwaited(Enum):
    AWAITED = "awaited"
    """The request names a layout that has not begun here, or whose end is not known yet: it is held, and judged again
    by the next view."""


# R61: A leader appends what names the newest partitioning version once all partitions from which its keys come have
# reported their cutover; until then, and for a newer version, the request is held for 0.25 s at most. An older version
# is STALE_PARTITIONING, held while another replica may have the batch. A repetition is looked for first, so the
# refusal says that no log holds the batch. Each batch is stamped with the version, with the one before while a cutover
# is awaited.
# Hazard: A key whose older record comes behind a newer one; a record that is in two partitions.
def judge(view: PartitionView, version: int, *, can_deny: bool) -> TidelogError | VersionAwaited | None:
    """Whether a batch that is no repetition is taken from an `.append` request that names `version`, 0: none. None: it
    is. An error: it is not stored, and by no leader with this view or a later one. `can_deny`: no replica that may lead
    holds what the leader's log lacks."""
    if version > view.partitioning_version:
        return VersionAwaited.AWAITED
    if 0 < version < view.partitioning_version:
        if view.awaits_cutover and not can_deny:
            return VersionAwaited.AWAITED
        return _stale(
            view,
            f"stream {view.key.stream} is in partitioning version {view.partitioning_version}, the request in"
            f" {version}; refresh the metadata",
        )
    if not view.is_routed:
        sentence = (
            f"partition {view.key} is {_WHY_NOT_ROUTED[view.state]}: in partitioning version"
            f" {view.partitioning_version} keys are spread over partitions 0 to {view.partition_count - 1}; refresh the"
            " metadata"
        )
        if view.state is PartitionState.ACTIVE:
            return _stale(view, sentence)
        is_draining = view.state is PartitionState.DRAINING
        return TidelogError(Code.PARTITION_DRAINING if is_draining else Code.PARTITION_RETIRED, sentence)
    return VersionAwaited.AWAITED if version and _awaits(view) else None


def not_applied(view: PartitionView, version: int) -> TidelogError:
    """The answer to a request that was held in vain. Only where nothing of its version was ever stored it has VERSION:
    a client takes that for a proof that the batch is in no log."""
    if version < view.partitioning_version:
        return TidelogError(
            Code.UNAVAILABLE,
            f"stream {view.key.stream} is in partitioning version {view.partitioning_version}, the request in"
            f" {version}, and {view.leader} does not know yet whether another replica of partition {view.key.partition}"
            " holds the batch; try again",
            [RETRY_AFTER_MS.of(50)],
        )
    return TidelogError(
        Code.UNAVAILABLE,
        f"{view.leader} has not applied partitioning version {version} of stream {view.key.stream} in partition"
        f" {view.key.partition} yet; try again",
        [VERSION.of(view.partitioning_version), RETRY_AFTER_MS.of(50)],
    )


# Keeps R63.
def takes_plain(view: PartitionView) -> bool:
    """Whether plain messages and envelopes are taken. A partition that keys are not spread over any more takes them
    until its cutover is reported: another one listens in its place from then on."""
    return view.is_routed or (view.state is PartitionState.DRAINING and view.awaits_cutover)


# R63: Plain messages always have a listener. The leader of a routed partition listens on its own subject and on those
# of the partitions that have left with the same number modulo the count, also when these are removed. A leader that
# leaves takes plain messages behind E until its cutover is known, and then says nothing. A partition that is made
# ready listens from its cutover on.
# Hazard: A publish request that meets no listener while the number of partitions changes.
# Not covered: A message without a reply subject that comes between the two views may be stored by none, or by both; a
# request may meet no listener until its timeout.
def plain_subjects(view: PartitionView) -> tuple[str, ...]:
    """On which its leader listens for plain messages and envelopes, its own first."""
    return (view.subject, *view.further_subjects) if takes_plain(view) else ()


def stamped_version(view: PartitionView) -> int:
    """For the headers of the batches that a leader appends; 0: the first. Until all is told they are of the layout
    before, so a batch of a version is in a log only where it is known what has to be read before."""
    version = view.partitioning_version - _awaits(view)
    return version if version > 1 else 0


def _awaits(view: PartitionView) -> bool:
    return view.awaits_cutover or view.awaits_sources


def _stale(view: PartitionView, sentence: str) -> TidelogError:
    return TidelogError(
        Code.STALE_PARTITIONING, sentence, [VERSION.of(view.partitioning_version), LEADER.of(view.leader or "")]
    )
