"""A connection that answers only where `wire.messaging.reply_subjects` allows it: the broker's handlers see no other
reply.

A request of one message whose reply is refused is dropped: all that such a request can be is a mistake or an attack.
A message to a stream's subject is a record whatever its reply says, because publishers of other systems put their own
there (a JetStream consumer that delivers to a stream's subject names `$JS.ACK.…`). It is stored as one without a reply:
not acknowledged, and dropped where plain publishes are.

The permissions that NATS refuses this broker's login are in its log and in its status. Answers go where clients ask for
them, so anybody can have NATS refuse an answer on a subject of his choice. Messages that the broker sends on its own
account (to other brokers, in the namespace, and to `$SRV.INFO`) are counted apart, so that no flood of the others hides
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf

from dataplane.broker.roles.role_answers import each_reply, reply_column
from metadata.runtime.foreign_subjects import SERVICES
from wire.echo import one_line
from wire.messaging.reply_subjects import ReplySubjects
from wire.messaging.transport import (
    BulkHandler,
    Message,
    MessageHandler,
    RawHandler,
    Subscription,
    Transport,
    UniformRun,
)
from wire.messaging.violation import Act, Violation, Violations
from wire.operations.api_operations import MissingPermissions
from wire.subjects import Subjects
from wire.types import Buffer

_log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
"""Seconds between two log lines on refused messages; each refused subscription has a line of its own."""
REMEMBERED_S = 60.0
"""Seconds for which a refused message is shown in the status."""
MAX_SHOWN = 20
"""Subjects shown of a kind."""


class _Refused:
    """Messages of one kind that NATS has refused."""

    def __init__(self) -> None:
        self.subjects: dict[str, float] = {}
        """The newest subjects, with the times of their refusals."""
        self.logged_at = -inf
        self.unlogged = 0


class PermissionWatch:
    """`owner`: the broker, of a cluster in `namespace`. Watches the refusals on all its connections."""

    def __init__(
        self, owner: str, namespace: str, transports: Sequence[Transport], monotonic: Callable[[], float]
    ) -> None:
        self._owner = owner
        self._own_subjects = (f"{namespace}.", "$")
        """Prefixes of subjects where no client has its inbox (`wire.messaging.reply_subjects`)."""
        self._transports = transports
        self._monotonic = monotonic
        self._own, self._answers = _Refused(), _Refused()
        for transport in transports:
            transport.violations.hear(self._on_violation)

    def _on_violation(self, violation: Violation) -> None:
        if violation.act is Act.SUBSCRIBE:
            self._say(violation, "what is published or asked there does not arrive")
            return
        is_own = violation.subject.startswith(self._own_subjects)
        refused, what = (self._own, "messages") if is_own else (self._answers, "answers to clients")
        now = self._monotonic()
        refused.subjects.pop(violation.subject, None)
        refused.subjects[violation.subject] = now
        if len(refused.subjects) > MAX_SHOWN:
            del refused.subjects[next(iter(refused.subjects))]
        refused.unlogged += 1
        if now - refused.logged_at >= LOG_INTERVAL_S:
            self._say(violation, f"{refused.unlogged} {what} since the last such line did not leave")
            refused.logged_at, refused.unlogged = now, 0

    def _say(self, violation: Violation, consequence: str) -> None:
        _log.error(
            "broker %s: %s; %s. `tidelog security nats-config --role broker --broker %s --subject SUBJECT` prints the"
            " permissions that it needs, with each SUBJECT that streams capture",
            self._owner, violation.sentence, consequence, self._owner,
        )  # fmt: skip

    def _refused_subscriptions(self) -> set[str]:
        return {subject for transport in self._transports for subject in transport.violations.subscriptions}

    def status(self) -> MissingPermissions:
        since = self._monotonic() - REMEMBERED_S
        subscribe = sorted(self._refused_subscriptions())
        return {
            "subscriptions": len(subscribe),
            "subscribe": [one_line(subject) for subject in subscribe[:MAX_SHOWN]],
            "publish": [
                one_line(subject)
                for refused in (self._own, self._answers)
                for subject, at in refused.subjects.items()
                if at >= since
            ],
        }


class AnsweringTransport:
    """A `Transport` that wraps another one and answers only permitted replies."""

    def __init__(self, transport: Transport, subjects: Subjects, replies: ReplySubjects) -> None:
        self._transport = transport
        self._subjects = subjects
        self._replies = replies
        # Each message that is sent, or answered, comes through these.
        self.publish = transport.publish
        self.at_turn_end = transport.at_turn_end
        self.after_turn = transport.after_turn
        self.publish_raw = transport.publish_raw
        self.new_inbox = transport.new_inbox
        self.on_inbox = transport.on_inbox
        self.on_raw_inbox = transport.on_raw_inbox

    @property
    def is_connected(self) -> bool:
        return self._transport.is_connected

    @property
    def connected_since(self) -> float:
        return self._transport.connected_since

    @property
    def server_id(self) -> str:
        return self._transport.server_id

    @property
    def loss_reason(self) -> str:
        return self._transport.loss_reason

    @property
    def dropped_headers(self) -> int:
        return self._transport.dropped_headers

    @property
    def violations(self) -> Violations:
        return self._transport.violations

    @property
    def max_payload(self) -> int:
        return self._transport.max_payload

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        return self._transport.publish_to_each(subjects, payload, headers)

    async def request(
        self, subject: str, payload: Buffer, *, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        return await self._transport.request(subject, payload, timeout=timeout, headers=headers)

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> Subscription:
        is_inbox = self._inboxes_of(subject)

        def on_message(message: Message) -> None:
            if message.reply is None or is_inbox(message.reply.encode()):
                handler(message)

        return await self._transport.subscribe(subject, on_message, queue=queue)

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> Subscription:
        is_inbox = self._inboxes_of(subject)

        def on_raw(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            if reply is None or is_inbox(reply):
                handler(subject, reply, headers, payload)

        return await self._transport.subscribe_raw(subject, on_raw)

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> Subscription:
        return await self._transport.subscribe_bulk(subject, _AnswerableBulk(handler, self._replies))

    async def may_subscribe(self, subject: str) -> bool:
        return await self._transport.may_subscribe(subject)

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        self._transport.on_connection_change(handler)

    def _inboxes_of(self, subject: str) -> Callable[[bytes], bool]:
        """Returns the check whether a reply can be an inbox of the senders to `subject`."""
        if self._subjects.is_between_brokers(subject):
            return self._replies.is_brokers
        if subject == SERVICES:
            return self._replies.is_clients_not_brokers
        return self._replies.is_clients


class _AnswerableBulk(BulkHandler):
    def __init__(self, handler: BulkHandler, replies: ReplySubjects) -> None:
        self._handler = handler
        self._replies = replies

    def on_uniform(self, run: UniformRun) -> None:
        if run.reply is None or self._replies.allows_run(run):
            self._handler.on_uniform(run)
            return
        replies = each_reply(reply_column(run.block, run.count, *run.reply, run.stride))
        self._handler.on_messages(list(run.payloads()), self._replies.checked(replies), [None] * run.count)

    def on_messages(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        self._handler.on_messages(payloads, self._replies.checked(replies), headers)

    def chunk_done(self) -> None:
        self._handler.chunk_done()
