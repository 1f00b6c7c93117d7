"""One segment of a log: a file of batches, byte for byte as they crossed the wire, and its sparse index.

    00000000000000004096.log      named by the offset at which the log stood when the segment began
    00000000000000004096.index    see `dataplane.log.segments.index`

Exactly the last segment of a log is written to. Its life: created by the append that finds the one before it full;
filled; no longer the last one, and then, with the next sync, finished: cut to its length, its index written to the end,
never written to again. Its handle for writing is opened when it is needed and may be put aside while all is synced.
`size` is the part of the file that belongs to the log; behind it there may be reserved room, or damage.

Fields are written by one thread at a time: `size`, `max_timestamp` and the index grow in the appending thread while the
segment is the last; the rest changes under the log's I/O lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.log.segments.index import ENTRY_SIZE, NO_TIMESTAMP, IndexEntry, SparseIndex, decode_entries
from dataplane.log.segments.scan import ChainBroken, walk
from dataplane.log.storage.checkpoints import read_file
from dataplane.log.storage.files import is_no_space
from wire.errors import InvariantViolation
from wire.types import Offset

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem, ReadHandles

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"

_FORGET_BYTES = 4 << 20
_REWRITE_BYTES = 1 << 20
_REBUILT_INTERVAL = 64 << 10
"""Bytes between the entries of an index that is found again in the headers."""


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """A segment file with its index. Every method that touches the disk raises OSError."""

    __slots__ = (
        "__weakref__",
        "_files",
        "_handle",
        "_index",
        "_saved",
        "allocated",
        "base_offset",
        "doubtful_from",
        "forgotten_size",
        "index_path",
        "is_finished",
        "length_synced",
        "max_timestamp",
        "name_synced",
        "path",
        "size",
        "synced_size",
    )

    def __init__(self, files: FileSystem, directory: Path, base_offset: int, size: int = 0) -> None:
        self._files = files
        self.base_offset = base_offset
        """No record below it is in this segment or a later one."""
        self.path = directory / segment_name(base_offset)
        self.index_path = self.path.with_suffix(INDEX_SUFFIX)
        self.size = size
        """Bytes of whole batches."""
        self.synced_size = 0
        """Invariant: <= size. Bytes known to be on stable storage."""
        self.forgotten_size = 0
        """Bytes, from the beginning, that the page cache need not keep."""
        self.doubtful_from: int | None = None
        """Bytes from here on were found at an open; nothing says that an earlier process synced them."""
        self.allocated = size
        """Invariant: >= size. Length of the file."""
        self.name_synced = True
        """False from the making of the file until its folder was synced."""
        self.length_synced = True
        """False from the moment a write that broke off was cut until the file's length was synced: a loss of power may
        bring the rest of that write back."""
        self.max_timestamp = NO_TIMESTAMP
        """ns; of the records in it."""
        self.is_finished = True
        """Not written to any more."""
        self._handle: int | None = None
        """For writing."""
        self._index: SparseIndex | None = None
        self._saved = 0
        """Entries of `_index` that are in the index file; -1 = the file is damaged and must be written anew."""

    # ---- writing

    def open_for_writing(self, *, create: bool = False) -> None:
        self.is_finished = False
        if create:
            self._handle = self._files.open(self.path, write=True, create=True)
            self.name_synced = False
            self._index = SparseIndex(self.base_offset)

    @property
    def has_handle(self) -> bool:
        return self._handle is not None

    @property
    def handle(self) -> int:
        """For writing, of a segment that is not finished."""
        if self._handle is None:
            if self.is_finished:
                raise InvariantViolation(f"{self.path} is finished, and not written to any more")
            self._handle = self._files.open(self.path, write=True)
        return self._handle

    def put_aside(self) -> bool:
        """Closes the handle; the next write opens another. False: something is not synced yet."""
        if self._handle is not None and self.synced_size == self.size and self.name_synced and self.length_synced:
            self._close_handle()
        return self._handle is None

    def _close_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)

    # R24: Bytes that an earlier process may have failed to sync are written again: after a failed fsync pages read
    # well and count as clean, and are lost with the power. On opening, everything beyond the last checkpoint that
    # vouches for it is rewritten and synced before the broker registers.
    # Hazard: Page cache that a failed fsync has left counts as synced.
    def rewrite_doubtful(self) -> None:
        """Writes the bytes from `doubtful_from` on once more, so that the next sync covers them. An fsync that failed
        in an earlier life left pages in the cache that count as clean: they read well, no later fsync writes them, and
        a loss of power takes them."""
        if self.doubtful_from is None:
            return
        for position in range(self.doubtful_from, self.size, _REWRITE_BYTES):
            content = self._files.read(self.handle, min(_REWRITE_BYTES, self.size - position), position)
            self._files.write(self.handle, [content], position)
        self.synced_size = min(self.synced_size, self.doubtful_from)
        self.doubtful_from = None

    def forget_cached(self, size: int) -> None:
        """The page cache need not keep the first `size` bytes, or a little less, where they are synced. Of a segment
        that is not finished."""
        size = min(size, self.synced_size)
        if size >= self.forgotten_size + _FORGET_BYTES:
            self._files.forget_cached(self.handle, self.forgotten_size, size - self.forgotten_size)
            self.forgotten_size = size

    def finish(self, end_offset: int) -> None:
        """No more appends come, and everything is synced: gives back reserved room, completes the index, closes."""
        if self.is_finished:
            return
        if self.allocated > self.size:
            self._files.truncate(self.handle, self.size)
            self._files.sync_all(self.handle)
            self.allocated = self.size
        self.add_index_entry(end_offset, self.size)
        self.save_index()
        self.close()
        self.drop_index()

    def close(self) -> None:
        self.is_finished = True
        self._close_handle()

    def cut(self, size: int, max_timestamp: int) -> None:
        """Shortens the segment to `size` bytes, durably; the index first, so that it never points past the end."""
        self.cut_index(size)
        self.open_for_writing()
        self._files.truncate(self.handle, size)
        self._files.sync_all(self.handle)
        self.size = self.synced_size = self.allocated = size
        self.length_synced = True
        self.forgotten_size = min(self.forgotten_size, size)
        self.max_timestamp = max_timestamp

    def replace(self, source: Path, size: int, index: SparseIndex) -> None:
        """Replaces the content of a finished segment by that of the file `source`, which is synced, and whose complete
        index is `index`. A crash leaves the old content or the new, and never an index of the other."""
        directory = self.path.parent
        self._files.remove(self.index_path)
        self._files.sync_directory(directory)
        self._index, self._saved = None, 0
        self._files.rename(source, self.path)
        self._files.sync_directory(directory)
        self.size = self.synced_size = self.allocated = size
        self.max_timestamp = index.last.max_timestamp
        self._index = index
        try:
            self.save_index()
        except OSError:  # a full disk, for instance; the missing entries are found again by scanning
            self._saved = -1

    def remove(self) -> None:
        """The index first: a segment without one is scanned, an index without its segment would outlive it."""
        self.close()
        self._files.remove(self.index_path)
        self._files.remove(self.path)

    # ---- index

    @property
    def index(self) -> SparseIndex | None:
        """None until `load` or `use_index`; always there in the last segment."""
        return self._index

    def load(self, handles: ReadHandles, end_offset: int) -> SparseIndex:
        """The index of a finished segment that ends before offset `end_offset`. Damaged or missing entries are found
        again in the batches' headers. Under the log's I/O lock. Raises ChainBroken."""
        index = self._index
        if index is None:
            index, saved = self.load_index()
            if index.last[:2] != (end_offset, self.size):
                self._complete_index(index, handles, end_offset)
            self._index, self._saved = index, saved
        return index

    @property
    def index_bytes(self) -> int:
        """Bytes of memory."""
        index = self._index
        return len(index) * ENTRY_SIZE if index is not None else 0

    def drop_index(self) -> None:
        """From memory. It is there again with the next `load`."""
        if self.is_finished:
            self._index = None

    def load_index(self) -> tuple[SparseIndex, int]:
        """(the index file's entries for the first `size` bytes, the number of entries in the file; -1 = damaged)."""
        content = read_file(self._files, self.index_path) or b""
        entries = decode_entries(content)
        if entries and entries[0] != (self.base_offset, 0, NO_TIMESTAMP):
            entries = []
        whole = len(entries) * ENTRY_SIZE == len(content)
        kept = [entry for entry in entries if entry.position <= self.size]
        index = SparseIndex(self.base_offset, kept)
        return index, len(kept) if whole and len(kept) == len(entries) else -1

    def use_index(self, index: SparseIndex, saved: int) -> None:
        """Takes over the index that recovery loaded and completed; `saved` as `load_index` returned it."""
        self._index, self._saved = index, saved

    def _complete_index(self, index: SparseIndex, handles: ReadHandles, end_offset: int) -> None:
        """Adds the entries from the last one to the end of the segment, by reading headers."""
        last = index.last
        newest = last.max_timestamp
        previous_end = last.offset
        with handles.borrow(self.path) as handle:
            for position, header in walk(self._files, handle, last.position, self.size, last.offset, verify=False):
                if position - index.last.position >= _REBUILT_INTERVAL:
                    index.add(IndexEntry(previous_end, position, newest))
                newest = max(newest, header.last_timestamp)
                previous_end = header.end_offset
        if previous_end > end_offset:
            raise ChainBroken(self.size, f"{self.path} holds records up to {previous_end}, beyond its end {end_offset}")
        index.add(IndexEntry(end_offset, self.size, newest))
        self.max_timestamp = newest

    def add_index_entry(self, end_offset: int, position: int) -> None:
        """The log up to `position` ends at `end_offset`, and `max_timestamp` is of the records up to there."""
        assert self._index is not None
        self._index.add(IndexEntry(end_offset, position, self.max_timestamp))

    def forget_torn(self) -> None:
        """A write beyond `size` broke off: nothing of it may stay behind the end, where the next open would read it.
        The next sync makes that durable, before it counts any record of a later segment as durable."""
        if self._handle is not None:
            self._files.truncate(self._handle, self.size)
            self.allocated = self.size
            self.length_synced = False

    @property
    def index_due(self) -> IndexEntry | None:
        """The last of the entries that `save_index` writes. None: there is nothing to write; the entry at the beginning
        of the segment, which says nothing, waits for the next one."""
        index = self._index
        if index is None or self._saved == len(index):
            return None
        last = index.before_position(self.synced_size)
        saved = index.entry(self._saved - 1).position if self._saved > 0 else 0
        return last if self._saved < 0 or last.position > saved else None

    def save_index(self) -> None:
        """Appends the missing entries of the segment's synced part to the index file. The file is not synced: lost
        entries are found again by scanning, as are entries for which there was no room."""
        index = self._index
        if index is None or self.index_due is None:
            return
        if self._saved < 0:
            self.cut_index(self.size)
        content = index.encode(self._saved, self.synced_size)
        if content:
            try:
                self._append_to_index_file(content)
            except OSError as error:
                if not is_no_space(error):
                    raise

    def _append_to_index_file(self, content: bytes) -> None:
        handle = self._files.open(self.index_path, write=True, create=True)
        try:
            self._files.write(handle, [content], self._saved * ENTRY_SIZE)
        except OSError:
            self._saved = -1  # some entries may be there, and a cut of the segment must not leave them
            raise
        finally:
            self._files.close(handle)
        self._saved += len(content) // ENTRY_SIZE

    def cut_index(self, size: int) -> None:
        """Leaves no entry behind byte `size`, durably. A damaged file is emptied."""
        index = self._index
        if index is None:
            index, self._saved = self.load_index()
        kept = index.until(size)
        keep_saved = max(0, min(self._saved, len(kept)))
        if self._saved != keep_saved:
            handle = self._files.open(self.index_path, write=True, create=True)
            try:
                self._files.truncate(handle, keep_saved * ENTRY_SIZE)
                self._files.sync_all(handle)
            finally:
                self._files.close(handle)
        self._saved = keep_saved
        self._index = kept


def base_offset_of(segment: Segment) -> Offset:
    return Offset(segment.base_offset)
