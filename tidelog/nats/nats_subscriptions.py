"""Subscriptions of a NATS connection, made and ended through losses of the connection.

`subscribe` returns when the server knows the subscription: it sends SUB and waits for a PONG, and begins again when the
connection is lost meanwhile. All calls in one turn of the loop share one PING, since brokers subscribe to thousands of
subjects.

A subscription that NATS does not permit is kept, and receives nothing (`wire.messaging.violation`). It is requested
again every RETRY_S, with the id that the server has forgotten, so that it works soon after the permission was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from tidelog.nats.delivery import checked_subject
from tidelog.nats.nats_py import ChunkedClient
from tidelog.nats.outgoing import Outgoing
from wire.messaging.transport import GuardedBulk, RawHandler
from wire.messaging.violation import Act, Violation, Violations

_log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Seconds between requests for the subscriptions that NATS has refused."""


class Subscriptions:
    """All subscriptions of a connection. `flush` returns when the server has taken everything sent before.
    `check_open` raises ConnectionClosed."""

    def __init__(
        self,
        client: ChunkedClient,
        outgoing: Outgoing,
        is_up: asyncio.Event,
        flush: Callable[[], Awaitable[None]],
        check_open: Callable[[], None],
        violations: Violations,
    ) -> None:
        self._client = client
        self._outgoing = outgoing
        self._is_up = is_up
        self._flush = flush
        self._check_open = check_open
        self._violations = violations
        self._retrying: asyncio.Task[None] | None = None
        violations.hear(self._on_violation)
        self._next_flush: asyncio.Task[None] | None = None
        """A flush that has not begun: it covers everything written before it begins."""

    async def add(self, subject: str, sink: GuardedBulk | RawHandler, queue: str = "") -> Subscription:
        self._check_open()
        sid = self._client.add_subscription(checked_subject(subject), queue)
        if isinstance(sink, GuardedBulk):
            self._client.parser.add_bulk(sid, sink)
        else:
            self._client.parser.add_direct(sid, sink)
        try:
            while True:
                await self._is_up.wait()
                self._check_open()
                transport = self._client.link_transport
                if transport is not None:
                    self._outgoing.end_turn()
                    # A server that has this id already (from a reconnect in between) ignores the second SUB.
                    transport.write(_sub(subject, queue, sid).encode())
                with contextlib.suppress(TimeoutError):
                    await self._flush_together()
                    return Subscription(self, sid, subject)
        except BaseException:
            self._client.remove_subscription(sid)
            if self._is_up.is_set() and (transport := self._client.link_transport) is not None:
                # Else the server would not answer 503 to requests on the subject.
                transport.write(f"UNSUB {sid}\r\n".encode())
            raise

    async def may(self, subject: str) -> bool:
        """Whether NATS permits a subscription to `subject`; True without an answer. It is given up in the same write,
        before the server passes on anything else."""
        transport = self._client.link_transport
        if transport is None or not self._is_up.is_set():
            return True
        sid = self._client.add_subscription(checked_subject(subject))
        self._client.remove_subscription(sid)  # no reconnect makes it
        self._violations.begin_trial(subject)
        try:
            self._outgoing.end_turn()
            transport.write(f"SUB {subject} {sid}\r\nUNSUB {sid}\r\n".encode())
            with contextlib.suppress(TimeoutError):
                await self._flush_together()
        finally:
            is_permitted = self._violations.end_trial(subject)
        return is_permitted

    def close(self) -> None:
        if self._retrying is not None:
            self._retrying.cancel()

    def _on_violation(self, violation: Violation) -> None:
        if violation.act is Act.SUBSCRIBE and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.get_running_loop().create_task(self._retry())

    async def _retry(self) -> None:
        """Requests the refused subscriptions again, until none is left."""
        refused = self._violations.subscriptions
        while refused:
            await asyncio.sleep(RETRY_S)
            transport = self._client.link_transport
            if transport is None or not self._is_up.is_set():
                continue  # a reconnect requests all of them
            again = [each for each in self._client.subscribed() if each[1] in refused]
            question = self._violations.asks_again()
            self._outgoing.end_turn()
            transport.write("".join(_sub(subject, queue, sid) for sid, subject, queue in again).encode())
            try:
                await self._flush_together()
            except TimeoutError:
                continue
            asked = {subject for _, subject, _ in again}
            for subject in self._violations.answered(question):
                if subject in asked:  # else nobody wants it any more
                    _log.info("NATS lets this login subscribe to %r now", subject)

    async def remove(self, sid: int) -> None:
        subject = self._client.remove_subscription(sid)
        refused = self._violations.subscriptions
        if subject in refused and all(subject != other for _, other, _ in self._client.subscribed()):
            self._violations.forget(subject)
        transport = self._client.link_transport
        if transport is not None and self._is_up.is_set():
            self._outgoing.end_turn()
            transport.write(f"UNSUB {sid}\r\n".encode())
            with contextlib.suppress(TimeoutError):  # a lost connection forgets the subscription as well
                await self._flush_together()

    def remove_all(self) -> None:
        """Ends all subscriptions at the server; messages that are on their way are still delivered."""
        transport = self._client.link_transport
        if transport is not None:
            self._outgoing.end_turn()
            for sid, _, _ in self._client.subscribed():
                transport.write(f"UNSUB {sid}\r\n".encode())

    async def _flush_together(self) -> None:
        """Makes one flush for all calls in the same turn of the loop."""
        flush = self._next_flush
        if flush is None:
            flush = self._next_flush = asyncio.get_running_loop().create_task(self._flush_next())
            flush.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(flush)

    async def _flush_next(self) -> None:
        self._next_flush = None
        await self._flush()


def _sub(subject: str, queue: str, sid: int) -> str:
    return f"SUB {subject} {queue} {sid}\r\n" if queue else f"SUB {subject} {sid}\r\n"


class Subscription:
    """A live subscription of a connection."""

    def __init__(self, subscriptions: Subscriptions, sid: int, subject: str) -> None:
        self.subject = subject
        self._subscriptions = subscriptions
        self._sid = sid

    async def unsubscribe(self) -> None:
        """Stops delivery. Nothing is delivered from the call on; returns when the server has taken the UNSUB."""
        await self._subscriptions.remove(self._sid)
