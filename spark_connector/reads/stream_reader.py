"""`spark.readStream`: committed records as they come, in micro-batches that a restart repeats exactly or not at all.

One reader runs in a process of its own for as long as the query; Spark asks it, in this order:

    new query   initialOffset
    restart     partitions(start, end) of the micro-batch that was planned and not finished, if there is one
    then        latestOffset(start, limit) → partitions(start, end) → commit(end), over and over

Spark writes `end` to the checkpoint before it reads, so `partitions` must depend on its two arguments alone. The first
of these calls after a restart also checks whether the checkpoint is still of these streams.

The options of limits are combined here, because a Python source can return only one limit to Spark. They are ignored
where Spark's trigger is to read everything.

Trigger.AvailableNow: the ends of the logs are taken once, and `latestOffset` never goes past them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_connector.reads.batch_reader import read_partition, tasks_of
from spark_connector.reads.checkpoint_positions import Positions, from_json, to_json
from spark_connector.reads.log_port import CommittedLog, OpenLog, PartitionName
from spark_connector.reads.plans import (
    Extents,
    byte_shares,
    carried_on,
    common,
    in_key_order,
    limited,
    not_past,
    offsets_behind,
    only_grows,
    positions_at,
    ranges_between,
    reachable_ends,
    waiting_records,
    within_logs,
)
from spark_connector.reads.read_options import Edge, SourceOptions
from spark_connector.reads.stream_bounds import check_exist, extents_found, extents_of, names_of, starting_positions
from spark_connector.shared.plain_errors import plain_errors
from wire.errors import Code, TidelogError
from wire.types import Offset, StreamName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


_log = logging.getLogger(__name__)

LIST_SECONDS = 1.0
"""Seconds between two matches of a pattern against the names of all streams."""
IDLE_SECONDS = 0.05
"""Seconds for the answer "none": Spark asks an idle query for news every 10 ms, at a request per partition."""


@plain_errors
class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    # Method names are Spark's.

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        open_log: OpenLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._options = options
        self._schema = schema
        self._open_log = open_log
        self._log: CommittedLog | None = None
        self._target: Positions | None = None
        self._latest: Positions | None = None
        self._planned: Positions = {}
        """The end of the micro-batch that was planned last."""
        self._names: Collection[StreamName] = ()
        """Names of the streams to read, if they exist, as found at `_listed_at` by the clock."""
        self._listed_at: float | None = None
        self._absent: frozenset[StreamName] = frozenset()
        """Named streams that do not exist."""
        self._last_trigger: float | None = None
        """Time by the clock of the last micro-batch that `minOffsetsPerTrigger` let through."""
        self._committed: Mapping[PartitionName, Offset] = {}
        """Offsets committed for the group."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        extents = extents_of(self._connected(), self._options)
        return to_json(starting_positions(self._connected(), extents, self._options, default=Edge.LATEST))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns a limit that stands for the options, which `latestOffset` applies."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        extents = self._extents()
        begin = carried_on(from_json(start), extents, fail_on_data_loss=self._options.fail_on_data_loss)
        self._check_exist(extents)
        self._latest = positions_at(extents, Edge.LATEST)
        ends = reachable_ends(begin, extents, self._target)
        if self._options.in_key_order:
            ends = in_key_order(begin, ends, extents)
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(begin, ends, extents)
        self._planned = ends
        end = to_json(ends)
        if end == start:
            time.sleep(IDLE_SECONDS)
        return end

    def _extents(self) -> Extents:
        """The extents of the streams that exist."""
        now = self._clock()
        if self._listed_at is None or now - self._listed_at >= LIST_SECONDS:
            self._names, self._listed_at = names_of(self._connected(), self._options), now
        return extents_found(self._connected(), self._options, self._names)

    def _check_exist(self, extents: Extents) -> None:
        if self._options.fail_on_data_loss:
            check_exist(extents, self._options)
        absent = frozenset(self._options.streams) - frozenset(extents)
        if absent and absent != self._absent:
            _log.warning("no stream %s is there; it is read once it exists (failOnDataLoss=false)", sorted(absent))
        self._absent = absent

    def _limited(self, begin: Positions, ends: Positions, extents: Extents) -> Positions:
        waiting = waiting_records(begin, ends, extents)
        options, now = self._options, self._clock()
        least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
        if least is not None and self._target is None:
            # As in Kafka's source, the first micro-batch after a start does not wait.
            waited = math.inf if self._last_trigger is None else now - self._last_trigger
            if sum(waiting.values()) < least and waited < options.max_trigger_delay and only_grows(begin, ends):
                return begin
            self._last_trigger = now
        if options.max_bytes_per_trigger is not None:
            ends = self._within_bytes(begin, ends, waiting, options.max_bytes_per_trigger)
            waiting = waiting_records(begin, ends, extents)
        return ends if most is None else limited(ends, waiting, most)

    def _within_bytes(
        self, begin: Positions, ends: Positions, waiting: Mapping[PartitionName, int], most: int
    ) -> Positions:
        """Returns `ends`, moved back so that about `most` bytes are read, which the partitions share in proportion to
        the bytes that wait in each."""
        starts = {
            (stream, partition): begin[stream].partitions[partition].offset
            for (stream, partition), count in waiting.items()
            if count
        }
        found = self._connected().spans({name: (start, most) for name, start in starts.items()}) if starts else {}
        sizes = {name: span.bytes_to_end for name, span in found.items()}
        if sum(sizes.values()) <= most:
            return ends
        if len(found) > 1:
            shares = byte_shares(sizes, most)
            found = self._connected().spans({name: (start, shares[name]) for name, start in starts.items()})
        # A log that was cut after its extent was requested may end below the start; the next call reports that.
        return not_past(ends, {name: max(starts[name], span.end) for name, span in found.items()})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Returns, for the query's progress report, the ends seen last, and how far the planned micro-batch is behind
        them."""
        if self._latest is None:
            return None
        return to_json(self._latest) | offsets_behind(self._planned, self._latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = positions_at(self._extents(), Edge.LATEST)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        if self._latest is None:
            # This micro-batch keeps its streams, even if the query is not subscribed to them any more.
            begin = common(begin, stop)
            extents = self._connected().extents(tuple(begin))
            begin = carried_on(begin, extents, fail_on_data_loss=self._options.fail_on_data_loss, planned=stop)
            stop = within_logs(stop, extents, fail_on_data_loss=self._options.fail_on_data_loss)
        return tasks_of(ranges_between(begin, stop), self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Commits the group's positions. Spark calls it when it plans the next micro-batch, so they are one behind."""
        if self._options.group is not None:
            self._commit_group(self._options.group, from_json(end))

    def _commit_group(self, group: str, positions: Positions) -> None:
        # Offsets of an earlier incarnation of a stream or partition are not committed for the group.
        offsets = {
            (stream, partition): position.offset
            for stream, at in common(positions, self._latest or {}).items()
            for partition, position in at.partitions.items()
        }
        if offsets and offsets != self._committed:
            try:
                self._connected().commit_group(group, offsets)
            except TidelogError as error:
                if error.code is not Code.GROUP_NOT_EMPTY:
                    raise
                # The query reads by its checkpoint, so it goes on.
                _log.warning("tidelog: the positions of the query are not committed: %s", error.message)
            self._committed = offsets

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


@plain_errors
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the reason why there is no reader at any call. Of an error that `streamReader` raises itself Spark
    shows another one: its runner stops a reader that it does not have."""

    def __init__(self, why: TidelogError) -> None:
        self._why = why

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        raise self._why

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._why

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        raise self._why

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        raise self._why

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        raise self._why

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self._why
