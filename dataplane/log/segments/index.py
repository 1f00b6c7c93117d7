"""The sparse index of one segment: where to begin looking for an offset or a point in time.

An entry stands at the beginning of a batch, about every `index_interval_bytes`, and says of the bytes BEFORE it:

    offset          exclusive end of the log there: every record before this position is below it, none after it
    position        byte position in the segment file
    max_timestamp   largest timestamp of the records before it in this segment, ns; i64 minimum where there are none

All three grow, so one list of entries serves both questions. A finished segment ends with an entry at the end of its
file: it says where the next segment begins, which is how a segment that was shortened, or is missing, is noticed.

On disk `%020d.index` is a row of entries of 32 bytes, each with its own CRC-32C: i64 offset, i64 position, i64
max_timestamp, u32 CRC-32C of these 24 bytes, u32 0. Entries are only ever appended to the file, and only once the
segment's bytes before them are synced; before a segment is cut, its index is cut, durably. So a readable entry can be
believed, and recovery begins at the last one. Losing entries costs time, never data.

Threads: `add` is called by the appending thread only; any thread may look up at the same time. (An entry counts from
the moment its offset is there, and that is appended last.)
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

_FACTS = struct.Struct("<qqq")
_TAIL = struct.Struct("<II")
ENTRY_SIZE = _FACTS.size + _TAIL.size
NO_TIMESTAMP = -(1 << 63)


class IndexEntry(NamedTuple):
    """See the module's text."""

    offset: int
    position: int
    max_timestamp: int


class SparseIndex:
    """Entries of one segment, strictly growing in position. Never empty: the first is the segment's beginning."""

    __slots__ = ("_offsets", "_positions", "_timestamps")

    def __init__(self, base_offset: int, entries: Iterable[IndexEntry] = ()) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")
        self.add(IndexEntry(base_offset, 0, NO_TIMESTAMP))
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, entry: IndexEntry) -> None:
        """Ignored unless it lies behind the last one."""
        if self._positions and entry.position <= self._positions[-1]:
            return
        self._timestamps.append(entry.max_timestamp)
        self._positions.append(entry.position)
        self._offsets.append(entry.offset)

    def entry(self, number: int) -> IndexEntry:
        """Counted from 0, or from the end when negative."""
        if number < 0:
            number += len(self._offsets)
        return IndexEntry(self._offsets[number], self._positions[number], self._timestamps[number])

    @property
    def last(self) -> IndexEntry:
        return self.entry(-1)

    def before_offset(self, offset: int) -> IndexEntry:
        """The last entry with no record at or above `offset` before it."""
        return self.entry(max(0, bisect_right(self._offsets, offset) - 1))

    def before_timestamp(self, timestamp: int) -> IndexEntry:
        """The last entry with no record of `timestamp` or later before it."""
        return self.entry(max(0, bisect_left(self._timestamps, timestamp, hi=len(self._offsets)) - 1))

    def before_position(self, position: int) -> IndexEntry:
        """The last entry at or before byte `position`."""
        return self.entry(max(0, bisect_right(self._positions, position, hi=len(self._offsets)) - 1))

    def after(self, entry: IndexEntry) -> IndexEntry | None:
        """The entry that follows; None: there is none."""
        number = bisect_right(self._positions, entry.position, hi=len(self._offsets))
        return self.entry(number) if number < len(self._offsets) else None

    def until(self, position: int) -> SparseIndex:
        """An index of its own, of the entries at or before byte `position`."""
        count = bisect_right(self._positions, position)
        index = SparseIndex(self._offsets[0])
        index._offsets, index._positions = self._offsets[:count], self._positions[:count]
        index._timestamps = self._timestamps[:count]
        return index

    def encode(self, first: int, end_position: int) -> bytes:
        """The entries from number `first` on that lie at or before `end_position`, as they stand in the file."""
        out = bytearray()
        for number in range(first, len(self._offsets)):
            entry = self.entry(number)
            if entry.position > end_position:
                break
            facts = _FACTS.pack(*entry)
            out += facts
            out += _TAIL.pack(crc32c(facts), 0)
        return bytes(out)


def decode_entries(content: bytes) -> list[IndexEntry]:
    """The entries up to the first that is damaged, torn or out of order."""
    entries: list[IndexEntry] = []
    last = IndexEntry(-1, -1, NO_TIMESTAMP)
    for at in range(0, len(content) - ENTRY_SIZE + 1, ENTRY_SIZE):
        facts = content[at : at + _FACTS.size]
        if _TAIL.unpack_from(content, at + _FACTS.size) != (crc32c(facts), 0):
            break
        entry = IndexEntry(*_FACTS.unpack(facts))
        if entry.position <= last.position or entry.offset < last.offset or entry.max_timestamp < last.max_timestamp:
            break
        entries.append(entry)
        last = entry
    return entries
