"""Tables in docs/ are what the declarations in the code say."""

from __future__ import annotations

import re

from scripts.docs_tables import DOCS, TABLES, stale


def test_no_table_is_stale() -> None:
    assert not stale(), "run scripts/docs-tables"


def test_each_table_stands_in_one_place() -> None:
    placed = re.findall(r"<!-- table: ([a-z_-]+) -->", "".join(path.read_text() for path in DOCS.glob("*.md")))
    assert sorted(placed) == sorted(TABLES)


def test_each_table_says_something_of_each_entry() -> None:
    for name, make in TABLES.items():
        rows = make().splitlines()[2:]
        assert rows, name
        assert all(cell.strip() for row in rows for cell in row.replace("\\|", "").split("|")[1:-1]), name
