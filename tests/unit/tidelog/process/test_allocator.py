"""Which cycles Python's collector looks for in a broker. In a process of its own: the setting is the process's."""

from __future__ import annotations

import subprocess
import sys

_CYCLES = """
import gc
from tidelog.process.allocator import COLLECTED_FROM, collect_only_what_comes

class Cycle:
    alive = 0

    def __init__(self):
        self.me = self
        Cycle.alive += 1

    def __del__(self):
        Cycle.alive -= 1

collect_only_what_comes()
assert gc.get_freeze_count() > 1000, gc.get_freeze_count()
assert len(gc.get_objects()) < 1000, len(gc.get_objects())
most = 0
for _ in range(100_000):
    Cycle()
    most = max(most, Cycle.alive)
assert most <= COLLECTED_FROM, most
"""

_WORK = """
import gc, sys
from tidelog.process.allocator import collect_only_what_comes

class Request:
    alive = 0

    def __init__(self, number):
        self.parts = [number]
        self.me = self if number % 10 == 0 else None
        Request.alive += 1

    def __del__(self):
        Request.alive -= 1

collect_only_what_comes()
at_most = int(sys.argv[1])
in_work = []
for number in range(1_500_000):
    in_work.append(Request(number))
    if len(in_work) > at_most:
        in_work.clear()
print(Request.alive - len(in_work))
"""

_GROWTH = """
import gc
from tidelog.process.allocator import collect_only_what_comes
collect_only_what_comes()
kept = [[number] for number in range(1_000_000)]
print(gc.get_freeze_count())
"""


def _printed(script: str, *arguments: int) -> int:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return int(subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout)


def test_old_objects_are_not_looked_at_again_and_newer_cycles_are_found() -> None:
    subprocess.run([sys.executable, "-c", _CYCLES], check=True, timeout=60)


def test_what_dies_in_a_cycle_after_it_was_in_work_is_not_kept_without_limit() -> None:
    assert _printed(_WORK, 30_000) < 60_000, "requests that are dead and not freed"


def test_objects_by_which_a_process_grows_are_searched_no_more() -> None:
    assert _printed(_GROWTH) > 800_000
