"""Names of streams, brokers, groups and their like: each is one token of NATS subjects."""

from __future__ import annotations

import re
from typing import Final

from wire.errors import Code, TidelogError

MAX_NAME_LENGTH: Final = 64

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def check_text(given: object, what: str, code: Code) -> None:
    """Raises TidelogError with `code` for anything but a text."""
    if not isinstance(given, str):
        raise TidelogError(code, f"{what} {given!r:.80} is {type(given).__name__}, not text; give it as text")


def check_name(name: str, what: str) -> str:
    """Checks that `name` can be a token of a subject. Raises TidelogError(BAD_NAME), which calls it `what`."""
    check_text(name, what, Code.BAD_NAME)
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
        raise TidelogError(
            Code.BAD_NAME,
            f"{what} {shown!r} is not 1 to {MAX_NAME_LENGTH} characters of A-Z, a-z, 0-9, '_' and '-';"
            + (" a dot would make it two tokens of NATS subjects, which it is one token of;" if "." in name else "")
            + " choose such a name",
        )
    return name
