"""A Spark task: ranges of offsets become Arrow batches.

A task yields exactly the records of its ranges, each once, those of a range in order, for any batches of the log: the
first and the last are cut to the range, control batches are left out. Small batches are joined, because each batch that
Spark receives costs it as much as hundreds of rows; large ones go through without a copy.

A range is committed, so it can be read to its end at any later time, unless the log has lost its beginning since
(retention): then `failOnDataLoss` decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_connector.reads.log_port import Batches, CommittedLog, OffsetRange
from spark_connector.reads.plans import before_log
from spark_connector.shared.arrow_rows import ArrowRows
from wire.error_details import LOG_START, OFFSET
from wire.errors import Code, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from wire.batch import RecordBatch

JOIN_ROWS = 16_384
"""Batches are joined up to this many rows,"""
JOIN_BYTES = 4 << 20
"""or this many bytes."""

RANGES_AHEAD = 4
"""Ranges that are being fetched at once: most of a small one's time is the way to its leader and back."""

_GONE = frozenset({Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION, Code.PARTITION_RETIRED})
"""Codes for a stream or a partition that was deleted after the range was planned."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    fetch_max_bytes: int
    fail_on_data_loss: bool


def read_ranges(
    log: CommittedLog, wanted: Sequence[OffsetRange], schema: StructType, settings: TaskSettings
) -> Generator[pa.RecordBatch, None, None]:
    """Yields the records of the ranges, one range after the other; the next ones are being fetched meanwhile.

    Raises the errors of the log; OFFSET_BEFORE_LOG only with `fail_on_data_loss`.
    """
    return _joined(_rows(log, wanted, schema, settings))


def _rows(
    log: CommittedLog, wanted: Sequence[OffsetRange], schema: StructType, settings: TaskSettings
) -> Generator[pa.RecordBatch, None, None]:
    waiting = iter(wanted)
    begun: deque[tuple[OffsetRange, Batches]] = deque()
    try:
        while True:
            for each in islice(waiting, RANGES_AHEAD - len(begun)):
                begun.append((each, log.fetch(each, settings.fetch_max_bytes)))
            if not begun:
                return
            each, batches = begun.popleft()
            rows = ArrowRows(schema, each.stream, each.partition)
            with closing(_records(log, each, batches, settings)) as records:
                for batch in records:
                    yield rows.convert(batch)
    finally:
        for _, batches in begun:
            batches.close()


def _records(
    log: CommittedLog, wanted: OffsetRange, batches: Batches, settings: TaskSettings
) -> Generator[RecordBatch, None, None]:
    expected = wanted.start
    while True:
        try:
            with closing(batches):
                for batch in batches:
                    inside = _cut(batch, expected, wanted.end)
                    expected = max(expected, batch.header.end_offset)
                    if inside is not None:
                        yield inside
                    if expected >= wanted.end:
                        return
                return
        except TidelogError as error:
            if error.code in _GONE and not settings.fail_on_data_loss:
                _log.warning("%s is not read to its end: %s (failOnDataLoss=false)", wanted, error.message)
                return
            cut = error.detail(OFFSET)
            if error.code is Code.LOG_TRUNCATED and cut is not None and not settings.fail_on_data_loss:
                _log.warning("%s (failOnDataLoss=false)", error.message)
                # Below the cut there may be records that were fetched, but not handed out.
                end = wanted.end if cut < expected else Offset(min(cut, wanted.end))
                if expected >= end:
                    return
                wanted = replace(wanted, start=expected, end=end)
                batches = log.fetch(wanted, settings.fetch_max_bytes)
                continue
            log_start = error.detail(LOG_START)
            if error.code is not Code.OFFSET_BEFORE_LOG or log_start is None or log_start <= expected:
                raise
            if settings.fail_on_data_loss:
                raise before_log(f"{wanted.stream}/{wanted.partition}", expected, Offset(log_start)) from error
            _log.warning("%s: the log begins at %d by now, going on there (failOnDataLoss=false)", wanted, log_start)
            expected = Offset(log_start)
            if expected >= wanted.end:
                return
            batches = log.fetch(replace(wanted, start=expected), settings.fetch_max_bytes)


def _cut(batch: RecordBatch, start: Offset, end: Offset) -> RecordBatch | None:
    """Returns the batch's records from `start` to `end`, None when it holds none of them."""
    header = batch.header
    if header.is_control or header.end_offset <= start or header.base_offset >= end:
        return None
    if header.base_offset >= start and header.end_offset <= end:
        return batch
    inside = batch.slice(start, end)
    return inside if len(inside.offsets) else None


def _joined(batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    with closing(batches):
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= JOIN_ROWS or size >= JOIN_BYTES:
                yield from _one(held)
                held, rows, size = [], 0, 0
    yield from _one(held)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())
