"""Everything that reaches inside nats-py, in one place.

nats-py keeps these tasks: the server pool, TLS, credentials, CONNECT, reconnecting, the timer of pings. Replaced
is the way bytes come in. nats-py reads 32 KiB at a time from a stream, copies them into its parser and puts every
message into a queue with a task behind it; here the socket reads into the buffer of a `ChunkParser`, and sinks are
called from the read callback itself.

    connect, or a reconnect
      -> nats-py opens the stream, does TLS, CONNECT, PING, and starts `_read_loop`
      -> `_read_loop` puts a `Link` in place of the stream's protocol object; the stream's own protocol object keeps
         hearing of flow control and of the loss, because `drain()` and `wait_closed()` wait there
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
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import ParseResult

from nats import errors
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from tidelog.runtime.parser import ChunkParser, ProtocolError

_log = logging.getLogger(__name__)

BEHIND = 256 << 10
"""A connection with a newest read of so many bytes has a backlog, as a rule: its reads are a loop's turn apart."""
GIVING_WAY = 64 << 10
"""Bytes that are read at most while another connection, which goes first, has a backlog."""
_RETRY_AFTER_BUG = 1.0  # seconds before nats-py's reconnect loop is started again after it ended with an exception


def _abort(transport: asyncio.WriteTransport) -> None:
    with suppress(AttributeError):  # a TLS transport that has closed, of Python 3.11.2
        transport.abort()


def _ignore(_: bool) -> None:
    pass


class _TcpTransport(TcpTransport):
    """nats-py's, except that a failed TLS handshake leaves nothing to wait for.

    asyncio takes the stream's protocol object off the socket for the handshake. When that fails asyncio does not tell
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
        client.on_read(True)
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
            client.on_read(False)

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
        """The first call counts. Reconnecting is begun by the read loop, which this wakes."""
        if self.lost is None:
            self.lost = error
            self._client.link_lost(self, error)
            self.wake.set()
        _abort(self.transport)


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
        self.parser = ChunkParser(self._control_line)
        self.on_writable: Callable[[bool], None] = _ignore
        """The outgoing buffer fell below its low mark (True), or rose above its high mark."""
        self.on_read: Callable[[bool], None] = _ignore
        """Sinks are going to be called with the bytes read (True), or have been."""
        self._on_down = on_down
        self._on_server_error = on_server_error
        self._write_marks = write_marks  # (high, low) of the outgoing buffer, in bytes
        self._link: Link | None = None
        self._reconnecting: asyncio.Task[Any] | None = None
        """The newest task that reconnects."""
        self.is_behind = False
        """The newest read found so much that there is more, as a rule."""
        self.precedes: ChunkedClient | None = None
        """The client with messages that go first."""

    # ---- for the connection

    def gives_way(self) -> bool:
        """Another client has a backlog. Asked before each read; answered once for each of the other's."""
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

    def retry_for_ever(self) -> None:
        """From now on no server is ever dropped from the pool."""
        self.options["max_reconnect_attempts"] = -1

    def ping(self, answered: asyncio.Future[bool]) -> None:
        """PING; the future gets True at its PONG, unless it is done by then. Only while there is a connection."""
        assert self._transport is not None
        self._pongs.append(answered)
        self._transport.write(b"PING\r\n")

    def add_subscription(self, subject: str) -> int:
        """Registers a subscription id that nats-py sends SUB for at every reconnect. Sends nothing itself."""
        self._sid += 1
        self._subs[self._sid] = Subscription(self, id=self._sid, subject=subject)
        return self._sid

    def remove_subscription(self, sid: int) -> None:
        self._subs.pop(sid, None)
        self.parser.remove(sid)

    def subscription_ids(self) -> list[int]:
        return list(self._subs)

    async def shut(self) -> None:
        """nats-py's `close`, also where `connect` failed before it had begun."""
        if self._flush_queue is not None:
            await self.close()

    def abort(self) -> None:
        """Close the socket without sending the buffer."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            _abort(writer.transport)

    # ---- reading

    async def _read_loop(self) -> None:
        """As nats-py's: runs until the connection is lost, or until nats-py cancels it."""
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
        s.last_attempt = time.monotonic()
        transport = self._transport = _TcpTransport()
        await transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _attempt_reconnect(self) -> None:
        self._reconnecting = asyncio.current_task()
        while not self.is_closed:
            try:
                await super()._attempt_reconnect()
            except Exception:  # noqa: BLE001 - logged, and tried again
                _log.exception("NATS connection: nats-py's reconnecting failed; trying again")
                await asyncio.sleep(_RETRY_AFTER_BUG)
            else:
                return
