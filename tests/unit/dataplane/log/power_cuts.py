"""Power is lost in each system call of a workload in turn; after each loss the workload checks what is left."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import pytest

from tests.simulation.machines.disk import PowerLoss, SimDisk, Survival


class Workload(Protocol):
    def run(self) -> None: ...

    def check(self) -> None:
        """Recover the log, after a crash at any point of `run`. Raises AssertionError, or any error of the log."""


def cut_power_in_every_call(make: Callable[[SimDisk], Workload], how: Survival) -> None:
    disk = SimDisk()
    make(disk).run()
    calls = disk.calls
    assert calls > 300
    for crash_at in range(calls):
        disk = SimDisk()
        workload = make(disk)
        if crash_at < disk.calls:
            continue
        disk.crash_at = crash_at
        with pytest.raises(PowerLoss):
            workload.run()
        disk.lose_power(how, Random(crash_at))
        try:
            workload.check()
        except Exception as error:
            raise AssertionError(f"crash in call {crash_at} of {calls}, {how}") from error
