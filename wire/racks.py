"""Racks: where brokers and consumers run, such as an availability zone. Equal texts are near each other.

A broker tells its rack as a label of its probe answers; clients learn those of a stream's replicas with its metadata.
"""

from __future__ import annotations

import re
from typing import Final

from wire.echo import echo
from wire.errors import Code, TidelogError

RACK_LABEL: Final = "rack"
_RACK = re.compile(r"[A-Za-z0-9._-]{1,100}")


def check_rack(rack: object) -> str:
    """Raises TidelogError(BAD_CONFIG)."""
    if not isinstance(rack, str) or not _RACK.fullmatch(rack):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"rack={echo(rack):.120} is no name of a rack: letters, digits, '.', '_' and '-', at most 100, such as"
            " 'eu-1a'",
        )
    return rack
