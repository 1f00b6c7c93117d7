"""What leading and following have in common: a life that ends, a timer, and a failed log."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from dataplane.broker.context import BrokerContext
from dataplane.broker.space import NO_SPACE_RETRY
from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.partition_log import PartitionLog
from wire.errors import InvariantViolation
from wire.transport import BulkHandler, GuardedBulk, Message, MessageHandler
from wire.types import LeaderEpoch, Offset, PartitionView, Withdrawal

log = logging.getLogger(__name__)

BEAT = 0.02
"""Seconds. Deadlines that are not near are met at the next multiple of it: so the timers of a thousand idle partitions
wake the loop fifty times a second, and what they send to one leader arrives together."""
NEAR = 0.25
"""Seconds. A deadline that is nearer is met exactly, unless the timer fires within a BEAT anyway."""


class Role(ABC):
    """One replica's part in one LeaderEpoch. After `end` nothing that comes back late has an effect: every completion
    is checked against `ended` first."""

    def __init__(
        self,
        context: BrokerContext,
        view: PartitionView,
        partition_log: PartitionLog,
        on_damage: Callable[[str], None],
    ) -> None:
        """`on_damage`: this replica's log is not what was written. Ends the role (`stop`)."""
        self.context = context
        self.view = view
        self.log = partition_log
        self.on_damage = on_damage
        self.ended = False
        self.failed: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._syncs_out = 0
        self._sync_due = False
        """One is asked for at the end of this turn of the loop."""
        self._sync_missed = False
        """A sync was asked for that none of those that are out may cover."""
        self._work: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

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
    def give_up_starting(self) -> None:
        """Nobody wants this role any more: a `start` that waits for the connection returns now. `end` follows."""

    @abstractmethod
    def on_view(self, view: PartitionView) -> None:
        """Newer metadata of the same LeaderEpoch."""

    @abstractmethod
    def on_log_start(self) -> None:
        """The log may start later than it did."""

    @abstractmethod
    def on_connection(self, connected: bool) -> None: ...

    @abstractmethod
    def on_space(self, no_space: bool) -> None:
        """The broker's disk has no room for records any more, or has some again."""

    @abstractmethod
    def on_disk(self, hangs: bool) -> None:
        """The broker's disk has begun to hang, or answers again."""

    @abstractmethod
    def on_read(self, message: Message) -> None:
        """A consumer's request to this replica."""

    async def end(self, reason: str) -> None:
        """Returns when all is let go and all work is done, whoever began the end."""
        await asyncio.shield(self._end_soon(reason))

    def _end_soon(self, reason: str) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = self.context.loop.create_task(self._end(reason))
        return self._ending

    async def _end(self, reason: str) -> None:
        self.ended = True
        self._stop_timer()
        try:
            await self._let_go(reason)
        except Exception:
            log.exception("partition %s: the end of a role met a bug", self.view.key)
        await self._finish_work()

    @abstractmethod
    async def _let_go(self, reason: str) -> None:
        """Answer whoever waits, give up subscriptions and inboxes."""

    @abstractmethod
    def _tick(self) -> None: ...

    @abstractmethod
    def _next_deadline(self) -> float: ...

    # ------------------------------------------------------------------ timer
    def _schedule(self) -> None:
        """Arm the timer for the machine's next deadline. Asked after every message: one that fires within a BEAT
        anyway stands, and what is due before that is met a BEAT late at most."""
        if self.ended or (self._timer is not None and self._timer_at - self.context.now() <= BEAT):
            return
        self._arm(self._next_deadline())

    def _arm(self, due: float) -> None:
        if self._timer is not None and due >= self._timer_at:
            return  # it fires early and is armed again then
        if due - self.context.now() > NEAR and due < math.inf:
            due = math.ceil(due / BEAT) * BEAT
        if self._timer is not None:
            if due >= self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if due == math.inf:
            return
        self._timer_at = due
        self._timer = self.context.loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.ended:
            return
        due = self._next_deadline()
        if due <= self.context.now() + 0.0005:
            self._carefully(self._tick)
            self._schedule()
        else:
            self._arm(due)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ bugs
    def _carefully(self, step: Callable[[], None]) -> None:
        """A rule of ours that is broken stops the partition here; any other bug is told, and the partition goes on."""
        try:
            step()
        except InvariantViolation as e:
            self._stop_on(e)
        except Exception:
            log.exception("partition %s met a bug", self.view.key)

    def _stop_on(self, error: InvariantViolation) -> None:
        log.error("partition %s: %s", self.view.key, error, exc_info=error)
        self.fail(f"a rule is broken: {error}")

    def _handler(self, handle: MessageHandler) -> MessageHandler:
        def careful(message: Message) -> None:
            try:
                handle(message)
            except InvariantViolation as e:
                self._stop_on(e)  # any other bug is the transport's to log and to count

        return careful

    def _bulk_handler(self, handler: BulkHandler) -> BulkHandler:
        """The same for a bulk subscription."""

        def on_error(error: Exception) -> None:
            if not isinstance(error, InvariantViolation):
                raise error
            self._stop_on(error)

        return GuardedBulk(handler, on_error)

    # ------------------------------------------------------------------ work that takes a while
    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that touches the log off the loop. The next role begins when all of it is done."""
        task = self.context.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_done)
        return task

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            self._carefully(task.result)

    async def _finish_work(self) -> None:
        if self._work:
            await asyncio.wait(set(self._work))

    # ------------------------------------------------------------------ syncing and failing
    def _request_sync(self) -> None:
        """At most two are out: one that runs, and one that has not begun and covers all that was appended until it
        does. It begins when what is to be sent before it has left."""
        if self._sync_due:
            return
        if self._syncs_out < 2:
            self._syncs_out += 1
            self._sync_due = True
            self.context.loop.call_soon(self._begin_sync)
        else:
            self._sync_missed = True

    def _begin_sync(self) -> None:
        self._sync_due = False
        if self.ended:
            self._syncs_out -= 1
            return
        try:
            durable_end = self.context.syncer.at_once(self.log)
        except LogDamaged as e:
            self._sync_done(e)
            return
        if durable_end is None:
            self.context.syncer.request(self.log, self._sync_done)
        else:
            self._sync_done(durable_end)

    def _sync_done(self, result: Offset | Exception) -> None:
        self._syncs_out -= 1
        if self.ended:
            return
        if isinstance(result, NoSpace):
            self.context.space.refused(result)
            self.context.loop.call_later(NO_SPACE_RETRY, self._sync_again)
            return
        if isinstance(result, Exception):
            self.fail(f"fdatasync failed: {result}")
            return
        # The log may have been cut and written anew since that sync.
        durable_end = min(result, self.log.durable_end)
        if self._sync_missed and self._syncs_out == 0:
            self._sync_missed = False
            if durable_end < self.log.log_end_offset:
                self._request_sync()
        self._carefully(lambda: self._on_synced(durable_end))
        self._schedule()

    def _sync_again(self) -> None:
        if not self.ended:
            self._request_sync()

    @abstractmethod
    def _on_synced(self, durable_end: Offset) -> None: ...

    def fail(self, reason: str) -> None:
        """This replica is unsound: out of the ISR, and nothing more from it in this life."""
        if self.failed is not None:
            return
        log.error("partition %s: replica on %s withdraws: %s", self.view.key, self.context.broker, reason)
        self.context.counters.withdrawals += 1
        self.context.metadata.withdraw(
            Withdrawal(key=self.view.key, broker=self.context.broker, expected_epoch=self.view.epoch, reason=reason)
        )
        self.stop(reason)

    def stop(self, reason: str) -> None:
        """It has failed: it ends by itself."""
        if self.failed is None:
            self.failed = reason
            self._end_soon(reason)
