"""Index files of segments, for an operator: its content, and one made anew while the log is not in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dataplane.log.checkpoints import read_file
from dataplane.log.errors import LogDamaged
from dataplane.log.files import ReadHandles
from dataplane.log.index import ENTRY_SIZE, NO_TIMESTAMP, SparseIndex, decode_entries
from dataplane.log.scan import ChainBroken, walk
from dataplane.log.segment import INDEX_SUFFIX, Segment

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.files import FileSystem


class IndexFacts(NamedTuple):
    segment: str
    segment_bytes: int
    entries: int
    offset: int
    """By the last entry: the log reaches this offset (exclusive) at `position`."""
    position: int
    max_timestamp: int | None
    """ns; None: no record before that place."""
    damaged: bool
    """Behind the last entry that can be read there is something else."""


def show_index(files: FileSystem, segment: Path) -> IndexFacts:
    """Raises OSError."""
    content = read_file(files, segment.with_suffix(INDEX_SUFFIX)) or b""
    entries = decode_entries(content)
    index = SparseIndex(int(segment.stem), entries)
    last = index.last
    return IndexFacts(
        segment.name,
        _size(files, segment),
        len(entries),
        last.offset,
        last.position,
        None if last.max_timestamp == NO_TIMESTAMP else last.max_timestamp,
        len(entries) * ENTRY_SIZE != len(content),
    )


def rebuild_index(files: FileSystem, path: Path) -> None:
    """From the headers of the segment's batches, up to the last one that continues the chain; no broker runs. An entry
    says that what lies before it is on stable storage, so the segment is synced first.

    Raises OSError; LogDamaged, and nothing was changed: the old index knows of more than can be read.
    """
    base = int(path.stem)
    handle = files.open(path, write=True)
    try:
        files.sync_all(handle)
        size, end = 0, base
        try:
            for position, header in walk(files, handle, 0, files.size(handle), base, verify=True):
                size, end = position + header.size, header.end_offset
        except ChainBroken as broken:  # that is as far as the index may go
            known = show_index(files, path).position
            if size < known:  # the proof that something is missing must stay
                raise LogDamaged(
                    f"{path} is damaged {broken}, and its index says that {known} bytes of it were synced: start the "
                    "broker, which copies from the other replicas what it lacks"
                ) from broken
    finally:
        files.close(handle)
    files.remove(path.with_suffix(INDEX_SUFFIX))
    segment = Segment(files, path.parent, base, size)
    segment.synced_size = size
    handles = ReadHandles(files, 1)
    try:
        segment.load(handles, end)
    finally:
        handles.close()
    segment.save_index()
    files.sync_directory(path.parent)


def _size(files: FileSystem, path: Path) -> int:
    handle = files.open(path)
    try:
        return files.size(handle)
    finally:
        files.close(handle)
