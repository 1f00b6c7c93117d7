"""The periodic checkpoints: which logs get one, and that a log with a bug keeps none from the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.upkeep import hw_checkpoints
from dataplane.broker.upkeep.hw_checkpoints import CheckpointDue, HighWatermarkCheckpoints
from dataplane.log.storage.group_commit import Syncable, SyncScheduler
from dataplane.log.storage.manifest import Committed, Manifest
from tests.simulation.machines.disk import SimDisk
from tests.turns import finished
from tests.views import KEY
from wire.types import LeaderEpoch, Offset


def manifest() -> Manifest:
    """A written one."""
    made = Manifest(SimDisk(), Path("/"), {})
    made.write()
    return made


class FakeReplica:
    """Owes a checkpoint always."""

    def __init__(self, number: int) -> None:
        self.key = replace(KEY, partition=number)
        self.written = asyncio.Event()

    @property
    def owed(self) -> CheckpointDue:
        return CheckpointDue.HIGH_WATERMARK

    def checkpoint_at_once(self) -> bool:
        return False

    def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
        assert not syncs_only
        return Offset(5)

    def on_checkpoint(self, outcome: Offset | Exception, context: object) -> None:
        assert outcome == 5
        self.written.set()


class BrokenReplica(FakeReplica):
    asked = 0

    @property
    def owed(self) -> CheckpointDue:
        self.asked += 1
        raise ValueError("a bug")


async def test_a_log_that_cannot_say_whether_it_owes_a_checkpoint_keeps_none_from_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hw_checkpoints, "INTERVAL", 0.001)
    broken, sound = BrokenReplica(0), FakeReplica(1)
    loop = asyncio.get_running_loop()
    scheduler = SyncScheduler(loop.call_soon_threadsafe)
    context = SimpleNamespace(loop=loop, checkpoints=scheduler)
    replicas = {replica.key: replica for replica in (broken, sound)}
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas), manifest())
    checkpoints.start()
    async with asyncio.timeout(10):
        for _ in range(3):
            await sound.written.wait()
            sound.written.clear()
    await checkpoints.close()
    scheduler.close()
    assert broken.asked >= 3
    assert "s/0: whether it owes a checkpoint is not known" in caplog.text


class HangingReplica(FakeReplica):
    """Its disk hangs until `answers` is set."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.begun = 0
        self.answers = threading.Event()

    def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
        assert not syncs_only
        self.begun += 1
        assert self.answers.wait(10)
        return Offset(5)


async def test_a_checkpoint_that_hangs_is_not_asked_for_again_and_keeps_none_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hw_checkpoints, "INTERVAL", 0.001)
    hanging, sound = HangingReplica(0), FakeReplica(1)
    loop = asyncio.get_running_loop()
    scheduler = SyncScheduler(loop.call_soon_threadsafe, threads=2)
    context = SimpleNamespace(loop=loop, checkpoints=scheduler)
    replicas = {replica.key: replica for replica in (hanging, sound)}
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas), manifest())
    checkpoints.start()
    async with asyncio.timeout(10):
        for _ in range(5):
            await sound.written.wait()
            sound.written.clear()
        assert hanging.begun == 1
        assert checkpoints._asked >= {cast(Any, hanging)}
        hanging.answers.set()
        await hanging.written.wait()
    await checkpoints.close()
    scheduler.close()


class CountedReplica(FakeReplica):
    """It is written to all the time."""

    def __init__(self, number: int, owes: CheckpointDue) -> None:
        super().__init__(number)
        self._owes = owes
        self.synced = 0
        self.high_watermarks = 0

    @property
    def owed(self) -> CheckpointDue:
        return self._owes

    def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
        self.synced += self._owes is CheckpointDue.SYNC
        self.high_watermarks += not syncs_only
        return Offset(5)


class Scheduler:
    """Does what it is asked for."""

    def request(self, log: Syncable, done: Callable[[Offset | Exception], None]) -> None:
        done(log.sync())


def test_of_many_logs_some_get_their_turn_each_time_and_syncs_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hw_checkpoints, "HIGH_WATERMARKS", 2)
    logs = [
        CountedReplica(number, CheckpointDue.SYNC if number % 2 else CheckpointDue.HIGH_WATERMARK)
        for number in range(6)
    ]
    idle = CountedReplica(6, CheckpointDue.NOTHING)
    replicas = {replica.key: replica for replica in (*logs, idle)}
    checkpoints = HighWatermarkCheckpoints(
        cast(Any, SimpleNamespace(checkpoints=Scheduler())), cast(Any, replicas), manifest()
    )
    for number in range(6):
        finished(checkpoints._look())
        assert [log.synced for log in logs] == [0, number + 1] * 3
        assert sum(log.high_watermarks for log in logs) == 2 * (number + 1)
    assert [log.high_watermarks for log in logs] == [2] * 6
    assert idle.high_watermarks == 0


def test_no_log_waits_longer_than_ten_rounds() -> None:
    logs = [CountedReplica(number, CheckpointDue.HIGH_WATERMARK) for number in range(1000)]
    replicas = {replica.key: replica for replica in logs}
    checkpoints = HighWatermarkCheckpoints(
        cast(Any, SimpleNamespace(checkpoints=Scheduler())), cast(Any, replicas), manifest()
    )
    for _ in range(10):
        finished(checkpoints._look())
    assert {log.high_watermarks for log in logs} == {1}


def test_what_needs_no_thread_is_done_at_once_for_all_logs() -> None:
    """And the manifest is written for it in the same round."""
    kept = manifest()
    names = [f"s-1/{number}-1" for number in range(1000)]
    for name in names:
        kept.entry(name).add()
    kept.write()

    class AtOnce(FakeReplica):
        def checkpoint_at_once(self) -> bool:
            kept.entry(names[self.key.partition]).raise_to(Committed(Offset(5), LeaderEpoch(1)))
            return True

        def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
            raise NotImplementedError

    replicas = {replica.key: replica for replica in map(AtOnce, range(1000))}
    context = SimpleNamespace(checkpoints=Scheduler())
    finished(HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas), kept)._look())
    assert not kept.is_due
    assert {kept.committed(name) for name in names} == {Committed(Offset(5), LeaderEpoch(1))}


def test_the_manifest_is_written_once_for_all_checkpoints_of_a_round() -> None:
    """And not at all where none has changed it."""
    kept = manifest()
    names = [f"s-1/{number}-1" for number in range(100)]
    for name in names:
        kept.entry(name).add()
    kept.write()

    class Scheduler:
        def __init__(self) -> None:
            self.waiting: list[tuple[Syncable, Callable[[Offset | Exception], None]]] = []
            self.manifests = 0

        def request(self, log: Syncable, done: Callable[[Offset | Exception], None]) -> None:
            self.waiting.append((log, done))

        def run(self) -> None:
            while self.waiting:
                log, done = self.waiting.pop(0)
                self.manifests += log is kept
                done(log.sync())

    class Checkpointed(FakeReplica):
        def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
            kept.entry(names[self.key.partition]).raise_to(Committed(Offset(5), LeaderEpoch(1)))
            return Offset(5)

    scheduler = Scheduler()
    replicas = {replica.key: replica for replica in map(Checkpointed, range(10))}
    context = SimpleNamespace(checkpoints=scheduler)
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas), kept)
    for _ in range(3):
        finished(checkpoints._look())
        scheduler.run()
    assert scheduler.manifests == 1
    assert not kept.is_due
