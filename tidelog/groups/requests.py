"""What a coordinator is asked, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import Message as ProtoMessage

from wire.errors import TidelogError
from wire.groups_pb2 import CommitRequest, CursorRequest, HeartbeatRequest, OffsetsRequest
from wire.operation import Operation


@dataclass(frozen=True, slots=True)
class Admin:
    """An operation of the API, which the controller hands over."""

    operation: Operation[..., Any, Any]
    request: Any


Request: TypeAlias = HeartbeatRequest | CommitRequest | OffsetsRequest | CursorRequest | Admin
Answer: TypeAlias = ProtoMessage | Mapping[str, Any] | TidelogError


@dataclass(slots=True)
class Settled:
    """What the requests that were taken have come to. Nothing of it may be told before `records` are committed."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Key and value, None to delete; to be appended as one batch, by this LeaderEpoch alone. Empty: nothing has
    changed, and the answers need a valid lease."""
    answers: list[tuple[object, Answer]] = field(default_factory=list)
    """By the tokens of the requests."""
    unasked: list[tuple[object, Answer]] = field(default_factory=list)
    """For members, on the inboxes of their newest heartbeats."""
