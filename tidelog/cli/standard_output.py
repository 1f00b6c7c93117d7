"""Standard output of a command that goes on for long. The event loop does not wait for a reader that is slow."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import termios

_LONGEST_PAUSE = 0.05
"""Seconds between two looks at a pipe whose reader is slow."""


class StandardOutput:
    """A pipe or a socket is written to in pieces that it has room for. It stays in blocking mode, because its other
    users, such as the shell, share the mode. Terminals and files are written to as they are."""

    def __init__(self) -> None:
        self.written = 0
        """Bytes that have left this process, if this is a pipe or a socket."""
        self._out = sys.stdout.buffer
        try:
            self._descriptor = self._out.fileno()
            mode = os.fstat(self._descriptor).st_mode
        except (OSError, ValueError):  # it is no file
            mode = 0
        self.is_pipe = stat.S_ISFIFO(mode)
        self._may_be_full = self.is_pipe or stat.S_ISSOCK(mode)

    async def write(self, data: bytes) -> None:
        """Raises OSError; BrokenPipeError where a pipe or a socket has no reader."""
        if not self._may_be_full:
            self._out.write(data)
            self._out.flush()
            return
        rest = memoryview(data)
        while rest:
            if not _events(self._descriptor, select.POLLOUT):
                await self._room()
            count = os.write(self._descriptor, rest[: select.PIPE_BUF])  # does not block where POLLOUT was seen
            self.written += count
            rest = rest[count:]

    async def _room(self) -> None:
        """Returns when there is room, or no reader."""
        import asyncio

        loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._descriptor, is_ready.set)
        try:
            await is_ready.wait()
        finally:
            loop.remove_writer(self._descriptor)

    async def until_read(self) -> None:
        """Returns when the pipe is empty. Raises BrokenPipeError where it has no reader before."""
        import asyncio

        pause = 0.001
        while self.unread():
            if _events(self._descriptor, 0):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            await asyncio.sleep(pause)  # a reader that reads is no event
            pause = min(2 * pause, _LONGEST_PAUSE)

    def unread(self) -> int:
        """Bytes in the pipe. Their number is final only after the last reader was seen to have gone."""
        return int.from_bytes(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _events(descriptor: int, wanted: int) -> list[tuple[int, int]]:
    """Those that have occurred; POLLERR, of a pipe without a reader, is wanted always."""
    poll = select.poll()
    poll.register(descriptor, wanted)
    return poll.poll(0)
