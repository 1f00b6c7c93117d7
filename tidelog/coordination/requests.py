"""What a coordinator is asked, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from google.protobuf.message import Message as ProtoMessage

from wire.errors import TidelogError
from wire.operations.operation import Operation
from wire.subjects import Subjects

ADMIN_BYTES = 16 << 10
"""Bytes of a request of a broker, roughly."""


@dataclass(frozen=True, slots=True)
class Admin:
    """A request of a broker: an operation of the API, which the controller hands over, or one between coordinators."""

    operation: Operation[..., Any, Any]
    request: Any


Request: TypeAlias = ProtoMessage | Admin
Answer: TypeAlias = ProtoMessage | Mapping[str, Any] | TidelogError


class Delivery(Protocol):
    """A request to another broker, which is repeated until that one has carried it out. Repetitions change nothing.
    Deliveries are values: equal ones are one."""

    def subject(self, subjects: Subjects) -> str: ...

    def payload(self) -> bytes: ...

    def __hash__(self) -> int: ...


@dataclass(slots=True)
class Settled:
    """What the requests that were taken have come to. Nothing of it may be told before `records` are committed."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Key and value, None to delete; to be appended as one batch, by this LeaderEpoch alone. Empty: nothing has
    changed, and the answers need a valid lease."""
    answers: list[tuple[object, Answer]] = field(default_factory=list)
    """By the tokens of the requests. Those that change nothing may have been made in several settlements."""
    begun: set[object] = field(default_factory=set)
    """Tokens of answers that tell what an earlier settlement has decided. Where `records` are not committed, their
    requests may have had their effect nevertheless."""
    unasked: list[tuple[object, Answer]] = field(default_factory=list)
    """For members of groups, on the inboxes of their newest heartbeats."""
    deliveries: list[Delivery] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Sentences for the log, each said when what it tells of has changed."""


def size_of(request: Request) -> int:
    return ADMIN_BYTES if isinstance(request, Admin) else request.ByteSize()


def encoded(records: Mapping[Any, ProtoMessage | None]) -> list[tuple[bytes, bytes | None]]:
    """Records by their keys, as they are written; None deletes."""
    return [
        (key.encode(), None if record is None else record.SerializeToString(deterministic=True))
        for key, record in records.items()
    ]
