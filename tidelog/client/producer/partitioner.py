"""The choice of a record's partition.

A key goes to hash(key) mod partitions: any client in any language can do the same. The hash is that of the stream,
CRC-32C or murmur2, unless a producer chooses another one. With murmur2 a key goes where Kafka's Java clients put it in
a topic of as many partitions.

Records without a key stick to one partition until its batch is sealed and then move on to the next: few large batches
instead of many small ones, and an even spread over time. Partitions without a leader at present are passed over while
another has one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from crc32c import crc32c

_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995
_32_BITS = 0xFFFFFFFF
_WORD = struct.Struct("<I")
_REMEMBERED_KEYS = 8192
"""Keys with a remembered partition; beyond that the memory is emptied and filled anew."""


KeyHash: TypeAlias = Callable[[bytes], int]


def murmur2(key: bytes) -> int:
    """Returns MurmurHash2 of 32 bits like Kafka's Java clients, with their seed, and without the sign bit."""
    length = len(key)
    whole = length & ~3
    state = _MURMUR_SEED ^ length
    for (word,) in _WORD.iter_unpack(key[:whole]):
        mixed = word * _MURMUR_FACTOR & _32_BITS
        state = state * _MURMUR_FACTOR & _32_BITS ^ (mixed ^ mixed >> 24) * _MURMUR_FACTOR & _32_BITS
    if whole < length:
        state = (state ^ int.from_bytes(key[whole:], "little")) * _MURMUR_FACTOR & _32_BITS
    state = (state ^ state >> 13) * _MURMUR_FACTOR & _32_BITS
    return (state ^ state >> 15) & 0x7FFFFFFF


KEY_HASHES: Mapping[str, KeyHash] = {"crc32c": crc32c, "murmur2": murmur2}


class Partitioner:
    """`partitions` are the numbers 0..n-1 of the stream's layout; `start` spreads several producers over them."""

    def __init__(self, partitions: Sequence[int], *, key_hash: KeyHash = crc32c, start: int = 0) -> None:
        self._partitions = tuple(partitions)
        self._count = len(self._partitions)
        self._key_hash = key_hash
        self._at = start % self._count
        self._of_key: dict[bytes, int] = {}

    def for_key(self, key: bytes) -> int:
        partition = self._of_key.get(key)
        if partition is None:
            if len(self._of_key) >= _REMEMBERED_KEYS:
                self._of_key.clear()
            partition = self._of_key[key] = self._partitions[self._key_hash(key) % self._count]
        return partition

    @property
    def sticky(self) -> int:
        """The partition of records without a key at present."""
        return self._partitions[self._at]

    def move_on(self, available: Callable[[int], bool]) -> None:
        """Takes the next partition that is available, or just the next, because a batch of the sticky one is
        complete."""
        for step in range(1, self._count + 1):
            candidate = (self._at + step) % self._count
            if available(self._partitions[candidate]):
                self._at = candidate
                return
        self._at = (self._at + 1) % self._count
