"""Answers to publishers, in the dialect in which each of them asked.

Bare NATS requests get JSON (`stream`, `partition`, `offset`, and `seq` = offset + 1 as JetStream publishers know it),
envelopes an Ack on their ackInbox, `.append` requests an AppendResponse. Each token is what one pending publish needs
for that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wire.envelope import encode_ack
from wire.errors import Code, TidelogError
from wire.tidelog_pb2 import Ack, AckError, AckPolicy, AppendResponse, Message
from wire.transport import Buffer, Transport
from wire.types import Offset, PartitionKey

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BareReplies:
    """A run of bare publishes, the first of them at `base_offset`; those that want no answer are None."""

    base_offset: Offset
    replies: list[bytes | None]
    needs_lease: bool = False
    """As of `AppendReply`."""


@dataclass(frozen=True, slots=True)
class AppendReply:
    inbox: str
    response: AppendResponse
    needs_lease: bool
    """acks=leader: worth nothing from a leader that may have been replaced."""


@dataclass(frozen=True, slots=True)
class EnvelopeReply:
    message: Message
    subject: str
    offset: Offset
    received_at: int
    """ns since 1970."""
    needs_lease: bool


class Answers:
    """Writes acknowledgements of one partition. Nothing here raises: an address that is no NATS subject is its owner's
    trouble, and not that of those who are answered next."""

    def __init__(self, transport: Transport, key: PartitionKey, subject: str) -> None:
        self._transport = transport
        self._key = key
        self._subject = subject
        self.undeliverable = 0
        """Answers to addresses that NATS does not know, dropped."""
        self._prefix = b'{"stream":%b,"partition":%d,"seq":' % (json.dumps(key.stream).encode(), key.partition)

    def bare(self, token: BareReplies) -> None:
        """One socket write for all of them."""
        prefix = self._prefix
        length = len(prefix) + len(b',"offset":}')
        offset = token.base_offset
        lines: list[bytes] = []
        for reply in token.replies:
            if reply is not None:
                seq = b"%d" % (offset + 1)
                at = b"%d" % offset
                lines.append(
                    b'PUB %b %d\r\n%b%b,"offset":%b}\r\n' % (reply, length + len(seq) + len(at), prefix, seq, at)
                )
            offset = Offset(offset + 1)
        if lines:
            self._transport.publish_raw([b"".join(lines)])

    def bare_error(self, replies: list[bytes | None], error: TidelogError) -> None:
        body = json.dumps(
            {"error": error.to_json(), "stream": self._key.stream, "partition": self._key.partition}
        ).encode()
        for reply in replies:
            if reply is not None:
                self._send(reply.decode(errors="surrogateescape"), [body], error.to_headers())

    def append(self, token: AppendReply) -> None:
        self._send(token.inbox, [token.response.SerializeToString()])

    def error(self, inbox: str | None, error: TidelogError, body: Buffer = b"") -> None:
        if inbox:
            self._send(inbox, [body], error.to_headers())

    def envelope(self, token: EnvelopeReply, now_ns: int, error: TidelogError | None = None) -> None:
        message = token.message
        if not message.ackInbox or message.ackPolicy == AckPolicy.NONE:
            return
        ack = Ack(
            stream=self._key.stream,
            partitionSubject=self._subject,
            msgSubject=token.subject,
            offset=token.offset,
            ackInbox=message.ackInbox,
            correlationId=message.correlationId,
            ackPolicy=message.ackPolicy,
            receptionTimestamp=token.received_at,
            commitTimestamp=0 if error else now_ns,
            partition=self._key.partition,
        )
        if error is not None:
            ack.ackError = _ACK_ERRORS.get(error.code, AckError.REFUSED)
            ack.errorCode = error.code.name
            ack.errorMessage = error.message
        self._send(message.ackInbox, [encode_ack(ack)])

    def _send(self, subject: str, parts: Sequence[Buffer], headers: Mapping[str, str] | None = None) -> None:
        """Lost when there is no connection: whoever waits for an answer asks again."""
        try:
            self._transport.publish(subject, parts, headers=headers)
        except ValueError as e:
            self.undeliverable += 1
            log.debug("partition %s: an answer cannot be sent: %s", self._key, e)


_ACK_ERRORS = {Code.INCORRECT_OFFSET: AckError.INCORRECT_OFFSET, Code.RECORD_TOO_LARGE: AckError.TOO_LARGE}
