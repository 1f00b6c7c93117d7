"""Updates of a client's routes: pushes, the topology from any broker, looks at it every LOOK_EVERY seconds, and
reports of the applied generations.

    brokers --push--> RouteUpdates --> MetadataCache --> watches: producers, consumers
                                                            │ the generation each of them has applied
    home broker <--report of adoption, after each change and every few seconds--┘

Nothing here has to work. Where pushes do not come, or this login may not subscribe to them, a leader with newer routes
refuses a request, and the metadata are asked for; what no refusal shows is found by the next look. Pushes may be
forged, so that little is believed of them: `MetadataCache` takes a push of the same cluster and the same incarnation of
the stream, and fetched metadata replace pushed ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import random
from typing import Any, Final

from tidelog.client.cluster.controller_api import Api
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, Subscription, Transport
from wire.operations import json_codec
from wire.operations.adoption_report import ADOPT, MAX_STREAMS, REPORT_INTERVAL_S
from wire.operations.api_operations import StreamRoutes, Topology
from wire.operations.stream_routes import TOPOLOGY
from wire.subjects import Subjects
from wire.types import BrokerId, StreamName

_log = logging.getLogger(__name__)

MAX_WATCHED: Final = MAX_STREAMS
"""Streams whose pushes a client subscribes to; routes of others change after refusals."""
MAX_PUSH_BYTES: Final = 4 << 20
LOOK_EVERY = 15.0
"""Seconds between two looks at the routes of a stream, at most, since pushes may be lost."""
PUSH_GAP: Final = 0.05
"""Seconds between two pushes of a stream that are decoded; of those that come between, only the newest is decoded."""
_ASK_TIMEOUT = 1.0
_SUBSCRIBE_TIMEOUT = 1.0
"""Seconds that a new watch waits for the subscription, which is made as soon as NATS is connected."""


@dataclass(slots=True, eq=False)
class RouteWatch:
    """A producer or consumer that uses the routes of a stream."""

    stream: StreamName
    on_routes: Callable[[Any], object]
    """Called with the stream's metadata whenever they were pushed or fetched."""
    look: Callable[[], object]
    """Called every LOOK_EVERY seconds, or sooner: asks for the metadata."""
    applied: int = 0
    """The routing generation in use; set by the watching producer or consumer."""
    subscribing: asyncio.Task[None] | None = None
    """The task that subscribes to pushes; None: there are too many subscriptions already."""

    async def subscribed(self) -> None:
        """Returns when the client is subscribed to pushes, if that is possible, or after _SUBSCRIBE_TIMEOUT."""
        if self.subscribing is not None:
            await asyncio.wait([self.subscribing], timeout=_SUBSCRIBE_TIMEOUT)


@dataclass(slots=True)
class _Watched:
    watches: dict[RouteWatch, None] = field(default_factory=dict)
    subscribing: asyncio.Task[None] | None = None
    """The task that subscribes; None: there are too many subscriptions already."""
    subscription: Subscription | None = None
    newest: bytes | None = None
    """The newest push, not decoded yet."""
    timer: asyncio.TimerHandle | None = None
    """Until this timer ends no push is decoded."""
    look_timer: asyncio.TimerHandle | None = None


class RouteUpdates:
    """`on_push`: called with routes that could be decoded."""

    def __init__(
        self,
        api: Api,
        transport: Transport,
        subjects: Subjects,
        on_push: Callable[[StreamName, StreamRoutes], object],
    ) -> None:
        self._api = api
        self._transport = transport
        self._subjects = subjects
        self._on_push = on_push
        self._client_id = hashlib.sha256(transport.new_inbox().encode()).hexdigest()[:32]  # no other client has it
        self._watched: dict[StreamName, _Watched] = {}
        self._home: BrokerId | None = None
        self._has_reported = False
        """The home broker has a report of this client with streams."""
        self._refused: set[str] = set()
        """Subjects that NATS does not permit to this login, each logged once."""
        self._reporting: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.dropped_pushes = 0
        """Pushes that do not decode, or are too large, or of another cluster."""

    # Pushes

    def watch(self, stream: StreamName, on_routes: Callable[[Any], object], look: Callable[[], object]) -> RouteWatch:
        """Watches the stream from now on. A watch that begins before the metadata are asked for misses no change."""
        watch = RouteWatch(stream, on_routes, look)
        watched = self._watched.get(stream)
        if watched is None:
            watched = self._watched[stream] = _Watched()
            self._look_later(watched)
            if len(self._watched) <= MAX_WATCHED:
                watched.subscribing = asyncio.create_task(self._subscribe(stream, watched))
        watched.watches[watch] = None
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())
        watch.subscribing = watched.subscribing
        return watch

    def end(self, watch: RouteWatch) -> None:
        watched = self._watched.get(watch.stream)
        if watched is None:
            return
        watched.watches.pop(watch, None)
        if watched.watches:
            return
        del self._watched[watch.stream]
        _stop(watched)
        if watched.subscription is not None and self._transport.is_connected:
            self._spawn(watched.subscription.unsubscribe())
        self._changed.set()

    def tell(self, stream: StreamName, metadata: object) -> None:
        """Calls the watches of the stream with its metadata."""
        watched = self._watched.get(stream)
        for watch in () if watched is None else tuple(watched.watches):
            watch.on_routes(metadata)
        self._changed.set()

    def close(self) -> None:
        """Ends the reports; the home broker forgets this client."""
        if self._reporting is not None:
            self._reporting.cancel()
            if self._home is not None and self._transport.is_connected:
                request = ADOPT.encode_request(client_id=self._client_id, streams={})
                self._transport.publish(self._subjects.adopt(self._home), [request], headers=self._headers())
        for task in self._tasks:
            task.cancel()
        for watched in self._watched.values():
            _stop(watched)
        self._watched.clear()

    async def _subscribe(self, stream: StreamName, watched: _Watched) -> None:
        subject = self._subjects.push(stream)
        try:
            subscription = await self._transport.subscribe(subject, lambda message: self._take(stream, message))
        except (TidelogError, TimeoutError, OSError) as error:
            self._refuse("pushes", f"pushes of routes are not heard: {error}")
            return
        if subject in self._transport.violations.subscriptions:
            self._refuse(
                "pushes",
                f"NATS does not let this login subscribe to {subject!r}: changes of routes are learned by refusals, a"
                " little later; see the permissions in docs/security.md",
            )
        watched.subscription = subscription

    # R68: A push of routes is a hint. A client takes one of its cluster, of the same incarnation of the stream, with a
    # later routing generation and whole layouts; what was fetched replaces what was pushed, also with an earlier
    # generation. Two pushes that contradict each other lead to the controller. At most 20 pushes of a stream are
    # decoded in a second. A client reports the generation that all of its producers of the stream go by.
    # Hazard: A forged push that holds a client for ever; a repartition that is finished for a client that does not
    # know of it.
    def _take(self, stream: StreamName, message: Message) -> None:
        watched = self._watched.get(stream)
        told = (message.headers or {}).get(CLUSTER_HEADER)
        if watched is None:
            return
        if len(message.data) > MAX_PUSH_BYTES or not told or told != self._api.cluster_id:
            self.dropped_pushes += 1
            return
        watched.newest = bytes(message.data)
        if watched.timer is None:
            self._decode(stream, watched)

    def _decode(self, stream: StreamName, watched: _Watched) -> None:
        data, watched.newest, watched.timer = watched.newest, None, None
        if data is None:
            return
        watched.timer = asyncio.get_running_loop().call_later(PUSH_GAP, self._decode, stream, watched)
        try:
            routes = json_codec.decode(StreamRoutes, data, "a push")
        except ValueError:
            self.dropped_pushes += 1
            return
        if routes["name"] == stream:
            self._on_push(stream, routes)
        else:
            self.dropped_pushes += 1

    # The topology

    async def ask(self, stream: StreamName) -> Topology | None:
        """Returns the routes of the stream that some broker has applied, if it knows it. None: no broker answers."""
        if not self._api.cluster_id:
            return None  # the API has to find out the cluster first
        message = await self._request(self._subjects.topology(stream), TOPOLOGY.encode_request(streams=[stream]))
        if message is None:
            return None
        try:
            answer = TOPOLOGY.decode_answer(message.data, message.headers)
        except TidelogError:
            return None
        if answer["cluster_id"] != self._api.cluster_id:
            return None
        if self._home is None:  # it is kept, because another broker would remember an old report of this client
            self._home = BrokerId(answer["home_broker"])
        return answer

    def _look_later(self, watched: _Watched) -> None:
        pause = LOOK_EVERY * (1 + random()) / 2  # those that begin together do not ask together
        watched.look_timer = asyncio.get_running_loop().call_later(pause, self._look, watched)

    def _look(self, watched: _Watched) -> None:
        self._look_later(watched)
        for watch in tuple(watched.watches):
            watch.look()

    # Reports

    async def _report(self) -> None:
        """Reports the generations in use to the home broker, for ever."""
        while True:
            self._changed.clear()  # before the report: a change while it is on its way is in the next one
            await self._report_once()
            try:
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _report_once(self) -> None:
        streams = self.applied()
        if not streams and (self._watched or not self._has_reported):
            return
        if self._home is None and streams:
            await self.ask(StreamName(next(iter(streams))))
        if self._home is None:
            return
        self._has_reported = bool(streams)  # an empty report says that no stream is in use any more
        request = ADOPT.encode_request(client_id=self._client_id, streams=streams)
        home = self._home
        message = await self._request(self._subjects.adopt(home), request)
        if message is None and self._home == home:
            self._home = None  # the next report looks for another home broker

    def applied(self) -> dict[str, int]:
        """Returns, by stream, the routing generation that all of its watches use; MAX_STREAMS of them."""
        found: dict[str, int] = {}
        for stream, watched in self._watched.items():
            generation = min((watch.applied for watch in watched.watches), default=0)
            if generation and len(found) < MAX_STREAMS:
                found[stream] = generation
        return found

    # ----

    async def _request(self, subject: str, payload: bytes) -> Message | None:
        """Returns the answer; None: nobody answers, or this login may not ask."""
        if subject in self._refused:
            return None
        try:
            message = await self._transport.request(subject, payload, timeout=_ASK_TIMEOUT, headers=self._headers())
        except TimeoutError:
            return None
        except TidelogError as error:
            if error.code is Code.NOT_PERMITTED:
                self._refuse(subject, f"routes are asked of the controller alone: {error}")
            return None
        return None if message.status == NO_RESPONDERS else message

    def _headers(self) -> dict[str, str]:
        return {CLUSTER_HEADER: self._api.cluster_id}

    def _refuse(self, what: str, why: str) -> None:
        if what not in self._refused:
            self._refused.add(what)
            _log.warning("%s", why)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stop(watched: _Watched) -> None:
    for timer in (watched.timer, watched.look_timer):
        if timer is not None:
            timer.cancel()
    if watched.subscribing is not None:
        watched.subscribing.cancel()
