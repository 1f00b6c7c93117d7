"""The common part of all roles of a replica: a life that ends, a timer, syncs, and a log that can fail."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dataplane.broker.context import BrokerContext
from dataplane.broker.id_keeper import IdKeeper
from dataplane.broker.sync_requests import SyncRequests
from dataplane.broker.timer import RoleTimer
from dataplane.log.partition_log import PartitionLog
from dataplane.replica.story import Story
from dataplane.replica.traffic import TrafficMeter
from wire.errors import InvariantViolation
from wire.messaging.transport import BulkHandler, GuardedBulk, Message, MessageHandler
from wire.types import LeaderEpoch, Offset, PartitionView, Withdrawal

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoleSetup:
    """All that a replica gives to the role that it begins."""

    context: BrokerContext
    view: PartitionView
    log: PartitionLog
    high_watermark: Offset
    on_damage: Callable[[str], None]
    """This replica's log is damaged; it ends the role (`stop`)."""
    on_failure: Callable[[str], None]
    """The role has failed, and ends by itself."""
    on_quarantined: Callable[[dict[str, Any]], None]
    """Records of the log were put aside; the report of that."""
    story: Story
    ids: IdKeeper = field(default_factory=IdKeeper)
    traffic: TrafficMeter = field(default_factory=TrafficMeter)


class Role(ABC):
    """One replica's part in one LeaderEpoch. After `end` nothing that comes back late has an effect: every completion
    is checked against `ended` first."""

    title: ClassVar[str]
    """Name of the role in `describe`."""

    def __init__(self, setup: RoleSetup) -> None:
        self.context = context = setup.context
        self.view = setup.view
        self.log = setup.log
        self.on_damage = setup.on_damage
        self._on_failure = setup.on_failure
        self.on_quarantined = setup.on_quarantined
        self.story = setup.story
        self.ids = setup.ids
        self.traffic = setup.traffic
        self.ended = False
        self.failed: str | None = None
        self.timer = RoleTimer(context.loop, self._next_deadline, lambda: self.carefully(self._tick))
        self._syncs = SyncRequests(context, self.log, self._synced, self.fail)
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

    def give_up_starting(self) -> None:  # noqa: B027 - most starts wait for nothing
        """This role is no longer wanted: a `start` that waits for the connection returns now. `end` follows."""

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
        """Returns when everything is released and all work is done, whichever caller began the end."""
        await asyncio.shield(self.begin_to_end(reason))

    def begin_to_end(self, reason: str) -> asyncio.Task[None]:
        """The role acts no more from here on, though others have not heard of it yet; `end` waits for the rest."""
        if self._ending is None:
            self.ended = True
            self.timer.stop()
            self._syncs.stop()
            self._ending = self.context.loop.create_task(self._end(reason))
        return self._ending

    async def _end(self, reason: str) -> None:
        try:
            await self._let_go(reason)
        except Exception:  # noqa: BLE001 - it is logged, and the broker goes on
            _log.exception("partition %s: the end of a role met a bug", self.view.key)
        if self._work:
            await asyncio.wait(set(self._work))

    @abstractmethod
    async def _let_go(self, reason: str) -> None:
        """Answer the requests that wait, give up subscriptions and inboxes."""

    @abstractmethod
    def _tick(self) -> None: ...

    @abstractmethod
    def _next_deadline(self) -> float: ...

    @abstractmethod
    def _on_synced(self, durable_end: Offset) -> None: ...

    def _synced(self, durable_end: Offset) -> None:
        self.carefully(lambda: self._on_synced(durable_end))
        self.timer.schedule()

    # ------------------------------------------------------------------ bugs
    def carefully(self, step: Callable[[], None]) -> None:
        """A broken protocol rule stops the partition here; any other bug is logged, and the partition goes on."""
        try:
            step()
        except InvariantViolation as e:
            self._stop_on(e)
        except Exception:  # noqa: BLE001 - it is logged, and the broker goes on
            _log.exception("partition %s met a bug", self.view.key)

    def _stop_on(self, error: InvariantViolation) -> None:
        _log.error("partition %s: %s", self.view.key, error, exc_info=error)
        self.fail(f"a rule is broken: {error}")

    def _handler(self, handle: MessageHandler) -> MessageHandler:
        def careful(message: Message) -> None:
            try:
                handle(message)
            except InvariantViolation as e:
                self._stop_on(e)  # the transport logs and counts any other bug

        return careful

    def _bulk_handler(self, handler: BulkHandler) -> BulkHandler:
        """The same for a bulk subscription."""

        def on_error(error: Exception) -> None:
            if not isinstance(error, InvariantViolation):
                raise error
            self._stop_on(error)

        return GuardedBulk(handler, on_error)

    # ------------------------------------------------------------------ work that takes a while
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that touches the log off the loop. The next role begins when all of it is done."""
        task = self.context.loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work_done)
        return task

    def _work_done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            self.carefully(task.result)

    # ------------------------------------------------------------------ failing
    def fail(self, reason: str) -> None:
        """This replica is unsound: it leaves the ISR, and does nothing more in this life of the process."""
        if self.failed is not None:
            return
        self.story.tell(f"withdraws: {reason}", self.context.now())
        _log.error(
            "partition %s: replica on %s withdraws: %s; its last events:\n%s",
            self.view.key, self.context.broker, reason, self.story,
        )  # fmt: skip
        self.context.counters.withdrawals += 1
        self.context.metadata.withdraw(
            Withdrawal(key=self.view.key, broker=self.context.broker, expected_epoch=self.view.epoch, reason=reason)
        )
        self.stop(reason)

    def stop(self, reason: str) -> None:
        """It has failed: it ends by itself."""
        if self.failed is None:
            self.failed = reason
            self.begin_to_end(reason)
            self._on_failure(reason)
