"""What leading and following have in common: a life that ends, a timer, and a failed log."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from dataplane.broker.context import BrokerContext
from dataplane.log.partition_log import PartitionLog
from dataplane.replica.producers import ProducerTable
from wire.types import LeaderEpoch, Offset, PartitionView, Withdrawal

log = logging.getLogger(__name__)


class Role(ABC):
    """One replica's part in one LeaderEpoch. After `end` nothing that comes back late has an effect: every completion
    is checked against `ended` first."""

    def __init__(self, context: BrokerContext, view: PartitionView, partition_log: PartitionLog, producers: ProducerTable) -> None:
        self.context = context
        self.view = view
        self.log = partition_log
        self.producers = producers
        self.ended = False
        self.failed: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._syncs_out = 0
        self._work: set[asyncio.Task[None]] = set()

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.view.leader_epoch

    def is_over(self) -> bool:
        return self.ended

    @property
    @abstractmethod
    def high_watermark(self) -> Offset: ...

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def on_view(self, view: PartitionView) -> None:
        """Newer metadata of the same LeaderEpoch."""

    @abstractmethod
    def on_connection(self, connected: bool) -> None: ...

    @abstractmethod
    async def end(self, reason: str) -> None: ...

    @abstractmethod
    def _tick(self) -> None: ...

    @abstractmethod
    def _next_deadline(self) -> float: ...

    # ------------------------------------------------------------------ timer
    def _schedule(self) -> None:
        """Arm the timer for the machine's next deadline; cheap when it has not come closer."""
        if self.ended:
            return
        due = self._next_deadline()
        if self._timer is not None:
            if due >= self._timer_at:
                return  # it fires early and is armed again then
            self._timer.cancel()
            self._timer = None
        if due == float("inf"):
            return
        self._timer_at = due
        self._timer = self.context.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.ended:
            return
        if self._next_deadline() <= self.context.now() + 0.0005:
            self._tick()
        self._schedule()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ work that takes a while
    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that touches the log off the loop. The next role begins when all of it is done."""
        task = self.context.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("partition %s: %r", self.view.key, task.exception(), exc_info=task.exception())

    async def _finish_work(self) -> None:
        if self._work:
            await asyncio.wait(set(self._work))

    # ------------------------------------------------------------------ syncing and failing
    def _request_sync(self) -> None:
        """At most two are out: one that runs, and one that has not begun and covers all that was appended until it does."""
        if self._syncs_out < 2:
            self._syncs_out += 1
            self.context.syncer.request(self.log, self._sync_done)

    def _sync_done(self, result: Offset | Exception) -> None:
        self._syncs_out -= 1
        if self.ended:
            return
        if isinstance(result, Exception):
            self._fail(f"fdatasync failed: {result}")
            return
        if result < self.log.log_end_offset and self._syncs_out == 0:
            self._request_sync()
        self._on_synced(result)
        self._schedule()

    @abstractmethod
    def _on_synced(self, durable_end: Offset) -> None: ...

    def _fail(self, reason: str) -> None:
        """This replica is unsound: out of the ISR, and nothing more from it in this life."""
        if self.failed is not None:
            return
        self.failed = reason
        log.error("partition %s: replica on %s withdraws: %s", self.view.key, self.context.broker, reason)
        self.context.counters.withdrawals += 1
        self.context.metadata.withdraw(
            Withdrawal(
                key=self.view.key, broker=self.context.broker, expected_epoch=self.view.epoch, reason=reason
            )
        )
        self.context.loop.create_task(self.end(reason))


