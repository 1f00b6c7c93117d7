"""The 16 bytes that every replication and fetch answer begins with, before whole batches.

    0  u64 leader_epoch     big-endian
    8  i64 high_watermark   big-endian; last committed offset, -1 = none

Errors have no place here: they travel in NATS headers. So does the end up to which a leader asks followers of an
`accepted` stream to sync, because a publish waits for it: `Tidelog-Sync-To`, exclusive.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from wire.error_details import whole_number
from wire.errors import CorruptData
from wire.types import LeaderEpoch, Offset, high_watermark_from_wire, high_watermark_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wire.types import Buffer

SYNC_HEADER: Final = "Tidelog-Sync-To"
LOG_START_HEADER: Final = "Tidelog-Log-Start"
"""Header with the log start of the replica that answers a consumer."""
OFFSET_HEADER: Final = "Tidelog-Offset"
"""Header with the offset that was found for a consumer that asked by position or time."""
LOG_END_HEADER: Final = "Tidelog-Log-End"
"""Header beside OFFSET_HEADER: the leader's log end, exclusive, with records that are not committed yet."""
BYTES_HEADER: Final = "Tidelog-Bytes"
"""Header with the approximate bytes of the log from a consumer's offset to the committed end."""

_HEADER = struct.Struct(">Qq")
HEADER_SIZE: Final = _HEADER.size


def encode_header(leader_epoch: LeaderEpoch, high_watermark: Offset) -> bytes:
    """Returns the 16 bytes. `high_watermark` is exclusive, as everywhere but on the wire."""
    return _HEADER.pack(leader_epoch, high_watermark_to_wire(high_watermark))


def decode_header(buf: Buffer) -> tuple[LeaderEpoch, Offset]:
    """Returns (leader epoch, exclusive high watermark). Raises CorruptData: cut off, leader epoch 0, HW below -1."""
    if len(buf) < HEADER_SIZE:
        raise CorruptData(f"replication answer of {len(buf)} bytes; its header alone has {HEADER_SIZE}")
    leader_epoch, high_watermark = _HEADER.unpack_from(buf)
    if leader_epoch == 0:
        raise CorruptData("replication answer without a leader epoch")
    if high_watermark < -1:
        raise CorruptData(f"replication answer with high watermark {high_watermark}")
    return LeaderEpoch(leader_epoch), high_watermark_from_wire(high_watermark)


def sync_headers(end: Offset) -> dict[str, str] | None:
    """Returns the headers of an answer to a follower that shall sync everything below `end`; None for 0, nothing."""
    return {SYNC_HEADER: str(end)} if end else None


def sync_wanted(headers: Mapping[str, str] | None) -> Offset:
    """Returns the end below which to sync; 0: nothing. Raises CorruptData."""
    text = headers.get(SYNC_HEADER) if headers else None
    if text is None:
        return Offset(0)
    end = whole_number(text)
    if end is None:
        raise CorruptData(f"replication answer with {SYNC_HEADER} {text[:80]!r}")
    return Offset(end)
