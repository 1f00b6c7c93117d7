"""The real file system behind its port, and the bounded handles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.storage.files import REAL_FILES, ReadHandles, RealFiles

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[list[Path]]:
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        path.write_text(path.name)
    before = open_handles()
    yield paths
    assert open_handles() == before, "handles were left open"


def test_a_write_that_is_taken_in_pieces_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [b"".join(parts)[:5]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: pwrite(fd, part[:3], at))
    handle = REAL_FILES.open(tmp_path / "file", write=True, create=True)
    REAL_FILES.write(handle, [b"abc", b"defgh", memoryview(b"ijklmnop"), b"q"], 2)
    REAL_FILES.close(handle)
    assert (tmp_path / "file").read_bytes() == b"\0\0abcdefghijklmnopq"


def test_a_folder_is_made_also_where_its_empty_parent_is_removed_meanwhile(tmp_path: Path) -> None:
    parent = tmp_path / "stream"

    class RemovedOnce(RealFiles):
        was_removed = False

        def sync_directory(self, path: Path) -> None:
            super().sync_directory(path)
            if not self.was_removed:
                parent.rmdir()
                self.was_removed = True

    files = RemovedOnce()
    files.make_directory(parent / "partition")
    assert files.was_removed
    assert (parent / "partition").is_dir()


def test_only_an_empty_folder_is_removed_as_one(tmp_path: Path) -> None:
    (tmp_path / "full" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "full" / "inner", target_is_directory=True)
    for name in ("full", "file", "link", "missing"):
        REAL_FILES.remove_empty_directory(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]
    REAL_FILES.remove_empty_directory(tmp_path / "full" / "inner")
    assert list((tmp_path / "full").iterdir()) == []


def test_handles_are_kept_up_to_the_capacity_the_oldest_closed_first(paths: list[Path]) -> None:
    handles = ReadHandles(REAL_FILES, capacity=2)
    numbers = []
    for path in [*paths[:3], paths[2], paths[1], paths[0]]:
        with handles.borrow(path) as handle:
            assert REAL_FILES.read(handle, 10, 0) == path.name.encode()
            numbers.append(handle)
    assert numbers[2] == numbers[3]
    assert numbers[1] == numbers[4]
    handles.close()


def test_two_at_once_do_not_share_and_only_one_is_kept(paths: list[Path]) -> None:
    handles = ReadHandles(REAL_FILES, capacity=5)
    with handles.borrow(paths[0]) as first, handles.borrow(paths[0]) as second:
        assert first != second
    with handles.borrow(paths[0]) as again:
        assert again in (first, second)
    handles.close()


def test_a_forgotten_path_is_opened_anew_also_when_it_was_lent(paths: list[Path]) -> None:
    handles = ReadHandles(REAL_FILES, capacity=5)
    with handles.borrow(paths[0]):
        paths[0].unlink()
        paths[0].write_text("new")
        handles.forget(paths[0])
        with handles.borrow(paths[0]) as handle:
            assert REAL_FILES.read(handle, 10, 0) == b"new"
    with handles.borrow(paths[0]) as handle:
        assert REAL_FILES.read(handle, 10, 0) == b"new"
    handles.close()


def test_the_boot_id_is_the_content_of_a_file_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "boot"
    assert RealFiles(file).boot_id() == ""
    file.write_text("first\n")
    assert RealFiles(file).boot_id() == "first"
