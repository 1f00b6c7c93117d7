"""Plans positions and offset ranges from the options and the logs. Pure.

Invariants:
- an end never lies beyond the committed log, and never before its start unless the log itself was cut;
- a partition is read from a position that a checkpoint holds: one that is new to a query joins first, without records;
- ranges between two positions depend on these positions alone: a batch planned again after a crash reads the same
  records;
- a position is only ever compared with the same incarnation of the same partition.

When the log no longer holds the record of a position, records are lost to this query. With `failOnDataLoss` (the
default) that is an error; without, the query goes on at the nearest record that exists. A recreated stream is another
one: its offsets are other records, so without `failOnDataLoss` it joins where its log begins.

A task costs Spark 10 to 40 ms of its own, so a micro-batch of a few thousand records in 128 partitions must not be 128
tasks; and a range that holds much must not wait behind others while slots are idle. So ranges are put together until a
task has `TASK_RECORDS` to read, and more once there are `TASKS_OF_LEAST` times `least` tasks, up to
`LARGE_TASK_RECORDS`; into no fewer tasks than `least`, large ranges with small ones.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from spark_connector.reads.checkpoint_positions import Position, Positions, StreamPosition
from spark_connector.reads.log_port import OffsetRange, PartitionExtent, PartitionName, StreamExtent
from spark_connector.reads.read_options import Edge, ExplicitOffsets
from wire.error_details import LOG_START
from wire.errors import Code, TidelogError
from wire.layouts import KeyOrder, end_of_life
from wire.types import Incarnation, Offset, StreamName

TASK_RECORDS = 16_384
"""Offsets that are worth a task of their own: reading them takes about as long as Spark needs to run a task."""
TASKS_OF_LEAST = 8
"""Tasks per known slot: for a cluster with more slots than that, and to balance unequal tasks."""
LARGE_TASK_RECORDS = 262_144
"""Offsets that take so long to read that Spark's own time for a task hardly counts."""


def pack(ranges: Sequence[OffsetRange], least: int, most_records: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """Returns the ranges of each task, every range in one of them, in no fewer tasks than `least` where there are as
    many ranges. `most_records`: of a task; a range that has more is a task of its own.

    Depends on its arguments alone: a micro-batch that runs again has the same tasks.
    """
    total = sum(len(each) for each in ranges)
    few, many = -(-total // LARGE_TASK_RECORDS), -(-total // TASK_RECORDS)
    tasks = min(len(ranges), max(least, few, min(many, TASKS_OF_LEAST * least)))
    # Packs the largest first, each into the task that has least to read.
    loads = [(0, number) for number in range(tasks)]
    packed: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for each in sorted(ranges, key=len, reverse=True):
        load, number = loads[0]
        if packed[number] and most_records is not None and load + len(each) > most_records:
            heapq.heappush(loads, (len(each), len(packed)))
            packed.append([each])
        else:
            heapq.heapreplace(loads, (load + len(each), number))
            packed[number].append(each)
    in_order = [tuple(sorted(task, key=lambda each: (each.stream, each.partition, each.start))) for task in packed]
    return sorted(in_order, key=lambda task: (task[0].stream, task[0].partition, task[0].start))


def default_tasks() -> int:
    """Returns `least` where the user gives none: the processors of this machine, because Spark does not report the
    number of slots to a data source."""
    return os.cpu_count() or 1


Extents = Mapping[StreamName, StreamExtent]

_log = logging.getLogger(__name__)


def assigned(extents: Extents, assign: Mapping[StreamName, Collection[int]]) -> Extents:
    """Returns only the partitions that `assign` names. Raises TidelogError(BAD_CONFIG) for one that does not exist."""
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
    """Returns the positions at which all logs begin, or end."""
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
    """Returns the user's offsets, checked against the logs. Raises TidelogError naming the option and the partition."""
    by_partition = {
        stream: dict.fromkeys(extents[stream].partitions if stream in extents else (), given)
        if isinstance(given, Edge)
        else given
        for stream, given in explicit.items()
    }
    check_names_all(by_partition, extents, option)

    def chosen(stream: StreamName, partition: int, end: Offset) -> Offset:
        log_start = extents[stream].partitions[partition].log_start
        match by_partition[stream][partition]:
            case Edge.EARLIEST:
                return log_start
            case Edge.LATEST:
                return end
            case offset:
                what = f"{option} of {stream}/{partition}"
                return _checked(offset, what, log_start, end, fail_on_data_loss=fail_on_data_loss)

    return _moved(positions_at(extents, Edge.LATEST), chosen)


def check_names_all(given: Mapping[StreamName, Collection[int]], extents: Extents, option: str) -> None:
    """Raises TidelogError(BAD_CONFIG) unless an option gives something for exactly the partitions that are read."""
    if set(given) != set(extents):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"{option} speaks of {', '.join(sorted(given))}, and the query reads {', '.join(sorted(extents))}: give "
            "each stream that is read and no other",
        )
    for stream, extent in extents.items():
        if set(given[stream]) != set(extent.partitions):
            raise TidelogError(
                Code.BAD_CONFIG,
                f"{option} speaks of partitions {_numbers(given[stream])} of stream {stream!r}, and the query reads "
                f"partitions {_numbers(extent.partitions)}: give each of them (as an offset -2 is the earliest, -1 "
                "the latest)",
            )


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
    """Returns looked-up offsets (by timestamp) as positions; never beyond the end that goes with them."""
    return _moved(
        positions_at(extents, Edge.LATEST), lambda stream, partition, end: min(offsets[stream][partition], end)
    )


def carried_on(
    start: Positions, extents: Extents, *, fail_on_data_loss: bool, planned: Positions | None = None
) -> Positions:
    """Returns `start` as far as a query may go on at it: the same incarnations, and the logs still reach it.

    Incarnations of partitions that were read to their end and are gone are left out. Other streams and partitions
    that are not read any more are left out, with a warning in the log, unless `fail_on_data_loss`. `planned`: the ends
    of a micro-batch that is still to be read; an incarnation does not end below them.

    Raises WRONG_INCARNATION, OFFSET_BEFORE_LOG, LOG_TRUNCATED, UNKNOWN_STREAM or PARTITION_RETIRED.
    """
    kept: dict[StreamName, StreamPosition] = {}
    for stream, at in start.items():
        extent = extents.get(stream)
        if extent is None:
            _lost(Code.UNKNOWN_STREAM, f"stream {stream!r}", fail_on_data_loss=fail_on_data_loss)
            continue
        if at.incarnation != extent.incarnation:
            _recreated(stream, at.incarnation, extent.incarnation, fail_on_data_loss=fail_on_data_loss)
            continue
        partitions: dict[int, Position] = {}
        for partition, position in at.partitions.items():
            name = f"{stream}/{partition}"
            held = extent.partitions.get(partition)
            if held is not None and held.incarnation == position.incarnation:
                _check_reachable(name, position, held, fail_on_data_loss=fail_on_data_loss)
                partitions[partition] = position
                continue
            life = None if held is None else held.incarnation
            end = end_of_life(extent.layouts, partition, position.incarnation, life)
            to_read = _offset_in(planned or {}, stream, partition, position.incarnation) or 0
            if end is not None and position.offset >= max(end, to_read):
                continue
            if held is None:
                _lost(Code.PARTITION_RETIRED, f"partition {name}", fail_on_data_loss=fail_on_data_loss)
            else:
                _made_anew(name, position, held, fail_on_data_loss=fail_on_data_loss)
        kept[stream] = replace(at, partitions=partitions)
    return kept


def _lost(code: Code, what: str, *, fail_on_data_loss: bool) -> None:
    told = (
        f"{what}, which the checkpoint reads from, does not exist any more, or subscribe, subscribePattern or assign "
        "leaves it out"
    )
    if fail_on_data_loss:
        raise TidelogError(
            code,
            f"{told}: set failOnDataLoss=false to go on without it, and, when there is one of that name again, to read "
            "that from its beginning; or start with a new checkpointLocation",
        )
    _log.warning("%s; the query goes on without it (failOnDataLoss=false)", told)


def _check_reachable(name: str, position: Position, held: PartitionExtent, *, fail_on_data_loss: bool) -> None:
    if position.offset < held.log_start and fail_on_data_loss:
        raise before_log(name, position.offset, held.log_start)
    if position.offset > held.log_end:
        told = (
            f"{name} was read up to {position.offset} but its log ends at {held.log_end}, so records that were read "
            "are gone (an unclean election)"
        )
        if fail_on_data_loss:
            raise TidelogError(Code.LOG_TRUNCATED, f"{told}: set failOnDataLoss=false to go on from there")
        _log.warning("%s; the query goes on from there (failOnDataLoss=false)", told)


def within_logs(ends: Positions, extents: Extents, *, fail_on_data_loss: bool) -> Positions:
    """Returns the ends of a micro-batch that was planned earlier, if the logs still reach them. Else raises
    LOG_TRUNCATED; without `fail_on_data_loss` it returns the ends of the logs."""

    def reached(stream: StreamName, partition: int, end: Offset) -> Offset:
        extent = extents.get(stream)
        held = None if extent is None else extent.partitions.get(partition)
        life = ends[stream].partitions[partition].incarnation
        if held is None or held.incarnation != life or end <= held.log_end:
            return end
        told = (
            f"a micro-batch was planned up to {end} of {stream}/{partition}, whose log ends at {held.log_end} now, so "
            "records that were committed are gone (an unclean election)"
        )
        if fail_on_data_loss:
            raise TidelogError(Code.LOG_TRUNCATED, f"{told}: set failOnDataLoss=false to go on without them")
        _log.warning("%s; it ends there (failOnDataLoss=false)", told)
        return held.log_end

    return _moved(ends, reached)


def before_log(name: str, offset: Offset, log_start: Offset) -> TidelogError:
    return TidelogError(
        Code.OFFSET_BEFORE_LOG,
        f"{name} is to be read from {offset} but its log begins at {log_start} by now, so {log_start - offset} offsets "
        "are lost to this query: set failOnDataLoss=false to go on without them, and keep records longer",
        [LOG_START.of(log_start)],
    )


def _recreated(stream: StreamName, then: Incarnation, now: Incarnation, *, fail_on_data_loss: bool) -> None:
    told = (
        f"stream {stream!r} was deleted and created again since the checkpoint was written (incarnation {then} then, "
        f"{now} now), so its offsets are other records"
    )
    if now < then:
        raise TidelogError(Code.WRONG_INCARNATION, f"{told}, of an earlier stream: start with a new checkpointLocation")
    if fail_on_data_loss:
        raise TidelogError(
            Code.WRONG_INCARNATION,
            f"{told}: start with a new checkpointLocation, or set failOnDataLoss=false to read the new one from its "
            "beginning",
        )
    _log.warning("%s; the query reads the new one from its beginning (failOnDataLoss=false)", told)


def _made_anew(name: str, position: Position, held: PartitionExtent, *, fail_on_data_loss: bool) -> None:
    if held.incarnation < position.incarnation:
        raise TidelogError(
            Code.WRONG_INCARNATION,
            f"partition {name} has incarnation {held.incarnation}, and the checkpoint was written with a later one, "
            f"{position.incarnation}: start the query again, or with a new checkpointLocation",
        )
    told = (
        f"partition {name} was removed and made anew since the checkpoint was written (incarnation "
        f"{position.incarnation} then, {held.incarnation} now), and records behind offset {position.offset}, up to "
        "which it was read, may have gone with it"
    )
    if fail_on_data_loss:
        raise TidelogError(
            Code.WRONG_INCARNATION,
            f"{told}: set failOnDataLoss=false to go on where the new one begins, or start with a new "
            "checkpointLocation",
        )
    _log.warning("%s; the query goes on where the new one begins (failOnDataLoss=false)", told)


def reachable_ends(start: Positions, extents: Extents, target: Positions | None) -> Positions:
    """Returns the ends up to which records behind `start` can be read.

    - A partition never goes back: a new leader may know an earlier end of the committed log than `start`, until its
      followers have fetched. Only where its whole log ends below `start` is that end the next position.
    - A partition that is not in `start` joins where its log begins, without records. They are read by a later
      micro-batch, when that position is in the checkpoint.
    - With `target` (Trigger.AvailableNow) none goes past it, and a partition neither in it nor in `start` is left out.
    """

    def end_of(stream: StreamName, partition: int, held: PartitionExtent) -> Offset | None:
        began = _offset_in(start, stream, partition, held.incarnation)
        goal = held.end if target is None else _offset_in(target, stream, partition, held.incarnation)
        if goal is None:
            return began
        if began is None:
            return held.log_start
        return max(began, min(goal, held.end)) if began <= held.log_end else held.log_end

    ends: dict[StreamName, StreamPosition] = {}
    for stream, extent in extents.items():
        partitions = {
            partition: Position(held.incarnation, end)
            for partition, held in extent.partitions.items()
            if (end := end_of(stream, partition, held)) is not None
        }
        if partitions:
            ends[stream] = StreamPosition(extent.incarnation, partitions)
    return ends


def in_key_order(start: Positions, ends: Positions, extents: Extents) -> Positions:
    """`ends`, moved back where records wait for others, so that those of each key are read in their order although a
    repartition has taken the key to another partition. Records waited for were read by earlier micro-batches, up to
    `start`: records of one micro-batch have no order between partitions."""

    def read_to(stream: StreamName, partition: int) -> int:
        held = extents[stream].partitions[partition]
        return max(held.log_start, _offset_in(start, stream, partition, held.incarnation) or 0)

    def reached(stream: StreamName, partition: int, end: Offset) -> Offset:
        began = _offset_in(start, stream, partition, ends[stream].partitions[partition].incarnation)
        if began is None or stream not in orders:
            return end
        waits = orders[stream].waits_for(partition, partial(read_to, stream))
        return end if waits is None else max(began, min(end, Offset(waits[0])))

    orders = {
        stream: KeyOrder(extent.layouts, {number: held.incarnation for number, held in extent.partitions.items()})
        for stream, extent in extents.items()
        if extent.layouts
    }
    return _moved(ends, reached)


def waiting_records(start: Positions, ends: Positions, extents: Extents) -> dict[PartitionName, int]:
    """Returns, by partition, the offsets between `start` and `ends` that the log still has."""
    return {
        (stream, partition): max(0, end.offset - max(began, extents[stream].partitions[partition].log_start))
        for stream, at in ends.items()
        for partition, end in at.partitions.items()
        if (began := _offset_in(start, stream, partition, end.incarnation)) is not None
    }


def byte_shares(sizes: Mapping[PartitionName, int], most: int) -> dict[PartitionName, int]:
    """Splits `most` bytes between partitions in proportion to the bytes that wait in each, at least one for each."""
    return {name: max(1, share) for name, share in _share(sizes, most).items()}


def not_past(ends: Positions, most: Mapping[PartitionName, Offset]) -> Positions:
    """Returns `ends`, with some partitions no further than `most`."""
    return _moved(ends, lambda stream, partition, end: min(end, most.get((stream, partition), end)))


def common(positions: Positions, others: Positions) -> Positions:
    """Returns `positions` in the incarnations of streams and partitions that `others` has too."""
    return {
        stream: replace(
            at,
            partitions={
                partition: position
                for partition, position in at.partitions.items()
                if _offset_in(others, stream, partition, position.incarnation) is not None
            },
        )
        for stream, at in positions.items()
        if (of := others.get(stream)) is not None and of.incarnation == at.incarnation
    }


def only_grows(start: Positions, ends: Positions) -> bool:
    """Returns whether both have the same partitions, and none goes back."""
    return {stream: set(at.partitions) for stream, at in start.items()} == {
        stream: set(at.partitions) for stream, at in ends.items()
    } and all(
        position.offset <= ends[stream].partitions[partition].offset
        for stream, at in start.items()
        for partition, position in at.partitions.items()
    )


def limited(ends: Positions, waiting: Mapping[PartitionName, int], max_records: int) -> Positions:
    """Returns `ends`, moved back so that at most `max_records` offsets are read, which the partitions share in
    proportion to their waiting records: 1 at least in each that has some, like Kafka's source, also where that is more
    in all."""
    if sum(waiting.values()) <= max_records:
        return ends
    granted = _share(waiting, max_records)

    def moved(stream: StreamName, partition: int, end: Offset) -> Offset:
        key = stream, partition
        return Offset(end - waiting[key] + granted[key]) if key in waiting else end

    return _moved(ends, moved)


def offsets_behind(positions: Positions, ends: Positions) -> dict[str, float]:
    """Returns how far the partitions are behind the ends of their logs, by the names of Kafka's source."""
    behind = [
        max(0, end.offset - (_offset_in(positions, stream, partition, end.incarnation) or 0))
        for stream, at in ends.items()
        for partition, end in at.partitions.items()
    ] or [0]
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }


def _moved(positions: Positions, to: Callable[[StreamName, int, Offset], Offset]) -> Positions:
    """Returns the same partitions, each at the offset that `to(stream, partition, offset)` gives."""
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


def _share(waiting: Mapping[PartitionName, int], limit: int) -> dict[PartitionName, int]:
    """Splits `limit` in proportion to `waiting`, exactly: the rest of the rounding goes to the largest remainders. At
    least 1 for each with waiting offsets, so that none starves, also where the sum is above `limit` then."""
    granted = dict.fromkeys(waiting, 0)
    large = {key: count for key, count in waiting.items() if count}
    total = sum(large.values())
    while small := [key for key, count in large.items() if count * limit < total]:
        for key in small:
            granted[key] = 1
            total -= large.pop(key)
        limit -= len(small)
    granted |= {key: count * limit // total for key, count in large.items()}
    by_remainder = sorted(large, key=lambda key: (-(large[key] * limit % total), key))
    for key in by_remainder[: limit - sum(granted[key] for key in large)]:
        granted[key] += 1
    return granted


def ranges_between(start: Positions, end: Positions) -> list[OffsetRange]:
    """Returns every partition's records from `start` to `end`. Partitions without any are left out, and so are
    incarnations of partitions that are not in `start`: they join at `end`."""
    return [
        found
        for stream, at in end.items()
        for partition, position in sorted(at.partitions.items())
        if stream in start and start[stream].incarnation == at.incarnation
        if (began := _offset_in(start, stream, partition, position.incarnation)) is not None
        and len(found := OffsetRange(stream, at.incarnation, partition, position.incarnation, began, position.offset))
    ]


def _offset_in(positions: Positions, stream: StreamName, partition: int, incarnation: Incarnation) -> Offset | None:
    """Returns the offset; None: there is no position of that incarnation of the partition."""
    at = positions.get(stream)
    position = None if at is None else at.partitions.get(partition)
    return position.offset if position is not None and position.incarnation == incarnation else None


def split(ranges: Sequence[OffsetRange], minimum: int, most: int | None = None) -> list[OffsetRange]:
    """Cuts ranges so that none has more than `most` offsets (None: no limit), and then, where the offsets allow it,
    into at least `minimum` ranges: each is cut in proportion to its share of them."""
    if most is not None:
        ranges = [part for whole in ranges for part in _cut(whole, -(-len(whole) // most))]
    total = sum(len(whole) for whole in ranges)
    if len(ranges) >= minimum or total == 0:
        return list(ranges)
    # The counts are rounded up, so that the sum cannot fall short of the minimum.
    return [part for whole in ranges for part in _cut(whole, min(len(whole), -(-len(whole) * minimum // total)))]


def _cut(whole: OffsetRange, pieces: int) -> list[OffsetRange]:
    size = len(whole)
    return [
        replace(
            whole,
            start=Offset(whole.start + size * piece // pieces),
            end=Offset(whole.start + size * (piece + 1) // pieces),
        )
        for piece in range(pieces)
    ]


def _numbers(partitions: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(partitions)) or "none"
