"""Links in README.md and docs/ lead to files and headings; the maps name every package, and files that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
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


PRODUCT = ("wire", "metadata", "dataplane", "tidelog", "spark_connector")


def packages() -> Iterator[str]:
    for package in PRODUCT:
        for module in sorted((ROOT / package).rglob("__init__.py")):
            yield f"{module.parent.relative_to(ROOT)}/"


def test_the_map_of_the_readme_names_each_package() -> None:
    text = README.read_text()
    listed: set[str] = set()
    path: list[str] = []
    for indent, name in re.findall(r"^((?:  )*)(\w+/) ", text[text.index("## Finding your way") :], re.MULTILINE):
        path[len(indent) // 2 :] = [name]
        listed.add("".join(path))
    assert set(packages()) <= listed, set(packages()) - listed


@pytest.mark.parametrize("package", [*packages()])
def test_modules_that_a_package_names_in_its_map_exist(package: str) -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / package / "__init__.py").read_text(), re.MULTILINE)
    named = re.findall(r"`(\w+\.py)`", "".join(rows))
    absent = [module for module in named if not (ROOT / package / module).exists()]
    assert not absent, absent


def test_the_map_of_the_design_names_each_package() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    rows = set(re.findall(r"^\| `([\w/]+)`", text, re.MULTILINE))
    # Packages that only hold other packages have no row.
    assert set(packages()) - {"dataplane/", "metadata/", "tidelog/"} <= rows, set(packages()) - rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:" + "|".join((*PRODUCT, "tests", "scripts")) + r")/[\w/]+\.(?:py|proto))`", page.read_text()
    )
    absent = [file for file in named if not (ROOT / file).exists()]
    assert not absent, absent


def test_the_map_of_the_design_names_modules_that_are_in_their_rooms() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    rows = re.findall(r"^\| `([\w/]+/)`.*?\|(.*)\|$", text, re.MULTILINE)
    named = [f"{room}{module}" for room, row in rows for module in re.findall(r"`(\w+\.(?:py|proto))`", row)]
    absent = [path for path in named if not (ROOT / path).exists()]
    assert not absent, absent


def is_named(name: str) -> bool:
    """Whether a dotted name is a module or a package, or what one has: a class, a method."""
    place = name.split(".")
    for length in range(len(place), 0, -1):
        path, rest = ROOT.joinpath(*place[:length]), place[length:]
        modules = [*path.glob("*.py")] if path.is_dir() else [path.with_suffix(".py")]
        if modules and modules[0].exists():
            text = "".join(module.read_text() for module in modules)
            return all(re.search(rf"\b{part}\b", text) for part in rest)
    return False


def test_names_of_modules_in_the_code_lead_somewhere() -> None:
    assert is_named("wire.errors.TidelogError.message")
    assert not is_named("wire.errors.NoSuchError")
    pattern = re.compile(rf"`((?:{'|'.join(PRODUCT)})(?:\.(?!py`)\w+)+)`")
    absent = [
        f"{module.relative_to(ROOT)}: {name}"
        for package in PRODUCT
        for module in (ROOT / package).rglob("*.py")
        for name in pattern.findall(module.read_text())
        if not is_named(name)
    ]
    assert not absent, absent
