"""The watch of the calls that wait for the disk, and the reports that it makes."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Any, cast

import pytest

from dataplane.broker.disk.disk_watch import DiskWatch
from dataplane.replica.replica_settings import ReplicaSettings


@dataclass
class Syncer:
    waiting_since: float = math.inf


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def time(self) -> float:
        return self.now


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.syncer, self.checkpoints = Syncer(), Syncer()
        syncers = (self.syncer, self.checkpoints)
        self.watch = DiskWatch(ReplicaSettings(), cast(Any, syncers), cast(Any, self.clock))
        self.told: list[bool] = []
        self.watch.on_change = self.told.append

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.clock.now += 0.5
            self.watch._look()


def test_a_sync_that_does_not_return_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    bench.syncer.waiting_since = 50.0
    bench.passes(8)
    assert bench.told == [True]
    assert bench.watch.status() == {"hangs": True, "waited_s": 8.0}
    assert "the disk hangs: a sync has not returned for 5.5 s" in caplog.text
    bench.syncer.waiting_since = math.inf
    bench.passes(1)
    assert bench.told == [True, False]
    assert bench.watch.status() == {"hangs": False, "waited_s": 0.0}
    assert "the disk answers again, 8.5 s after it began to hang" in caplog.text


def test_a_checkpoint_that_does_not_return_counts_as_well() -> None:
    bench = Bench()
    bench.checkpoints.waiting_since = 50.0
    bench.passes(3)
    bench.syncer.waiting_since = 53.0
    bench.passes(3)
    assert bench.told == [True]
    bench.checkpoints.waiting_since = bench.syncer.waiting_since = math.inf
    bench.passes(1)
    assert bench.told == [True, False]


async def test_a_failing_report_does_not_end_the_watch() -> None:
    syncer = Syncer()
    loop = asyncio.get_running_loop()
    settings = ReplicaSettings(
        replica_max_idle_wait=0.01, replica_max_lag_time=0.05, follower_read_max_age=1.5, replica_max_leader_timeout=0.1
    )
    watch = DiskWatch(settings, (cast(Any, syncer),), loop)
    told: list[bool] = []
    heard = asyncio.Event()

    def tell(hangs: bool) -> None:
        told.append(hangs)
        if hangs:
            raise ValueError("a bug")
        heard.set()

    watch.on_change = tell
    watch.start()
    syncer.waiting_since = loop.time()
    async with asyncio.timeout(10):
        while not told:  # noqa: ASYNC110 - it is told in a turn of its own
            await asyncio.sleep(0.005)
        syncer.waiting_since = math.inf
        await heard.wait()
    await watch.close()
    assert told == [True, False]
