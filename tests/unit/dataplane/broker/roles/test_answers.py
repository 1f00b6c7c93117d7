"""Answers to publishers: the bad address of one publisher does not disturb the others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dataplane.broker.roles.role_answers import Answers, reply_column
from dataplane.replica.replies import BareReplies, EnvelopeReply, Replies
from tests.fake_nats import FakeTransport
from wire.errors import Code, TidelogError
from wire.partition_messages.liftbridge_envelope import decode_ack
from wire.protobuf.tidelog_pb2 import AckPolicy, Message
from wire.types import Incarnation, Offset, PartitionKey, StreamName

KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


@pytest.mark.parametrize("error", [None, TidelogError(Code.OUTCOME_UNKNOWN, "over")])
def test_an_ack_inbox_that_is_no_subject_raises_nothing(error: TidelogError | None) -> None:
    """A client may write any inbox into its envelope. An exception would end the effects of other publishes."""
    wire = FakeTransport()
    answers = Answers(wire, KEY, "s")
    for inbox in ("two words", "good.inbox"):
        message = Message(ackInbox=inbox, ackPolicy=AckPolicy.ALL)
        answers.envelope(EnvelopeReply(message, "s", Offset(0), 0, False), 0, error)
    assert [subject for subject, _, _ in wire.sent] == ["good.inbox"]
    assert answers.undeliverable == 1


def test_refusals_of_a_chunk_leave_together_also_to_a_reply_subject_that_is_no_text() -> None:
    wire = FakeTransport()
    answers = Answers(wire, KEY, "s")
    error = TidelogError(Code.BACKPRESSURE, "slow down")
    answers.bare_error([b"\xff\xfe", None, b"good.inbox", b"x" * 4090], error)
    subjects = [subject.encode(errors="surrogateescape") for subject, _, _ in wire.sent]
    assert subjects == [b"\xff\xfe", b"good.inbox"]
    _, body, headers = wire.sent[0]
    told = {"code": 503, "err_code": 10023, "description": "slow down"}
    assert json.loads(body) == {"error": told, "stream": "s", "seq": 0, "partition": 0, "tidelog": error.to_json()}
    assert headers == error.to_headers()
    assert answers.undeliverable == 1
    answers.bare_error([None, None], error)
    assert wire.bursts == 1


def acks(stream: str, first: int, replies: list[bytes | None]) -> bytes:
    lines = []
    for offset, reply in enumerate(replies, first):
        if reply is not None:
            body = {"stream": stream, "partition": 0, "seq": offset + 1, "offset": offset}
            text = json.dumps(body, separators=(",", ":")).encode()
            lines.append(b"PUB %b %d\r\n%b\r\n" % (reply, len(text), text))
    return b"".join(lines)


@pytest.mark.parametrize("first", [0, 8, 95, 9_990, 9_999, 10_000, 19_995, 99_990, 123_456, 999_999, 10**12 - 30])
@pytest.mark.parametrize("count", [1, 15, 16, 50, 25_000])
def test_acks_of_a_run_are_the_same_as_a_column_and_one_by_one(first: int, count: int) -> None:
    """Offsets and seqs get another digit, or carry over, anywhere in it."""
    subjects = [b"_INBOX.%06d" % i for i in range(count)]
    block = b"".join(b"MSG s 1 %b 0\r\n\r\n" % subject for subject in subjects)
    column = reply_column(memoryview(block), count, len(b"MSG s 1 "), len(subjects[0]), len(block) // count)
    some = [subject if i % 3 else None for i, subject in enumerate(subjects)]
    shapes: list[list[tuple[Offset, Replies]]] = [
        [(Offset(first), column), (Offset(first + count), some)],
        [(Offset(first), [*subjects, *some])],
    ]
    for runs in shapes:
        wire = FakeTransport()
        Answers(wire, replace(KEY, stream=StreamName("50%")), "s").bare(BareReplies(runs))
        assert [data for _, data, _ in wire.sent] == [acks("50%", first, [*subjects, *some])]


def test_an_ack_that_no_message_has_room_for_comes_without_the_correlation_id_and_says_so() -> None:
    wire = FakeTransport()
    answers = Answers(wire, KEY, "s")
    message = Message(ackInbox="inbox", ackPolicy=AckPolicy.ALL, correlationId="c" * wire.max_payload)
    answers.envelope(EnvelopeReply(message, "s", Offset(7), 0, False), 0)
    [(_, data, headers)] = wire.sent
    acked = decode_ack(data)
    assert (acked.offset, acked.correlationId, acked.ackError) == (7, "", 0)
    error = TidelogError.from_headers(headers)
    assert error is not None
    assert error.code is Code.MESSAGE_TOO_LARGE
