from __future__ import annotations

import asyncio

from metadata.runtime.applied_state import AppliedWaits
from tests.unit.metadata.brokers import CREATE, running
from wire.types import StreamName


async def test_a_wait_ends_with_the_change_that_it_waits_for() -> None:
    applied, seen = AppliedWaits(), 0
    looks = 0

    def holds() -> bool:
        nonlocal looks
        looks += 1
        return seen >= 2

    wait = asyncio.create_task(applied.until(holds, 60.0))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not wait.done()
        seen += 1
        applied.wake()
    await wait
    assert looks == 3, "once at first, and once after each change"


async def test_all_that_wait_are_woken_and_what_holds_already_is_not_waited_for() -> None:
    applied, holding = AppliedWaits(), False
    waits = [asyncio.create_task(applied.until(lambda: holding, 60.0)) for _ in range(3)]
    await asyncio.sleep(0)
    holding = True
    await applied.until(lambda: holding, 0.0)
    applied.wake()
    await asyncio.gather(*waits)


async def test_a_wait_ends_in_time_without_a_change() -> None:
    await AppliedWaits().until(lambda: False, 0.001)


async def test_a_change_that_is_applied_wakes_those_who_wait_for_it() -> None:
    async with running("a", "b", "c") as world:
        service = world.brokers["b"].service
        wait = asyncio.create_task(service.until_applied(lambda: StreamName("s") in service.state.streams, 600.0))
        await asyncio.sleep(0)
        assert not wait.done()
        await world.api("stream.create", **CREATE)
        async with asyncio.timeout(30):
            await wait
