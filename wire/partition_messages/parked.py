"""The fetches of one broker that wait at another: asked about together, once a second or so.

    request   0  u64  incarnation of the broker that asks          answer   one byte for each place, in the same
              8  u16  length of its id                                      order: 1 the fetch waits, 0 it does not
             10       its id, then places of 36 bytes:

                0  u64  incarnation of the stream      12  u64  incarnation of the partition     28  u64  number of
                8  u32  partition                      20  u64  LeaderEpoch                               the fetch

All numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from wire.errors import CorruptData
from wire.types import BrokerId, Buffer, Incarnation, LeaderEpoch, PartitionKey

_HEAD: Final = struct.Struct(">QH")
_PLACE: Final = struct.Struct(">QIQQQ")
MAX_PLACES: Final = 1000
"""In one request; its receiver looks at all of them in one turn of the event loop, a few milliseconds."""
HELD, NOT_HELD = 1, 0


class Place(NamedTuple):
    """Identifies a fetch that waits at a leader, or waited there."""

    stream_incarnation: int
    partition: int
    partition_incarnation: int
    leader_epoch: int
    sequence: int


class ParkedRequest(NamedTuple):
    broker: BrokerId
    incarnation: Incarnation
    places: Sequence[Place]


def place_of(key: PartitionKey, leader_epoch: LeaderEpoch, sequence: int) -> Place:
    return Place(key.stream_incarnation, key.partition, key.partition_incarnation, leader_epoch, sequence)


def encode_parked(request: ParkedRequest) -> bytes:
    name = request.broker.encode()
    places = [_PLACE.pack(*place) for place in request.places]
    return b"".join((_HEAD.pack(request.incarnation, len(name)), name, *places))


def decode_parked(data: bytes) -> ParkedRequest:
    """Raises CorruptData: cut off, no id, or more than MAX_PLACES."""
    if len(data) < _HEAD.size:
        raise CorruptData(f"a question about parked fetches of {len(data)} bytes; its head alone has {_HEAD.size}")
    incarnation, length = _HEAD.unpack_from(data)
    start = _HEAD.size + length
    count, rest = divmod(len(data) - start, _PLACE.size)
    if not length or count < 0 or rest or count > MAX_PLACES:
        raise CorruptData(
            f"a question about parked fetches of {len(data)} bytes, with an id of {length}: that is not a whole number"
            f" of places of {_PLACE.size} bytes up to {MAX_PLACES}"
        )
    try:
        broker = BrokerId(data[_HEAD.size : start].decode())
    except UnicodeDecodeError as e:
        raise CorruptData(f"a question about parked fetches whose sender's id is not UTF-8: {e}") from e
    places = [Place._make(place) for place in _PLACE.iter_unpack(memoryview(data)[start:])]
    return ParkedRequest(broker, Incarnation(incarnation), places)


def decode_verdicts(data: Buffer, count: int) -> bytes:
    """Returns HELD or NOT_HELD for each of `count` places. Raises CorruptData."""
    verdicts = bytes(data)
    if len(verdicts) != count or max(verdicts, default=HELD) > HELD:
        raise CorruptData(f"an answer about {count} parked fetches with {len(verdicts)} bytes: {verdicts[:40]!r}")
    return verdicts
