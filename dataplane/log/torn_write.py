"""Tells a torn write at the end of a log from damage.

After a loss of power the two cannot be told apart: any part of the bytes that were not synced may be missing. When the
operating system went on (only the process was killed) every byte that it took is still there, so only one thing can
stand at the end of the last segment: the beginning of a batch whose rest was never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.batch import HEADER_SIZE, parse_header
from wire.errors import CorruptData

if TYPE_CHECKING:
    from dataplane.log.files import FileSystem


def is_cut_short(files: FileSystem, handle: int, position: int, end: int, previous_end: int) -> bool:
    """Whether the file holds, from byte `position` to its end, the beginning of a batch and nothing else. The log in
    front of it ends at offset `previous_end`. Raises OSError."""
    if end - position < HEADER_SIZE:
        return True
    try:
        header = parse_header(files.read(handle, HEADER_SIZE, position))
    except CorruptData:
        return False
    return header.base_offset >= previous_end and end - position < header.size
