"""NATS in one process; its only faults are the ones that a test asks for.

    Hub             subjects and their listeners; messages are delivered through `loop.call_soon`, in order
    FakeTransport   a connection to a hub; without a hub it only notes messages and subscriptions
    delivered       waits until what is sent has arrived
    BulkSink        a bulk handler that takes runs apart and checks the promises of the parser

The simulation has a NATS of its own (`tests.simulation.machines.messaging`), whose delays, losses and cuts come from a
seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.nats.header_block import encode_headers
from wire.messaging.transport import (
    NO_RESPONDERS,
    AnswerHandler,
    BulkHandler,
    ClaimHandler,
    Message,
    MessageHandler,
    RawHandler,
    Subscription,
    UniformRun,
    too_large,
)
from wire.messaging.violation import Violations
from wire.types import BrokerId, Buffer

TURNS = 50
"""Of the event loop; more than any answer takes to come back."""

MAX_REPLY = 4000
"""Bytes of the longest subject to which the same refusal goes as to others."""


async def delivered() -> None:
    """Returns when all messages on their way, and what is sent because of them, have arrived, however busy the machine
    is. What waits for a time is not waited for."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _raise(error: Exception) -> None:
    raise error


def undecoded(handler: RawHandler) -> MessageHandler:
    """Gives `handler` each message as it would stand on the wire."""

    def on_message(message: Message) -> None:
        block = None if not message.headers else encode_headers(message.headers)
        if message.status is not None:
            block = b"NATS/1.0 %d\r\n\r\n" % message.status
        reply = None if message.reply is None else message.reply.encode()
        handler(message.subject.encode(), reply, block, message.data)

    return on_message


def patterns_of(subject: str) -> tuple[str, str, str]:
    """What brokers subscribe to that matches: the subject, and `*` in place of the last token, or of the last two."""
    above, _, _ = subject.rpartition(".")
    return subject, f"{above}.*", f"{above.rpartition('.')[0]}.*.*"


class Hub:
    def __init__(self) -> None:
        self.handlers: dict[str, list[tuple[object, MessageHandler]]] = {}
        """By subject: (connection, handler)."""
        self.lose: Callable[[str], bool] = lambda _: False
        self.seen: list[str] = []
        """Subjects of all messages."""

    def send(self, subject: str, data: bytes, reply: str | None, headers: Mapping[str, str] | None) -> None:
        self.seen.append(subject)
        if self.lose(subject):
            return
        loop = asyncio.get_running_loop()
        listening = [each for pattern in patterns_of(subject) for each in self.handlers.get(pattern, ())]
        found = self._without_their_queues(listening, subject)
        for handler in found:
            loop.call_soon(handler, Message(subject, data, reply, headers))
        if not found and reply is not None:
            loop.call_soon(self._answer_no_responders, Message(reply, b"", status=NO_RESPONDERS))

    @staticmethod
    def _without_their_queues(found: list[tuple[object, MessageHandler]], subject: str) -> list[MessageHandler]:
        taken: set[str] = set()
        chosen = []
        for transport, handler in found:
            queue = transport.queues.get(subject, "") if isinstance(transport, FakeTransport) else ""
            if not queue or queue not in taken:
                chosen.append(handler)
            taken.add(queue)
        return chosen

    def _answer_no_responders(self, message: Message) -> None:
        for _, handler in self.handlers.get(message.subject, ()):
            handler(message)


class _HubSubscription:
    def __init__(self, transport: FakeTransport, subject: str, entry: tuple[object, MessageHandler]) -> None:
        self._transport, self._subject, self._entry = transport, subject, entry

    async def unsubscribe(self) -> None:
        self._transport.subscribed.pop(self._subject, None)
        hub = self._transport.hub
        entries = hub.handlers.get(self._subject, []) if hub is not None else []
        if self._entry in entries:
            entries.remove(self._entry)


class FakeTransport:
    """A `Transport`, and a `PeerTransport` of which everybody is believed."""

    def __init__(self, hub: Hub | None = None, *, max_payload: int = 1 << 20, connected_since: float = 0.0) -> None:
        self.hub = hub
        self.max_payload = max_payload
        self.connected_since = connected_since
        self.is_connected = True
        self.is_full = False
        """Its outgoing buffer is above its limit."""
        self.loss_reason = ""
        self.server_id = "nats-1"
        self.sent: list[tuple[str, bytes, Mapping[str, str] | None]] = []
        """(subject, payload, headers); ready-made lines have no subject."""
        self.bursts = 0
        """Calls of `publish_to_each`."""
        self.subscribed: dict[str, Any] = {}
        """By subject: a MessageHandler or a BulkHandler."""
        self.raw: dict[str, RawHandler] = {}
        """By subject: those that take messages undecoded."""
        self.queues: dict[str, str] = {}
        """By subject. A hub delivers to the first of a queue."""
        self.inboxes: dict[str, MessageHandler] = {}
        self._numbers = 0
        self._changed: list[Callable[[bool], None]] = []
        self.violations = Violations(on_error=_raise)
        self.dropped_headers = 0
        self.forbidden: set[str] = set()
        """Subjects that may not be subscribed to."""

    # ---- faults and answers that a test makes

    def lose(self) -> None:
        """The connection is lost."""
        self._set_connected(False)

    def come_back(self) -> None:
        self._set_connected(True)

    def _set_connected(self, connected: bool) -> None:
        self.is_connected = connected
        for handler in self._changed:
            handler(connected)

    def cut(self) -> None:
        """A killed process leaves no subscription behind."""
        assert self.hub is not None
        for entries in self.hub.handlers.values():
            entries[:] = [entry for entry in entries if entry[0] is not self]

    def listen(self, subject: str, handler: MessageHandler | None) -> None:
        """`handler` replaces all handlers of `subject`; None removes them."""
        assert self.hub is not None
        self.hub.handlers[subject] = [] if handler is None else [(self, handler)]

    def answer(self, data: bytes) -> None:
        """An answer comes to the newest inbox."""
        inbox, handler = list(self.inboxes.items())[-1]
        handler(Message(inbox, data))

    # ---- Transport

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
        to: BrokerId | None = None,
    ) -> bool:
        if not subject or " " in subject or not subject.isprintable():
            raise ValueError(f"{subject!r} cannot be a NATS subject")
        if not self.is_connected or self.is_full:
            return False
        data = b"".join(parts)
        if len(data) > self.max_payload:
            raise too_large(subject, len(data), self.max_payload)
        self.sent.append((subject, data, headers))
        if self.hub is not None:
            self.hub.send(subject, data, reply, headers)
        return True

    def at_turn_end(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def after_turn(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        assert self.hub is None, "a hub takes no lines apart"
        self.sent.append(("", b"".join(lines), None))
        return True

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        fitting = [subject.decode(errors="surrogateescape") for subject in subjects if len(subject) < MAX_REPLY]
        self.sent += [(subject, bytes(payload), headers) for subject in fitting]
        self.bursts += 1
        if self.hub is not None:
            for subject in fitting:
                self.hub.send(subject, bytes(payload), None, headers)
        return len(subjects) - len(fitting)

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        on_refused: Callable[[], None] | None = None,
    ) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        inbox = self.new_inbox()

        def on_answer(message: Message) -> None:
            if message.status == NO_RESPONDERS and on_refused is not None:
                on_refused()
            elif not answer.done():
                answer.set_result(message)

        self.on_inbox(inbox, on_answer)
        try:
            if not self.publish(subject, [payload], reply=inbox, headers=headers):
                raise TimeoutError("not connected")
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            self.on_inbox(inbox, None)

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> Subscription:
        entry = (self, handler)
        self.subscribed[subject] = handler
        self.queues[subject] = queue
        if self.hub is not None:
            self.hub.handlers.setdefault(subject, []).append(entry)
        return _HubSubscription(self, subject, entry)

    def publish_claim(self, subject: str, payload: Buffer, *, reply: str | None = None) -> bool:
        return self.publish(subject, [payload], reply=reply)

    @property
    def hears_claims(self) -> bool:
        return self.is_connected

    def on_claims_connection_change(self, handler: Callable[[bool], None]) -> None:
        self.on_connection_change(handler)

    async def subscribe_claims(self, subject: str, handler: ClaimHandler) -> Subscription:
        return await self.subscribe(subject, lambda message: handler(message.data, message.reply, lambda: True))

    def on_claim_inbox(self, inbox: str, handler: AnswerHandler | None) -> None:
        self.on_inbox(inbox, None if handler is None else lambda message: handler(message, True))

    async def may_subscribe(self, subject: str) -> bool:
        return subject not in self.forbidden

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> Subscription:
        self.raw[subject] = handler
        return await self.subscribe(subject, undecoded(handler))

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> Subscription:
        assert self.hub is None, "a hub has no runs of messages"
        self.subscribed[subject] = handler
        return _HubSubscription(self, subject, (self, handler))  # type: ignore[arg-type]

    def new_inbox(self) -> str:
        self._numbers += 1
        return f"_INBOX.{id(self)}.{self._numbers}"

    def on_inbox(self, inbox: str, handler: MessageHandler | None, *, as_view: bool = False) -> None:
        if handler is None:
            self.inboxes.pop(inbox, None)
        else:
            self.inboxes[inbox] = handler
        if self.hub is not None:
            self.listen(inbox, handler)

    def on_raw_inbox(self, inbox: str, handler: RawHandler) -> None:
        self.on_inbox(inbox, undecoded(handler))

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._changed.append(handler)

    async def close(self) -> None:
        self.is_connected = False


class Delivery(NamedTuple):
    payload: bytes
    reply: bytes | None
    headers: bytes | None


class BulkSink:
    """`taken` hears each message; without it they are kept in `deliveries`."""

    def __init__(self, taken: Callable[[Delivery], None] | None = None) -> None:
        self.deliveries: list[Delivery] = []
        self.uniform = 0
        """Messages that came in runs of equal length."""
        self.chunks = 0
        self.is_open = False
        """`chunk_done` has not come yet."""
        self._take = taken or self.deliveries.append

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self.deliveries]

    def on_uniform(self, run: UniformRun) -> None:
        assert len(run.block) == run.count * run.stride
        self.is_open = True
        self.uniform += run.count
        for number, payload in enumerate(run.payloads()):
            message = run.block[number * run.stride :]
            text = None if run.reply is None else bytes(message[run.reply[0] : sum(run.reply)])
            self._take(Delivery(payload, text, None))

    def on_messages(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        assert payloads, "an empty list is no delivery"
        self.is_open = True
        for delivery in zip(payloads, replies, headers, strict=True):
            self._take(Delivery(*delivery))

    def chunk_done(self) -> None:
        assert self.is_open, "chunk_done without a message before it"
        self.is_open = False
        self.chunks += 1
