"""The lock files satisfy pyproject.toml, have hashes, and name no package index."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ("requirements.lock", "requirements-build.lock", "requirements-server.lock")


def locked(lock: str) -> dict[str, set[Version]]:
    """Name -> versions; more than one where they depend on the Python or the platform."""
    pins: dict[str, set[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE):
        pins.setdefault(canonicalize_name(name), set()).add(Version(version))
    return pins


def asked_for() -> Iterator[tuple[str, Requirement]]:
    """Lock -> each requirement that it has to meet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for text in project["dependencies"]:
        yield "requirements.lock", Requirement(text)
        yield "requirements-server.lock", Requirement(text)
    for extra, requirements in extras.items():
        for text in requirements:
            yield "requirements.lock", Requirement(text)
            if extra == "build":
                yield "requirements-build.lock", Requirement(text)


@pytest.mark.parametrize(
    ("lock", "requirement"), [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in asked_for()]
)
def test_the_lock_meets_the_requirement(lock: str, requirement: Requirement) -> None:
    versions = locked(lock).get(canonicalize_name(requirement.name), set())
    assert versions, f"{requirement.name} is not in {lock}: run scripts/lock"
    assert all(version in requirement.specifier for version in versions), f"{lock} has {versions}: run scripts/lock"


@pytest.mark.parametrize("lock", LOCKS[1:])
def test_a_smaller_lock_agrees_with_the_whole_one(lock: str) -> None:
    whole = locked("requirements.lock")
    assert {name: versions for name, versions in locked(lock).items() if versions != whole.get(name)} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash_and_no_lock_has_an_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    pinned = [entry for entry in entries if re.match(r"[A-Za-z0-9._-]+==", entry)]
    assert len(pinned) >= 5
    assert [entry for entry in pinned if "--hash=sha256:" not in entry] == []
