"""NATS as it is, and worse: one server, connections with their own way there and back,
`wire.messaging.transport.Transport`.

As NATS is: delivered at most once; messages of one connection to one subject arrive in order; 503 where nobody
subscribes; a process that is killed loses its subscriptions at once; a server that restarts, or a consumer that is too
slow, loses the connection and all that was on its way; a disconnected client sends nothing. A link that is cut holds
what is sent over it, as TCP does: it comes late if the cut is short, and the connection is given up if it lasts.

Worse, where a fault asks for it: messages lost, doubled, or overtaken by others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.fake_nats import patterns_of, undecoded
from tests.simulation.invariants.messages import OnlyBrokersAreBelieved
from tests.simulation.machines.message_trace import MessageTrace
from tests.simulation.world import Process, World
from tidelog.nats.header_block import encode_headers
from tidelog.server.peers.peer_tags import TRAILER_BYTES
from wire.errors import CorruptData
from wire.messaging.packed import decode_pack
from wire.messaging.transport import NO_RESPONDERS, BulkHandler, Message, MessageHandler, RawHandler, too_large
from wire.messaging.violation import Violations
from wire.types import Buffer

CLIENTS_PREFIX = "_INBOX"
RECONNECT_WAIT = 0.05
GIVES_UP_AFTER = 4.0
"""Two pings of 2 s without an answer."""
SERVER_GIVES_UP_AFTER = 8.0
FLUSH_TIMEOUT = 10.0


_Action: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]


def subjects_of(message: Message) -> list[str]:
    """Its subject; of a pack, those of its frames. A fault that concerns one of them concerns the whole pack."""
    if not message.subject.endswith(".packed"):
        return [message.subject]
    try:
        return [frame.subject.decode() for frame in decode_pack(message.data[:-TRAILER_BYTES])]
    except (CorruptData, UnicodeDecodeError):  # a forger's
        return []


@dataclass(slots=True)
class Weather:
    """How messages travel now."""

    latency: float = 0.0001
    """Mean of one way, in seconds."""
    loss: float = 0.0
    duplication: float = 0.0
    in_order: bool = True
    """False: only per subject. As if every subject had a connection of its own."""
    any_order: bool = False


@dataclass(eq=False, slots=True)
class _Session:
    """One connection's life, as the server knows it."""

    connection: SimConnection
    number: int
    open: bool = True
    """At the server."""
    up_at: float = 0.0
    down_at: float = 0.0
    subject_at: dict[str, float] = field(default_factory=dict)
    held_up: list[_Action] = field(default_factory=list)
    held_down: list[_Action] = field(default_factory=list)


class Nats:
    """The server and all links to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng
        self.is_up = True
        self.starts = 1
        self.weather = Weather()
        self.connections: list[SimConnection] = []
        self.delivered = 0
        self.message_trace = MessageTrace()
        self.overhears: Callable[[Message], None] | None = None
        """Hears all messages as they are sent."""
        self.repeats_appends = True
        """An `.append` may be delivered twice, as every other message."""
        self.believed: OnlyBrokersAreBelieved | None = None
        """Where a forger is about."""
        self._subscriptions: dict[str, dict[tuple[int, int], _Session]] = {}
        self._inboxes: dict[str, _Session] = {}
        self._session_number = 0

    # ---- faults

    def restart(self, downtime: float) -> None:
        self.is_up = False
        for connection in self.connections:
            if connection.session is not None:
                self._close(connection.session)
                connection.lost()

        def up() -> None:
            self.is_up = True
            self.starts += 1

        self.world.after(downtime, up)

    def cut_off(self, connection: SimConnection) -> None:
        """As the server does with slow consumers."""
        if connection.session is not None:
            self._close(connection.session)
            connection.lost()

    def cut_off_crawling(self) -> None:
        """Connections on which something is still on its way from slow times: it would hold up all that comes after."""
        late = self.world.now + 0.5
        for connection in self.connections:
            session = connection.session
            if session is not None and max(session.up_at, session.down_at) > late:
                self.cut_off(connection)

    def process_died(self, connection: SimConnection) -> None:
        session, connection.session = connection.session, None
        connection.closed = True
        if session is not None:
            self._up(session, "", self._close, session)

    def block(self, connection: SimConnection, *, up: bool, down: bool) -> None:
        connection.blocked_up, connection.blocked_down = up, down
        session = connection.session
        if session is None or not (up or down):
            return

        def client_gives_up() -> None:
            if connection.session is session and (connection.blocked_up or connection.blocked_down):
                connection.lost()

        def server_gives_up() -> None:
            if session.open and (connection.blocked_up or connection.blocked_down):
                self._close(session)
                if connection.session is session:
                    connection.lost()

        self.world.after(GIVES_UP_AFTER + self.rng.random() * 2, client_gives_up)
        self.world.after(SERVER_GIVES_UP_AFTER + self.rng.random() * 2, server_gives_up)

    def deafen(self, connection: SimConnection, *endings: str) -> Callable[[], None]:
        """Messages on such subjects are dropped without notice. Returns the function that ends it."""
        before, connection.deaf_to = connection.deaf_to, endings

        def hears() -> None:
            connection.deaf_to = before

        return hears

    def mute(self, connection: SimConnection, *endings: str) -> Callable[[], None]:
        """What it sends on such subjects is dropped without notice. Returns the function that ends it."""
        connection.mute_on = endings

        def speaks() -> None:
            connection.mute_on = ()

        return speaks

    def is_held(self, connection: SimConnection, subject: str) -> bool:
        """A message on it was sent, and waits until the connection is unblocked."""
        session = connection.session
        return session is not None and any(
            action == self._route and subject in subjects_of(args[1]) for action, args in session.held_up
        )

    def unblock(self, *connections: SimConnection) -> None:
        for connection in connections:
            if connection.blocked_up or connection.blocked_down:
                connection.unblocked_at = self.world.now
            connection.blocked_up = connection.blocked_down = False
            for session in connection.sessions:
                held_up, session.held_up = session.held_up, []
                held_down, session.held_down = session.held_down, []
                for action, args in held_up:
                    self._up(session, "", action, *args)
                for action, args in held_down:
                    self._down(session, "", action, *args)
            connection.sessions = [s for s in connection.sessions if s is connection.session]

    # ---- sessions

    def open_session(self, connection: SimConnection) -> _Session | None:
        if not self.is_up or connection.blocked_up or connection.blocked_down:
            return None
        self._session_number += 1
        session = _Session(connection, self._session_number)
        self._inboxes[connection.inbox] = session
        return session

    def _close(self, session: _Session) -> None:
        if not session.open:
            return
        session.open = False
        for subject in [s for s, entries in self._subscriptions.items() if any(e is session for e in entries.values())]:
            entries = self._subscriptions[subject]
            self._subscriptions[subject] = {key: e for key, e in entries.items() if e is not session}
        if self._inboxes.get(session.connection.inbox) is session:
            del self._inboxes[session.connection.inbox]

    # ---- travel

    def _arrival(self, session: _Session, last: float, subject: str) -> float:
        weather, world = self.weather, self.world
        delay = world.chance_delay(weather.latency * session.connection.slowness)
        when = world.now + min(delay, GIVES_UP_AFTER)  # nothing travels longer, and in order behind it all else
        if weather.any_order:
            return when
        if weather.in_order or not subject:
            return max(last, when)
        when = session.subject_at[subject] = max(when, session.subject_at.get(subject, 0.0))
        return when

    def _up(self, session: _Session, subject: str, action: Callable[..., object], *args: Any) -> None:
        """`subject`: messages on it must not be overtaken; empty: none may be."""
        if session.connection.blocked_up:
            session.held_up.append((action, args))
            return
        last = session.up_at
        when = self._arrival(session, last, subject)
        if when > last:
            session.up_at = when
        self.world.at(when, action, *args)

    def _down(self, session: _Session, subject: str, action: Callable[..., object], *args: Any) -> None:
        """`action` on the client's loop."""
        if session.connection.blocked_down:
            session.held_down.append((action, args))
            return
        last = session.down_at
        when = self._arrival(session, last, subject)
        if when > last:
            session.down_at = when
        session.connection.process.arrives(when, action, *args)

    def send(
        self, session: _Session, subject: str, data: bytes, reply: str | None, headers: Mapping[str, str] | None
    ) -> None:
        message = Message(subject, data, reply, dict(headers) if headers else None)
        if self.world.is_traced:
            self.message_trace.sent(message)
        if self.believed is not None and session.connection.is_broker:
            self.believed.sent(message)
        if self.overhears is not None:
            self.overhears(message)
        connection = session.connection
        if connection.mute_on and any(each.endswith(connection.mute_on) for each in subjects_of(message)):
            return
        weather = self.weather
        if weather.loss and self.rng.random() < weather.loss:
            self.world.say(f"LOST on the way to {subject}")
            return
        self._up(session, subject, self._route, session, message)
        is_repeated = weather.duplication and self.rng.random() < weather.duplication
        if is_repeated and (self.repeats_appends or not subject.endswith(".append")):
            self._up(session, subject, self._route, session, message)

    def _route(self, session: _Session, message: Message) -> None:
        if not session.open or not self.is_up:
            return
        subject = message.subject
        if subject.startswith(("_INBOX.", "tidelog.inbox.")):
            target = self._inboxes.get(subject[: subject.rindex(".") + 1])
            if target is not None:
                self._deliver(target, 0, message)
                return
            targets: list[tuple[tuple[int, int], _Session]] = []
        else:
            targets = [
                each for pattern in patterns_of(subject) for each in self._subscriptions.get(pattern, {}).items()
            ]
        for (_, sid), found in self._one_of_each_queue(targets):
            self._deliver(found, sid, message)
        if not targets and message.reply is not None:
            self._deliver(session, 0, Message(message.reply, b"", status=NO_RESPONDERS))

    def _one_of_each_queue(
        self, targets: list[tuple[tuple[int, int], _Session]]
    ) -> list[tuple[tuple[int, int], _Session]]:
        queues: dict[str, list[tuple[tuple[int, int], _Session]]] = {}
        for key, session in targets:
            queue = session.connection.queues.get(key[1])
            if queue is not None:
                queues.setdefault(queue, []).append((key, session))
        if not queues:
            return targets
        alone = [each for each in targets if each[1].connection.queues.get(each[0][1]) is None]
        return [*alone, *(self.rng.choice(members) for members in queues.values())]

    def _deliver(self, session: _Session, sid: int, message: Message) -> None:
        self.delivered += 1
        connection = session.connection
        if not (connection.deaf_to and any(each.endswith(connection.deaf_to) for each in subjects_of(message))):
            self._down(session, message.subject, connection.arrived, session, sid, message)

    def subscribe(self, session: _Session, subject: str, sid: int) -> None:
        self._up(session, "", self._remember, session, subject, sid)

    def _remember(self, session: _Session, subject: str, sid: int) -> None:
        if session.open:
            self._subscriptions.setdefault(subject, {})[session.number, sid] = session

    def unsubscribe(self, session: _Session, subject: str, sid: int) -> None:
        self._up(session, "", self._forget, session, subject, sid)

    def _forget(self, session: _Session, subject: str, sid: int) -> None:
        self._subscriptions.get(subject, {}).pop((session.number, sid), None)

    def ping(self, session: _Session, answered: Callable[[], None]) -> None:
        def pong() -> None:
            if session.open:
                self._down(session, "", heard)

        def heard() -> None:
            if session.connection.session is session:
                answered()

        self._up(session, "", pong)


class _Subscription:
    def __init__(self, connection: SimConnection, sid: int, subject: str) -> None:
        self._connection = connection
        self._sid = sid
        self._subject = subject

    async def unsubscribe(self) -> None:
        connection = self._connection
        connection.handlers.pop(self._sid, None)
        session = connection.session
        if session is not None:
            connection.nats.unsubscribe(session, self._subject, self._sid)
            with contextlib.suppress(TimeoutError):
                await connection.flush()


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class SimConnection:
    """A `Transport`."""

    max_payload = 1 << 20
    loss_reason = "the simulated connection was cut"
    dropped_headers = 0

    def __init__(self, nats: Nats, process: Process, name: str, inbox_prefix: str = CLIENTS_PREFIX) -> None:
        self.nats = nats
        self.process = process
        self.name = name
        self.violations = Violations(on_error=lambda _: None)
        """None: everything is permitted."""
        self.inbox = f"{inbox_prefix}.{name}."
        self.is_broker = inbox_prefix != CLIENTS_PREFIX
        self.session: _Session | None = None
        self.sessions: list[_Session] = []
        """That a link may hold something for."""
        self.closed = False
        self.blocked_up = False
        self.blocked_down = False
        self.unblocked_at = -math.inf
        self.slowness = 1.0
        self.deaf_to: tuple[str, ...] = ()
        self.mute_on: tuple[str, ...] = ()
        self.handlers: dict[int, tuple[str, MessageHandler | BulkHandler]] = {}
        self.queues: dict[int, str] = {}
        """By subscription, of those that have one."""
        self._sids = 0
        self._inbox_count = 0
        self._inbox_handlers: dict[str, MessageHandler] = {}
        self._changed: list[Callable[[bool], None]] = []
        self._since = math.inf
        self._up = asyncio.Event()
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._flushes: dict[asyncio.Future[Any], None] = {}
        nats.connections.append(self)
        self._connect()

    # ---- the connection's life

    def _connect(self) -> None:
        if self.closed or not self.process.alive:
            return
        session = self.nats.open_session(self)
        if session is None:
            self.nats.world.after(RECONNECT_WAIT * (0.5 + self.nats.rng.random()), self._connect)
            return
        self.session = session
        self.sessions.append(session)
        for sid, (subject, _) in self.handlers.items():
            self.nats.subscribe(session, subject, sid)
        self.nats.ping(session, self._came_up)

    def _came_up(self) -> None:
        if self._up.is_set():
            return
        self._since = self.process.time()
        self._up.set()
        self._tell(True)

    def lost(self) -> None:
        """The socket is gone."""
        session, self.session = self.session, None
        if session is None:
            return
        if not (self.blocked_up or self.blocked_down):
            self.sessions = [s for s in self.sessions if s is not session]
        # Messages on their way up still arrive, then the server hears of the end.
        self.nats._up(session, "", self.nats._close, session)
        self.nats.world.after(RECONNECT_WAIT * (0.5 + self.nats.rng.random()), self._connect)
        self.process.call_soon(self._went_down)

    def _went_down(self) -> None:
        if not self._up.is_set():
            return
        self._up.clear()
        self._since = math.inf
        for waiting in [*self._waiting, *self._flushes]:
            if not waiting.done():
                waiting.set_exception(TimeoutError("the connection to NATS was lost"))
        self._tell(False)

    def _tell(self, connected: bool) -> None:
        for handler in tuple(self._changed):
            handler(connected)

    async def connected(self) -> None:
        await self._up.wait()

    async def close(self) -> None:
        self.nats.process_died(self)

    def arrived(self, session: _Session, sid: int, message: Message) -> None:
        if session is not self.session:
            return
        if self.nats.world.is_traced and (line := self.nats.message_trace.of(message)) is not None:
            self.nats.world.say(line)
        if sid == 0:
            handler = self._inbox_handlers.get(message.subject)
            if handler is not None:
                handler(message)
            return
        found = self.handlers.get(sid)
        if found is None:
            return
        sink = found[1]
        if callable(sink):
            sink(message)
        else:
            reply = message.reply.encode() if message.reply is not None else None
            block = encode_headers(message.headers) if message.headers else None
            sink.on_messages([message.data], [reply], [block])
            sink.chunk_done()

    # ---- Transport

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def connected_since(self) -> float:
        return self._since

    @property
    def server_id(self) -> str:
        return f"nats-{self.nats.starts}" if self._up.is_set() else ""

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        data = b"".join(parts)
        if len(data) > self.max_payload:
            raise too_large(subject, len(data), self.max_payload)
        if not self._up.is_set() or self.session is None:
            return False
        self.nats.send(self.session, subject, data, reply, headers)
        return True

    def at_turn_end(self, call: Callable[[], None]) -> None:
        self.process.call_soon(call)

    def after_turn(self, call: Callable[[], None]) -> None:
        self.process.call_soon(call)

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        if not self._up.is_set() or self.session is None:
            return False
        data = b"".join(lines)
        at = 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            _, subject, size = data[at:end].split(b" ")
            start = end + 2
            at = start + int(size) + 2
            self.nats.send(self.session, subject.decode(), data[start : at - 2], None, None)
        return True

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        for subject in subjects:
            self.publish(subject.decode(), (payload,), headers=headers)
        return 0

    async def request(
        self, subject: str, payload: Buffer, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        answer: asyncio.Future[Message] = self.process.create_future()
        inbox = self.new_inbox()

        def on_answer(message: Message) -> None:
            if not answer.done():
                answer.set_result(message)

        self._inbox_handlers[inbox] = on_answer
        self._waiting[answer] = None
        too_late = self.process.call_later(timeout, _time_out, answer)
        try:
            if not self.publish(subject, (payload,), reply=inbox, headers=headers):
                raise TimeoutError(f"the request to {subject!r} was not sent")
            return await answer
        finally:
            too_late.cancel()
            self._inbox_handlers.pop(inbox, None)
            self._waiting.pop(answer, None)

    async def flush(self) -> None:
        if not self._up.is_set():
            raise TimeoutError("flush: there is no connection to NATS at the moment")
        session = self.session
        answered: asyncio.Future[None] = self.process.create_future()

        def on_pong() -> None:
            if not answered.done():
                answered.set_result(None)

        self._flushes[answered] = None
        too_late = self.process.call_later(FLUSH_TIMEOUT, _time_out, answered)
        try:
            if session is not None:  # else it was lost, and this process hears of it in a later turn
                self.nats.ping(session, on_pong)
            await answered
        finally:
            too_late.cancel()
            self._flushes.pop(answered, None)

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> _Subscription:
        return await self._subscribe(subject, handler, queue)

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> _Subscription:
        return await self._subscribe(subject, undecoded(handler))

    async def may_subscribe(self, subject: str) -> bool:
        return True

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> _Subscription:
        return await self._subscribe(subject, handler)

    async def _subscribe(self, subject: str, handler: MessageHandler | BulkHandler, queue: str = "") -> _Subscription:
        self._sids += 1
        sid = self._sids
        if queue:
            self.queues[sid] = queue
        self.handlers[sid] = (subject, handler)
        try:
            while True:
                await self._up.wait()
                if self.session is not None:
                    self.nats.subscribe(self.session, subject, sid)
                with contextlib.suppress(TimeoutError):
                    await self.flush()
                    return _Subscription(self, sid, subject)
        except BaseException:
            self.handlers.pop(sid, None)
            if self.session is not None and self._up.is_set():
                self.nats.unsubscribe(self.session, subject, sid)
            raise

    def new_inbox(self) -> str:
        self._inbox_count += 1
        return f"{self.inbox}{self._inbox_count}"

    def waits_on(self, inbox: str) -> bool:
        return inbox in self._inbox_handlers

    def on_inbox(self, inbox: str, handler: MessageHandler | None) -> None:
        if handler is None:
            self._inbox_handlers.pop(inbox, None)
        else:
            self._inbox_handlers[inbox] = handler

    def on_raw_inbox(self, inbox: str, handler: RawHandler) -> None:
        self._inbox_handlers[inbox] = undecoded(handler)

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._changed.append(handler)
