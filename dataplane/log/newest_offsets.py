"""Which record of each key is the newest: a map from hashes of keys to offsets, in a fixed amount of memory.

Open addressing in numpy arrays: a hash lies at its slot, or in the first free one behind it. Many are put in and looked
up at a time, one probe of all of them after the other; there is no Python object per key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64Array: TypeAlias = NDArray[np.int64]
    HashArray: TypeAlias = NDArray[np.uint64]

SLOT_BYTES: Final = 24
"""16 of the hash, 8 of the offset."""
NONE: Final = -1
"""Instead of an offset."""
_AT_A_TIME: Final = 4096
_FILLED: Final = 0.75
"""The part of the slots that is filled, at most: with more, probes become many."""


class NewestOffsets:
    """`memory` in bytes. `add` in growing order of offsets."""

    def __init__(self, memory: int) -> None:
        slots = max(memory // SLOT_BYTES, 4 * _AT_A_TIME)
        self._hashes = np.zeros((slots, 2), np.uint64)
        self._offsets = np.full(slots, NONE, np.int64)
        self._room = int(slots * _FILLED) - _AT_A_TIME
        self._count = 0

    def __len__(self) -> int:
        """Keys in it."""
        return self._count

    def add(self, hashes: HashArray, offsets: Int64Array) -> int:
        """hashes [n, 2], offsets [n]. How many of them are in it now, from the first on: fewer than n when it is
        full."""
        for start in range(0, len(offsets), _AT_A_TIME):
            if self._count >= self._room:
                return start
            self._add(hashes[start : start + _AT_A_TIME], offsets[start : start + _AT_A_TIME])
        return len(offsets)

    def _add(self, hashes: HashArray, offsets: Int64Array) -> None:
        slots = (hashes[:, 0] % len(self._offsets)).astype(np.int64)
        while len(offsets):
            free = self._offsets[slots] == NONE
            claimed = slots[free]
            # Of several for one slot the last one gets it, hash and offset alike; the others see that below.
            self._hashes[claimed] = hashes[free]
            self._offsets[claimed] = offsets[free]
            self._count += len(np.unique(claimed))
            mine = (self._hashes[slots] == hashes).all(axis=1)
            self._offsets[slots[mine]] = offsets[mine]
            others = ~mine
            hashes, offsets = hashes[others], offsets[others]
            slots = (slots[others] + 1) % len(self._offsets)

    def find(self, hashes: HashArray) -> Int64Array:
        """[n]: the newest offset of each, NONE for a key that is not in it."""
        found = np.full(len(hashes), NONE, np.int64)
        asked = np.arange(len(hashes))
        slots = (hashes[:, 0] % len(self._offsets)).astype(np.int64)
        while len(asked):
            offsets = self._offsets[slots]
            mine = (self._hashes[slots] == hashes[asked]).all(axis=1) & (offsets != NONE)
            found[asked[mine]] = offsets[mine]
            others = ~mine & (offsets != NONE)
            asked = asked[others]
            slots = (slots[others] + 1) % len(self._offsets)
        return found
