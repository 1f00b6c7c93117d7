"""Plans positions and offset ranges from the options and the logs. Pure.

Invariants:
- an end never lies beyond the committed log, and never before its start unless the log itself was cut;
- ranges between two positions depend on these positions alone: a batch planned again after a crash reads the same
  records;
- a position is only ever compared with the same life of the same partition.

When the log no longer holds the record of a position, records are lost to this query. With `failOnDataLoss` (the
default) that is an error; without, the query goes on at the nearest record that exists. A recreated stream is an error
either way: its offsets are other records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from spark_connector.log_port import OffsetRange, PartitionExtent, StreamExtent
from spark_connector.options import Edge, ExplicitOffsets
from spark_connector.positions import Position, Positions, StreamPosition
from wire.error_details import LOG_START
from wire.errors import Code, TidelogError
from wire.types import Offset, StreamName

Extents = Mapping[StreamName, StreamExtent]


def assigned(extents: Extents, assign: Mapping[StreamName, Collection[int]]) -> Extents:
    """Without the partitions that `assign` does not name. Raises TidelogError(BAD_CONFIG) for one that is not there."""
    for stream, partitions in assign.items():
        missing = set(partitions) - set(extents[stream].partitions)
        if missing:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"assign names partitions {_numbers(missing)} of stream {stream!r}, which has partitions "
                f"{_numbers(extents[stream].partitions)}",
            )
    return {
        stream: replace(
            extent, partitions={number: held for number, held in extent.partitions.items() if number in assign[stream]}
        )
        for stream, extent in extents.items()
    }


def positions_at(extents: Extents, edge: Edge) -> Positions:
    """Where all logs begin, or end."""
    return {
        stream: StreamPosition(
            extent.incarnation,
            {
                partition: Position(held.incarnation, held.log_start if edge is Edge.EARLIEST else held.end)
                for partition, held in extent.partitions.items()
            },
        )
        for stream, extent in extents.items()
    }


def positions_of(extents: Extents, explicit: ExplicitOffsets, option: str, *, fail_on_data_loss: bool) -> Positions:
    """The user's offsets, checked against the logs. Raises TidelogError naming the option and the partition."""
    for stream, extent in extents.items():
        if set(explicit[stream]) != set(extent.partitions):
            raise TidelogError(
                Code.BAD_CONFIG,
                f"{option} gives offsets of partitions {_numbers(explicit[stream])} of stream {stream!r}, which has "
                f"partitions {_numbers(extent.partitions)}: give one for each (-2 = earliest, -1 = latest)",
            )

    def chosen(stream: StreamName, partition: int, end: Offset) -> Offset:
        log_start = extents[stream].partitions[partition].log_start
        match explicit[stream][partition]:
            case Edge.EARLIEST:
                return log_start
            case Edge.LATEST:
                return end
            case offset:
                what = f"{option} of {stream}/{partition}"
                return _checked(offset, what, log_start, end, fail_on_data_loss=fail_on_data_loss)

    return _moved(positions_at(extents, Edge.LATEST), chosen)


def _checked(offset: Offset, what: str, log_start: Offset, end: Offset, *, fail_on_data_loss: bool) -> Offset:
    if offset > end:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"{what} is {offset}, beyond the committed log, which ends at {end}: use at most {end}, or latest",
        )
    if offset < log_start and fail_on_data_loss:
        raise TidelogError(
            Code.OFFSET_BEFORE_LOG,
            f"{what} is {offset}, but the log begins at {log_start}: "
            f"use at least {log_start}, or earliest, or failOnDataLoss=false",
            [LOG_START.of(log_start)],
        )
    return max(offset, log_start)


def positions_from(extents: Extents, offsets: Mapping[StreamName, Mapping[int, Offset]]) -> Positions:
    """Looked-up offsets (by timestamp) as positions; never beyond the end that goes with them."""
    return _moved(
        positions_at(extents, Edge.LATEST), lambda stream, partition, end: min(offsets[stream][partition], end)
    )


def check_continues(start: Positions, extents: Extents, *, fail_on_data_loss: bool) -> None:
    """A query may go on at `start`: same streams, same lives, and the logs still reach it.

    Raises WRONG_INCARNATION, OFFSET_BEFORE_LOG, LOG_TRUNCATED or BAD_CONFIG.
    """
    if set(start) != set(extents):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"the checkpoint is of a query that subscribes to {_streams(start)}, and this one subscribes to "
            f"{_streams(extents)}: subscribe to the same streams, or start with a new checkpointLocation",
        )
    for stream, at in start.items():
        extent = extents[stream]
        if at.incarnation != extent.incarnation:
            raise _recreated(f"stream {stream!r}", at.incarnation, extent.incarnation)
        for partition, position in at.partitions.items():
            name = f"{stream}/{partition}"
            held = extent.partitions.get(partition)
            if held is None:
                raise TidelogError(
                    Code.PARTITION_RETIRED,
                    f"partition {name}, which the checkpoint reads from, does not exist any more, or assign "
                    "leaves it out: "
                    "start with a new checkpointLocation",
                )
            if position.incarnation != held.incarnation:
                raise _recreated(f"partition {name}", position.incarnation, held.incarnation)
            if fail_on_data_loss:
                _check_reachable(name, position, held)


def _check_reachable(name: str, position: Position, held: PartitionExtent) -> None:
    if position.offset < held.log_start:
        raise before_log(name, position.offset, held.log_start)
    if position.offset > held.end:
        raise TidelogError(
            Code.LOG_TRUNCATED,
            f"{name} was read up to {position.offset} but its committed log ends at {held.end}, so records that "
            "were read are gone (an unclean election): set failOnDataLoss=false to go on from there",
        )


def before_log(name: str, offset: Offset, log_start: Offset) -> TidelogError:
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"{name} is to be read from {offset} but its log begins at {log_start} by now, so {log_start - offset} offsets "
        "are lost to this query: set failOnDataLoss=false to go on without them, and keep records longer",
        [LOG_START.of(log_start)],
    )


def _recreated(what: str, then: int, now: int) -> TidelogError:
    return TidelogError(
        Code.WRONG_INCARNATION,
        f"{what} was deleted and created again since the checkpoint was written (incarnation {then} then, {now} now), "
        "so its offsets are other records: start with a new checkpointLocation",
    )


def next_end(start: Positions, extents: Extents, *, target: Positions | None, max_records: int | None) -> Positions:
    """Where the next micro-batch ends.

    Up to the ends of the logs, not past `target` (Trigger.AvailableNow), and at most `max_records` offsets in all,
    which the partitions share in proportion to their waiting records. A partition new since `start` is read from its
    offset 0.
    """
    ends = positions_at(extents, Edge.LATEST) if target is None else _not_before(start, target, extents)
    waiting = {
        (stream, partition): max(0, end.offset - max(_offset_in(start, stream, partition), held.log_start))
        for stream, extent in extents.items()
        for partition, held in extent.partitions.items()
        if (end := ends[stream].partitions.get(partition)) is not None
    }
    if max_records is None or sum(waiting.values()) <= max_records:
        return ends
    granted = _share(waiting, max_records)

    def limited(stream: StreamName, partition: int, end: Offset) -> Offset:
        key = stream, partition
        return Offset(end - waiting[key] + granted[key]) if key in waiting else end

    return _moved(ends, limited)


def _not_before(start: Positions, target: Positions, extents: Extents) -> Positions:
    """The target, or `start` where that is already past it: then there is nothing to read, not less than nothing.

    A start past the end of the log (it was cut, and `failOnDataLoss` is off) does go back.
    """

    def later(stream: StreamName, partition: int, end: Offset) -> Offset:
        began = _offset_in(start, stream, partition)
        held = extents[stream].partitions.get(partition)
        return began if held is not None and end < began <= held.end else end

    return _moved(target, later)


def _moved(positions: Positions, to: Callable[[StreamName, int, Offset], Offset]) -> Positions:
    """The same partitions, each at the offset that `to(stream, partition, offset)` gives."""
    return {
        stream: replace(
            at,
            partitions={
                partition: replace(position, offset=to(stream, partition, position.offset))
                for partition, position in at.partitions.items()
            },
        )
        for stream, at in positions.items()
    }


def _share(waiting: Mapping[tuple[StreamName, int], int], limit: int) -> dict[tuple[StreamName, int], int]:
    """`limit` split in proportion to `waiting`, exactly: the rest of the rounding goes to the largest remainders."""
    total = sum(waiting.values())
    granted = {key: count * limit // total for key, count in waiting.items()}
    by_remainder = sorted(waiting, key=lambda key: (-(waiting[key] * limit % total), key))
    for key in by_remainder[: limit - sum(granted.values())]:
        granted[key] += 1
    return granted


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Every partition's records from `start` to `end`; partitions with none are left out."""
    return [
        found
        for stream, at in end.items()
        for partition, position in sorted(at.partitions.items())
        if len(
            found := OffsetRange(
                stream,
                at.incarnation,
                partition,
                position.incarnation,
                _offset_in(start, stream, partition),
                position.offset,
            )
        )
    ]


def _offset_in(positions: Positions, stream: StreamName, partition: int) -> Offset:
    position = positions[stream].partitions.get(partition)
    return Offset(0) if position is None else position.offset


def split(ranges: Sequence[OffsetRange], minimum: int) -> list[OffsetRange]:
    """At least `minimum` ranges where the offsets allow it: each is cut in proportion to its share of them."""
    total = sum(len(whole) for whole in ranges)
    if len(ranges) >= minimum or total == 0:
        return list(ranges)
    parts: list[OffsetRange] = []
    for whole in ranges:
        size = len(whole)
        # Rounded up, so that the sum cannot fall short of the minimum.
        pieces = min(size, -(-size * minimum // total))
        parts += [
            replace(
                whole,
                start=Offset(whole.start + size * piece // pieces),
                end=Offset(whole.start + size * (piece + 1) // pieces),
            )
            for piece in range(pieces)
        ]
    return parts


def _numbers(partitions: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(partitions)) or "none"


def _streams(streams: Mapping[StreamName, object]) -> str:
    return ", ".join(sorted(streams)) or "nothing"
