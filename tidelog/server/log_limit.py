"""A flood of bad input must not become a flood of log lines: counters count everything, the log shows the first ones.

Lines are alike when they have the same format string. Of such lines, MAX_LINES pass in each second; the next one that
passes says how many were left out. Errors always pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_LINES = 50
"""Alike, per second."""
MAX_KINDS = 1000
"""Kinds of lines that are told apart; above it counting begins anew."""


@dataclass(slots=True)
class _Kind:
    began: float
    passed: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """For a handler. `monotonic`: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        now = self._monotonic()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(record.msg)), _Kind(now))
        if now - kind.began >= 1.0:
            kind.began, kind.passed = now, 0
        if kind.passed >= MAX_LINES:
            kind.left_out += 1
            return False
        kind.passed += 1
        if kind.left_out:
            record.msg, record.args = f"{record.getMessage()} ({kind.left_out} lines like this were left out)", ()
            kind.left_out = 0
        return True
