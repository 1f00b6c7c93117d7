"""`spark.readStream`: committed records as they come, in micro-batches that a restart repeats exactly or not at all.

One reader lives in a process of its own for as long as the query runs; Spark asks it, in this order:

    new query   initialOffset
    restart     partitions(start, end) of the micro-batch that was planned and not finished, if there is one
    then        latestOffset(start, limit) → partitions(start, end) → commit(end), over and over

Spark writes `end` to the checkpoint before it reads, so `partitions` must depend on its two arguments alone. The first
of these calls after a restart also finds out whether the checkpoint still speaks of these streams.

Trigger.AvailableNow: the ends of the logs are taken once, and `latestOffset` never goes past them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_connector.batch_reader import extents_of, read_partition, starting_positions, tasks_of
from spark_connector.log_port import CommittedLog, OpenLog
from spark_connector.options import Edge, SourceOptions
from spark_connector.plain_errors import plain_errors
from spark_connector.planning import (
    Extents,
    check_continues,
    next_end,
    positions_at,
    ranges_between,
)
from spark_connector.positions import Positions, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


IDLE_SECONDS = 0.05
"""Spark asks an idle query for news every 10 ms, at a request per partition: the answer "none" takes this long."""


@plain_errors
class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    # Method names are Spark's.

    def __init__(self, options: SourceOptions, schema: StructType, open_log: OpenLog) -> None:
        self._options = options
        self._schema = schema
        self._open_log = open_log
        self._log: CommittedLog | None = None
        self._target: Positions | None = None
        self._latest: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        extents = self._extents()
        return to_json(starting_positions(self._connected(), extents, self._options, default=Edge.LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        extents = self._extents()
        begin = from_json(start)
        check_continues(begin, extents, fail_on_data_loss=self._options.fail_on_data_loss)
        self._latest = positions_at(extents, Edge.LATEST)
        # Spark gives no limit where its trigger means to read everything, even if the option is set.
        max_records = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = next_end(begin, extents, target=self._target, max_records=max_records)
        if end == begin:
            time.sleep(IDLE_SECONDS)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the query's progress report: the ends seen last."""
        return None if self._latest is None else to_json(self._latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = positions_at(self._extents(), Edge.LATEST)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        if self._latest is None:
            check_continues(begin, self._extents(), fail_on_data_loss=self._options.fail_on_data_loss)
        return tasks_of(ranges_between(begin, stop), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema, self._open_log)

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _connected(self) -> CommittedLog:
        if self._log is None:
            self._log = self._open_log(self._options)
        return self._log

    def _extents(self) -> Extents:
        return extents_of(self._connected(), self._options)
