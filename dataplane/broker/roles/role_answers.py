"""Answers to publishers, in the dialect in which each of them asked.

Bare NATS requests get JSON (`stream`, `partition`, `offset`, and `seq` = offset + 1 as JetStream publishers know it),
envelopes an Ack on their ackInbox, `.append` requests an AppendResponse, coordinators in this process a call. The facts
for an answer are in `dataplane.replica.replies`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from dataplane.replica.replies import AppendReply, BareReplies, EnvelopeReply, Replies
from wire.errors import Code, TidelogError
from wire.messaging.transport import PeerTransport, Transport
from wire.partition_messages.jetstream import refusal
from wire.partition_messages.liftbridge_envelope import encode_ack
from wire.protobuf.tidelog_pb2 import Ack, AckError, AckPolicy
from wire.types import Buffer, PartitionKey

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

_LOW: Final = 10_000
_LOW_DIGITS = np.frombuffer(b"".join(b"%04d" % i for i in range(_LOW)), "<u4")
"""[_LOW] The last four digits of a number, as their four bytes."""
_BLOCK_FROM = 16
"""Fewer acks than this are formatted one by one: a block costs some calls of numpy."""


def reply_column(block: memoryview, count: int, at: int, size: int, stride: int) -> NDArray[np.void]:
    """A copy of `count` reply subjects of `size` bytes that lie `stride` bytes apart from `at` on."""
    column: NDArray[np.void] = np.ndarray((count,), np.dtype(("V", size)), block, at, (stride,))
    return column.copy()


def each_reply(replies: Replies) -> list[bytes | None]:
    return replies if isinstance(replies, list) else list(replies.tolist())


class Answers:
    """Writes acknowledgements of one partition. Nothing here raises: an address that is no NATS subject is its owner's
    trouble, and no other publisher's."""

    def __init__(self, transport: Transport, key: PartitionKey, subject: str) -> None:
        self._transport = transport
        self._key = key
        self._subject = subject
        self.undeliverable = 0
        """Answers to addresses that NATS does not know, dropped."""
        self._body = b'{"stream":%b,"partition":%d,"seq":' % (json.dumps(key.stream).encode(), key.partition)
        self._body_form = self._body.replace(b"%", b"%%")

    def bare(self, token: BareReplies) -> None:
        """One socket write for all of them."""
        if token.is_repetition:
            self._repetitions(token)
            return
        lines: list[Buffer] = []
        for offset, replies in token.runs:
            if isinstance(replies, list):
                lines += self._formatted(offset, replies)
            else:
                self._add_column(offset, replies, lines)
        if lines:
            self._transport.publish_raw(lines)

    def _repetitions(self, token: BareReplies) -> None:
        lines: list[Buffer] = []
        for offset, replies in token.runs:
            body = b'%b%d,"offset":%d,"duplicate":true}' % (self._body, offset + 1, offset)
            lines += [b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body) for reply in each_reply(replies) if reply]
        if lines:
            self._transport.publish_raw(lines)

    def _formatted(self, offset: int, replies: list[bytes | None]) -> list[bytes]:
        """Joined where the digits of offset and seq are as many: the connection has little to do for each piece."""
        joined: list[bytes] = []
        at = 0
        while at < len(replies):
            first = offset + at
            seq_digits, offset_digits = len(str(first + 1)), len(str(first))
            end = min(len(replies), at + 10**seq_digits - 1 - first, at + 10**offset_digits - first)
            size = len(self._body) + seq_digits + len(b',"offset":}') + offset_digits
            form = b'PUB %%b %d\r\n%b%%d,"offset":%%d}\r\n' % (size, self._body_form)
            lines = [form % (r, o + 1, o) for o, r in enumerate(replies[at:end], first) if r is not None]
            if lines:
                joined.append(b"".join(lines))
            at = end
        return joined

    def _add_column(self, offset: int, replies: NDArray[np.void], lines: list[Buffer]) -> None:
        """Cut where any digit of an offset or a seq changes but for the last four."""
        at = 0
        while at < len(replies):
            first = offset + at
            low = first % _LOW
            count = min(len(replies) - at, _LOW - 1 - low)
            if first >= _LOW and count >= _BLOCK_FROM:
                lines.append(self._block(first // _LOW, low, replies[at : at + count]))
            else:
                count = min(len(replies) - at, _LOW - low)
                lines += self._formatted(first, each_reply(replies[at : at + count]))
            at += count

    def _block(self, high: int, low: int, replies: NDArray[np.void]) -> Buffer:
        """Offsets begin with the digits of `high`; the last four digits count from `low` on, and neither those of the
        last seq carry over."""
        count, width, high_digits = len(replies), replies.itemsize, b"%d" % high
        size = len(self._body) + len(b'0000,"offset":0000}') + 2 * len(high_digits)
        seq = b" %d\r\n%b%b" % (size, self._body, high_digits)
        offset = b',"offset":%b' % high_digits
        line = b"PUB " + bytes(width) + seq + b"0000" + offset + b"0000}\r\n"
        stride = len(line)
        block = bytearray(line * count)

        def put(at: int, column: NDArray[np.void] | NDArray[np.uint32]) -> int:
            np.ndarray((count,), column.dtype, block, at, (stride,))[:] = column
            return at + column.itemsize

        at = put(len(b"PUB "), replies)
        at = put(at + len(seq), _LOW_DIGITS[low + 1 : low + 1 + count])
        put(at + len(offset), _LOW_DIGITS[low : low + count])
        return block

    def bare_error(self, replies: Replies, error: TidelogError) -> None:
        """A refusal costs no more than an acknowledgement: an overloaded leader refuses most."""
        body = json.dumps(refusal(error, self._key.stream, self._key.partition)).encode()
        subjects = [reply for reply in each_reply(replies) if reply is not None]
        if subjects:
            self.undeliverable += self._transport.publish_to_each(subjects, body, error.to_headers())

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
        too_large = self._send(message.ackInbox, [encode_ack(ack)])
        if too_large is not None:  # the publisher's correlation id filled most of its message
            ack.correlationId = ""
            self._send(message.ackInbox, [encode_ack(ack)], too_large.to_headers())

    def _send(
        self, subject: str, parts: Sequence[Buffer], headers: Mapping[str, str] | None = None
    ) -> TidelogError | None:
        """The answer is lost when there is no connection: the publisher asks again. An error: NATS does not carry so
        much."""
        try:
            self._transport.publish(subject, parts, headers=headers)
        except TidelogError as e:
            return e
        except ValueError as e:
            self.undeliverable += 1
            _log.debug("partition %s: an answer cannot be sent: %s", self._key, e)
        return None


_ACK_ERRORS = {Code.INCORRECT_OFFSET: AckError.INCORRECT_OFFSET, Code.RECORD_TOO_LARGE: AckError.TOO_LARGE}


class PeerAnswers:
    """Answers to other brokers that are not replication: refusals, and acknowledgements of what a broker appends or
    ends.
    """

    def __init__(self, peers: PeerTransport, key: PartitionKey) -> None:
        self._peers = peers
        self._key = key

    def append(self, token: AppendReply) -> None:
        self._peers.publish(token.inbox, [token.response.SerializeToString()])

    def done(self, inbox: str) -> None:
        """What was asked for is done: the answer is empty."""
        self._peers.publish(inbox, [b""])

    def error(self, inbox: str | None, error: TidelogError, body: Buffer = b"") -> None:
        """The answer is lost when there is no connection, or when NATS does not carry it: it asks again."""
        if inbox:
            try:
                self._peers.publish(inbox, [body], headers=error.to_headers())
            except TidelogError as e:
                _log.warning("partition %s: a refusal cannot be sent: %s", self._key, e)
