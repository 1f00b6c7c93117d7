"""Answers to publishers: one publisher's bad address is nobody else's trouble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from dataplane.broker.acks import Answers, BareReplies, EnvelopeReply
from wire.errors import Code, TidelogError
from wire.tidelog_pb2 import AckPolicy, Message
from wire.transport import Buffer
from wire.types import Incarnation, Offset, PartitionKey, StreamName

KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


class Wire:
    """What goes out; as particular about subjects as the real connection."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        if not subject or " " in subject or not subject.isprintable():
            raise ValueError(f"{subject!r} cannot be a NATS subject")
        self.subjects.append(subject)
        return True

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        return True


@pytest.mark.parametrize("error", [None, TidelogError(Code.OUTCOME_UNKNOWN, "over")])
def test_an_ack_inbox_that_is_no_subject_raises_nothing(error: TidelogError | None) -> None:
    """The inbox is whatever a client wrote into its envelope. What it raised would end the effects of others."""
    wire = Wire()
    answers = Answers(wire, KEY, "s")  # type: ignore[arg-type]
    for inbox in ("two words", "good.inbox"):
        message = Message(ackInbox=inbox, ackPolicy=AckPolicy.ALL)
        answers.envelope(EnvelopeReply(message, "s", Offset(0), 0, False), 0, error)
    assert wire.subjects == ["good.inbox"]
    assert answers.undeliverable == 1


def test_a_reply_subject_that_is_no_text_does_not_keep_the_others_from_their_refusal() -> None:
    wire = Wire()
    answers = Answers(wire, KEY, "s")  # type: ignore[arg-type]
    answers.bare_error([b"\xff\xfe", None, b"good.inbox"], TidelogError(Code.BACKPRESSURE, "slow down"))
    assert wire.subjects == ["good.inbox"]
    answers.bare(BareReplies(Offset(0), [b"\xff\xfe", b"good"]))
    assert answers.undeliverable == 1
