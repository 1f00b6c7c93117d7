"""scripts/bootstrap names a missing tool in one sentence, and changes nothing when all is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("cat", "cksum", "cmp", "dirname", "head", "rm", "sh")
"""What the script calls besides Python."""
SOURCES = (
    "requirements.lock", "requirements-build.lock", "pyproject.toml", "scripts/bootstrap", "scripts/spark_bytecode.py",
)  # fmt: skip
"""What .venv is made from."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder with the programs that the script calls and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in PROGRAMS:
        found = shutil.which(program)
        assert found, f"this machine has no {program}"
        (folder / program).symlink_to(found)
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def bootstrap(checkout: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(path / "sh"), "scripts/bootstrap"],
        cwd=checkout,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_python_it_says_which_it_needs(checkout: Path, path: Path) -> None:
    done = bootstrap(checkout, path)
    assert done.returncode == 1
    assert done.stderr.startswith("bootstrap: Python 3.11 or newer is needed")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_that_is_too_old_or_only_a_shim_is_passed_over(checkout: Path, path: Path) -> None:
    # The shim that a version manager leaves on PATH for a version that is not selected, and a Python 3.10.
    put(path, "python3", 'echo "python3: command not found" >&2; exit 127')
    put(path, "python3.11", f'exec {sys.executable} -c "import sys; sys.version_info = (3, 10); $(echo "$2")"')
    assert "Python 3.11 or newer is needed" in bootstrap(checkout, path).stderr


def test_a_python_without_venv_is_one_sentence_with_the_remedy(checkout: Path, path: Path) -> None:
    put(path, "python3", f'case "$*" in *"import venv"*) exit 1 ;; esac\nexec {sys.executable} "$@"')
    done = bootstrap(checkout, path)
    assert done.returncode == 1
    assert "python3 has no venv module; install it" in done.stderr
    assert not (checkout / ".venv").exists()


def make_up_to_date(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    put(checkout / ".venv" / "bin", "python", f'exec {sys.executable} "$@"')
    checksums = subprocess.run(
        [
            "cksum",
            "requirements.lock",
            "requirements-build.lock",
            "pyproject.toml",
            "scripts/bootstrap",
            "scripts/spark_bytecode.py",
        ],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (checkout / ".venv" / "bootstrap-stamp").write_text(f"{checkout.resolve()}\n{checksums}")


def test_it_does_nothing_when_the_environment_is_up_to_date(checkout: Path, path: Path) -> None:
    make_up_to_date(checkout)
    done = bootstrap(checkout, path)  # which has no Python, so anything that it tried would fail
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_a_change_of_its_inputs_makes_it_work_again(checkout: Path, path: Path, name: str) -> None:
    make_up_to_date(checkout)
    with (checkout / name).open("a") as file:
        file.write("# changed\n")
    assert bootstrap(checkout, path).returncode == 1


def test_a_checkout_that_moved_is_not_up_to_date(checkout: Path, path: Path) -> None:
    make_up_to_date(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert bootstrap(moved, path).returncode == 1
