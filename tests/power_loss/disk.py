"""A tree of files and folders in memory that loses unsynced writes in a power cut. The mount serves it.

It promises less than any real file system does, so programs on it can rely only on these promises:

    fsync, fdatasync of a file     its bytes and its length as they were when the call began; not its name
    fsync of a folder              the names in it and their files; not the content of the files
    everything else                is lost, kept, or, where chance decides, kept in part: see
                                   `tests.simulation.machines.disk`

A rename within a folder is one change: after a cut the old name is there, or the new one. Between folders it is two.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from random import Random
from typing import NamedTuple, TypeAlias

from tests.simulation.machines.disk import Change, DiskFile, Survival, surviving_names, surviving_writes

Node: TypeAlias = "File | Folder"
Finish: TypeAlias = Callable[[], None]
"""Makes the changes durable that were pending when a sync began. To be called when its time has passed."""


class Losses(NamedTuple):
    """Unsynced changes that a power cut took."""

    bytes: int
    """Written to files that are there."""
    names: int
    """Made, removed, changed."""


@dataclass(eq=False)
class File:
    disk: DiskFile = field(default_factory=DiskFile)
    changed_ns: int = 0
    settled: int = 0
    """Changes that are no longer pending, synced or lost."""

    def begin_sync(self) -> Finish:
        end = self.settled + len(self.disk.pending)

        def finish() -> None:
            if end > self.settled:
                self.disk.sync(end - self.settled)
                self.settled = end

        return finish

    def lose_power(self, how: Survival, rng: Random) -> Losses:
        written = _written(self.disk.pending)
        kept = surviving_writes(self.disk.pending, how, rng)
        self.settled += len(self.disk.pending)
        self.disk.crash(lambda _: kept)
        return Losses(written - _written(kept), 0)


@dataclass(eq=False)
class Folder:
    now: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    pending: list[dict[str, Node | None]] = field(default_factory=list)
    """Changes of names, in order; each whole or not at all. None: the name goes."""
    settled: int = 0

    def change(self, names: dict[str, Node | None]) -> None:
        self.pending.append(names)
        _apply(self.now, names)

    def begin_sync(self) -> Finish:
        end = self.settled + len(self.pending)

        def finish() -> None:
            if end > self.settled:
                self._settle(end - self.settled)

        return finish

    def _settle(self, changes: int) -> None:
        for names in self.pending[:changes]:
            _apply(self.synced, names)
        del self.pending[:changes]
        self.settled += changes

    def lose_power(self, how: Survival, rng: Random) -> Losses:
        """With everything in it."""
        self._settle(surviving_names(len(self.pending), how, rng))
        names = len(self.pending)
        self.settled += names
        self.pending.clear()
        self.now = dict(self.synced)
        below = [node.lose_power(how, rng) for _, node in sorted(self.now.items())]
        return Losses(sum(lost.bytes for lost in below), names + sum(lost.names for lost in below))


class Disk:
    """Raises OSError as the operating system does. Paths are absolute, of this tree."""

    def __init__(self) -> None:
        self.root = Folder()

    # ---- names

    def node(self, path: str) -> Node:
        found: Node = self.root
        for name in PurePosixPath(path).parts[1:]:
            if not isinstance(found, Folder):
                raise _error(errno.ENOTDIR)
            if name not in found.now:
                raise _error(errno.ENOENT)
            found = found.now[name]
        return found

    def folder(self, path: str) -> Folder:
        found = self.node(path)
        if not isinstance(found, Folder):
            raise _error(errno.ENOTDIR)
        return found

    def _place(self, path: str) -> tuple[Folder, str]:
        place = PurePosixPath(path)
        return self.folder(str(place.parent)), place.name

    def add(self, path: str, node: Node) -> None:
        folder, name = self._place(path)
        if name in folder.now:
            raise _error(errno.EEXIST)
        folder.change({name: node})

    def unlink(self, path: str) -> None:
        folder, name = self._place(path)
        if isinstance(self.node(path), Folder):
            raise _error(errno.EISDIR)
        folder.change({name: None})

    def rmdir(self, path: str) -> None:
        folder, name = self._place(path)
        if self.folder(path).now:
            raise _error(errno.ENOTEMPTY)
        folder.change({name: None})

    def rename(self, old: str, new: str) -> None:
        node = self.node(old)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        replaced = target.now.get(new_name)
        if isinstance(replaced, Folder) and replaced.now:
            raise _error(errno.ENOTEMPTY)
        if source is target:
            source.change({old_name: None, new_name: node})
        else:
            target.change({new_name: node})
            source.change({old_name: None})

    # ---- bytes

    @staticmethod
    def write(file: File, data: bytes, position: int, now_ns: int) -> None:
        file.disk.change(position, data)
        file.changed_ns = now_ns

    @staticmethod
    def truncate(file: File, length: int, now_ns: int) -> None:
        file.disk.change(length, None)
        file.changed_ns = now_ns

    # ---- power

    def lose_power(self, how: Survival, rng: Random) -> Losses:
        return self.root.lose_power(how, rng)


def _written(changes: list[Change]) -> int:
    return sum(len(data) for _, data in changes if data is not None)


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
