"""A Spark task: one range of offsets becomes Arrow batches.

A task yields exactly the records of its range, each once, in order, for any batches of the log: the
first and the last are cut to the range, control batches are left out. Small batches are joined, because each batch that
Spark receives costs it as much as hundreds of rows; large ones go through without a copy.

The range is committed, so it can be read to its end at any later time, unless the log has lost its beginning since
(retention): then `failOnDataLoss` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_connector.columns import ArrowRows
from spark_connector.log_port import CommittedLog, OffsetRange
from spark_connector.planning import before_log
from wire.error_details import LOG_START
from wire.errors import Code, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from wire.batch import RecordBatch

JOIN_ROWS = 16_384
"""Batches are joined up to this many rows,"""
JOIN_BYTES = 4 << 20
"""or this many bytes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    fetch_max_bytes: int
    fail_on_data_loss: bool


def read_range(
    log: CommittedLog, wanted: OffsetRange, schema: StructType, settings: TaskSettings
) -> Iterator[pa.RecordBatch]:
    """Raises the errors of the log; OFFSET_BEFORE_LOG only with `fail_on_data_loss`."""
    rows = ArrowRows(schema, wanted.stream, wanted.partition)
    return _joined(rows.convert(batch) for batch in _records(log, wanted, settings))


def _records(log: CommittedLog, wanted: OffsetRange, settings: TaskSettings) -> Iterator[RecordBatch]:
    expected = wanted.start
    while expected < wanted.end:
        try:
            for batch in log.fetch(replace(wanted, start=expected), settings.fetch_max_bytes):
                inside = _cut(batch, expected, wanted.end)
                expected = max(expected, batch.header.end_offset)
                if inside is not None:
                    yield inside
                if expected >= wanted.end:
                    return
        except TidelogError as error:
            log_start = error.detail(LOG_START)
            if error.code is not Code.OFFSET_BEFORE_LOG or log_start is None or log_start <= expected:
                raise
            if settings.fail_on_data_loss:
                raise before_log(f"{wanted.stream}/{wanted.partition}", expected, Offset(log_start)) from error
            _log.warning("%s: the log begins at %d by now, going on there (failOnDataLoss=false)", wanted, log_start)
            expected = Offset(log_start)
        else:
            return


def _cut(batch: RecordBatch, start: Offset, end: Offset) -> RecordBatch | None:
    """The batch's records from `start` to `end`, None when it holds none of them."""
    header = batch.header
    if header.is_control or header.end_offset <= start or header.base_offset >= end:
        return None
    if header.base_offset >= start and header.end_offset <= end:
        return batch
    inside = batch.slice(start, end)
    return inside if len(inside.offsets) else None


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
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
