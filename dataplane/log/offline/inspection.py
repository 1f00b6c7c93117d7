"""Reading a segment file as it lies there, for an operator's eyes: every batch that can be read, and what cannot.

Unlike `scan.walk`, which ends where the log ends, this goes on behind damage: where a header is not one, the next place
that holds a sound one is looked for. Nothing is judged here, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from dataplane.log.segments.index import ENTRY_SIZE, NO_TIMESTAMP, SparseIndex, decode_entries
from dataplane.log.segments.scan import ChainBroken, only_zeros, walk
from dataplane.log.segments.segment import INDEX_SUFFIX, Segment
from dataplane.log.storage.checkpoints import read_file
from dataplane.log.storage.files import ReadHandles
from dataplane.log.storage.log_errors import LogDamaged
from wire.batch import HEADER_SIZE, MAGIC, BatchHeader, parse_header, verify_body
from wire.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem


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


_BLOCK: Final = 4 << 20
_MAGIC_AT: Final = 20
_HEADER_FAULT: Final = "batch header at byte 0 "


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch whose header is sound."""

    position: int
    header: BatchHeader
    data: bytes
    """All of it."""
    fault: str | None
    """The fault of its body; None: its CRC is right."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bytes that belong to no batch."""

    position: int
    size: int
    reason: str
    zeros: bool
    """Nothing but zeros: room reserved ahead, or a hole that a crash left."""


Piece: TypeAlias = StoredBatch | Unreadable


def read_segment(files: FileSystem, handle: int, start: int, end: int) -> Iterator[Piece]:
    """Everything from byte `start`, where a batch begins, to `end`, in order and without a gap. Raises OSError."""
    block, block_at = b"", start
    at = start
    while at < end:
        if at + HEADER_SIZE > block_at + len(block):
            block, block_at = files.read(handle, min(_BLOCK, end - at), at), at
        place = at - block_at
        try:
            header = parse_header(block[place : place + HEADER_SIZE])
        except CorruptData as error:
            reason = f"no batch begins there: its header {str(error).removeprefix(_HEADER_FAULT)}"
        else:
            if at + header.size <= end:
                if place + header.size > len(block):
                    block, block_at, place = files.read(handle, max(min(_BLOCK, end - at), header.size), at), at, 0
                data = block[place : place + header.size]
                yield StoredBatch(at, header, data, _fault(data, header))
                at += header.size
                continue
            reason = f"a batch of {header.size} bytes begins there, and {end - at} bytes are left"
        following = _next_header(files, handle, at + 8, end)
        yield Unreadable(at, following - at, reason, only_zeros(files, handle, at, following))
        at = following


def _fault(data: bytes, header: BatchHeader) -> str | None:
    try:
        verify_body(data, 0, header)
    except CorruptData as error:
        return str(error)
    return None


def _next_header(files: FileSystem, handle: int, at: int, end: int) -> int:
    """Where the next sound header begins; `end` when there is none. Batches begin at multiples of 8."""
    while at + HEADER_SIZE <= end:
        block = files.read(handle, min(_BLOCK, end - at), at)
        words = np.frombuffer(block, "<u4", len(block) // 4)
        # Magic and the zero after it are the low half of the sixth word; the length before it is a multiple of 8.
        magic = np.flatnonzero((words[5::2] & 0xFFFF == MAGIC) & (words[4::2][: len(words[5::2])] & 7 == 0))
        for candidate in (magic * 8).tolist():
            try:
                header = parse_header(block[candidate : candidate + HEADER_SIZE])
            except CorruptData:
                continue
            if at + candidate + header.size <= end:
                return int(at + candidate)
        at += max(len(block) - HEADER_SIZE + 8, 8)
    return end
