"""The end of a broker: it does not wait for ever for a disk that hangs, and says which logs it leaves open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from dataplane.broker.broker import _CLOSED_AT_ONCE, Broker
from dataplane.broker.replica import Replica
from dataplane.log.storage.log_errors import DataDirError
from dataplane.log.storage.manifest import Manifest, ManifestEntry
from dataplane.replica.history import History
from dataplane.replica.replica_settings import ReplicaSettings
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.views import KEY, A, B
from wire.types import BrokerId, Generation, Incarnation, PartitionGone, PartitionKey, PartitionView

LAG = 0.05


class FakeReplica:
    """Its close ends when `answers` is set."""

    def __init__(self, key: PartitionKey, answers: asyncio.Event) -> None:
        self.key = key
        self.answers = answers
        self.is_damaged = False
        self.is_closing = False
        self.left = asyncio.Event()
        self.assigned_at: Generation | None = None
        self.is_taken_back = False

    def on_view(self, view: PartitionView, context: object) -> None:
        pass

    async def close(self, context: object, reason: str) -> None:
        self.is_closing = True
        await self.answers.wait()

    async def leave_manifest(self, context: object) -> None:
        self.left.set()


class FakeMetadata:
    """Of a cluster that has begun anew."""

    generation = Generation(5)
    recovered_at = Generation(3)

    @staticmethod
    def is_of_lost_decisions(_key: PartitionKey, assigned_at: Generation | None) -> bool:
        return assigned_at is None


class FakeDataDir:
    def __init__(self) -> None:
        self.manifest = Manifest(SimDisk(), Path("/"), {})
        self.files, self.pool = SimDisk(), None
        self.settled = Incarnation(0)
        self.is_settled = False
        self.filed: set[int] = set()
        self.taken_back: set[int] = set()
        self.removed: dict[int, bool] = {}
        """Whether its log was set aside, by partition."""

    def partition_directory(self, key: PartitionKey) -> Path:
        return Path(f"/{key.partition}")

    def file_checkpoint(self, key: PartitionKey) -> None:
        self.filed.add(key.partition)

    def manifest_entry(self, key: PartitionKey) -> ManifestEntry:
        return self.manifest.entry(str(key.partition))

    def settle(self) -> None:
        self.is_settled = True

    def take_back(self, key: PartitionKey) -> Path:
        return Path(f"/{key.partition}.lost")

    def is_taken_back(self, key: PartitionKey) -> bool:
        return key.partition in self.taken_back

    def count(self, key: PartitionKey) -> None:
        self.taken_back.discard(key.partition)

    def remove_partition(self, key: PartitionKey, *, sets_aside: bool) -> Path | None:
        assert sets_aside == (key.partition in self.filed)
        self.removed[key.partition] = sets_aside
        return Path(f"/{key.partition}.lost") if sets_aside else None


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
    context.metadata = cast(Any, FakeMetadata())
    return Broker(context, cast(Any, FakeDataDir()), cast(Any, replicas))


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
    await asyncio.sleep(0)
    assert left == [keys[3], keys[1]]
    broker.on_all_partitions()
    await asyncio.sleep(0)
    assert len(left) == 2


async def test_very_many_logs_that_go_are_closed_a_few_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers = asyncio.Event()
    replicas = [FakeReplica(replace(KEY, partition=n), answers) for n in range(2 * _CLOSED_AT_ONCE + 3)]
    broker = broker_with(*replicas)
    broker.on_partitions([view(A, B, key=replicas[0].key)])
    broker.on_all_partitions()
    for _ in range(10):
        await asyncio.sleep(0)
    assert sum(replica.is_closing for replica in replicas) == _CLOSED_AT_ONCE
    (line,) = [record.message for record in caplog.records if "not this broker's" in record.message]
    assert line.startswith(f"{len(replicas) - 1} partitions are not this broker's any more; their logs go: s/1, ")
    assert line.endswith("more")

    back = replicas[-1]
    broker.on_partitions([view(A, B, key=back.key)])
    answers.set()
    async with asyncio.timeout(10):
        for replica in replicas[1:-1]:
            await replica.left.wait()
    assert not any(replica.is_closing for replica in (replicas[0], back)), "these are this broker's"
    assert await broker.close()


async def test_a_log_is_set_aside_where_no_present_decision_gave_this_broker_the_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = asyncio.Event()
    answers.set()
    replicas = [FakeReplica(replace(KEY, partition=n), answers) for n in range(2)]
    broker = broker_with(*replicas)
    broker.on_partitions([view(A, B, key=replicas[0].key)])
    broker.on_all_partitions()
    broker.on_partitions([PartitionGone(replicas[0].key)])
    async with asyncio.timeout(10):
        for replica in replicas:
            await replica.left.wait()
        assert await broker.close()
    assert cast(Any, broker._data_dir).removed == {0: False, 1: True}
    (line,) = [record.message for record in caplog.records if "/1.lost" in record.message]
    assert "tidelog stream reassign" in line


@pytest.mark.parametrize(("leader", "takes"), [(None, True), (A, True), (B, False)])
async def test_a_log_that_was_set_aside_is_taken_back_where_no_other_broker_leads(
    leader: BrokerId | None, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "on_view", lambda *_: None)
    broker = broker_with()
    broker.on_partitions([replace(view(A, B), leader=leader)])
    (replica,) = broker._replicas.values()
    assert (replica.take_back() is not None) is takes
    await broker.close()


C = BrokerId("c")


@pytest.mark.parametrize("is_at_start", [False, True])
@pytest.mark.parametrize(("leader", "isr", "counts"), [(None, (B,), False), (C, (B, C), False), (B, (A, B), True)])
async def test_a_log_that_was_taken_back_and_has_not_counted_since_is_set_aside_again(
    leader: BrokerId | None, isr: tuple[BrokerId, ...], counts: bool, is_at_start: bool
) -> None:
    answers = asyncio.Event()
    answers.set()
    replica = FakeReplica(KEY, answers)
    replica.is_taken_back = True
    broker = broker_with(replica)
    folder = cast(Any, broker._data_dir)
    folder.taken_back, folder.settled = {0}, Incarnation(4)
    if not is_at_start:
        broker.on_partitions([replace(view(A, B), leader=leader, isr=isr)])
        while broker._counting:
            await asyncio.wait(broker._counting)
        assert folder.taken_back == (set() if counts else {0})
        broker.on_partitions([PartitionGone(KEY)])
    broker.on_all_partitions()
    async with asyncio.timeout(10):
        await replica.left.wait()
        assert await broker.close()
    assert folder.removed == {0: is_at_start or not counts}


@pytest.mark.parametrize(("settled", "is_set_aside"), [(2, True), (3, True), (4, False)])
async def test_a_log_that_was_given_since_the_cluster_began_anew_is_removed_by_a_later_process(
    settled: int, is_set_aside: bool
) -> None:
    answers = asyncio.Event()
    answers.set()
    replica = FakeReplica(KEY, answers)
    broker = broker_with(replica)
    folder = cast(Any, broker._data_dir)
    folder.settled = Incarnation(settled)
    broker.on_all_partitions()
    async with asyncio.timeout(10):
        await replica.left.wait()
        assert await broker.close()
    assert folder.removed == {0: is_set_aside}


@pytest.mark.parametrize(("logs", "fails"), [(0, False), (2, False), (2, True)])
async def test_a_broker_writes_down_that_every_log_is_its_own_when_the_others_are_gone(logs: int, fails: bool) -> None:
    answers = asyncio.Event()
    replicas = [FakeReplica(replace(KEY, partition=n), answers) for n in range(logs)]
    broker = broker_with(*replicas)
    folder = cast(Any, broker._data_dir)
    if fails:
        folder.file_checkpoint = Mock(side_effect=DataDirError("it is full"))
    broker.on_all_partitions()
    await asyncio.sleep(0)
    assert folder.is_settled is (logs == 0)
    answers.set()
    async with asyncio.timeout(10):
        if broker._leaving_all is not None:
            await broker._leaving_all
        assert folder.is_settled is not fails
        await broker.close()


async def test_a_broker_that_ends_does_not_wait_for_logs_whose_removal_has_not_begun() -> None:
    never = asyncio.Event()
    replicas = [FakeReplica(replace(KEY, partition=n), never) for n in range(2 * _CLOSED_AT_ONCE)]
    broker = broker_with(*replicas)
    broker.on_all_partitions()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert not await broker.close()
    assert not any(replica.left.is_set() for replica in replicas)
    never.set()
