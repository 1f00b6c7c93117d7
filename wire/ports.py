"""Ports of TCP as people write them: in a configuration, an address or a label of a broker."""

from __future__ import annotations

from typing import Final

MOST_PORT: Final = 65535


def port_number(text: str) -> int | None:
    """The port that the ASCII digits of `text` name, from 1 to 65535; None: they name none, or other characters are in
    it."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):  # `int` refuses thousands of digits
        return None
    number = int(text)
    return number if 0 < number <= MOST_PORT else None
