"""A disk in memory that can lose the same data as a real one: `dataplane.log.storage.files.FileSystem` with faults.

Per file it knows the synced content and the changes since; per folder, the names that were synced and the changes
since.

    death of a process     its handles and locks are gone; everything written stays (the page cache)
    loss of power          of unsynced changes nothing survives, everything, everything but half of the last write,
                           or chance decides: of writes any subset, torn anywhere; of names a prefix

Folders appear and move at once and durably: `make_directory` promises it, and only whole partitions are ever moved.

A crash inside a system call: `crash_in(n)` counts the calls that change something; the n-th does its work, or not, and
does not return.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX
from dataplane.log.recovery.damage import MARK_FILE, QUARANTINE
from dataplane.log.segments.index import decode_entries
from dataplane.log.storage.checkpoints import TEMPORARY_SUFFIX, read_file
from dataplane.log.storage.data_dir import IDENTITY_FILE
from dataplane.log.storage.files import Space
from dataplane.log.storage.manifest import read_manifest
from wire.batch import iter_batches
from wire.errors import CorruptData
from wire.types import Buffer

Change: TypeAlias = tuple[int, bytes | None]
"""(position, bytes), or (length, None) for a change of length."""
Survival: TypeAlias = Literal["nothing", "everything", "all but half of the last write", "random"]
SURVIVALS: tuple[Survival, ...] = ("nothing", "everything", "all but half of the last write", "random")


AMPLE = 1 << 40
"""Capacity of a disk that never runs full, in bytes."""


class PowerLoss(BaseException):
    """Raised by a call in which power is lost. Not an Exception: nothing in the log may catch it."""


def surviving_writes(pending: list[Change], how: Survival, rng: Random) -> list[Change]:
    """The unsynced changes of one file that survive a loss of power, in the order made."""

    def torn(change: Change, where: float) -> Change:
        position, data = change
        return change if data is None else (position, data[: int(len(data) * where)])

    if how == "nothing":
        return []
    if how == "everything":
        return pending
    if how == "all but half of the last write":
        return [*pending[:-1], *(torn(change, 0.5) for change in pending[-1:])]
    kept = [torn(change, rng.random()) if rng.random() < 0.3 else change for change in pending]
    return [change for change in kept if rng.random() < 0.6]


def surviving_names(changes: int, how: Survival, rng: Random) -> int:
    """How many of the first `changes` of the names in one folder that were not synced a loss of power leaves."""
    return {"nothing": 0, "random": rng.randint(0, changes)}.get(how, changes)


@dataclass(eq=False, slots=True)
class DiskFile:
    content: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    """Not synced yet."""
    flipped: dict[int, int] = field(default_factory=dict)
    """Position -> the byte there with its flipped bit, until something else is written there."""
    masks: dict[int, int] = field(default_factory=dict)
    """Position -> the bit."""

    @staticmethod
    def _apply(content: bytearray, position: int, data: bytes | None) -> None:
        if data is None:
            del content[position:]
            content.extend(bytes(position - len(content)))
        else:
            if position > len(content):
                content.extend(bytes(position - len(content)))
            content[position : position + len(data)] = data

    def flip(self, position: int, bit: int) -> None:
        """On the disk and in the page cache. Not in a part that was cut off and may come back with a loss of power."""
        if position >= len(self.content):
            return
        mask = 1 << bit
        for content in (self.content, self.synced):
            if position < len(content):
                content[position] ^= mask
        self.masks[position] = self.masks.get(position, 0) ^ mask
        self.flipped[position] = self.content[position]

    def correct(self) -> None:
        """Flipped bits are as they were; called once more, they are flipped again."""
        for position, mask in self.masks.items():
            for content in (self.content, self.synced):
                if position < len(content):
                    content[position] ^= mask

    def _forget_flips(self) -> None:
        gone = [at for at, wrong in self.flipped.items() if at >= len(self.content) or self.content[at] != wrong]
        gone += [at for at, mask in self.masks.items() if not mask]
        for at in set(gone):
            del self.flipped[at], self.masks[at]

    def change(self, position: int, data: bytes | None) -> None:
        end = 1 << 62 if data is None else position + len(data)
        for at in [at for at in self.flipped if position <= at < end]:
            del self.flipped[at], self.masks[at]
        self.pending.append((position, data))
        self._apply(self.content, position, data)

    def sync(self, changes: int | None = None) -> None:
        """Syncs the first `changes` pending ones; all of it unless given. Bits that flipped in the page cache meanwhile
        are written as they are there."""
        for position, data in self.pending[:changes]:
            self._apply(self.synced, position, data)
            for at, mask in self.masks.items():
                if data is not None and position <= at < position + len(data):
                    self.synced[at] ^= mask
        del self.pending[:changes]

    def crash(self, survives: Callable[[list[Change]], list[Change]]) -> None:
        for position, data in survives(self.pending):
            self._apply(self.synced, position, data)
        self.pending.clear()
        self.content = bytearray(self.synced)
        self._forget_flips()

    def copy(self) -> DiskFile:
        return DiskFile(bytearray(self.content), bytearray(self.synced), self.pending[:])


@dataclass(eq=False, slots=True)
class _Folder:
    now: dict[str, DiskFile] = field(default_factory=dict)
    synced: dict[str, DiskFile] = field(default_factory=dict)
    changes: list[tuple[str, DiskFile | None]] = field(default_factory=list)

    def files(self) -> list[DiskFile]:
        """All that a loss of power may leave, each once, in an order of their own."""
        found = [*self.synced.values(), *(file for _, file in self.changes if file is not None), *self.now.values()]
        return list(dict.fromkeys(found))

    def copy(self) -> _Folder:
        copies = {file: file.copy() for file in self.files()}
        return _Folder(
            {name: copies[file] for name, file in self.now.items()},
            {name: copies[file] for name, file in self.synced.items()},
            [(name, None if file is None else copies[file]) for name, file in self.changes],
        )


class SimDisk:
    """See the module. `crash`: the exception raised by a call in which power is lost."""

    def __init__(self, *, crash: type[BaseException] = PowerLoss) -> None:
        self._crash = crash
        self.calls = 0
        """That changed something."""
        self.crash_at = -1
        """The number of the call that power is lost in; -1: none."""
        self.capacity = AMPLE
        """Bytes. A write that does not fit fails with ENOSPC after the part that fits."""
        self.before_call: Callable[[], None] = lambda: None
        """Called at the beginning of every call that changes something."""
        self.before_sync: Callable[[], None] = lambda: None
        """Called at the beginning of every call that waits for the disk."""
        self.failing_syncs = 0
        """So many syncs of data fail with EIO."""
        self.has_failed = False
        """Some call failed, or a read returns other bytes than were written."""
        self.harmed_snapshots: set[Path] = set()
        """Folders of logs that had a bit flipped in a snapshot."""
        self.losses = 0
        """How often it has lost unsynced writes, or all of its content, or damage was cut out of a log."""
        self._is_as_written = False
        self._boot = 1
        self._folders: dict[Path, _Folder] = {Path("/"): _Folder()}
        self._open: dict[int, DiskFile] = {}
        self._locked: dict[Path, int] = {}
        self._next_handle = 3

    # ---- faults

    def crash_in(self, calls: int) -> None:
        self.crash_at = self.calls + calls

    def kill_process(self) -> None:
        """The handles and locks of its process are gone."""
        self._open.clear()
        self._locked.clear()
        self.crash_at = -1

    def lose_power(self, how: Survival, rng: Random) -> None:
        self.losses += 1
        for folder in self._folders.values():
            changes = folder.changes
            for name, file in changes[: surviving_names(len(changes), how, rng)]:
                _rename(folder.synced, name, file)
            changes.clear()
            folder.now = dict(folder.synced)
            for file in folder.now.values():
                file.crash(lambda pending: surviving_writes(pending, how, rng))
        self.kill_process()
        self._boot += 1

    def copy(self) -> SimDisk:
        """As it is now, for another process."""
        other = SimDisk(crash=self._crash)
        other.capacity, other._boot = self.capacity, self._boot
        other._folders = {path: folder.copy() for path, folder in self._folders.items()}
        return other

    def is_synced(self, path: Path) -> bool:
        """All of that file, and its name, outlive a loss of power."""
        folder = self._folders[path.parent]
        file = folder.now.get(path.name)
        return file is not None and not file.pending and folder.synced.get(path.name) is file

    def durable(self, path: Path) -> bytearray | None:
        """What a loss of power leaves of that file where nothing survives that was not synced; None: no file."""
        folder = self._folders.get(path.parent)
        file = None if folder is None else folder.synced.get(path.name)
        return None if file is None else file.synced

    def unsynced(self) -> list[int]:
        """The pieces that a loss of power may take: of each folder with unsynced names the number of their
        changes, which survive up to some point, and 1 for each file with unsynced bytes."""
        folders = self._folders.values()
        names = [len(folder.changes) for folder in folders if folder.changes]
        return names + [1 for folder in folders for file in folder.files() if file.pending]

    def lose_power_leaving(self, kept: Sequence[int]) -> None:
        """Of each piece of `unsynced` so much survives."""
        rest = iter(kept)
        names = {id(folder): next(rest) for folder in self._folders.values() if folder.changes}
        files = [file for folder in self._folders.values() for file in folder.files() if file.pending]
        for file, whole in zip(files, rest, strict=True):
            file.crash(lambda pending, whole=whole: pending if whole else [])  # type: ignore[misc]
        for folder in self._folders.values():
            for name, renamed in folder.changes[: names.get(id(folder), 0)]:
                _rename(folder.synced, name, renamed)
            folder.changes.clear()
            folder.now = dict(folder.synced)
        self.kill_process()
        self._boot += 1

    def wipe(self) -> None:
        """Another disk, empty."""
        self.losses += 1
        self.kill_process()
        self._folders = {Path("/"): _Folder()}

    def lose(self, path: Path, *, emptied: bool = False) -> None:
        """A file, or a folder with all that is in it, is gone while no process runs. `emptied`: the folders stay."""
        self.has_failed = True
        self.losses += 1
        for folder in [folder for folder in self._folders if path in (folder, *folder.parents)]:
            if emptied:
                self._folders[folder] = _Folder()
            else:
                del self._folders[folder]
        around = self._folders[path.parent]
        for names in (around.now, around.synced):
            names.pop(path.name, None)
        around.changes.clear()
        around.synced = dict(around.now)

    def restore(self, path: Path, older: SimDisk) -> None:
        """A file or a folder is as it was on a copy of this disk, while no process runs."""
        self.lose(path)
        for folder, names in older._folders.items():
            if path in (folder, *folder.parents):
                self._folders[folder] = names.copy()
        before = older._folders[path.parent].now.get(path.name)
        if before is not None:
            around = self._folders[path.parent]
            around.now[path.name] = around.synced[path.name] = before.copy()

    def flip_bit(self, path: Path, position: int, bit: int) -> None:
        """In a file at rest or in use."""
        self.has_failed = True
        self._file(path).flip(position, bit)
        if path.suffix == SNAPSHOT_SUFFIX:
            self.harmed_snapshots.add(path.parent)

    def flipped_below(self, path: Path) -> list[Path]:
        """Files that hold flipped bits, sorted; files in quarantine are left out."""
        return sorted(
            folder / name
            for folder, names in self._folders.items()
            if path in (folder, *folder.parents) and QUARANTINE not in folder.parts
            for name, file in names.now.items()
            if file.flipped and not name.endswith(TEMPORARY_SUFFIX)
        )

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Inside, no bit is flipped: for checks that compare with the written bytes."""
        if self._is_as_written:
            yield
            return
        self._is_as_written = True
        files = [file for names in self._folders.values() for file in names.now.values() if file.masks]
        for file in files:
            file.correct()
        try:
            yield
        finally:
            self._is_as_written = False
            for file in files:
                file.correct()

    def synced(self, path: Path) -> bytearray:
        """Content of that file on stable storage."""
        return self._file(path).synced

    def files_below(self, path: Path) -> list[tuple[Path, int]]:
        """(path, size), sorted."""
        return sorted(
            (folder / name, len(file.content))
            for folder, names in self._folders.items()
            if path in (folder, *folder.parents)
            for name, file in names.now.items()
        )

    def _step(self) -> bool:
        """True in the call that does not return."""
        self.before_call()
        self.calls += 1
        if 0 <= self.crash_at < self.calls - 1:
            raise self._crash
        return self.calls - 1 == self.crash_at

    def _file(self, path: Path) -> DiskFile:
        folder = self._folders.get(path.parent)
        file = folder.now.get(path.name) if folder is not None else None
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return file

    def _opened(self, handle: int) -> DiskFile:
        file = self._open.get(handle)
        if file is None:
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        return file

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(len(file.content) for folder in self._folders.values() for file in folder.now.values())

    def _room(self) -> int:
        return self.capacity - self.used if self.capacity < AMPLE else AMPLE

    # ---- FileSystem

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        try:
            file = self._file(path)
        except FileNotFoundError:
            if not create or path.parent not in self._folders:
                raise
            if self._room() <= 0:
                raise OSError(errno.ENOSPC, "No space left on device") from None
            crashes = self._step()
            file = DiskFile()
            self._change_name(path, file)
            if crashes:
                raise self._crash from None
        self._next_handle += 1
        self._open[self._next_handle] = file
        return self._next_handle

    def close(self, handle: int) -> None:
        self._open.pop(handle, None)
        self._locked = {path: by for path, by in self._locked.items() if by != handle}

    def size(self, handle: int) -> int:
        return len(self._opened(handle).content)

    def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
        data = b"".join(parts)
        lacking = max(0, position + len(data) - len(self._opened(handle).content)) - max(0, self._room())
        if lacking > 0:
            self._change(handle, position, data[: max(0, len(data) - lacking)])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._change(handle, position, data)

    def truncate(self, handle: int, size: int) -> None:
        self._change(handle, size, None)

    def preallocate(self, handle: int, position: int, size: int) -> None:
        if position + size - len(self._opened(handle).content) > max(0, self._room()):
            raise OSError(errno.ENOSPC, "No space left on device")
        self._change(handle, position + size, None)

    def _change(self, handle: int, position: int, data: bytes | None) -> None:
        crashes = self._step()
        file = self._opened(handle)
        file.change(position, data)
        if crashes:
            raise self._crash

    def read(self, handle: int, size: int, position: int) -> bytes:
        return bytes(self._opened(handle).content[position : position + size])

    def forget_cached(self, handle: int, position: int, size: int) -> None:
        pass

    def sync_data(self, handle: int) -> None:
        self.before_sync()
        if self._step():
            raise self._crash
        if self.failing_syncs:
            self.failing_syncs -= 1
            # As in Linux, a page that could not be written stays readable, counts as clean and is never written again.
            self._opened(handle).pending.clear()
            self.has_failed = True
            raise OSError(errno.EIO, "Input/output error")
        self._opened(handle).sync()

    def sync_data_of_each(self, handles: Sequence[int]) -> list[OSError | None]:
        return [self._sync_error(handle) for handle in handles]

    def most_synced_at_once(self) -> int:
        return 4

    def _sync_error(self, handle: int) -> OSError | None:
        try:
            self.sync_data(handle)
        except OSError as error:
            return error
        return None

    def sync_all(self, handle: int) -> None:
        self.sync_data(handle)

    def names(self, directory: Path) -> list[str]:
        folder = self._folders.get(directory)
        if folder is None:
            return []
        return sorted({*folder.now, *(path.name for path in self._folders if path.parent == directory != path)})

    def is_directory(self, path: Path) -> bool:
        return path in self._folders

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        for directory in (*reversed(path.parents), path):
            if directory not in self._folders:
                if self._step():
                    raise self._crash
                self._folders[directory] = _Folder()

    def sync_directory(self, path: Path) -> None:
        if self._step():
            raise self._crash
        folder = self._folders[path]
        folder.synced = dict(folder.now)
        folder.changes.clear()

    def rename(self, source: Path, target: Path) -> None:
        if source in self._folders:
            if self._step():
                raise self._crash
            for path in [path for path in self._folders if source in (path, *path.parents)]:
                self._folders[target / path.relative_to(source)] = self._folders.pop(path)
            return
        crashes = self._step()
        file = self._file(source)
        if source.parent == target.parent:
            # One change: a rename is atomic. The old name goes with the new one's coming.
            name = f"{source.name}\0{target.name}"
            folder = self._folders[source.parent]
            folder.changes.append((name, file))
            _rename(folder.now, name, file)
        else:
            self._change_name(target, file)
            self._change_name(source, None)
        if crashes:
            raise self._crash

    def remove(self, path: Path) -> None:
        folder = self._folders.get(path.parent)
        if folder is not None and path.name in folder.now:
            crashes = self._step()
            self._change_name(path, None)
            if crashes:
                raise self._crash

    def _change_name(self, path: Path, file: DiskFile | None) -> None:
        if QUARANTINE in path.parts:
            self.losses += 1
        folder = self._folders[path.parent]
        folder.changes.append((path.name, file))
        _rename(folder.now, path.name, file)

    def remove_tree(self, path: Path) -> None:
        for directory in [directory for directory in self._folders if path in (directory, *directory.parents)]:
            if self._step():
                raise self._crash
            del self._folders[directory]

    def remove_empty_directory(self, path: Path) -> None:
        if path in self._folders and not self.names(path):
            crashes = self._step()
            if not self.names(path):
                del self._folders[path]
            if crashes:
                raise self._crash

    def lock(self, path: Path) -> int | None:
        if path in self._locked:
            return None
        handle = self.open(path, write=True, create=True)
        self._locked[path] = handle
        return handle

    def space(self, path: Path) -> Space:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return Space(self.capacity, max(0, self._room()))

    def boot_id(self) -> str:
        return f"boot-{self._boot}"


def _rename(names: dict[str, DiskFile], name: str, file: DiskFile | None) -> None:
    source, _, target = name.partition("\0")
    if file is None or target:
        names.pop(source, None)
    if file is not None:
        names[target or source] = file


def is_nothing_torn(disk: SimDisk, data: Path) -> bool:
    """Whether the next start will know that all that was written is there: then it can tell damage anywhere."""
    identity = json.loads(read_file(disk, data / IDENTITY_FILE) or b"{}")
    return bool(identity.get("clean") or identity.get("boot_id") == disk.boot_id())


def damageable_files(disk: SimDisk, data: Path) -> list[tuple[Path, int]]:
    """(path, size) of the files of partitions."""
    return [
        (path, size)
        for path, size in disk.files_below(data)
        if path.parent != data and size and QUARANTINE not in path.parts and path.name != MARK_FILE
    ]


def vouched_places(disk: SimDisk, data: Path) -> list[tuple[Path, int, int]]:
    """(log file, position, end) of batches that the manifest vouches for, and that the next open will look at. Damage
    before them is found when it is read; damage behind them cannot be told from the end that a crash leaves."""
    places = []
    entries = read_manifest(disk, data) or {}
    newest = {path.parent: (path, size) for path, size in disk.files_below(data) if path.suffix == ".log"}
    for path, size in newest.values():
        entry = entries.get(str(path.parent.relative_to(data)))
        index = read_file(disk, path.with_suffix(".index")) or b""
        start = max((entry.position for entry in decode_entries(index)), default=0)
        handle = disk.open(path)
        content = disk.read(handle, size, 0)
        disk.close(handle)
        try:
            for position, header in iter_batches(content[start:]):
                if entry is not None and header.end_offset <= (entry.recovery_point or 0):
                    places.append((path, start + position, start + position + header.size))
        except CorruptData:
            continue
    return places
