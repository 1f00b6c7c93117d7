"""A replica whose role has just been decided: an event before the start of the role reaches that role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataplane.broker import replica as replica_module
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.replica import Replica
from dataplane.log.partition_log import LogConfig
from dataplane.replica.replica_state_machine import BeginRole, Failed
from tests.unit.dataplane.broker.role_bench import Bench
from tests.views import KEY, A, B, partition_view
from wire.types import BrokerId

HOME = Path("/data/t")


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def opened(bench: Bench, executor: ThreadPoolExecutor) -> Replica:
    bench.disk.make_directory(HOME)
    bench.context.executor = executor
    replica = Replica(KEY, HOME, LogConfig(), files=bench.disk)
    replica.open()
    return replica


def after_the_decision(replica: Replica, event: Callable[[], None]) -> None:
    """Has `event` happen in the turn of the loop in which the life decides to begin a role."""
    decided = replica.machine.on_prepared

    def hooked() -> Any:
        effects = decided()
        asyncio.get_running_loop().call_soon(event)
        replica.machine.on_prepared = decided  # type: ignore[method-assign]
        return effects

    replica.machine.on_prepared = hooked  # type: ignore[method-assign]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("the condition did not come true within 5 s")


async def settled(replica: Replica) -> None:
    await until(lambda: replica.view is not None and replica.machine.step is None)


@pytest.mark.parametrize("leader", [A, B])
@pytest.mark.parametrize("event", ["the disk fails", "damage is found"])
async def test_a_replica_that_fails_before_its_role_has_started_withdraws_and_serves_no_one(
    executor: ThreadPoolExecutor, leader: BrokerId, event: str
) -> None:
    bench = Bench(asyncio.get_running_loop())
    replica = opened(bench, executor)
    seen: list[Any] = []

    def happens() -> None:
        seen.append((replica.machine.step, replica.role))
        if event == "the disk fails":
            replica.fail("the checkpoint cannot be written: EIO", bench.context)
        else:
            replica.on_damage("a flipped bit", bench.context)

    after_the_decision(replica, happens)
    replica.on_view(partition_view(A, B, leader=leader), bench.context)
    await until(lambda: len(bench.withdrawn) > 0 and (replica.role is None or replica.role.ended))
    assert [isinstance(step, BeginRole) and role is not None for step, role in seen] == [True]
    assert len(bench.withdrawn) == 1
    assert not bench.control.subscribed
    await replica.close(bench.context, "the test is over")


async def test_a_role_that_is_not_wanted_before_it_has_started_subscribes_to_nothing(
    executor: ThreadPoolExecutor,
) -> None:
    bench = Bench(asyncio.get_running_loop())
    replica = opened(bench, executor)
    after_the_decision(
        replica, lambda: replica.on_view(partition_view(A, B, leader=B, epoch=9, leader_epoch=9), bench.context)
    )
    replica.on_view(partition_view(A, B, leader=A), bench.context)
    await settled(replica)
    assert replica.role is not None
    assert replica.role.leader_epoch == 9
    assert not bench.control.subscribed
    await replica.close(bench.context, "the test is over")


async def test_a_leader_that_is_deposed_acts_no_more_from_the_moment_in_which_it_hears_that(
    executor: ThreadPoolExecutor,
) -> None:
    bench = Bench(asyncio.get_running_loop())
    replica = opened(bench, executor)
    replica.on_view(partition_view(A, B, leader=A), bench.context)
    await settled(replica)
    role = replica.role
    assert isinstance(role, LeaderDriver)
    assert not role.is_over()
    replica.on_view(partition_view(A, B, leader=B, epoch=9, leader_epoch=9), bench.context)
    assert role.is_over()
    await settled(replica)
    assert isinstance(replica.role, FollowerDriver)
    await replica.close(bench.context, "the test is over")


async def test_a_role_that_cannot_be_made_withdraws(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    bench = Bench(asyncio.get_running_loop())
    replica = opened(bench, executor)
    monkeypatch.setattr(replica_module, "LeaderDriver", broken)
    replica.on_view(partition_view(A, B, leader=A), bench.context)
    await settled(replica)
    assert isinstance(replica.machine.health, Failed)
    assert replica.role is None
    assert len(bench.withdrawn) == 1
    await replica.close(bench.context, "the test is over")
