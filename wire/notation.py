"""Values as people write them in settings, options and labels: amounts of bytes and of time (`512KiB`, `10GB`, `7d`),
TCP ports, racks, zones and tags.

    bytes      B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024); small and capital letters alike
    time       ms, s, m, h, d

A setting whose value is a number of bytes or of milliseconds takes both the plain number and an amount with a unit.
`1.5GB` is taken where it is a whole number of bytes. A lone K, M or G is not: it may stand for either power, and for
minutes.

A rack is where a broker or a consumer runs, such as an availability zone; equal texts are near each other. A broker
reports its rack as a label of its probe answers; clients get the racks of a stream's replicas with its metadata. The
rack of a broker is its zone: replicas of a partition are spread over zones. A broker's tags, such as `ssd` or
`region=eu`, are compared with the tags that streams ask for (`metadata.controller.placement`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final, TypeAlias

from wire.echo import echo
from wire.errors import Code, TidelogError

RACK_LABEL: Final = "rack"
_RACK = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_rack(rack: object) -> str:
    """Returns the rack. Raises TidelogError(BAD_CONFIG) for text that is no name of a rack."""
    if not isinstance(rack, str) or not _RACK.fullmatch(rack):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"rack={echo(rack):.120} is no name of a rack: letters, digits, '.', '_' and '-', at most 100, such as"
            " 'eu-1a'",
        )
    return rack


def check_zone(zone: object) -> str:
    """Returns the zone of a broker. Raises TidelogError(BAD_CONFIG) for text that is no name of a zone."""
    if not isinstance(zone, str) or not _RACK.fullmatch(zone):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"zone={echo(zone):.120} is no name of a zone: letters, digits, '.', '_' and '-', at most 100, such as"
            " 'eu-1a'",
        )
    return zone


MOST_TAGS: Final = 32
"""Limit of the tags of a broker, and of those that a stream asks for."""
_TAG = re.compile(r"[A-Za-z0-9._=-]{1,100}")


def tags_of(given: Iterable[object]) -> tuple[str, ...]:
    """Returns the tags, sorted, each once. Raises ValueError, to be read after `tags=… `."""
    tags = sorted({*map(str, given)})
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"has {echo(tag):.120}, which is no tag: letters, digits, '.', '_', '=' and '-', at most 100, such as"
                " 'ssd' or 'region=eu'"
            )
    if len(tags) > MOST_TAGS:
        raise ValueError(f"has {len(tags)} tags; give {MOST_TAGS} at most")
    return tuple(tags)


MOST_PORT: Final = 65535


def port_number(text: str) -> int | None:
    """Returns the port that the ASCII digits of `text` name, from 1 to 65535; None for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):  # `int` refuses thousands of digits
        return None
    number = int(text)
    return number if 0 < number <= MOST_PORT else None


Factors: TypeAlias = dict[str, int]
"""The factor of each unit, in plain numbers."""

TIME: Factors = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Factors in milliseconds."""
BYTES: Factors = {
    "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip

_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([a-zA-Z]{1,3})", re.ASCII)
_SHOWN = ("B", "kB", "MB", "GB", "TB")


def amount(text: str, factors: Factors) -> int | None:
    """Returns the plain number of a text with a unit; None: it is no such text, or no whole number."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        return None
    factor = next((factor for unit, factor in factors.items() if unit.lower() == found[2].lower()), None)
    if factor is None:
        return None
    exact = Decimal(found[1]) * factor
    return int(exact) if exact == int(exact) else None


def units_in_words(factors: Factors) -> str:
    *others, last = factors
    return f"{', '.join(others)} or {last}"


def bytes_in_words(count: int) -> str:
    """Returns an amount of some three digits: "0 B", "999 B", "35.1 MB", "812 GB"."""
    size = float(count)
    unit = 0
    while size >= 999.5 and unit < len(_SHOWN) - 1:
        size /= 1000
        unit += 1
    return f"{count} B" if unit == 0 else f"{size:.{1 if size < 99.95 else 0}f} {_SHOWN[unit]}"
