"""Progress of a run, on stderr: results alone go to stdout."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
