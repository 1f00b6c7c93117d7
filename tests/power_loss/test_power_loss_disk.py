"""The disk of the power-loss tests keeps its promises, and not a byte more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.power_loss.cluster import POWER, why_not
from tests.power_loss.disk import Disk, File, Folder, Losses


def disk_with(path: str, synced: bytes) -> tuple[Disk, File]:
    disk, file = Disk(), File()
    disk.add(path, file)
    disk.write(file, synced, 0, 0)
    file.begin_sync()()
    disk.root.begin_sync()()
    return disk, file


def content(disk: Disk, path: str) -> bytes:
    file = disk.node(path)
    assert isinstance(file, File)
    return bytes(file.disk.content)


def test_unsynced_writes_are_gone() -> None:
    disk, file = disk_with("/log", b"synced")
    disk.write(file, b" and not", 6, 0)
    disk.truncate(file, 3, 0)
    assert content(disk, "/log") == b"syn"
    assert disk.lose_power("nothing", Random(1)) == Losses(bytes=8, names=0)
    assert content(disk, "/log") == b"synced"


def test_a_sync_covers_the_writes_before_its_beginning() -> None:
    disk, file = disk_with("/log", b"")
    disk.write(file, b"before", 0, 0)
    finish = file.begin_sync()
    disk.write(file, b"after", 6, 0)
    finish()
    disk.lose_power("nothing", Random(1))
    assert content(disk, "/log") == b"before"


def test_a_sync_that_was_under_way_when_power_was_lost_ends_without_effect() -> None:
    disk, file = disk_with("/log", b"")
    disk.write(file, b"before", 0, 0)
    finish = file.begin_sync()
    disk.lose_power("nothing", Random(1))
    disk.write(file, b"in the next life", 0, 0)
    finish()
    disk.lose_power("nothing", Random(1))
    assert content(disk, "/log") == b""


def test_the_sync_of_a_file_does_not_keep_its_name() -> None:
    disk, file = Disk(), File()
    disk.add("/log", file)
    disk.write(file, b"synced", 0, 0)
    file.begin_sync()()
    assert disk.lose_power("nothing", Random(1)).names == 1
    assert not disk.root.now


def test_a_rename_is_whole_or_has_not_been() -> None:
    for seed in range(20):
        disk, _ = disk_with("/old", b"content")
        disk.add("/new", File())
        disk.root.begin_sync()()
        disk.rename("/old", "/new")
        disk.lose_power("random", Random(seed))
        assert sorted(disk.root.now) in (["new"], ["new", "old"])
        assert content(disk, "/old" if "old" in disk.root.now else "/new") == b"content"


def test_a_folder_is_lost_with_all_that_was_synced_in_it() -> None:
    disk, inner = Disk(), Folder()
    disk.add("/a", inner)
    disk.add("/a/b", File())
    inner.begin_sync()()
    disk.lose_power("nothing", Random(1))
    assert not disk.root.now


def test_a_removed_file_is_back() -> None:
    disk, _ = disk_with("/log", b"content")
    disk.unlink("/log")
    disk.lose_power("nothing", Random(1))
    assert content(disk, "/log") == b"content"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path / "disk"
    folder.mkdir()
    process = subprocess.Popen([sys.executable, "-m", "tests.power_loss.mount", str(folder)])
    try:
        deadline = time.monotonic() + 60
        while not folder.is_mount():
            assert process.poll() is None and time.monotonic() < deadline, "not mounted"  # noqa: PT018 - one thing
            time.sleep(0.01)
        yield folder
    finally:
        subprocess.run([shutil.which("fusermount3") or "fusermount", "-u", "-z", str(folder)], check=False)
        process.wait(60)


def test_the_mounted_disk_loses_power(mounted: Path) -> None:
    path = mounted / "folder" / "log"
    path.parent.mkdir()
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, b"durable", 0)
    os.fdatasync(handle)
    for folder in (path.parent, mounted):
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
    os.pwrite(handle, b"in the page cache", 7)
    (mounted / "folder" / "other").write_bytes(b"x")
    path.rename(mounted / "folder" / "renamed")
    os.ftruncate(handle, 3)
    assert os.pread(handle, 100, 0) == b"dur"
    os.close(handle)
    os.setxattr(mounted, POWER, b"nothing 1")
    assert json.loads(os.getxattr(mounted, POWER)) == {"bytes": 17, "names": 2}
    assert [found.name for found in path.parent.iterdir()] == ["log"]
    assert path.read_bytes() == b"durable"


def test_a_file_without_a_name_is_still_written_and_read(mounted: Path) -> None:
    """As the log does while a reader holds a segment that was removed."""
    handle = os.open(mounted / "log", os.O_RDWR | os.O_CREAT)
    os.pwrite(handle, b"content", 0)
    (mounted / "log").unlink()
    assert list(mounted.iterdir()) == []
    os.ftruncate(handle, 4)
    os.pwrite(handle, b"!", 4)
    os.fdatasync(handle)
    assert os.pread(handle, 100, 0) == b"cont!"
    os.close(handle)
