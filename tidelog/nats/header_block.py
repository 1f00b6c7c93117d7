"""NATS header blocks: `NATS/1.0`, perhaps a status, then `Name: value` lines and an empty one, each ended by CRLF."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FIRST_LINE = b"NATS/1.0"
_NO_STATUS = _FIRST_LINE + b"\r\n"
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a token of RFC 9110
_STATUS = re.compile(rb"[0-9]{3}")
_LINE_BREAK = re.compile(r"[\r\n]")


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Returns the block for `headers`. Raises ValueError for a name that is no token, and for line breaks in values."""
    lines = [_FIRST_LINE.decode()]
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a NATS header; use letters, digits and dashes")
        if _LINE_BREAK.search(value):
            raise ValueError(f"the value of NATS header {name!r} holds a line break: {value[:80]!r}")
        lines.append(f"{name}: {value.strip()}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def decode_headers(block: bytes) -> tuple[dict[str, str] | None, int | None]:
    """Returns (headers or None, status or None). Of a repeated name the last value counts; bytes that are not UTF-8
    become U+FFFD; any other line is passed over."""
    _, *lines = block.split(b"\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.strip().decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return headers or None, status_of(block)


def status_of(block: bytes) -> int | None:
    """Returns the status in the first line of a block; None: it has none."""
    if block.startswith(_NO_STATUS):
        return None
    code = block.partition(b"\r\n")[0][len(_FIRST_LINE) :].split(maxsplit=1)
    return int(code[0]) if code and _STATUS.fullmatch(code[0]) else None
