"""Texts and bytes of others on a terminal: characters that could move its cursor, change its title or fake another
line are escaped.

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
"""Control characters of both ASCII and ISO 6429, line separators, changes of the writing direction, and halves of
characters."""


def shown(text: object) -> str:
    """Escapes a text for a table, or another text in rich's markup."""
    from rich.markup import escape

    return escape(plain(str(text)))


def plain(text: str) -> str:
    """Escapes a text for a line without markup."""
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def plain_json(text: str) -> str:
    """Returns the same JSON, with escapes for unsafe characters that JSON itself permits in a string."""
    return _UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def cleaner(*, raw: bool) -> Cleaner:
    """Returns the function for bytes that go to stdout. `raw`: they stay as they are on a terminal, too."""
    return _as_they_are if raw or not sys.stdout.isatty() else clean


def clean(data: bytes) -> bytes:
    """Returns readable UTF-8, with a backslash before bytes that are none."""
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
