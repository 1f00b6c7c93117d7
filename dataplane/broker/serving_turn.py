"""How much consumers are answered from memory in one turn of the event loop.

One read from the socket can bring ten thousand requests of fifty bytes, each for megabytes, and all are handled before
anything else: heartbeats would wait for seconds. So fetches of one turn are answered until MAX_BYTES have been sent,
over all partitions of a broker; further ones are refused, and their clients ask again after a moment. Consumers that
have waited for records are answered in any case: how many may wait is bounded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dataplane.broker.context import BrokerContext

MAX_BYTES: Final = 16 << 20
"""Bytes of answers, each counted with ANSWER_COST."""
ANSWER_COST: Final = 8 << 10
"""Bytes that could be sent in the time that an answer takes, however small it is."""
RETRY_AFTER_MS: Final = 20


class ServingTurn:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spent = 0

    @classmethod
    def of_broker(cls, context: BrokerContext) -> ServingTurn:
        return cls(context.loop)

    @property
    def is_over(self) -> bool:
        return self._spent >= MAX_BYTES

    def spend(self, size: int) -> None:
        """An answer of `size` bytes is sent."""
        if not self._spent:
            self._loop.call_soon(self._end)
        self._spent += size + ANSWER_COST

    def _end(self) -> None:
        self._spent = 0
