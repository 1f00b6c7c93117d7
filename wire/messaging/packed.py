"""Several messages to one broker as one: a pack of frames.

    0  u8   kind      0: a message; 1: nobody listens on the subject that was asked, in place of NATS' 503
    1  u16  length of the subject
    3  u16  length of the reply subject; 0: none
    5  u16  length of the header block; 0: none
    7  u32  length of the payload
   11       the four, one behind the other; then the next frame

All numbers are big-endian. A frame holds what NATS would have carried for that message, so whoever unpacks it gives
it to the same handler. The authenticity of a pack is that of the one message which carries it (R42).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from wire.errors import CorruptData
from wire.types import Buffer

_HEAD: Final = struct.Struct(">BHHHI")
HEAD_BYTES: Final = _HEAD.size
_MESSAGE: Final = 0
_NOBODY_LISTENS: Final = 1


class Frame(NamedTuple):
    subject: bytes
    reply: bytes
    """The reply subject; empty: no answer is wanted."""
    headers: bytes
    """The NATS header block; empty: the message has no headers."""
    payload: Buffer
    nobody_listens: bool = False
    """`subject` is the reply subject of a request that reached nobody."""

    @property
    def size(self) -> int:
        """Bytes in a pack."""
        return HEAD_BYTES + len(self.subject) + len(self.reply) + len(self.headers) + len(self.payload)


def encode_pack(frames: Sequence[Frame]) -> bytes:
    """Returns the payload. Raises ValueError for a subject, reply or header block above 64 KiB - 1."""
    parts: list[Buffer] = []
    for subject, reply, headers, payload, nobody_listens in frames:
        kind = _NOBODY_LISTENS if nobody_listens else _MESSAGE
        try:
            parts.append(_HEAD.pack(kind, len(subject), len(reply), len(headers), len(payload)))
        except struct.error as e:
            raise ValueError(f"a message to {subject[:80]!r} does not fit into a frame: {e}") from e
        parts += (subject, reply, headers, payload)
    return b"".join(parts)


def decode_pack(data: bytes) -> list[Frame]:
    """Returns the frames; their payloads are views of `data`. Raises CorruptData: cut off, of another kind, or empty;
    then no frame of it counts."""
    frames: list[Frame] = []
    view, at, end = memoryview(data), 0, len(data)
    while at < end:
        if end - at < HEAD_BYTES:
            raise CorruptData(f"a pack of {end} bytes ends within the head of the frame at byte {at}")
        kind, subject, reply, headers, payload = _HEAD.unpack_from(data, at)
        if kind > _NOBODY_LISTENS or not subject:
            raise CorruptData(f"a pack with a frame of kind {kind} and a subject of {subject} bytes at byte {at}")
        at += HEAD_BYTES
        subject_end = at + subject
        reply_end = subject_end + reply
        headers_end = reply_end + headers
        if headers_end + payload > end:
            raise CorruptData(f"a pack of {end} bytes holds a frame that ends at byte {headers_end + payload}")
        frames.append(
            Frame(
                data[at:subject_end],
                data[subject_end:reply_end],
                data[reply_end:headers_end],
                view[headers_end : headers_end + payload],
                kind == _NOBODY_LISTENS,
            )
        )
        at = headers_end + payload
    return frames
