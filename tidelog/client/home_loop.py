"""The event loop in which a client, producer or consumer was made: its connection and its futures belong there."""

from __future__ import annotations

import asyncio

from tidelog.client.arguments import bad

_ELSEWHERE = "call it in a coroutine, or use tidelog.sync"


class HomeLoop:
    """`owner`: for sentences, such as "this client". Raises BadRequest where no event loop runs."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError:
            raise bad(f"{owner} is to be made where no event loop runs; {_ELSEWHERE}") from None

    def is_here(self) -> bool:
        """Whether the caller runs in it."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def check(self) -> None:
        """Raises BadRequest for a caller that runs elsewhere: what it waits for would never come."""
        if self.is_here():
            return
        if self.loop.is_closed():
            raise bad(
                f"{self._owner} belongs to an event loop that has ended, with an asyncio.run() as a rule; connect again"
                " in each asyncio.run(), or do everything in one"
            )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise bad(f"{self._owner} is used where no event loop runs; {_ELSEWHERE}") from None
        raise bad(
            f"{self._owner} belongs to another event loop; connect again in this one, or hand the call over with"
            " asyncio.run_coroutine_threadsafe()"
        )
