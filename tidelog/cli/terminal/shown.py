"""Texts and bytes of others on a terminal: what could move its cursor, change its title or pass for another line is
escaped.

Records, metadata of groups, values of cursors and names that clients give themselves are their writers' own. In a pipe
or a file records and cursors stay as they are, byte for byte.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import click

Cleaner: TypeAlias = Callable[[bytes], bytes]
_Command = TypeVar("_Command", bound=Callable[..., Any])

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters of both ASCII and ISO 6429, line separators, what turns the direction of writing, and halves of
characters."""


def shown(text: object) -> str:
    """For a table, or another text in rich's markup."""
    from rich.markup import escape

    return escape(plain(str(text)))


def plain(text: str) -> str:
    """For a line without markup."""
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def plain_json(text: str) -> str:
    """The same JSON, with escapes in place of what JSON itself lets stand in a string."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def cleaner(*, raw: bool) -> Cleaner:
    """For bytes that go to stdout. `raw`: they stay as they are on a terminal, too."""
    return _as_they_are if raw or not sys.stdout.isatty() else clean


def clean(data: bytes) -> bytes:
    """Readable: UTF-8, with a backslash before what is none."""
    return plain(data.decode(errors="backslashreplace")).encode()


def _as_they_are(data: bytes) -> bytes:
    return data


def raw_option(command: _Command) -> _Command:
    """Adds --raw: parameter `raw`."""
    return click.option(
        "--raw",
        is_flag=True,
        help="Print control characters on a terminal as they are; into a pipe or a file they always are.",
    )(command)
