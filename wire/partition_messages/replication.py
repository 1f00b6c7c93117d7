"""The 16 bytes that every replication and fetch answer begins with, before whole batches.

    0  u64 leader_epoch     big-endian
    8  i64 high_watermark   big-endian; last committed offset, -1 = none

Errors have no place here: they travel in NATS headers. So does the end up to which a leader asks followers of an
`accepted` stream to sync, because a publish waits for it: `Tidelog-Sync-To`, exclusive. And the leader's log start,
until the follower reports that it serves nothing below: `Tidelog-Log-Start`.
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
"""Header with the log start of the replica that answers a consumer; to a follower, that of the leader."""
SETTLED_START_HEADER: Final = "Tidelog-Settled-Log-Start"
"""Header beside OFFSET_HEADER: no replica serves consumers what is below. It follows the leader's log start."""
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


def follower_headers(sync_to: Offset, log_start: Offset) -> dict[str, str] | None:
    """Returns the headers of an answer to a follower that shall sync everything below `sync_to`, and is told the
    leader's log start; 0: neither."""
    if not sync_to and not log_start:
        return None
    told = {SYNC_HEADER: sync_to, LOG_START_HEADER: log_start}
    return {name: str(offset) for name, offset in told.items() if offset}


def offset_of(headers: Mapping[str, str] | None, name: str) -> Offset:
    """Returns the offset in a header of an answer to a follower; 0: there is none. Raises CorruptData."""
    text = headers.get(name) if headers else None
    if text is None:
        return Offset(0)
    offset = whole_number(text)
    if offset is None:
        raise CorruptData(f"replication answer with {name} {text[:80]!r}")
    return Offset(offset)
