"""Housekeeping visits replicas in turn, survives a failure, and waits at its close for the step that runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.upkeep.housekeeping import Housekeeping, Job, Progress, UpkeepCounters, Visit
from dataplane.log.storage.log_errors import LogDamaged
from wire.stream_config import StreamConfig
from wire.types import Incarnation, Offset, PartitionKey, StreamName

LONG = 3600.0
"""Seconds: no second round in a test."""


def key(number: int) -> PartitionKey:
    return PartitionKey(StreamName("s"), Incarnation(1), number, Incarnation(1))


class FakeReplica:
    def __init__(self, number: int) -> None:
        self.key = key(number)
        self.failures: list[str] = []
        self.told = 0

    def visit(self, context: Any) -> Visit | None:
        if self.failures:
            return None
        return Visit(
            key=self.key,
            log=self,  # type: ignore[arg-type]
            config=StreamConfig(),
            high_watermark=Offset(0),
            time_ns=0,
            agreed_ns=0,
            elapsed_ns=0,
            stop=threading.Event(),
        )

    def fail(self, reason: str, context: Any) -> None:
        self.failures.append(reason)

    def on_log_start(self) -> None:
        self.told += 1


@dataclass
class FakeJob:
    work: Callable[[Visit], Progress]
    name: str = "work"
    due: Callable[[Visit], bool] = lambda _: True
    done: list[int] = field(default_factory=list)
    """Partitions, in order of the steps that began."""

    def is_due(self, visit: Visit) -> bool:
        return self.due(visit)

    def run(self, visit: Visit) -> Progress:
        self.done.append(visit.key.partition)
        return self.work(visit)


class House:
    def __init__(self, *jobs: FakeJob, interval: float = LONG) -> None:
        self.executor = ThreadPoolExecutor(1)
        counters = UpkeepCounters()
        self.context = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            housekeeping=self.executor,
            storage=StorageSettings(housekeeping_interval=interval),
            the=lambda _: counters,
        )
        self.replicas = {key(n): FakeReplica(n) for n in range(3)}
        typed: list[Job] = list(jobs)
        self.keeping = Housekeeping(self.context, self.replicas, typed)  # type: ignore[arg-type]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - conditions of all kinds
                await asyncio.sleep(0)  # one turn of the loop

    async def close(self) -> None:
        await self.keeping.close()
        self.executor.shutdown()


def nothing(_: Visit) -> Progress:
    return Progress()


async def test_each_replica_is_visited_once_a_round_and_only_jobs_that_are_due_run() -> None:
    always = FakeJob(nothing)
    sometimes = FakeJob(nothing, due=lambda visit: visit.key.partition == 1)
    house = House(always, sometimes)
    house.keeping.start()
    await house.until(lambda: len(always.done) == 3)
    await house.close()
    assert always.done == [0, 1, 2]
    assert sometimes.done == [1]


async def test_rounds_are_repeated() -> None:
    job = FakeJob(nothing)
    house = House(job, interval=0.001)
    house.keeping.start()
    await house.until(lambda: len(job.done) >= 6)
    await house.close()
    assert job.done[:6] == [0, 1, 2, 0, 1, 2]


async def test_a_replica_with_more_to_do_waits_for_its_turn() -> None:
    steps = {0: 3, 1: 1, 2: 2}

    def work(visit: Visit) -> Progress:
        steps[visit.key.partition] -= 1
        return Progress(more=steps[visit.key.partition] > 0)

    job = FakeJob(work)
    house = House(job)
    house.keeping.start()
    await house.until(lambda: len(job.done) == 6)
    await house.close()
    assert job.done == [0, 1, 2, 0, 2, 0]


async def test_counts_are_added_and_the_rest_is_done_on_the_loop_thread() -> None:
    threads: list[int] = []
    job = FakeJob(
        lambda _: Progress(counted={"retention_segments": 2}, then=lambda: threads.append(threading.get_ident()))
    )
    house = House(job)
    house.keeping.start()
    await house.until(lambda: len(threads) == 3)
    await house.until(lambda: all(replica.told for replica in house.replicas.values()))
    await house.close()
    assert house.context.the(UpkeepCounters).retention_segments == 6
    assert set(threads) == {threading.get_ident()}


async def test_a_job_that_fails_stops_neither_the_others_nor_itself(caplog: pytest.LogCaptureFixture) -> None:
    def work(visit: Visit) -> Progress:
        if visit.key.partition == 1:
            raise ValueError("a bug")
        return Progress()

    failing, sound = FakeJob(work, "failing"), FakeJob(nothing, "sound")
    house = House(failing, sound, interval=0.001)
    house.keeping.start()
    await house.until(lambda: failing.done.count(1) >= 2 and sound.done.count(1) >= 2)
    await house.close()
    assert house.context.the(UpkeepCounters).housekeeping_failures >= 2
    assert "s/1: housekeeping: failing failed" in caplog.text
    assert not any(replica.failures for replica in house.replicas.values())


async def test_a_job_that_cannot_say_whether_it_is_due_stops_no_visit_of_another_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def is_due(visit: Visit) -> bool:
        if visit.key.partition == 1:
            raise ValueError("a bug")
        return True

    job = FakeJob(nothing, due=is_due)
    house = House(job, interval=0.001)
    house.keeping.start()
    await house.until(lambda: job.done.count(2) >= 2)
    await house.close()
    assert 1 not in job.done
    assert "s/1: housekeeping met a bug" in caplog.text


async def test_a_disk_that_fails_ends_the_replica() -> None:
    def work(visit: Visit) -> Progress:
        raise LogDamaged("no more writes")

    job = FakeJob(work, due=lambda visit: visit.key.partition == 2)
    house = House(job)
    house.keeping.start()
    await house.until(lambda: bool(house.replicas[key(2)].failures))
    await house.close()
    assert house.replicas[key(2)].failures == ["work: no more writes"]
    assert house.context.the(UpkeepCounters).housekeeping_failures == 1


class Blocking:
    """A step that lasts until it is told to stop."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ended = threading.Event()

    def __call__(self, visit: Visit) -> Progress:
        self.began.set()
        assert visit.stop.wait(10)
        self.ended.set()
        raise LogDamaged("the log is closed")


async def test_a_close_tells_the_running_step_to_stop_and_waits_for_it() -> None:
    work = Blocking()
    house = House(FakeJob(work))
    house.keeping.start()
    await house.until(work.began.is_set)
    await house.close()
    assert work.ended.is_set()


async def test_a_replica_that_leaves_is_left_alone_and_the_others_are_visited() -> None:
    work = Blocking()
    blocked = FakeJob(work, due=lambda visit: visit.key.partition == 0)
    other = FakeJob(nothing)
    house = House(blocked, other)
    house.keeping.start()
    await house.until(work.began.is_set)
    leaving = house.replicas.pop(key(0))
    await house.keeping.leave(leaving.key)
    assert work.ended.is_set()
    await house.until(lambda: other.done == [1, 2])
    assert leaving.failures == []
    await house.close()
