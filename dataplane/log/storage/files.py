"""The one port through which the log meets the file system, and a bounded cache of handles for reading.

Every system call of this package goes through a `FileSystem`, so that a test can lose unsynced bytes, tear the last
write, or fail an fsync at any of them. A handle is an int, as in the operating system.

After a power loss a caller may rely on the following and no more:
  - bytes written to a file: once `sync_data` or `sync_all` of that file returned, or `sync_data_of_each` named no error
    for it;
  - its length after `truncate`: once `sync_all` of that file returned;
  - that a file exists, is gone, or has a new name: once `sync_directory` of its folder returned.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dataplane.log.storage.side_by_side import most_at_once, sync_each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wire.types import Buffer

LINUX_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_IOV_MAX = 1024
"""Most buffers that one pwritev takes (Linux)."""


_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})


def is_no_space(error: OSError) -> bool:
    """The system refused to take more: a disk that is full, over a quota, at the limit of a file's size; or no more
    open files. Nothing was written, and it passes."""
    return error.errno in _NO_SPACE


_NO_EMPTY_DIRECTORY = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY})
"""What rmdir says of a folder that holds something, of none, of a file or a link, and of a mount point."""


class Space(NamedTuple):
    """The space of a file system, in bytes."""

    total: int
    free: int
    """Bytes that this process may still use."""


class FileSystem(Protocol):
    """The file system as the log needs it. All methods raise OSError; the implementation retries nothing,
    except that `make_directory` begins anew when a parent that was empty is removed meanwhile."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """A handle. `create` makes the file when it is missing, `write` allows writing."""

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int:
        """Length of the file in bytes."""

    def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
        """All of `parts`, one after the other, from `position` on."""

    def read(self, handle: int, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position` on; fewer only where the file ends."""

    def forget_cached(self, handle: int, position: int, size: int) -> None:
        """Hints that synced bytes need not stay in memory: the next read of them comes from the disk."""

    def sync_data(self, handle: int) -> None:
        """Bytes, and the length needed to read them, are on stable storage."""

    def sync_data_of_each(self, handles: Sequence[int]) -> list[OSError | None]:
        """`sync_data` of several files, side by side where the system can. Returns the error of each, in their order;
        None: its bytes are on stable storage."""

    def most_synced_at_once(self) -> int:
        """Files that `sync_data_of_each` syncs side by side in the calling thread. 1: it syncs one after the other."""

    def sync_all(self, handle: int) -> None:
        """As `sync_data`, and every other property of the file."""

    def truncate(self, handle: int, size: int) -> None: ...

    def preallocate(self, handle: int, position: int, size: int) -> None:
        """Reserves room; the file grows to position + size and reads as zeros there."""

    def names(self, directory: Path) -> list[str]:
        """The names in a folder, sorted; empty when it does not exist."""

    def is_directory(self, path: Path) -> bool: ...

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        """With its parents, durably; unless `durably`, its own name is durable after `sync_directory` of its parent. No
        error when it exists."""

    def sync_directory(self, path: Path) -> None: ...

    def rename(self, source: Path, target: Path) -> None:
        """Replaces `target`."""

    def remove(self, path: Path) -> None:
        """No error when it does not exist."""

    def remove_tree(self, path: Path) -> None:
        """A folder with everything in it. No error when it does not exist."""

    def remove_empty_directory(self, path: Path) -> None:
        """Removes a folder that holds nothing at the moment of the call; anything else stays, without an error."""

    def lock(self, path: Path) -> int | None:
        """Takes the exclusive lock on a file that is made when missing; None when another process holds it. Held
        until the handle is closed or the process ends."""

    def space(self, path: Path) -> Space:
        """The space of the file system that holds `path`, which exists."""

    def boot_id(self) -> str:
        """Differs after every start of the operating system; "" where it has none."""


class RealFiles:
    """The operating system's."""

    def __init__(self, boot_id_file: Path = LINUX_BOOT_ID) -> None:
        self._boot_id_file = boot_id_file

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        flags = os.O_RDWR if write else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
        for first in range(0, len(parts), _IOV_MAX):
            group = parts[first : first + _IOV_MAX] if len(parts) > _IOV_MAX else parts
            wanted = sum(map(len, group))
            written = os.pwritev(handle, group, position)
            position += written
            if written < wanted:  # a signal, or the disk is nearly full: the rest, or the error that says why
                position = self._write_rest(handle, group, written, position)

    @staticmethod
    def _write_rest(handle: int, group: Sequence[Buffer], skip: int, position: int) -> int:
        for part in group:
            view = memoryview(part)[skip:]
            skip = max(0, skip - len(part))
            while view:
                written = os.pwrite(handle, view, position)
                position += written
                view = view[written:]
        return position

    def read(self, handle: int, size: int, position: int) -> bytes:
        data = os.pread(handle, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size and (more := os.pread(handle, size - have, position + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def forget_cached(self, handle: int, position: int, size: int) -> None:
        os.posix_fadvise(handle, position, size, os.POSIX_FADV_DONTNEED)

    def sync_data(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_data_of_each(self, handles: Sequence[int]) -> list[OSError | None]:
        return sync_each(handles)

    def most_synced_at_once(self) -> int:
        return most_at_once()

    def sync_all(self, handle: int) -> None:
        os.fsync(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def preallocate(self, handle: int, position: int, size: int) -> None:
        os.posix_fallocate(handle, position, size)

    def names(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not a Path each
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        try:
            self._make_directory(path, durably=durably)
        except FileNotFoundError:  # a parent was empty, and another thread has removed it meanwhile
            self._make_directory(path, durably=durably)

    def _make_directory(self, wanted: Path, *, durably: bool) -> None:
        missing, path = [], wanted
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            with suppress(FileExistsError):
                directory.mkdir()
            if durably or directory != wanted:
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

    def remove_tree(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def remove_empty_directory(self, path: Path) -> None:
        try:
            path.rmdir()
        except OSError as error:
            if error.errno not in _NO_EMPTY_DIRECTORY:
                raise

    def lock(self, path: Path) -> int | None:
        handle = self.open(path, write=True, create=True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            raise
        return handle

    def space(self, path: Path) -> Space:
        found = os.statvfs(path)
        return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)

    def boot_id(self) -> str:
        try:
            return self._boot_id_file.read_text(encoding="ascii").strip()
        except OSError:
            return ""


REAL_FILES: Final = RealFiles()


class ReadHandles:
    """Handles for reading, at most `capacity` kept open, the one unused for longest closed first.

    Thread-safe. One is shared by all logs of a broker, so that thousands of cold segments do not exhaust the handles of
    the process. A handle in use is never closed: with more users at once than `capacity` there are that many open.
    """

    def __init__(self, files: FileSystem, capacity: int) -> None:
        self._files = files
        self._capacity = capacity
        self._lock = threading.Lock()
        self._idle: OrderedDict[Path, int] = OrderedDict()
        self._generation = 0
        """Counts `forget`. A handle that was lent before the latest one may be of a removed file: closed when
        returned."""

    @contextmanager
    def borrow(self, path: Path) -> Iterator[int]:
        """A handle for `path`, open for reading, for the `with` block. Raises OSError."""
        with self._lock:
            handle = self._idle.pop(path, None)
            generation = self._generation
        if handle is None:
            handle = self._files.open(path)
        try:
            yield handle
        finally:
            self._give_back(path, handle, generation)

    def _give_back(self, path: Path, handle: int, generation: int) -> None:
        surplus = None
        with self._lock:
            if path in self._idle or generation != self._generation:
                surplus = handle
            else:
                self._idle[path] = handle
                if len(self._idle) > self._capacity:
                    _, surplus = self._idle.popitem(last=False)
        if surplus is not None:
            self._files.close(surplus)

    def forget(self, path: Path) -> None:
        """Forgets the handle of `path`, which is being removed or replaced: the next borrower opens a new one."""
        with self._lock:
            self._generation += 1
            handle = self._idle.pop(path, None)
        if handle is not None:
            self._files.close(handle)

    def close(self) -> None:
        """Closes the idle handles; lent ones are closed when they come back."""
        with self._lock:
            self._generation += 1
            handles = list(self._idle.values())
            self._idle.clear()
        for handle in handles:
            self._files.close(handle)
