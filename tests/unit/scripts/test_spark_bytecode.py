"""Zip files with bytecode: what is in them, and that Python takes it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from scripts.spark_bytecode import add_bytecode


def imported(path: Path, module: str) -> str:
    """Value of `module.VALUE`, and whether its code came from bytecode."""
    program = f"import {module} as m; print(m.VALUE, m.__cached__ is None, m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(path)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return done.stdout


def test_modules_of_a_zip_file_are_taken_from_bytecode(tmp_path: Path) -> None:
    path = tmp_path / "library.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("package/__init__.py", "VALUE = 1\n")
        zipped.writestr("package/inner.py", "VALUE = 2\n")
        zipped.writestr("package/inner.pyc", b"of another Python")
        zipped.writestr("package/broken.py", "VALUE =\n")
        zipped.writestr("package/tests/test_inner.py", "VALUE = 3\n")
        zipped.writestr("package/data.txt", "text")
    path.chmod(0o640)
    add_bytecode(path)
    with zipfile.ZipFile(path) as zipped:
        assert sorted(zipped.namelist()) == [
            "package/__init__.py",
            "package/__init__.pyc",
            "package/broken.py",
            "package/data.txt",
            "package/inner.py",
            "package/inner.pyc",
            "package/tests/test_inner.py",
        ]
        assert zipped.read("package/data.txt") == b"text"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["library.zip"]
    assert imported(path, "package").startswith("1 ")
    found = imported(path, "package.inner")
    assert found.startswith("2 ")
    assert found.strip().endswith(".pyc")


def test_a_file_with_bytecode_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "library.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("module.py", "VALUE = 1\n")
    add_bytecode(path)
    before = path.stat()
    add_bytecode(path)
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
