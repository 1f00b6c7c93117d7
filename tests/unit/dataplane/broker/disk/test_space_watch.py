"""The watch of a broker's disk: its reports, its reserve, and the work that waits for room."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dataplane.broker.disk.space_watch import RESERVE_FILE, SpaceWatch
from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.log.storage.log_errors import NoSpace
from tests.simulation.machines.disk import AMPLE, SimDisk
from wire.types import Room

HOME = Path("/data")
LIMIT = 1000


class Bench:
    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_directory(HOME)
        self.rooms: list[Room] = []
        self.watch = SpaceWatch(
            self.disk,
            HOME,
            StorageSettings(min_free_bytes=LIMIT),
            executor=ThreadPoolExecutor(1),
            loop=asyncio.get_running_loop(),
        )
        self.watch.on_room = self.rooms.append

    async def settle(self) -> None:
        while self.watch._tasks:
            await asyncio.wait(set(self.watch._tasks))
        await asyncio.sleep(0)

    async def look(self, free: int) -> None:
        self.disk.capacity = self.disk.used + free
        await self.watch.look()
        await self.settle()

    @property
    def reserved(self) -> int:
        return dict(self.disk.files_below(HOME)).get(HOME / RESERVE_FILE, 0)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_listeners_hear_of_each_change_once(bench: Bench) -> None:
    for free in (5 * LIMIT, 4 * LIMIT, LIMIT // 2, LIMIT // 2, 9 * LIMIT):
        await bench.look(free)
    assert bench.rooms == [Room.FULL, Room.AMPLE]


async def test_the_reserve_is_taken_with_room_and_given_back_when_the_disk_refuses(bench: Bench) -> None:
    await bench.look(10 * LIMIT)
    assert bench.reserved == LIMIT // 4
    await bench.look(LIMIT // 2)
    assert bench.reserved == LIMIT // 4
    bench.watch.refused(NoSpace("the checkpoint"))
    await bench.settle()
    assert bench.reserved == 0
    await bench.look(10 * LIMIT)
    assert bench.reserved == LIMIT // 4


async def test_missing_room_is_evicted_once_at_a_time(bench: Bench) -> None:
    wanted: list[int] = []

    async def evict(amount: int) -> int:
        wanted.append(amount)
        bench.disk.capacity += amount
        return amount

    bench.watch.evict = evict
    await bench.look(LIMIT + 500)
    assert wanted == [3 * LIMIT - LIMIT - 500]
    assert bench.watch.room is Room.AMPLE


async def test_a_start_waits_for_room(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.broker.disk.space_watch.NO_SPACE_RETRY", 0.0)
    attempts = 0

    async def work() -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise NoSpace("the epochs")
        return "done"

    assert await bench.watch.when_there_is_room(work) == "done"
    assert attempts == 3
    bench.disk.capacity = AMPLE
    await bench.settle()
