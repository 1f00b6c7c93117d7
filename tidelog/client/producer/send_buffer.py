"""The bound on a producer's memory: bytes of records that are not acknowledged, and the calls that wait for room."""

from __future__ import annotations

import asyncio
from collections import deque

from tidelog.client.base.exceptions import BufferFull
from wire.errors import Code, TidelogError


class SendBuffer:
    """`limit` in bytes; a call waits for room `timeout` seconds at most. `of`: the owner of the records, in
    sentences."""

    __slots__ = ("_of", "_timeout", "_waiting", "limit", "used")

    def __init__(self, limit: int, *, timeout: float, of: str) -> None:
        self.limit = limit
        self.used = 0
        """Bytes of records that are not acknowledged, and bytes granted to calls which have not gone on yet."""
        self._timeout = timeout
        self._of = of
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def has_room(self, size: int) -> bool:
        """Returns whether `size` more bytes fit, and no earlier call waits."""
        return not self._waiting and self.used + size <= self.limit

    async def wait_for_room(self, size: int) -> None:
        """Waits, in order of arrival, until `size` more bytes fit; a record larger than the buffer waits for an empty
        one. The caller adds `size` to `used` before it awaits anything else. Raises BufferFull."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, waiter)
        self._waiting.append(entry)
        self._grant()
        try:
            async with asyncio.timeout(self._timeout):
                await waiter
        except BaseException as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release(size)  # granted, and not used: the calls behind this one would wait for ever
            if not isinstance(error, TimeoutError):
                raise
            raise BufferFull(
                Code.BACKPRESSURE,
                f"no room came free in the buffer of {self.limit} bytes within {self._timeout:g} s: the brokers of "
                f"{self._of} do not keep up or are away",
            ) from None
        self.used -= size

    def release(self, size: int) -> None:
        """Frees the bytes of records that are acknowledged or have failed."""
        self.used -= size
        if self._waiting:
            self._grant()

    def full(self) -> TidelogError:
        """Returns the error of a call that does not wait."""
        return BufferFull(
            Code.BACKPRESSURE,
            f"{self.used} bytes of records for {self._of} wait to be acknowledged and buffer_bytes is "
            f"{self.limit}; await send(), or wait for earlier futures first",
        )

    def fail_waiting(self, error: TidelogError) -> None:
        while self._waiting:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _grant(self) -> None:
        while self._waiting:
            size, waiter = self._waiting[0]
            if self.used and self.used + size > self.limit:
                return
            self._waiting.popleft()
            if not waiter.done():
                self.used += size
                waiter.set_result(None)
