"""The outgoing side of a NATS connection: bytes that are published leave as few socket writes.

A socket write, and the server's read of it, cost more than a message. Small messages gather in a buffer that is written
at the end of the loop's turn, at the end of the read callback in which they were published, or when `_TURN_BYTES` have
gathered. Large ones go to the socket at once, without a copy where the socket takes them.

Bounded: above `limit` bytes that wait to be sent, `write` refuses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from tidelog.nats.delivery import Counters, Guard
from tidelog.nats.nats_py import ChunkedClient
from wire.types import Buffer

_GATHER_FROM = 64 << 10
"""Bytes of a message; smaller ones are joined, which costs less than another way to send."""
_TURN_BYTES = 16 << 10
"""Bytes that leave before the turn ends, so that the receiver can begin."""
_IOV_MAX = 1024
"""Limit of the buffers of one writev (Linux)."""


class Outgoing:
    """A connection's buffer. `is_up`: set while the server knows every subscription. `counters`: the connection's."""

    def __init__(self, client: ChunkedClient, is_up: asyncio.Event, counters: Counters, limit: int) -> None:
        self._client = client
        self._is_up = is_up
        self._counters = counters
        self._limit = limit
        self._turn = bytearray()
        """Bytes published in this turn of the loop, not written yet."""
        self._guard = Guard("the end of a turn of the event loop", counters)
        self._before_end: list[Callable[[], None]] = []
        """To be called before the turn ends."""
        self._is_ending = False
        """They are being called: what they publish is written when they are done."""
        self.is_low = asyncio.Event()
        """Cleared when the socket's buffer rises above its high mark, set when it falls below its low mark."""
        self.is_low.set()
        client.on_writable = self._on_writable

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""
        transport = self._client.link_transport
        return 0 if transport is None else transport.get_write_buffer_size() + len(self._turn)

    def write(self, pieces: Sequence[Buffer], size: int) -> bool:
        """Sends these bytes, `size` in all. Returns False, and sends nothing, if not connected or above the limit."""
        transport = self._client.link_transport
        if transport is None or not self._is_up.is_set() or transport.get_write_buffer_size() > self._limit:
            self._counters.dropped_publishes += 1
            return False
        if size >= _GATHER_FROM:
            self.end_turn()
            if not self._write_uncopied(pieces, size):
                # Joined, not writelines: from Python 3.12 on that keeps the caller's buffers, which may change.
                transport.write(b"".join(pieces))
        else:
            turn = self._turn
            if not (turn or self._before_end or self._is_ending):
                self._end_turn_soon()
            for piece in pieces:
                turn += piece
            if len(turn) >= _TURN_BYTES:
                self.end_turn()
        self._counters.messages_out += 1
        return True

    def why_refused(self) -> str:
        if not self._is_up.is_set():
            return "there is no connection to NATS at the moment"
        return f"more than {self._limit} bytes wait to be sent"

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """`call` is called before the turn ends; what it publishes is written with the rest."""
        if not (self._turn or self._before_end or self._is_ending):
            self._end_turn_soon()
        self._before_end.append(call)

    def _end_turn_soon(self) -> None:
        if not self._client.reading.at_end(self.end_turn):
            asyncio.get_running_loop().call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Writes everything that was published in this turn of the loop, whatever a call before it raises: while bytes
        wait nobody has the next end called."""
        while self._before_end and not self._is_ending:
            calls, self._before_end = self._before_end, []
            self._is_ending = True
            try:
                for call in calls:
                    try:
                        call()
                    except Exception as error:  # noqa: BLE001 - it is logged and counted
                        self._guard.met(error)
            finally:
                self._is_ending = False
        turn = self._turn
        if turn:
            self._turn = bytearray()
            transport = self._client.link_transport
            if transport is not None:
                transport.write(turn)

    def drop(self) -> None:
        """The connection is lost, and with it all bytes that were not written."""
        self._turn.clear()

    def _on_writable(self, writable: bool) -> None:
        if writable:
            self.is_low.set()
        else:
            self.is_low.clear()

    def _write_uncopied(self, pieces: Sequence[Buffer], size: int) -> bool:
        """Writes large pieces to the socket without a copy, when no bytes wait before them; the rest that it does not
        take is joined. Returns False when nothing was sent."""
        link = self._client.link
        if link is None or link.gather_fd is None or link.transport.get_write_buffer_size():
            return False
        try:
            sent = os.writev(link.gather_fd, pieces[:_IOV_MAX])
        except OSError:  # it takes nothing now, or is lost: the transport finds that out
            return False
        if sent < size:
            rest = []
            for piece in pieces:
                length = size_of(piece)
                if sent < length:
                    rest.append(memoryview(piece).cast("B")[sent:])
                sent = max(0, sent - length)
            link.transport.write(b"".join(rest))
        return True


def size_of(piece: Buffer) -> int:
    """Returns the size in bytes."""
    return len(piece) if type(piece) is bytes else memoryview(piece).nbytes
