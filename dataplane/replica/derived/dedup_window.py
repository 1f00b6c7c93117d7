"""Message ids of one partition that were stored within the window: what makes a record that is sent again no second
one.

    find     the offset of the record that has the id, while that is younger than the window
    add      a record was appended. Of two with one id (the first had left the window) the newer one counts
    cut      the log was cut: the ids above are forgotten

The time is that of the log: `append_time` of the batches, which never goes back, and at the leader that of its
`LogClock`, whose stamps they are. What came before the first time of the log counts from there. An id is remembered for
the window and at most a thousandth of it longer: times are kept for groups of records (ticks), not for each.

Ids lie in dictionaries, each for an eighth of the window or of the bound: the oldest one is dropped as a whole. An id
longer than LONG bytes is kept as its hash, so that the bound on their number bounds their memory.

Pure. One thread at a time.

## Marks

Where in a log the batches with message ids lie: a function of the log, learned from batch headers alone.

A broker that begins to know the ids of a log (after a start of its process) reads no more of it than the window needs,
and nothing where no batch of that time has ids:

    marks    (time, offset) of some of those batches, oldest first: the newest at least every SPACING apart, older ones
             the wider the further back
    newest   the time of the last one

Times are those of the log (the newest `append_time` up to there, ns since 1970). Encoded, little-endian: i64 newest,
then i64 time and i64 offset of each mark.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from wire.errors import CorruptData, require
from wire.types import Offset

SPACING: Final = 5_000_000_000
"""ns"""
MOST: Final = 64

_NEWEST: Final = struct.Struct("<q")
_MARK: Final = struct.Struct("<qq")


class IdMarks(NamedTuple):
    marks: tuple[tuple[int, int], ...] = ()
    newest: int = 0

    def with_batch(self, time: int, offset: int) -> IdMarks:
        """The batch that begins at `offset` has message ids."""
        marks = self.marks
        if not marks or time - marks[-1][0] >= SPACING:
            marks = (*marks, (time, offset))
            if len(marks) > MOST:
                marks = (*marks[: MOST // 2 : 2], *marks[MOST // 2 :])
        return IdMarks(marks, max(self.newest, time))

    def dated(self, time: int) -> IdMarks:
        """The first time of the log: the batches so far have none, and count from it."""
        return IdMarks(tuple((time, offset) for _, offset in self.marks), time) if self.marks else self

    def begin(self, cutoff: int) -> Offset | None:
        """No batch before this offset has message ids and a time of at least `cutoff`; None: no batch at all has."""
        if not self.marks or self.newest < cutoff:
            return None
        found = self.marks[0]
        for mark in self.marks:
            if mark[0] > cutoff:
                break
            found = mark
        return Offset(found[1])


NO_IDS: Final = IdMarks()


def encode_marks(marks: IdMarks) -> bytes:
    return _NEWEST.pack(marks.newest) + b"".join(_MARK.pack(*mark) for mark in marks.marks)


def decode_marks(payload: bytes) -> IdMarks:
    """Raises CorruptData."""
    if len(payload) < _NEWEST.size or (len(payload) - _NEWEST.size) % _MARK.size:
        raise CorruptData(f"the marks of message ids take {len(payload)} bytes")
    marks = tuple(_MARK.iter_unpack(payload[_NEWEST.size :]))
    return IdMarks(marks[:MOST], *_NEWEST.unpack_from(payload))


LONG: Final = 64
"""Bytes. A hash has more, so that no id is the hash of another."""
_PARTS: Final = 8
_TICKS: Final = 1024
_NS_PER_MS: Final = 1_000_000


def kept_form(message_id: bytes) -> bytes:
    """The form in which the id is remembered."""
    return message_id if len(message_id) <= LONG else b"#" + blake2b(message_id).digest()


@dataclass(slots=True)
class _Part:
    began: int
    """Time of its first id."""
    offsets: dict[bytes, int] = field(default_factory=dict)
    last: int = -1
    """Offset of its last id."""


@dataclass(slots=True)
class _Tick:
    first: int
    """Offset of its first id."""
    began: int
    last_time: int


class MessageIds:
    def __init__(self, window_ms: int, most: int) -> None:
        """`most`: ids that leaders let in (`has_room`)."""
        self._most = most
        self._window = 0
        self._time = 0
        self._parts: deque[_Part] = deque()
        """Oldest first."""
        self._ticks: deque[_Tick] = deque()
        self.count = 0
        """Ids remembered, with some that have left the window since."""
        self._last: tuple[int, bytes] | None = None
        """(offset, id) of the newest record with an id, whatever the window is."""
        self.configure(window_ms)

    def configure(self, window_ms: int) -> None:
        """A wider window does not bring back the ids that have left the narrower one."""
        self._window = window_ms * _NS_PER_MS
        if not self._window:
            self._parts.clear()
            self._ticks.clear()
            self.count = 0

    @property
    def is_on(self) -> bool:
        return self._window > 0

    def cutoff(self, time: int) -> int:
        """Records that were appended before it have left the window at `time` (of the log, ns since 1970)."""
        return max(self._time, time) - self._window

    def has_room(self, new: int = 1) -> bool:
        return self.count + new <= self._most

    # R45: A record whose message id (`Nats-Msg-Id`) is that of a record in the log of its partition, appended within
    # `dedup_window_ms`, is not stored. Its publisher gets the original's receipt, marked as a duplicate, when the
    # original is committed. The ids are a function of the log: a leader has read those of its whole log as far as the
    # window reaches before it subscribes, and ids above a truncation are forgotten with it. Without room for a new id
    # the answer is BACKPRESSURE.
    # Hazard: A publisher that sends a message again, because its answer was lost with the leader, finds it stored
    # twice; a duplicate is acknowledged and its original is cut.
    # Not covered: An id whose record compaction removed inside the window is unknown to the next leader. A window that
    # is widened brings back no ids. Ids count per partition. A broker without the master key of an encrypted stream
    # refuses records with ids (NO_KEY).
    def find(self, message_id: bytes, time: int) -> Offset | None:
        """`message_id` in its kept form."""
        self.go_on_to(time)
        for part in reversed(self._parts):
            offset = part.offsets.get(message_id)
            if offset is not None:
                return Offset(offset) if offset >= self._ticks[0].first else None
        return None

    def may_hold(self, message_ids: Collection[bytes], time: int) -> bool:
        """False: none of them is known. Quicker than to look for each."""
        self.go_on_to(time)
        return not all(part.offsets.keys().isdisjoint(message_ids) for part in self._parts)

    def last_id(self, end: Offset) -> bytes | None:
        """The id of the record at `end` - 1, the last one of a log, in its kept form; None: it has none, or is not
        known."""
        return self._last[1] if self._last is not None and self._last[0] == end - 1 else None

    def add(self, message_id: bytes, offset: Offset, time: int) -> None:
        """`message_id` in its kept form; in the order of offsets."""
        self.add_all([(0, message_id)], offset, time)

    def add_all(self, ids: Sequence[tuple[int, bytes]], base: Offset, time: int) -> None:
        """(place, id in its kept form) of records of one batch, which begins at `base`; at least one, in order."""
        self._last = base + ids[-1][0], ids[-1][1]
        if not self._window:
            return
        part = self._part_from(base + ids[0][0], time)
        offsets = part.offsets
        before = len(offsets)
        for place, message_id in ids:
            offsets[message_id] = base + place
        part.last = base + ids[-1][0]
        self.count += len(offsets) - before

    def _part_from(self, first: int, time: int) -> _Part:
        """That takes ids from that offset on."""
        self.go_on_to(time)
        time = self._time
        tick = self._ticks[-1] if self._ticks else None
        if tick is None or time - tick.began > self._window // _TICKS:
            self._ticks.append(_Tick(first, time, time))
        else:
            tick.last_time = time
        part = self._parts[-1] if self._parts else None
        if part is None or time - part.began > self._window // _PARTS or len(part.offsets) > self._most // _PARTS:
            part = _Part(time)
            self._parts.append(part)
        return part

    def learn(self, message_id: bytes, offset: Offset, time: int) -> None:
        """As `add`, from the log."""
        if self._last is None or self._last[0] < offset:
            self.add(message_id, offset, time)

    def go_on_to(self, time: int) -> None:
        """Forgets the ids that have left the window."""
        ticks = self._ticks
        if not self._time:
            for tick in ticks:
                tick.began = tick.last_time = time
            for part in self._parts:
                part.began = time
        self._time = max(self._time, time)
        if not ticks or ticks[0].last_time + self._window > self._time:
            return
        while ticks and ticks[0].last_time + self._window <= self._time:
            ticks.popleft()
        parts = self._parts
        while parts and (not ticks or parts[0].last < ticks[0].first):
            self.count -= len(parts.popleft().offsets)

    def cut(self, end: Offset) -> None:
        """The log ends there now."""
        if self._last is not None and self._last[0] >= end:
            self._last = None
        while self._ticks and self._ticks[-1].first >= end:
            self._ticks.pop()
        for part in self._parts:
            if part.last >= end:
                part.offsets = {message_id: offset for message_id, offset in part.offsets.items() if offset < end}
                part.last = max(part.offsets.values(), default=-1)
        # A part may hold only ids that have left the window, and whose tick is gone.
        self._parts = deque(part for part in self._parts if self._ticks and part.last >= self._ticks[0].first)
        self.count = sum(len(part.offsets) for part in self._parts)

    def clear(self) -> None:
        self.cut(Offset(0))

    def validate(self) -> None:
        """Raises InvariantViolation."""
        require(self.count == sum(len(part.offsets) for part in self._parts), "all ids are counted", self.count)
        require(not self._parts or bool(self._ticks), "ids have times", len(self._parts))
        last = -1
        for part in self._parts:
            require(last < part.last, "ids are in the order of offsets", (last, part.last))
            last = part.last
