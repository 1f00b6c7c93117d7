"""What a connection hands to handlers: headers that would take long are not decoded."""

from __future__ import annotations

import pytest

from tidelog.nats.delivery import MAX_HEADER_BYTES, Counters, Guard, Inboxes, checked_subject, decoding, guarded
from tidelog.nats.nats_parser import ReadCounters
from wire.messaging.transport import Message


def block(size: int) -> bytes:
    start, end = b"NATS/1.0\r\nA: ", b"\r\n\r\n"
    return start + b"x" * (size - len(start) - len(end)) + end


def test_a_message_with_too_large_headers_is_dropped_and_counted() -> None:
    counters = Counters(ReadCounters())
    heard: list[Message] = []
    deliver = guarded(decoding(heard.append), Guard("messages", counters))
    deliver(b"s", None, block(MAX_HEADER_BYTES), b"kept")
    deliver(b"s", None, block(MAX_HEADER_BYTES + 1), b"dropped")
    deliver(b"s", None, None, b"kept")
    assert [message.data for message in heard] == [b"kept", b"kept"]
    assert counters.dropped_headers == 1


def test_an_answer_with_too_large_headers_is_dropped_and_counted() -> None:
    counters = Counters(ReadCounters())
    heard: list[Message] = []
    inboxes = Inboxes("_INBOX", counters)
    inbox = inboxes.new()
    inboxes.on(inbox, decoding(heard.append))
    inboxes.deliver(inbox.encode(), None, block(MAX_HEADER_BYTES + 1), b"dropped")
    inboxes.deliver(inbox.encode(), None, block(MAX_HEADER_BYTES), b"kept")
    inboxes.deliver(inbox.encode() + b"0", None, block(MAX_HEADER_BYTES + 1), b"nobody waits for it")
    assert [message.data for message in heard] == [b"kept"]
    assert counters.dropped_headers == 1


def test_a_subject_that_is_not_utf_8_is_no_error() -> None:
    """Else each message of a stranger below a wildcard would be a traceback in the log."""
    counters = Counters(ReadCounters())
    heard: list[Message] = []
    deliver = guarded(decoding(heard.append), Guard("messages", counters))
    deliver(b"api.a\xff", b"_INBOX.\xff", None, b"")
    assert [(message.subject, message.reply) for message in heard] == [("api.a\ufffd", None)]
    assert counters.handler_errors == 0


@pytest.mark.parametrize("subject", ["a", "a.b.>", "größe.1", "a\u00a0b", "~", "!"])
def test_a_subject_is_any_text_without_blanks_and_control_characters(subject: str) -> None:
    assert checked_subject(subject) == subject


@pytest.mark.parametrize("text", ["", " ", "a b", "a\r\nPUB x 0", "a\tb", "a\x7f", "a\x00", "ö b", "ö\n", "ö\x7f"])
def test_other_text_is_no_subject(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be a NATS subject"):
        checked_subject(text)
