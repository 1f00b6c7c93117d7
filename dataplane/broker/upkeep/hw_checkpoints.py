"""The high watermarks of logs, written down every second in one file, the manifest of the data folder
(`dataplane.log.storage.manifest`); logs of `accepted` streams are synced as often.

To take the high watermark of a log over into the manifest costs some microseconds, on the loop. Index entries, one for
64 KiB of a log, are written by threads, and by turns: of up to HIGH_WATERMARKS logs every second; of more, those that
have waited longest come first, and each has its turn within LONGEST_TURN. The high watermarks of these logs wait for
that; more of the log is then read and written again when it is opened after a crash, and after a loss of power damage
there looks like a torn write (docs/storage.md). Syncs of `accepted` streams do not wait.

The manifest is written when the threads are done, once for all logs of a turn.

A scheduler of its own (`BrokerContext.checkpoints`) writes CHECKPOINTS_AT_ONCE logs at a time, so that a log on a
hanging disk holds up no other log. A log that is asked for is not asked for again before its outcome is known: one that
hangs keeps one thread until the disk answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum
from functools import partial
from heapq import nsmallest
from typing import Protocol
from weakref import WeakKeyDictionary

from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.log.storage.group_commit import Syncable
from dataplane.log.storage.log_errors import NoSpace
from dataplane.log.storage.manifest import Manifest
from wire.turns import Steps, in_turns, pieces
from wire.types import Offset, PartitionKey

_log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds."""
HIGH_WATERMARKS = 20
"""That are written down in an interval; more where a log would else wait longer than LONGEST_TURN."""
LONGEST_TURN = 10
"""Intervals."""
_PIECE = 100
"""Logs that are looked at before `Steps` yield."""
_OF_REQUEST = 5
"""Looks that a request for a checkpoint takes as long as."""
CHECKPOINTS_AT_ONCE = 4
"""Threads of `BrokerContext.checkpoints`."""


class CheckpointDue(Enum):
    """The work of a periodic checkpoint."""

    NOTHING = "nothing"
    HIGH_WATERMARK = "high watermark"
    """To write it down, for it has moved since it was written last; or index entries."""
    SYNC = "sync"
    """To sync an `accepted` stream, too: records of it are not durable."""


class Checkpointed(Protocol):
    """A replica whose log gets checkpoints."""

    @property
    def key(self) -> PartitionKey: ...

    @property
    def owed(self) -> CheckpointDue: ...

    def checkpoint_at_once(self) -> bool: ...
    def keep_checkpoint(self, *, syncs_only: bool) -> Offset: ...
    def on_checkpoint(self, outcome: Offset | Exception, context: BrokerContext) -> None: ...


class _Checkpoint(Syncable):
    """One checkpoint of one log."""

    def __init__(self, replica: Checkpointed, *, syncs_only: bool) -> None:
        self._replica = replica
        self._syncs_only = syncs_only

    def sync(self) -> Offset:
        return self._replica.keep_checkpoint(syncs_only=self._syncs_only)


class HighWatermarkCheckpoints:
    def __init__(
        self, context: BrokerContext, replicas: Mapping[PartitionKey, Checkpointed], manifest: Manifest
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._manifest = manifest
        self._asked: set[Checkpointed] = set()
        """Logs whose checkpoint waits for a thread, or is being written."""
        self._rounds = 0
        self._last: WeakKeyDictionary[Checkpointed, int] = WeakKeyDictionary()
        """In which round a log had its turn."""
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
            await in_turns(self._look())

    def _look(self) -> Steps[None]:
        self._keep_manifest()
        owed: dict[Checkpointed, CheckpointDue] = {}
        for replicas in pieces([*self._replicas.values()], _PIECE):
            found = [(replica, _left_to_do(replica)) for replica in replicas if replica not in self._asked]
            owed.update((replica, what) for replica, what in found if what is not CheckpointDue.NOTHING)
            yield len(replicas)
        count = max(HIGH_WATERMARKS, -(-len(owed) // LONGEST_TURN))
        turns = {*nsmallest(count, owed, key=lambda replica: self._last.get(replica, -1))}
        self._rounds += 1
        self._last.update(dict.fromkeys(turns, self._rounds))
        yield len(owed)
        for replica, what in owed.items():
            if replica in turns or what is CheckpointDue.SYNC:
                self._asked.add(replica)
                checkpoint = _Checkpoint(replica, syncs_only=replica not in turns)
                self._context.checkpoints.request(checkpoint, partial(self._written, replica))
                yield _OF_REQUEST
        if not self._asked:
            self._keep_manifest()

    def _written(self, replica: Checkpointed, outcome: Offset | Exception) -> None:
        self._asked.discard(replica)
        replica.on_checkpoint(outcome, self._context)
        if not self._asked:
            self._keep_manifest()

    def _keep_manifest(self) -> None:
        if self._manifest.is_due:
            self._context.checkpoints.request(self._manifest, self._on_manifest)

    def _on_manifest(self, outcome: Offset | Exception) -> None:
        """One that could not be written vouches for less, and is written in the next round."""
        if isinstance(outcome, NoSpace):
            self._context.space.refused(outcome)
        elif isinstance(outcome, Exception):
            _log.error("%s; it is tried again", outcome)


def _left_to_do(replica: Checkpointed) -> CheckpointDue:
    """The work that a thread is needed for, once the rest is done."""
    try:
        owed = replica.owed
        return CheckpointDue.NOTHING if owed is CheckpointDue.HIGH_WATERMARK and replica.checkpoint_at_once() else owed
    except Exception:  # noqa: BLE001 - it is logged, and the other logs get their checkpoints
        _log.exception("partition %s: whether it owes a checkpoint is not known; it is asked again", replica.key)
        return CheckpointDue.NOTHING
