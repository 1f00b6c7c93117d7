"""The table of bounds names modules, codes and counters that there are."""

# Rules: R36.

from __future__ import annotations

import re
from pathlib import Path

from scripts.reference.docs_bounds import BOUNDS
from wire.errors import Code

ROOT = Path(__file__).resolve().parents[3]


def test_each_bound_is_kept_by_a_module() -> None:
    for bound in BOUNDS:
        assert (ROOT / bound.where).is_file(), bound


def test_each_code_is_of_the_error_table() -> None:
    for bound in BOUNDS:
        for code in re.findall(r"[A-Z_]{4,}", bound.answer):
            assert code in Code.__members__, bound


def test_each_counter_is_counted() -> None:
    code = "".join(
        path.read_text() for room in ("dataplane", "metadata", "tidelog") for path in (ROOT / room).rglob("*.py")
    )
    for bound in BOUNDS:
        assert not bound.counter or re.search(rf"\b{bound.counter}\b", code), bound
