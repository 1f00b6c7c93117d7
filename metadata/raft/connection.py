"""TCP connections and the listening socket of a Raft node, on the poller. They stand in for PySyncObj's TcpConnection
and TcpServer.

    DISCONNECTED --connect--> CONNECTING --TCP open, hello sent; welcome verified--> CONNECTED        (initiator)
    accepted --------------------------------------------------------------------> CONNECTED        (acceptor)
    any --disconnect, fault, end of stream--> DISCONNECTED

Differences from the classes that they replace: frames are authenticated and never unpickled (`framing`), and go over
TLS where that is configured (`tls`); unsent bytes are sent when the socket takes more, without waiting for the next
message; the last bytes of a dying peer are read before its end of stream is acted on; one flooding peer gets
READS_PER_EVENT reads before the others have their turn; a full file table pauses accepting instead of ending it.
Silence is judged by the owner's sweep (`last_received`), never on sending: an idle connection is not a dead one.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from metadata.raft.framing import NONCE_BYTES, FrameError, FrameSession, NotVerified
from metadata.raft.poller import ERROR, READ, WRITE
from metadata.raft.ports import Poller, StreamSocket
from metadata.raft.tls import RaftTls, TlsError, TlsSession
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

_log = logging.getLogger(__name__)

# PySyncObj's CONNECTION_STATE.
DISCONNECTED: Final = 0
CONNECTING: Final = 1
CONNECTED: Final = 2

READ_BYTES = 256 << 10
READS_PER_EVENT = 16
ACCEPTS_PER_EVENT = 16
LISTEN_BACKLOG = 64

MAX_UNSENT_BYTES = 64 << 20
"""A connection with more unsent bytes is closed: its peer does not read. Senders hold back long before
(transport.MAX_IN_FLIGHT_BYTES).
"""

REFUSAL = "refused"
"""The one frame that an initiator sends to an acceptor whose welcome does not verify."""
ACCEPT_PAUSE_S = 1.0
"""After an accept failed for lack of descriptors."""

WARNING_INTERVAL_S = 30.0


class FramedConnection:
    """One connection; an initiator's object outlives its socket and connects again. Camel-case methods are
    PySyncObj's interface.
    """

    def __init__(
        self,
        poller: Poller,
        *,
        secrets: ClusterSecrets,
        acceptor_address: str,
        monotonic: Callable[[], float],
        group: str = "",
        tls: RaftTls | None = None,
        accepted: StreamSocket | None = None,
        make_socket: Callable[[int, int], StreamSocket] = socket.socket,
        on_unverified: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_unverified`: called when the peer's first frame does not verify."""
        self._poller = poller
        self._secrets = secrets
        self._group = group
        self._acceptor_address = acceptor_address
        self._make_socket = make_socket
        self._monotonic = monotonic
        self._initiator = accepted is None
        self._socket = accepted
        self._session = self._new_session()
        self._certificates = tls
        self._on_unverified = on_unverified
        self._tls: TlsSession | None = None
        self._tcp_open = False
        self._unsent = bytearray()
        self._warn_after = 0.0
        self._on_connected: Callable[[], None] | None = None
        self._on_message: Callable[[object], None] | None = None
        self._on_disconnected: Callable[[], None] | None = None
        self.state: int = DISCONNECTED
        self.last_received = monotonic()
        """When bytes last arrived (or the connection began): seconds."""
        self.last_sent = monotonic()
        if accepted is not None:
            self._tls = None if tls is None else tls.session(host=None)
            self.state = CONNECTED
            self._tcp_open = True
            poller.subscribe(accepted.fileno(), self._on_event, READ)

    def setOnConnectedCallback(self, callback: Callable[[], None] | None) -> None:  # noqa: N802
        self._on_connected = callback

    def setOnMessageReceivedCallback(self, callback: Callable[[object], None] | None) -> None:  # noqa: N802
        self._on_message = callback

    def setOnDisconnectedCallback(self, callback: Callable[[], None] | None) -> None:  # noqa: N802
        self._on_disconnected = callback

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    @property
    def established(self) -> bool:
        """The peer has proved that it knows the secret."""
        return self.state == CONNECTED and self._session.established

    @property
    def secret(self) -> ClusterSecret | None:
        """The one that both ends use, once it is known."""
        return self._session.secret

    def _new_session(self) -> FrameSession:
        return FrameSession(
            secrets=self._secrets,
            nonce=os.urandom(NONCE_BYTES),
            initiator=self._initiator,
            acceptor_address=self._acceptor_address,
            group=self._group,
        )

    # -------------------------------------------------------------------------------- opening and closing

    def connect(self, host: str, port: int) -> bool:
        """Begin to connect to an IP address. False when the attempt failed at once."""
        self._session = self._new_session()
        if self._certificates is not None:
            self._tls = self._certificates.session(host=self._acceptor_address.rpartition(":")[0].strip("[]"))
        self._tcp_open = False
        self.last_received = self.last_sent = self._monotonic()
        self._socket = self._make_socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result = self._socket.connect_ex((host, port))
        if result not in (0, errno.EINPROGRESS):
            self._socket.close()
            self._socket = None
            return False
        self.state = CONNECTING
        self._poller.subscribe(self._socket.fileno(), self._on_event, READ | WRITE)
        return True

    def disconnect(self) -> None:
        if self._socket is None:
            return
        self._poller.unsubscribe(self._socket.fileno())
        self._socket.close()
        self._socket = None
        self._unsent.clear()
        self.state = DISCONNECTED
        if self._on_disconnected is not None:
            self._on_disconnected()

    # ---------------------------------------------------------------------------- sending

    def send(self, message: object) -> None:
        """Queue one message and send as much as the socket takes. Closes the connection when too much is unsent."""
        if self.state != CONNECTED:
            return
        self._write(self._session.seal(message))

    def _write(self, data: bytes) -> None:
        self._push(data if self._tls is None else self._tls.seal(data))

    def _push(self, data: bytes) -> None:
        """As it goes over the wire."""
        if len(self._unsent) + len(data) > MAX_UNSENT_BYTES:
            self._fail(f"it does not read: {len(self._unsent)} bytes are unsent, the limit is {MAX_UNSENT_BYTES}")
            return
        self.last_sent = self._monotonic()
        self._unsent += data
        self._flush()

    def _flush(self) -> None:
        while self._unsent and self._socket is not None:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                break
            except OSError:
                self.disconnect()
                return
            del self._unsent[:sent]
        if self._socket is not None:
            self._poller.subscribe(self._socket.fileno(), self._on_event, READ | (WRITE if self._unsent else 0))

    # ---------------------------------------------------------------------------- receiving

    def _on_event(self, _descriptor: int, events: int) -> None:
        if self._socket is None:
            return
        if not self._tcp_open:
            if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.disconnect()
                return
            self._tcp_open = True
            if self._tls is not None:
                self._push(self._tls.begin())
            self._write(self._session.hello())
        elif events & WRITE:
            self._flush()
        if events & (READ | ERROR):
            self._receive()

    def _receive(self) -> None:
        session, ended = self._session, False
        try:
            for _ in range(READS_PER_EVENT):
                if self._socket is None:
                    return
                try:
                    data = self._socket.recv(READ_BYTES)
                except BlockingIOError:
                    break
                except OSError:
                    ended = True
                    break
                if not data:
                    ended = True
                    break
                self.last_received = self._monotonic()
                if self._tls is not None:
                    data, answer = self._tls.feed(data)
                    if answer:
                        self._push(answer)
                answer = session.feed(data)
                if answer:
                    self._write(answer)
            # A callback may close this connection and even begin a new one: then the rest belongs to no connection.
            while self._socket is not None and self._session is session:
                message = session.next_message()
                if message is None:
                    break
                self._deliver(message)
        except FrameError as error:
            if self._session is session:
                if isinstance(error, TlsError) and error.last_words:
                    self._push(error.last_words)
                if isinstance(error, NotVerified) and not session.established:
                    if self._initiator:
                        # So that the acceptor learns of it as well: this frame does not verify there.
                        self._write(session.seal([REFUSAL]))
                    self._on_unverified()
                    if not self._initiator:
                        self.disconnect()  # its owner tells of all accepted ones together: they come ten times a second
                        return
                self._fail(str(error))
            return
        if ended and self._session is session:
            self.disconnect()

    def _deliver(self, message: object) -> None:
        if self.state == CONNECTING:
            self.state = CONNECTED
            if self._on_connected is not None:
                self._on_connected()
        elif self._on_message is not None:
            self._on_message(message)

    def _fail(self, reason: str) -> None:
        now = self._monotonic()
        if now >= self._warn_after:
            self._warn_after = now + WARNING_INTERVAL_S
            peer = self._acceptor_address if self._initiator else "a node that connected"
            _log.warning("Raft connection with %s closed: %s", peer, reason)
        self.disconnect()


class FrameServer:
    """The listening socket of a voter."""

    def __init__(
        self,
        poller: Poller,
        listener: StreamSocket,
        *,
        on_accepted: Callable[[StreamSocket, str], None],
        monotonic: Callable[[], float],
    ) -> None:
        """`listener`: bound, not yet listening. `on_accepted`: called with a connection and its peer's IP address."""
        self._poller = poller
        self._listener = listener
        self._on_accepted = on_accepted
        self._monotonic = monotonic
        self._resume_at: float | None = None
        listener.setblocking(False)
        listener.listen(LISTEN_BACKLOG)
        poller.subscribe(listener.fileno(), self._on_event, READ)

    def unbind(self) -> None:
        if self._listener.fileno() >= 0:
            self._poller.unsubscribe(self._listener.fileno())
            self._listener.close()

    def resume(self) -> None:
        """Accept again when a pause is over. Called by the owner's sweep."""
        if self._resume_at is not None and self._monotonic() >= self._resume_at:
            self._resume_at = None
            self._poller.subscribe(self._listener.fileno(), self._on_event, READ)

    def _on_event(self, _descriptor: int, _events: int) -> None:
        for _ in range(ACCEPTS_PER_EVENT):
            try:
                accepted, peer = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                # Out of descriptors or memory: the pending connection stays readable, so asking again at once would
                # spin.
                _log.error("Raft connections cannot be accepted (%s); next attempt in %g s.", error, ACCEPT_PAUSE_S)
                self._poller.unsubscribe(self._listener.fileno())
                self._resume_at = self._monotonic() + ACCEPT_PAUSE_S
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._on_accepted(accepted, peer[0])
