"""The periodic checkpoints: which logs get one, and that a log with a bug keeps none from the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker import hw_checkpoints
from dataplane.broker.hw_checkpoints import HighWatermarkCheckpoints
from tests.views import KEY


class FakeReplica:
    """Owes a checkpoint always."""

    def __init__(self, number: int) -> None:
        self.key = replace(KEY, partition=number)
        self.written = asyncio.Event()

    @property
    def owes_checkpoint(self) -> bool:
        return True

    async def keep_checkpoint(self, context: object) -> None:
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
    context = SimpleNamespace(loop=asyncio.get_running_loop())
    replicas = {replica.key: replica for replica in (broken, sound)}
    checkpoints = HighWatermarkCheckpoints(cast(Any, context), cast(Any, replicas))
    checkpoints.start()
    async with asyncio.timeout(10):
        for _ in range(3):
            await sound.written.wait()
            sound.written.clear()
    await checkpoints.close()
    assert broken.asked >= 3
    assert "s/0: whether it owes a checkpoint is not known" in caplog.text
