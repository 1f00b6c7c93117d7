"""Tables in docs/ agree with the declarations in the code."""

from __future__ import annotations

import re

from scripts.reference.docs_tables import DOCS, TABLES, proto_messages, stale


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


def test_fields_and_comments_of_a_proto_file() -> None:
    text = """
    // Of the file.
    syntax = "proto3";

    enum Colour {
      RED = 0;
    }

    // A box,
    // with a lid.
    message Box {
      string name = 1; // what is written on it
      map<string, bytes> things = 10;
      enum Size {
        SMALL = 0;
      }
      message Inner {
        string hidden = 1;
      }
      // how large it is
      optional Size size = 3;
      oneof lid {
        bool open = 4; // it is open
      }
      repeated metadata.Box boxes = 5;
    }
    """
    messages = proto_messages(text)
    assert set(messages) == {"Box"}
    assert messages["Box"].purpose == "A box, with a lid."
    assert messages["Box"].fields == [
        (1, "name", "what is written on it"),
        (10, "things", ""),
        (3, "size", "how large it is"),
        (4, "open", "it is open"),
        (5, "boxes", ""),
    ]
