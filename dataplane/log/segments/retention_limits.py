"""Which segments have outlived their stream's limits. Pure.

Whole segments, oldest first, up to the first that must stay:

    never      the last segment, a segment that reaches beyond the high watermark, and all behind either
    deleted    an operator deleted all of its records (R44)
    by age     its newest record is older than `max_age_ms`
    by bytes   the segments behind it hold `max_bytes` or more without it
    by number  the segments behind it span `max_messages` offsets or more without it

So a limit is kept at least: up to a segment more than that is there. What is not committed yet does not count, because
a truncation may take it: offsets are counted up to the high watermark, and bytes of segments that lie below it. Offsets
are counted, not records: of a compacted log fewer records are left than its offsets say.

Each replica judges for itself, by the time on which most brokers agree (R72); while it has none, nothing goes for its
age. It need not ask for the others: all below the high watermark is
held by every member of the ISR, and a replica outside begins anew at the leader's log start.

Timestamps come from publishers. One in the future would keep its segment, and all behind it, until then; for such a
segment counts when the first batch behind it was appended, by the log's own time: no record in it is newer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wire.stream_config import StreamConfig
    from wire.types import Offset

NS_PER_MS = 1_000_000


class Stored(Protocol):
    """The facts of a segment that retention needs."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def max_timestamp(self) -> int:
        """ns; of its newest record, below every time when there is none."""
        ...


S = TypeVar("S", bound=Stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """0: none."""

    max_age_ms: int = 0
    max_bytes: int = 0
    max_messages: int = 0

    @classmethod
    def of(cls, config: StreamConfig) -> Limits:
        return cls(
            max_age_ms=config.retention_max_age_ms,
            max_bytes=config.retention_max_bytes,
            max_messages=config.retention_max_messages,
        )

    def __bool__(self) -> bool:
        return bool(self.max_age_ms or self.max_bytes or self.max_messages)

    def is_too_old(self, newest_ns: int, now_ns: int | None) -> bool:
        return now_ns is not None and self.max_age_ms > 0 and newest_ns < now_ns - self.max_age_ms * NS_PER_MS

    def reason(self, newest_ns: int, now_ns: int | None, bytes_behind: int, offsets_behind: int) -> str | None:
        """Why a segment goes; None: it stays."""
        if self.is_too_old(newest_ns, now_ns):
            return f"older than retention_max_age_ms={self.max_age_ms}"
        if 0 < self.max_bytes <= bytes_behind:
            return f"beyond retention_max_bytes={self.max_bytes}"
        if 0 < self.max_messages <= offsets_behind:
            return f"beyond retention_max_messages={self.max_messages}"
        return None


def newest_record(segment: S, now_ns: int | None, appended_by: Callable[[S], int]) -> int:
    """ns. `appended_by`: when all of it was there, asked only for a segment with timestamps in the future."""
    if now_ns is None or segment.max_timestamp <= now_ns:
        return segment.max_timestamp
    return min(segment.max_timestamp, appended_by(segment))


def expired(
    segments: Sequence[S],
    limits: Limits,
    *,
    log_end_offset: Offset,
    high_watermark: Offset,
    purged_end: int = 0,
    now_ns: int | None,
    appended_by: Callable[[S], int],
) -> Iterator[str]:
    """Why the oldest segment goes, why the next one does, and so on; it ends where one stays. `purged_end`: records
    below it were deleted."""
    if not limits and (len(segments) < 2 or segments[1].base_offset > purged_end):
        return
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    bytes_behind = sum(segment.size for segment, end in zip(segments, ends, strict=True) if end <= high_watermark)
    for segment, following in pairwise(segments):
        if following.base_offset > high_watermark:
            return
        bytes_behind -= segment.size
        newest = newest_record(segment, now_ns, appended_by)
        reason = (
            "deleted"
            if following.base_offset <= purged_end
            else limits.reason(newest, now_ns, bytes_behind, high_watermark - following.base_offset)
        )
        if reason is None:
            return
        yield reason
