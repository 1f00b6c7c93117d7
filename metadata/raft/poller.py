"""One epoll descriptor for all of a node's sockets, and a way to wake it.

The descriptor itself is readable whenever one of the sockets is, so an event loop watches this one descriptor. `wake`
makes it readable through an eventfd, from any thread. The method names and event bits are the ones that PySyncObj uses.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

READ = 1
WRITE = 2
ERROR = 4
"""Reported always, asked for or not."""

EventCallback = Callable[[int, int], None]
"""Called with the descriptor and the bits that are ready."""


class EpollPoller:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, EventCallback] = {}
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_descriptor, select.EPOLLIN)
        self.handled = 0
        """Events that the last `poll` handled: while it is not 0, another tick has something to do."""

    def fileno(self) -> int:
        return self._epoll.fileno()

    def wake(self) -> None:
        os.eventfd_write(self._wake_descriptor, 1)

    def subscribe(self, descr: int, callback: EventCallback, eventMask: int) -> None:  # noqa: N803
        events = (select.EPOLLIN if eventMask & READ else 0) | (select.EPOLLOUT if eventMask & WRITE else 0)
        if descr in self._callbacks:
            self._epoll.modify(descr, events)
        else:
            self._epoll.register(descr, events)
        self._callbacks[descr] = callback

    def unsubscribe(self, descr: int) -> None:
        """Must be called before the descriptor is closed. Unknown descriptors are ignored."""
        if self._callbacks.pop(descr, None) is not None:
            self._epoll.unregister(descr)

    def poll(self, timeout: float) -> None:
        """Wait at most `timeout` seconds and call back for every descriptor that is ready."""
        # The callback is looked up before any of them runs: a socket closed by an earlier callback may have given its
        # number to a new one, which must not get the old one's events.
        ready = [(descr, events, self._callbacks.get(descr)) for descr, events in self._epoll.poll(timeout)]
        self.handled = 0
        for descr, events, callback in ready:
            if descr == self._wake_descriptor:
                os.eventfd_read(self._wake_descriptor)
                self.handled += 1
            elif callback is not None and self._callbacks.get(descr) is callback:
                mask = (READ if events & select.EPOLLIN else 0) | (WRITE if events & select.EPOLLOUT else 0)
                callback(descr, mask | (ERROR if events & (select.EPOLLERR | select.EPOLLHUP) else 0))
                self.handled += 1

    def close(self) -> None:
        self._epoll.close()
        os.close(self._wake_descriptor)
