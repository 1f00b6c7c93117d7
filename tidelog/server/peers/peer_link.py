"""`wire.messaging.transport.PeerTransport`: a NATS connection whose messages prove that a broker of the cluster has
sent them.

    publish    payload | trailer ──> NATS ──> verified? ─yes─> payload, to the handler
                                                 └─no──> dropped, counted (`refusals`), never answered

Anybody may send here as much as NATS carries, so a message is decoded only after it was verified: a refused one costs
the event loop a microsecond or two (docs/security.md has the figures).

Messages to the same broker may leave as one (`packs`): after the pack was verified, each of its frames goes to the
handler that a message of its own on that subject would have reached.

A 503 has no trailer. It is passed on as the first message of an inbox only: NATS sends it in place of an answer, so one
that comes later is forged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import cast

from tidelog.nats.header_block import decode_headers, encode_headers, status_of
from tidelog.server.peers.packs import Gathered, Packs
from tidelog.server.peers.peer_tags import CLAIM, PEER, TRAILER_BYTES, Fault, Sender, Signer, Verifier, covered
from wire.errors import CorruptData, TidelogError
from wire.messaging.packed import Frame, decode_pack, encode_pack
from wire.messaging.transport import (
    NO_RESPONDERS,
    REFUSAL_GRACE,
    TAG_HEADER,
    AnswerHandler,
    ClaimHandler,
    Message,
    MessageHandler,
    Subscription,
    Transport,
)
from wire.messaging.violation import Act, Violation
from wire.security.cluster_secrets import ClusterSecrets
from wire.subjects import Subjects
from wire.types import BrokerId, Buffer

_log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
"""Seconds between two log lines for a kind of subject."""
MAX_SHOWN = 120
"""Bytes of a subject that the log shows."""
_NEVER = (-inf, 0)


class Refusals:
    """Counts of refused messages. `owner`: the broker, for the log."""

    def __init__(self, owner: str, monotonic: Callable[[], float]) -> None:
        self._owner = owner
        self.monotonic = monotonic
        self._counts: dict[str, dict[str, int]] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        """By kind, the time of its last line, and the count then."""

    def count(self, kind: str, fault: str, subject: bytes) -> None:
        """Counts a refused message. `kind` of the subject: one of few. `subject` may be anybody's text."""
        faults = self._counts.get(kind)
        if faults is None:
            faults = self._counts[kind] = {}
        faults[fault] = faults.get(fault, 0) + 1
        now = self.monotonic()
        at, before = self._logged.get(kind, _NEVER)
        if now - at >= LOG_INTERVAL_S:
            total = sum(faults.values())
            self._logged[kind] = now, total
            _log.warning(
                "broker %s refused %d messages of kind %s that no broker of its cluster has sent, the last one on %r"
                " (%s); somebody else publishes there, or a broker has another raft_secret",
                self._owner, total - before, kind, subject[:MAX_SHOWN].decode(errors="replace"), fault,
            )  # fmt: skip

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the counts by kind of subject and reason."""
        return {kind: dict(faults) for kind, faults in sorted(self._counts.items())}


ANSWER = "answer"
"""Kind of the messages to inboxes."""
LATE_REFUSAL = "late 503"
"""A 503 that comes after another message: it is not from NATS."""
STATUS = "status"
"""A status message that no request causes."""
PACKED = "packed"
"""Kind of message under which refused packs are counted."""
MALFORMED = "malformed"
"""A pack of a broker of the cluster that does not decode: no frame of it counts."""


class PeerLink:
    """See the module. `life_id`: no other process of any broker has the same. `current_lives`: see Verifier."""

    def __init__(
        self,
        transport: Transport,
        secrets: ClusterSecrets,
        life_id: str,
        refusals: Refusals,
        current_lives: Callable[[], Iterable[str]] = tuple,
        *,
        claims: Transport | None = None,
    ) -> None:
        self.refusals = refusals
        self._transport = transport
        self._claims = transport if claims is None else claims
        self._signer = Signer(secrets, life_id)
        self._verifier = Verifier(secrets, refusals.monotonic, current_lives)
        self._waiting: set[asyncio.Future[Message]] = set()
        self._handlers: dict[str, list[MessageHandler]] = {}
        """By subject, those of subscriptions that NATS knows: frames go to them."""
        self._inboxes: dict[str, _Inbox] = {}
        self.after_turn = transport.after_turn
        self.new_inbox = transport.new_inbox
        self._subjects: Subjects | None = None
        """Set while packs are sent and taken; None: every message goes by itself."""
        self._packs = Packs(self._send, transport.at_turn_end, lambda: transport.max_payload, refusals.monotonic)
        transport.on_connection_change(self._on_connection)

    # ---- the connection

    @property
    def is_connected(self) -> bool:
        return self._transport.is_connected

    @property
    def connected_since(self) -> float:
        return self._transport.connected_since

    @property
    def server_id(self) -> str:
        return self._transport.server_id

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._transport.on_connection_change(handler)

    @property
    def hears_claims(self) -> bool:
        return self._claims.is_connected

    def on_claims_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._claims.on_connection_change(handler)

    def _on_connection(self, connected: bool) -> None:
        if not connected:
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(TimeoutError("the connection to NATS was lost"))

    # ---- sending

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
        to: BrokerId | None = None,
    ) -> bool:
        if to is not None and self._subjects is not None and self._transport.is_connected:
            size = 0
            for part in parts:
                size += len(part)
            if self._packs.takes(to, size):
                payload = parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)
                block = encode_headers(headers) if headers else b""
                self._packs.add(to, Gathered(subject, reply, headers, block, payload))
                return True
        trailer = self._signer.trailer(PEER, subject, reply, headers, parts)
        return self._transport.publish(subject, (*parts, trailer), reply=reply, headers=headers)

    def _send(self, to: BrokerId, gathered: list[Gathered]) -> None:
        """Sends what was gathered for a broker."""
        if len(gathered) == 1 and not gathered[0].nobody_listens:
            self._send_alone(gathered[0])
            return
        if self._subjects is None:
            return
        inbox = self.new_inbox()
        forgotten = self._packs.remember(inbox, to, gathered)
        if forgotten is not None:
            self._transport.on_inbox(forgotten, None)
        self._transport.on_raw_inbox(inbox, self._on_pack_unheard)
        self.publish(self._subjects.packed(to), (encode_pack([each.frame() for each in gathered]),), reply=inbox)

    def _send_alone(self, message: Gathered) -> None:
        subject, reply, headers, _, payload, _ = message
        trailer = self._signer.trailer(PEER, subject, reply, headers, (payload,))
        try:
            self._transport.publish(subject, (payload, trailer), reply=reply, headers=headers)
        except TidelogError as e:  # it is lost, as any message may be
            _log.warning("a message to another broker is dropped: %s", e)

    def _on_pack_unheard(self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        """NATS says that nobody listens for packs where one was sent. A forged 503 has them sent twice."""
        if headers is None or status_of(headers) != NO_RESPONDERS or payload or reply:
            self.refusals.count(PACKED, STATUS, subject)
            return
        inbox = subject.decode()
        self._transport.on_inbox(inbox, None)
        for message in self._packs.on_no_responders(inbox):
            if not message.nobody_listens:
                self._send_alone(message)

    def publish_claim(self, subject: str, payload: Buffer, *, reply: str | None = None) -> bool:
        trailer = self._signer.trailer(CLAIM, subject, reply, None, (payload,))
        return self._transport.publish(subject, (payload,), reply=reply, headers={TAG_HEADER: trailer.hex()})

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        on_refused: Callable[[], None] | None = None,
    ) -> Message:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Message] = loop.create_future()
        timers = [loop.call_later(timeout, _time_out, answer, subject)]

        def on_answer(message: Message) -> None:
            if message.status is None:
                _settle(answer, message)
            elif on_refused is None:
                timers.append(loop.call_later(REFUSAL_GRACE, _settle, answer, message))
            elif not answer.done():
                on_refused()

        inbox = self.new_inbox()
        self.on_inbox(inbox, on_answer)
        self._waiting.add(answer)
        try:
            if not self.publish(subject, (payload,), reply=inbox):
                raise TimeoutError(f"the request to {subject!r} was not sent: there is no connection to NATS")
            return await answer
        finally:
            self._waiting.discard(answer)
            self.on_inbox(inbox, None)
            for timer in timers:
                timer.cancel()

    # ---- receiving

    async def subscribe(self, subject: str, handler: MessageHandler) -> Subscription:
        kind = kind_of(subject)

        def on_raw(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            if headers is not None and status_of(headers) is not None:
                self.refusals.count(kind, STATUS, subject)
                return
            opened = self._open(kind, subject, reply, headers, payload)
            if opened is not None:
                handler(opened)

        made = await self._transport.subscribe_raw(subject, on_raw)
        return _Subscription(made, self._handlers, subject, handler)

    async def take_packs(self, subjects: Subjects, broker: BrokerId) -> Subscription:
        """Begins to send packs, and to take those to `broker`, this one."""
        made = await self.subscribe(subjects.packed(broker), self._on_pack)
        self._subjects = subjects
        self._transport.violations.hear(self._on_violation)
        return made

    def _on_violation(self, violation: Violation) -> None:
        if violation.act is Act.PUBLISH and self._subjects is not None:
            to = self._subjects.broker_of_packed(violation.subject)
            if to is not None:
                self._packs.on_refused(to)

    @property
    def unheard_packs(self) -> int:
        """Packs that nobody listened to, or that NATS refused."""
        return self._packs.unheard

    async def may_subscribe(self, subject: str) -> bool:
        return await self._transport.may_subscribe(subject)

    async def subscribe_claims(self, subject: str, handler: ClaimHandler) -> Subscription:
        def on_raw(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            if headers is None or status_of(headers) is None:
                is_proved = partial(self._is_raw_proved, subject, reply, headers, payload)
                handler(payload, None if reply is None else reply.decode(errors="replace"), is_proved)

        return await self._claims.subscribe_raw(subject, on_raw)

    def on_inbox(self, inbox: str, handler: MessageHandler | None, *, as_view: bool = False) -> None:
        if handler is None:
            self._inboxes.pop(inbox, None)
            self._transport.on_inbox(inbox, None)
        else:
            self._inboxes[inbox] = checked = _Inbox(self, handler, as_view)
            self._transport.on_raw_inbox(inbox, checked)

    # Keeps R42.
    def _on_pack(self, message: Message) -> None:
        """Gives each frame to the handlers on its subject. A bug in one of them ends no other."""
        try:
            frames = decode_pack(message.data)
        except CorruptData as e:
            self.refusals.count(PACKED, MALFORMED, message.subject.encode())
            _log.warning("a pack of messages is dropped: %s", e)
            return
        bug: Exception | None = None
        for frame in frames:
            try:
                self._dispatch(frame)
            except Exception as e:  # noqa: BLE001 - the transport logs and counts it
                bug = bug or e
        if bug is not None:
            raise bug

    def _dispatch(self, frame: Frame) -> None:
        subject = frame.subject.decode()
        inbox = self._inboxes.get(subject)
        if inbox is not None:
            inbox.on_frame(subject, frame)
            return
        handlers = self._handlers.get(subject)
        if handlers:
            message = _message_of(subject, frame, bytes(frame.payload))
            for handler in tuple(handlers):
                handler(message)
        elif frame.reply and not frame.nobody_listens:
            self._say_nobody_listens(frame.reply)

    def _say_nobody_listens(self, reply: bytes) -> None:
        """Sends a 503, as NATS does where nobody subscribes. While packs to the asker are paused it is not sent, and
        the asker waits in vain, as for a lost answer."""
        if self._subjects is None:
            return
        inboxes = self._subjects.broker_inboxes()
        asker = BrokerId(reply.decode().removeprefix(inboxes).partition(".")[0])
        if reply.startswith(inboxes.encode()) and self._packs.takes(asker, 0):
            self._packs.add(asker, Gathered(reply.decode(), None, None, b"", b"", nobody_listens=True))

    def on_claim_inbox(self, inbox: str, handler: AnswerHandler | None) -> None:
        self._transport.on_inbox(inbox, None if handler is None else partial(self._on_claim, handler))

    def _on_claim(self, handler: AnswerHandler, message: Message) -> None:
        handler(message, message.status is None and self._is_proved(message))

    def _is_proved(self, message: Message) -> bool:
        reply = None if message.reply is None else message.reply.encode()
        return self._is_claim_proved(message.subject.encode(), reply, message.headers, message.data)

    def _is_raw_proved(self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> bool:
        return self._is_claim_proved(subject, reply, None if headers is None else decode_headers(headers)[0], payload)

    def _is_claim_proved(
        self, subject: bytes, reply: bytes | None, fields: Mapping[str, str] | None, payload: bytes
    ) -> bool:
        try:
            trailer = bytes.fromhex((fields or {}).get(TAG_HEADER, ""))
        except ValueError:
            return False
        sender = self._verifier.claimed_sender(CLAIM, trailer)
        if isinstance(sender, Fault):
            return False
        return self._verifier.fault(sender, covered(CLAIM, subject, reply, None), payload, trailer) is None

    def _open(
        self,
        kind: str,
        subject: bytes,
        reply: bytes | None,
        headers: bytes | None,
        data: bytes,
        *,
        as_view: bool = False,
    ) -> Message | None:
        """Returns the message without its trailer; None: it is refused. `headers` have no status."""
        end = len(data) - TRAILER_BYTES
        if end < 0:
            self.refusals.count(kind, Fault.SHORT.value, subject)
            return None
        trailer = data[end:]
        sender = self._verifier.claimed_sender(PEER, trailer)
        if not isinstance(sender, Sender):  # costs a third of `isinstance(sender, Fault)`
            self.refusals.count(kind, sender.value, subject)
            return None
        fields = None if headers is None else decode_headers(headers)[0]
        payload = memoryview(data)[:end] if as_view else data[:end]
        fault = self._verifier.fault(sender, covered(PEER, subject, reply, fields), payload, trailer)
        if fault is not None:
            self.refusals.count(kind, fault.value, subject)
            return None
        return Message(subject.decode(), cast("bytes", payload), None if reply is None else reply.decode(), fields)


def kind_of(subject: str) -> str:
    """Returns the kind of a brokers' subject, for the counts."""
    tokens = subject.split(".")
    match tokens[1:]:
        case ["metadata", about] | ["metadata", about, _]:
            return about
        case ["notify", _]:
            return "notify"
        case _:
            return tokens[-1]


class _Inbox:
    """The handler of one inbox, which checks each message first."""

    __slots__ = ("_as_view", "_handler", "_has_come", "_link")

    def __init__(self, link: PeerLink, handler: MessageHandler, as_view: bool) -> None:
        self._link = link
        self._handler = handler
        self._as_view = as_view
        self._has_come = False
        """A verified answer, or a 503, has come."""

    def __call__(self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        status = None if headers is None else status_of(headers)
        if status is not None:
            if status != NO_RESPONDERS or payload or reply:
                self._link.refusals.count(ANSWER, STATUS, subject)
            elif self._has_come:
                self._link.refusals.count(ANSWER, LATE_REFUSAL, subject)
            else:
                self._has_come = True
                self._handler(Message(subject.decode(), b"", status=status))
            return
        opened = self._link._open(ANSWER, subject, reply, headers, payload, as_view=self._as_view)
        if opened is not None:
            self._has_come = True
            self._handler(opened)

    def on_frame(self, subject: str, frame: Frame) -> None:
        """Takes a frame for this inbox. Its pack was verified."""
        if frame.nobody_listens:
            if not self._has_come:
                self._has_come = True
                self._handler(Message(subject, b"", status=NO_RESPONDERS))
            return
        self._has_come = True
        payload = frame.payload if self._as_view else bytes(frame.payload)
        self._handler(_message_of(subject, frame, payload))


class _Subscription:
    """A subscription whose handler gets frames, too, until it is given up."""

    def __init__(
        self, made: Subscription, handlers: dict[str, list[MessageHandler]], subject: str, handler: MessageHandler
    ) -> None:
        self._made = made
        self._handlers = handlers
        self._subject = subject
        self._handler = handler
        handlers.setdefault(subject, []).append(handler)

    async def unsubscribe(self) -> None:
        listening = self._handlers.get(self._subject, [])
        if self._handler in listening:
            listening.remove(self._handler)
            if not listening:
                del self._handlers[self._subject]
        await self._made.unsubscribe()


def _message_of(subject: str, frame: Frame, payload: Buffer) -> Message:
    headers = decode_headers(frame.headers)[0] if frame.headers else None
    return Message(subject, cast("bytes", payload), frame.reply.decode() or None, headers)


def _settle(answer: asyncio.Future[Message], message: Message) -> None:
    if not answer.done():
        answer.set_result(message)


def _time_out(answer: asyncio.Future[Message], subject: str) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError(f"no answer on {subject!r}"))
