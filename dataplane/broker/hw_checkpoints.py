"""The high watermarks of all logs, written down every second; logs of `accepted` streams are synced with them.

Several logs are written at a time, each by one of CHECKPOINTS_AT_ONCE workers with a thread of its own, so that a log
on a hanging disk holds up no other log. A log is queued at most once: one that hangs keeps one worker until the disk
answers.

    every INTERVAL     logs that owe a checkpoint, and are neither queued nor being written, join the queue
    worker             takes the oldest of the queue; ends when the queue is empty
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping

from dataplane.broker.context import BrokerContext
from dataplane.broker.replica import Replica
from wire.types import PartitionKey

_log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds."""
CHECKPOINTS_AT_ONCE = 4
"""No more than `BrokerContext.checkpoints` has threads."""


class HighWatermarkCheckpoints:
    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._queue: deque[Replica] = deque()
        self._due: set[Replica] = set()
        """Logs in the queue, and logs that are being written."""
        self._workers: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = self._context.loop.create_task(self._look_for_ever())

    async def close(self) -> None:
        """A write in a thread goes on; the log's own close waits for it."""
        tasks = {*self._workers, *([self._looking] if self._looking is not None else [])}
        self._queue.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            owing = [r for r in self._replicas.values() if r not in self._due and _owes_checkpoint(r)]
            self._due.update(owing)
            self._queue.extend(owing)
            for _ in range(min(len(self._queue), CHECKPOINTS_AT_ONCE - len(self._workers))):
                worker = self._context.loop.create_task(self._work())
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._queue:
            replica = self._queue.popleft()
            try:
                await replica.keep_checkpoint(self._context)
            except Exception:  # noqa: BLE001 - it is logged
                _log.exception("partition %s: the checkpoint met a bug", replica.key)
            finally:
                self._due.discard(replica)


def _owes_checkpoint(replica: Replica) -> bool:
    try:
        return replica.owes_checkpoint
    except Exception:  # noqa: BLE001 - it is logged, and the other logs get their checkpoints
        _log.exception("partition %s: whether it owes a checkpoint is not known; it is asked again", replica.key)
        return False
