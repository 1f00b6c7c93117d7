"""Texts of others on a terminal: nothing in them moves the cursor, forges a line, or is read as markup."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from rich.console import Console

from tidelog.cli.records.record_formats import record_format
from tidelog.cli.terminal.shown import clean, cleaner, plain, plain_json, shown
from tidelog.client.base.read_positions import timestamp_to_text
from tidelog.client.base.records import Record

HOSTILE = "\x1b]0;title\x07\x1b[2Jrow\nrow\r\x9b31m\u202egnp\u2028[red]x[/]"
UNSAFE = {
    chr(code)
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(chr(code)) in
    ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
}  # fmt: skip
RECORD = Record("s", 0, 7, 0, HOSTILE.encode(), HOSTILE.encode() + b"\xff", {"h": HOSTILE.encode()})


def test_no_character_that_a_terminal_obeys_is_left() -> None:
    everything = "".join(sorted(UNSAFE)) + "äöü 漢字\u3000👍"
    assert not UNSAFE & {*plain(everything)}
    assert not UNSAFE & {*plain_json(everything)} - {"\n"}
    assert plain(everything).endswith("äöü 漢字\u3000👍"), "what only looks foreign stays"


def test_json_stays_the_same_json() -> None:
    text = json.dumps({"value": HOSTILE}, ensure_ascii=False)
    assert json.loads(plain_json(text)) == {"value": HOSTILE}
    assert not UNSAFE & {*plain_json(text)}


def test_a_table_shows_markup_as_text() -> None:
    console = Console(width=200, record=True)
    console.print(shown(HOSTILE))
    said = console.export_text()
    assert "[red]x[/]" in said
    assert said.count("\n") == 1


def test_bytes_that_are_no_text_are_spelled() -> None:
    assert clean(b"a\xff\x00b") == rb"a\xff\x00b"


@pytest.mark.parametrize("form", ["text", "raw", "{value} {key} {headers} {header:h}"])
def test_a_record_is_one_line_on_a_terminal(form: str) -> None:
    line = record_format(form, timestamp_to_text, clean)(RECORD)
    assert not UNSAFE & {*line.decode()} - {"\n", "\t"}
    assert line.count(b"\n") == 1


def test_a_pipe_gets_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert record_format("raw", timestamp_to_text, cleaner(raw=False))(RECORD) == HOSTILE.encode() + b"\xff\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cleaner(raw=False)(b"\x1b") == rb"\x1b"
    assert cleaner(raw=True)(b"\x1b") == b"\x1b"
