"""Where in a log the batches with message ids lie: a function of the log, learned from batch headers alone.

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
from typing import Final, NamedTuple

from wire.errors import CorruptData
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
