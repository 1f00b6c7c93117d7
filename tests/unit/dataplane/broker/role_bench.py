"""The dependencies of one role: a real log on a simulated disk, transports that note messages, a loop whose time is set
by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.role import RoleSetup
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.history import History
from dataplane.replica.replica_settings import ReplicaSettings
from tests.fake_nats import FakeTransport
from tests.simulation.machines.disk import SimDisk
from tests.tickets import producer_keys, tickets
from tests.views import A, partition_view
from wire.messaging.reply_subjects import ReplySubjects
from wire.subjects import Subjects
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    CutoverReport,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionView,
    RetiredReport,
    Withdrawal,
)

if TYPE_CHECKING:
    from dataplane.log.storage.group_commit import Done, QuickSyncable, Syncable

EPOCH = LeaderEpoch(2)
HOME = Path("/data/s")
view = partial(partition_view, leader_epoch=EPOCH)


class Loop:
    """An event loop in which nothing happens by itself."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[Callable[[], Any]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = itertools.count()

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], Any]) -> None:
        self.soon.append(callback)

    def call_at(self, when: float, callback: Callable[[], Any]) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), cast(Any, self))
        heapq.heappush(self._timers, (when, next(self._number), handle))
        return handle

    def call_later(self, delay: float, callback: Callable[[], Any]) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback)

    def create_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    def turn(self) -> None:
        """Runs the callbacks that are due at once."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    @property
    def wakes_at(self) -> list[float]:
        return sorted(when for when, _, handle in self._timers if not handle.cancelled())

    def run_to(self, end: float) -> None:
        while self._timers and self._timers[0][0] <= end:
            when, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                self.now = max(self.now, when)
                handle._run()
        self.now = end

    # asyncio.TimerHandle asks for these
    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


@dataclass
class Syncer:
    """`is_quick`: syncs at once."""

    is_quick: bool = True
    is_crowded: bool = False
    waiting_since: float = math.inf
    asked: list[Done] = field(default_factory=list)
    """Of threads."""

    def at_once(self, log: QuickSyncable) -> Offset | None:
        return log.sync_small(1 << 20) if self.is_quick else None

    def request(self, log: Syncable, done: Done) -> bool:
        if done in self.asked[-1:]:
            return False
        self.asked.append(done)
        return True


class Bench:
    """`loop`: a `Loop`, or asyncio's."""

    def __init__(self, loop: Any) -> None:
        self.disk = SimDisk()
        self.disk.make_directory(HOME)
        self.log, _ = PartitionLog.open(HOME, LogConfig(), files=self.disk)
        self.control, self.ingest, self.syncer = FakeTransport(), FakeTransport(), Syncer()
        self.control.after_turn = loop.call_soon  # type: ignore[method-assign]
        self.withdrawn: list[Withdrawal] = []
        self.cutovers: list[CutoverReport] = []
        self.retired: list[RetiredReport] = []
        self.has_lease = True
        self.damage: list[str] = []
        self.failures: list[str] = []
        self.quarantined: list[dict[str, Any]] = []
        metadata = SimpleNamespace(
            withdraw=self.withdrawn.append,
            report_cutover=self.cutovers.append,
            report_retired=self.retired.append,
            lease_valid=lambda _now: self.has_lease,
            agreed_time_ns=lambda: 5,
            next_producer_id=lambda: FIRST_TRANSACTIONAL_ID,
        )
        space = SimpleNamespace(is_full=False, append=lambda log, parts, headers: log.append(parts, headers))
        self.context = BrokerContext(
            broker=A,
            incarnation=Incarnation(7),
            ingest=self.ingest,
            control=self.control,
            peers=self.control,
            subjects=Subjects("tidelog"),
            replies=ReplySubjects(Subjects("tidelog"), list, int),
            tickets=tickets(),
            producer_keys=producer_keys(),
            settings=ReplicaSettings(),
            metadata=cast(Any, metadata),
            syncer=self.syncer,
            executor=cast(Any, None),
            checkpoints=cast(Any, None),
            decoders=cast(Any, None),
            readers=cast(Any, None),
            housekeeping=cast(Any, None),
            space=cast(Any, space),
            loop=loop,
            time_ns=lambda: 5,
        )

    def setup(self, view: PartitionView) -> RoleSetup:
        return RoleSetup(
            self.context,
            view,
            self.log,
            Offset(0),
            self.damage.append,
            self.failures.append,
            self.quarantined.append,
            History(),
        )
