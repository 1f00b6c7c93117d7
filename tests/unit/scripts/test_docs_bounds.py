"""The table of bounds names modules, codes and counters that there are."""

# Rules: R36.

from __future__ import annotations

import re
from pathlib import Path

from scripts.reference.docs_bounds import bounds
from wire.errors import Code

ROOT = Path(__file__).resolve().parents[3]
BOUNDS = bounds()


def test_each_bound_is_there_once_and_kept_by_a_module() -> None:
    assert len({what for what, *_ in BOUNDS}) == len(BOUNDS) > 60
    assert any("`held_appends`" in what for what, *_ in BOUNDS), "one that a module declares"
    for bound in BOUNDS:
        assert (ROOT / bound[2].strip("`")).is_file(), bound
        assert "{" not in "".join(bound), bound


def test_each_code_is_of_the_error_table() -> None:
    for bound in BOUNDS:
        for code in re.findall(r"[A-Z_]{4,}", bound[3]):
            assert code in Code.__members__, bound


def test_each_counter_is_counted() -> None:
    code = "".join(
        path.read_text() for room in ("dataplane", "metadata", "tidelog") for path in (ROOT / room).rglob("*.py")
    )
    for bound in BOUNDS:
        counter = bound[4].strip("`")
        assert counter == "none" or re.search(rf"\b{counter}\b", code), bound
