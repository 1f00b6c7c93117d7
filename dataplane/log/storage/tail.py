"""The newest batches of a log, kept in memory: a follower or consumer that is nearly caught up reads no file.

Each tail has a limit, and all tails of a broker have a common one (`TailMemory`). Above the common limit the tails of
the logs that were appended to the longest ago are emptied; their batches are read from disk.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.types import Buffer


class _Batch(NamedTuple):
    end_offset: int
    size: int
    parts: Sequence[Buffer]


class ReadBatches(NamedTuple):
    parts: list[Buffer]
    """Whole batches."""
    end_offset: int
    """Where the last of them ends, exclusive; where there is none, the offset that was asked for."""


_GONE = _Batch(0, 0, ())


class Tail:
    """Batches in order of offset, up to `limit` bytes, the oldest dropped first; at least the newest one, unless all of
    them were dropped for other logs. Loop thread."""

    __slots__ = ("_bases", "_batches", "_bytes", "_first", "_limit", "_memory", "holds_encrypted")

    def __init__(self, limit: int, memory: TailMemory) -> None:
        self._limit = limit
        self._memory = memory
        self._bases: list[int] = []
        self._batches: list[_Batch] = []
        self._first = 0
        """Index of the oldest batch kept; batches before it are dropped and await removal from the lists."""
        self._bytes = 0
        self.holds_encrypted = False
        """Whether any batch that was ever added is encrypted."""

    def add(
        self, base_offset: int, end_offset: int, size: int, parts: Sequence[Buffer], *, encrypted: bool = False
    ) -> None:
        """Adds a batch. The buffers are kept, not copied, and must not be changed afterwards."""
        self.holds_encrypted = self.holds_encrypted or encrypted
        batches = self._batches
        self._bases.append(base_offset)
        batches.append(_Batch(end_offset, size, parts))
        self._bytes += size
        first = self._first
        last = len(batches) - 1
        while self._bytes > self._limit and first < last:
            self._bytes -= batches[first].size
            batches[first] = _GONE
            first += 1
        if first > 1024 and first * 2 > last:
            del batches[:first]
            del self._bases[:first]
            first = 0
        self._first = first
        self._memory.holds(self, self._bytes)

    def drop_before(self, offset: int) -> None:
        """Drops the batches that end at or below `offset`."""
        first = self._first
        while first < len(self._batches) and self._batches[first].end_offset <= offset:
            self._bytes -= self._batches[first].size
            self._batches[first] = _GONE
            first += 1
        self._first = first

    def empty(self) -> None:
        self._bases.clear()
        self._batches.clear()
        self._first = self._bytes = 0

    def read(self, offset: int, max_bytes: int, end_offset: int) -> ReadBatches | None:
        """The buffers of whole batches from the one that holds `offset`; None when that batch may be older than the
        oldest one kept."""
        bases, batches = self._bases, self._batches
        if self._first == len(bases) or offset < bases[self._first]:
            return None
        at = bisect_right(bases, offset, lo=self._first) - 1
        if batches[at].end_offset <= offset:
            at += 1
        found: list[Buffer] = []
        size, end = 0, offset
        while at < len(batches):
            batch = batches[at]
            size += batch.size
            if batch.end_offset > end_offset or (found and size > max_bytes):
                break
            found.extend(batch.parts)
            end = batch.end_offset
            at += 1
        return ReadBatches(found, end)


class TailMemory:
    """Bounds the bytes that the tails of many logs hold together to about `capacity`: at times one tail more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._tails: OrderedDict[Tail, int] = OrderedDict()
        """Bytes of each; the one that was appended to the longest ago comes first."""
        self._bytes = 0

    @property
    def bytes(self) -> int:
        return self._bytes

    def holds(self, tail: Tail, size: int) -> None:
        """`tail` was appended to and holds so many bytes now. Others may be emptied for it. Loop thread."""
        emptied = []
        with self._lock:
            self._bytes += size - self._tails.pop(tail, 0)
            self._tails[tail] = size
            while self._bytes > self._capacity and len(self._tails) > 1:
                other, held = self._tails.popitem(last=False)
                self._bytes -= held
                emptied.append(other)
        for other in emptied:
            other.empty()

    def forget(self, tail: Tail) -> None:
        """Forgets a tail that is no longer used. Any thread."""
        with self._lock:
            self._bytes -= self._tails.pop(tail, 0)
