"""Large modules and classes say in their docstrings why they are so large."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("wire", "metadata", "dataplane", "tidelog", "spark_connector", "scripts", "tests")
MOST_LINES, MOST_METHODS = 600, 30
SAID_OF_A_MODULE = "more than 600 lines because"
SAID_OF_A_CLASS = "more than thirty methods because"


def test_large_modules_and_classes_say_why() -> None:
    silent: list[str] = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        module, lines = ast.parse(text), text.count("\n")
        if lines > MOST_LINES and not _says(module, SAID_OF_A_MODULE):
            silent.append(f"{name}: {lines} lines")
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                if methods > MOST_METHODS and not _says(node, SAID_OF_A_CLASS):
                    silent.append(f"{name}: {node.name} with {methods} methods")
    assert not silent, "\n".join(silent)


def _says(node: ast.Module | ast.ClassDef, words: str) -> bool:
    return words in " ".join((ast.get_docstring(node) or "").split())
