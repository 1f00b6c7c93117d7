"""The disk of one broker, mounted: a FUSE file system in a process of its own that loses power on command.

    python -m tests.power_loss.mount FOLDER [--sync-ms 2] [--hangs-while FILE]         serves until it is unmounted

Its power is cut by writing the extended attribute POWER of the mounted folder: `b"nothing 17"` names the survival (see
`tests.simulation.machines.disk.Survival`) and the seed. All users of the disk must be dead by then. Reading the
attribute gives, as JSON, the losses of the last cut.

It hangs while FILE is there: no sync that begins returns before it is gone. A few at a time only: each holds a thread
of libfuse, and there are ten. FILE does not lie on the disk itself: while a folder is synced the kernel locks it, so
whoever told the disk by an attribute of that folder to answer again would wait for the sync, and the sync for him; no
signal ends such a wait, not even SIGKILL. So nobody but brokers may use the disk while it hangs.

The kernel caches nothing of it: reads after a cut return the state that the cut has left.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from mfusepy import FUSE, Operations

from tests.power_loss.disk import Disk, File, Finish, Folder, Losses, Node
from tests.simulation.machines.disk import SURVIVALS

POWER: Final = "user.tidelog.power"
_POLL = 0.02
"""Seconds after which a disk that hangs looks whether it may answer."""
_BLOCK = 4096
_BLOCKS = 1 << 24
"""64 GiB, as reported to statfs."""


class PowerLossFiles(Operations):  # type: ignore[misc] # untyped
    """Answers requests of the kernel from a `Disk`. Threads of libfuse call it; one at a time works on the tree."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, sync_seconds: float, hangs_while: Path | None) -> None:
        self._disk = Disk()
        self._lock = threading.Lock()
        self._open: dict[int, Node] = {}
        self._handles = itertools.count(1)
        self._sync_seconds = sync_seconds
        self._losses = Losses(0, 0)
        self._hangs_while = hangs_while

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        config_3.entry_timeout = config_3.attr_timeout = config_3.negative_timeout = 0.0

    # ---- names

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        with self._lock:
            node = self._node(path, fh)
            if isinstance(node, Folder):
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2, "st_uid": os.getuid(), "st_gid": os.getgid()}
            size = len(node.disk.content)
            return {
                "st_mode": stat.S_IFREG | 0o644,
                "st_nlink": 1,
                "st_uid": os.getuid(),
                "st_gid": os.getgid(),
                "st_size": size,
                "st_blocks": -(-size // 512),
                "st_mtime": node.changed_ns,
                "st_ctime": node.changed_ns,
            }

    def mkdir(self, path: str, mode: int) -> int:
        with self._lock:
            self._disk.add(path, Folder())
        return 0

    def rmdir(self, path: str) -> int:
        with self._lock:
            self._disk.rmdir(path)
        return 0

    def unlink(self, path: str) -> int:
        with self._lock:
            self._disk.unlink(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        with self._lock:
            self._disk.rename(old, new)
        return 0

    def opendir(self, path: str) -> int:
        with self._lock:
            return self._handle(self._disk.folder(path))

    def readdir(self, path: str | None, fh: int) -> Iterable[str]:
        with self._lock:
            return [".", "..", *cast("Folder", self._open[fh]).now]

    def releasedir(self, path: str | None, fh: int) -> int:
        return self.release(path, fh)

    def chmod(self, path: str | None, mode: int) -> int:
        return 0

    def chown(self, path: str | None, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str | None, times: Any = None) -> int:
        return 0

    # ---- files

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        with self._lock:
            file = File(changed_ns=time.time_ns())
            self._disk.add(path, file)
            return self._handle(file)

    def open(self, path: str, flags: int) -> int:
        with self._lock:
            file = self._disk.node(path)
            if flags & os.O_TRUNC and isinstance(file, File):
                self._disk.truncate(file, 0, time.time_ns())
            return self._handle(file)

    def release(self, path: str | None, fh: int) -> int:
        with self._lock:
            self._open.pop(fh, None)
        return 0

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        with self._lock:
            return bytes(self._file(fh).disk.content[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            self._disk.write(self._file(fh), data, offset, time.time_ns())
        return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        with self._lock:
            file = self._node(path, fh)
            if not isinstance(file, File):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            self._disk.truncate(file, length, time.time_ns())
        return 0

    def fallocate(self, path: str | None, mode: int, offset: int, size: int, fh: int) -> int:
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        with self._lock:
            file = self._file(fh)
            if offset + size > len(file.disk.content):
                self._disk.truncate(file, offset + size, time.time_ns())
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        return {
            "f_bsize": _BLOCK,
            "f_frsize": _BLOCK,
            "f_blocks": _BLOCKS,
            "f_bfree": _BLOCKS,
            "f_bavail": _BLOCKS,
            "f_namemax": 255,
        }

    # ---- stable storage

    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        return self._sync(lambda: self._file(fh).begin_sync())

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        return self._sync(lambda: cast("Folder", self._open[fh]).begin_sync())

    def _sync(self, begin: Callable[[], Finish]) -> int:
        """Takes its time, while others write on: their writes are not part of this sync."""
        with self._lock:
            finish = begin()
        while self._hangs_while is not None and self._hangs_while.exists():
            time.sleep(_POLL)
        time.sleep(self._sync_seconds)
        with self._lock:
            finish()
        return 0

    # ---- power

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        how, _, seed = value.decode("ascii").rpartition(" ")
        if name != POWER or path != "/" or how not in SURVIVALS:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        with self._lock:
            self._losses = self._disk.lose_power(how, Random(int(seed)))
        return 0

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        if name != POWER or path != "/":
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
        with self._lock:
            return json.dumps(self._losses._asdict()).encode()

    # ---- handles

    def _handle(self, node: Node) -> int:
        handle = next(self._handles)
        self._open[handle] = node
        return handle

    def _node(self, path: str | None, fh: int | None) -> Node:
        """By its handle where there is one: it may have no name any more."""
        if fh is not None:
            return self._open[fh]
        assert path is not None
        return self._disk.node(path)

    def _file(self, fh: int) -> File:
        return cast("File", self._open[fh])


class _Fuse(FUSE):  # type: ignore[misc] # untyped
    def truncate_fuse_3(self, path: bytes | None, length: int, info: Any) -> int:
        """Of mfusepy, which forgets the handle: a file that has no name any more has no path either."""
        return cast("int", self.ftruncate(path, length, info))


def main() -> None:
    parser = argparse.ArgumentParser(description="A file system that loses power on command.")
    parser.add_argument("folder")
    parser.add_argument("--sync-ms", type=float, default=2.0, help="how long a sync takes (default 2)")
    parser.add_argument("--hangs-while", type=Path, metavar="FILE", help="no sync returns while this file is there")
    given = parser.parse_args()
    hangs_while = given.hangs_while and given.hangs_while.absolute()  # libfuse leaves the working directory
    _Fuse(
        PowerLossFiles(given.sync_ms / 1000, hangs_while),
        given.folder,
        foreground=True,
        fsname="tidelog-power-loss",
        hard_remove=True,
        direct_io=True,
        default_permissions=True,
    )


if __name__ == "__main__":
    main()
