"""Connections to clusters that a process keeps.

A worker of Spark runs one task after another, and a connection costs more than many a task. So a process keeps its
connections, one for each cluster and login:

    lease      the kept one, or a new one
    discard    after an error that may lie in the connection: the next lease makes a new one
    fork       the child has none: those of its parent belong to the parent
    exit       all are closed

An idle one needs no care: the client pings its server, and connects anew when it has gone. Above `MAX_KEPT` the
one that was leased least recently is closed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tidelog
from tidelog.client.client import Client
from tidelog.loop_thread import LoopThread
from wire.errors import Code, TidelogError

MAX_KEPT = 8
CALL_SECONDS = 90.0
"""One call of the client, whose own limits are shorter: a call that takes longer will never end."""
CLOSE_SECONDS = 5.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Address:
    """A cluster and a login: the arguments of `tidelog.connect`. Its texts are secret."""

    servers: tuple[str, ...] | None = field(repr=False)
    namespace: str
    inbox_prefix: str | None
    login: tuple[tuple[str, Any], ...] = field(repr=False)


class Connection:
    """A client in a thread of its own. Connects when it is made. Its methods are for one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._thread = LoopThread("tidelog-spark")
        self.is_broken = False
        """It is closed, or to be closed."""
        try:
            self.client: Client = self.run(
                tidelog.connect(
                    address.servers,
                    namespace=address.namespace,
                    name="tidelog-spark",
                    inbox_prefix=address.inbox_prefix,
                    **dict(address.login),
                )
            )
        except BaseException:
            self._thread.stop(CLOSE_SECONDS)
            raise

    def run(self, work: Coroutine[Any, Any, _T], timeout: float = CALL_SECONDS) -> _T:
        """Raises what `work` raises; UNAVAILABLE when it takes longer than `timeout` seconds."""
        try:
            return self._thread.run(work, timeout)
        except TimeoutError:
            self.is_broken = True
            raise TidelogError(
                Code.UNAVAILABLE,
                f"a call of the client has not ended within {timeout:g} s, so its connection is given up",
            ) from None

    def close(self) -> None:
        """Returns within twice `CLOSE_SECONDS`, whatever the connection does."""
        self.is_broken = True
        try:
            self._thread.run(self.client.close(), CLOSE_SECONDS)
        except (TidelogError, TimeoutError):
            pass
        finally:
            self._thread.stop(CLOSE_SECONDS)


class KeptConnections:
    def __init__(self, connect: Callable[[Address], Connection] = Connection) -> None:
        self._connect = connect
        self._kept: dict[Address, Connection] = {}
        """The one that was leased last comes last."""
        self._lock = threading.Lock()
        self._of_parent: list[object] = []

    def lease(self, address: Address) -> Connection:
        """Raises the errors of `tidelog.connect`."""
        with self._lock:
            found = self._kept.pop(address, None)
            if found is not None and found.is_broken:
                found.close()
                found = None
            if found is None:
                while len(self._kept) >= MAX_KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
                found = self._connect(address)
            self._kept[address] = found
            return found

    def discard(self, connection: Connection) -> None:
        with self._lock:
            for address, held in self._kept.items():
                if held is connection:
                    del self._kept[address]
                    break
        connection.close()

    def close(self) -> None:
        with self._lock:
            while self._kept:
                self._kept.popitem()[1].close()

    def forget(self) -> None:
        """In a child after a fork. Nothing is closed, and nothing is freed: sockets and the selector are shared with
        the parent, which goes on using them."""
        self._lock = threading.Lock()
        self._of_parent.append(self._kept)
        self._kept = {}


kept = KeptConnections()
"""The kept connections of this process."""
os.register_at_fork(after_in_child=kept.forget)
atexit.register(kept.close)
