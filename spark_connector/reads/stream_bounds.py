"""Resolves the options against the logs: the streams to read, their starts and ends, and the offsets of times."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from spark_connector.reads.checkpoint_positions import Positions
from spark_connector.reads.log_port import CommittedLog
from spark_connector.reads.plans import Extents, assigned, check_names_all, positions_at, positions_from, positions_of
from spark_connector.reads.read_options import AtTimestamp, AtTimestamps, Edge, Point, SourceOptions
from wire.errors import Code, TidelogError
from wire.types import Offset, StreamName


def names_of(log: CommittedLog, options: SourceOptions) -> tuple[StreamName, ...]:
    """Returns the streams that the options name, or those that the pattern matches now."""
    if options.pattern is None:
        return options.streams
    matches = re.compile(options.pattern).fullmatch
    return tuple(name for name in log.streams() if matches(name))


def extents_found(log: CommittedLog, options: SourceOptions, names: Collection[StreamName]) -> Extents:
    """Returns the present extents of these streams, without streams that do not exist.

    Raises TidelogError(BAD_CONFIG) where `assign` names a partition that a stream does not have.
    """
    extents = log.extents(names)
    if options.assign is None:
        return extents
    return assigned(extents, {stream: options.assign[stream] for stream in extents})


def extents_of(log: CommittedLog, options: SourceOptions) -> Extents:
    """Returns the present extents of the streams that the query reads.

    Raises TidelogError: UNKNOWN_STREAM where a named stream does not exist, and like `extents_found`.
    """
    extents = extents_found(log, options, names_of(log, options))
    check_exist(extents, options)
    return extents


def check_exist(extents: Extents, options: SourceOptions) -> None:
    """Raises TidelogError(UNKNOWN_STREAM) where a stream that the options name is not among those found."""
    missing = [stream for stream in options.streams if stream not in extents]
    if missing:
        named = ", ".join(map(repr, missing))
        option = "subscribe" if options.assign is None else "assign"
        raise TidelogError(Code.UNKNOWN_STREAM, f"there is no stream {named}: create it first, or correct {option}")


def check_matches(extents: Extents, options: SourceOptions) -> None:
    """Raises TidelogError(UNKNOWN_STREAM) for a batch query of no stream at all, which is a mistake."""
    if not extents:
        raise TidelogError(
            Code.UNKNOWN_STREAM,
            f"no stream has a name that subscribePattern={options.pattern!r} matches as a whole: correct it (a regular "
            "expression, such as 'orders-.*')",
        )


def starting_positions(log: CommittedLog, extents: Extents, options: SourceOptions, *, default: Edge) -> Positions:
    """Returns positions of the options startingTimestamp, startingOffsetsByTimestamp or startingOffsets in the logs."""

    def without_match(stream: StreamName, partition: int) -> Offset:
        if options.latest_without_match:
            return extents[stream].partitions[partition].end
        raise TidelogError(
            Code.BAD_CONFIG,
            f"no record of {stream}/{partition} is at or after the time at which the query is to start: use an "
            "earlier time, or startingOffsetsByTimestampStrategy=latest to start at its end",
        )

    return _positions(log, extents, options, options.starting or default, "starting", without_match)


def ending_positions(log: CommittedLog, extents: Extents, options: SourceOptions) -> Positions:
    """Returns positions of the options endingTimestamp, endingOffsetsByTimestamp or endingOffsets in the logs: the end
    where no record is at or after a time."""

    def without_match(stream: StreamName, partition: int) -> Offset:
        return extents[stream].partitions[partition].end

    return _positions(log, extents, options, options.ending or Edge.LATEST, "ending", without_match)


def _positions(
    log: CommittedLog,
    extents: Extents,
    options: SourceOptions,
    point: Point,
    role: str,
    without_match: Callable[[StreamName, int], Offset],
) -> Positions:
    match point:
        case Edge() as edge:
            return positions_at(extents, edge)
        case AtTimestamp(timestamp_ns):
            times: Mapping[StreamName, Mapping[int, int]] = {
                stream: dict.fromkeys(extent.partitions, timestamp_ns) for stream, extent in extents.items()
            }
        case AtTimestamps(times):
            check_names_all(times, extents, f"{role}OffsetsByTimestamp")
        case explicit:
            return positions_of(extents, explicit, f"{role}Offsets", fail_on_data_loss=options.fail_on_data_loss)
    return positions_from(
        extents,
        {
            stream: {
                partition: without_match(stream, partition) if offset is None else offset
                for partition, offset in found.items()
            }
            for stream, found in log.offsets_at(times).items()
        },
    )
