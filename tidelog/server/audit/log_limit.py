"""The format of a broker's log, and the bound of its size.

A flood of bad input must not become a flood of log lines: counters count everything, the log shows the first ones.

Lines are alike when they have the same format string. Of such lines, MAX_LINES and MAX_BYTES pass in each second, of
all lines MAX_BYTES_OF_ALL; the next line of a kind that passes says how many were left out. Lines with the attribute
ALWAYS always pass.

Texts that are arguments of a line may come from anybody: their control characters are escaped, so that none of
them begins a line of its own, and they are cut after MAX_ARGUMENT characters.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from wire.echo import one_line

MAX_LINES = 50
"""Lines that are alike, per second."""
MAX_BYTES = 32 << 10
"""Bytes of lines that are alike, per second; a traceback counts as TRACEBACK_BYTES."""
MAX_BYTES_OF_ALL = 256 << 10
"""Bytes of all lines, per second."""
TRACEBACK_BYTES = 2 << 10
MAX_ARGUMENT = 2000
"""Characters of a text that is an argument of a line."""
ALWAYS = "tidelog_always"
"""Attribute of a line that always passes, given as `extra={ALWAYS: True}`."""
MAX_KINDS = 1000
"""Kinds of lines that are counted apart; above it counting begins anew."""


@dataclass(slots=True)
class _Second:
    began: float
    lines: int = 0
    size: int = 0

    def begin_anew(self, now: float) -> None:
        if now - self.began >= 1.0:
            self.began, self.lines, self.size = now, 0, 0


@dataclass(slots=True)
class _Kind(_Second):
    left_out: int = 0


class LogFormat(logging.Formatter):
    """Lines that begin with date, time and zone in ISO 8601, in the local zone of the process, and the level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's
        return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


class LogLimit(logging.Filter):
    """A filter for a handler. `monotonic`: seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._all = _Second(monotonic())
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_harmless(argument) for argument in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: _harmless(argument) for name, argument in record.args.items()}
        if getattr(record, ALWAYS, False):
            return True
        now = self._monotonic()
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(record.msg)), _Kind(now))
        kind.begin_anew(now)
        self._all.begin_anew(now)
        if kind.lines >= MAX_LINES or kind.size >= MAX_BYTES or self._all.size >= MAX_BYTES_OF_ALL:
            kind.left_out += 1
            return False
        message = record.getMessage()
        size = len(message) + (TRACEBACK_BYTES if record.exc_info else 0)
        kind.lines += 1
        kind.size += size
        self._all.size += size
        if kind.left_out:
            record.msg, record.args = f"{message} ({kind.left_out} lines like this were left out)", ()
            kind.left_out = 0
        return True


def _harmless(argument: object) -> object:
    """Returns the argument, escaped and cut if it may contain text of anybody."""
    if isinstance(argument, (str, BaseException)):
        text = str(argument)
        shown = one_line(text, MAX_ARGUMENT)
        return argument if shown == text else shown
    return argument
