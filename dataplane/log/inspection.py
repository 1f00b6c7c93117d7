"""Reading a segment file as it lies there, for an operator's eyes: every batch that can be read, and what cannot.

Unlike `scan.walk`, which ends where the log ends, this goes on behind damage: where a header is not one, the next place
that holds a sound one is looked for. Nothing is judged here, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from dataplane.log.scan import only_zeros
from wire.batch import HEADER_SIZE, MAGIC, BatchHeader, parse_header, verify_body
from wire.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataplane.log.files import FileSystem

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
    """What is wrong with its body; None: its CRC is right."""


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
