"""The two small files beside the segments that say what is known of them.

`replication-offset-checkpoint`: the high watermark; the recovery point: every byte below it is on stable storage, so
that recovery has nothing to look for there; and the log start, below which retention removed what there was.
`leader-epoch-checkpoint`: the leader epochs and where each begins.

Both are text for the eyes of an operator, a line per fact, the CRC-32C of everything before it as the last line:

    tidelog leader-epoch-checkpoint 1
    1 0
    3 40
    crc32c 5a3fd1b2

They are written as a temporary file, fsync, rename, fsync of the folder: after a crash the old content or the new one
is there, never a mixture. A file that is missing or damaged reads as None: the log then finds out for itself by
scanning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from dataplane.replica.epochs import EpochEntry, LeaderEpochCache
from wire.errors import InvariantViolation
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dataplane.log.files import FileSystem

OFFSETS_FILE = "replication-offset-checkpoint"
EPOCHS_FILE = "leader-epoch-checkpoint"
TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is being written. One found at start is of a crash, and is removed."""

_VERSION = 1


class OffsetCheckpoint(NamedTuple):
    """`high_watermark` and `recovery_point` are exclusive ends."""

    high_watermark: Offset
    recovery_point: Offset
    """Everything below it was synced when this was written."""
    log_start_offset: Offset | None = None
    """Where the first segment begins: what lies below it is garbage, and a log that begins above it has lost records.
    None: the checkpoint does not say (the log is just being dropped, or an earlier version wrote it)."""

    @property
    def vouched_end(self) -> Offset:
        """Exclusive: everything below it was durable or committed here, or was removed for its age."""
        return max(self.high_watermark, self.recovery_point, self.log_start_offset or Offset(0))


def read_file(files: FileSystem, path: Path) -> bytes | None:
    """The whole content; None when there is no such file."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)


def replace_file(files: FileSystem, path: Path, content: bytes) -> None:
    """Durably and all at once. Raises OSError, and `path` is as it was."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    handle = files.open(temporary, write=True, create=True)
    try:
        files.truncate(handle, 0)
        files.write(handle, [content], 0)
        files.sync_all(handle)
    finally:
        files.close(handle)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


def read_offsets(files: FileSystem, directory: Path) -> OffsetCheckpoint | None:
    lines = _read(files, directory / OFFSETS_FILE)
    if lines is None:
        return None
    facts = dict(line.split(" ", 1) for line in lines)
    start = facts.get("log_start_offset")
    return OffsetCheckpoint(
        Offset(int(facts["high_watermark"])),
        Offset(int(facts["recovery_point"])),
        Offset(int(start)) if start is not None else None,
    )


def write_offsets(files: FileSystem, directory: Path, checkpoint: OffsetCheckpoint) -> None:
    facts = checkpoint._asdict().items()
    _write(files, directory / OFFSETS_FILE, (f"{name} {value}" for name, value in facts if value is not None))


def read_epochs(files: FileSystem, directory: Path) -> tuple[EpochEntry, ...] | None:
    lines = _read(files, directory / EPOCHS_FILE)
    if lines is None:
        return None
    try:
        pairs = (line.split(" ", 1) for line in lines)
        return LeaderEpochCache(EpochEntry(LeaderEpoch(int(e)), Offset(int(start))) for e, start in pairs).entries
    except InvariantViolation:  # its CRC is right and its content cannot be: found by scanning, like a damaged one
        return None


def write_epochs(files: FileSystem, directory: Path, entries: Iterable[EpochEntry]) -> None:
    _write(files, directory / EPOCHS_FILE, (f"{entry.epoch} {entry.start}" for entry in entries))


def remove_epochs(files: FileSystem, directory: Path) -> None:
    """Durably. Before a log is dropped: an empty file would vouch that segments not removed yet have no epochs."""
    files.remove(directory / EPOCHS_FILE)
    files.sync_directory(directory)


def _title(path: Path) -> str:
    return f"tidelog {path.name} {_VERSION}"


def _write(files: FileSystem, path: Path, lines: Iterable[str]) -> None:
    body = "".join(f"{line}\n" for line in (_title(path), *lines)).encode("ascii")
    replace_file(files, path, b"%scrc32c %08x\n" % (body, crc32c(body)))


def _read(files: FileSystem, path: Path) -> list[str] | None:
    """The lines between title and CRC; None when the file is missing, damaged or of another version."""
    content = read_file(files, path)
    if content is None:
        return None
    body, mark, crc = content.rpartition(b"crc32c ")
    if not mark or crc != b"%08x\n" % crc32c(body):
        return None
    title, *lines = body.decode("ascii").splitlines()
    return lines if title == _title(path) else None
