"""The end of a broker: it does not wait for ever for a disk that hangs, and says which logs it leaves open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.broker import _CLOSED_AT_ONCE, Broker
from dataplane.log.storage.manifest import Manifest
from dataplane.replica.history import History
from dataplane.replica.replica_settings import ReplicaSettings
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.views import KEY, A, B
from wire.types import PartitionGone, PartitionKey, PartitionView

LAG = 0.05


class FakeReplica:
    """Its close ends when `answers` is set."""

    def __init__(self, key: PartitionKey, answers: asyncio.Event) -> None:
        self.key = key
        self.answers = answers
        self.is_damaged = False
        self.is_closing = False

    def on_view(self, view: PartitionView, context: object) -> None:
        pass

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
        follower_read_max_age=1.5,
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
    assert f"nothing has come of closing the logs of s/1 for {LAG:.1f} s: the disk hangs" in caplog.text
    never.set()


async def test_a_close_waits_for_a_disk_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    answers = asyncio.Event()
    answers.set()
    assert await broker_with(*(FakeReplica(replace(KEY, partition=n), answers) for n in range(3))).close()
    assert "hangs" not in caplog.text


async def test_very_many_replicas_begin_to_close_in_turns() -> None:
    answers = asyncio.Event()
    replicas = [FakeReplica(replace(KEY, partition=n), answers) for n in range(4 * _CLOSED_AT_ONCE)]
    closing = asyncio.create_task(broker_with(*replicas).close())
    begun = [0]
    while begun[-1] < len(replicas):
        await asyncio.sleep(0)
        begun.append(sum(replica.is_closing for replica in replicas))
    assert max(after - before for before, after in pairwise(begun)) == _CLOSED_AT_ONCE
    answers.set()
    assert await closing


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


async def test_events_have_the_time_at_which_they_were() -> None:
    broker = broker_with()
    broker.context.now, broker.context.time_ns = lambda: 100.0, lambda: 1_769_860_800_000_000_000
    history = History()
    history.add("leads", 98.5)
    assert broker._events_of(history) == [
        {"seconds_ago": 1.5, "time": "2026-01-31T11:59:58.500+00:00", "event": "leads", "times": 1}
    ]


async def test_logs_of_which_no_view_has_come_go_when_all_views_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[PartitionKey] = []
    keys = [replace(KEY, partition=number) for number in range(4)]
    broker = broker_with(*(FakeReplica(key, asyncio.Event()) for key in keys))
    monkeypatch.setattr(broker, "_leave", left.append)
    broker.on_partitions([view(A, B, key=keys[0])])
    broker.on_partitions([view(A, B, key=keys[2]), PartitionGone(keys[3])])
    assert left == [keys[3]]
    broker.on_all_partitions()
    assert left == [keys[3], keys[1]]
    broker.on_all_partitions()
    assert len(left) == 2
