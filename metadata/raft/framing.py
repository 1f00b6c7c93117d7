"""Authenticated frames between the nodes of the metadata group. Pure: bytes in, messages out.

    hello := "TLRAFT01" | nonce 16 bytes                   once in each direction; fresh random bytes per connection
    frame := length u32 | tag 16 bytes | body (msgpack)    length is that of the body

    tag   = HMAC-SHA256(direction key, counter u64 | length u32 | body), the first 16 bytes
    key   = HMAC-SHA256(secret, label | direction | initiator's nonce | acceptor's nonce | acceptor's address)

The initiator (the node that connects) says hello first. The acceptor answers with its hello and a first frame
[WELCOME, its group], under the first of its secrets, which proves that it knows it; the initiator takes the one of its
own under which that verifies. Only then does the initiator believe that it is connected,
and only if both nodes are of one group: the logs of two groups can look alike, and a node of one group that meets the
other loses its log. A new node does not know its group yet. The initiator's first frame holds its address.

    NEW --peer's hello--> GREETED --first frame that verifies--> OPEN
    any fault: FrameError, and the connection is closed

Invariants:

* A body is decoded only after its tag was verified, and decoding never runs code (no pickle).
* The counter starts at 0, grows by one with each frame of a direction and is not sent: a frame that is repeated, left
  out, reordered or taken from another connection or direction does not verify. The nonces make every connection's keys
  new.
* The acceptor's address is in the keys: a connection that is redirected to another voter does not verify.
* Before OPEN a frame may have MAX_FIRST_FRAME_BYTES, after it MAX_FRAME_BYTES: a stranger cannot make a node hold more
  than that.
"""

from __future__ import annotations

import hmac
import struct
from enum import Enum

import msgpack

from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets

MAX_FRAME_BYTES = 16 << 20
"""Body of a frame. The largest is a batch of entries: 4 MiB and at most one command more."""

MAX_FIRST_FRAME_BYTES = 1024

WELCOME = "welcome"

NONCE_BYTES = 16
_HELLO_MAGIC = b"TLRAFT01"
_HELLO_BYTES = len(_HELLO_MAGIC) + NONCE_BYTES
_TAG_BYTES = 16
_LENGTH = struct.Struct("<I")
_COUNTED = struct.Struct("<QI")
_HEADER_BYTES = _LENGTH.size + _TAG_BYTES
_LABEL = b"tidelog raft frame key 1"


class FrameError(Exception):
    """The peer's bytes cannot be trusted; the sentence says why. The connection must be closed."""


class NotVerified(FrameError):
    """A frame that a node with another secret has sent, or that was meant for another connection."""


class _State(Enum):
    NEW = 1
    GREETED = 2
    OPEN = 3


class FrameSession:
    """One connection's authentication, for either side."""

    def __init__(
        self, *, secrets: ClusterSecrets, nonce: bytes, initiator: bool, acceptor_address: str, group: str = ""
    ) -> None:
        """`nonce`: NONCE_BYTES fresh random bytes. `group`: empty while unknown."""
        self._secrets = secrets
        self.secret: ClusterSecret | None = None
        """The one of this connection, once it is known."""
        self._nonce = nonce
        self._initiator = initiator
        self._acceptor_address = acceptor_address
        self._group = group
        self._state = _State.NEW
        self._buffer = bytearray()
        self._transcript = b""
        self._send_key = b""
        self._receive_key = b""
        self._sent = 0
        self._received = 0

    @property
    def established(self) -> bool:
        """The peer has proved that it knows the secret."""
        return self._state is _State.OPEN

    def hello(self) -> bytes:
        return _HELLO_MAGIC + self._nonce

    def seal(self, message: object) -> bytes:
        """The next frame of this direction. The peer's hello must have come."""
        if self.secret is None:
            raise FrameError("No frame can be sealed before the peer's hello, and the acceptor's welcome, have come.")
        body: bytes = msgpack.packb(message)
        if len(body) > MAX_FRAME_BYTES:
            raise FrameError(f"A frame of {len(body)} bytes is above the limit of {MAX_FRAME_BYTES}.")
        tag = self._tag(self._send_key, self._sent, body)
        self._sent += 1
        return _LENGTH.pack(len(body)) + tag + body

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the peer.

        Returns the bytes to send in answer: the acceptor's hello and welcome, else nothing.
        """
        self._buffer += data
        if self._state is not _State.NEW or len(self._buffer) < _HELLO_BYTES:
            return b""
        if not self._buffer.startswith(_HELLO_MAGIC):
            raise FrameError("The peer does not speak this version of the Raft protocol.")
        peer_nonce = bytes(self._buffer[len(_HELLO_MAGIC) : _HELLO_BYTES])
        nonces = (self._nonce, peer_nonce) if self._initiator else (peer_nonce, self._nonce)
        self._transcript = b"".join(nonces) + self._acceptor_address.encode()
        if not self._initiator:
            self._use(self._secrets.first)
        del self._buffer[:_HELLO_BYTES]
        self._state = _State.GREETED
        return b"" if self._initiator else self.hello() + self.seal([WELCOME, self._group])

    def next_message(self) -> object | None:
        """The next verified message, or None when more bytes are needed. Raises FrameError."""
        if self._state is _State.NEW or len(self._buffer) < _HEADER_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        limit = MAX_FRAME_BYTES if self._state is _State.OPEN else MAX_FIRST_FRAME_BYTES
        if length > limit:
            raise FrameError(f"The peer announced a frame of {length} bytes; the limit is {limit} here.")
        end = _HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        tag, body = bytes(self._buffer[_LENGTH.size : _HEADER_BYTES]), bytes(self._buffer[_HEADER_BYTES:end])
        if not self._verifies(tag, body):
            raise NotVerified(
                "A frame does not verify: another secret, another address for this voter, a damaged or a replayed "
                "frame."
            )
        self._received += 1
        del self._buffer[:end]
        self._state = _State.OPEN
        try:
            message: object = msgpack.unpackb(body)
        except (ValueError, msgpack.UnpackException) as error:
            raise FrameError(f"A verified frame does not hold msgpack ({error}).") from error
        if message is None:
            raise FrameError("A verified frame is empty.")
        if self._initiator and self._received == 1:
            self._check_welcome(message)
        return message

    def _check_welcome(self, message: object) -> None:
        match message:
            case [str(welcome), str(group)] if welcome == WELCOME:
                if group and self._group and group != self._group:
                    raise FrameError(
                        f"It is of cluster {group}, and this node's data folder belongs to cluster {self._group}; "
                        "start each with a folder of its own cluster."
                    )
            case _:
                raise FrameError("The peer's first frame is no welcome.")

    def _verifies(self, tag: bytes, body: bytes) -> bool:
        if self.secret is not None:
            return hmac.compare_digest(tag, self._tag(self._receive_key, self._received, body))
        for secret in self._secrets.accepted:  # the welcome tells which one the acceptor uses
            self._use(secret)
            if hmac.compare_digest(tag, self._tag(self._receive_key, self._received, body)):
                return True
        return False

    def _use(self, secret: ClusterSecret) -> None:
        self.secret = secret
        from_initiator = hmac.digest(secret.text, _LABEL + b"i" + self._transcript, "sha256")
        from_acceptor = hmac.digest(secret.text, _LABEL + b"a" + self._transcript, "sha256")
        if self._initiator:
            self._send_key, self._receive_key = from_initiator, from_acceptor
        else:
            self._send_key, self._receive_key = from_acceptor, from_initiator

    @staticmethod
    def _tag(key: bytes, counter: int, body: bytes) -> bytes:
        return hmac.digest(key, _COUNTED.pack(counter, len(body)) + body, "sha256")[:_TAG_BYTES]
