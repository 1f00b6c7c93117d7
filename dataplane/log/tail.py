"""The newest batches of a log, kept in memory: a follower or consumer that is nearly caught up reads no file."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.transport import Buffer


class _Batch(NamedTuple):
    end_offset: int
    size: int
    parts: Sequence[Buffer]


_GONE = _Batch(0, 0, ())


class Tail:
    """Batches in order of offset, up to `limit` bytes, the oldest dropped first; always at least the newest one."""

    __slots__ = ("_bases", "_batches", "_bytes", "_first", "_limit", "holds_encrypted")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bases: list[int] = []
        self._batches: list[_Batch] = []
        self._first = 0
        """Index of the oldest batch kept; those before it are dropped and await removal from the lists."""
        self._bytes = 0
        self.holds_encrypted = False
        """Of what was ever added."""

    def add(
        self, base_offset: int, end_offset: int, size: int, parts: Sequence[Buffer], *, encrypted: bool = False
    ) -> None:
        """The buffers are kept, not copied: nobody may change them any more."""
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

    def drop_before(self, offset: int) -> None:
        """Those that end at or below it."""
        first = self._first
        while first < len(self._batches) and self._batches[first].end_offset <= offset:
            self._bytes -= self._batches[first].size
            self._batches[first] = _GONE
            first += 1
        self._first = first

    def read(self, offset: int, max_bytes: int, end_offset: int) -> list[Buffer] | None:
        """The buffers of whole batches from the one that holds `offset`; None when that may be older than what is
        kept."""
        bases, batches = self._bases, self._batches
        if self._first == len(bases) or offset < bases[self._first]:
            return None
        at = bisect_right(bases, offset, lo=self._first) - 1
        if batches[at].end_offset <= offset:
            at += 1
        found: list[Buffer] = []
        size = 0
        while at < len(batches):
            batch = batches[at]
            size += batch.size
            if batch.end_offset > end_offset or (found and size > max_bytes):
                break
            found.extend(batch.parts)
            at += 1
        return found
