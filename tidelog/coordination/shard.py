"""What every shard is to its coordinator; see the package. A shard of a kind is a subclass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple, Self

from tidelog.coordination.requests import Delivery, Settled, size_of
from tidelog.coordination.streams import StreamsView
from tidelog.coordination.times import Times


class Abandoned(NamedTuple):
    """Tokens of requests."""

    without_effect: list[object]
    begun: list[object]
    """A part of their effect may be committed."""


class Shard(ABC):
    """Requests are taken with a token, which stands before their answer. What they are is known to the subclass."""

    def __init__(self) -> None:
        self.unknown_records = 0
        """Records of kinds that this version does not know; they are left as they are."""
        self._taken: deque[tuple[object, Any]] = deque()
        """And not carried out."""
        self._taken_bytes = 0
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
        """Requests that were taken and are not carried out."""
        return len(self._taken)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of these requests."""
        return self._taken_bytes

    @property
    @abstractmethod
    def is_waiting(self) -> bool:
        """There is something to settle."""

    def take(self, token: object, request: Any) -> None:
        self._taken.append((token, request))
        self._taken_bytes += size_of(request)

    def take_over(self, other: Self) -> None:
        """What waits there."""
        while other._taken:
            self.take(*other._taken.popleft())
        other._taken_bytes = 0

    def abandon(self) -> Abandoned:
        """All requests that are not answered are given up."""
        tokens = [*self._in_hand, *(token for token, _ in self._taken)]
        self._in_hand.clear()
        self._taken.clear()
        self._taken_bytes = 0
        return Abandoned(tokens, [])

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

    def _next_taken(self) -> tuple[object, Any]:
        """The oldest, which is in hand now."""
        token, request = self._taken.popleft()
        self._taken_bytes -= size_of(request)
        self._in_hand.append(token)
        return token, request

    @abstractmethod
    def validate(self) -> None:
        """Raises InvariantViolation."""
