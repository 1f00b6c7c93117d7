"""Docstrings of the product, also those below fields, begin with a verb or with what the thing is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("wire", "metadata", "dataplane", "tidelog", "spark_connector", "examples")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_docstring_begins_with_of() -> None:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name)
    bare = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(paths)
        for line, text in docstrings(path)
        if text.startswith("Of ")
    ]
    assert not bare, "\n".join(bare)
