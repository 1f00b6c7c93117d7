"""Damage: bytes of a log that were written and synced here, and have changed since.

The facts about it (`Damage`), and the mark that outlives the process. The file `damaged` is written, durably, as soon
as damage is met, by its finder: a reader, the scrubber, a follower that refuses a batch, an open. While it is
there the log opens for reading only, nothing of it is cut, and the replica counts as unsound: a restart forgets
nothing. It goes when the damage has been cut out, which needs the replica to be out of the ISR (or an operator's word).

Only that the mark exists counts. Its text is for the eyes of an operator, so damage to the mark itself changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.log.checkpoints import read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.files import FileSystem
    from wire.types import Offset

MARK_FILE = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Where a log stops being as it was written. `sound_end` <= `known_end`."""

    file: str
    """Name of the segment in which the sound part ends; "" where the log has no segment."""
    first_byte: int
    """Everything before it in that file was read and checked."""
    sound_end: Offset
    """Exclusive: every record below it is sound, up to the log's start."""
    known_end: Offset
    """Exclusive: records were durable or committed here up to there, as far as is known."""
    reason: str
    """One sentence."""


def set_mark(files: FileSystem, directory: Path, reason: str) -> None:
    """Durable on return. An earlier mark stays: the first damage is the one to tell of. Raises OSError."""
    path = directory / MARK_FILE
    if read_file(files, path) is None:
        replace_file(files, path, f"{reason}\n".encode())


def read_mark(files: FileSystem, directory: Path) -> str | None:
    """Why the log counts as damaged; None: it does not. Raises OSError."""
    content = read_file(files, directory / MARK_FILE)
    if content is None:
        return None
    return content.decode("utf-8", "replace").strip() or "it was marked as damaged in an earlier life of the process"


def remove_mark(files: FileSystem, directory: Path) -> None:
    """Durably. Raises OSError."""
    files.remove(directory / MARK_FILE)
    files.sync_directory(directory)
