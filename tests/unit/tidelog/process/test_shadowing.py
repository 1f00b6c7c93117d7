"""A user's own file that hides one of our packages is told by its path."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """In `folder`, which comes first on sys.path, as a script's own folder does."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def test_nothing_is_said_where_nothing_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()  # a folder without __init__.py hides nothing
    (tmp_path / "other.py").write_text("")
    done = python(tmp_path, "import tidelog; tidelog.connect; import tidelog.server.config")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["wire.py", "wire/__init__.py"])
def test_a_file_that_hides_the_wire_format_is_named_at_the_import(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    done = python(tmp_path, "import tidelog")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {file} hides the package 'wire' of Tidelog")


@pytest.mark.parametrize("package", ["metadata", "dataplane"])
def test_a_file_that_hides_a_plane_is_named_and_stops_brokers_only(tmp_path: Path, package: str) -> None:
    file = tmp_path / f"{package}.py"
    file.write_text("")
    done = python(tmp_path, "import tidelog; print(tidelog.connect)")
    assert done.returncode == 0, "clients need no plane"
    assert f"no broker can run in this process: {file} hides the package '{package}'" in done.stderr
    assert "<string>:1: UserWarning" in done.stderr, "it points at the import"
    done = python(tmp_path, "import tidelog.server.config")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {file} hides the package '{package}'")


def test_a_module_that_was_imported_before_is_seen_too(tmp_path: Path) -> None:
    done = python(tmp_path, "import sys, types; sys.modules['wire'] = types.ModuleType('wire'); import tidelog")
    assert done.returncode == 1
    assert "hides the package 'wire' of Tidelog" in done.stderr
