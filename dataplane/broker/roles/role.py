"""The common part of all roles of a replica: its end, a timer, syncs, and a log that can fail."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias

from dataplane.broker.disk.space_watch import NO_SPACE_RETRY
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.replica.history import History
from dataplane.replica.traffic import TrafficMeter
from wire.errors import InvariantViolation
from wire.messaging.transport import BulkHandler, GuardedBulk, Message, MessageHandler, Subscription
from wire.types import LeaderEpoch, Offset, PartitionView, Withdrawal


@dataclass
class RoleCounters(Counters):
    bad_answers: int = counter(
        "messages",
        "answers of leaders that followers here refused, and answers of leaders here that a follower refused",
    )
    answers_too_large: int = counter(
        "messages",
        "answers that NATS does not carry ([max_payload](operations.md#the-size-of-messages))",
    )
    refused_no_space: int = counter(
        "batches",
        "publishes and replicated batches that were not written for want of room",
    )
    withdrawals: int = counter(
        "times",
        "replicas that failed, and left their ISR; more than a few an hour on a quiet cluster mean slow connections or"
        " disks, as of `elections_won`, `isr_proposals`, `leader_reports`",
    )


class SyncRequests:
    """The fdatasyncs that one role asks for: one at most in a turn of the loop. The `Syncer` joins the requests of
    several turns. `on_synced` is called with the durable end after each sync, `fail` with the reason of a failure."""

    def __init__(
        self,
        context: BrokerContext,
        partition_log: PartitionLog,
        on_synced: Callable[[Offset], None],
        fail: Callable[[str], None],
    ) -> None:
        self.out = 0
        """Calls of the `Syncer` that are to come."""
        self._context = context
        self._log = partition_log
        self._on_synced = on_synced
        self._fail = fail
        self._due = False
        """One is asked for at the end of this turn of the loop."""
        self._stopped = False

    def request(self) -> None:
        """The sync begins at the end of this turn of the loop, after the messages of this turn have left."""
        if not self._due:
            self._due = True
            self.out += 1
            self._context.peers.after_turn(self._begin)

    def stop(self) -> None:
        """Results are no longer passed on."""
        self._stopped = True

    def _begin(self) -> None:
        self._due = False
        if self._stopped:
            self.out -= 1
            return
        try:
            durable_end = self._context.syncer.at_once(self._log)
        except LogDamaged as e:
            self._done(e)
            return
        if durable_end is not None:
            self._done(durable_end)
        elif not self._context.syncer.request(self._log, self._done):
            self.out -= 1

    def _done(self, result: Offset | Exception) -> None:
        self.out -= 1
        if self._stopped:
            return
        if isinstance(result, NoSpace):
            self._context.space.refused(result)
            self._context.loop.call_later(NO_SPACE_RETRY, self._again)
            return
        if isinstance(result, Exception):
            self._fail(f"fdatasync failed: {result}")
            return
        # The log may have been cut and written anew since that sync.
        self._on_synced(min(result, self._log.durable_end))

    def _again(self) -> None:
        if not self._stopped:
            self.request()


BEAT = 0.02
"""Seconds. A deadline that is not near is met at the next multiple of it: the timers of a thousand idle partitions wake
the loop fifty times a second, and their messages to one leader arrive together."""
NEAR = 0.25
"""Seconds. A deadline that is nearer is met exactly, unless the timer fires within a BEAT anyway."""


class RoleTimer:
    """The timer of one role. The timers of thousands of idle partitions share their wake-ups of the event loop.

    `next_deadline`: monotonic seconds, `inf` for none. `on_due` is called when it has come; it may not raise."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, next_deadline: Callable[[], float], on_due: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._now = loop.time
        self._next_deadline = next_deadline
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self._stopped = False

    def schedule(self) -> None:
        """Arm the timer for the next deadline. It is called after every message: a timer that fires within a BEAT
        stands, and an earlier deadline is met a BEAT late at most."""
        if self._stopped or (self._handle is not None and self._fires_at - self._now() <= BEAT):
            return
        self._arm(self._next_deadline())

    def stop(self) -> None:
        """Nothing is due any more."""
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, due: float) -> None:
        if self._handle is not None and due >= self._fires_at:
            return  # it fires early and is armed again then
        if due - self._now() > NEAR and due < math.inf:
            due = math.ceil(due / BEAT) * BEAT
        if self._handle is not None:
            if due >= self._fires_at:
                return
            self._handle.cancel()
            self._handle = None
        if due == math.inf:
            return
        self._fires_at = due
        self._handle = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        if self._stopped:
            return
        due = self._next_deadline()
        if due <= self._now() + 0.0005:
            self._on_due()
            self.schedule()
        else:
            self._arm(due)


Subscribe: TypeAlias = Callable[[], Coroutine[Any, Any, Subscription]]


class RoleSubscriptions:
    """The subscriptions of one role: they are made when it starts and given up when it ends.

    Making them waits for the connections, however long they take. It can be given up at any time, also before it has
    begun."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held: list[Subscription] = []
        self._making: asyncio.Task[None] | None = None
        self._is_given_up = False

    async def make(self, *subscribe: Subscribe) -> bool:
        """Makes all of them side by side. Returns False when that was given up: `drop` then releases the ones made.
        Raises OSError."""
        if self._is_given_up:
            return False
        self._making = self._loop.create_task(self._make_all(subscribe))
        await asyncio.wait({self._making})
        if self._making.cancelled():
            return False
        self._making.result()
        return not self._is_given_up

    async def _make_all(self, subscribe: tuple[Subscribe, ...]) -> None:
        await asyncio.gather(*(self._hold(each) for each in subscribe))

    async def _hold(self, subscribe: Subscribe) -> None:
        self._held.append(await subscribe())

    def give_up(self) -> None:
        self._is_given_up = True
        if self._making is not None:
            self._making.cancel()

    async def drop(self) -> None:
        """Gives up subscribing, and releases all subscriptions."""
        self.give_up()
        held, self._held = self._held, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in held), return_exceptions=True)


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
    history: History
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
        self.history = setup.history
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
        """The role acts no more from here on, though others do not know of it yet; `end` waits for the rest."""
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
        self.carefully(partial(self._on_synced, durable_end))
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
        """This replica is unsound: it leaves the ISR, and does nothing more until the process is started again."""
        if self.failed is not None:
            return
        self.history.add(f"withdraws: {reason}", self.context.now())
        _log.error(
            "partition %s: replica on %s withdraws: %s; its last events:\n%s",
            self.view.key, self.context.broker, reason, self.history,
        )  # fmt: skip
        self.context.the(RoleCounters).withdrawals += 1
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
