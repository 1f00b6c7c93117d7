"""The NATS connection: `wire.transport.Transport` on nats-py.

What differs from nats-py's own client: every subscription is delivered from the socket's read callback, without a queue
or a task behind it; publishing is a plain call, and what is published in one turn of the loop leaves as one write at
its end; nothing is kept while there is no connection; and connecting anew never ends.

States of a connection:

    connected     `connect` returned, or a reconnect is complete: the server knows every subscription. `publish` writes.
    disconnected  the socket is lost. `publish` returns False, requests and flushes in flight have failed with
                  TimeoutError, the connection-change handlers were called with False. nats-py tries every server in
                  turn, for ever; when one answers and has all subscriptions: connected, handlers called with True.
    closed        by `close` or `drain`, for good.

Bounded: the outgoing buffer (`outgoing_limit`) and the read buffer (see `parser`); inbox handlers and requests are as
many as their owners have open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from nats import errors
from nats.nuid import NUID

from tidelog.runtime.header_block import decode_headers, encode_headers
from tidelog.runtime.micro import Endpoint, Service
from tidelog.runtime.nats_py import ChunkedClient
from tidelog.runtime.parser import ReadCounters
from wire.transport import Buffer, BulkHandler, GuardedBulk, Message, MessageHandler, too_large

log = logging.getLogger(__name__)

OUTGOING_LIMIT = 64 << 20
"""Default limit of bytes that wait to be sent; `publish` refuses above it."""
WRITABLE_BELOW = 1 << 20
"""`wait_writable` waits from four times this many waiting bytes on until they are fewer than this."""
MAX_CONTROL_LINE = 4096
"""Longest protocol line that a nats-server takes as configured by default: verb, subject, reply and sizes."""
LAST_WORDS = 1.0
"""An error that the server told no longer than this before it closed the connection is the reason, seconds."""
FLUSH_TIMEOUT = 10.0
CLOSE_TIMEOUT = 2.0

_GATHER_FROM = 64 << 10
"""Bytes; joining less is cheaper than another way to send."""
_TURN_BYTES = 16 << 10
"""So much leaves before the turn ends: whoever gets it can begin."""
_BLOCK_BYTES = 256 << 10
"""Of messages to many subjects, in one socket write."""
_IOV_MAX = 1024
"""Most buffers that one writev takes (Linux)."""

_T = TypeVar("_T")
_SUBJECT = re.compile(r"[^\x00-\x20\x7f]+")


class NatsUnavailable(ConnectionError):
    """No NATS server could be used at start. `str(error)` names the URL, the reason and the remedy."""


class NatsNotListening(NatsUnavailable):
    """Nothing listens at the address, as with a server that is still starting."""


class ConnectionClosed(ConnectionError):
    """The connection was closed by `close` or `drain`."""


@dataclass(slots=True)
class Counters:
    """Totals since `connect`."""

    read: ReadCounters
    messages_out: int = 0
    """Messages and blocks of `publish_raw`."""
    bytes_out: int = 0
    dropped_publishes: int = 0
    """Publishes that returned False: not connected, or the outgoing buffer above its limit."""
    handler_errors: int = 0
    """Exceptions that handlers raised; each is logged."""
    server_errors: int = 0
    """-ERR lines, for example a permission that is missing; each is logged."""
    losses: int = 0


class NatsConnection:
    """One connection to NATS that reconnects for ever. Make it with `connect`; all calls belong to its event loop."""

    def __init__(self, urls: Sequence[str], *, outgoing_limit: int, inbox_prefix: str) -> None:
        self._urls = tuple(urls)
        self._outgoing_limit = outgoing_limit
        self._inbox = f"{inbox_prefix}.{NUID().next().decode()}."
        self._inbox_count = 0
        self._inboxes: dict[str, MessageHandler] = {}
        self._connection_handlers: list[Callable[[bool], None]] = []
        self._waiting: dict[asyncio.Future[Any], str] = {}  # what fails at a loss -> what it waits for, as text
        self._connected_since = math.inf
        self._next_flush: asyncio.Task[None] | None = None
        """Has not begun: it covers all that is written until it does."""
        self._loss: Exception | None = None
        self._server_lost = ""
        """Id of the server that the connection was lost to."""
        self._words, self._words_at = "", -math.inf
        """The newest -ERR."""
        self._last_words = ""
        """The one that came with the loss."""
        self._closed = False
        self._turn = bytearray()
        """Published in this turn of the loop. A socket write, and a read of the server's, cost more than a message."""
        self._reading = _Reading()
        self._up = asyncio.Event()
        self._buffer_low = asyncio.Event()
        self._buffer_low.set()
        self._connect_error: Exception | None = None  # the most telling one, for the message of NatsUnavailable
        mark = min(WRITABLE_BELOW, outgoing_limit // 4)
        self._client = ChunkedClient(
            on_down=self._went_down,
            on_writable=self._writable_changed,
            on_server_error=self._server_error,
            on_read=self._read,
            write_marks=(4 * mark, mark),
        )
        self.counters = Counters(self._client.parser.counters)
        self._inbox_guard = _Guard("answers", self.counters)

    @classmethod
    async def connect(
        cls,
        urls: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        name: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        creds: str | Path | None = None,
        tls: ssl.SSLContext | None = None,
        tls_hostname: str | None = None,
        reconnect_wait: float = 0.05,
        ping_interval: float = 2.0,
        connect_timeout: float = 2.0,
        inbox_prefix: str = "_INBOX",
        outgoing_limit: int = OUTGOING_LIMIT,
    ) -> NatsConnection:
        """Connect to the first of `urls` that answers (one URL, several with commas, or a list).

        Times are in seconds; two pings without an answer are a loss. `creds` is a file with a user's JWT and key.
        Raises NatsUnavailable.
        """
        listed = urls.split(",") if isinstance(urls, str) else list(urls)
        addresses = [url.strip() for url in listed if url.strip()]
        shown = ", ".join(_without_secrets(url) for url in addresses)
        connection = cls(addresses, outgoing_limit=outgoing_limit, inbox_prefix=inbox_prefix)
        for url in addresses:
            if "://" in url and not url.startswith(("nats://", "tls://")):
                raise NatsUnavailable(f"{_without_secrets(url)} is no nats:// or tls:// URL; give the one of that kind")
        options: dict[str, Any] = {
            "servers": addresses,
            "name": name,
            "user": user,
            "password": password,
            "token": token,
            "user_credentials": None if creds is None else str(creds),
            "tls": tls,
            "tls_hostname": tls_hostname,
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
            answered = connection._waiting_for("the first answer of the NATS server")
            client.ping(answered)
            await connection._answer(answered, connect_timeout)
            if client.link_transport is None:
                raise ConnectionResetError("the connection was lost at once")
        except ImportError as error:
            raise NatsUnavailable(f"credentials need the package {error.name!r}: install it with pip") from error
        except (OSError, errors.Error, TimeoutError) as error:
            await connection.close()
            refused = isinstance(connection._connect_error or error, ConnectionRefusedError)
            kind = NatsNotListening if refused else NatsUnavailable
            raise kind(connection._why_unavailable(shown, error)) from error
        except asyncio.CancelledError:
            await connection.close()
            raise
        connection._set_up()
        await connection._subscribe(connection._inbox + "*", connection._on_inbox_message)
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
        """Of the server that this connection is made with; empty while disconnected."""
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
        transport = self._client.link_transport
        return 0 if transport is None else transport.get_write_buffer_size() + len(self._turn)

    @property
    def loss_reason(self) -> str:
        """Why the connection was lost the last time, as far as that is known; empty: it never was."""
        if self._loss is None:
            return ""
        if self._last_words:
            return f"the NATS server said {self._last_words}"
        if isinstance(self._loss, (errors.UnexpectedEOF, ConnectionError)):
            if self._up.is_set() and self._server_lost == self._client.info.get("server_id"):
                return "the NATS server cut it off and lives: a slow consumer, most likely; its log says so"
            return "the NATS server went away"
        return f"{type(self._loss).__name__}: {self._loss}"

    def give_way_to(self, other: NatsConnection) -> None:
        """While `other` has a backlog of messages, little is read here at a time. Both belong to one loop, which reads
        from each of them once in a turn."""
        self._client.precedes = other._client
        self._reading = other._reading

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
        """Write one message, before anything is done that is asked of the loop from now on. False, and nothing sent,
        when not connected or the outgoing buffer is above its limit.

        Raises, for what the server would end the connection for, TidelogError(MESSAGE_TOO_LARGE) (a message above
        `max_payload`) and ValueError (a bad subject).
        """
        size = 0
        for part in parts:
            size += _size(part)
        address = _subject(subject) if reply is None else f"{_subject(subject)} {_subject(reply)}"
        if headers:
            block = encode_headers(headers)
            size += len(block)
            line = f"HPUB {address} {len(block)} {size}\r\n".encode()
            pieces = (line, block, *parts, b"\r\n")
        else:
            line = f"PUB {address} {size}\r\n".encode()
            pieces = (line, *parts, b"\r\n")
        if size > self.max_payload:
            raise too_large(subject, size, self.max_payload)
        if len(line) > MAX_CONTROL_LINE:
            raise ValueError(f"subject and reply of {len(line)} bytes are too long for NATS: {subject[:80]!r}…")
        return self._write(pieces, len(line) + size + 2)

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        """As `publish`, for ready-made `PUB …` protocol bytes."""
        return self._write(lines, sum(map(_size, lines)))

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        """Write the same message to each of these reply subjects, as NATS told them, now, in few socket writes. How
        many of them were left out, because they are too long."""
        block = encode_headers(headers)
        sizes = b" %d %d\r\n" % (len(block), len(block) + memoryview(payload).nbytes)
        rest = sizes + block + payload + b"\r\n"
        longest = MAX_CONTROL_LINE - len(b"HPUB ") - len(sizes)
        fitting = [subject for subject in subjects if len(subject) <= longest]
        at_once = max(1, _BLOCK_BYTES // len(rest))
        for first in range(0, len(fitting), at_once):
            self.publish_raw([b"HPUB %b%b" % (subject, rest) for subject in fitting[first : first + at_once]])
        return len(subjects) - len(fitting)

    def _write(self, pieces: Sequence[Buffer], size: int) -> bool:
        transport = self._client.link_transport
        if transport is None or not self._up.is_set() or transport.get_write_buffer_size() > self._outgoing_limit:
            self.counters.dropped_publishes += 1
            return False
        if size >= _GATHER_FROM:
            self._end_turn()
            if not self._gather(pieces, size):
                # Joined, not writelines: from Python 3.12 on that keeps the caller's buffers, which may change.
                transport.write(b"".join(pieces))
        else:
            turn = self._turn
            if not turn and not self._reading.will_end(self._end_turn):
                asyncio.get_running_loop().call_soon(self._end_turn)
            for piece in pieces:
                turn += piece
            if len(turn) >= _TURN_BYTES:
                self._end_turn()
        self.counters.messages_out += 1
        self.counters.bytes_out += size
        return True

    def _read(self, begins: bool) -> None:
        """A read callback begins, or is over."""
        if begins:
            self._reading.begin()
        else:
            self._reading.end()

    def _end_turn(self) -> None:
        """What was published in this turn of the loop is written."""
        turn = self._turn
        if turn:
            self._turn = bytearray()
            transport = self._client.link_transport
            if transport is not None:
                transport.write(turn)

    def _gather(self, pieces: Sequence[Buffer], size: int) -> bool:
        """Large pieces go to the socket as they lie, where nothing waits to be sent before them; what it does not take
        is joined. False: nothing was sent."""
        link = self._client.link
        if link is None or link.gather_fd is None or link.transport.get_write_buffer_size():
            return False
        try:
            sent = os.writev(link.gather_fd, pieces[:_IOV_MAX])
        except OSError:  # it takes nothing now, or is lost: the transport's to find out
            return False
        if sent < size:
            rest = []
            for piece in pieces:
                length = _size(piece)
                if sent < length:
                    rest.append(memoryview(piece).cast("B")[sent:])
                sent = max(0, sent - length)
            link.transport.write(b"".join(rest))
        return True

    async def wait_writable(self) -> None:
        """Returns when connected and few bytes wait to be sent. For those who publish much. Raises ConnectionClosed."""
        while True:
            self._check_open()
            if self._up.is_set() and self._buffer_low.is_set():
                return
            await (self._buffer_low if self._up.is_set() else self._up).wait()

    async def flush(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Returns when the server has taken everything published before, and everything it had sent before that is
        delivered. Raises TimeoutError, also when the connection is lost."""
        await self._answer(self._flushing(), timeout)

    async def _flush_together(self) -> None:
        """As `flush`, one for all who ask in the same turn of the loop: brokers subscribe to thousands of subjects."""
        flush = self._next_flush
        if flush is None:
            flush = self._next_flush = asyncio.get_running_loop().create_task(self._flush_next())
            flush.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(flush)

    async def _flush_next(self) -> None:
        self._next_flush = None
        await self.flush()

    def _flushing(self) -> asyncio.Future[bool]:
        answered: asyncio.Future[bool] = self._waiting_for("a flush")
        if self._up.is_set():
            self._end_turn()
            self._client.ping(answered)
        else:
            answered.set_exception(TimeoutError("flush: there is no connection to NATS at the moment"))
        return answered

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
        Raises TimeoutError, also when the connection is lost meanwhile or there is none; and as `publish`."""
        answer: asyncio.Future[Message] = self._waiting_for(f"an answer on {subject!r}")
        inbox = self.new_inbox()
        self.on_inbox(inbox, lambda message: None if answer.done() else answer.set_result(message))
        try:
            if not self.publish(subject, (payload,), reply=inbox, headers=headers):
                answer.set_exception(TimeoutError(f"the request to {subject!r} was not sent: {self._why_not_sent()}"))
            return await self._answer(answer, timeout)
        finally:
            self.on_inbox(inbox, None)

    def new_inbox(self) -> str:
        self._inbox_count += 1
        return f"{self._inbox}{self._inbox_count:x}"

    def on_inbox(self, inbox: str, handler: MessageHandler | None) -> None:
        if not inbox.startswith(self._inbox):
            raise ValueError(f"{inbox!r} is not an inbox of this connection; take one from new_inbox()")
        if handler is None:
            self._inboxes.pop(inbox, None)
        else:
            self._inboxes[inbox] = handler

    def _on_inbox_message(self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        handler = self._inboxes.get(subject.decode())
        if handler is not None:
            try:
                handler(_message(subject, reply, headers, payload))
            except Exception as error:  # noqa: BLE001 - as every guard
                self._inbox_guard.met(error)

    # ---- subscriptions

    async def subscribe(self, subject: str, handler: MessageHandler) -> Subscription:
        """Returns when the server knows the subscription; waits for that through losses of the connection."""

        guard = _Guard(f"messages on {subject!r}", self.counters)

        def direct(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            try:
                handler(_message(subject, reply, headers, payload))
            except Exception as error:  # noqa: BLE001 - as every guard
                guard.met(error)

        return await self._subscribe(subject, direct)

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> Subscription:
        """As `subscribe`, for messages by the thousand. All messages of `subject` go to `handler`, subjects unsaid."""
        return await self._subscribe(
            subject, GuardedBulk(handler, _Guard(f"messages on {subject!r}", self.counters).met)
        )

    async def _subscribe(
        self, subject: str, sink: GuardedBulk | Callable[[bytes, bytes | None, bytes | None, bytes], None]
    ) -> Subscription:
        self._check_open()
        sid = self._client.add_subscription(_subject(subject))
        if isinstance(sink, GuardedBulk):
            self._client.parser.add_bulk(sid, sink)
        else:
            self._client.parser.add_direct(sid, sink)
        try:
            while True:
                await self._up.wait()
                self._check_open()
                transport = self._client.link_transport
                if transport is not None:
                    self._end_turn()
                    # A server that has this id already (from a reconnect in between) ignores the second SUB.
                    transport.write(f"SUB {subject} {sid}\r\n".encode())
                with contextlib.suppress(TimeoutError):
                    await self._flush_together()
                    return Subscription(self, sid, subject)
        except BaseException:
            self._client.remove_subscription(sid)
            if self._up.is_set() and (transport := self._client.link_transport) is not None:
                # Else the server goes on telling others that somebody listens.
                transport.write(f"UNSUB {sid}\r\n".encode())
            raise

    async def _unsubscribe(self, sid: int) -> None:
        self._client.remove_subscription(sid)
        transport = self._client.link_transport
        if transport is not None and self._up.is_set():
            self._end_turn()
            transport.write(f"UNSUB {sid}\r\n".encode())
            with contextlib.suppress(TimeoutError):  # a lost connection forgets the subscription as well
                await self._flush_together()

    # ---- services

    async def add_service(
        self, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]
    ) -> Service:
        """Answer requests to the subjects in `endpoints`, discoverable with `nats micro ls` and `info`."""
        service = Service(self, name, version, description, endpoints)
        await service.start()
        return service

    # ---- the end

    async def drain(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Give up all subscriptions, deliver what is on the way, send what is buffered, close."""
        transport = self._client.link_transport
        if transport is not None and self._up.is_set():
            self._end_turn()
            for sid in self._client.subscription_ids():
                transport.write(f"UNSUB {sid}\r\n".encode())
            with contextlib.suppress(TimeoutError):
                await self.flush(timeout)
        await self.close()

    async def close(self) -> None:
        """Close for good; what is buffered is sent if the server takes it within CLOSE_TIMEOUT."""
        if self._closed:
            return
        self._closed = True
        self._end_turn()
        self._fail_waiting("the connection to NATS was closed")
        self._connected_since = math.inf
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._client.shut()
        except TimeoutError:
            self._client.abort()
        # Wake those who wait; they meet ConnectionClosed.
        self._buffer_low.set()
        self._up.set()
        self._up.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosed("this connection to NATS was closed; make a new one")

    def _why_unavailable(self, shown: str, error: Exception) -> str:
        """One sentence that names the URL, the reason and the remedy."""
        error = self._connect_error or error
        text = str(error) or type(error).__name__
        # A server that refuses closes at once, and the reset may overtake its words.
        cut_off = isinstance(error, ConnectionResetError) and bool(self._client.info.get("auth_required"))
        if _is_refusal(error) or cut_off:
            return f"the NATS server at {shown} refuses these credentials ({text}): give the right user, token or creds"
        if isinstance(error, ssl.SSLError):
            return f"no TLS connection to the NATS server at {shown} ({text}): give the right certificates"
        return (
            f"no NATS server answers at {shown} ({text}): start one (`tidelog up` brings its own) or give another URL"
        )

    # ---- what happens to the connection

    def _set_up(self) -> None:
        self._connected_since = time.monotonic()
        self._buffer_low.set()
        self._up.set()

    async def _came_up(self) -> None:
        """nats-py: connected anew, and the server has every subscription."""
        if self._client.link_transport is None:
            return  # lost again already; the next reconnect is under way
        self._set_up()
        log.info("connected to NATS again (%s)", self._client.info.get("server_name", "?"))
        self._tell(True)

    def _went_down(self, error: Exception) -> None:
        if not self._up.is_set():
            return  # lost while connecting
        self._loss = error
        self._server_lost = str(self._client.info.get("server_id", ""))
        self._last_words = self._words if time.monotonic() - self._words_at < LAST_WORDS else ""
        self._up.clear()
        self._turn.clear()
        self._connected_since = math.inf
        self._fail_waiting("the connection to NATS was lost")
        if not self._closed:
            self.counters.losses += 1
            log.warning("the connection to NATS was lost; connecting again")
            self._tell(False)

    def _tell(self, connected: bool) -> None:
        for handler in tuple(self._connection_handlers):
            try:
                handler(connected)
            except Exception as error:  # noqa: BLE001 - as every guard
                _Guard("connection changes", self.counters).met(error)

    def _writable_changed(self, writable: bool) -> None:
        if writable:
            self._buffer_low.set()
        else:
            self._buffer_low.clear()

    def _server_error(self, text: str) -> None:
        self.counters.server_errors += 1
        self._words, self._words_at = text, time.monotonic()
        log.warning("NATS server says: %s", text)

    async def _error(self, error: Exception) -> None:
        if self._connect_error is None or not _is_refusal(self._connect_error):
            self._connect_error = error
        log.debug("NATS connection: %r", error)

    # ---- waiting

    def _waiting_for(self, what: str) -> asyncio.Future[Any]:
        """A future that fails when the connection is lost or closed."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = what
        return future

    def _fail_waiting(self, reason: str) -> None:
        for future, what in tuple(self._waiting.items()):
            if not future.done():
                future.set_exception(TimeoutError(f"waiting for {what}: {reason}"))
                future.exception()  # its waiter may have been cancelled; then nobody else asks
        self._waiting.clear()

    async def _answer(self, future: asyncio.Future[_T], timeout: float) -> _T:
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

    def _why_not_sent(self) -> str:
        if not self._up.is_set():
            return "there is no connection to NATS at the moment"
        return f"more than {self._outgoing_limit} bytes wait to be sent"


class Subscription:
    """A live subscription of a `NatsConnection`."""

    def __init__(self, connection: NatsConnection, sid: int, subject: str) -> None:
        self.subject = subject
        self._connection = connection
        self._sid = sid

    async def unsubscribe(self) -> None:
        """Stop delivery. Nothing is delivered from the call on; returns when the server has been told."""
        await self._connection._unsubscribe(self._sid)


class _Reading:
    """A read callback that runs, of any of the connections that share this: what it publishes leaves at its end. To
    have that wait for the end of the loop's turn would cost each message that comes alone one more turn."""

    def __init__(self) -> None:
        self._is_on = False
        self._at_end: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._is_on = True

    def will_end(self, at_end: Callable[[], None]) -> bool:
        """`at_end` is called when the present one is over; False: none runs."""
        if self._is_on:
            self._at_end.append(at_end)
        return self._is_on

    def end(self) -> None:
        self._is_on = False
        at_end, self._at_end = self._at_end, []
        for call in at_end:
            call()


class _Guard:
    """Of handlers: what they raise is logged and counted, and the connection goes on. Not a context manager, which
    takes longer than some of what it would guard."""

    def __init__(self, what: str, counters: Counters) -> None:
        self._what = what
        self._counters = counters

    def met(self, error: Exception) -> None:
        self._counters.handler_errors += 1
        log.error("a handler of %s raised; the connection goes on", self._what, exc_info=error)


def _size(piece: Buffer) -> int:
    """In bytes."""
    return len(piece) if type(piece) is bytes else memoryview(piece).nbytes


def _message(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> Message:
    fields, status = (None, None) if headers is None else decode_headers(headers)
    return Message(subject.decode(), payload, None if reply is None else _address(reply), fields, status)


def _address(reply: bytes) -> str | None:
    """None for what nobody can be answered at: NATS passes on whatever a client calls its reply subject."""
    try:
        return _subject(reply.decode())
    except ValueError as error:
        log.debug("a reply subject that is none: %s", error)
        return None


def _subject(subject: str) -> str:
    if not _SUBJECT.fullmatch(subject):
        raise ValueError(f"{subject!r} cannot be a NATS subject: it is empty or holds blanks or control characters")
    return subject


def _without_secrets(url: str) -> str:
    """The URL without user, password and token."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}"


def _is_refusal(error: Exception) -> bool:
    text = str(error).lower()
    return "authorization" in text or "authentication" in text
