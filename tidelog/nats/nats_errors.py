"""Errors of a NATS connection: why none could be made, and why one was lost.

NatsUnavailable        no server could be used at start
├─ NatsNotListening    nothing listens at the address: the server may still be starting
└─ NatsRefused         another attempt meets the same answer: credentials, certificates, a URL of another kind
ConnectionClosed       the connection was closed by its owner
"""

from __future__ import annotations

import logging
import math
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from nats import errors

_log = logging.getLogger(__name__)

LAST_ERROR_AGE = 1.0
"""Seconds. A -ERR of the server that is no older than this when the connection is lost is the reason of the loss."""


class NatsUnavailable(ConnectionError):
    """No NATS server could be used at start. `str(error)` names the URL, the reason and the remedy."""


class NatsNotListening(NatsUnavailable):
    """Nothing listens at the address, as with a server that is still starting."""


class NatsRefused(NatsUnavailable):
    """The server or the URL refuses for a reason that stays: a login, a certificate, a URL that is not NATS's."""


class ConnectionClosed(ConnectionError):
    """The connection was closed by `close` or `drain`."""


def unavailable(
    shown: str, error: Exception, *, auth_required: bool, certificate_required: bool, tls_first: bool, login: str
) -> NatsUnavailable:
    """Returns the error for a connection that could not be made; its sentence names the URL, the reason and the remedy.

    `shown`: the URLs without secrets. `auth_required`, `certificate_required`: the server's INFO asked for a login, or
    for a certificate. `tls_first`: TLS was begun before it. `login`: who connects, and the source of that.
    """
    if isinstance(error, NatsRefused):
        return error
    text = str(error) or type(error).__name__
    # A server that refuses closes at once, and the reset may overtake its -ERR, or its alert.
    cut_off = isinstance(error, ConnectionResetError)
    if is_refusal(error) or (cut_off and auth_required):
        whose = f", {login}" if login else ""
        return NatsRefused(
            f"the NATS server at {shown} refuses these credentials{whose} ({text}): give the right user and password,"
            " token, NKey or creds"
        )
    if isinstance(error, ssl.SSLError) or (cut_off and certificate_required):
        return NatsRefused(f"no TLS connection to the NATS server at {shown} ({text}): give the right certificates")
    if isinstance(error, TimeoutError):
        expected = "it may not begin with TLS, as tls_first says" if tls_first else "it may begin with TLS: tls_first"
        text = f"it did not answer in time; {expected}"
    kind = NatsNotListening if isinstance(error, ConnectionRefusedError) else NatsUnavailable
    return kind(
        f"no NATS server answers at {shown} ({text}): start one (`tidelog up` brings its own) or give another URL"
    )


def check_url(url: str) -> None:
    """Raises NatsRefused for a URL of another kind than nats:// or tls://, or without a host or with a bad port. One
    without a scheme is nats://."""
    if url.startswith(("http://", "https://")):
        raise NatsRefused(
            f"{without_secrets(url)} is a web address, such as that of nats-server's monitoring page; give the one for"
            " clients, such as nats://127.0.0.1:4222"
        )
    if "://" in url and not url.startswith(("nats://", "tls://")):
        raise NatsRefused(f"{without_secrets(url)} is no nats:// or tls:// URL; give the one of that kind")
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise NatsRefused(f"{without_secrets(url)!r} names no host and port; give a URL such as nats://127.0.0.1:4222")


def without_secrets(url: str) -> str:
    """The URL without user, password and token."""
    scheme, _, rest = (url if "://" in url else f"nats://{url}").partition("://")
    return f"{scheme}://{rest.rsplit('@', 1)[-1].split('/', 1)[0]}"


def is_refusal(error: Exception) -> bool:
    """Whether the server refused the login."""
    text = str(error).lower()
    return "authorization" in text or "authentication" in text


def says_more(error: Exception, other: Exception) -> bool:
    """Whether to report `error`, the later one of two attempts to connect, and not `other`: the one that is nearer to a
    remedy, else the later one."""

    def rank(each: Exception) -> int:
        return 2 if is_refusal(each) else 1 if isinstance(each, (NatsRefused, ssl.SSLError)) else 0

    return rank(error) >= rank(other)


class LossReason:
    """Why a connection was lost the last time, as far as known."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._server_id = ""
        """Id of the server that the connection was lost to."""
        self._server_error = ""
        """Text of the newest -ERR, which came at `_server_error_at` (monotonic seconds)."""
        self._server_error_at = -math.inf
        self._server_error_at_loss = ""
        """Text of the -ERR that came with the loss."""

    def on_server_error(self, text: str) -> None:
        """The server sent -ERR."""
        _log.warning("NATS server says: %s", text)
        self._server_error, self._server_error_at = text, time.monotonic()

    def on_loss(self, error: Exception, server_info: dict[str, Any]) -> None:
        self._error = error
        self._server_id = str(server_info.get("server_id", ""))
        is_fresh = time.monotonic() - self._server_error_at < LAST_ERROR_AGE
        self._server_error_at_loss = self._server_error if is_fresh else ""

    def text(self, connected_to: str) -> str:
        """Returns a sentence; empty when the connection was never lost. `connected_to`: id of the present server."""
        if self._error is None:
            return ""
        if self._server_error_at_loss:
            return f"the NATS server said {self._server_error_at_loss}"
        if isinstance(self._error, (errors.UnexpectedEOF, ConnectionError)):
            if connected_to and self._server_id == connected_to:
                return "the NATS server cut it off and lives: a slow consumer, most likely; its log says so"
            return "the NATS server went away"
        return f"{type(self._error).__name__}: {self._error}"
