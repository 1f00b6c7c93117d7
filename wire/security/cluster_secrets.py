"""The secrets of a cluster, by which its brokers prove themselves to one another, over Raft and over NATS.

A broker holds one secret, or two while one takes the place of the other. The first is used for everything that the
broker sends; all of them are accepted. So secrets are replaced without a stop, in three steps, each on all brokers
before the next: the new one is added behind the old one, the two change places, the old one goes.

    derived from a secret                               by
    key of Raft's frames                                metadata.raft.framing
    keys of a broker's process, for its messages        `ClusterSecret.key_of`, `short_key_of`
    fingerprint, which identifies the secret            `ClusterSecret.fingerprint`
    key of tickets, which brokers give to clients        `ClusterSecret.ticket_key`
    keys of producers, given out with their ids          `ClusterSecret.producer_key`

A cluster that is reachable from this machine alone may do without: `PUBLIC` stands in, and keeps nobody out.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from wire.errors import Code, TidelogError

MIN_SECRET_BYTES = 16
"""A shorter secret can be guessed."""
MAX_SECRETS = 2
FINGERPRINT_BYTES = 4
KEY_BYTES = 32

_DEVELOPMENT_SECRET = b"tidelog development key, loopback only, protects from accidents"
"""It is public: messages are checked for damage and mix-ups, and senders that are no brokers are not kept out."""

_SALT = bytes(32)  # RFC 5869, section 2.2: no salt
_KEY_INFO = b"tidelog peer v1 key "
_SHORT_KEY_INFO = b"tidelog peer v1 short key "
_FINGERPRINT_INFO = b"tidelog peer v1 fingerprint"
_TICKET_INFO = b"tidelog transaction v1 ticket"
_PRODUCER_INFO = b"tidelog producer v1 key"


class ClusterSecret:
    """One secret, and the keys derived from it by HKDF-SHA256 (RFC 5869)."""

    def __init__(self, text: bytes) -> None:
        self.text: Final = text
        self._extracted = hmac.new(hmac.digest(_SALT, text, "sha256"), digestmod="sha256")
        """A digest without input yet; it is copied for each expansion."""
        self.fingerprint: Final = self._expand(_FINGERPRINT_INFO)[:FINGERPRINT_BYTES]
        """It distinguishes the secrets of a cluster, and helps nobody to find the secret."""

    def key_of(self, life: bytes) -> bytes:
        """Returns KEY_BYTES of the key with which the broker's process of that id signs its large messages."""
        return self._expand(_KEY_INFO + life)

    def short_key_of(self, life: bytes) -> bytes:
        """Returns KEY_BYTES of the key for that process's small messages."""
        return self._expand(_SHORT_KEY_INFO + life)

    @cached_property
    def ticket_key(self) -> bytes:
        """KEY_BYTES of the key that makes tickets (`wire.security.tickets`)."""
        return self._expand(_TICKET_INFO)

    @cached_property
    def producer_key(self) -> bytes:
        """KEY_BYTES of the key from which those of producers are derived (`wire.security.producer_keys`)."""
        return self._expand(_PRODUCER_INFO)

    def _expand(self, info: bytes) -> bytes:
        """Returns the first block of HKDF-Expand, 32 bytes. A sender that is no broker may name another process in
        each message; each costs one of these."""
        mac = self._extracted.copy()
        mac.update(info + b"\x01")
        return mac.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSecret) and hmac.compare_digest(self.text, other.text)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"ClusterSecret({self.fingerprint.hex()})"


class ClusterSecrets:
    """The secrets that a broker holds now; they may be replaced while it runs."""

    def __init__(self, secrets: Sequence[ClusterSecret], *, are_public: bool = False, are_shared: bool = True) -> None:
        """`are_shared`: False where the broker has made a secret for itself."""
        self._secrets = tuple(secrets)
        self._retired: tuple[ClusterSecret, ...] = ()
        self.are_public = are_public
        self.are_shared = are_shared
        self._on_change: list[Callable[[], None]] = []

    @property
    def first(self) -> ClusterSecret:
        """The secret that signs sent messages."""
        return self._secrets[0]

    @property
    def accepted(self) -> tuple[ClusterSecret, ...]:
        return self._secrets

    @property
    def accepted_of_producers(self) -> tuple[ClusterSecret, ...]:
        """The accepted secrets, and the last ones removed since this process started: a batch that was sent with a key
        of one may be sent again, and nothing else identifies it as already in the log."""
        return self._secrets + self._retired

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprints of all secrets, the one in use first, in hex."""
        return [secret.fingerprint.hex() for secret in self._secrets]

    def on_change(self, handler: Callable[[], None]) -> None:
        """Registers `handler()`, which is called after the secrets were replaced."""
        self._on_change.append(handler)

    def replace(self, secrets: Sequence[ClusterSecret]) -> None:
        """Puts these in place of the earlier ones. Nothing happens where they are the same in the same order."""
        if tuple(secrets) != self._secrets:
            known = (*self._secrets, *self._retired)
            self._secrets = tuple(secrets)
            self._retired = tuple(each for each in known if each not in self._secrets)[:MAX_SECRETS]
            for handler in tuple(self._on_change):
                handler()


def public_secrets() -> ClusterSecrets:
    """Returns the public secret, in place of a missing one."""
    return ClusterSecrets([ClusterSecret(_DEVELOPMENT_SECRET)], are_public=True)


def parse_secrets(text: bytes, source: str) -> tuple[ClusterSecret, ...]:
    """Returns the secrets of a file or a variable, one per line, the one in use first; lines that begin with # are
    comments. Raises TidelogError(BAD_CONFIG), which names `source`."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(b"#")]
    if not lines:
        raise _bad(f"{source} is empty; put a long random text into it, the same on every broker")
    if len(lines) > MAX_SECRETS:
        raise _bad(
            f"{source} holds {len(lines)} lines; write one secret, or two while the first takes the place of the second"
        )
    for number, line in enumerate(lines, 1):
        if len(line) < MIN_SECRET_BYTES:
            raise _bad(
                f"the secret in line {number} of {source} has {len(line)} bytes; use at least {MIN_SECRET_BYTES}"
                " random ones"
            )
    if len(set(lines)) < len(lines):
        raise _bad(f"{source} holds the same secret twice; leave one of them out")
    return tuple(ClusterSecret(line) for line in lines)


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
