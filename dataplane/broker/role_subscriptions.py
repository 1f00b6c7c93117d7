"""The subscriptions of one role: they are made when it starts and given up when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from wire.messaging.transport import Subscription

Subscribe: TypeAlias = Callable[[], Coroutine[Any, Any, Subscription]]


class RoleSubscriptions:
    """Making them waits for the connections, however long they take. It can be given up at any time, also before it has
    begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: list[Subscription] = []
        self._making: asyncio.Task[None] | None = None
        self._is_given_up = False

    async def make(self, *subscribe: Subscribe) -> bool:
        """Makes all of them side by side. Returns False when that was given up: `drop` then releases the ones made.
        Raises OSError."""
        if self._is_given_up:
            return False
        self._making = self._loop.create_task(self._make_all(subscribe))
        await asyncio.wait({self._making})
        if self._making.cancelled():
            return False
        self._making.result()
        return not self._is_given_up

    async def _make_all(self, subscribe: tuple[Subscribe, ...]) -> None:
        await asyncio.gather(*(self._hold(each) for each in subscribe))

    async def _hold(self, subscribe: Subscribe) -> None:
        self._held.append(await subscribe())

    def give_up(self) -> None:
        self._is_given_up = True
        if self._making is not None:
            self._making.cancel()

    async def drop(self) -> None:
        """Gives up what is being made, and releases all of them."""
        self.give_up()
        held, self._held = self._held, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in held), return_exceptions=True)
