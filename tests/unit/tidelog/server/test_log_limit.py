"""Lines that pass in a flood of log lines."""

from __future__ import annotations

import logging

from tidelog.server.log_limit import MAX_LINES, LogLimit


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
    assert shown.lines == [*(f"dropped {n}" for n in range(MAX_LINES)), "another kind, 100%", "dropped -1"]
    clock.now += 1.0
    log.warning("dropped %d", 70)
    log.warning("dropped %d", 71)
    assert shown.lines[-2:] == ["dropped 70 (20 lines like this were left out)", "dropped 71"]
