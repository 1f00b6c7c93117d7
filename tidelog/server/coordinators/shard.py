"""The interface of a shard to its coordinator; see the package. A shard of a kind is a subclass."""

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
    """The result of the requests taken. Nothing of it may leave before `records` are committed."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Key and value, None to delete; to be appended in one go, by this LeaderEpoch alone. Empty: nothing has
    changed, and the answers need a valid lease."""
    answers: list[tuple[object, Answer]] = field(default_factory=list)
    """Answers with the tokens of their requests. Those that change nothing may have been made in several
    settlements."""
    begun: set[object] = field(default_factory=set)
    """Tokens of answers that report the decision of an earlier settlement. Where `records` are not committed, their
    requests may have had their effect nevertheless."""
    unasked: list[tuple[object, Answer]] = field(default_factory=list)
    """Notifications of group members, on the inboxes of their newest heartbeats."""
    deliveries: list[Delivery] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Sentences for the log, each said when its subject has changed."""


def size_of(request: Request) -> int:
    return ADMIN_BYTES if isinstance(request, Admin) else request.ByteSize()


def encoded(records: Mapping[Any, ProtoMessage | None]) -> list[tuple[bytes, bytes | None]]:
    """Records by their keys, as they are written; None deletes."""
    return [
        (key.encode(), None if record is None else record.SerializeToString(deterministic=True))
        for key, record in records.items()
    ]


class Abandoned(NamedTuple):
    """Tokens of the requests given up."""

    without_effect: list[object]
    begun: list[object]
    """Requests of which a part may be committed."""


class _Making(NamedTuple):
    token: object
    steps: Steps[Answer]
    has_begun: bool


class Shard(ABC):
    """Requests are taken with a token, under which they are answered. Their types are known to the subclass."""

    def __init__(self) -> None:
        self.unknown_records = 0
        """Records of kinds that this version does not know; they are left as they are."""
        self._taken: deque[tuple[object, Any]] = deque()
        """Requests that were taken and are not carried out."""
        self._lengthy: deque[tuple[object, Any]] = deque()
        """Like `_taken`, for requests answered in turns: each waits until the one before is answered, and holds
        up no others."""
        self._taken_bytes = 0
        self._making: deque[_Making] = deque()
        """Answers that are made in turns, one after the other."""
        self._made: list[_Making] = []
        """Answers that `settle` has finished."""
        self._in_hand: list[object] = []
        """Tokens of the requests that `settle` is carrying out."""
        self._awaited: set[Delivery] = set()
        """Deliveries that were neither confirmed nor given up yet."""

    # ---- the log ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def replay(self, key: bytes, value: bytes | None) -> None:
        """Takes one record of the log, in log order. Raises DecodeError for one whose value cannot be read."""

    @abstractmethod
    def begin(self, view: StreamsView, now: float) -> None:
        """Starts the shard: the whole log was replayed."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """Describes the state in one sentence for the broker's log."""

    # ---- requests and events ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of requests that were taken and are not carried out, or whose answers in turns are not finished."""
        return len(self._taken) + len(self._lengthy) + len(self._making)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the requests that are not carried out. Of those answered in turns, one at a time is carried out."""
        return self._taken_bytes

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """There is something to settle."""

    def take(self, token: object, request: Any) -> None:
        (self._lengthy if self._takes_turns(request) else self._taken).append((token, request))
        self._taken_bytes += size_of(request)

    def take_over(self, other: Self) -> None:
        """Takes the requests that wait in `other`."""
        for waiting in (other._taken, other._lengthy):
            while waiting:
                self.take(*waiting.popleft())
        other._taken_bytes = 0

    def abandon(self) -> Abandoned:
        """Gives up all requests that are not answered; returns their tokens."""
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
        """Returns whether `delivery` is still to be repeated until it is confirmed."""
        return delivery in self._awaited

    def on_delivered(self, delivery: Delivery) -> None:
        """Forgets `delivery`: it was confirmed."""
        self._awaited.discard(delivery)

    # ---- settling --------------------------------------------------------------------------------------------------

    @abstractmethod
    def settle(self, now: float, times: Times) -> Settled:
        """Carries out the requests taken, as many as are to be committed together; `is_waiting` says whether
        some are left. `now`: monotonic seconds."""

    @abstractmethod
    def next_deadline(self) -> float:
        """When to settle at the latest, in monotonic seconds; infinity: nothing is waited for."""

    @abstractmethod
    def _takes_turns(self, request: Any) -> bool:
        """Returns whether `request` is answered in turns."""

    @property
    def _has_taken(self) -> bool:
        """Returns whether a request can be carried out now."""
        return bool(self._taken or (self._lengthy and not self._making))

    def _next_taken(self) -> tuple[object, Any]:
        """Returns the next request to carry out, which is in hand now."""
        token, request = (self._taken if self._making or not self._lengthy else self._lengthy).popleft()
        self._taken_bytes -= size_of(request)
        self._in_hand.append(token)
        return token, request

    def _is_settled(self) -> None:
        """Forgets the requests in hand: the settlement is over."""
        self._in_hand.clear()
        self._made.clear()

    @property
    def is_making_answers(self) -> bool:
        return bool(self._making or self._lengthy)

    def _answer_in_turns(self, token: object, steps: Steps[Answer], *, has_begun: bool = False) -> None:
        """Answers the request in hand with the value that `steps` return. `has_begun`: it has had an effect."""
        self._in_hand.remove(token)
        self._making.append(_Making(token, steps, has_begun))

    def _make_answers(self, looks: int, settled: Settled) -> None:
        """Works on answers in turns for `looks` looks."""
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
