"""The high watermarks of all logs, written down every second; logs of `accepted` streams are synced with them.

A scheduler of its own (`BrokerContext.checkpoints`) writes CHECKPOINTS_AT_ONCE logs at a time, so that a log on a
hanging disk holds up no other log. A log that is asked for is not asked for again before its outcome is known: one that
hangs keeps one thread until the disk answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from dataplane.broker.context import BrokerContext
from dataplane.broker.replica import Replica
from dataplane.log.group_commit import Syncable
from wire.types import Offset, PartitionKey

_log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds."""
CHECKPOINTS_AT_ONCE = 4
"""Threads of `BrokerContext.checkpoints`."""


class _Checkpoint(Syncable):
    """One checkpoint of one log."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def sync(self) -> Offset:
        return self._replica.keep_checkpoint()


class HighWatermarkCheckpoints:
    def __init__(self, context: BrokerContext, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._context = context
        self._replicas = replicas
        self._asked: set[Replica] = set()
        """Logs whose checkpoint waits for a thread, or is being written."""
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = self._context.loop.create_task(self._look_for_ever())

    async def close(self) -> None:
        """A write in a thread goes on; the log's own close waits for it."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            for replica in [r for r in self._replicas.values() if r not in self._asked and _owes_checkpoint(r)]:
                self._asked.add(replica)
                self._context.checkpoints.request(_Checkpoint(replica), partial(self._written, replica))

    def _written(self, replica: Replica, outcome: Offset | Exception) -> None:
        self._asked.discard(replica)
        replica.on_checkpoint(outcome, self._context)


def _owes_checkpoint(replica: Replica) -> bool:
    try:
        return replica.owes_checkpoint
    except Exception:  # noqa: BLE001 - it is logged, and the other logs get their checkpoints
        _log.exception("partition %s: whether it owes a checkpoint is not known; it is asked again", replica.key)
        return False
