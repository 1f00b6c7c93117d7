"""The levels of acknowledgement: the condition that a publish waits for.

A publish asks for a level; without one it has the stream's. The level says in which way a copy counts (synced, or in
the page cache), whether all of the maximal ISR must have one or the leader alone, and how many members the committed
ISR must have. The stream's own way is the high watermark's: most publishes wait for that. Publishes in the other way
wait for the secondary watermark, which is the minimum of the ends in that way over the maximal ISR.

    stream      level        acknowledged when every member of the maximal ISR
    durable     durable      has synced it: the HW
    durable     accepted     has it in its page cache, before the HW: consumers do not see it yet
    accepted    accepted     has it in its page cache: the HW
    accepted    durable      has synced it, behind the HW: the leader has every member sync it

The floor of a level is one of its own beside the stream's min ISR, which nothing undercuts: below it the HW is frozen,
and a member that leaves the ISR stays eligible without the records that come then.

## Pending publishes

Publishes that wait for their commit.

A publish waits until a mark (the HW, as a rule) has passed its last record and as many members are in sync as it asks
for, or until its confirm timeout: then it ends with CONFIRM_TIMEOUT, which says that the outcome is unknown (it is in
the log and may still commit). When leadership ends, all that wait end with OUTCOME_UNKNOWN, never as failed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from dataplane.replica.replica_effects import CompleteProduce
from dataplane.replica.replies import ProduceToken
from wire.durability import Durability
from wire.errors import Code, TidelogError
from wire.types import Offset, PartitionView

_FORGET_FROM = 1024
"""The deadlines of publishes that are through are thrown away when there are more than this, and most are such."""


@dataclass(slots=True)
class _Pending:
    end_offset: Offset
    token: ProduceToken
    floor: int = 0
    """Members of the committed ISR that it asks for."""
    done: bool = False


class PendingAcks:
    __slots__ = ("_by_deadline", "_by_offset", "_count", "_late", "waits")

    def __init__(self) -> None:
        self.waits = False
        """Publishes wait. True until the next `commit` or `expire` after the last one is through."""
        self._by_offset: deque[_Pending] = deque()
        self._late: list[_Pending] = []
        """Not in the order of their ends: repetitions of uncommitted batches, and publishes that were passed by the
        mark while too few were in sync."""
        self._by_deadline: list[tuple[float, int, _Pending]] = []
        self._count = 0

    def __len__(self) -> int:
        return sum(not p.done for p in self._by_offset) + sum(not p.done for p in self._late)

    @property
    def remembered(self) -> int:
        """Publishes kept in memory: the waiting ones, and some that are through."""
        return len(self._by_deadline)

    def add(self, end_offset: Offset, deadline: float, token: ProduceToken, floor: int = 0) -> None:
        pending = _Pending(end_offset, token, floor)
        self.waits = True
        if self._by_offset and self._by_offset[-1].end_offset > end_offset:
            self._late.append(pending)
        else:
            self._by_offset.append(pending)
        self._count += 1
        heapq.heappush(self._by_deadline, (deadline, self._count, pending))

    @property
    def furthest(self) -> Offset:
        """End of the last of them; 0: none waits."""
        if not self._by_offset and not self._late:
            return Offset(0)
        newest = next((p.end_offset for p in reversed(self._by_offset) if not p.done), Offset(0))
        return max([newest, *(p.end_offset for p in self._late if not p.done)])

    def next_deadline(self) -> float:
        """inf: none waits."""
        while self._by_deadline and self._by_deadline[0][2].done:
            heapq.heappop(self._by_deadline)
        return self._by_deadline[0][0] if self._by_deadline else math.inf

    def commit(self, mark: Offset, members: int = 0) -> list[CompleteProduce]:
        """Everything that ends at or below the mark and asks for no more in-sync members, in log order."""
        out: list[CompleteProduce] = []
        queue = self._by_offset
        if not self._late and (not queue or queue[0].end_offset > mark):
            return out
        while queue and queue[0].end_offset <= mark:
            pending = queue.popleft()
            if pending.floor <= members:
                self._finish(pending, None, out)
            else:
                self._late.append(pending)
        if self._late:
            for pending in self._late:
                if pending.end_offset <= mark and pending.floor <= members:
                    self._finish(pending, None, out)
            self._late = [p for p in self._late if not p.done]
        waiting = len(queue) + len(self._late)
        if not waiting:
            self.waits = False
            self._by_deadline.clear()
        elif len(self._by_deadline) > max(_FORGET_FROM, 2 * waiting):
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapq.heapify(self._by_deadline)
        return out

    # Keeps R16.
    def expire(self, now: float) -> list[CompleteProduce]:
        out: list[CompleteProduce] = []
        while self._by_deadline and self._by_deadline[0][0] <= now:
            pending = heapq.heappop(self._by_deadline)[2]
            error = TidelogError(
                Code.CONFIRM_TIMEOUT,
                f"records up to offset {pending.end_offset - 1} were not committed within the confirm timeout; they may"
                " still be",
            )
            self._finish(pending, error, out)
        self._late = [p for p in self._late if not p.done]
        while self._by_offset and self._by_offset[0].done:
            self._by_offset.popleft()
        self.waits = bool(self._by_offset or self._late)
        return out

    # R16: A publish that waits ends in one of three ways: committed, CONFIRM_TIMEOUT, or OUTCOME_UNKNOWN when the
    # leadership ends. It never ends as not stored.
    # Hazard: A publisher takes a record for lost that is in the log.
    def abandon(self, reason: str) -> list[CompleteProduce]:
        """Leadership ended: every publish that waits has an unknown outcome."""
        out: list[CompleteProduce] = []
        for pending in (*self._by_offset, *self._late):
            self._finish(pending, TidelogError(Code.OUTCOME_UNKNOWN, reason), out)
        self.waits = False
        self._by_offset.clear()
        self._late.clear()
        self._by_deadline.clear()
        return out

    @staticmethod
    def _finish(pending: _Pending, error: TidelogError | None, out: list[CompleteProduce]) -> None:
        if not pending.done:
            pending.done = True
            out.append(CompleteProduce(pending.token, error))


@dataclass(frozen=True, slots=True)
class AckLevel:
    is_local: bool
    """The leader's own copy is enough."""
    is_synced: bool
    """A copy counts once it is synced; else once it is in the page cache."""
    floor: int = 0
    """Members that the committed ISR must have, beyond min ISR."""


def ack_level(view: PartitionView, asked: Durability | None = None, *, by_leader: bool = False) -> AckLevel:
    """The level of an acknowledged publish. `asked`: its own level, None: the stream's. `by_leader`: it asks for the
    leader's ack alone, as acks=leader. Raises TidelogError(BAD_REQUEST) where that is not to be had."""
    level = asked if asked is not None else view.config.durability
    if by_leader and asked is not None and asked.has_floor:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"durability={asked} waits for other replicas, and acks=leader for the leader alone; ask for acks=all, or"
            " for durability=local_durable",
        )
    copies = view.kept_copies
    floor = level.in_sync_floor(copies)
    if floor > copies:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"durability={level} needs {floor} replicas and {view.key} has {copies}; ask for {copies} at most",
        )
    if by_leader or level.is_local:
        return AckLevel(is_local=True, is_synced=level.is_synced)
    return AckLevel(is_local=False, is_synced=level.is_synced, floor=floor)


class WaitingAcks:
    """Publishes that wait, each in the queue of its condition."""

    def __init__(self) -> None:
        self._local = {False: PendingAcks(), True: PendingAcks()}
        self.everywhere = {False: PendingAcks(), True: PendingAcks()}
        """Publishes that wait until all of the maximal ISR holds them: synced (True), or in its page caches."""
        self._all = (*self.everywhere.values(), *self._local.values())
        self._due = math.inf
        """No publish that waits has an earlier deadline."""

    def add(self, level: AckLevel, end: Offset, deadline: float, token: ProduceToken) -> None:
        queues = self._local if level.is_local else self.everywhere
        queues[level.is_synced].add(end, deadline, token, level.floor)
        self._due = min(self._due, deadline)

    def on_own_copy(self, appended: Offset, synced: Offset) -> list[CompleteProduce]:
        """The leader's own copy ends there."""
        cached, durable = self._local[False], self._local[True]
        if not cached.waits and not durable.waits:
            return []
        return [*cached.commit(appended), *durable.commit(synced)]

    def furthest_everywhere(self, *, is_synced: bool) -> Offset:
        """Where the last publish ends that waits for all in that way; 0: none does."""
        queue = self.everywhere[is_synced]
        return queue.furthest if queue.waits else Offset(0)

    @property
    def furthest_local_sync(self) -> Offset:
        """The same, for publishes that wait for the leader's own sync."""
        return self._local[True].furthest

    def next_deadline(self) -> float:
        """inf: no publish waits. It is asked for after every message: the deadline of a publish that is through may
        stand until it has come, and `expire` looks again."""
        return self._due

    def expire(self, now: float) -> list[CompleteProduce]:
        if now < self._due:
            return []
        out = [done for queue in self._all for done in queue.expire(now)]
        self._due = min(queue.next_deadline() for queue in self._all)
        return out

    def abandon(self, reason: str) -> list[CompleteProduce]:
        """Leadership ended: every publish that waits has an unknown outcome."""
        return [done for queue in self._all for done in queue.abandon(reason)]
