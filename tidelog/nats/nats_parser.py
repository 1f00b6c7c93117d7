"""The NATS protocol as it arrives, parsed by whole chunks. No socket, no clock: bytes in, calls out.

One persistent buffer takes the socket's bytes (`get_buffer`, then `received`). Complete messages are parsed at once and
handed to the sink of its subscription id:

    bulk sink    `wire.messaging.transport.BulkHandler`: uniform runs where many messages have one shape, lists
                 otherwise
    direct sink  `wire.messaging.transport.RawHandler`: one call per message
    control      one call per INFO, PING, PONG, +OK or -ERR line

Each sink gets its messages in order of arrival. Direct sinks and control lines are a fence as well: everything before
one of them on any subscription is delivered before it. Between two bulk sinks, which are two subscriptions to subjects
that have nothing to do with one another, there is no order within a chunk: messages are collected per sink, so that a
stream with partitions that take turns is parsed as quickly as one partition alone.

A chunk is cut in three ways, the quickest that is exact:

    uniform run  Messages with header lines of equal bytes lie at a fixed stride. numpy compares all of them
                 as overlapping 8-byte words and checks each CRLF behind a payload. Exact by induction: a header counts
                 only where the message before it ends. The same works when the lines differ in the text of a reply
                 subject of fixed length. A gate (one comparison, seven strides ahead) keeps the attempt from being made
                 in vain, and a first window of 64 messages keeps a short run from costing a long comparison.
    known line   Header lines seen before are looked up whole (`_lines`), with the CRLF before them, guessing that the
                 next line is as long as the one that last came after a line like this. A guess never looks beyond the
                 part that was received: stale bytes of earlier chunks lie there.
    any line     Regular expressions. Small messages behind one for a direct sink, in later chunks too, are taken one
                 after the other, and their lines split at the blanks, as long as they are for direct sinks and just as
                 nats-server writes them: this is the cost of a message between brokers, and of a flood of forged ones.
                 So are small messages with reply subjects for bulk sinks, a burst of them at a time; from the first one
                 of a chunk on, if the chunk is small and the last message was such a one, too.

Invariants:
    start <= end; buffer[start:end] is received and not yet consumed
    need is 0, or the size of the incomplete message at `start`: nothing is parsed until it is complete
    the buffer is larger than `buffer_size` only while a message asked for it within the last SHRINK_AFTER reads
    a breach of the protocol raises ProtocolError after everything before it has been delivered; the parser is then to
    be `reset`
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wire.messaging.transport import BulkHandler, RawHandler, UniformRun

BUFFER_SIZE = 1 << 20
"""Reads of up to this many bytes; larger only while a larger message arrives."""
MIN_READ = 64 << 10
"""`get_buffer` always gives at least this much room, in bytes."""
MAX_CONTROL_LINE = 64 << 10
"""Longest line in bytes. INFO is the long one: it lists every server of a cluster."""
MAX_MESSAGE = (64 << 20) + MAX_CONTROL_LINE
"""Largest header block + payload in bytes. 64 MiB is the most that a nats-server can be configured to take."""
SHRINK_AFTER = 64
"""An enlarged buffer is given back after this many reads in a row that did not need it."""
MAX_KNOWN_LINES = 4096
"""Remembered header lines; when there are more, all are forgotten."""
MIN_RUN = 8
"""A uniform run is tried from this many messages on."""

_FIRST_WINDOW = 64
_FEW_BYTES = 1 << 10  # of a chunk in which a uniform run is not worth looking for
_MIXED_BURST = 256  # messages taken one by one before a uniform run is tried again
_SLICE_DIRECTLY = 16 << 10  # payloads from this size on are not worth a second copy of the chunk
_SMALL = {b"%d" % size: size for size in range(2048)}  # bytes of a small message, as they stand in its line
_CRLF = b"\r\n"
_CRLF_WORD = int.from_bytes(_CRLF, "little")
_BLANK = 0x20

# As NATS takes subjects and replies: any client can have it send one with \r, \v or another control character.
_NAME = rb"([^ \t\n]+)[ \t]+"
# Two patterns: a single one with everything optional would take the header length of an HMSG for a reply subject.
_MSG = re.compile(rb"MSG[ \t]+" + _NAME + rb"(\d{1,19})[ \t]+(?:" + _NAME + rb")?(\d{1,9})[ \t]*\r\n")
_HMSG = re.compile(rb"HMSG[ \t]+" + _NAME + rb"(\d{1,19})[ \t]+(?:" + _NAME + rb")?(\d{1,9})[ \t]+(\d{1,9})[ \t]*\r\n")
_CONTROL = re.compile(rb"(?:PING|PONG|\+OK)[ \t]*\r\n|(?:INFO|-ERR)(?:[ \t][^\r\n]*)?\r\n")


class ProtocolError(Exception):
    """The server sent bytes that are not the NATS protocol. The connection cannot be read any further."""


@dataclass(slots=True)
class ReadCounters:
    """Totals since the parser was made."""

    reads: int = 0
    bytes: int = 0
    messages: int = 0
    uniform_messages: int = 0
    """Messages that came in runs of equal length."""
    unclaimed_messages: int = 0
    """Messages of a subscription that has just been given up."""


class _Collected:
    """Messages for the next call of one bulk sink, in order of arrival."""

    __slots__ = ("handler", "headers", "payloads", "replies")

    def __init__(self, handler: BulkHandler) -> None:
        self.handler = handler
        self.payloads: list[bytes] = []
        # As long as `payloads`, or shorter: None for the rest.
        self.replies: list[bytes | None] = []
        self.headers: list[bytes | None] = []

    def take(self) -> tuple[list[bytes], list[bytes | None], list[bytes | None]]:
        """Returns (payloads, replies, headers), of equal length, and keeps none of them."""
        payloads, replies, headers = self.payloads, self.replies, self.headers
        self.payloads, self.replies, self.headers = [], [], []
        replies += [None] * (len(payloads) - len(replies))
        headers += [None] * (len(payloads) - len(headers))
        return payloads, replies, headers


class _KnownLine:
    """A whole header line of a bulk sink's message without a reply subject."""

    __slots__ = ("header_size", "next_length", "sink", "size")

    def __init__(self, sink: _Collected, header_size: int, size: int, length: int) -> None:
        self.sink = sink
        self.header_size = header_size
        self.size = size  # header block and payload
        self.next_length = length  # of the line that last followed one like this


class ChunkParser:
    """Cuts the bytes of a NATS server into messages and control lines: see the text of the module.

    Sinks must not raise; they are guarded before they are registered.
    """

    def __init__(self, on_control: Callable[[bytes], None], *, buffer_size: int = BUFFER_SIZE) -> None:
        self.counters = ReadCounters()
        self._on_control = on_control
        self._bulk: dict[int, _Collected] = {}
        self._bulk_by_text: dict[bytes, _Collected] = {}  # by the subscription id as it stands in a line
        self._direct: dict[bytes, RawHandler] = {}  # by the subscription id as it stands in a line
        self._lines: dict[bytes, _KnownLine] = {}  # by CRLF and the whole line
        self._line_length = 16  # of the last header line: the next one is likely as long
        self._expects_direct = False  # the last message was for a direct sink
        self._expects_request = False  # the last message of a bulk sink was a small one with a reply subject
        self._base_size = max(buffer_size, 2 * MIN_READ)
        self._buffer = bytearray(self._base_size)
        self._view = memoryview(self._buffer)
        self._start = self._end = self._need = 0
        self._reads_too_large = 0
        self._waiting: list[_Collected] = []  # sinks with collected messages
        self._touched: dict[int, BulkHandler] = {}  # sinks that got messages in this chunk

    # ---- sinks

    def add_bulk(self, sid: int, handler: BulkHandler) -> None:
        self._bulk[sid] = self._bulk_by_text[b"%d" % sid] = _Collected(handler)

    def add_direct(self, sid: int, handler: RawHandler) -> None:
        self._direct[b"%d" % sid] = handler

    def remove(self, sid: int) -> None:
        """Messages of this subscription are counted and dropped from now on."""
        self._direct.pop(b"%d" % sid, None)
        self._bulk_by_text.pop(b"%d" % sid, None)
        sink = self._bulk.pop(sid, None)
        if sink is not None:
            self._lines.clear()
            self.counters.unclaimed_messages += len(sink.take()[0])

    # ---- the buffer

    @property
    def buffer_size(self) -> int:
        """Present size of the buffer in bytes."""
        return len(self._buffer)

    def reset(self) -> None:
        """Forgets received bytes that were not consumed: a new connection begins."""
        self._start = self._end = self._need = 0

    def get_buffer(self) -> memoryview:
        """Room for the next bytes, at least MIN_READ of it. Valid until the next call of `received`."""
        if self._start == self._end:
            self._start = self._end = 0
        wanted = max(self._base_size, self._need + MIN_READ)
        if wanted > self._base_size:
            self._reads_too_large = 0
        elif len(self._buffer) > wanted:
            self._reads_too_large += 1
        if len(self._buffer) < wanted or self._reads_too_large > SHRINK_AFTER:
            self._reads_too_large = 0
            self._move(bytearray(wanted))
        elif len(self._buffer) - self._end < MIN_READ:
            self._move(self._buffer)
        return self._view[self._end :]

    def _move(self, buffer: bytearray) -> None:
        """Moves bytes that are not consumed to the beginning of `buffer`, which may be the present one."""
        held = self._end - self._start
        view = memoryview(buffer)
        view[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, view
        self._start, self._end = 0, held

    def feed(self, data: bytes) -> None:
        """Reads `data` into the buffer, piece by piece, as from a socket."""
        position = 0
        while position < len(data):
            room = self.get_buffer()
            count = min(len(room), len(data) - position)
            room[:count] = data[position : position + count]
            self.received(count)
            position += count

    def received(self, count: int) -> None:
        """`count` bytes were put at the beginning of the buffer that `get_buffer` gave. Raises ProtocolError."""
        self._end += count
        self.counters.reads += 1
        self.counters.bytes += count
        if self._end - self._start < self._need:
            return
        try:
            self._parse()
        finally:
            if self._waiting:
                self._hand_over()
            if self._touched:
                for handler in self._touched.values():
                    handler.chunk_done()
                self._touched.clear()

    # ---- parsing

    def _parse(self) -> None:
        buffer, view, end = self._buffer, self._view, self._end
        known_lines = self._lines
        position = self._start
        self._need = 0
        chunk: bytes | None = None  # a copy of the rest of the buffer: slices of bytes are twice as quick as of a view
        chunk_at = 0
        while position < end:
            if self._expects_direct and not self._waiting:
                taken_to = self._take_direct(position)
                if taken_to > position:
                    position = self._start = taken_to
                    continue
                self._expects_direct = False
            elif self._expects_request and end - position < _FEW_BYTES:
                taken_to = self._take_requests(position)
                if taken_to > position:
                    position = self._start = taken_to
                    continue
                self._expects_request = False
            # Never beyond `end`: a whole line could lie there, left by an earlier chunk.
            line = bytes(view[position : min(position + self._line_length, end)])
            known = known_lines.get(_CRLF + line)
            if known is None:
                found = buffer.find(_CRLF, position, end)
                if found < 0 and end - position <= MAX_CONTROL_LINE:
                    break
                if found < 0 or found - position > MAX_CONTROL_LINE:
                    begin = bytes(view[position : position + 40])
                    raise ProtocolError(f"a protocol line is longer than {MAX_CONTROL_LINE} bytes: {begin!r}…")
                line = bytes(view[position : found + 2])
                known = known_lines.get(_CRLF + line)
            if known is None:
                taken = self._take_line(line, position)
                if not taken:
                    break
                position += taken
                self._start = position
                continue

            size = known.size
            length = self._line_length = len(line)
            stride = length + size + 2
            if position + stride > end:
                self._need = stride
                break
            fit = (end - position) // stride
            if (
                fit >= MIN_RUN
                and not known.header_size
                and buffer.startswith(line, position + stride)
                and buffer.startswith(line, position + (MIN_RUN - 1) * stride)
            ):
                count = self._equal_run(position, fit, line, stride)
                if count > 1:
                    block = view[position : position + count * stride]
                    self._hand_over_run(known.sink, UniformRun(block, count, stride, length, size, None))
                    position += count * stride
                    self._start = position
                    continue
            if size >= _SLICE_DIRECTLY:
                self._expect_crlf(position + stride - 2)
                self._collect(known.sink, position + length, known.header_size, size, None)
                position += stride
            else:
                if chunk is None:
                    chunk, chunk_at = bytes(view[position:end]), position
                position = chunk_at + self._take_known(chunk, position - chunk_at, known)
            self._start = position
        self._start = position

    def _take_known(self, chunk: bytes, position: int, known: _KnownLine) -> int:
        """Collects messages with known lines, of any sink and size, from `position` in `chunk` on, where the line
        `known` stands, `_line_length` bytes long, and all of its message. Returns where the next message begins."""
        get, length = self._lines.get, self._line_length
        limit = len(chunk)
        taken = 0
        while taken < _MIXED_BURST:
            body_at = position + length
            body_end = body_at + known.size
            position_then = body_end + 2
            if position_then > limit:
                break
            length = known.next_length
            following = get(chunk[body_end : position_then + length])
            if following is None:
                if chunk[body_end:position_then] != _CRLF:
                    self.counters.messages += taken
                    raise self._no_crlf(chunk[body_end:position_then])
                found = chunk.find(_CRLF, position_then, position_then + MAX_CONTROL_LINE)
                following = get(chunk[body_end : found + 2]) if found >= 0 else None
                if following is not None:
                    length = known.next_length = found + 2 - position_then
            sink = known.sink
            payloads = sink.payloads
            if not payloads:
                self._waiting.append(sink)
            header_size = known.header_size
            if header_size:
                headers, payload_at = sink.headers, body_at + header_size
                if len(headers) < len(payloads):
                    headers += [None] * (len(payloads) - len(headers))
                headers.append(chunk[body_at:payload_at])
                payloads.append(chunk[payload_at:body_end])
            else:
                payloads.append(chunk[body_at:body_end])
            position = position_then
            taken += 1
            if following is None:
                break
            known = following
        self._line_length = length
        self.counters.messages += taken
        return position

    def _take_line(self, line: bytes, position: int) -> int:
        """Takes one message or control line that begins with `line`, or a run of messages that differ in the reply
        subject. Returns the number of bytes taken, 0 when the message is not complete."""
        message = _MSG.fullmatch(line)
        if message is not None:
            subject, sid_text, reply, total_text = message.groups()
            header_size = 0
        else:
            header_message = _HMSG.fullmatch(line)
            if header_message is None:
                if _CONTROL.fullmatch(line) is None:
                    raise ProtocolError(f"not a line of the NATS protocol: {line[:80]!r}")
                self._hand_over()
                self._on_control(line)
                return len(line)
            subject, sid_text, reply, header_text, total_text = header_message.groups()
            header_size = int(header_text)
        total = int(total_text)
        if total > MAX_MESSAGE or header_size > total:
            raise ProtocolError(f"impossible sizes in {line[:80]!r}; at most {MAX_MESSAGE} bytes are accepted")
        length = len(line)
        stride = length + total + 2
        if position + stride > self._end:
            self._need = stride
            return 0
        self._expect_crlf(position + stride - 2)

        sid = int(sid_text)
        body_at = position + length
        sink = self._bulk.get(sid)
        if sink is not None and message is not None and reply is not None:
            count = self._reply_run(position, line, message.start(3), message.end(3), stride)
            if count > 1:
                span = (message.start(3), message.end(3) - message.start(3))
                block = self._view[position : position + count * stride]
                self._hand_over_run(sink, UniformRun(block, count, stride, length, total, span))
                return count * stride
        if sink is not None:
            if reply is None:
                self._remember(line, sink, header_size, total)
            self._collect(sink, body_at, header_size, total, reply)
            self._expects_request = reply is not None
            return stride if reply is None else self._take_requests(position + stride) - position
        self.counters.messages += 1
        direct = self._direct.get(sid_text)
        if direct is None:
            self.counters.unclaimed_messages += 1
            return stride
        self._hand_over()
        headers = bytes(self._view[body_at : body_at + header_size]) if header_size else None
        direct(subject, reply, headers, bytes(self._view[body_at + header_size : body_at + total]))
        self._expects_direct = True
        return stride

    def _take_direct(self, position: int) -> int:
        """Delivers the small messages to direct sinks that lie one behind the other from `position` on. Returns where
        they end: at a message that is not complete, large, or for another sink, and at any unusual line."""
        buffer, view, end, sinks = self._buffer, self._view, self._end, self._direct
        headers: bytes | None
        while position < end:
            found = buffer.find(_CRLF, position, end)
            words = view[position:found].tobytes().split(b" ") if found >= 0 else []
            count = len(words)
            if count < 4:
                break
            body_at = payload_at = found + 2
            size = _SMALL.get(words[-1])
            direct = sinks.get(words[2])
            if size is None or direct is None:
                break
            if words[0] == b"HMSG":
                header_size = _SMALL.get(words[-2])
                count -= 1
                if header_size is None or header_size > size or count < 4:
                    break
                payload_at += header_size
            elif words[0] != b"MSG":
                break
            reply = None if count == 4 else words[3]
            body_end = body_at + size
            if (
                count > 5
                or not words[1]
                or reply == b""
                or body_end + 2 > end
                or not buffer.startswith(_CRLF, body_end)
            ):
                break
            self.counters.messages += 1
            headers = view[body_at:payload_at].tobytes() if payload_at > body_at else None
            direct(words[1], reply, headers, view[payload_at:body_end].tobytes())
            position = body_end + 2
        return position

    def _take_requests(self, position: int) -> int:
        """Collects the small messages with reply subjects for bulk sinks that lie one behind the other from `position`
        on. Returns where they end, as `_take_direct` does, or after so many that a uniform run is tried again."""
        buffer, view, end, sinks = self._buffer, self._view, self._end, self._bulk_by_text
        taken = 0
        while position < end and taken < _MIXED_BURST:
            found = buffer.find(_CRLF, position, end)
            words = view[position:found].tobytes().split(b" ") if found >= 0 else []
            if len(words) != 5 or words[0] != b"MSG":
                break
            sink, size = sinks.get(words[2]), _SMALL.get(words[4])
            if sink is None or size is None or not words[1] or not words[3]:
                break
            body_end = found + 2 + size
            if body_end + 2 > end or not buffer.startswith(_CRLF, body_end):
                break
            payloads, replies = sink.payloads, sink.replies
            count = len(payloads)
            if not count:
                self._waiting.append(sink)
            elif len(replies) < count:
                replies += [None] * (count - len(replies))
            replies.append(words[3])
            payloads.append(view[found + 2 : body_end].tobytes())
            position = body_end + 2
            taken += 1
        self.counters.messages += taken
        return position

    def _collect(self, sink: _Collected, body_at: int, header_size: int, total: int, reply: bytes | None) -> None:
        payloads = sink.payloads
        count = len(payloads)
        if not count:
            self._waiting.append(sink)
        if reply is not None:
            sink.replies += [None] * (count - len(sink.replies))
            sink.replies.append(reply)
        if header_size:
            sink.headers += [None] * (count - len(sink.headers))
            sink.headers.append(bytes(self._view[body_at : body_at + header_size]))
        payloads.append(bytes(self._view[body_at + header_size : body_at + total]))
        self.counters.messages += 1

    def _remember(self, line: bytes, sink: _Collected, header_size: int, size: int) -> None:
        if len(self._lines) >= MAX_KNOWN_LINES:
            self._lines.clear()
        self._line_length = len(line)
        self._lines[_CRLF + line] = _KnownLine(sink, header_size, size, len(line))

    def _expect_crlf(self, position: int) -> None:
        if not self._buffer.startswith(_CRLF, position):
            raise self._no_crlf(bytes(self._view[position : position + 2]))

    @staticmethod
    def _no_crlf(instead: bytes) -> ProtocolError:
        return ProtocolError(f"a payload is followed by {instead!r} instead of CRLF")

    # ---- uniform runs

    def _equal_run(self, position: int, fit: int, line: bytes, stride: int) -> int:
        """Counts the first of the `fit` messages from `position` on with exactly this header line, ended by CRLF."""
        # The shortest line, `MSG a 1 0` and CRLF, has 11 bytes.
        expected = [(at, "<u8", int.from_bytes(line[at : at + 8], "little")) for at in _word_places(0, len(line), 8)]

        def matches(first: int, count: int) -> npt.NDArray[np.bool_]:
            return self._same(position + first * stride, count, stride, expected)

        return _leading(matches, fit)

    def _reply_run(self, position: int, line: bytes, reply_start: int, reply_end: int, stride: int) -> int:
        """Counts messages as `_equal_run` does, where only the text of the reply subject differs, at one length: all
        around it is equal, and it holds no blank or control character."""
        fit = (self._end - position) // stride
        ahead = position + (MIN_RUN - 1) * stride
        before, after = line[:reply_start], line[reply_end:]
        if (
            fit < MIN_RUN
            or not self._buffer.startswith(before, ahead)
            or not self._buffer.startswith(after, ahead + reply_end)
        ):
            return 0
        # `before` is at least `MSG a 1 ` (8 bytes), `after` at least ` 0` and CRLF (4 bytes).
        expected = [(at, "<u8", int.from_bytes(line[at : at + 8], "little")) for at in _word_places(0, reply_start, 8)]
        expected += [
            (at, "<u4", int.from_bytes(line[at : at + 4], "little")) for at in _word_places(reply_end, len(line), 4)
        ]
        width = 8 if reply_end - reply_start >= 8 else 1
        ones = int.from_bytes(b"\x01" * width, "little")
        above_blank = np.array(ones * (_BLANK + 1), dtype=f"<u{width}")
        high_bits = np.array(ones * 0x80, dtype=f"<u{width}")

        def matches(first: int, count: int) -> npt.NDArray[np.bool_]:
            base = position + first * stride
            same = self._same(base, count, stride, expected)
            for at in _word_places(reply_start, reply_end, width):
                # The classic test for "some byte of the word is below 0x21"; subtraction wraps around.
                text = self._column(base + at, count, stride, f"<u{width}")
                same &= ((text - above_blank) & ~text & high_bits) == 0
            return same

        return _leading(matches, fit)

    def _same(self, base: int, count: int, stride: int, expected: list[tuple[int, str, int]]) -> npt.NDArray[np.bool_]:
        """Returns which of `count` messages from `base` on have the expected words (place, dtype, value) and end with
        CRLF: [count]."""
        same: npt.NDArray[np.bool_] = self._column(base + stride - 2, count, stride, "<u2") == _CRLF_WORD
        for at, kind, word in expected:
            same &= self._column(base + at, count, stride, kind) == word
        return same

    def _column(self, position: int, count: int, stride: int, kind: str) -> npt.NDArray[np.uint64]:
        return np.ndarray((count,), kind, self._buffer, position, (stride,))

    # ---- delivery

    def _hand_over(self) -> None:
        """Delivers the collected messages to all sinks."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for sink in waiting:
                self._hand_over_to(sink)

    def _hand_over_to(self, sink: _Collected) -> None:
        payloads, replies, headers = sink.take()
        if payloads:
            self._touched[id(sink)] = sink.handler
            sink.handler.on_messages(payloads, replies, headers)

    def _hand_over_run(self, sink: _Collected, run: UniformRun) -> None:
        self._hand_over_to(sink)
        self._touched[id(sink)] = sink.handler
        self.counters.messages += run.count
        self.counters.uniform_messages += run.count
        sink.handler.on_uniform(run)


def _word_places(start: int, end: int, width: int) -> list[int]:
    """Returns the places of words of `width` bytes that together cover [start, end); the last two may overlap."""
    return [*range(start, end - width, width), end - width]


def _leading(matches: Callable[[int, int], npt.NDArray[np.bool_]], fit: int) -> int:
    """Returns the length of the leading run of matches among `fit`; the rest is compared only when the first window
    matches."""
    window = min(fit, _FIRST_WINDOW)
    same = matches(0, window)
    if not same.all():
        return int(same.argmin())
    if window == fit:
        return fit
    same = matches(window, fit - window)
    return fit if same.all() else window + int(same.argmin())
