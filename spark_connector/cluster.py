"""A cluster as the connector asks it: by a connection that the process keeps, with patience.

What is asked is asked again for as long as the option `retry.timeout` says, and may be carried out twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from spark_connector.connections import Address, Connection, KeptConnections, kept
from spark_connector.inline_files import with_paths
from spark_connector.option_values import ConnectionOptions
from spark_connector.retrying import Retry
from tidelog.client.client import Client
from wire.errors import TidelogError

RENEW_SECONDS = 15.0
"""A connection that has got no good answer for so long is replaced: another cluster may be behind its address now."""

_T = TypeVar("_T")


class Cluster:
    """Connects when something is asked. For one thread at a time."""

    def __init__(self, address: Address, retry: Retry, pool: KeptConnections = kept) -> None:
        self.retry = retry
        self.address = address
        self._pool = pool
        self._failing_since: float | None = None

    @classmethod
    def of(cls, options: ConnectionOptions) -> Cluster:
        login = tuple(sorted(with_paths(options.login).items()))
        address = Address(options.servers, options.namespace, options.inbox_prefix, login)
        return cls(address, Retry(options.retry_seconds))

    def ask(self, what: str, work: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
        """The answer to a question that can be repeated. `what` completes "cannot … yet" in the log. Raises the error
        of the last attempt."""
        return self.retry.run(what, lambda: self._once(work))

    def connection(self) -> Connection:
        """That of the process; connects if there is none. Raises the errors of `tidelog.connect`."""
        return self._pool.lease(self.address)

    def discard(self, connection: Connection) -> None:
        """The next question gets a new one."""
        self._pool.discard(connection)

    def on_failure(self, connection: Connection) -> None:
        """Something that may pass has gone wrong on this connection."""
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
