"""The end of a broker: it does not wait for ever for a disk that hangs, and says which logs it leaves open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.broker import Broker
from dataplane.log.manifest import Manifest
from dataplane.replica.replica_settings import ReplicaSettings
from tests.simulation.disk import SimDisk
from tests.unit.dataplane.broker.role_bench import Bench
from tests.views import KEY
from wire.types import PartitionKey

LAG = 0.05


class FakeReplica:
    """Its close ends when `answers` is set."""

    def __init__(self, key: PartitionKey, answers: asyncio.Event) -> None:
        self.key = key
        self.answers = answers
        self.is_damaged = False
        self.is_closing = False

    async def close(self, context: object, reason: str) -> None:
        self.is_closing = True
        await self.answers.wait()


class Nothing:
    """In place of the watch of the disk's room."""

    async def close(self) -> None:
        pass


def broker_with(*replicas: FakeReplica) -> Broker:
    bench = Bench(asyncio.get_running_loop())
    context = bench.context
    context.settings = ReplicaSettings(
        replica_max_idle_wait=0.01,
        replica_max_lag_time=LAG,
        follower_read_max_age=1.0,
        replica_max_leader_timeout=0.1,
    )
    context.space = cast(Any, Nothing())
    data_dir = SimpleNamespace(manifest=Manifest(SimDisk(), Path("/"), {}))
    return Broker(context, cast(Any, data_dir), cast(Any, replicas))


async def test_a_close_gives_up_the_logs_whose_disk_hangs_and_names_them(caplog: pytest.LogCaptureFixture) -> None:
    answers, never = asyncio.Event(), asyncio.Event()
    answers.set()
    replicas = [FakeReplica(replace(KEY, partition=n), never if n == 1 else answers) for n in range(3)]
    async with asyncio.timeout(10):
        assert not await broker_with(*replicas).close()
    assert all(replica.is_closing for replica in replicas)
    assert f"the disk hangs: nothing has come of closing the logs of s/1 for {LAG:.1f} s" in caplog.text
    never.set()


async def test_a_close_waits_for_a_disk_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    answers = asyncio.Event()
    answers.set()
    assert await broker_with(*(FakeReplica(replace(KEY, partition=n), answers) for n in range(3))).close()
    assert "hangs" not in caplog.text


async def test_a_step_of_the_housekeeping_that_hangs_keeps_no_log_open() -> None:
    answers, never = asyncio.Event(), asyncio.Event()
    answers.set()
    replica = FakeReplica(KEY, answers)
    broker = broker_with(replica)
    broker._housekeeping.close = never.wait  # type: ignore[method-assign,assignment]
    async with asyncio.timeout(10):
        assert await broker.close()
    assert replica.is_closing
    never.set()
