"""The one port through which a Raft node meets the file system.

Every system call on the files of the group goes through `RaftFiles`, so that a simulated disk can lose unsynced bytes,
tear the last write, run full, or fail a sync at any of them. A handle is an int, as in the operating system. The port
is the part of `dataplane.log.storage.files` that this package needs; the planes do not know each other.

After a loss of power a caller may rely on the following and no more:
  - bytes written to a file: once `sync_data` or `sync_all` of that file returned;
  - that a file exists, is gone, or has a new name: once `sync_directory` of its folder returned;
  - that a folder exists: once `make_directory` returned.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol


class RaftFiles(Protocol):
    """All methods raise OSError, and retry nothing."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """A handle. `create` makes the file when it is missing, `write` allows writing."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int:
        """Length of the file in bytes."""

    def read(self, handle: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only where the file ends."""

    def write(self, handle: int, parts: Sequence[bytes], position: int) -> None:
        """All of `parts`, one after the other, from `position` on. After an error a part of them may be there."""

    def truncate(self, handle: int, size: int) -> None: ...

    def sync_data(self, handle: int) -> None:
        """Bytes, and the length needed to read them, are on stable storage."""

    def sync_all(self, handle: int) -> None:
        """As `sync_data`, and every other property of the file."""

    def names(self, directory: Path) -> list[str]:
        """The names in a folder, sorted; empty when it does not exist."""

    def make_directory(self, path: Path) -> None:
        """With its parents, durably. No error when it exists."""

    def sync_directory(self, path: Path) -> None:
        """New names, and removed ones, in this folder are on stable storage."""

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target`."""

    def remove(self, path: Path) -> None:
        """No error when it does not exist."""

    def lock(self, path: Path) -> int | None:
        """Takes the exclusive lock on a file that is made when missing; None when another process holds it. Held
        until the handle is closed or the process ends."""


class OperatingSystemFiles:
    """The operating system's. What it makes may be read by its owner only."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, size: int, position: int) -> bytes:
        found = bytearray()
        while len(found) < size and (more := os.pread(handle, size - len(found), position + len(found))):
            found += more
        return bytes(found)

    def write(self, handle: int, parts: Sequence[bytes], position: int) -> None:
        for part in parts:
            view = memoryview(part)
            while view:
                written = os.pwrite(handle, view, position)
                view, position = view[written:], position + written

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync_data(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_all(self, handle: int) -> None:
        os.fsync(handle)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not a Path each
        except FileNotFoundError:
            return []

    def make_directory(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with suppress(FileExistsError):
                directory.mkdir()
            self.sync_directory(directory.parent)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def lock(self, path: Path) -> int | None:
        handle = self.open(path, write=True, create=True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return handle


OS_FILES: Final = OperatingSystemFiles()


def read_file(files: RaftFiles, path: Path) -> bytes | None:
    """The whole content; None: there is no such file. Raises OSError."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)


def open_emptied(files: RaftFiles, path: Path) -> int:
    """A handle for writing a file anew, from its beginning. Raises OSError."""
    handle = files.open(path, write=True, create=True)
    try:
        if files.size(handle):
            files.truncate(handle, 0)
    except BaseException:
        files.close(handle)
        raise
    return handle


def write_synced(files: RaftFiles, path: Path, data: bytes) -> None:
    """The file holds `data`, on stable storage; its name is not synced. Raises OSError."""
    handle = open_emptied(files, path)
    try:
        files.write(handle, (data,), 0)
        files.sync_all(handle)
    finally:
        files.close(handle)
