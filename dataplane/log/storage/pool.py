"""What the logs of one broker share, so that thousands of partitions need no more than some: open files, and memory for
their newest batches and for the indexes of segments that are not written to any more.

    reading     handles for reading (`ReadHandles`)
    writing     which logs hold a handle for writing
    indexes     which segments have their index in memory
    tails       how much the newest batches of all logs take (`dataplane.log.storage.tail`)

A log takes a handle for writing with its first append, on the loop thread, and is asked, there too, to put it aside
when others want one. It does so only when all that it wrote is synced: only the holder of a handle learns the error of
a later fsync. With more logs unsynced at once than may hold a handle there are half as many handles again; then appends
are refused, as on a full disk, until something is synced.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from dataplane.log.storage.files import ReadHandles
from dataplane.log.storage.tail import TailMemory

if TYPE_CHECKING:
    from dataplane.log.storage.files import FileSystem

RESERVED_FILES = 256
"""Open files that a process may have for other things: connections, the Raft journal, small files that are just being
written."""
MOST_READING = 1024
MOST_WRITING = 4096
INDEX_BYTES = 64 << 20
TAIL_BYTES = 256 << 20
_TRIES = 64
"""Logs that are asked for their handle at most when another one wants one, so that the search is bounded."""


class Writing(Protocol):
    """A log that holds a handle for writing."""

    written_to: bool
    """Since this was last set to False."""

    def put_aside(self) -> bool:
        """Closes it; False: not now."""
        ...


class WriteHandles:
    """At most `capacity` logs that hold one, as far as they can put it aside. Second chance: one that was written to
    since it was last asked is asked again later. Loop thread, but for `closed`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._logs: OrderedDict[Writing, None] = OrderedDict()

    def take(self, log: Writing) -> None:
        """`log` is about to open one. Raises OSError: too many are held already."""
        logs = self._logs
        for _ in range(min(_TRIES, len(logs))):
            if len(logs) < self._capacity:
                break
            other, _ = logs.popitem(last=False)
            if other.written_to or not other.put_aside():
                other.written_to = False
                logs[other] = None
        if len(logs) >= self._capacity * 3 // 2:
            raise OSError(errno.EMFILE, f"{len(logs)} logs are written to, and none of them is synced")
        logs[log] = None

    def closed(self, log: Writing) -> None:
        """Any thread."""
        self._logs.pop(log, None)


class Indexed(Protocol):
    """A segment that is not written to any more."""

    @property
    def index_bytes(self) -> int: ...

    def drop_index(self) -> None:
        """Drops the index from memory. Any thread; a reader that uses it at the moment goes on with it."""
        ...


class LoadedIndexes:
    """Keeps the indexes used last, up to `capacity` bytes. Thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._segments: OrderedDict[Indexed, int] = OrderedDict()
        self._bytes = 0

    def used(self, segment: Indexed) -> None:
        with self._lock:
            self._bytes -= self._segments.pop(segment, 0)
            size = self._segments[segment] = segment.index_bytes
            self._bytes += size
            dropped = []
            while self._bytes > self._capacity and len(self._segments) > 1:
                other, size = self._segments.popitem(last=False)
                self._bytes -= size
                dropped.append(other)
        for other in dropped:
            other.drop_index()

    def forget(self, segment: Indexed) -> None:
        with self._lock:
            self._bytes -= self._segments.pop(segment, 0)


class LogPool:
    def __init__(
        self,
        files: FileSystem,
        *,
        reading: int = 256,
        writing: int = MOST_WRITING,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        self.reading = ReadHandles(files, reading)
        self.writing = WriteHandles(writing)
        self.indexes = LoadedIndexes(index_bytes)
        self.tails = TailMemory(TAIL_BYTES)

    @classmethod
    def within(cls, files: FileSystem, open_files: int) -> LogPool:
        """For a process that may have so many files open."""
        left = max(open_files - RESERVED_FILES, 32)
        return cls(files, reading=min(left // 4, MOST_READING), writing=min(left // 2, MOST_WRITING))
