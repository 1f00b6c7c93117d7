"""The proof that a message comes from a broker of the cluster: a trailer behind its payload. Pure.

     0                                       16          20                      28                          44   45
     +---------------------------------------+-----------+-----------------------+---------------------------+----+
     | sender's incarnation, 16 bytes        | secret    | number, u64 BE        | tag, 16 bytes             | 1  |
     +---------------------------------------+-----------+-----------------------+---------------------------+----+

    sender   incarnation of the sending broker: the first 16 bytes of SHA-256 of its life id
    secret   fingerprint of the secret from which the key follows (`wire.security.cluster_secrets`)
    number   of this message among all of this incarnation; never the same twice
    tag      under keys of (secret, incarnation), over

                 KIND " " subject " " reply CRLF
                 name ": " value CRLF                  the NATS headers, by name
                 CRLF
                 payload

             payload below 1024 bytes: BLAKE2b-128, keyed; the number stands in front of the covered bytes
             others:                   AES-256-GMAC; the number is the nonce

    the last byte is the version; KIND is "peer", or "claim" where the trailer is in a NATS header, in hex

Each incarnation has keys of its own, so no nonce comes twice under one key, whatever a restart forgets. Subjects,
replies and headers hold no line breaks, so two different messages never give the same bytes to cover.

There are two algorithms because a request that is awaited alone finds the processor's caches cold: a GMAC of 500 bytes
then takes 37 us to make and 24 us to check, a BLAKE2b 11 us; of 64 KiB in a row a GMAC takes a quarter of the time.

Invariants:

* The number of a message is noted after its tag was verified: a forged message changes nothing here.
* Keys of unknown incarnations are derived for at most UNHEARD_PER_S messages a second, and for as many more after a
  silence: an unauthenticated sender may name another incarnation in each message, and deriving costs more than the
  rest of its checks. Known incarnations have no limit, and claims have none. In a flood the first messages of a new
  incarnation may be refused for that, as NATS may lose any message; its sender asks again. Tokens come all the time,
  so each message has a chance of UNHEARD_PER_S to the forged messages of a second, and one that is verified is enough.
* At most MAX_SENDERS incarnations are remembered. For one more an incarnation is forgotten: of those that are not the
  current one of a broker of the cluster, the one received from the longest ago. Its messages would be taken once more
  (docs/messages.md says why that harms nothing). So neither a broker that restarts for ever nor copies of messages
  from many past incarnations can have a message of a running broker taken twice.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dataplane.replica.leader.quota import TokenBucket
from tidelog.server.peers.replay_window import ReplayWindow
from wire.security.cluster_secrets import FINGERPRINT_BYTES, ClusterSecret, ClusterSecrets
from wire.types import Buffer

VERSION: Final = b"\x01"
LIFE_BYTES: Final = 16
TAG_BYTES: Final = 16
TRAILER_BYTES: Final = LIFE_BYTES + FINGERPRINT_BYTES + 8 + TAG_BYTES + 1
MAX_SENDERS: Final = 1024
UNHEARD_PER_S: Final = 20_000
"""Messages of unknown incarnations for which keys are derived: less than a tenth of the processor's time."""
PEER: Final = b"peer"
CLAIM: Final = b"claim"

_SENDER_END: Final = LIFE_BYTES + FINGERPRINT_BYTES
_NUMBER_END: Final = _SENDER_END + 8
_NONCE_HEAD: Final = bytes(4)
_SHORT: Final = 1024
"""Bytes of payload. The tag of a shorter one is a BLAKE2b."""
_UNJOINED_FROM: Final = 96 << 10
"""Bytes. From here on a tag over separate parts costs less than joining them."""


class Fault(Enum):
    """The reason why a message is refused."""

    SHORT = "short"
    """It has no trailer."""
    VERSION = "version"
    """Its trailer is of another version."""
    SECRET = "secret"  # noqa: S105 - the name of a fault
    """Its sender has a secret that this broker does not have."""
    TAG = "tag"
    """It was made or altered by somebody without the secret, or meant for another subject or inbox."""
    UNHEARD = "unheard"
    """Its sender is not known yet, and too many messages name unknown senders at a time."""
    REPLAYED = "replayed"
    """It has come before, or is older than the window of numbers."""


class _Key:
    """The keys of one incarnation under one secret."""

    def __init__(self, secret: ClusterSecret, life: bytes) -> None:
        self.secret = secret
        self._life = life
        self._short = hashlib.blake2b(key=secret.short_key_of(life), digest_size=TAG_BYTES)
        """The digest of no bytes yet; it is copied for each message."""

    # Made when they are needed: anybody may name another incarnation in each small message.

    @cached_property
    def _aead(self) -> AESGCM:
        return AESGCM(self.secret.key_of(self._life))

    @cached_property
    def _cipher(self) -> algorithms.AES:
        return algorithms.AES(self.secret.key_of(self._life))

    def tag(self, number: bytes, covered: bytes, parts: Sequence[Buffer]) -> bytes:
        """Returns the tag of a message. Large parts are not copied."""
        size = sum(map(len, parts))
        if size < _SHORT:
            mac = self._short.copy()
            mac.update(b"".join((number, covered, *parts)))
            return mac.digest()
        if size < _UNJOINED_FROM:
            return self._aead.encrypt(_NONCE_HEAD + number, b"", b"".join((covered, *parts)))
        gmac = Cipher(self._cipher, modes.GCM(_NONCE_HEAD + number)).encryptor()
        gmac.authenticate_additional_data(covered)
        for part in parts:
            gmac.authenticate_additional_data(part)
        gmac.finalize()
        return gmac.tag

    def verifies(self, number: bytes, tag: bytes, covered: bytes, payload: Buffer) -> bool:
        if len(payload) < _SHORT:
            mac = self._short.copy()
            mac.update(b"".join((number, covered, payload)))
            return hmac.compare_digest(mac.digest(), tag)
        nonce = _NONCE_HEAD + number
        try:
            if len(payload) < _UNJOINED_FROM:
                self._aead.decrypt(nonce, tag, b"".join((covered, payload)))
            else:
                gmac = Cipher(self._cipher, modes.GCM(nonce, tag)).decryptor()
                gmac.authenticate_additional_data(covered)
                gmac.authenticate_additional_data(payload)
                gmac.finalize()
        except InvalidTag:
            return False
        return True


class Sender(_Key):
    """An incarnation of a broker, as a receiver knows it. `name`: as in its trailers, incarnation and fingerprint."""

    def __init__(self, secret: ClusterSecret, name: bytes) -> None:
        super().__init__(secret, name[:LIFE_BYTES])
        self.name = name
        self.window: ReplayWindow | None = None
        """Made when the first message of the sender was verified."""


class Signer:
    """Makes the trailers of one incarnation of a broker. `life_id`: no other incarnation has the same."""

    def __init__(self, secrets: ClusterSecrets, life_id: str) -> None:
        self._secrets = secrets
        self._life = _life(life_id)
        self._number = 0
        self._use_first()
        secrets.on_change(self._use_first)

    def _use_first(self) -> None:
        first = self._secrets.first
        self._key = _Key(first, self._life)
        self._head = self._life + first.fingerprint

    def trailer(
        self,
        kind: bytes,
        subject: str,
        reply: str | None,
        headers: Mapping[str, str] | None,
        parts: Sequence[Buffer],
    ) -> bytes:
        """Returns the trailer for a message of these parts that is about to be sent."""
        self._number = number = self._number + 1
        digits = number.to_bytes(8, "big")
        covers = covered(kind, subject.encode(), None if reply is None else reply.encode(), headers)
        return self._head + digits + self._key.tag(digits, covers, parts) + VERSION


class Verifier:
    """Judges the messages that one incarnation of a broker receives. `current_lives`: life ids that the brokers of the
    cluster have registered last."""

    def __init__(
        self, secrets: ClusterSecrets, monotonic: Callable[[], float], current_lives: Callable[[], Iterable[str]]
    ) -> None:
        self._secrets = secrets
        self._monotonic = monotonic
        self._unheard = TokenBucket(UNHEARD_PER_S, monotonic())
        self._current_lives = current_lives
        self._senders: dict[bytes, Sender] = {}
        """Accepted senders by name, those that were verified. The one received from the longest ago comes first."""
        self._heard_last: Sender | None = None
        """The sender received from last; None: another was remembered since."""
        secrets.on_change(self._forget_refused)

    def claimed_sender(self, kind: bytes, trailer: bytes) -> Sender | Fault:
        """Returns the sender that the trailer names. Anybody can write that: nothing is verified yet, and nothing
        remembered."""
        if not trailer.endswith(VERSION):
            return Fault.VERSION
        if len(trailer) != TRAILER_BYTES:
            return Fault.SHORT
        name = trailer[:_SENDER_END]
        sender = self._senders.get(name)
        if sender is None:
            fingerprint = name[LIFE_BYTES:]
            for secret in self._secrets.accepted:
                if secret.fingerprint == fingerprint:
                    return Sender(secret, name) if kind is CLAIM or self._takes_unheard() else Fault.UNHEARD
            return Fault.SECRET
        return sender

    def _takes_unheard(self) -> bool:
        unheard = self._unheard
        unheard.fill(self._monotonic())
        if unheard.level < 1:
            return False
        unheard.level -= 1
        return True

    # R42: A broker carries out a message between brokers, and takes an answer, only if its tag verifies for the
    # subject and the inbox in which it came, and only once. Whatever is refused is dropped, counted and never
    # answered. A 503 proves nothing alone: the controller believes it when the broker's Raft connection has closed, or
    # when it has answered nothing for `probe_timeout_s` and a probe of the controller to itself, sent after the 503,
    # has come back.
    # Hazard: A stranger on NATS who speaks for a broker.
    # Not covered: Whoever holds the secret is believed in everything. Whoever runs the NATS server can withhold
    # messages. A second process under a broker's name with that secret registers, and the first one ends.
    def fault(self, sender: Sender, covers: bytes, payload: Buffer, trailer: bytes) -> Fault | None:
        """Returns None if a broker of this cluster has sent this message, to this subject, and it has not come before.
        `sender`: that of the trailer; `covers`: `covered`, of the message as it came."""
        digits = trailer[_SENDER_END:_NUMBER_END]
        if not sender.verifies(digits, trailer[_NUMBER_END:-1], covers, payload):
            return Fault.TAG
        window = sender.window
        if window is None:
            window = sender.window = self._remember(sender)
        elif sender is not self._heard_last:
            self._senders[sender.name] = self._senders.pop(sender.name)
            self._heard_last = sender
        return None if window.take(int.from_bytes(digits, "big")) else Fault.REPLAYED

    def _remember(self, sender: Sender) -> ReplayWindow:
        if len(self._senders) >= MAX_SENDERS:
            current = {*map(_life, self._current_lives())}
            over = (name for name in self._senders if name[:LIFE_BYTES] not in current)
            del self._senders[next(over, None) or next(iter(self._senders))]
        self._senders[sender.name] = sender
        self._heard_last = None
        return ReplayWindow()

    def _forget_refused(self) -> None:
        accepted = self._secrets.accepted
        self._senders = {name: sender for name, sender in self._senders.items() if sender.secret in accepted}


@lru_cache(MAX_SENDERS)
def _life(life_id: str) -> bytes:
    """Returns the incarnation, as in trailers."""
    return hashlib.sha256(life_id.encode()).digest()[:LIFE_BYTES]


def covered(kind: bytes, subject: bytes, reply: bytes | None, headers: Mapping[str, str] | None) -> bytes:
    """Returns the bytes that the tag covers in front of the payload."""
    lines = "".join([f"{name}: {headers[name].strip()}\r\n" for name in sorted(headers)]).encode() if headers else b""
    return b"".join((kind, b" ", subject, b" ", reply or b"", b"\r\n", lines, b"\r\n"))
