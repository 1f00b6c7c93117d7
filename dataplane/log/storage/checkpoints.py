"""The small files beside the segments: facts that the segments do not tell.

`replication-offset-checkpoint`: the high watermark; the recovery point: every byte below it is on stable storage, so
that recovery has nothing to look for there; and the log start, below which retention removed all records. The manifest
of the data folder (`dataplane.log.storage.manifest`) holds the same of all logs, and newer. This file is written when
the log start moves, before the segments below it go, and before a log is cut below what it says; a log that begins
at 0 has none. One that lies in no data folder has nothing else.
`leader-epoch-checkpoint`: the leader epochs and where each begins. `compaction-checkpoint`: how far the log is
compacted.

All are text for the eyes of an operator, a line per fact, the CRC-32C of everything before it as the last line:

    tidelog leader-epoch-checkpoint 1
    1 0
    3 40
    crc32c 5a3fd1b2

They are written as a temporary file, fsync, rename, fsync of the folder: after a crash the old content or the new one
is there, never a mixture. A file that is missing or damaged reads as None: the log then finds out for itself by
scanning. The manifest has the same form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from wire.errors import InvariantViolation
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem

OFFSETS_FILE = "replication-offset-checkpoint"
EPOCHS_FILE = "leader-epoch-checkpoint"
COMPACTION_FILE = "compaction-checkpoint"
TEMPORARY_SUFFIX = ".tmp"
"""Ends the name of a file that is being written. One found at start is of a crash, and is removed."""

_VERSION = 1


class OffsetCheckpoint(NamedTuple):
    """`high_watermark` and `recovery_point` are exclusive ends."""

    high_watermark: Offset
    recovery_point: Offset
    """Everything below it was synced when this was written."""
    log_start_offset: Offset | None = None
    """Where the first segment begins: bytes below it are garbage, and a log that begins above it has lost records.
    None: the checkpoint does not say (the log is just being dropped, or an earlier version wrote it)."""

    @property
    def vouched_end(self) -> Offset:
        """Exclusive: everything below it was durable or committed here, or was removed for its age."""
        return max(self.high_watermark, self.recovery_point, self.log_start_offset or Offset(0))


class CompactionPoint(NamedTuple):
    """The work of compaction on a log, and its meaning for replicas that copy from it. All exclusive ends.

        settled_end <= clean_end <= deleted_end        deletions_end <= deleted_end

    But for a log whose point was lost, `is_in_doubt`: it is not known which tombstones are gone from it, nor what they
    deleted that may still be here.

    A tombstone (a key without a value) goes when everything below it has been clean for `tombstone_retention_ms`; so
    what it deletes has been gone for as long. A replica that has a part of the log from before, and not the tombstone,
    would keep the deleted value for ever: see `Leader.lacks_deletions`.

    A log that is being copied has a `deleted_end` above its own end: what it will get from there on comes from a log
    that does not hold what those tombstones deleted. That is true of the leader in whose LeaderEpoch the copy was
    begun, and of no other one: see `in_role`.
    """

    clean_end: Offset = Offset(0)
    """Below it there is of each key one record at most, the newest of those below it."""
    settled_end: Offset = Offset(0)
    """Value of `clean_end` at `settled_at_ms`: the tombstones below it are the next to go."""
    settled_at_ms: int = 0
    """The time on which most brokers agreed (R72), since 1970."""
    tombstones: int = 0
    """Left below `clean_end` by the last pass."""
    deletions_end: Offset = Offset(0)
    """Tombstones below it may be missing here."""
    deleted_end: Offset = Offset(0)
    """Records that tombstones below it delete are not here: they were compacted away, or never came."""
    copied_in: LeaderEpoch = LeaderEpoch(0)
    """The LeaderEpoch in which this log was begun anew as a copy of the leader's. 0: it is no copy, or goes on as the
    copy of another leader's log."""

    @property
    def is_in_doubt(self) -> bool:
        """The file was damaged. No tombstone goes until a pass has come above `deletions_end`, which then moves up: so
        replicas that have begun a copy meanwhile are refused, and begin anew."""
        return self.deleted_end < self.deletions_end

    @property
    def copies_deleted_end(self) -> Offset:
        """`deleted_end` of a log that is copied from here from its beginning on: one that is served."""
        return max(self.deleted_end, self.deletions_end)

    # Keeps R39.
    def in_role(self, leader_epoch: LeaderEpoch, log_end: Offset) -> CompactionPoint:
        """The point from the beginning of a role in `leader_epoch` on, whose log ends at `log_end`.

        A copy goes on as before in the LeaderEpoch in which it was begun. Another leader may still hold what was
        deleted in the log from which the copy was begun, and compact it away later, the tombstone too: towards that
        leader only the records of this log count.
        """
        if self.copied_in == leader_epoch or self.deleted_end <= log_end:
            return self
        return self._replace(
            deletions_end=min(self.deletions_end, log_end),
            deleted_end=min(self.deleted_end, log_end),
            copied_in=LeaderEpoch(0),
        )

    def cut(self, end: Offset) -> CompactionPoint:
        """The point of a log that was cut to `end`, with something committed: other records may come there now."""
        return CompactionPoint(
            clean_end=min(self.clean_end, end),
            tombstones=self.tombstones,
            deletions_end=min(self.deletions_end, end),
            deleted_end=min(self.deleted_end, end),
        )

    @classmethod
    def of_copy(cls, deleted_end: Offset, leader_epoch: LeaderEpoch) -> CompactionPoint:
        """The point of an empty log that is to be copied from the leader of `leader_epoch`, in whose log what
        tombstones below `deleted_end` delete is gone."""
        return cls(deletions_end=deleted_end, deleted_end=deleted_end, copied_in=leader_epoch)


NOT_COMPACTED = CompactionPoint()


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
    lines = read_lines(files, directory / OFFSETS_FILE)
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
    write_lines(files, directory / OFFSETS_FILE, (f"{name} {value}" for name, value in facts if value is not None))


def read_epochs(files: FileSystem, directory: Path) -> tuple[EpochEntry, ...] | None:
    lines = read_lines(files, directory / EPOCHS_FILE)
    if lines is None:
        return None
    try:
        pairs = (line.split(" ", 1) for line in lines)
        return LeaderEpochCache(EpochEntry(LeaderEpoch(int(e)), Offset(int(start))) for e, start in pairs).entries
    except InvariantViolation:  # its CRC is right and its content cannot be: found by scanning, like a damaged one
        return None


def write_epochs(files: FileSystem, directory: Path, entries: Iterable[EpochEntry]) -> None:
    write_lines(files, directory / EPOCHS_FILE, (f"{entry.epoch} {entry.start}" for entry in entries))


def remove_epochs(files: FileSystem, directory: Path) -> None:
    """Durably. Before a log is dropped: an empty file would vouch that segments not removed yet have no epochs."""
    files.remove(directory / EPOCHS_FILE)
    files.sync_directory(directory)


def read_compaction(files: FileSystem, directory: Path, high_watermark: Offset) -> CompactionPoint:
    """`high_watermark`: as checkpointed, and not above the end of the log. When the file is damaged everything is to be
    compacted anew, and no tombstone below the HW can be relied on to be here; nothing was compacted above it."""
    lines = read_lines(files, directory / COMPACTION_FILE)
    if lines is not None:
        facts = dict(line.split(" ", 1) for line in lines)
        return CompactionPoint(
            clean_end=Offset(int(facts["clean_end"])),
            settled_end=Offset(int(facts["settled_end"])),
            settled_at_ms=int(facts["settled_at_ms"]),
            tombstones=int(facts["tombstones"]),
            deletions_end=Offset(int(facts["deletions_end"])),
            deleted_end=Offset(int(facts["deleted_end"])),
            copied_in=LeaderEpoch(int(facts.get("copied_in", "0"))),
        )
    if COMPACTION_FILE in files.names(directory):
        return CompactionPoint(deletions_end=high_watermark)
    return CompactionPoint()


def write_compaction(files: FileSystem, directory: Path, point: CompactionPoint) -> None:
    write_lines(files, directory / COMPACTION_FILE, (f"{name} {value}" for name, value in point._asdict().items()))


def is_sound(files: FileSystem, path: Path) -> bool:
    """Whether one of these files is there and can be read."""
    return read_lines(files, path) is not None


def encode_lines(title: str, lines: Iterable[str], *, version: int = _VERSION) -> bytes:
    body = "\n".join((f"tidelog {title} {version}", *lines, "")).encode("ascii")
    return b"%scrc32c %08x\n" % (body, crc32c(body))


def write_lines(files: FileSystem, path: Path, lines: Iterable[str]) -> None:
    replace_file(files, path, encode_lines(path.name, lines))


def read_lines(files: FileSystem, path: Path, *, title: str | None = None, version: int = _VERSION) -> list[str] | None:
    """The lines between title and CRC; None when the file is missing, damaged or of another version. `title`: the name
    of the file, unless it is given."""
    content = read_file(files, path)
    if content is None:
        return None
    body, mark, crc = content.rpartition(b"crc32c ")
    if not mark or crc != b"%08x\n" % crc32c(body):
        return None
    found, *lines = body.decode("ascii").splitlines()
    return lines if found == f"tidelog {title or path.name} {version}" else None
