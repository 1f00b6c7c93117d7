"""Publishes that wait for their commit.

A publish waits until a mark (the HW, as a rule) has passed its last record and as many members are in sync as it asks
for, or until its confirm timeout: then it ends with CONFIRM_TIMEOUT, which says that the outcome is unknown (it is in
the log and may still commit). When leadership ends, all that wait end with OUTCOME_UNKNOWN, never as failed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from dataplane.replica.effects import CompleteProduce
from wire.errors import Code, TidelogError
from wire.types import Offset

_FORGET_FROM = 1024
"""The deadlines of publishes that are through are thrown away when there are more than this, and most are such."""


@dataclass(slots=True)
class _Pending:
    end_offset: Offset
    token: object
    floor: int = 0
    """Members of the committed ISR that it asks for."""
    done: bool = False


class PendingAcks:
    def __init__(self) -> None:
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

    def add(self, end_offset: Offset, deadline: float, token: object, floor: int = 0) -> None:
        pending = _Pending(end_offset, token, floor)
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
            self._by_deadline.clear()
        elif len(self._by_deadline) > max(_FORGET_FROM, 2 * waiting):
            self._by_deadline = [entry for entry in self._by_deadline if not entry[2].done]
            heapq.heapify(self._by_deadline)
        return out

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
        return out

    def abandon(self, reason: str) -> list[CompleteProduce]:
        """Leadership ended: every publish that waits has an unknown outcome."""
        out: list[CompleteProduce] = []
        for pending in (*self._by_offset, *self._late):
            self._finish(pending, TidelogError(Code.OUTCOME_UNKNOWN, reason), out)
        self._by_offset.clear()
        self._late.clear()
        self._by_deadline.clear()
        return out

    @staticmethod
    def _finish(pending: _Pending, error: TidelogError | None, out: list[CompleteProduce]) -> None:
        if not pending.done:
            pending.done = True
            out.append(CompleteProduce(pending.token, error))
