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


def test_old_objects_are_not_looked_at_again_and_newer_cycles_are_found() -> None:
    subprocess.run([sys.executable, "-c", _CYCLES], check=True, timeout=60)
