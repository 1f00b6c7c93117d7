"""The NATS connection: `wire.messaging.transport.Transport` on nats-py.

Differences from nats-py's own client: every subscription is delivered from the socket's read callback, without a queue
or a task behind it; publishing is a plain call, and messages published in one turn of the loop leave as one write at
its end; nothing is kept while there is no connection; and connecting anew never ends.

States of a connection:

    connected     `connect` returned, or a reconnect is complete: the server knows every subscription. `publish` writes.
    disconnected  the socket is lost. `publish` returns False, requests and flushes in flight have failed with
                  TimeoutError, the connection-change handlers were called with False. nats-py tries every server in
                  turn, for ever; when one answers and has all subscriptions: connected, handlers called with True.
    closed        by `close` or `drain`, for good.

A NATS server reports missing permissions beside everything else, as `-ERR` (`wire.messaging.violation`): requests that
wait for an answer there fail at once, and `violations` notifies its handlers.

Bounded: the outgoing buffer (`outgoing_limit`) and the read buffer (see `parser`); inbox handlers and requests are as
many as their owners have open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from nats import errors

from tidelog.nats.delivery import Counters, Guard, Inboxes, checked_address, checked_subject, decoding, guarded
from tidelog.nats.header_block import encode_headers
from tidelog.nats.login import NO_LOGIN, LiveLogin, NatsLogin, is_tls_url, split_url
from tidelog.nats.nats_errors import (
    ConnectionClosed,
    LossReason,
    check_url,
    says_more,
    unavailable,
    without_secrets,
)
from tidelog.nats.nats_py import ChunkedClient, Ended
from tidelog.nats.nats_subscriptions import Subscription, Subscriptions
from tidelog.nats.outgoing import Outgoing, size_of
from wire.messaging.transport import BulkHandler, GuardedBulk, Message, MessageHandler, RawHandler, too_large
from wire.messaging.violation import Violation, Violations
from wire.types import Buffer

_log = logging.getLogger(__name__)

_T = TypeVar("_T")


class PendingAnswers:
    """Futures, each with a text that names the awaited answer."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Any], str] = {}
        self._asked: dict[asyncio.Future[Any], str] = {}
        """Subjects of the messages whose answers are awaited."""

    def new(self, what: str) -> asyncio.Future[Any]:
        """Returns a future that `fail_all` fails."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = what
        return future

    def new_asked(self, subject: str) -> asyncio.Future[Any]:
        """Returns a future for the answer to a message to `subject`; `fail_not_permitted` fails it, too."""
        future = self.new(f"an answer on {subject!r}")
        self._asked[future] = subject
        return future

    def fail_not_permitted(self, refused: Violation) -> None:
        """Fails requests whose message NATS has refused, or whose answer cannot arrive."""
        for future, asked in tuple(self._asked.items()):
            if refused.ends(asked) and not future.done():
                future.set_exception(refused.error())
                future.exception()  # as in `fail_all`

    def fail_all(self, reason: str) -> None:
        for future, what in tuple(self._waiting.items()):
            if not future.done():
                future.set_exception(TimeoutError(f"waiting for {what}: {reason}"))
                future.exception()  # if its waiter was cancelled, asyncio would report an exception that was not read
        self._waiting.clear()
        self._asked.clear()

    async def get(self, future: asyncio.Future[_T], timeout: float) -> _T:
        """Waits for one future, `timeout` seconds at most. Raises TimeoutError that names the awaited answer."""

        def expire() -> None:
            if not future.done():
                what = self._waiting[future]
                future.set_exception(TimeoutError(f"waiting for {what}: none came within {timeout:g} s"))

        timer = asyncio.get_running_loop().call_later(timeout, expire)
        try:
            return await future
        finally:
            timer.cancel()
            self._waiting.pop(future, None)
            self._asked.pop(future, None)


class ServerErrors:
    """Handles -ERR lines. `login_name`: who is connected. `inboxes`: subject of the connection's inbox subscription."""

    def __init__(self, counters: Counters, loss: LossReason, login_name: Callable[[], str], inboxes: str) -> None:
        self.violations = Violations(on_error=Guard("what NATS does not permit", counters).met)
        self._counters = counters
        self._loss = loss
        self._login_name = login_name
        self._inboxes = inboxes

    def take(self, text: str) -> None:
        self._counters.server_errors += 1
        found = Violation.parse(text)
        if found is None:
            self._loss.on_server_error(text)
            return
        violation = found.seen_by(self._login_name(), self._inboxes)
        _log.debug("%s", violation.sentence)
        self.violations.tell(violation)


OUTGOING_LIMIT = 64 << 20
"""Default limit of bytes that wait to be sent; `publish` refuses above it."""
WRITABLE_BELOW = 1 << 20
"""`wait_writable` waits from four times this many waiting bytes on until they are fewer than this."""
MAX_CONTROL_LINE = 4096
"""Longest protocol line that a nats-server takes as configured by default: verb, subject, reply and sizes."""
FLUSH_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0

_BLOCK_BYTES = 256 << 10
"""Limit of one socket write of a message to many subjects, in bytes."""


class NatsConnection:
    """One connection to NATS that reconnects for ever. Make it with `connect`; all calls belong to its event loop."""

    def __init__(self, *, outgoing_limit: int, inbox_prefix: str) -> None:
        self._connection_handlers: list[Callable[[bool], None]] = []
        self._connected_since = math.inf
        self._closed = False
        self._up = asyncio.Event()
        self._connect_error: Exception | None = None
        """The most informative error while connecting, for the message of NatsUnavailable."""
        self._answers = PendingAnswers()
        mark = min(WRITABLE_BELOW, outgoing_limit // 4)
        self._client = ChunkedClient(
            on_down=self._went_down,
            on_server_error=lambda text: self._errors.take(text),  # noqa: PLW0108 - `_errors` is made below
            write_marks=(4 * mark, mark),
        )
        self.counters = Counters(self._client.parser.counters)
        self._loss = LossReason()
        self._outgoing = Outgoing(self._client, self._up, self.counters, outgoing_limit)
        self._inboxes = Inboxes(inbox_prefix, self.counters)
        client = self._client
        self._errors = ServerErrors(
            self.counters,
            self._loss,
            lambda: client.login.name(client.login_in_url()),
            self._inboxes.subject,
        )
        self.violations: Violations = self._errors.violations
        """Subjects that NATS refuses this login. Whether it has inboxes is known when `connect` returns."""
        self.violations.hear(self._answers.fail_not_permitted)
        self._subscriptions = Subscriptions(
            self._client, self._outgoing, self._up, self.flush, self._check_open, self.violations
        )

    @classmethod
    async def connect(
        cls,
        urls: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        name: str | None = None,
        login: NatsLogin | Callable[[], NatsLogin] = NO_LOGIN,
        reconnect_wait: float = 0.05,
        ping_interval: float = 2.0,
        connect_timeout: float = 2.0,
        inbox_prefix: str = "_INBOX",
        outgoing_limit: int = OUTGOING_LIMIT,
    ) -> NatsConnection:
        """Connects to the first of `urls` that answers (one URL, several with commas, or a list): the servers of one
        cluster, of which others that they announce are tried when the connection is lost.

        `login`, or its result, is read before each attempt, with its files; without an identity in it, that of the
        server's own URL counts, else that of the first URL that has one. Times are in seconds; two pings without an
        answer are a loss. Raises NatsUnavailable; NatsRefused, at the first refusal, for a login.
        """
        listed = urls.split(",") if isinstance(urls, str) else list(urls)
        given = [split_url(url.strip()) for url in listed if url.strip()]
        addresses = [url for url, _ in given]
        shown = ", ".join(without_secrets(url) for url in addresses)
        for url in addresses:
            check_url(url)
        live = LiveLogin(login, tls_by_url=any(is_tls_url(url) for url in addresses))
        await live.read()
        connection = cls(outgoing_limit=outgoing_limit, inbox_prefix=inbox_prefix)
        connection._client.use(live, given)
        options: dict[str, Any] = {
            "servers": addresses,
            "name": name,
            "reconnect_time_wait": reconnect_wait,
            "ping_interval": ping_interval,
            "connect_timeout": connect_timeout,
            "max_outstanding_pings": 2,
            "max_reconnect_attempts": 1,  # of the first connection; `retry_for_ever` follows
            "pending_size": 0,
            "error_cb": connection._error,
            "reconnected_cb": connection._came_up,
        }
        client = connection._client
        try:
            await client.connect(**options)
            client.retry_for_ever()
            # nats-py also returns when the connection was lost just before the end.
            answered = connection._answers.new("the first answer of the NATS server")
            client.ping(answered)
            await connection._answers.get(answered, connect_timeout)
            if client.link_transport is None:
                raise ConnectionResetError("the connection was lost at once")
        except Ended as ended:
            await connection.close()
            raise unavailable(
                shown,
                ended.why,
                auth_required=True,
                certificate_required=False,
                tls_first=live.tls_first,
                login=live.told(client.login_in_url()),
            ) from ended.why
        except (OSError, errors.Error, TimeoutError) as error:
            await connection.close()
            told = connection._connect_error or error
            raise unavailable(
                shown,
                told,
                auth_required=bool(client.info.get("auth_required")),
                certificate_required=bool(client.info.get("tls_verify")),
                tls_first=live.tls_first,
                login=live.told(client.login_in_url()),
            ) from error
        except asyncio.CancelledError:
            await connection.close()
            raise
        try:
            connection._set_up()
            await connection._subscriptions.add(connection._inboxes.subject, connection._inboxes.deliver)
        except BaseException:
            await connection.close()
            raise
        return connection

    # ---- state

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def connected_since(self) -> float:
        """Monotonic time in seconds of the last (re)connect; `inf` while disconnected."""
        return self._connected_since

    @property
    def server_id(self) -> str:
        """Id of the connected server; empty while disconnected."""
        return str(self._client.info.get("server_id", "")) if self._up.is_set() else ""

    @property
    def max_payload(self) -> int:
        """Largest header block + payload in bytes that the server takes."""
        return self._client.max_payload

    @property
    def server_info(self) -> dict[str, Any]:
        """INFO of the server: `server_id`, `version`, `host`, `port`, `max_payload`, …"""
        return self._client.info

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._outgoing.waiting_bytes

    @property
    def dropped_headers(self) -> int:
        """Number of messages that were dropped because of the size of their headers."""
        return self.counters.dropped_headers

    @property
    def loss_reason(self) -> str:
        """Why the connection was lost the last time, as far as known; empty: it never was."""
        return self._loss.text(self.server_id)

    def give_way_to(self, other: NatsConnection) -> None:
        """While `other` has a backlog of messages, little is read here at a time. Both belong to one loop, which reads
        from each of them once in a turn."""
        self._client.precedes = other._client
        self._client.reading = other._client.reading

    def always_give_way(self) -> None:
        """In each turn of the loop little is read here, so that a flood delays the other connections by little."""
        self._client.always_gives_way = True

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._connection_handlers.append(handler)

    # ---- publishing

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Writes one message, before all later work of the loop. False, and nothing sent, when not connected or the
        outgoing buffer is above its limit.

        Raises, for messages that would make the server end the connection, TidelogError(MESSAGE_TOO_LARGE) (a message
        above `max_payload`) and ValueError (a bad subject).
        """
        size = 0
        for part in parts:
            size += len(part) if type(part) is bytes else size_of(part)
        address = checked_subject(subject) if reply is None else checked_address(subject, reply)
        if headers:
            block = encode_headers(headers)
            size += len(block)
            line = f"HPUB {address} {len(block)} {size}\r\n".encode()
            pieces = (line, block, *parts, b"\r\n")
        else:
            line = f"PUB {address} {size}\r\n".encode()
            pieces = (line, *parts, b"\r\n")
        if size > self._client.max_payload:
            raise too_large(subject, size, self.max_payload)
        if len(line) > MAX_CONTROL_LINE:
            raise ValueError(f"subject and reply of {len(line)} bytes are too long for NATS: {subject[:80]!r}…")
        return self._outgoing.write(pieces, len(line) + size + 2)

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """`call` is called once, before the messages of this turn of the loop leave; what it publishes leaves with
        them. It may not raise."""
        self._outgoing.at_turn_end(call)

    def after_turn(self, call: Callable[[], None]) -> None:
        """`call` is called once, when the messages of this turn of the loop have left."""
        if not self._client.reading.afterwards(call):
            asyncio.get_running_loop().call_soon(call)

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        """Writes ready-made `PUB …` protocol bytes; otherwise as `publish`."""
        return self._outgoing.write(lines, sum(map(size_of, lines)))

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        """Writes one message to each of these reply subjects, given as received, in few socket writes. Returns how many
        were left out because they are too long."""
        block = encode_headers(headers)
        sizes = b" %d %d\r\n" % (len(block), len(block) + memoryview(payload).nbytes)
        rest = sizes + block + payload + b"\r\n"
        longest = MAX_CONTROL_LINE - len(b"HPUB ") - len(sizes)
        fitting = [subject for subject in subjects if len(subject) <= longest]
        at_once = max(1, _BLOCK_BYTES // len(rest))
        for first in range(0, len(fitting), at_once):
            self.publish_raw([b"HPUB %b%b" % (subject, rest) for subject in fitting[first : first + at_once]])
        return len(subjects) - len(fitting)

    async def wait_writable(self) -> None:
        """Returns when connected and few bytes wait to be sent. For senders of much data. Raises ConnectionClosed."""
        while True:
            self._check_open()
            if self._up.is_set() and self._outgoing.is_low.is_set():
                return
            await (self._outgoing.is_low if self._up.is_set() else self._up).wait()

    async def flush(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Returns when the server has taken everything published before, and everything it had sent before that is
        delivered. Raises TimeoutError, also when the connection is lost."""
        answered: asyncio.Future[bool] = self._answers.new("a flush")
        if self._up.is_set():
            self._outgoing.end_turn()
            self._client.ping(answered)
        else:
            answered.set_exception(TimeoutError("flush: there is no connection to NATS at the moment"))
        await self._answers.get(answered, timeout)

    # ---- requests

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """One request, first answer. A 503 comes back as a Message with `status == NO_RESPONDERS`.
        Raises TimeoutError, also when the connection is lost meanwhile or there is none; TidelogError(NOT_PERMITTED)
        when NATS does not let this login ask there or have the answer; and as `publish`."""
        self.violations.check_answers_arrive()
        answer: asyncio.Future[Message] = self._answers.new_asked(subject)
        inbox = self.new_inbox()
        self.on_inbox(inbox, lambda message: None if answer.done() else answer.set_result(message))
        try:
            if not self.publish(subject, (payload,), reply=inbox, headers=headers):
                answer.set_exception(
                    TimeoutError(f"the request to {subject!r} was not sent: {self._outgoing.why_refused()}")
                )
            return await self._answers.get(answer, timeout)
        finally:
            self.on_inbox(inbox, None)

    def new_inbox(self) -> str:
        return self._inboxes.new()

    def on_inbox(self, inbox: str, handler: MessageHandler | None) -> None:
        self._inboxes.on(inbox, None if handler is None else decoding(handler))

    def on_raw_inbox(self, inbox: str, handler: RawHandler) -> None:
        self._inboxes.on(inbox, handler)

    # ---- subscriptions

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> Subscription:
        """Returns when the server knows the subscription; waits for that through losses of the connection."""
        guard = Guard(f"messages on {subject!r}", self.counters)
        return await self._subscriptions.add(subject, guarded(decoding(handler), guard), queue)

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> Subscription:
        """Subscribes as `subscribe` does; the messages are not decoded."""
        guard = Guard(f"messages on {subject!r}", self.counters)
        return await self._subscriptions.add(subject, guarded(handler, guard))

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> Subscription:
        """Subscribes for messages by the thousand. All messages of `subject` go to `handler`, without subjects."""
        guard = Guard(f"messages on {subject!r}", self.counters)
        return await self._subscriptions.add(subject, GuardedBulk(handler, guard.met))

    async def may_subscribe(self, subject: str) -> bool:
        """Whether NATS lets this login subscribe there; True without an answer of the server."""
        return await self._subscriptions.may(subject)

    # ---- the end

    async def drain(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Gives up all subscriptions, delivers messages that are on the way, sends the buffer, and closes."""
        if self._up.is_set():
            self._subscriptions.remove_all()
            with contextlib.suppress(TimeoutError):
                await self.flush(timeout)
        await self.close()

    async def close(self) -> None:
        """Closes for good; the buffer is sent if the server takes it within CLOSE_TIMEOUT."""
        if self._closed:
            return
        self._closed = True
        self._subscriptions.close()
        self._outgoing.end_turn()
        self._answers.fail_all("the connection to NATS was closed")
        self._connected_since = math.inf
        shutting = asyncio.create_task(self._client.shut())
        try:
            await asyncio.wait((shutting,), timeout=CLOSE_TIMEOUT)
        finally:
            if not shutting.done():
                self._client.abort()
                shutting.cancel()
            # Wake every waiting call; it raises ConnectionClosed.
            self._outgoing.is_low.set()
            self._up.set()
            self._up.clear()
        if shutting.done():
            shutting.result()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosed("this connection to NATS was closed; make a new one")

    # ---- changes of the connection

    def _set_up(self) -> None:
        self._connected_since = time.monotonic()
        self._outgoing.is_low.set()
        self._up.set()

    async def _came_up(self) -> None:
        """nats-py: connected anew, and the server has every subscription."""
        if self._client.link_transport is None:
            return  # lost again already; the next reconnect is under way
        self._set_up()
        server = self._client.info.get("server_name", "?")
        _log.info("connected to NATS again%s: server %s", self._of_name(), server)
        self._tell(True)

    def _went_down(self, error: Exception) -> None:
        self.violations.forget_all()
        if not self._up.is_set():
            return  # lost while connecting
        self._loss.on_loss(error, self._client.info)
        self._up.clear()
        self._outgoing.drop()
        self._connected_since = math.inf
        self._answers.fail_all("the connection to NATS was lost")
        if not self._closed:
            self.counters.losses += 1
            _log.warning("the connection to NATS was lost%s; connecting again", self._of_name())
            self._tell(False)

    def _of_name(self) -> str:
        """The connection's name for the log: a process may have several."""
        name = self._client.options.get("name")
        return f" ({name})" if name else ""

    def _tell(self, connected: bool) -> None:
        for handler in tuple(self._connection_handlers):
            try:
                handler(connected)
            except Exception as error:  # noqa: BLE001 - as every guard
                Guard("connection changes", self.counters).met(error)

    async def _error(self, error: Exception) -> None:
        if self._connect_error is None or says_more(error, self._connect_error):
            self._connect_error = error
        _log.debug("NATS connection: %r", error)
