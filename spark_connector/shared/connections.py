"""Connections to clusters that a process keeps.

A worker of Spark runs one task after another, and a connection costs more than many a task. So a process keeps its
connections, one for each cluster and login:

    lease      the kept one, or a new one
    discard    after an error that may lie in the connection: the next lease makes a new one
    fork       the child has none: those of its parent belong to the parent
    exit       all are closed

An idle one needs no care: the client pings its server, and connects anew when it has gone. Above `MAX_KEPT` the
one that was leased least recently is closed.

A `Cluster` asks by a connection that the process keeps, with patience: a request is repeated for as long as the option
`retry.timeout` says, and may be carried out twice.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tidelog
from spark_connector.shared.inline_files import with_paths
from spark_connector.shared.option_values import ConnectionOptions
from spark_connector.shared.retrying import Patience
from tidelog.client.client import Client
from tidelog.loop_thread import LoopThread
from wire.errors import Code, TidelogError

MAX_KEPT = 8
CALL_SECONDS = 90.0
"""Seconds for one call of the client, whose own limits are shorter: a call that takes longer will never end."""
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
        """The connection is closed, or to be closed."""
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
        """Returns the result of `work`, or raises its error; UNAVAILABLE when it takes longer than `timeout`
        seconds."""
        try:
            return self._thread.run(work, timeout)
        except TimeoutError:
            self.is_broken = True
            raise TidelogError(
                Code.UNAVAILABLE,
                f"a call of the client has not ended within {timeout:g} s, so its connection is given up",
            ) from None

    def close(self) -> None:
        """Closes within twice `CLOSE_SECONDS`, even if the connection hangs."""
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
        """Connections by address; the one that was leased last is last."""
        self._lock = threading.Lock()
        self._of_parent: list[object] = []

    def lease(self, address: Address) -> Connection:
        """Returns the kept connection, or a new one. Raises the errors of `tidelog.connect`."""
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
        """Forgets all connections in a child after a fork. None is closed or freed: sockets and the selector are shared
        with the parent, which goes on using them."""
        self._lock = threading.Lock()
        self._of_parent.append(self._kept)
        self._kept = {}


kept = KeptConnections()
"""The kept connections of this process."""
os.register_at_fork(after_in_child=kept.forget)
atexit.register(kept.close)


RENEW_SECONDS = 15.0
"""Seconds without a good answer after which a connection is replaced: its address may lead to another cluster now."""


class Cluster:
    """A cluster, connected at the first request. For one thread at a time."""

    def __init__(self, address: Address, retry: Patience, pool: KeptConnections = kept) -> None:
        self.retry = retry
        self.address = address
        self._pool = pool
        self._failing_since: float | None = None

    @classmethod
    def of(cls, options: ConnectionOptions) -> Cluster:
        login = tuple(sorted(with_paths(options.login).items()))
        address = Address(options.servers, options.namespace, options.inbox_prefix, login)
        return cls(address, Patience(options.retry_seconds))

    def ask(self, what: str, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
        """Returns the answer to a request that can be repeated. `what` completes "cannot … yet" in the log. Raises the
        error of the last attempt."""
        return self.retry.run(what, lambda: self._once(work))

    def connection(self) -> Connection:
        """Returns the connection of the process; connects if there is none. Raises the errors of `tidelog.connect`."""
        return self._pool.lease(self.address)

    def discard(self, connection: Connection) -> None:
        """Drops the connection; the next request opens a new one."""
        self._pool.discard(connection)

    def on_failure(self, connection: Connection) -> None:
        """Notes an error on this connection that may pass."""
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if connection.is_broken or now - self._failing_since > RENEW_SECONDS:
            self.discard(connection)
            self._failing_since = now

    def on_answer(self) -> None:
        self._failing_since = None

    def _once(self, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
        connection = self.connection()
        try:
            answer = connection.run(work(connection.client))
        except TidelogError as error:
            if error.retriable:
                self.on_failure(connection)
            raise
        self.on_answer()
        return answer
