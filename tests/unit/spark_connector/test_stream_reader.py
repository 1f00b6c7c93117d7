from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_connector.columns import spark_schema
from spark_connector.log_port import OffsetRange, PartitionExtent, StreamExtent
from spark_connector.options import SourceOptions
from spark_connector.stream_reader import TidelogStreamReader
from wire.batch import RecordBatch
from wire.errors import TidelogError
from wire.types import Incarnation, Offset, StreamName


@dataclass
class Extents:
    """Logs that have ends and no records."""

    held: dict[int, tuple[int, int]]
    incarnation: int = 7
    closed: bool = False
    opened: int = field(default=0)

    def extent(self, stream: StreamName) -> StreamExtent:
        life = Incarnation(self.incarnation)
        partitions = {p: PartitionExtent(life, Offset(start), Offset(end)) for p, (start, end) in self.held.items()}
        return StreamExtent(stream, life, partitions)

    def offsets_at(self, stream: StreamName, timestamp_ns: int) -> Mapping[int, Offset]:
        return {partition: Offset(timestamp_ns // 1_000_000) for partition in self.held}

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def reader_of(log: Extents, **options: str) -> TidelogStreamReader:
    def connect(_: SourceOptions) -> Extents:
        log.opened += 1
        return log

    parsed = SourceOptions.parse({"servers": "nats://a:1", "subscribe": "flights"} | options).for_stream()
    return TidelogStreamReader(parsed, spark_schema(include_headers=False), connect)


def offsets(value: dict[str, dict[str, dict[str, dict[str, dict[str, int]]]]]) -> list[int]:
    return [position["offset"] for position in value["streams"]["flights"]["partitions"].values()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [10, 4]),
        ({"startingOffsets": "latest"}, [10, 4]),
        ({"startingOffsets": "earliest"}, [2, 0]),
        ({"startingOffsets": '{"flights": {"0": 5, "1": -1}}'}, [5, 4]),
        ({"startingTimestamp": "7"}, [7, 4]),
    ],
)
def test_where_a_new_query_begins(options: dict[str, str], expected: list[int]) -> None:
    assert offsets(reader_of(Extents({0: (2, 10), 1: (0, 4)}), **options).initialOffset()) == expected


def test_available_now_reaches_the_present_end_and_no_more() -> None:
    log = Extents({0: (0, 10), 1: (0, 4)})
    reader = reader_of(log, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    position = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    sizes = []
    while (end := reader.latestOffset(position, limit)) != position:
        sizes.append(sum(len(each) for task in reader.partitions(position, end) for each in task.value))
        position = end
        assert len(sizes) < 10
        log.held[0] = (0, log.held[0][1] + 100)
        log.held[2] = (0, 50)
    assert offsets(position) == [10, 4]
    assert sizes == [6, 6, 2]
    assert offsets(reader.reportLatestOffset() or {})[:1] == [310]


def test_a_trigger_that_means_everything_overrules_the_limit() -> None:
    reader = reader_of(Extents({0: (0, 10)}), startingOffsets="earliest", maxOffsetsPerTrigger="6")
    assert offsets(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == [10]


def test_a_planned_micro_batch_is_the_same_ranges_after_a_restart() -> None:
    log = Extents({0: (0, 10), 1: (0, 4)})
    first = reader_of(log, startingOffsets="earliest", minPartitions="4")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    planned = [part.value for part in first.partitions(start, end)]
    log.held = {0: (0, 99), 1: (0, 99)}
    assert [part.value for part in reader_of(log, minPartitions="4").partitions(start, end)] == planned


def test_a_recreated_stream_is_found_by_the_first_call_after_a_restart() -> None:
    log = Extents({0: (0, 10)})
    start = reader_of(log, startingOffsets="earliest").initialOffset()
    end = reader_of(log).latestOffset(start, ReadAllAvailable())
    log.incarnation = 8
    with pytest.raises(TidelogError, match="deleted and created again"):
        reader_of(log).partitions(start, end)
    with pytest.raises(TidelogError, match="deleted and created again"):
        reader_of(log).latestOffset(end, ReadAllAvailable())


def test_one_connection_for_as_long_as_the_query_runs() -> None:
    log = Extents({0: (0, 10)})
    reader = reader_of(log)
    assert reader.partitions(reader.initialOffset(), reader.initialOffset()) == []
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert log.opened == 1
    reader.stop()
    assert log.closed
