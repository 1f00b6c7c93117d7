"""Values of others in sentences and log lines: quoted, so that no value passes for a line of its own, and cut."""

from __future__ import annotations

MOST_ECHOED = 200
"""Limit of the characters of a value that a sentence or a log line shows."""


def echo(value: object) -> str:
    """Returns the value as `repr` spells it, control characters escaped; cut after MOST_ECHOED characters."""
    if isinstance(value, (str, bytes)):
        value = value[: MOST_ECHOED + 1]
    try:
        text = repr(value)
    except ValueError:  # Python spells no integer of more than 4,300 digits
        return "a number of thousands of digits"
    except RecursionError:
        return "a value nested hundreds deep"
    return text if len(text) <= MOST_ECHOED else f"{text[:MOST_ECHOED]}…"


def one_line(text: str, most: int = MOST_ECHOED) -> str:
    """Returns a text to show without quotes: control characters are escaped, and it is cut after `most` characters."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    if cut.isprintable():
        return cut
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in cut)
