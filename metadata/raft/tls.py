"""TLS 1.3 below the frames of a Raft connection, on memory buffers: sockets and poller are used as without it.

    initiator: TCP open -> begin -> feed … -> open: what was to be sent meanwhile leaves
    acceptor:  accepted -> feed … -> open

Both ends show a certificate of the group's authority; the acceptor's is for the host of its Raft address. Frames prove
the group's secret above it as they do without TLS, so the end of a stream needs no word of TLS, and an initiator
believes that it is connected only when the acceptor has judged its certificate.

Files are looked at with each new connection, beside it. Those that cannot be used at that moment change nothing.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from metadata.raft.framing import FrameError
from metadata.raft.types import RaftCertificates, RaftConfigurationError

_log = logging.getLogger(__name__)

_READ_BYTES = 256 << 10
_FILES = ("the CA's certificates (raft_ca)", "the certificate (raft_cert)", "its key (raft_key)")


class TlsError(FrameError):
    """The peer does not speak TLS, or one end refuses the other's certificate. `last_words`: what tells the peer."""

    def __init__(self, reason: str, last_words: bytes) -> None:
        super().__init__(reason)
        self.last_words = last_words


class TlsSession:
    """TLS on one connection: bytes in, bytes out."""

    def __init__(self, context: ssl.SSLContext, *, host: str | None) -> None:
        """`host`: the acceptor's, for its initiator; None for the acceptor."""
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=host is None, server_hostname=host)
        self._waiting = bytearray()
        """Sealed when the handshake is done: a frame or two."""
        self.is_open = False

    def begin(self) -> bytes:
        """The initiator's first bytes."""
        return self.feed(b"")[1]

    def seal(self, data: bytes) -> bytes:
        """What to send now for `data`, which leaves in order."""
        if not self.is_open:
            self._waiting += data
            return b""
        self._tls.write(data)
        return self._to_send.read()

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What the peer has said in `data`, and what to send now. Raises TlsError."""
        self._received.write(data)
        said = bytearray()
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
                if self._waiting:
                    self._tls.write(self._waiting)
                    self._waiting.clear()
            while part := self._tls.read(_READ_BYTES):
                said += part
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise TlsError(f"no TLS with it ({reason})", self._to_send.read()) from None
        return bytes(said), self._to_send.read()


class RaftTls:
    """Makes the sessions of a node from its certificates."""

    def __init__(self, certificates: RaftCertificates) -> None:
        """Raises RaftConfigurationError where they cannot be used."""
        self._certificates = certificates
        files = (certificates.ca, certificates.cert, certificates.key)
        named = zip(_FILES, files, strict=True)
        self._files = [(what, file) for what, file in named if file is not None]
        self._obstacle = ""
        self._looking: threading.Thread | None = None
        try:
            self._stamps = self._look()
            self._contexts = self._load()
        except OSError as error:
            raise RaftConfigurationError(f"TLS of Raft connections: {_reason(error)}.") from error

    def session(self, *, host: str | None) -> TlsSession:
        """For a new connection. `host`: see TlsSession. The files are looked at in a thread, as file systems hang:
        what is new in them counts from the next connection on."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._renew, name="raft-certificates", daemon=True)
            self._looking.start()
        initiators, acceptors = self._contexts
        return TlsSession(acceptors if host is None else initiators, host=host)

    def _renew(self) -> None:
        try:
            stamps = self._look()
            if stamps != self._stamps:
                self._contexts = self._load()
                self._stamps = stamps
                _log.info("Raft connections have new certificates from now on")
            self._obstacle = ""
        except OSError as error:
            if self._obstacle != (reason := _reason(error)):
                self._obstacle = reason
                _log.warning("TLS of Raft connections: %s; going on with the earlier ones", reason)

    def _look(self) -> list[tuple[int, int, int]]:
        stamps = []
        for what, file in self._files:
            try:
                found = file.stat()
            except OSError as error:
                raise OSError(error.errno, f"{what} {file} cannot be read: {error.strerror}") from error
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        initiators, acceptors = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        acceptors.verify_mode = ssl.CERT_REQUIRED
        for context in (initiators, acceptors):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            with _named(self._files[:1]):
                context.load_verify_locations(self._certificates.ca)
            with _named(self._files[1:]):
                context.load_cert_chain(self._certificates.cert, self._certificates.key, password=_no_passphrase)
        return initiators, acceptors


@contextmanager
def _named(files: Sequence[tuple[str, Path]]) -> Iterator[None]:
    """An OSError of the body says which files it was about."""
    try:
        yield
    except OSError as error:
        names = " and ".join(f"{what} {file}" for what, file in files)
        raise OSError(error.errno, f"{names} cannot be used: {_reason(error)}") from error


def _no_passphrase() -> str:
    raise OSError("the key is encrypted")


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
