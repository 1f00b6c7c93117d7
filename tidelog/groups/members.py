"""One member of a group, and the record of it.

    target    the partitions that it should have                         changes when the group's generation grows
    assigned  those that it may read: of its target, and free            grows once nothing is left to be given up
    revoking  those that were assigned, and that it must give up         empty again when it has applied `version`

`version` counts the changes of `assigned`. No two members have a partition in `assigned` or `revoking` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.coordination.streams import PATTERN
from wire.echo import echo, one_line
from wire.errors import Code, TidelogError
from wire.groups import StreamPartition, from_stream_partitions, to_stream_partitions
from wire.groups_pb2 import HeartbeatRequest, MemberRecord, Subscription
from wire.subjects import check_name, check_stream_name

MIN_TIMEOUT_MS: Final = 1000
MAX_TIMEOUT_MS: Final = 3_600_000
"""The longest timeout of sessions and rebalances."""
MAX_SUBSCRIPTION: Final = 1000
"""Streams and patterns of one member."""
MAX_CLIENT: Final = 200
"""Characters of the text with which a member tells who it is; the rest is cut off."""
HEARTBEATS_PER_SESSION: Final = 4
MAX_HEARTBEAT_INTERVAL_MS: Final = 3000

_NONE: frozenset[StreamPartition] = frozenset()


@dataclass(slots=True)
class Member:
    id: str
    instance: str
    """Name of a static member; else empty."""
    client: str
    streams: frozenset[str]
    patterns: frozenset[str]
    session_timeout: float
    """Seconds, as the next one."""
    rebalance_timeout: float
    generation: int = 0
    version: int = 0
    assigned: frozenset[StreamPartition] = _NONE
    revoking: frozenset[StreamPartition] = _NONE
    target: frozenset[StreamPartition] = _NONE
    parted: bool = False
    """A static member that has ended, and may come back until its session ends."""

    # Not in the record.
    session_ends: float = field(default=0.0, compare=False)
    """Monotonic seconds, as the next one."""
    revoke_by: float | None = field(default=None, compare=False)
    is_expelled: bool = field(default=False, compare=False)
    """It has not given up partitions in time: it is a member no more, and has its partitions until its session ends,
    because it may not have heard of it."""
    token: object = field(default=None, compare=False)
    """The token of its newest heartbeat: where it is told of changes. None: it is not told."""
    told: tuple[int, int] = field(default=(0, 0), compare=False)
    """Version and generation that it was told there."""
    newest_commit: int = field(default=0, compare=False)
    """Its highest number of those taken. A new coordinator finds it in the records of offsets: the number of every
    offset that is still this member's."""

    @property
    def is_here(self) -> bool:
        """It heartbeats and commits."""
        return not self.parted and not self.is_expelled

    @property
    def held(self) -> frozenset[StreamPartition]:
        """What no other member may have."""
        return self.assigned | self.revoking

    @property
    def heartbeat_interval_ms(self) -> int:
        return min(MAX_HEARTBEAT_INTERVAL_MS, round(self.session_timeout * 1000 / HEARTBEATS_PER_SESSION))

    @property
    def subscription(self) -> list[str]:
        return sorted(self.streams) + sorted(self.patterns)

    def to_record(self) -> MemberRecord:
        return MemberRecord(
            generation=self.generation,
            instance=self.instance,
            client=self.client,
            subscription=Subscription(streams=sorted(self.streams), patterns=sorted(self.patterns)),
            session_timeout_ms=round(self.session_timeout * 1000),
            rebalance_timeout_ms=round(self.rebalance_timeout * 1000),
            version=self.version,
            assigned=to_stream_partitions(self.assigned),
            revoking=to_stream_partitions(self.revoking),
            target=to_stream_partitions(self.target),
            parted=self.parted,
        )

    @classmethod
    def of_record(cls, member: str, record: MemberRecord) -> Member:
        return cls(
            id=member,
            instance=record.instance,
            client=record.client,
            streams=frozenset(record.subscription.streams),
            patterns=frozenset(record.subscription.patterns),
            session_timeout=record.session_timeout_ms / 1000,
            rebalance_timeout=record.rebalance_timeout_ms / 1000,
            generation=record.generation,
            version=record.version,
            assigned=from_stream_partitions(record.assigned),
            revoking=from_stream_partitions(record.revoking),
            target=from_stream_partitions(record.target),
            parted=record.parted,
        )

    @classmethod
    def of_request(cls, request: HeartbeatRequest) -> Member:
        """That joins. Raises TidelogError."""
        if request.instance:
            check_name(request.instance, "instance id")
        streams, patterns = subscription_of(request)
        return cls(
            id=check_name(request.member, "member id"),
            instance=request.instance,
            client=one_line(request.client, MAX_CLIENT),
            streams=streams,
            patterns=patterns,
            session_timeout=_seconds(request.session_timeout_ms, "session_timeout"),
            rebalance_timeout=_seconds(request.rebalance_timeout_ms, "rebalance_timeout"),
        )


def subscription_of(request: HeartbeatRequest) -> tuple[frozenset[str], frozenset[str]]:
    """Streams and patterns. Raises TidelogError."""
    wanted = request.subscription
    count = len(wanted.streams) + len(wanted.patterns)
    if not 0 < count <= MAX_SUBSCRIPTION:
        raise TidelogError(
            Code.BAD_REQUEST, f"a subscription to {count} streams and patterns; 1 to {MAX_SUBSCRIPTION} are taken"
        )
    for name in wanted.streams:
        check_stream_name(name)
    for pattern in wanted.patterns:
        if PATTERN.fullmatch(pattern) is None:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"{echo(pattern)} is no pattern of stream names: 1 to 64 characters of A-Z, a-z, 0-9, '_', '-', '*'"
                " (any characters) and '?' (one)",
            )
    return frozenset(wanted.streams), frozenset(wanted.patterns)


def _seconds(given_ms: int, name: str) -> float:
    if not MIN_TIMEOUT_MS <= given_ms <= MAX_TIMEOUT_MS:
        raise TidelogError(
            Code.BAD_REQUEST, f"{name} of {given_ms} ms is outside {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS} ms"
        )
    return given_ms / 1000
