"""One member of a group, and the record of it.

    target    the partitions that it should have                         changes when the group's generation grows
    assigned  those that it may read: of its target, and free            grows once nothing is left to be given up
    revoking  those that were assigned, and that it must give up         empty again when it has applied `version`

`version` counts the changes of `assigned`. No two members have a partition in `assigned` or `revoking` at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.server.coordinators.groups.selection import Subscribed
from tidelog.server.coordinators.known_streams import PATTERN
from wire.echo import echo, one_line
from wire.errors import Code, TidelogError, limit_reached
from wire.internal_records.group_records import StreamPartition, from_stream_partitions, to_stream_partitions
from wire.names import check_name
from wire.protobuf.groups_pb2 import HeartbeatRequest, MemberRecord, Subscription
from wire.subjects import check_stream_name

MIN_TIMEOUT_MS: Final = 1000
MAX_TIMEOUT_MS: Final = 3_600_000
"""The longest timeout of sessions and rebalances."""
MAX_SUBSCRIPTION: Final = 1000
"""Streams and patterns of one member."""
MAX_PATTERNS: Final = 32
"""Most of these that are patterns: each looks at the names of all streams."""
MAX_STARS: Final = 8
"""Stars of one pattern."""
MAX_CLIENT: Final = 200
"""Characters of the text by which a member identifies itself; the rest is cut off."""
HEARTBEATS_PER_SESSION: Final = 4
MAX_HEARTBEAT_INTERVAL_MS: Final = 3000

_NONE: frozenset[StreamPartition] = frozenset()


@dataclass(slots=True)
class Member:
    id: str
    instance: str
    """Instance id of a static member; else empty."""
    client: str
    subscribed: Subscribed
    session_timeout: float
    """Seconds, as `rebalance_timeout`."""
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
    """Monotonic seconds, as `revoke_by`."""
    revoke_by: float | None = field(default=None, compare=False)
    is_expelled: bool = field(default=False, compare=False)
    """It has not given up partitions in time: it is a member no more, and has its partitions until its session ends,
    because it may not know of it."""
    token: object = field(default=None, compare=False)
    """The token of its newest heartbeat, through which it is notified of changes. None: it is not notified."""
    told: tuple[int, int] = field(default=(0, 0), compare=False)
    """Version and generation of its last notification."""
    newest_commit: int = field(default=0, compare=False)
    """Highest number of its commits. A new coordinator finds it in the records of offsets."""

    @property
    def is_here(self) -> bool:
        """Returns whether it heartbeats and commits."""
        return not self.parted and not self.is_expelled

    @property
    def held(self) -> frozenset[StreamPartition]:
        """Partitions that no other member may have."""
        return self.assigned | self.revoking

    @property
    def heartbeat_interval_ms(self) -> int:
        return min(MAX_HEARTBEAT_INTERVAL_MS, round(self.session_timeout * 1000 / HEARTBEATS_PER_SESSION))

    @property
    def subscription(self) -> list[str]:
        return sorted(self.subscribed.streams) + sorted(self.subscribed.patterns)

    @property
    def bytes(self) -> int:
        """Bytes that are kept of it, besides its partitions."""
        return len(self.id) + len(self.instance) + len(self.client) + self.subscribed.bytes

    def to_record(self) -> MemberRecord:
        target = to_stream_partitions(self.target)
        return MemberRecord(
            generation=self.generation,
            instance=self.instance,
            client=self.client,
            subscription=Subscription(
                streams=sorted(self.subscribed.streams), patterns=sorted(self.subscribed.patterns)
            ),
            session_timeout_ms=round(self.session_timeout * 1000),
            rebalance_timeout_ms=round(self.rebalance_timeout * 1000),
            version=self.version,
            assigned=target if self.assigned == self.target else to_stream_partitions(self.assigned),
            revoking=to_stream_partitions(self.revoking),
            target=target,
            parted=self.parted,
        )

    @classmethod
    def of_record(cls, member: str, record: MemberRecord) -> Member:
        return cls(
            id=member,
            instance=record.instance,
            client=record.client,
            subscribed=Subscribed(frozenset(record.subscription.streams), frozenset(record.subscription.patterns)),
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
        """Returns the member of a JOIN. Raises TidelogError."""
        if request.instance:
            check_name(request.instance, "instance id")
        return cls(
            id=check_name(request.member, "member id"),
            instance=request.instance,
            client=one_line(request.client, MAX_CLIENT),
            subscribed=subscription_of(request),
            session_timeout=_seconds(request.session_timeout_ms, "session_timeout"),
            rebalance_timeout=_seconds(request.rebalance_timeout_ms, "rebalance_timeout"),
        )


def subscription_of(request: HeartbeatRequest) -> Subscribed:
    """Returns the subscription of a request, checked. Raises TidelogError."""
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
        if pattern.count("*") > MAX_STARS:
            raise limit_reached(
                "pattern_stars",
                f"pattern {echo(pattern)} has {pattern.count('*')} stars, and {MAX_STARS} are taken; use fewer",
            )
    if len(wanted.patterns) > MAX_PATTERNS:
        raise limit_reached(
            "member_patterns",
            f"a subscription to {len(wanted.patterns)} patterns of stream names, and a member has {MAX_PATTERNS} at"
            " most; name the streams, or choose names that fewer patterns match",
        )
    return Subscribed(frozenset(wanted.streams), frozenset(wanted.patterns))


def _seconds(given_ms: int, name: str) -> float:
    if not MIN_TIMEOUT_MS <= given_ms <= MAX_TIMEOUT_MS:
        raise TidelogError(
            Code.BAD_REQUEST, f"{name} of {given_ms} ms is outside {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS} ms"
        )
    return given_ms / 1000
