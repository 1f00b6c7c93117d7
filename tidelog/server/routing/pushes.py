"""Pushes: the controller sends clients the routes of streams that have changed (`wire.operations.stream_routes`).

    applied command --routing_generation moved--> due ---COALESCE_S---> published, in the order in which they came due
    a new controller: all streams, newest change first --REPEATED_PER_S--> published, while nothing is due

A stream that changes several times before its turn is published once, in its newest state. Changes that do not concern
routing, such as ISRs and settings, move no `routing_generation` and are not pushed. Pushes get a bounded share
of the loop's time (`tidelog.nats.pace`) and MAX_BYTES_PER_S. A push that NATS does not take at the moment stays due.

nats-server reads nothing more of a connection while it delivers a message to thousands. So after WINDOW pushes one to
itself has to come back before the next: other messages of this connection, such as heartbeats, wait no longer
than the deliveries of one window take.

A push may be lost, as any message of NATS may be. Nothing depends on it: a request to a wrong broker is refused, and
the client asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import thread_time

from metadata.cluster.model import Changes, Stream
from metadata.commands.cluster_state import ClusterState
from tidelog.nats.pace import Pace
from wire.errors import CLUSTER_HEADER, TidelogError
from wire.internal_streams import is_internal
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.turns import Steps, in_turns
from wire.types import BrokerId, Generation, StreamName

_log = logging.getLogger(__name__)

COALESCE_S = 0.003
"""Seconds that a change waits for others of the same stream."""
REPEATED_PER_S = 500
"""Streams that a new controller publishes once more."""
MAX_BYTES_PER_S = 8 << 20
BURST_S = 0.25
"""The bytes of so many seconds may leave at once after a time without pushes."""
WINDOW = 16
"""Pushes that are sent before NATS has to answer."""
WINDOW_S = 5.0
"""Seconds without an answer after which the next window begins nevertheless."""
RETRY_S = 0.1
"""Seconds until the next attempt after NATS took no push: there is no connection, or its buffer is full."""


class DuePushes:
    """The streams to publish next. Pure. A stream has one of two states: pushed at a generation, or due."""

    def __init__(self) -> None:
        self._pushed: dict[StreamName, Generation] = {}
        self._due: dict[StreamName, None] = {}
        """Streams in the order in which they came due."""
        self._repeated: deque[StreamName] = deque()
        self._done: set[StreamName] = set()
        """Streams published in this controller epoch."""

    def begin(self, generations: Mapping[StreamName, Generation]) -> None:
        """Begins a controller epoch. `generations`: each stream's `routing_generation`."""
        self._pushed = dict(generations)
        self._due = {}
        self._done = set()
        self._repeated = deque(sorted(generations, key=lambda name: (-generations[name], name)))

    def end(self) -> None:
        self.begin({})

    def on_applied(self, generations: Iterable[tuple[StreamName, Generation | None]]) -> None:
        """Takes the streams that have changed, with their `routing_generation`; None: deleted."""
        for name, generation in generations:
            if generation is None:
                self._pushed.pop(name, None)
                self._due.pop(name, None)
            elif self._pushed.get(name) != generation:
                self._due.setdefault(name)

    def next(self) -> tuple[StreamName, bool] | None:
        """Returns the stream whose turn it is, and whether it is only repeated. None: none is to be published."""
        if self._due:
            return next(iter(self._due)), False
        while self._repeated and self._repeated[0] in self._done:
            self._repeated.popleft()
        return (self._repeated[0], True) if self._repeated else None

    def published(self, name: StreamName, generation: Generation | None) -> None:
        """Notes a push. `generation`: of the routes published; None: the stream is gone, or too large."""
        self._due.pop(name, None)
        self._done.add(name)
        if generation is not None:
            self._pushed[name] = generation


class Pushes:
    """See the module. `routes` encodes the routes of a stream. `now`: the loop's time."""

    def __init__(
        self,
        broker: BrokerId,
        state: ClusterState,
        transport: Transport,
        subjects: Subjects,
        routes: Callable[[Stream], Steps[bytes]],
        now: Callable[[], float],
        work_time: Callable[[], float] = thread_time,
    ) -> None:
        self._broker = broker
        self._state = state
        self._transport = transport
        self._subjects = subjects
        self._routes = routes
        self._now = now
        self._pace = Pace(now, work_time)
        self._due = DuePushes()
        self._is_controller = False
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._bytes_left_at = 0.0
        """Time when all pushes have left at MAX_BYTES_PER_S."""
        self._repeat_at = 0.0
        self._unanswered = 0
        """Pushes since the last answer of NATS."""
        self._too_large: set[StreamName] = set()
        """Streams already reported in the log as too large."""
        self.published = 0
        self.left_out = 0
        """Pushes that are too large for a message of NATS."""

    def observe(self, changes: Changes) -> None:
        """Takes the changes of an applied command, or of a snapshot."""
        if not self._is_controller:
            return
        names = {*changes.repartitioned, *(key.stream for key in (*changes.partitions, *changes.gone))}
        self._due.on_applied((name, self._generation(name)) for name in sorted(names))
        if self._due.next() is not None:
            self._came.set()

    def on_controller(self, is_controller: bool) -> None:
        """Begins or ends pushing: this broker is the controller now, or no longer."""
        if is_controller == self._is_controller:
            return
        self._is_controller = is_controller
        if not is_controller:
            self._due.end()
            return
        self._due.begin(
            {name: generation for name in self._state.streams if (generation := self._generation(name)) is not None}
        )
        self._came.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish_for_ever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _generation(self, name: StreamName) -> Generation | None:
        """Returns the routing generation of the stream; None: clients have no such stream."""
        stream = self._state.streams.get(name)
        if stream is None or is_internal(name, stream.subject, self._subjects):
            return None
        return stream.routing_generation

    async def _publish_for_ever(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            await asyncio.sleep(COALESCE_S)
            try:
                await self._publish_due()
            except Exception:  # noqa: BLE001 - without this task clients would silently get no pushes any more
                _log.exception("controller %s met a bug while it pushed routes; it goes on", self._broker)
                await asyncio.sleep(RETRY_S)
                self._came.set()

    async def _publish_due(self) -> None:
        while (found := self._due.next()) is not None:
            pause = max(self._bytes_left_at - BURST_S, self._repeat_at if found[1] else 0.0) - self._now()
            if pause > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._came.wait()  # due streams do not wait behind repeated ones
                self._came.clear()
                if self._now() < self._bytes_left_at - BURST_S:
                    await asyncio.sleep(self._bytes_left_at - BURST_S - self._now())
                continue
            async with self._pace.turn():
                is_taken = await self._pace.timed(self._publish(*found))
            if not is_taken:
                await asyncio.sleep(RETRY_S)
            elif self._unanswered >= WINDOW:
                await self._delivered()

    async def _publish(self, name: StreamName, is_repeated: bool) -> bool:
        """Publishes the routes of a stream. False: NATS does not take them at the moment."""
        if is_repeated:
            self._repeat_at = self._now() + 1 / REPEATED_PER_S
        generation = self._generation(name)
        if generation is None:
            self._due.published(name, None)
            return True
        try:
            body = await in_turns(self._routes(self._state.streams[name]))
            if not self._is_controller:
                return True
            headers = {CLUSTER_HEADER: self._state.cluster_id}
            if not self._transport.publish(self._subjects.push(name), (body,), headers=headers):
                return False
            self.published += 1
            self._unanswered += 1
            self._too_large.discard(name)
            self._bytes_left_at = max(self._bytes_left_at, self._now()) + len(body) / MAX_BYTES_PER_S
        except TidelogError as error:  # the push is larger than NATS carries
            self._leave_out(name, error)
        except Exception:  # noqa: BLE001 - it is logged: the other streams are published
            _log.exception("the push of stream %s met a bug; clients ask for its routes", name)
        if generation == self._generation(name):  # a stream that has changed meanwhile stays due
            self._due.published(name, generation)
        return True

    async def _delivered(self) -> None:
        """Returns when NATS has delivered all pushes, or after WINDOW_S."""
        self._unanswered = 0
        came_back = asyncio.Event()
        inbox = self._transport.new_inbox()
        self._transport.on_inbox(inbox, lambda _: came_back.set())
        try:
            if self._transport.publish(inbox, (b"",)):
                async with asyncio.timeout(WINDOW_S):
                    await came_back.wait()
        except TimeoutError:
            pass
        finally:
            self._transport.on_inbox(inbox, None)

    def _leave_out(self, name: StreamName, error: TidelogError) -> None:
        self.left_out += 1
        if name not in self._too_large:
            self._too_large.add(name)
            _log.warning(
                "controller %s pushes no routes of stream %s, its clients ask for them instead: %s",
                self._broker, name, error.message,
            )  # fmt: skip
