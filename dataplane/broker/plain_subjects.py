"""The subjects on which one leader takes plain messages and envelopes. They follow its views while it leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from wire.messaging.transport import Subscription

_log = logging.getLogger(__name__)


class PlainSubjects:
    """Subscribing waits for the connection, however long that takes; what is wanted by then counts. It can be given up
    at any time, also before it has begun."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, subscribe: Callable[[str], Coroutine[Any, Any, Subscription]]
    ) -> None:
        self._loop = loop
        self._subscribe = subscribe
        self.wanted: tuple[str, ...] = ()
        self._held: dict[str, Subscription] = {}
        self._settling: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_given_up = False

    def follow(self, wanted: tuple[str, ...]) -> None:
        """Listen on these from now on, or as soon as it begins."""
        self.wanted = wanted
        if self._has_begun:
            self._settle_soon()

    async def begin(self) -> bool:
        """Returns when it listens on all that are wanted; False when that was given up. Raises OSError."""
        self._has_begun = True
        self._settle_soon()
        if self._settling is not None:
            await asyncio.wait({self._settling})
            if not self._settling.cancelled():
                self._settling.result()
        return not self._is_given_up

    def give_up(self) -> None:
        self._is_given_up = True
        if self._settling is not None:
            self._settling.cancel()

    async def drop(self) -> None:
        """Gives up what is being made, and releases all of them."""
        self.give_up()
        if self._settling is not None:
            await asyncio.wait({self._settling})
        held, self._held = self._held, {}
        await asyncio.gather(*(subscription.unsubscribe() for subscription in held.values()), return_exceptions=True)

    def _settle_soon(self) -> None:
        if not self._is_given_up and self._differs() and (self._settling is None or self._settling.done()):
            self._settling = self._loop.create_task(self._settle())
            self._settling.add_done_callback(self._on_settled)

    def _differs(self) -> bool:
        return self._held.keys() != set(self.wanted)

    async def _settle(self) -> None:
        while self._differs():
            wanted = set(self.wanted)
            left = [self._held.pop(subject) for subject in self._held.keys() - wanted]
            await asyncio.gather(
                *(subscription.unsubscribe() for subscription in left),
                *(self._hold(subject) for subject in sorted(wanted - self._held.keys())),
            )

    async def _hold(self, subject: str) -> None:
        self._held[subject] = await self._subscribe(subject)

    def _on_settled(self, settled: asyncio.Task[None]) -> None:
        error = None if settled.cancelled() else settled.exception()
        if error is not None:
            _log.error("subscribing to %s: %r; the next view tries it again", ", ".join(self.wanted), error)
