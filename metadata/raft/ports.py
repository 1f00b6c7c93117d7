"""What a Raft node meets of the operating system: clock, chance, files, sockets, readiness and threads.

Everything in this package that depends on one of them takes it from a `RaftPorts`. The simulation runs the same node on
its own (`tests/simulation/raft/raft_node.py`). PySyncObj reads the clock and chance by itself, and is led here by
`metadata.raft.pysyncobj_internals`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from threading import Thread
from typing import Any, Protocol

from pysyncobj.monotonic import monotonic

from metadata.raft.files import OS_FILES, RaftFiles
from metadata.raft.poller import EpollPoller, EventCallback


class StreamSocket(Protocol):
    """The methods of `socket.socket` that connections and listening sockets use, without blocking."""

    def fileno(self) -> int: ...

    def setblocking(self, flag: bool, /) -> None: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...

    def getsockopt(self, level: int, option: int, /) -> int: ...

    def connect_ex(self, address: tuple[str, int], /) -> int: ...

    def bind(self, address: tuple[str, int], /) -> None: ...

    def listen(self, backlog: int, /) -> None: ...

    def accept(self) -> tuple[Any, Any]: ...

    def send(self, data: bytearray, /) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class Poller(Protocol):
    """See `metadata.raft.poller.EpollPoller`."""

    handled: int

    def fileno(self) -> int: ...

    def wake(self) -> None: ...

    def subscribe(self, descr: int, callback: EventCallback, eventMask: int) -> None: ...  # noqa: N803

    def unsubscribe(self, descr: int) -> None: ...

    def poll(self, timeout: float) -> None: ...

    def close(self) -> None: ...


class Work(Protocol):
    """Work that was begun beside the event loop."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


def start_thread(work: Callable[[], None], name: str) -> Work:
    """Raises RuntimeError when there is no room for a thread."""
    thread = Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftPorts:
    """The operating system's, unless given."""

    monotonic: Callable[[], float] = monotonic
    """Seconds; never goes back."""
    rng: Random = field(default_factory=SystemRandom)
    """For election timeouts and pre-vote rounds."""
    files: RaftFiles = OS_FILES
    make_socket: Callable[[int, int], StreamSocket] = socket.socket
    """Called with family and type."""
    make_poller: Callable[[], Poller] = EpollPoller
    start_thread: Callable[[Callable[[], None], str], Work] = start_thread
    """Called with the work and its name."""
