"""A login to NATS: who connects, and over which TLS.

`NatsLogin` describes it; `LiveLogin` is the login of one connection, read anew before each attempt to connect, so that
passwords, `.creds` files, NKeys and certificates can be replaced while programs run. Files that cannot be used at that
moment, because they are being written or do not fit each other yet, change nothing: the connection goes on with those
read before, and logs it. So does a reconnect whose files do not come within READ_TIMEOUT. They are read in a thread,
so that brokers and clients do other things meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tidelog.nats.nats_errors import NatsRefused
from tidelog.process.threads import in_thread

_log = logging.getLogger(__name__)

READ_TIMEOUT = 2.0
"""Seconds that an attempt to connect anew waits for the files of the login."""
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END")
_SEED = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END")
_BARE_SEED = re.compile(r"^\s*(SU[A-Z2-7]+)\s*$", re.MULTILINE)
_TLS_FILES = (
    "the CA's certificates (ca, --tls-ca, $TIDELOG_NATS_CA)",
    "the client's certificate (cert, --tls-cert, $TIDELOG_NATS_CERT)",
    "the key of the client's certificate (key, --tls-key, $TIDELOG_NATS_KEY)",
)
_KINDS = ("user", "token", "nkey", "creds")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsLogin:
    """Who connects (nobody, or one of user and password, token, NKey, creds) and over which TLS. The secrets are not in
    its `repr`."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkey: Path | None = None
    """File with the seed of a user's NKey."""
    creds: Path | None = None
    """File with a user's JWT and the seed of its NKey, as `nsc` makes it."""
    ca: Path | None = None
    """PEM file with the certificates that the servers' are signed by; None: those that the system trusts."""
    cert: Path | None = None
    """PEM file with the client's certificate and those that lead to `ca`."""
    key: Path | None = None
    """PEM file with the key of `cert`; None: it is in `cert`."""
    tls: bool = False
    """The server must offer TLS. It must also when a file or option of TLS is given, or a tls:// URL."""
    tls_first: bool = False
    """TLS begins before the server's first line; for servers with `handshake_first`."""
    tls_hostname: str | None = None
    """The name that the servers' certificates have to be for; None: the one of the URL."""
    tls_context: ssl.SSLContext | None = field(default=None, repr=False)
    """A ready context, in place of `ca`, `cert` and `key`."""
    origin: str = field(default="", compare=False)
    """Source of the identity, for sentences: "$TIDELOG_NATS_USER"; empty: unknown."""

    @property
    def identity(self) -> str | None:
        """The kind of identity: user, token, nkey or creds; None: it has none."""
        return next((kind for kind in _KINDS if getattr(self, kind) is not None), None)

    @property
    def needs_tls(self) -> bool:
        return self.tls or self.tls_first or self.tls_context is not None or any((self.ca, self.cert, self.key))

    def obstacle(self) -> str:
        """Returns a sentence on a contradiction or a missing part; empty: there is none."""
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) > 1:
            return f"{kinds[0]} and {kinds[1]} are both given, and a login is one of them: leave one out"
        if self.password is not None and self.user is None:
            return "a password is given without a user: give the user, too"
        if self.user is not None and self.password is None:
            return f"the user {self.user!r} is given without a password: give it, too"
        if self.key is not None and self.cert is None:
            return f"the key {self.key} is given without a certificate: give cert, too"
        if self.tls_context is not None and any((self.ca, self.cert, self.key)):
            return "an SSLContext is given beside ca, cert or key: leave one of the two out"
        return ""


NO_LOGIN = NatsLogin()


def split_url(url: str) -> tuple[str, NatsLogin | None]:
    """Returns the URL without a login, and the login in it: user:password@ or token@, percent-encoded."""
    scheme, _, rest = (url if "://" in url else f"nats://{url}").partition("://")
    written, _, address = rest.rpartition("@")
    if not written:
        return f"{scheme}://{address}", None
    user, colon, password = written.partition(":")
    login = NatsLogin(user=unquote(user), password=unquote(password)) if colon else NatsLogin(token=unquote(user))
    return f"{scheme}://{address}", login


def is_tls_url(url: str) -> bool:
    return urlsplit(url).scheme == "tls"


@dataclass(frozen=True, slots=True)
class _Signer:
    """An NKey, in NATS's words: an Ed25519 key that signs the server's nonce."""

    seed: bytes = field(repr=False)
    jwt: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name for sentences; empty: the JWT has none."""
        if self.jwt is None:
            return f"NKey {self.fields('')['nkey']}"
        try:
            claims = self.jwt.split(".")[1]
            told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["name"]
        except (IndexError, KeyError, TypeError, ValueError):
            return ""
        return f"user {told!r}"

    def fields(self, nonce: str) -> dict[str, str]:
        pair = _nkeys().from_seed(bytearray(self.seed))
        try:
            signature = base64.b64encode(pair.sign(nonce.encode())).decode()
            who = {"nkey": pair.public_key.decode()} if self.jwt is None else {"jwt": self.jwt}
        finally:
            pair.wipe()
        return {**who, "sig": signature}


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of reading the login's files."""

    login: NatsLogin
    signer: _Signer | None
    tls_files: tuple[object, ...]
    tls: ssl.SSLContext | None


class LiveLogin:
    """The login of one connection to servers that are given by URL."""

    def __init__(self, source: NatsLogin | Callable[[], NatsLogin], *, tls_by_url: bool) -> None:
        self._source = source
        self._tls_by_url = tls_by_url
        self._login = NO_LOGIN
        self._signer: _Signer | None = None
        self._tls: ssl.SSLContext | None = None
        self._tls_files: tuple[object, ...] = ()
        """Stamps of the files from which `_tls` was made."""
        self._obstacle = ""
        """The newest reading's problem, as a sentence; empty: none."""
        self._reading: asyncio.Future[_Read] | None = None
        """The reading for a reconnect; it may last longer than an attempt waits for it."""

    @property
    def needs_tls(self) -> bool:
        return self._tls_by_url or self._login.needs_tls

    @property
    def has_certificate(self) -> bool:
        """Whether the client has a certificate; True for an SSLContext, whose certificates cannot be seen."""
        return self._login.cert is not None or self._login.tls_context is not None

    @property
    def tls_first(self) -> bool:
        return self._login.tls_first

    @property
    def tls_hostname(self) -> str | None:
        return self._login.tls_hostname

    @property
    def tls(self) -> ssl.SSLContext:
        """The newest context; also for servers that require TLS unexpectedly."""
        if self._tls is None:
            self._tls = _context(self._login)
        return self._tls

    def name(self, in_url: NatsLogin | None) -> str:
        """Returns the identity for sentences: "user 'orders'"; empty: it has no name. `in_url`: as in `fields`."""
        if self._signer is not None:
            return self._signer.name
        login = self._identified(in_url)
        return f"user {login.user!r}" if login.user is not None else "this token" if login.token is not None else ""

    def told(self, in_url: NatsLogin | None) -> str:
        """Returns the identity and its source, for the sentence of a refusal."""
        if self._signer is None and self._identified(in_url).identity is None:
            return "none were given"
        name = self.name(in_url)
        return f"{name or 'those'} from {self._login.origin}" if self._login.origin else name

    async def read(self) -> bool:
        """Reads the login and its files. Returns whether it has changed. Raises NatsRefused with a sentence, and
        changes nothing, when it cannot be used."""
        return self._take(await in_thread(self._gather))

    async def read_again(self) -> bool:
        """Reads the login for a connection made before: problems are logged. Returns whether it has changed."""
        if self._reading is None:
            self._reading = in_thread(self._gather)
        reading = self._reading
        await asyncio.wait({reading}, timeout=READ_TIMEOUT)
        has_changed, obstacle = False, f"the files of the login to NATS cannot be read within {READ_TIMEOUT:g} s"
        if reading.done():
            self._reading = None
            try:
                has_changed, obstacle = self._take(reading.result()), ""
            except NatsRefused as error:
                obstacle = str(error)
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            if obstacle:
                _log.warning("%s; going on with the login that was read before", obstacle)
        return has_changed

    def _gather(self) -> _Read:
        """Reads the files; called in a thread, one at a time."""
        login = self._source() if callable(self._source) else self._source
        obstacle = login.obstacle()
        if obstacle:
            raise NatsRefused(f"the login to NATS: {obstacle}")
        if login.nkey is not None or login.creds is not None:
            _nkeys()
        signer = _from_nkey(login.nkey) if login.nkey else _from_creds(login.creds) if login.creds else None
        named = zip(_TLS_FILES, (login.ca, login.cert, login.key), strict=True)
        files = (login.tls_context, *(_stamp(what, file) for what, file in named))
        tls = self._tls
        if files != self._tls_files:
            tls = _context(login) if login.needs_tls else None
        return _Read(login, signer, files, tls)

    def _take(self, found: _Read) -> bool:
        has_changed = found.tls_files != self._tls_files or (found.login, found.signer) != (self._login, self._signer)
        if has_changed:
            self._login, self._signer = found.login, found.signer
            self._tls_files, self._tls = found.tls_files, found.tls
        return has_changed

    def fields(self, nonce: str, in_url: NatsLogin | None) -> dict[str, str]:
        """Returns the fields for CONNECT. `in_url`: the login of the server's own URL, for a login without identity."""
        if self._signer is not None:
            return self._signer.fields(nonce) if nonce else {}
        login = self._identified(in_url)
        if login.user is not None and login.password is not None:
            return {"user": login.user, "pass": login.password}
        return {"auth_token": login.token} if login.token is not None else {}

    def _identified(self, in_url: NatsLogin | None) -> NatsLogin:
        return self._login if self._login.identity is not None or in_url is None else in_url


def _nkeys() -> Any:
    try:
        import nkeys
    except ImportError:
        raise NatsRefused(
            "a login with an NKey or a .creds file needs the package 'nkeys': `pip install nkeys`, or install Tidelog"
            " with its extra 'nkeys'"
        ) from None
    return nkeys


def _from_nkey(file: Path) -> _Signer:
    seed = _BARE_SEED.search(_text(file, "the NKey file"))
    if seed is None:
        raise NatsRefused(f"{file} holds no seed of a user's NKey, which is a line that begins with SU")
    return _checked(_Signer(seed[1].encode()), file, "an NKey of a user")


def _from_creds(file: Path) -> _Signer:
    text = _text(file, "the .creds file")
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise NatsRefused(f"{file} is no .creds file: it lacks the block of a user's JWT or of its NKey's seed")
    return _checked(_Signer(seed[1].encode(), jwt[1]), file, "a .creds file of a user")


def _checked(signer: _Signer, file: Path, what: str) -> _Signer:
    try:
        signer.fields("")
    except Exception as error:  # noqa: BLE001 - nkeys raises errors of many kinds for a bad seed
        raise NatsRefused(f"{file} is not {what}: its seed is not valid ({type(error).__name__})") from None
    return signer


def _text(file: Path, what: str) -> str:
    try:
        return file.read_text()
    except UnicodeDecodeError:
        raise NatsRefused(f"{what} {file} is no text") from None
    except OSError as error:
        raise NatsRefused(f"{what} {file} cannot be read: {error.strerror}") from None


def _stamp(what: str, file: Path | None) -> tuple[object, ...]:
    """Returns a value that changes when the file is written to or replaced. `what`: its name in sentences."""
    if file is None:
        return ()
    try:
        found = file.stat()
    except OSError as error:
        raise NatsRefused(f"{what} {file} cannot be read: {error.strerror}") from None
    return file, found.st_ino, found.st_mtime_ns, found.st_size


def _context(login: NatsLogin) -> ssl.SSLContext:
    if login.tls_context is not None:
        return login.tls_context
    try:
        context = ssl.create_default_context(cafile=None if login.ca is None else str(login.ca))
    except OSError as error:
        raise NatsRefused(f"{login.ca} cannot be used as the CA's certificates: {_reason(error)}") from None
    if login.cert is not None:
        try:
            context.load_cert_chain(login.cert, login.key, password=_no_passphrase)
        except _Encrypted:
            raise NatsRefused(f"the key {login.key or login.cert} is encrypted: give one that is not") from None
        except OSError as error:
            names = login.cert if login.key is None else f"{login.cert} and {login.key}"
            raise NatsRefused(f"{names} cannot be used as certificate and key: {_reason(error)}") from None
    return context


class _Encrypted(Exception):
    """A key asks for a passphrase."""


def _no_passphrase() -> str:
    raise _Encrypted


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
