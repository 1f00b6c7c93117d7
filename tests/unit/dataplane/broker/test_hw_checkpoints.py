"""The periodic checkpoints: which logs get one, and that a log with a bug keeps none from the others."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker import hw_checkpoints
from dataplane.broker.hw_checkpoints import HighWatermarkCheckpoints
from dataplane.log.group_commit import SyncScheduler
from tests.views import KEY
from wire.types import Offset


class FakeReplica:
    """Owes a checkpoint always."""

    def __init__(self, number: int) -> None:
        self.key = replace(KEY, partition=number)
        self.written = asyncio.Event()

    @property
    def owes_checkpoint(self) -> bool:
        return True

    def keep_checkpoint(self) -> Offset:
        return Offset(5)

    def on_checkpoint(self, outcome: Offset | Exception, context: object) -> None:
        assert outcome == 5
        self.written.set()


class BrokenReplica(FakeReplica):
    asked = 0

    @property
    def owes_checkpoint(self) -> bool:
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
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas))
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

    def keep_checkpoint(self) -> Offset:
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
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas))
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
