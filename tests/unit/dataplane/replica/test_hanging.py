"""When the disk of a broker counts as one that hangs."""

from __future__ import annotations

import math

from dataplane.replica.disk_guards import LONGEST_HOLD, DiskGuard

LIMIT = 5.0
LATE = 1.0


class Script:
    def __init__(self) -> None:
        self.now = 100.0
        self.guard = DiskGuard(limit=LIMIT, late=LATE, now=self.now)
        self.changes: list[tuple[float, bool]] = []

    def run(self, seconds: float, *, since: float = math.inf) -> None:
        """Looks as often as it is to, while the oldest call began at `since`."""
        end = self.now + seconds
        while self.now + self.guard.interval <= end:
            self.now += self.guard.interval
            if self.guard.on_look(since, self.now):
                self.changes.append((self.now, self.guard.hangs))

    def hang(self, seconds: float) -> None:
        self.run(seconds, since=self.now)


def test_a_call_that_is_out_for_longer_than_the_limit_is_a_disk_that_hangs() -> None:
    script = Script()
    script.hang(LIMIT)
    assert not script.guard.hangs
    script.run(3, since=100.0)
    assert script.changes == [(105.5, True)]
    assert script.guard.waited == 8.0


def test_calls_that_return_in_time_are_no_disk_that_hangs() -> None:
    script = Script()
    for _ in range(5):
        script.hang(LIMIT - 1)
    assert script.changes == []


def test_it_answers_as_soon_as_no_call_is_out_for_long() -> None:
    script = Script()
    script.hang(8)
    script.run(1)
    assert script.changes == [(105.5, True), (108.5, False)]


def test_a_disk_that_hangs_again_is_held_back_for_longer_each_time() -> None:
    script = Script()
    ended = []
    for _ in range(8):
        script.hang(6)
        began = script.now
        script.run(LONGEST_HOLD + 1)
        ended.append(script.changes[-1][0] - began)
        assert not script.guard.hangs
        script.now = script.changes[-1][0]  # it hangs again at once
        script.guard.on_look(math.inf, script.now)
    assert ended == [0.5, 1.5, 2.5, 4.5, 8.5, 16.5, 30.5, 30.5]
    script.run(LONGEST_HOLD + 1)
    script.hang(6)
    script.run(1)
    assert not script.guard.hangs


def test_a_process_that_slept_has_no_disk_to_blame() -> None:
    script = Script()
    script.hang(1)
    script.now += 60
    assert not script.guard.on_look(100.0, script.now)
    script.run(LIMIT, since=100.0)
    assert not script.guard.hangs
    script.run(1, since=100.0)
    assert script.guard.hangs
