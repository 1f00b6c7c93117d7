"""Requests that are held until a transaction, which is decided, has ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.coordination.requests import size_of


class Held(NamedTuple):
    transactional_id: str
    token: object
    request: Any
    until: float
    """Monotonic seconds."""


class HeldRequests:
    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._by_id: dict[str, list[Held]] = {}

    def of(self, transactional_id: str) -> int:
        return len(self._by_id.get(transactional_id, ()))

    def add(self, held: Held) -> None:
        self._by_id.setdefault(held.transactional_id, []).append(held)
        self.count += 1
        self.bytes += size_of(held.request)

    def take(self, transactional_id: str) -> list[Held]:
        """All of that id, which are held no more."""
        taken = self._by_id.pop(transactional_id, [])
        self._let_go(taken)
        return taken

    def take_late(self, now: float) -> list[Held]:
        """Those whose time is over, which are held no more."""
        late = [held for waiting in self._by_id.values() for held in waiting if now >= held.until]
        for name in {held.transactional_id for held in late}:
            self._by_id[name] = [held for held in self._by_id[name] if now < held.until]
            if not self._by_id[name]:
                del self._by_id[name]
        self._let_go(late)
        return late

    def take_all(self) -> list[Held]:
        return [held for name in [*self._by_id] for held in self.take(name)]

    def _let_go(self, gone: list[Held]) -> None:
        self.count -= len(gone)
        self.bytes -= sum(size_of(held.request) for held in gone)
