"""`spark.read`: the records committed when the query is planned, or the requested offsets.

Spark plans in one Python process and reads in others: `partitions` connects and cuts the logs into ranges, every task
connects for itself.

Spark collects garbage in a Python worker after every task. That looks at every object of the modules that are loaded,
some hundred thousand, which takes longer than many a task. They stay as long as the process; `gc.freeze` takes them out
of the collection. Objects that come later are collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.reads.checkpoint_positions import Positions
from spark_connector.reads.log_port import OffsetRange, OpenLog
from spark_connector.reads.plans import default_tasks, pack, ranges_between, split
from spark_connector.reads.read_options import Edge, SourceOptions
from spark_connector.reads.read_task import TaskSettings, read_ranges
from spark_connector.reads.stream_bounds import check_matches, ending_positions, extents_of, starting_positions
from spark_connector.shared.plain_errors import plain_errors
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_is_done = False


def freeze_once() -> None:
    """Freezes the modules' objects. Called behind a worker's first task, when a connection is kept, too."""
    global _is_done  # noqa: PLW0603 - the state of the process
    if not _is_done:
        gc.collect()
        gc.freeze()
        _is_done = True


@plain_errors
class TidelogBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType, open_log: OpenLog) -> None:
        self._options = options
        self._schema = schema
        self._open_log = open_log

    def partitions(self) -> list[InputPartition]:
        """Returns the presently committed records, as tasks."""
        with closing(self._open_log(self._options)) as log:
            extents = extents_of(log, self._options)
            check_matches(extents, self._options)
            start = starting_positions(log, extents, self._options, default=Edge.EARLIEST)
            end = ending_positions(log, extents, self._options)
            _check_order(start, end)
        return tasks_of(ranges_between(start, end), self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._options, self._schema, self._open_log)


def tasks_of(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    """Cuts and packs the ranges as the options say: a task for each InputPartition, which holds its ranges."""
    least = options.min_partitions
    pieces = split(ranges, least, options.max_records_per_partition)
    tasks = pack(pieces, max(least, default_tasks()), options.max_records_per_partition)
    return [InputPartition(task) for task in tasks]


def read_partition(
    partition: InputPartition, options: SourceOptions, schema: StructType, open_log: OpenLog
) -> Iterator[pa.RecordBatch]:
    """Runs a task. Spark makes up a partition with the value None when there is nothing to read."""
    wanted: tuple[OffsetRange, ...] | None = partition.value
    if wanted is None:
        return
    settings = TaskSettings(options.fetch_max_bytes, options.fail_on_data_loss)
    with closing(open_log(options)) as log:
        yield from read_ranges(log, wanted, schema, settings)
    if options.gc_freeze:
        freeze_once()


def _check_order(start: Positions, end: Positions) -> None:
    for stream, at in start.items():
        for partition, position in at.partitions.items():
            last = end[stream].partitions[partition].offset
            if position.offset > last:
                raise TidelogError(
                    Code.BAD_CONFIG,
                    f"the start {position.offset} of {stream}/{partition} lies beyond its end {last}: "
                    "change where the query starts or ends",
                )
