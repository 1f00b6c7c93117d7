"""Links in README.md and docs/ lead to files, and to headings in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.*)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """As GitHub makes it: lower case, without punctuation, a hyphen for each space."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """(file, anchor or "") of each link that does not leave the project."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if "://" not in target:
            file, _, heading = target.partition("#")
            yield (page.parent / file if file else page).resolve(), heading


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for file, heading in links(page):
        assert file.exists(), file
        if heading:
            anchors = {anchor(found) for found in _HEADING.findall(_CODE.sub("", file.read_text()))}
            assert heading in anchors, f"{file.name}#{heading}"


def test_anchors() -> None:
    assert anchor("5. What an acknowledgement is worth") == "5-what-an-acknowledgement-is-worth"
    assert anchor("`[storage]`: the disk, and `move-leader`") == "storage-the-disk-and-move-leader"
