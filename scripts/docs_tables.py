"""Write the tables of docs/ that are made from declarations in the code.

Usage: scripts/docs-tables [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. `--check` writes nothing and fails when a
table is out of date. tests/unit/project/test_docs_tables.py checks the same.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from typing import Any

from dataplane.broker.settings import StorageSettings
from dataplane.replica.settings import ReplicaSettings
from metadata.settings import MetadataSettings
from wire.operations import OPERATIONS
from wire.stream_config import SETTINGS

DOCS = Path(__file__).resolve().parent.parent / "docs"
_TABLE = re.compile(r"(<!-- table: (?P<name>[a-z_-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def stream_settings() -> str:
    return _table(
        ("KEY", "values", "default", "meaning", "while a stream is used", "since"),
        (
            (
                f"`{setting.name}`",
                setting.kind.values,
                setting.default_in_words,
                setting.help,
                setting.alterable_in_words,
                setting.since,
            )
            for setting in SETTINGS.values()
        ),
    )


def section(settings: type[Any]) -> Callable[[], str]:
    """Of a section of a broker's configuration: its fields and the docstrings below them."""

    def make() -> str:
        meanings = _field_docstrings(settings)
        return _table(
            ("setting", "default", "meaning"),
            ((f"`{entry.name}`", _spelled(entry.default), meanings[entry.name]) for entry in fields(settings)),
        )

    return make


def api_operations() -> str:
    return _table(
        ("operation", "asked with", "access", "what it does", "refused with, besides those of all"),
        (
            (
                f"`{operation.name}`",
                ", ".join(_asked(entry) for entry in fields(operation.request_kind)) or "nothing",
                "writes" if operation.writes else "reads",
                operation.help,
                ", ".join(code.name for code in operation.refusals) or "none",
            )
            for operation in OPERATIONS.values()
        ),
    )


def _asked(entry: Field[Any]) -> str:
    optional = entry.default is not MISSING or entry.default_factory is not MISSING
    return f"`{entry.name}`{' (optional)' if optional else ''}"


TABLES: Mapping[str, Callable[[], str]] = {
    "api-operations": api_operations,
    "stream-settings": stream_settings,
    "replica-settings": section(ReplicaSettings),
    "metadata-settings": section(MetadataSettings),
    "storage-settings": section(StorageSettings),
}


def with_tables(text: str) -> str:
    """A document with its tables as they are now."""
    return _TABLE.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}{found[3]}", text)


def stale() -> list[Path]:
    """Documents with a table that differs from the code."""
    return [path for path in sorted(DOCS.glob("*.md")) if with_tables(path.read_text()) != path.read_text()]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [[*head], *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:], ""])


def _field_docstrings(settings: type[Any]) -> dict[str, str]:
    (body,) = ast.parse(dedent(getsource(settings))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for entry, below in zip(body.body, body.body[1:], strict=False):
        match entry, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                found[name] = " ".join(text.split())
            case _:
                pass
    return found


def _spelled(value: object) -> str:
    """As a configuration file has it; sizes in MiB."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value} ({value >> 20} MiB)"
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    check = "--check" in sys.argv[1:]
    outdated = stale()
    for path in outdated:
        print(f"{'stale' if check else 'wrote'} {path.relative_to(DOCS.parent)}")
        if not check:
            path.write_text(with_tables(path.read_text()))
    if outdated and check:
        sys.exit("run scripts/docs-tables")


if __name__ == "__main__":
    main()
