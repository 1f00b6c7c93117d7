"""Calls the program's functions: on_assigned, on_revoked, on_lost. One runs at a time, in the order in which they are
due. What one raises, the program's next call raises."""

from __future__ import annotations

import inspect
from asyncio import Lock
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from tidelog.client.arguments import bad
from tidelog.client.subscription import Listener, Listeners
from wire.internal_records.group_records import StreamPartition

_within: ContextVar[frozenset[GroupListeners]] = ContextVar("_within", default=frozenset())
"""Whose function the present task is in, or was in when it, or the one that began it, was begun."""


class GroupListeners:
    """`on_raised` is called when there is something to raise."""

    def __init__(self, listeners: Listeners, on_raised: Callable[[], object]) -> None:
        self._listeners = listeners
        self._on_raised = on_raised
        self.one_at_a_time = Lock()
        """The caller of one of the three holds it."""
        self._is_calling = False
        self._raised: BaseException | None = None

    async def assigned(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_revoked, partitions)

    async def lost(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_lost, partitions)

    def check_not_calling(self) -> None:
        """Raises BadRequest where the program's function is what calls, or a task or thread that it has begun, for
        which it may wait."""
        if self._is_calling and self in _within.get():
            raise bad("a consumer cannot be closed by its own on_assigned, on_revoked or on_lost; close it afterwards")

    def raise_later(self, error: BaseException) -> None:
        self._raised = self._raised or error
        self._on_raised()

    def raise_raised(self) -> None:
        """What was raised, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised from None

    async def _call(self, listener: Listener | None, partitions: Iterable[StreamPartition]) -> None:
        names = {(of.stream, of.partition) for of in partitions}
        if listener is None or not names:
            return
        self._is_calling = True
        before = _within.set(_within.get() | {self})
        try:
            result = listener(names)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - it is the program's, which hears of it
            self.raise_later(error)
        finally:
            self._is_calling = False
            _within.reset(before)
