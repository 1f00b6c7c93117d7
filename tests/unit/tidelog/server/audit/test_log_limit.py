"""Lines that pass in a flood of log lines."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta

from tidelog.server.audit.log_limit import (
    ALWAYS,
    MAX_ARGUMENT,
    MAX_BYTES,
    MAX_BYTES_OF_ALL,
    MAX_LINES,
    LogFormat,
    LogLimit,
)


class Clock:
    now = 5.0

    def __call__(self) -> float:
        return self.now


class Shown(logging.Handler):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.addFilter(LogLimit(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_first_lines_of_a_kind_pass_and_the_omitted_ones_are_counted() -> None:
    clock = Clock()
    shown = Shown(clock)
    log = logging.getLogger("test_log_limit")
    log.propagate = False
    log.addHandler(shown)
    for number in range(MAX_LINES + 20):
        log.warning("dropped %d", number)
    log.warning("another kind, %s", "100%")
    log.error("dropped %d", -1)
    assert shown.lines == [*(f"dropped {n}" for n in range(MAX_LINES)), "another kind, 100%"]
    clock.now += 1.0
    log.warning("dropped %d", 70)
    log.warning("dropped %d", 71)
    assert shown.lines[-2:] == ["dropped 70 (21 lines like this were left out)", "dropped 71"]


def test_bytes_are_bounded_too() -> None:
    clock = Clock()
    shown = Shown(clock)
    log = logging.getLogger("test_log_limit_bytes")
    log.propagate = False
    log.addHandler(shown)
    for _ in range(MAX_LINES):
        log.error("refused %s", "x" * 1500)
    assert MAX_BYTES <= sum(map(len, shown.lines)) < MAX_BYTES + 2000
    log.error("another kind")
    assert shown.lines[-1] == "another kind"
    for kind in range(100):
        for _ in range(MAX_LINES):
            log.error("kind " + str(kind) + " %s", "x" * 1500)  # noqa: G003 - kinds are told apart by it
    assert sum(map(len, shown.lines)) < MAX_BYTES_OF_ALL + 2000
    clock.now += 1.0
    log.error("refused %s", "y")
    assert shown.lines[-1].startswith("refused y (")


def test_no_argument_begins_a_line_of_its_own() -> None:
    shown = Shown(Clock())
    log = logging.getLogger("test_log_limit_lines")
    log.propagate = False
    log.addHandler(shown)
    log.warning("heard %s and %s", "b1\n12:00:00 ERROR all is lost", ValueError("a\x1b[31mb\u2028c"))
    log.warning("heard %(who)s", {"who": "b1\r\nb2"})
    log.warning("heard %s", "x" * 100_000)
    log.warning("the story of a partition:\n%s", Story())
    assert shown.lines[0] == r"heard b1\n12:00:00 ERROR all is lost and a\x1b[31mb\u2028c"
    assert shown.lines[1] == r"heard b1\r\nb2"
    assert shown.lines[2] == f"heard {'x' * MAX_ARGUMENT}…"
    assert shown.lines[3].count("\n") == 2, "what is no text keeps its lines"


class Story:
    def __str__(self) -> str:
        return "one\ntwo"


def test_lines_that_must_not_be_left_out_are_not() -> None:
    shown = Shown(Clock())
    log = logging.getLogger("test_log_limit_always")
    log.propagate = False
    log.addHandler(shown)
    for number in range(3 * MAX_LINES):
        log.warning("done %d", number, extra={ALWAYS: True})
    assert len(shown.lines) == 3 * MAX_LINES


def test_a_line_begins_with_date_time_and_zone() -> None:
    record = logging.LogRecord("tidelog.x", logging.WARNING, "", 0, "broker %s is gone", ("b1",), None)
    found = re.fullmatch(r"(\S+) WARNING tidelog\.x: broker b1 is gone", LogFormat().format(record))
    assert found is not None
    told = datetime.fromisoformat(found[1])
    assert told.tzinfo is not None
    assert abs(told.timestamp() - record.created) < timedelta(milliseconds=1).total_seconds()
