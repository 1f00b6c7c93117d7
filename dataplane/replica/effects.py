"""What the state machines want done. The driver carries effects out in the order given.

Order matters where durability does: `RequestSync` asks for an fdatasync whose completion comes back as `on_synced`; an
end that must be durable before it is reported is reported only by the effects of that event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from wire.errors import TidelogError
from wire.types import BrokerId, IsrChange, LeaderEpoch, LeaderReport, Offset


# ---------------------------------------------------------------- leader
@dataclass(frozen=True, slots=True)
class Respond:
    """Answer a follower: header, then batches from `offset` on (none when `max_bytes` is 0)."""

    replica: BrokerId
    inbox: str
    offset: Offset
    max_bytes: int
    high_watermark: Offset


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
class CompleteProduce:
    """An acknowledged publish is through (`error` None) or has ended otherwise."""

    token: object
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class CompleteDrain:
    """The target of a planned move holds the whole log (`error` None), or leadership stays or ends otherwise."""

    token: object
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class VerifyOwnCopy:
    """A follower refused what lies at `offset`: read it again; when our own copy is damaged, withdraw."""

    offset: Offset
    reason: str


# ---------------------------------------------------------------- follower
@dataclass(frozen=True, slots=True)
class SendFetch:
    """Ask the leader for batches from `offset` on; with `progress_only` just report."""

    sequence: int
    offset: Offset
    durable_end: Offset | None
    progress_only: bool
    refused_batch: str = ""
    no_space: bool = False
    """This replica can take no records at present."""


@dataclass(frozen=True, slots=True)
class SendOffsetRequest:
    """Ask the leader where `asked_epoch` ends."""

    asked_epoch: LeaderEpoch
    number: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log to `offset`, once, synced; completion: `on_truncated`."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class SkipAhead:
    """Drop the local log and begin at the leader's log start; completion: `on_truncated`."""

    log_start: Offset


@dataclass(frozen=True, slots=True)
class AppendReplicated:
    """Append the batches of the answer at hand; completion: `on_appended`."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class ReportLeader:
    report: LeaderReport


# ---------------------------------------------------------------- both
@dataclass(frozen=True, slots=True)
class ServeConsumer:
    """Answer a consumer with committed batches from `offset` on (none when `max_bytes` is 0), below
    `high_watermark`."""

    token: object
    offset: Offset
    max_bytes: int
    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class RefuseConsumer:
    token: object
    error: TidelogError


@dataclass(frozen=True, slots=True)
class RequestSync:
    """fdatasync what was appended; completion: `on_synced`."""


LeaderEffect: TypeAlias = (
    Respond
    | Refuse
    | Notify
    | ProposeIsr
    | CompleteProduce
    | ServeConsumer
    | RefuseConsumer
    | CompleteDrain
    | VerifyOwnCopy
    | RequestSync
)
FollowerEffect: TypeAlias = (
    SendFetch
    | SendOffsetRequest
    | Truncate
    | SkipAhead
    | AppendReplicated
    | ReportLeader
    | ServeConsumer
    | RefuseConsumer
    | RequestSync
)
