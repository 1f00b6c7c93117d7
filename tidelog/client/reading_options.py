"""Where a consumer reads, and what it does where records are not there: options, as programs spell them."""

from __future__ import annotations

from enum import Enum

from tidelog.client.arguments import bad
from wire.errors import TidelogError
from wire.notation import check_rack


class ReadFrom(Enum):
    """Where records come from; positions are always the leader's to tell."""

    LEADER = "leader"
    FOLLOWER = "follower"
    """In-sync followers, the leader while none serves."""
    NEAREST = "nearest"
    """The replica in sync that is in the consumer's rack, the leader while none serves there."""


class OnGap(Enum):
    """Reaction of a consumer when its next record was removed (by retention) before it was read."""

    RAISE = "raise"
    """OffsetOutOfRange."""
    SKIP = "skip"
    """It goes on where the log begins now, says so in its log, and counts the missed records."""


class OnOutOfRange(Enum):
    """Reaction of a consumer that is to start at an offset outside of a partition's committed log."""

    EARLIEST = "earliest"
    """It starts at the oldest record."""
    LATEST = "latest"
    """It starts at the end of the committed log."""
    FAIL = "fail"
    """OffsetOutOfRange."""


def reading_options(
    read_from: str, rack: str | None, on_gap: str | None, on_out_of_range: str | None
) -> tuple[ReadFrom, str | None, OnGap | None, OnOutOfRange | None]:
    """As programs spell them. Raises BadRequest."""
    try:
        source = ReadFrom(read_from)
    except ValueError:
        raise bad(f"read_from={read_from!r} is none of 'leader', 'follower' and 'nearest'") from None
    if (rack is None) is (source is ReadFrom.NEAREST):
        raise bad(f"read_from={read_from!r} with rack={rack!r}: 'nearest' needs a rack, and the others need none")
    try:
        gap = None if on_gap is None else OnGap(on_gap)
    except ValueError:
        raise bad(f"on_gap={on_gap!r} is none of 'raise' and 'skip'") from None
    try:
        reset = None if on_out_of_range is None else OnOutOfRange(on_out_of_range)
    except ValueError:
        raise bad(f"on_out_of_range={on_out_of_range!r} is none of 'earliest', 'latest' and 'fail'") from None
    try:
        return source, None if rack is None else check_rack(rack), gap, reset
    except TidelogError as error:
        raise bad(error.message) from None
