"""What every shard is to its coordinator; see the package. A shard of a kind is a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.known_streams import StreamsView
from tidelog.server.coordinators.record_times import Times
from wire.errors import TidelogError
from wire.operations.operation import Operation
from wire.subjects import Subjects
from wire.turns import Steps

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


class Abandoned(NamedTuple):
    """Tokens of requests."""

    without_effect: list[object]
    begun: list[object]
    """A part of their effect may be committed."""


class _Making(NamedTuple):
    token: object
    steps: Steps[Answer]
    has_begun: bool


class Shard(ABC):
    """Requests are taken with a token, which stands before their answer. What they are is known to the subclass."""

    def __init__(self) -> None:
        self.unknown_records = 0
        """Records of kinds that this version does not know; they are left as they are."""
        self._taken: deque[tuple[object, Any]] = deque()
        """And not carried out."""
        self._lengthy: deque[tuple[object, Any]] = deque()
        """The same, of which each is answered in turns: it waits until the one before is answered, and holds up no
        others."""
        self._taken_bytes = 0
        self._making: deque[_Making] = deque()
        """Answers that are made in turns, one after the other."""
        self._made: list[_Making] = []
        """Those that `settle` has finished."""
        self._in_hand: list[object] = []
        """Tokens of the requests that `settle` is carrying out."""
        self._awaited: set[Delivery] = set()
        """Deliveries that were not confirmed yet, nor given up."""

    # ---- the log ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record of the log, in its order. Raises DecodeError for one whose value cannot be read."""

    @abstractmethod
    def begin(self, view: StreamsView, now: float) -> None:
        """Everything was replayed."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it has, for the broker's log."""

    # ---- requests and events ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that were taken and are not carried out, or not answered yet because that takes turns."""
        return len(self._taken) + len(self._lengthy) + len(self._making)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of those that are not carried out. One at a time is, of those whose answers take turns."""
        return self._taken_bytes

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """There is something to settle."""

    def take(self, token: object, request: Any) -> None:
        (self._lengthy if self._takes_turns(request) else self._taken).append((token, request))
        self._taken_bytes += size_of(request)

    def take_over(self, other: Self) -> None:
        """What waits there."""
        for waiting in (other._taken, other._lengthy):
            while waiting:
                self.take(*waiting.popleft())
        other._taken_bytes = 0

    def abandon(self) -> Abandoned:
        """All requests that are not answered are given up."""
        in_turns = [*self._made, *self._making]
        tokens = [each.token for each in in_turns if not each.has_begun]
        tokens += [*self._in_hand, *(token for token, _ in (*self._taken, *self._lengthy))]
        begun = [each.token for each in in_turns if each.has_begun]
        self._taken.clear()
        self._lengthy.clear()
        self._making.clear()
        self._taken_bytes = 0
        self._is_settled()
        return Abandoned(tokens, begun)

    @abstractmethod
    def on_streams(self, view: StreamsView) -> None: ...

    def awaits(self, delivery: Delivery) -> bool:
        """It is still to be repeated until it is confirmed."""
        return delivery in self._awaited

    def on_delivered(self, delivery: Delivery) -> None:
        """It was confirmed."""
        self._awaited.discard(delivery)

    # ---- settling --------------------------------------------------------------------------------------------------

    @abstractmethod
    def settle(self, now: float, times: Times) -> Settled:
        """Carries out what was taken, as much of it as is to be committed together; `is_waiting` tells whether
        something is left. `now`: monotonic seconds."""

    @abstractmethod
    def next_deadline(self) -> float:
        """When to settle at the latest, in monotonic seconds; infinity: nothing is waited for."""

    @abstractmethod
    def _takes_turns(self, request: Any) -> bool:
        """Its answer does."""

    @property
    def _has_taken(self) -> bool:
        """A request can be carried out now."""
        return bool(self._taken or (self._lengthy and not self._making))

    def _next_taken(self) -> tuple[object, Any]:
        """The next one to carry out, which is in hand now."""
        token, request = (self._taken if self._making or not self._lengthy else self._lengthy).popleft()
        self._taken_bytes -= size_of(request)
        self._in_hand.append(token)
        return token, request

    def _is_settled(self) -> None:
        """Nothing is in hand any more."""
        self._in_hand.clear()
        self._made.clear()

    @property
    def is_making_answers(self) -> bool:
        return bool(self._making or self._lengthy)

    def _answer_in_turns(self, token: object, steps: Steps[Answer], *, has_begun: bool = False) -> None:
        """The request in hand is answered with what `steps` return. `has_begun`: it has had an effect."""
        self._in_hand.remove(token)
        self._making.append(_Making(token, steps, has_begun))

    def _make_answers(self, looks: int, settled: Settled) -> None:
        """For so many looks."""
        while self._making and looks > 0:
            making = self._making[0]
            try:
                looks -= next(making.steps)
                continue
            except StopIteration as end:
                answer: Answer = end.value
            except TidelogError as error:
                answer = error
            self._made.append(self._making.popleft())
            settled.answers.append((making.token, answer))
            if making.has_begun:
                settled.begun.add(making.token)

    @abstractmethod
    def validate(self) -> None:
        """Raises InvariantViolation."""
