"""What users import has docstrings, and the API reference that is made of them has all of it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path

import pytest

from scripts.reference.api_reference import MODULES, members, public

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.__name__))
def test_every_public_name_has_a_docstring(module: object) -> None:
    silent = []
    for name, found in public(module).items():  # type: ignore[arg-type]
        if not inspect.getdoc(found):
            silent.append(name)
        if inspect.isclass(found) and not issubclass(found, Enum):
            silent += [f"{name}.{member}" for member, each in members(found) if not inspect.getdoc(each)]
    assert not silent


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        if tag == "a":
            self.links.add(found.get("href") or "")


@pytest.mark.slow
def test_the_reference_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "scripts.reference.api_reference", str(tmp_path)],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {}
    for path in tmp_path.rglob("*.html"):
        pages[path] = _Anchors()
        pages[path].feed(path.read_text())
    assert pages
    for module in MODULES:
        page = tmp_path / f"{module.__name__.replace('.', '/')}.html"
        for name, found in public(module).items():
            assert name in pages[page].ids
            if inspect.isclass(found) and not issubclass(found, (Enum, Exception)):
                assert {f"{name}.{member}" for member, _ in members(found)} <= pages[page].ids
                assert f"{name}.__init__" not in pages[page].ids
    for path, page_links in pages.items():
        for link in page_links.links:
            file, _, anchor = link.partition("#")
            if "://" in link or not link:
                continue
            target = (path.parent / file).resolve() if file else path
            assert target in pages, (path, link)
            assert not anchor or anchor in pages[target].ids, (path, link)
