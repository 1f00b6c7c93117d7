"""The chunk parser against a plain description of the sent messages: all kinds of messages, all ways to cut them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_nats import BulkSink
from tidelog.nats import nats_parser as parser_module
from tidelog.nats.nats_parser import (
    MAX_CONTROL_LINE,
    MAX_KNOWN_LINES,
    MAX_MESSAGE,
    MIN_READ,
    SHRINK_AFTER,
    ChunkParser,
    ProtocolError,
)
from wire.messaging.transport import RawHandler

Event: TypeAlias = tuple[object, ...]
HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
BULK_SIDS = (1, 2, 13)
DIRECT_SIDS = (3, 31)
UNKNOWN_SID = 99


class Harness:
    def __init__(self, buffer_size: int = 1 << 20) -> None:
        self.events: list[Event] = []
        self.parser = ChunkParser(lambda line: self.events.append(("control", line)), buffer_size=buffer_size)
        self.sinks = {sid: self._bulk(sid) for sid in BULK_SIDS}
        for sid, sink in self.sinks.items():
            self.parser.add_bulk(sid, sink)
        for sid in DIRECT_SIDS:
            self.parser.add_direct(sid, self._direct(sid))

    def _bulk(self, sid: int) -> BulkSink:
        return BulkSink(lambda delivery: self.events.append((sid, *delivery)))

    def _direct(self, sid: int) -> RawHandler:
        def direct(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
            self.events.append((sid, payload, reply, headers, subject))

        return direct

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.parser.feed(piece)
            assert not any(sink.is_open for sink in self.sinks.values()), "every sink hears of the end of the chunk"

    @property
    def uniform(self) -> int:
        return sum(sink.uniform for sink in self.sinks.values())


class Sent:
    """Bytes of a server, and the expected messages."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.expected: list[Event] = []

    def message(
        self, sid: int, payload: bytes, *, reply: bytes | None = None, headers: bytes = b"", subject: bytes = b"foo"
    ) -> None:
        middle = b"" if reply is None else reply + b" "
        if headers:
            self.data += b"HMSG %b %d %b%d %d\r\n" % (subject, sid, middle, len(headers), len(headers) + len(payload))
        else:
            self.data += b"MSG %b %d %b%d\r\n" % (subject, sid, middle, len(payload))
        self.data += headers + payload + b"\r\n"
        if sid in BULK_SIDS:
            self.expected.append((sid, payload, reply, headers or None))
        elif sid in DIRECT_SIDS:
            self.expected.append((sid, payload, reply, headers or None, subject))

    def control(self, line: bytes) -> None:
        self.data += line
        self.expected.append(("control", line))


def as_promised(events: list[Event]) -> list[Event]:
    """Events between two fences (direct sinks, control lines) in order of the sinks: between bulk sinks
    there is no order."""
    ordered: list[Event] = []
    between: list[Event] = []
    for event in events:
        if event[0] in BULK_SIDS:
            between.append(event)
        else:
            ordered += [*sorted(between, key=lambda e: BULK_SIDS.index(int(str(e[0])))), event]
            between = []
    return ordered + sorted(between, key=lambda e: BULK_SIDS.index(int(str(e[0]))))


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    at = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[a:b] for a, b in pairwise(at)]


def payloads() -> st.SearchStrategy[bytes]:
    nasty = st.sampled_from((b"", b"\r\n", b"MSG foo 1 5\r\nhello\r\n", b"\r\nPING\r\n", b"x" * 128, HEADERS))
    return st.one_of(nasty, st.binary(max_size=300), st.integers(0, 2000).map(lambda size: b"p" * size))


def subjects() -> st.SearchStrategy[bytes]:
    return st.sampled_from((b"foo", b"f.bar", b"a", "grün.ß".encode()))


@st.composite
def traffic(draw: st.DrawFn) -> Sent:
    sent = Sent()
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("plain", "reply", "headers", "mixed", "control", "odd")))
        sid = draw(st.sampled_from((*BULK_SIDS, *DIRECT_SIDS, UNKNOWN_SID)))
        subject = draw(subjects())
        payload = draw(payloads())
        count = draw(st.sampled_from((1, 2, 7, 8, 9, 63, 64, 65, 130)))
        if kind == "plain":
            for _ in range(count):
                sent.message(sid, payload, subject=subject)
        elif kind == "reply":
            width = draw(st.sampled_from((1, 3, 5, 8, 12)))  # 1: the reply grows from digit to digit
            odd_one = draw(st.integers(0, 200))
            for index in range(count):
                text = b"_IN.%0*d" % (width, index) if width != 3 else b"%03d" % index  # a number, as a header size is
                sent.message(sid, payload, reply=b"r" if index == odd_one else text, subject=subject)
        elif kind == "headers":
            reply = draw(st.sampled_from((None, b"rep.x", b"12")))
            for index in range(min(count, 20)):
                block = HEADERS if index % 3 else HEADERS[:-2] + b"C: d\r\n\r\n"
                sent.message(sid, payload, reply=reply, headers=block, subject=subject)
        elif kind == "mixed":
            generator = random.Random(draw(st.integers(0, 1 << 30)))
            sids = draw(st.sampled_from(((1,), (1, 2), (1, 2, 13, 3, UNKNOWN_SID))))
            for _ in range(count):
                sent.message(generator.choice(sids), payload[: generator.choice((0, 1, 10, 11, 2000))], subject=subject)
        elif kind == "control":
            sent.control(
                draw(st.sampled_from((b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'x y'\r\n", b'INFO {"a":1}\r\n')))
            )
        else:
            sent.data += b"MSG\tfoo  1 \t3 \r\nabc\r\n"
            sent.expected.append((1, b"abc", None, None))
    return sent


@settings(max_examples=150)
@given(sent=traffic(), places=st.lists(st.integers(0, 20_000), max_size=12))
def test_everything_comes_out_in_order_however_it_is_cut(sent: Sent, places: list[int]) -> None:
    harness = Harness()
    harness.feed(*cut(bytes(sent.data), places))
    assert as_promised(harness.events) == as_promised(sent.expected)


@settings(max_examples=25)
@given(sent=traffic(), step=st.sampled_from((1, 2, 3, 17)))
def test_everything_comes_out_when_it_trickles_in(sent: Sent, step: int) -> None:
    data = bytes(sent.data[:6000])
    harness = Harness()
    harness.feed(*cut(data, range(step, len(data), step)))
    assert as_promised(harness.events) == as_promised(sent.expected[: len(harness.events)])
    whole = Harness()
    whole.feed(data)
    assert as_promised(harness.events) == as_promised(whole.events)


def test_every_single_cut_of_a_short_exchange() -> None:
    sent = Sent()
    for index in range(10):
        sent.message(1, b"hello", reply=b"r%d" % index)
    sent.message(3, b"direct", reply=b"12")
    for _ in range(10):
        sent.message(2, b"\r\nMSG foo 2 5\r\n")
    sent.message(2, b"", headers=HEADERS)
    sent.control(b"PONG\r\n")
    data = bytes(sent.data)
    for place in range(1, len(data)):
        harness = Harness()
        harness.feed(data[:place], data[place:])
        assert harness.events == sent.expected, place


@pytest.mark.parametrize(
    "unusual",
    [
        b"MSG foo 3  2\r\nhi\r\n",
        b"MSG  foo 3 2\r\nhi\r\n",
        b"MSG foo 3 2 \r\nhi\r\n",
        b"MSG foo\t3 2\r\nhi\r\n",
        b"MSG foo 3 002\r\nhi\r\n",
        b"HMSG foo 3 00 2\r\nhi\r\n",
        b"MSG foo 1 2\r\nhi\r\n",
        b"MSG foo 3 %d\r\n%b\r\n" % (20_000, b"x" * 20_000),
        b"PING\r\n",
    ],
)
def test_what_is_unusual_among_messages_to_direct_sinks(unusual: bytes) -> None:
    usual = b"MSG foo 3 2\r\nho\r\n"
    alone, among = Harness(), Harness()
    alone.feed(unusual)
    among.feed(usual * 3 + unusual + usual * 3)
    heard = (3, b"ho", None, None, b"foo")
    assert among.events == [heard] * 3 + alone.events + [heard] * 3
    assert len(alone.events) == 1


def test_a_direct_sink_that_is_removed_by_a_message_gets_no_further_one() -> None:
    harness = Harness()
    heard: list[bytes] = []

    def once(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        heard.append(payload)
        if payload == b"2":
            harness.parser.remove(3)

    harness.parser.add_direct(3, once)
    harness.feed(b"".join(b"MSG foo 3 1\r\n%d\r\n" % number for number in range(1, 6)))
    assert heard == [b"1", b"2"]
    assert harness.parser.counters.unclaimed_messages == 3
    assert harness.parser.counters.messages == 5


@pytest.mark.parametrize("wrong", [b"MSG foo 3 2\r\nho??", b"HMSG foo 3 3 2\r\nho\r\n", b"MSG foo three 2\r\nho\r\n"])
def test_a_breach_among_messages_to_direct_sinks(wrong: bytes) -> None:
    harness = Harness()
    with pytest.raises(ProtocolError):
        harness.feed(b"MSG foo 3 2\r\nho\r\n" * 3 + wrong)
    assert len(harness.events) == 3


@pytest.mark.parametrize("character", [b"\r", b"\x0b", b"\x0c", b"\x00", b"\x1f", b"\x85", b"\xff"])
@pytest.mark.parametrize("sid", [1, 3])
def test_a_subject_and_a_reply_of_any_characters_that_nats_takes(character: bytes, sid: int) -> None:
    """A stranger's message with one of them would else cut the connection."""
    sent = Sent()
    for _ in range(3):
        sent.message(sid, b"hi", subject=b"foo" + character, reply=b"re" + character + b"ply")
        sent.message(sid, b"hi", subject=b"foo" + character, headers=HEADERS)
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected


def test_equal_messages_are_taken_as_uniform_runs() -> None:
    sent = Sent()
    for _ in range(5000):
        sent.message(1, b"x" * 128)
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected
    assert harness.uniform >= 4990
    assert harness.parser.counters.messages == 5000
    assert harness.parser.counters.uniform_messages == harness.uniform


def test_requests_with_replies_of_one_length_are_taken_as_uniform_runs() -> None:
    sent = Sent()
    for index in range(5000):
        sent.message(1, b"x" * 128, reply=b"_INBOX.abc.%06d" % index)
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected
    assert harness.uniform >= 4990


@pytest.mark.parametrize("width", [1, 7, 8, 9, 20])
@pytest.mark.parametrize("index", [3, 6, 8, 64, 100])
def test_a_run_ends_where_a_blank_stands_in_the_reply(width: int, index: int) -> None:
    """A line of the same length, two blanks in place of one: its reply is shorter."""
    good = b"MSG foo 1 %b 3\r\nabc\r\n" % (b"r" * width)
    bad = b"MSG foo 1 %b  3\r\nabc\r\n" % (b"r" * (width - 1))
    harness = Harness()
    harness.feed(good * index + bad + good * 100)
    texts = [event[2] for event in harness.events]
    assert texts == [b"r" * width] * index + [b"r" * (width - 1) or None] + [b"r" * width] * 100


@pytest.mark.parametrize("index", [3, 6, 8, 64, 100])
def test_a_line_with_a_word_too_many_does_not_pass_in_a_run(index: int) -> None:
    good = b"MSG foo 1 %b 3\r\nabc\r\n"
    harness = Harness()
    with pytest.raises(ProtocolError):
        harness.feed(good % b"one.word" * index + good % b"two word" + good % b"one.word" * 100)
    assert harness.events == [(1, b"abc", b"one.word", None)] * index


@pytest.mark.parametrize("index", [1, 5, 8, 20, 64, 65, 199])
def test_a_run_ends_exactly_where_a_header_differs(index: int) -> None:
    sent = Sent()
    for position in range(200):
        sent.message(1 if position != index else 2, b"x" * 40)
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert as_promised(harness.events) == as_promised(sent.expected)
    assert harness.uniform > 100


def test_the_next_line_is_never_guessed_from_stale_bytes() -> None:
    """The buffer still holds `MSG foo 1 50` when `MSG foo 1 5` arrives cut behind the 5: reading on would find the old
    line, wait for 50 bytes and not deliver the message that is there."""
    harness = Harness()
    long = b"MSG foo 1 50\r\n" + b"x" * 50 + b"\r\n"
    harness.feed(long, long)
    harness.events.clear()
    harness.feed(b"MSG foo 1 5", b"\r\nhello\r\n")
    assert harness.events == [(1, b"hello", None, None)]


def test_messages_are_delivered_before_the_control_line_behind_them() -> None:
    sent = Sent()
    sent.message(1, b"a")
    sent.control(b"PONG\r\n")
    sent.message(1, b"b")
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected


def test_a_removed_sink_gets_nothing_more() -> None:
    harness = Harness()
    message = b"MSG foo 1 2\r\nhi\r\n"
    harness.feed(message * 3)
    harness.parser.remove(1)
    harness.feed(message * 30)
    assert len(harness.events) == 3
    assert harness.parser.counters.unclaimed_messages == 30


def test_a_sink_that_is_removed_in_the_middle_of_a_chunk_gets_none_of_its_collected_messages() -> None:
    harness = Harness()
    pair = b"MSG foo 1 2\r\nhi\r\nMSG bar 2 3\r\nyou\r\n"
    harness.feed(pair * 3)
    harness.events.clear()
    heard = harness.sinks[1].on_messages

    def on_messages(payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        heard(payloads, replies, headers)
        harness.parser.remove(2)

    harness.sinks[1].on_messages = on_messages  # type: ignore[method-assign]
    harness.feed(pair * 5)
    harness.feed(pair)
    assert harness.events == [(1, b"hi", None, None)] * 6
    assert harness.parser.counters.unclaimed_messages == 6


def test_known_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_module, "MAX_KNOWN_LINES", 16)
    sent = Sent()
    for index in range(200):
        sent.message(1, b"x", subject=b"subject.%d" % index)
        sent.message(1, b"y", subject=b"subject.%d" % (index // 2))
    harness = Harness()
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected
    assert len(harness.parser._lines) <= 16 < MAX_KNOWN_LINES


def test_the_buffer_grows_for_a_large_message_and_shrinks_back() -> None:
    base = 2 * MIN_READ
    harness = Harness(buffer_size=base)
    sent = Sent()
    sent.message(1, b"first")
    sent.message(1, bytes(range(256)) * (20 * base // 256))
    sent.message(3, b"z" * 20 * base, reply=b"r", headers=HEADERS)
    harness.feed(bytes(sent.data))
    assert harness.events == sent.expected
    assert 20 * base < harness.parser.buffer_size < 21 * base
    for _ in range(SHRINK_AFTER + 2):
        harness.feed(b"PING\r\n")
    assert harness.parser.buffer_size == base


def test_many_messages_do_not_let_the_buffer_grow() -> None:
    harness = Harness(buffer_size=2 * MIN_READ)
    sent = Sent()
    generator = random.Random(7)
    for _ in range(3000):
        sent.message(generator.choice((1, 2, 3)), b"x" * generator.randrange(2000))
    harness.feed(*cut(bytes(sent.data), range(0, len(sent.data), 50_000)))
    assert as_promised(harness.events) == as_promised(sent.expected)
    assert harness.parser.buffer_size == 2 * MIN_READ


def test_reset_forgets_half_a_message() -> None:
    harness = Harness()
    harness.feed(b"MSG foo 1 500\r\nhalf")
    harness.parser.reset()
    harness.feed(b"MSG foo 1 2\r\nhi\r\n")
    assert harness.events == [(1, b"hi", None, None)]


@pytest.mark.parametrize(
    "line",
    [
        b"\r\n",
        b"HELLO\r\n",
        b"MSG foo 1\r\n",
        b"MSG foo x 3\r\nabc\r\n",
        b"MSG foo 1 -3\r\nabc\r\n",
        b"MSG foo 1 a b 3\r\nabc\r\n",
        b"HMSG foo 1 12\r\n",
        b"HMSG foo 1 5 3\r\nabc\r\n",
        b"MSG foo 1 %d\r\n" % (MAX_MESSAGE + 1),
        b"PINGPONG\r\n",
        b"x" * (MAX_CONTROL_LINE + 1),
        b"INFO " + b"x" * MAX_CONTROL_LINE + b"\r\n",
        b"MSG foo 1 3\r\nabcde",
        b"MSG foo 1 r 3\r\nabcde",
        b"HMSG foo 1 18 18\r\n" + HEADERS + b"XX",
        b"MSG foo 1 3\r\nabc\r\n" * 2 + b"MSG foo 1 3\r\nabcde",
        b"MSG foo 1 20000\r\n" + b"y" * 20_000 + b"\r\nMSG foo 1 20000\r\n" + b"y" * 20_002,
    ],
    ids=lambda line: repr(line[:24]),
)
def test_a_violation_of_the_protocol_is_refused_after_the_messages_before_it(line: bytes) -> None:
    harness = Harness()
    with pytest.raises(ProtocolError):
        harness.feed(b"MSG foo 2 2\r\nhi\r\n" * 3 + line)
    assert harness.events[:3] == [(2, b"hi", None, None)] * 3


@pytest.mark.parametrize("reply", [b"", b"r.1 "])
@pytest.mark.parametrize("index", [0, 1, 7, 8, 63, 64, 99])
def test_a_payload_without_its_end_is_refused_within_a_uniform_run(index: int, reply: bytes) -> None:
    good = b"MSG foo 1 %b3\r\nabc\r\n" % reply
    harness = Harness()
    harness.feed(good)
    with pytest.raises(ProtocolError, match="instead of CRLF"):
        harness.feed(good * index + good[:-2] + b"XY" + good * 100)
    assert harness.events == [(1, b"abc", reply.strip() or None, None)] * (index + 1)


def test_the_longest_allowed_line_is_taken() -> None:
    harness = Harness()
    line = b"INFO " + b"x" * (MAX_CONTROL_LINE - 5) + b"\r\n"
    harness.feed(line[:40_000], line[40_000:])
    assert harness.events == [("control", line)]
