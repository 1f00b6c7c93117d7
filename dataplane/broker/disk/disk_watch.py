"""Watches the calls that wait for a broker's disk, and carries out the decisions of `dataplane.replica.disk_guards`.

Watched are the syncs of logs and the periodic checkpoints (`Syncer.waiting_since`). The start of a role is not: while
it hangs the followers get no answer, and report that (R27). All methods belong to the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from dataplane.log.storage.group_commit import Syncer
from dataplane.replica.disk_guards import DiskGuard
from dataplane.replica.replica_settings import ReplicaSettings
from wire.operations.api_operations import DiskStatus

_log = logging.getLogger(__name__)


class DiskWatch:
    """`on_change(hangs)`: called when the disk has begun to hang, or answers again."""

    def __init__(self, settings: ReplicaSettings, syncers: Sequence[Syncer], loop: asyncio.AbstractEventLoop) -> None:
        self.on_change: Callable[[bool], None] = lambda _: None
        self._syncers = syncers
        self._loop = loop
        self._guard = DiskGuard(limit=settings.replica_max_lag_time, late=settings.late_tick, now=loop.time())
        self._hung_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = self._loop.create_task(self._look_for_ever())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    @property
    def hangs(self) -> bool:
        return self._guard.hangs

    def status(self) -> DiskStatus:
        return {"hangs": self._guard.hangs, "waited_s": round(self._guard.waited, 3)}

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._guard.interval)
            try:
                self._look()
            except Exception:  # noqa: BLE001 - it is logged
                _log.exception("watching the calls that wait for the disk met a bug; it goes on")

    def _look(self) -> None:
        now = self._loop.time()
        if not self._guard.on_look(min(syncer.waiting_since for syncer in self._syncers), now):
            return
        if self._guard.hangs:
            self._hung_at = now - self._guard.waited
            _log.warning(
                "the disk hangs: a sync has not returned for %.1f s; leaderships go to brokers whose disks answer",
                self._guard.waited,
            )
        else:
            _log.info("the disk answers again, %.1f s after it began to hang", now - self._hung_at)
        self.on_change(self._guard.hangs)
