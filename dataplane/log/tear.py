"""Is what ends a log the end of a write that a crash broke off, or is it damage?

After a loss of power nobody can tell by looking: of what was not synced any part may be missing. When the operating
system went on (the process alone was killed) every byte that it took is still there, so one thing only can stand at the
end of the last segment: the beginning of a batch whose rest was never written.
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
