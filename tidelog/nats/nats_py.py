"""Everything that reaches inside nats-py, in one place.

nats-py keeps these tasks: trying one server after the other, the TLS handshake, CONNECT, the timer of pings. Replaced
are the way bytes come in, the choice of servers, and the login:

    login        nats-py knows none. `_connect_command` puts it in, as `LiveLogin` has read it before this attempt.
    TLS          `_process_info` sees the server's first line before anything is sent. Where TLS is wanted and not
                 offered the attempt ends there; where it is offered and not required it is used.
    pool         servers that a server announces come into it when the first connection is made, not before: nats-py
                 would go on for ever, for each refusal brings them anew. Those that are announced no longer leave it,
                 for their address may be anyone's.
    refusals     a refused login ends the first connection. Later it is tried again, more and more slowly, and as soon
                 as the login has changed.

nats-py reads 32 KiB at a time from a stream, copies them into its parser and puts every
message into a queue with a task behind it; here the socket reads into the buffer of a `ChunkParser`, and sinks are
called from the read callback itself.

    connect, or a reconnect
      -> nats-py opens the stream, does TLS, CONNECT, PING, and starts `_read_loop`
      -> `_read_loop` puts a `Link` in place of the stream's protocol object; the stream's own protocol object keeps
         being notified of flow control and of the loss, because `drain()` and `wait_closed()` wait there
      -> on a reconnect nats-py sends SUB for everything in `_subs`, waits for a PONG and calls `reconnected_cb`
    loss (end of file, error, unanswered pings, a line that is not NATS)
      -> `on_down` at once, the socket is aborted, nats-py's `_process_op_err` begins to reconnect

Nothing here ever puts anything into nats-py's `_pending`: our writes go to the socket's transport directly, so their
order is the order of the calls.

Each name with an underscore that is used here is pinned, with its meaning, by test_nats_py_pins.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from random import random
from typing import Any, Final, cast
from urllib.parse import ParseResult, urlparse

from nats import errors
from nats.aio.client import CONNECT_OP, DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from tidelog.nats.login import LiveLogin, NatsLogin
from tidelog.nats.nats_errors import NatsRefused, is_refusal
from tidelog.nats.nats_parser import ChunkParser, ProtocolError
from wire.retry import Retry

_log = logging.getLogger(__name__)

BEHIND = 256 << 10
"""A connection with a newest read of so many bytes has a backlog, as a rule: its reads are a loop's turn apart."""
GIVING_WAY = 64 << 10
"""Bytes that are read at most in a turn while another connection, which goes first, has a backlog."""
FIRST_PAUSE = 0.25
"""Seconds before the next attempt after a refused login of a connection that was there before; doubled each time."""
LONGEST_PAUSE = 10.0
_LOOK = 0.25  # seconds between looks whether the login has changed meanwhile
_RETRY_AFTER_BUG = 1.0  # seconds before nats-py's reconnect loop is started again after it ended with an exception


Address = tuple[str | None, int | None]
"""Host and port."""


def address_of(uri: ParseResult) -> Address:
    return uri.hostname, uri.port


def _told_uri(text: object) -> ParseResult | None:
    """Returns the URI of HOST:PORT, as servers announce it; None: it is no such text."""
    try:
        host, port = address_of(urlparse(f"nats://{text}"))
    except ValueError:
        return None
    if not host or port is None:
        return None
    return urlparse(f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}")


def _is_ip(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True


def _abort(transport: asyncio.WriteTransport) -> None:
    with suppress(AttributeError):  # a TLS transport that has closed, of Python 3.11.2
        transport.abort()


def _ignore(_: bool) -> None:
    pass


class Ended(Exception):
    """Ends nats-py's first connection: each further attempt would fail alike."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class _TcpTransport(TcpTransport):
    """nats-py's, except that a failed TLS handshake leaves nothing to wait for, and that a server which ends a TLS
    connection leaves no warning of asyncio.

    asyncio takes the stream's protocol object off the socket for the handshake. When that fails asyncio does not notify
    the object of the end, and nats-py's `wait_closed` waits for it for ever.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except BaseException:
            if self._io_writer is not None:
                _abort(self._io_writer.transport)
            self._io_writer = self._io_reader = None
            raise
        # None: the server has ended the connection already, as it does when it refuses the client's certificate.
        protocol = None if self._io_writer is None else self._io_writer.transport.get_protocol()
        if protocol is not None:
            # nats-py leaves this flag of its protocol object unset, and asyncio would warn at the connection's end.
            protocol._over_ssl = True  # type: ignore[attr-defined]


MOST_ROUNDS: Final = 16
"""Rounds of work at the end of a read callback that makes more such work."""


class ReadCallback:
    """The read callback that runs now, of any of the connections that share this object. Messages published in it leave
    at its end: to wait for the end of the loop's turn would cost each message that comes alone one more turn. The same
    goes for work that follows when they have left, and for the messages that are published in that work."""

    def __init__(self) -> None:
        self._is_on = False
        self._at_end: list[Callable[[], None]] = []
        self._afterwards: list[Callable[[], None]] = []

    def begin(self) -> None:
        self._is_on = True

    def at_end(self, call: Callable[[], None]) -> bool:
        """`call` is called when the present read callback is over. Returns False when none runs."""
        if self._is_on:
            self._at_end.append(call)
        return self._is_on

    def afterwards(self, call: Callable[[], None]) -> bool:
        """`call` is called when all that was published in the present read callback has left. Returns False when none
        runs."""
        if self._is_on:
            self._afterwards.append(call)
        return self._is_on

    def end(self) -> None:
        """The rest comes in the loop's next turn, if there is no end of it."""
        try:
            for _ in range(MOST_ROUNDS):
                if not (self._at_end or self._afterwards):
                    return
                if self._at_end:
                    calls, self._at_end = self._at_end, []
                else:
                    calls, self._afterwards = self._afterwards, []
                for call in calls:
                    try:
                        call()
                    except Exception:  # noqa: BLE001 - it is logged, and the other connections' calls follow
                        _log.exception("NATS connection: what follows a read callback met a bug; messages may be lost")
            asyncio.get_running_loop().call_soon(self.end)
        finally:
            self._is_on = False


class Link(asyncio.BufferedProtocol):
    """One connected socket: its protocol object, from CONNECT to the loss."""

    def __init__(
        self, client: ChunkedClient, transport: asyncio.Transport, stream_protocol: asyncio.StreamReaderProtocol
    ) -> None:
        self.transport = transport
        plain = transport.get_extra_info("sslcontext") is None
        self.gather_fd: int | None = transport.get_extra_info("socket").fileno() if plain else None
        """Descriptor of the socket, for writes of buffers that the transport need not join; None: bytes go through
        TLS."""
        self.wake = asyncio.Event()
        self.lost: Exception | None = None
        self.info: dict[str, Any] | None = None
        self._client = client
        self._stream_protocol = stream_protocol

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        client = self._client
        room = client.parser.get_buffer()
        return room[:GIVING_WAY] if client.gives_way() else room

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is not None:
            return
        client = self._client
        client.is_behind = nbytes >= BEHIND
        client.reading.begin()
        try:
            client.parser.received(nbytes)
        except ProtocolError as error:
            _log.error("NATS connection: %s; connecting anew", error)
            self.lose(error)
        except Exception as error:  # noqa: BLE001 - logged, and the connection is made anew
            # Sinks are guarded, so this is a bug of ours in the parser. Its state is unknown: begin anew.
            _log.exception("NATS connection: reading failed; connecting anew")
            self.lose(error)
        finally:
            client.reading.end()

    def eof_received(self) -> bool:
        return False  # let the transport close; connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream_protocol.connection_lost(exc)
        self.lose(exc or errors.UnexpectedEOF())

    def pause_writing(self) -> None:
        self._stream_protocol.pause_writing()
        self._client.on_writable(False)

    def resume_writing(self) -> None:
        self._stream_protocol.resume_writing()
        self._client.on_writable(True)

    def lose(self, error: Exception) -> None:
        """The first call counts. Wakes the read loop, which begins to reconnect."""
        if self.lost is None:
            self.lost = error
            self._client.link_lost(self, error)
            self.wake.set()
        _abort(self.transport)


class ListedSubscription:
    """What nats-py reads of the subscriptions in `_subs`, when it sends them anew and when it closes. Its own class has
    a queue for messages, which takes some KiB and is not used here; brokers have tens of thousands of subscriptions."""

    __slots__ = ("_queue", "_subject")
    _max_msgs = _received = 0
    _wait_for_msgs_task = _message_iterator = _pending_next_msgs_calls = None

    def __init__(self, subject: str, queue: str) -> None:
        self._subject = subject
        self._queue = queue


class ChunkedClient(Client):
    """nats-py's client with a `ChunkParser` in place of its reading.

    `on_down(why)`: the connection is lost (called once per loss, at once). `on_server_error(text)`: a -ERR line.
    """

    def __init__(
        self,
        *,
        on_down: Callable[[Exception], None],
        on_server_error: Callable[[str], None],
        write_marks: tuple[int, int],
    ) -> None:
        super().__init__()
        self.login = LiveLogin(NatsLogin(), tls_by_url=False)
        self._url_logins: dict[Address, NatsLogin | None] = {}
        """The login of each server's URL; for an announced one, that of the server that announced it."""
        self._was_connected = False
        self._refusals = Retry(FIRST_PAUSE, LONGEST_PAUSE, chance=random, at_once=True)
        """Refused logins since the connection was lost."""
        self.parser = ChunkParser(self._control_line)
        self.on_writable: Callable[[bool], None] = _ignore
        """The outgoing buffer fell below its low mark (True), or rose above its high mark."""
        self.reading = ReadCallback()
        """The read callback that runs now: it begins before sinks are called with the bytes read."""
        self._on_down = on_down
        self._on_server_error = on_server_error
        self._write_marks = write_marks  # (high, low) of the outgoing buffer, in bytes
        self._link: Link | None = None
        self._reconnecting: asyncio.Task[Any] | None = None
        """The newest task that reconnects."""
        self.is_behind = False
        """The newest read was so large that more is waiting, as a rule."""
        self.precedes: ChunkedClient | None = None
        """The client with messages that go first."""
        self.always_gives_way = False
        """Little is read in each turn, so that a flood here delays the other connections of the loop by little."""

    # ---- for the connection

    def use(self, login: LiveLogin, urls: Sequence[tuple[str, NatsLogin | None]]) -> None:
        """To be called before `connect`. `urls`: without logins, each with the login that was in it."""
        self.login = login
        default = next((in_url for _, in_url in urls if in_url is not None), None)
        self._url_logins = {
            address_of(self._parse_server_uri(url)): default if in_url is None else in_url for url, in_url in urls
        }

    def gives_way(self) -> bool:
        """Whether another client has a backlog, and reads first. Called before each read; True once per its reads."""
        if self.always_gives_way:
            return True
        first = self.precedes
        if first is None or not first.is_behind:
            return False
        first.is_behind = False
        return True

    @property
    def link(self) -> Link | None:
        """The connected socket; None while there is no connection."""
        return self._link

    @property
    def link_transport(self) -> asyncio.Transport | None:
        """The socket's transport; None while there is no connection."""
        return None if self._link is None else self._link.transport

    @property
    def info(self) -> dict[str, Any]:
        """The INFO that the server sent when the connection was made."""
        return dict(self._server_info)

    def login_in_url(self) -> NatsLogin | None:
        """The login in the URL of the present server."""
        server = self._current_server
        return None if server is None else self._url_logins.get(address_of(server.uri))

    def retry_for_ever(self) -> None:
        """The first connection is made. From now on servers that the cluster announces are tried, too, and none is
        dropped for not answering."""
        self.options["max_reconnect_attempts"] = -1
        self._was_connected = True
        self._learn(self._server_info)

    def ping(self, answered: asyncio.Future[bool]) -> None:
        """Sends PING; the future gets True at its PONG, unless it is done by then. Only while there is a connection."""
        assert self._transport is not None
        self._pongs.append(answered)
        self._transport.write(b"PING\r\n")

    def add_subscription(self, subject: str, queue: str = "") -> int:
        """Registers a subscription id that nats-py sends SUB for at every reconnect. Sends nothing itself."""
        self._sid += 1
        self._subs[self._sid] = cast("Subscription", ListedSubscription(subject, queue))
        return self._sid

    def remove_subscription(self, sid: int) -> str:
        """Returns its subject; empty: there is none with this id."""
        removed = self._subs.pop(sid, None)
        self.parser.remove(sid)
        return "" if removed is None else str(removed._subject)

    def subscribed(self) -> list[tuple[int, str, str]]:
        """Returns (id, subject, queue) of each subscription."""
        return [(sid, listed._subject, listed._queue) for sid, listed in self._subs.items()]

    async def shut(self) -> None:
        """Calls nats-py's `close`, also where `connect` failed before it had begun."""
        if self._flush_queue is not None:
            try:
                await self.close()
            except OSError:  # nats-py still had something to send to a socket that is reset
                self.abort()

    def abort(self) -> None:
        """Closes the socket without sending the buffer."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            _abort(writer.transport)

    # ---- reading

    async def _read_loop(self) -> None:
        """Replaces nats-py's loop: runs until the connection is lost, or until nats-py cancels it."""
        link = self._attach()
        while True:
            await link.wake.wait()
            link.wake.clear()
            if self.is_closed or self.is_reconnecting:
                return
            info, link.info = link.info, None
            if info is not None:
                await self._process_info(info)
            if link.lost is not None:
                await self._error_cb(link.lost)
                await self._process_op_err(link.lost)
                return

    def _attach(self) -> Link:
        assert self._transport is not None
        streams = cast(Any, self._transport)
        reader = streams._io_reader
        transport = streams._io_writer.transport
        link = Link(self, transport, transport.get_protocol())
        self.parser.reset()
        self._link = link
        if reader.at_eof() or reader.exception() is not None or transport.is_closing():
            link.lose(reader.exception() or errors.UnexpectedEOF())
            return link
        received = bytes(reader._buffer)
        reader._buffer.clear()
        transport.set_protocol(link)
        high, low = self._write_marks
        transport.set_write_buffer_limits(high=high, low=low)
        if reader._paused:
            reader._paused = False
            transport.resume_reading()
        if received:
            try:
                self.parser.feed(received)
            except ProtocolError as error:
                link.lose(error)
        return link

    def _control_line(self, line: bytes) -> None:
        link = self._link
        if link is None:
            return
        if line.startswith(b"PING"):
            link.transport.write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            self._pong()
        elif line.startswith(b"INFO"):
            try:
                link.info = json.loads(line[4:])  # only the newest counts: each is complete
            except ValueError as error:
                raise ProtocolError(f"the server sent an INFO that is not JSON: {line[:80]!r}") from error
            link.wake.set()
        elif line.startswith(b"-ERR"):
            # nats-py would close for good. Where an error ends the connection the server closes it, and we reconnect.
            self._on_server_error(line[4:].strip().decode("utf-8", "replace"))

    def _pong(self) -> None:
        if self._pongs:
            answered = self._pongs.pop(0)
            if not answered.done():  # nats-py's own reader stops for ever at the PONG of a flush that timed out
                answered.set_result(True)
        self._pongs_received += 1
        self._pings_outstanding = 0

    # ---- loss and reconnect

    def link_lost(self, link: Link, error: Exception) -> None:
        if self._link is link:
            self._link = None
            self._on_down(error)

    async def _process_op_err(self, e: Exception) -> None:
        if not self.is_closed and not self.is_reconnecting:
            # Without this nats-py would wait until the server has taken all that is buffered; a frozen one never does.
            if self._link is not None:
                self._link.lose(e)
            self.abort()
        await super()._process_op_err(e)

    async def _connect_to_server(self, s: Srv) -> None:
        task = self._reconnecting
        if task is not None and task.cancelling() and task is asyncio.current_task():
            # The task is cancelled once, by nats-py's `close` or by `asyncio.run`. `asyncio.wait_for` loses that (until
            # Python 3.12) when an attempt fails at the same moment; the loop would go on for ever, and with it the
            # process.
            raise asyncio.CancelledError
        self.abort()  # an attempt that failed after the socket was open left it open
        if self._was_connected:
            await self._pause()
        s.last_attempt = time.monotonic()
        transport = self._transport = _TcpTransport()
        await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _pause(self) -> None:
        """Waits after a refused login, until the login has changed or the pause is over. Reads the login."""
        end = time.monotonic() + self._refusals.pause_s()
        while not await self.login.read_again():
            left = end - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, _LOOK))

    async def _process_connect_init(self) -> None:
        self.options["tls_handshake_first"] = self.login.tls_first
        if self.login.tls_hostname is not None:
            self.options["tls_hostname"] = self.login.tls_hostname
        else:
            self.options.pop("tls_hostname", None)
        try:
            await super()._process_connect_init()
        except (OSError, errors.Error) as error:
            if not self._was_connected:
                if is_refusal(error):
                    raise Ended(error) from error
            else:
                self._tell_refusal(error)
            raise
        if self.is_connected:
            self._refusals.succeeded()

    def _tell_refusal(self, error: Exception) -> None:
        """Logs that a connection which was made before is refused, if that is the error."""
        is_tls = isinstance(error, (NatsRefused, ssl.SSLError))
        # A server that refuses closes at once, and the reset may overtake its -ERR.
        is_cut_off = isinstance(error, ConnectionError) and bool(self._server_info.get("auth_required"))
        if is_tls or is_refusal(error) or is_cut_off:
            self._refusals.failed()
            _log.warning(
                "the NATS server at %s refuses %s (%s); trying again, every %g s in the end, and as soon as the login"
                " has changed",
                self._current_name(), "TLS" if is_tls else "the login",
                (str(error) or type(error).__name__) + ("" if is_tls else f"; {self.login.told(self.login_in_url())}"),
                LONGEST_PAUSE,
            )  # fmt: skip

    def _current_name(self) -> str:
        server = self._current_server
        return "an unknown address" if server is None else f"{server.uri.hostname}:{server.uri.port}"

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self.login.tls

    def _connect_command(self) -> bytes:
        server = self._current_server
        assert server is not None
        fields = json.loads(super()._connect_command().removeprefix(CONNECT_OP))
        fields |= self.login.fields(self._server_info.get("nonce", ""), self._url_logins.get(address_of(server.uri)))
        return b"%b %b\r\n" % (CONNECT_OP, json.dumps(fields, sort_keys=True).encode())

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """nats-py: the server's first line has come and nothing was sent, or a later INFO has come."""
        if initial_connection and self.login.needs_tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NatsRefused(
                    f"the NATS server at {self._current_name()} offers no TLS, and nothing was sent to it: give it"
                    " certificates, or connect without TLS (a nats:// URL, and no file for TLS)"
                )
            info["tls_required"] = True  # for nats-py, which keeps this very object, and uses TLS only if required
        if (
            initial_connection
            and info.get("tls_required")
            and info.get("tls_verify")
            and not self.login.has_certificate
        ):
            # The server would close in the middle of the handshake, without a reason.
            raise NatsRefused(
                f"the NATS server at {self._current_name()} wants a certificate of the client: give cert and key"
            )
        if self._was_connected:
            self._learn(info)

    def _learn(self, info: Mapping[str, Any]) -> None:
        """Takes over the servers of the cluster, as one of them announces them."""
        told, current = info.get("connect_urls"), self._current_server
        if not told or current is None:
            return
        login = self._url_logins.get(address_of(current.uri))
        uris = {address_of(uri): uri for uri in map(_told_uri, told) if uri is not None}
        kept = [
            server
            for server in self._server_pool
            if not server.discovered or server is current or address_of(server.uri) in uris
        ]
        known = {address_of(server.uri) for server in kept}
        for address, uri in uris.items():
            if address in known:
                continue
            server = Srv(uri)
            server.discovered = True
            if _is_ip(uri.hostname) and not _is_ip(current.uri.hostname):
                # Certificates are for the names that users give; nats-server announces addresses.
                server.tls_name = current.uri.hostname
            elif _is_ip(uri.hostname):
                server.tls_name = current.tls_name
            kept.append(server)
        self._server_pool[:] = kept
        self._url_logins = {
            address: self._url_logins.get(address, login) for address in (address_of(server.uri) for server in kept)
        }

    async def _attempt_reconnect(self) -> None:
        self._reconnecting = asyncio.current_task()
        while not self.is_closed:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                await _pause_after(error, self)
            else:
                return


async def _pause_after(bug: Exception, client: Client) -> None:
    if not client.is_closed:  # the error of a client that is being closed while it reconnects is none
        _log.error("NATS connection: nats-py's reconnecting failed; trying again", exc_info=bug)
        await asyncio.sleep(_RETRY_AFTER_BUG)
