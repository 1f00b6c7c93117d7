"""Requests that are held until a transaction, or the transactions of a family, which are decided, have ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.server.coordinators.shard import size_of


class Held(NamedTuple):
    awaits: str
    """A transactional id, or a family with a tilde behind it."""
    token: object
    request: Any
    until: float
    """Monotonic seconds."""


class HeldRequests:
    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._waiting: dict[str, list[Held]] = {}

    def of(self, awaits: str) -> int:
        return len(self._waiting.get(awaits, ()))

    def add(self, held: Held) -> None:
        self._waiting.setdefault(held.awaits, []).append(held)
        self.count += 1
        self.bytes += size_of(held.request)

    def take(self, awaits: str) -> list[Held]:
        """Takes out all requests held for that id."""
        taken = self._waiting.pop(awaits, [])
        self._let_go(taken)
        return taken

    def take_late(self, now: float) -> list[Held]:
        """Takes out the requests that were held for too long."""
        late = [held for waiting in self._waiting.values() for held in waiting if now >= held.until]
        for name in {held.awaits for held in late}:
            self._waiting[name] = [held for held in self._waiting[name] if now < held.until]
            if not self._waiting[name]:
                del self._waiting[name]
        self._let_go(late)
        return late

    def take_all(self) -> list[Held]:
        return [held for name in [*self._waiting] for held in self.take(name)]

    def _let_go(self, gone: list[Held]) -> None:
        self.count -= len(gone)
        self.bytes -= sum(size_of(held.request) for held in gone)
