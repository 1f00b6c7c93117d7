"""The manifest of a data folder: which logs it must hold, and how far each of them was committed here.

    tidelog manifest 1
    flights-7/0-1 5000 3               folder of the log, high watermark, leader epoch of the record before it
    crc32c 5a3fd1b2

A log proves that it is sound by its own small files. These are lost together with the rest of its folder, and an older
copy of the folder brings older ones with it: such a log would be taken for one that never held more. The manifest lies
outside of the folders of logs, so it tells: a log that it names and whose folder is missing or empty, that ends below
its high watermark here, or whose record before the high watermark was written in another leader epoch, has lost
committed records.

Offset and leader epoch of one record prove all records before it: two logs that agree on them hold the same up to there
(Raft's log matching; `dataplane.replica.derived.epochs`). So no other identity of a log is needed.

    complete            an entry is durable before the first append to its log, and its log's folder before the entry.
                        So a log without an entry has acknowledged nothing, and an entry without a folder is a loss
    never ahead         an entry is raised when the checkpoint in the log's folder, which is never ahead of what is
                        durable, is itself durable
    lowered first       a log is cut below its entry, or begun anew below it, only when the lower entry is durable

All entries are in one file, which is replaced as a whole: once for all logs whose checkpoints were written in a round
(`dataplane.broker.upkeep.hw_checkpoints`), for all logs that are made at a time, and for each rare cut below the high
watermark.

`is_lost`: the file was there once (`broker.json` says so), and is missing or damaged. Then nothing distinguishes a log
that was lost from one that this broker never had. Nothing is written before the metadata knows of that
(`settled`): a crash in between would make the manifest look complete.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from dataplane.log.storage.checkpoints import read_lines, write_lines
from dataplane.log.storage.files import is_no_space
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem

MANIFEST_FILE = "manifest"


class Committed(NamedTuple):
    """How far a log was committed here, as far as its checkpoints said."""

    high_watermark: Offset
    """Exclusive."""
    leader_epoch: LeaderEpoch
    """That of the record before it; 0: there is none, or it is not known."""


NOTHING_COMMITTED = Committed(Offset(0), LeaderEpoch(0))


def read_manifest(files: FileSystem, directory: Path) -> dict[str, Committed] | None:
    """The entries in the data folder `directory`; None: the file is missing or damaged. Raises OSError."""
    lines = read_lines(files, directory / MANIFEST_FILE)
    if lines is None:
        return None
    entries = {}
    for line in lines:
        name, high_watermark, epoch = line.rsplit(" ", 2)
        entries[name] = Committed(Offset(int(high_watermark)), LeaderEpoch(int(epoch)))
    return entries


class Manifest:
    """The manifest of one data folder. Thread-safe; `write` and `sync` block."""

    def __init__(
        self, files: FileSystem, directory: Path, found: Mapping[str, Committed], *, is_lost: bool = False
    ) -> None:
        self._files = files
        self._path = directory / MANIFEST_FILE
        self._entries = dict(found)
        self.is_lost = is_lost
        """Nothing is written: see the module's text."""
        self._lock = threading.Lock()
        """Held for the entries, never while one blocks."""
        self._writing = threading.Lock()
        self._changes = 1
        """The first write puts the file in order, whatever was found."""
        self._written = 0
        """Value of `_changes` at the newest write."""

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
            write_lines(self._files, self._path, (f"{name} {end} {epoch}" for name, (end, epoch) in entries))
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
            self.manifest.put(self._name, NOTHING_COMMITTED)

    def raise_to(self, committed: Committed) -> None:
        """The checkpoint in the log's folder says so, durably. Durable with the next write of the manifest."""
        known = self.committed
        if known is not None and committed.high_watermark > known.high_watermark:
            self.manifest.put(self._name, committed)

    def replace(self, committed: Committed) -> None:
        """Before the log is cut. Durable on return. Raises OSError."""
        self.manifest.put(self._name, committed)
        self.manifest.write()

    def remove(self) -> None:
        """The log is to be removed. Durable with the next write of the manifest."""
        self.manifest.remove(self._name)
