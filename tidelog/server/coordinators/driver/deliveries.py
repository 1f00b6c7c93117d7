"""Deliveries of a coordinator to other brokers: each is sent until it is confirmed, or awaited no more.

Deliveries to one subject, such as that of a partition's leader, share a lane. One lane that is not answered does not
hold up the others:

- a lane that answers has up to MOST_OF_LANE requests under way;
- after a failure it has one, after a pause that grows from PAUSE_S to PAUSE_MAX_S with each further failure; the next
  confirmation ends that. A delivery that failed goes behind the others of its lane, so that one that is refused for
  reasons of its own does not hold up the rest;
- MOST_OF_ALL requests are under way in all, and MOST_OF_FAILING to lanes that have failed; lanes take turns. So many
  lanes that are silent do not hold up those that answer.

A lane that has confirmed nothing for COMPLAIN_S is named in the log, with the last reason, and again when it answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from random import random
from typing import Final

from tidelog.server.coordinators.shard import Delivery
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS, PeerTransport
from wire.retry import Retry
from wire.subjects import Subjects

_log = logging.getLogger(__name__)

ATTEMPT_S: Final = 2.0
"""Seconds for an answer."""
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
MOST_OF_LANE: Final = 64
MOST_OF_ALL: Final = 256
MOST_OF_FAILING: Final = 64
COMPLAIN_S: Final = 10.0


class _Lane:
    __slots__ = ("failing_since", "has_complained", "retry", "subject", "timer", "under_way", "waiting")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.waiting: deque[Delivery] = deque()
        self.under_way = 0
        self.retry = Retry(PAUSE_S, PAUSE_MAX_S, chance=random)
        self.failing_since = 0.0
        self.has_complained = False
        self.timer: asyncio.TimerHandle | None = None
        """Timer of the pause after a failure."""

    @property
    def may_send(self) -> bool:
        most = 1 if self.retry.failures else MOST_OF_LANE
        return bool(self.waiting) and self.timer is None and self.under_way < most


class Deliveries:
    """`is_awaited`: asked before each attempt. `on_delivered`: once for each delivery, unless it is awaited no more.
    `now()`: monotonic seconds."""

    def __init__(
        self,
        name: str,
        peers: PeerTransport,
        subjects: Subjects,
        now: Callable[[], float],
        is_awaited: Callable[[Delivery], bool],
        on_delivered: Callable[[Delivery], None],
    ) -> None:
        self._name = name
        self._peers = peers
        self._subjects = subjects
        self._now = now
        self._is_awaited = is_awaited
        self._on_delivered = on_delivered
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._turns: dict[str, _Lane] = {}
        """Lanes that may send, in the order of their turns."""
        self._retries: dict[str, _Lane] = {}
        """Lanes that have failed and may send, in the order of their turns."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._retrying: set[asyncio.Task[None]] = set()
        """Requests of lanes that had failed when they began."""

    def add(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            subject = delivery.subject(self._subjects)
            lane = self._lanes.get(subject)
            if lane is None:
                lane = self._lanes[subject] = _Lane(subject)
            lane.waiting.append(delivery)
            self._turn(lane)
        self._send()

    def clear(self) -> None:
        """Gives up all deliveries. Requests under way may arrive yet."""
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
        self._lanes.clear()
        self._turns.clear()
        self._retries.clear()
        tasks, self._tasks, self._retrying = self._tasks, set(), set()
        for task in tasks:
            task.cancel()

    def _turn(self, lane: _Lane) -> None:
        if lane.may_send:
            turns = self._retries if lane.retry.failures else self._turns
            turns.setdefault(lane.subject, lane)

    def _send(self) -> None:
        self._send_to(self._turns, MOST_OF_ALL)
        self._send_to(self._retries, min(MOST_OF_ALL, len(self._tasks) + MOST_OF_FAILING - len(self._retrying)))

    def _send_to(self, turns: dict[str, _Lane], most: int) -> None:
        """Sends deliveries of the lanes in `turns`. `most`: requests under way in all."""
        while turns and len(self._tasks) < most:
            lane = turns.pop(next(iter(turns)))
            if not lane.may_send:
                continue
            delivery = lane.waiting.popleft()
            if self._is_awaited(delivery):
                lane.under_way += 1
                task = self._loop.create_task(self._attempt(lane, delivery))
                self._tasks.add(task)
                if lane.retry.failures:
                    self._retrying.add(task)
                task.add_done_callback(self._done)
            self._turn(lane)
            self._drop_if_done(lane)

    def _drop_if_done(self, lane: _Lane) -> None:
        if not lane.waiting and not lane.under_way and self._lanes.get(lane.subject) is lane:
            del self._lanes[lane.subject]

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._retrying.discard(task)
        if not task.cancelled():
            if (error := task.exception()) is not None:
                _log.error("%s met a bug", self._name, exc_info=error)
            self._send()

    async def _attempt(self, lane: _Lane, delivery: Delivery) -> None:
        try:
            failure = await self._ask(lane.subject, delivery)
        finally:
            lane.under_way -= 1
        if failure is None:
            self._on_success(lane)
            if self._is_awaited(delivery):
                self._on_delivered(delivery)
        else:
            lane.waiting.append(delivery)
            self._on_failure(lane, failure)
        self._turn(lane)
        self._drop_if_done(lane)

    async def _ask(self, subject: str, delivery: Delivery) -> str | None:
        """Sends one delivery. Returns None when it is confirmed, else the reason of the failure."""
        try:
            answer = await self._peers.request(subject, delivery.payload(), timeout=ATTEMPT_S)
        except TimeoutError:
            return f"no answer within {ATTEMPT_S:g} s"
        except TidelogError as not_sent:
            return not_sent.message
        if answer.status == NO_RESPONDERS:
            return "nobody listens there"
        refusal = TidelogError.from_headers(answer.headers)
        return None if refusal is None else f"{refusal.code.name}: {refusal.message}"

    def _on_success(self, lane: _Lane) -> None:
        if lane.has_complained:
            _log.warning("%s: %s answers again", self._name, lane.subject)
        lane.retry.succeeded()
        lane.has_complained = False
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None

    def _on_failure(self, lane: _Lane, why: str) -> None:
        if lane.timer is not None:
            return  # another request that was under way has failed before
        if not lane.retry.failures:
            lane.failing_since = self._now()
        pause_s = lane.retry.failed()
        waited = self._now() - lane.failing_since
        if waited >= COMPLAIN_S and not lane.has_complained:
            lane.has_complained = True
            _log.warning(
                "%s: %s has confirmed nothing for %d s, and %d transactions wait for it: %s",
                self._name, lane.subject, waited, len(lane.waiting), why,
            )  # fmt: skip
        lane.timer = self._loop.call_later(pause_s, self._resume, lane)

    def _resume(self, lane: _Lane) -> None:
        lane.timer = None
        self._turn(lane)
        self._send()
