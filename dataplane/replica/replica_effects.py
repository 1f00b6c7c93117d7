"""The effects that the state machines ask for. The driver carries effects out in the order given.

Order matters where durability does: `RequestSync` asks for an fdatasync whose completion comes back as `on_synced`; an
end that must be durable before it is reported is reported only by the effects of that event.

Effects are never changed. The effects of every batch are not frozen all the same: making a frozen dataclass takes three
times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dataplane.replica.replies import MoveRequest, ProduceToken, Reader
from wire.errors import TidelogError
from wire.types import BrokerId, CutoverReport, IsrChange, LeaderEpoch, LeaderReport, LossReport, Offset, PauseChange


# ---------------------------------------------------------------- leader
@dataclass(slots=True)
class Respond:
    """Answer a follower: header, then batches from `offset` on (none when `max_bytes` is 0)."""

    replica: BrokerId
    inbox: str
    offset: Offset
    max_bytes: int
    high_watermark: Offset
    sync_to: Offset = Offset(0)
    """The follower is asked to sync its log up to here, and to report it; 0: it is not asked."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error (headers) and the 16-byte header."""

    inbox: str
    error: TidelogError


@dataclass(frozen=True, slots=True)
class Notify:
    """Publish a PartitionNotification to that broker."""

    replica: BrokerId


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    change: IsrChange


@dataclass(frozen=True, slots=True)
class ProposePause:
    change: PauseChange


@dataclass(frozen=True, slots=True)
class ReportCutover:
    report: CutoverReport


@dataclass(slots=True)
class CompleteProduce:
    """An acknowledged publish is through (`error` None) or has ended otherwise."""

    token: ProduceToken
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class CompleteDrain:
    """The target of a planned move holds the whole log (`error` None), or leadership stays or ends otherwise."""

    token: MoveRequest
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class VerifyOwnCopy:
    """A follower refused the batch at `offset`: read it again; when our own copy is damaged, withdraw."""

    offset: Offset
    reason: str


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Answer with the bytes from `position` on, as many as fit, of the snapshot at `offset`, the log start."""

    replica: BrokerId
    inbox: str
    offset: Offset
    position: int
    high_watermark: Offset


# ---------------------------------------------------------------- follower
@dataclass(slots=True)
class SendFetch:
    """Ask the leader for batches from `offset` on; with `progress_only` just report."""

    sequence: int
    offset: Offset
    durable_end: Offset | None
    progress_only: bool
    refused_batch: str = ""
    no_space: bool = False
    """This replica can take no records at present."""
    disk_hangs: bool = False
    """This replica syncs nothing at present."""
    log_start_offset: Offset = Offset(0)
    """The log start of this replica: it serves consumers nothing below it."""


@dataclass(frozen=True, slots=True)
class SendOffsetRequest:
    """Ask the leader where `asked_epoch` ends."""

    asked_epoch: LeaderEpoch
    number: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to `offset`, once, synced; completion: `on_truncated`."""

    offset: Offset
    gives_up_committed: bool = False
    """The cut records go into the quarantine first: some of them are committed, and the metadata knows of its loss."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """Begin at offset 0, with nothing; completion: `on_truncated`."""


@dataclass(frozen=True, slots=True)
class SendSnapshotRequest:
    """Ask the leader for its snapshot at `offset` (None: at its log start), from byte `position` on."""

    number: int
    offset: Offset | None
    position: int


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Drop the local log and begin at `offset`, the leader's log start, with the snapshot that `pieces` are,
    durably and all at once; completion: `on_truncated`, or `on_bad_snapshot` when it is not sound."""

    offset: Offset
    pieces: tuple[bytes, ...]
    deleted_end: Offset = Offset(0)
    """Records that tombstones below it deleted will not come from the leader."""
    gives_up_committed: bool = False
    """As of `Truncate`."""


@dataclass(slots=True)
class AppendReplicated:
    """Append the batches of the answer at hand; completion: `on_appended`."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class ReportLeader:
    report: LeaderReport


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """The leader lacks committed records that are here; repeated until its LeaderEpoch is over."""

    report: LossReport


# ---------------------------------------------------------------- both
@dataclass(frozen=True, slots=True)
class ServeConsumer:
    """Answer a consumer with committed batches from `offset` on (none when `max_bytes` is 0), below `end`: the HW, or
    the last stable offset, as it asked."""

    token: Reader
    offset: Offset
    max_bytes: int
    end: Offset


@dataclass(frozen=True, slots=True)
class RefuseConsumer:
    token: Reader
    error: TidelogError


@dataclass(frozen=True, slots=True)
class RequestSync:
    """fdatasync the log; completion: `on_synced`."""


LeaderEffect: TypeAlias = (
    Respond
    | Refuse
    | Notify
    | ProposeIsr
    | ProposePause
    | ReportCutover
    | CompleteProduce
    | ServeConsumer
    | RefuseConsumer
    | CompleteDrain
    | VerifyOwnCopy
    | SendSnapshot
    | RequestSync
)
FollowerEffect: TypeAlias = (
    SendFetch
    | SendOffsetRequest
    | Truncate
    | StartOver
    | SendSnapshotRequest
    | InstallSnapshot
    | AppendReplicated
    | ReportLeader
    | ReportLoss
    | ServeConsumer
    | RefuseConsumer
    | RequestSync
)
