"""The manifest of a data folder: which logs it must hold, and how far each of them was committed and durable here.

    tidelog manifest 2
    generation 417
    flights-7/0-1 5000 3 5120 4096     folder of the log, high watermark, leader epoch of the record before it,
                                       recovery point, log start
    crc32c 5a3fd1b2

A log proves that it is sound by its own files. These are lost together with the rest of its folder, and an older copy
of the folder brings older ones with it: such a log would be taken for one that never held more. The manifest lies
outside of the folders of logs, so it tells: a log that it names and whose folder is missing or empty, that ends below
its high watermark or recovery point here, or whose record before the high watermark was written in another leader
epoch, has lost records that were committed or durable.

Offset and leader epoch of one record prove all records before it: two logs that agree on them hold the same up to there
(Raft's log matching; `dataplane.replica.derived.epochs`). So no other identity of a log is needed.

    complete            an entry is durable before the first append to its log, and its log's folder before the entry.
                        So a log without an entry has acknowledged nothing, and an entry without a folder is a loss
    never ahead         an entry is raised to what is durable in the log
    lowered first       a log is cut below its entry, or begun anew below it, only when the lower entry is durable

It is the checkpoint of all logs, too (`dataplane.log.storage.checkpoints`): a log has a file of its own for that only
once it does not begin at 0 any more. All entries are in one file, which is replaced as a whole: once a second for all
logs whose high watermark has moved (`dataplane.broker.upkeep.hw_checkpoints`), for all logs that are made at a time,
and for each rare cut below an entry. The same is written to a copy first, which is read where the manifest is missing,
damaged or older: no log says for itself how far it reached.

`is_lost`: the files were there once (`broker.json` says so), and both are missing or damaged. Then nothing
distinguishes a log that was lost from one that this broker never had. Nothing is written before the metadata knows of
that (`settled`): a crash in between would make the manifest look complete.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from dataplane.log.storage.checkpoints import encode_lines, read_lines, replace_file
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem

MANIFEST_FILE = "manifest"
MANIFEST_COPY_FILE = "manifest.copy"
"""Written first: it is read where the other one is missing, damaged or older."""

_VERSION = 2
_NOT_KNOWN = "-"


class Committed(NamedTuple):
    """How far a log was committed and durable here."""

    high_watermark: Offset
    """Exclusive."""
    leader_epoch: LeaderEpoch
    """That of the record before it; 0: there is none, or it is not known."""
    recovery_point: Offset | None = None
    """Exclusive: everything below it was durable. None: it is not known, for the manifest was lost, or an earlier
    version wrote it; what the log's own checkpoint says counts."""
    log_start_offset: Offset = Offset(0)
    """Where the first segment begins. Means nothing without a recovery point."""

    @property
    def vouched_end(self) -> Offset:
        """Exclusive: everything below it was durable or committed here, or was removed for its age."""
        return max(self.high_watermark, self.recovery_point or Offset(0), self.log_start_offset)

    def raised(self, other: Committed) -> Committed:
        """The larger of each."""
        further = max(self, other, key=lambda each: each.high_watermark)
        points = [each.recovery_point for each in (self, other) if each.recovery_point is not None]
        return Committed(
            further.high_watermark,
            further.leader_epoch,
            max(points, default=None),
            max(self.log_start_offset, other.log_start_offset),
        )


NOTHING_KNOWN = Committed(Offset(0), LeaderEpoch(0))


class _Found(NamedTuple):
    generation: int
    """Larger in what was written later."""
    entries: dict[str, Committed]


def read_manifest(files: FileSystem, directory: Path) -> dict[str, Committed] | None:
    """The entries in the data folder `directory`; None: both files are missing or damaged. Raises OSError."""
    found = _read(files, directory)
    return None if found is None else found.entries


def _read(files: FileSystem, directory: Path) -> _Found | None:
    path = directory / MANIFEST_FILE
    if (lines := read_lines(files, path, version=1)) is not None:  # an earlier version wrote it, and no copy
        return _Found(0, dict(_entry_of_version_1(line) for line in lines))
    found = [
        _Found(int(lines[0].removeprefix("generation ")), dict(map(_entry, lines[1:])))
        for name in (MANIFEST_FILE, MANIFEST_COPY_FILE)
        if (lines := read_lines(files, directory / name, title=MANIFEST_FILE, version=_VERSION)) is not None
    ]
    return max(found, key=lambda each: each.generation, default=None)


def _entry_of_version_1(line: str) -> tuple[str, Committed]:
    name, high_watermark, epoch = line.rsplit(" ", 2)
    return name, Committed(Offset(int(high_watermark)), LeaderEpoch(int(epoch)))


def _entry(line: str) -> tuple[str, Committed]:
    name, high_watermark, epoch, point, start = line.rsplit(" ", 4)
    known = None if point == _NOT_KNOWN else Offset(int(point))
    return name, Committed(Offset(int(high_watermark)), LeaderEpoch(int(epoch)), known, Offset(int(start)))


def _line(name: str, committed: Committed) -> str:
    end, epoch, point, start = committed
    return f"{name} {end} {epoch} {_NOT_KNOWN if point is None else point} {start}"


class Manifest:
    """The manifest of one data folder. Thread-safe; `write` and `sync` block."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        found: Mapping[str, Committed],
        *,
        generation: int = 0,
        is_lost: bool = False,
    ) -> None:
        self._files = files
        self._directory = directory
        self._path = directory / MANIFEST_FILE
        self._entries = dict(found)
        self._generation = generation
        """That of the newest write. Under `_writing`."""
        self.is_lost = is_lost
        """Nothing is written: see the module's text."""
        self._lock = threading.Lock()
        """Held for the entries, never while one blocks."""
        self._writing = threading.Lock()
        self._changes = 1
        """The first write puts the file in order, whatever was found."""
        self._written = 0
        """Value of `_changes` at the newest write."""

    @classmethod
    def found(cls, files: FileSystem, directory: Path) -> Manifest:
        """The one in the data folder `directory`. Raises OSError."""
        found = _read(files, directory)
        if found is None:
            return cls(files, directory, {}, is_lost=True)
        return cls(files, directory, found.entries, generation=found.generation)

    def entry(self, name: str) -> ManifestEntry:
        """`name`: the log's folder below the data folder."""
        return ManifestEntry(self, name)

    @property
    def names(self) -> list[str]:
        with self._lock:
            return list(self._entries)

    @property
    def is_due(self) -> bool:
        """It has changed since it was written."""
        return not self.is_lost and self._changes != self._written

    def settled(self) -> None:
        """The metadata knows which logs this broker does not hold."""
        self.is_lost = False

    # Keeps R22.
    def committed(self, name: str) -> Committed | None:
        with self._lock:
            return self._entries.get(name)

    def put(self, name: str, committed: Committed) -> None:
        """Durable with the next write."""
        with self._lock:
            if self._entries.get(name) != committed:
                self._entries[name] = committed
                self._changes += 1

    def remove(self, name: str) -> None:
        """Durable with the next write."""
        with self._lock:
            if self._entries.pop(name, None) is not None:
                self._changes += 1

    def write(self) -> None:
        """Makes all changes up to now durable. Of threads that come while one writes, one writes for all of them.
        Raises OSError; the file is as it was."""
        with self._writing:
            with self._lock:
                if not self.is_due:
                    return
                changes = self._changes
                entries = list(self._entries.items())
            generation = self._generation + 1
            lines = (f"generation {generation}", *(_line(name, committed) for name, committed in entries))
            content = encode_lines(MANIFEST_FILE, lines, version=_VERSION)
            replace_file(self._files, self._directory / MANIFEST_COPY_FILE, content)
            self._generation = generation
            replace_file(self._files, self._path, content)
            self._written = changes

    def sync(self) -> Offset:
        """`write`, as a `Syncable`; the offset says nothing. Raises NoSpace, LogDamaged."""
        try:
            self.write()
        except OSError as error:
            reason = f"writing {self._path} failed: {error}"
            raise (NoSpace if is_no_space(error) else LogDamaged)(reason) from error
        return Offset(0)


class ManifestEntry:
    """That of one log."""

    __slots__ = ("_name", "manifest")

    def __init__(self, manifest: Manifest, name: str) -> None:
        self.manifest = manifest
        self._name = name

    @property
    def committed(self) -> Committed | None:
        """None: there is no entry."""
        return self.manifest.committed(self._name)

    def add(self) -> None:
        """The log is there. Durable with the next write of the manifest."""
        if self.committed is None:
            self.manifest.put(self._name, NOTHING_KNOWN)

    def raise_to(self, committed: Committed) -> None:
        """The log is durable and committed so far. Durable with the next write of the manifest."""
        known = self.committed
        if known is not None:
            self.manifest.put(self._name, known.raised(committed))

    def replace(self, committed: Committed) -> None:
        """Before the log is cut. Durable on return. Raises OSError; the entry is as it was, for nothing is cut,
        and the next attempt has to write it."""
        known = self.committed
        self.manifest.put(self._name, committed)
        try:
            self.manifest.write()
        except OSError:
            if known is not None:
                self.manifest.put(self._name, known)
            raise

    def remove(self) -> None:
        """The log is to be removed. Durable with the next write of the manifest."""
        self.manifest.remove(self._name)
