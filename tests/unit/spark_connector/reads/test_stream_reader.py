from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from spark_connector.reads import stream_reader
from spark_connector.reads.log_port import OffsetRange, PartitionName, Span
from spark_connector.reads.read_options import SourceOptions
from spark_connector.reads.stream_reader import TidelogStreamReader
from spark_connector.shared.arrow_rows import spark_schema
from spark_connector.source import TidelogDataSource
from tests.unit.spark_connector.reads.fake_log import FakeLogs, FakeStream, flights
from wire.errors import Code, TidelogError
from wire.layouts import Layout
from wire.types import Offset


def reader_of(log: FakeLogs, **options: str) -> TidelogStreamReader:
    def connect(_: SourceOptions) -> FakeLogs:
        log.opened += 1
        return log

    given = {"servers": "nats://a:1"} | options
    if not options.keys() & {"subscribePattern", "assign"}:
        given = {"subscribe": "flights"} | given
    return TidelogStreamReader(SourceOptions.parse(given).for_stream(), spark_schema(include_headers=False), connect)


def ranges(tasks: Sequence[InputPartition]) -> list[OffsetRange]:
    return sorted((each for task in tasks for each in task.value), key=lambda each: (each.stream, each.partition))


def offsets(value: dict[str, Any]) -> list[int]:
    return [position["offset"] for position in value["streams"]["flights"]["partitions"].values()]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [10, 4]),
        ({"startingOffsets": "latest"}, [10, 4]),
        ({"startingOffsets": "earliest"}, [2, 0]),
        ({"startingOffsets": '{"flights": {"0": 5, "1": -1}}'}, [5, 4]),
        ({"startingTimestamp": "3"}, [3, 3]),
        ({"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "latest"}, [7, 4]),
        ({"startingOffsetsByTimestamp": '{"flights": {"0": 9, "1": 1}}'}, [9, 1]),
    ],
)
def test_where_a_new_query_begins(options: dict[str, str], expected: list[int]) -> None:
    assert offsets(reader_of(flights({0: (2, 10), 1: (0, 4)}), **options).initialOffset()) == expected


def test_available_now_reaches_the_present_end_and_no_more() -> None:
    log = flights({0: (0, 10), 1: (0, 4)})
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
        log.by_name["flights"].held[0] = (0, log.by_name["flights"].held[0][1] + 100)
        log.by_name["flights"].held[2] = (0, 50)
    assert offsets(position) == [10, 4]
    assert sizes == [6, 6, 2]
    assert offsets(reader.reportLatestOffset() or {})[:1] == [310]


def test_with_order_key_records_behind_a_cutover_come_in_a_later_micro_batch() -> None:
    log = flights({0: (0, 10), 1: (0, 4)})
    stream = log.by_name["flights"]
    first = Layout(version=1, partitions=2)
    stream.layouts = (first,)
    by_key, by_partition = reader_of(log, startingOffsets="earliest", order="key"), reader_of(log, order="partition")
    start = by_key.initialOffset()
    stream.held = {0: (0, 16), 1: (0, 5), 2: (0, 9)}
    stream.lives = {2: 20}
    stream.layouts = (first, Layout(version=2, partitions=3, generation=30, starts=(12, 5)))

    def read(reader: TidelogStreamReader, position: dict[str, Any]) -> list[list[int]]:
        ends = []
        while (end := reader.latestOffset(position, ReadAllAvailable())) != position:
            ends.append(offsets(end))
            position = end
        return ends

    assert read(by_partition, start) == [[16, 5, 0], [16, 5, 9]], "a new partition joins without records"
    assert read(by_key, start) == [[12, 5, 0], [16, 5, 9]]
    stream.held = {0: (0, 16), 1: (0, 3), 2: (0, 9)}
    stream.log_ends = {1: 5}
    assert read(by_key, start) == [[12, 3, 0]], "partition 1 is not known to be committed up to its cutover"
    stream.held, stream.log_ends = {0: (0, 16), 1: (5, 5), 2: (0, 9)}, {}
    late = reader_of(log, order="key", failOnDataLoss="false")
    assert read(late, start)[-1] == [16, 5, 9], "what retention has removed is not waited for"


def test_order_key_does_not_wait_for_partitions_that_are_not_read() -> None:
    log = flights({0: (0, 16), 1: (0, 5), 2: (0, 9)})
    log.by_name["flights"].layouts = (
        Layout(version=1, partitions=2),
        Layout(version=2, partitions=3, generation=30, starts=(12, 5)),
    )
    reader = reader_of(log, assign='{"flights": [0, 2]}', startingOffsets="earliest", order="key")
    position = reader.initialOffset()
    ends = []
    while (end := reader.latestOffset(position, ReadAllAvailable())) != position:
        ends.append(offsets(end))
        position = end
    assert ends == [[16, 0], [16, 9]]


def test_a_trigger_that_means_everything_overrules_the_limit() -> None:
    reader = reader_of(flights({0: (0, 10)}), startingOffsets="earliest", maxOffsetsPerTrigger="6")
    assert offsets(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())) == [10]


def test_a_planned_micro_batch_is_the_same_ranges_after_a_restart() -> None:
    log = flights({0: (0, 10), 1: (0, 4)})
    first = reader_of(log, startingOffsets="earliest", minPartitions="4")
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    planned = ranges(first.partitions(start, end))
    log.by_name["flights"].held = {0: (0, 99), 1: (0, 99)}
    assert ranges(reader_of(log, minPartitions="4").partitions(start, end)) == planned


def test_a_recreated_stream_is_found_by_the_first_call_after_a_restart() -> None:
    log = flights({0: (0, 10)})
    start = reader_of(log, startingOffsets="earliest").initialOffset()
    end = reader_of(log).latestOffset(start, ReadAllAvailable())
    log.by_name["flights"].incarnation = 8
    with pytest.raises(TidelogError, match="deleted and created again"):
        reader_of(log).partitions(start, end)
    with pytest.raises(TidelogError, match="deleted and created again"):
        reader_of(log).latestOffset(end, ReadAllAvailable())


def test_one_connection_for_as_long_as_the_query_runs() -> None:
    log = flights({0: (0, 10)})
    reader = reader_of(log)
    assert reader.partitions(reader.initialOffset(), reader.initialOffset()) == []
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert log.opened == 1
    reader.stop()
    assert log.closed


LIMITED = ReadMinRows(1)
"""Anything but ReadAllAvailable: the reader goes by its options."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _no_idle_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reader, "IDLE_SECONDS", 0.0)


def two_streams() -> FakeLogs:
    return FakeLogs({"flights": FakeStream({0: (0, 10)}), "trains": FakeStream({0: (3, 8)})})


def shown(value: dict[str, Any]) -> dict[str, list[int]]:
    return {
        stream: [position["offset"] for position in at["partitions"].values()]
        for stream, at in value["streams"].items()
    }


class Query:
    """Spark's calls of a query, which is started anew with other options."""

    def __init__(self, log: FakeLogs, **options: str) -> None:
        self.log = log
        self.reader = reader_of(log, startingOffsets="earliest", **options)
        self.position = self.reader.initialOffset()

    def restart(self, **options: str) -> None:
        self.reader = reader_of(self.log, startingOffsets="earliest", **options)

    def step(self, limit: ReadLimit = LIMITED) -> dict[tuple[str, int], tuple[int, int]]:
        """A micro-batch; what it reads."""
        end = self.reader.latestOffset(self.position, limit)
        planned = ranges(self.reader.partitions(self.position, end))
        self.reader.commit(self.position)
        self.position = end
        return {(part.stream, part.partition): (part.start, part.end) for part in planned}


class TestSubscription:
    def test_a_stream_that_is_added_is_read_from_where_its_log_begins(self) -> None:
        query = Query(two_streams(), subscribe="flights")
        assert query.step() == {("flights", 0): (0, 10)}
        query.restart(subscribe="flights,trains")
        assert query.step() == {}
        assert shown(query.position) == {"flights": [10], "trains": [3]}
        assert query.step() == {("trains", 0): (3, 8)}
        assert query.step() == {}

    def test_available_now_reads_what_is_added_to_its_end(self) -> None:
        query = Query(two_streams(), subscribe="flights")
        query.restart(subscribe="flights,trains")
        query.reader.prepareForTriggerAvailableNow()
        query.log.by_name["trains"].held[0] = (3, 99)
        assert [query.step() for _ in range(3)] == [{("flights", 0): (0, 10)}, {("trains", 0): (3, 8)}, {}]

    def test_a_stream_that_is_removed_is_an_error_or_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        query = Query(two_streams(), subscribe="flights,trains")
        query.restart(subscribe="trains")
        with pytest.raises(TidelogError, match="stream 'flights', which the checkpoint reads"):
            query.step()
        query.restart(subscribe="trains", failOnDataLoss="false")
        assert query.step() == {("trains", 0): (3, 8)}
        assert shown(query.position) == {"trains": [8]}
        assert "stream 'flights'" in caplog.text

    def test_a_deleted_stream_is_an_error_or_left_out_until_it_is_there_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        query = Query(two_streams(), subscribe="flights,trains")
        query.step()
        trains = query.log.by_name.pop("trains")
        with pytest.raises(TidelogError, match="stream 'trains', which the checkpoint reads") as caught:
            query.step()
        assert caught.value.code is Code.UNKNOWN_STREAM
        query.restart(subscribe="flights,trains", failOnDataLoss="false")
        assert [query.step() for _ in range(3)] == [{}, {}, {}]
        assert caplog.text.count("no stream ['trains'] is there") == 1
        query.log.by_name["trains"] = FakeStream({0: (0, 2)}, incarnation=trains.incarnation + 1)
        assert [query.step() for _ in range(2)] == [{}, {("trains", 0): (0, 2)}]

    def test_a_stream_that_does_not_exist_is_refused(self) -> None:
        query = Query(two_streams(), subscribe="flights")
        query.restart(subscribe="flights,buses")
        with pytest.raises(TidelogError, match="there is no stream 'buses': create it first, or correct subscribe"):
            query.step()
        with pytest.raises(TidelogError, match="there is no stream 'buses'"):
            Query(two_streams(), subscribe="buses", failOnDataLoss="false")

    def test_a_pattern_finds_streams_while_the_query_runs(self) -> None:
        query = Query(two_streams(), subscribePattern=".*s")
        query.reader._clock = clock = Clock()
        query.log.by_name["buses"] = FakeStream({0: (0, 3)})
        query.log.by_name["buses-old"] = FakeStream({0: (0, 3)})
        assert query.step() == {("flights", 0): (0, 10), ("trains", 0): (3, 8)}
        assert query.step() == {("buses", 0): (0, 3)}
        query.log.by_name["ships"] = FakeStream({0: (0, 3)})
        clock.now += 0.9
        assert query.step() == {}
        assert "ships" not in query.position["streams"], "the names are asked for once a second"
        clock.now += 0.1
        assert [query.step() for _ in range(2)] == [{}, {("ships", 0): (0, 3)}]
        assert set(query.position["streams"]) == {"flights", "trains", "buses", "ships"}

    def test_partitions_that_are_assigned_under_a_checkpoint(self) -> None:
        log = flights({0: (0, 10), 1: (4, 6)})
        query = Query(log, assign='{"flights": [0]}')
        assert query.step() == {("flights", 0): (0, 10)}
        query.restart(assign='{"flights": [0, 1]}')
        assert [query.step() for _ in range(2)] == [{}, {("flights", 1): (4, 6)}]
        query.restart(assign='{"flights": [1]}')
        with pytest.raises(TidelogError, match="partition flights/0, which the checkpoint reads"):
            query.step()

    def test_a_planned_micro_batch_is_read_though_the_subscription_has_changed(self) -> None:
        log = two_streams()
        reader = reader_of(log, subscribe="flights,trains", startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, LIMITED)
        planned = ranges(reader.partitions(start, end))
        assert ranges(reader_of(log, subscribe="trains").partitions(start, end)) == planned
        del log.by_name["flights"]
        with pytest.raises(TidelogError, match="stream 'flights', which the checkpoint reads"):
            reader_of(log, subscribe="trains").partitions(start, end)
        rest = reader_of(log, subscribe="trains", failOnDataLoss="false").partitions(start, end)
        assert ranges(rest) == planned[1:]

    def test_a_micro_batch_that_left_a_stream_out_is_planned_again_without_it(self) -> None:
        query = Query(two_streams(), subscribe="flights,trains")
        query.restart(subscribe="trains", failOnDataLoss="false")
        start = query.position
        query.step()
        del query.log.by_name["flights"]
        assert len(reader_of(query.log, subscribe="trains").partitions(start, query.position)) == 1


class TestPartitionsThatARepartitionLeftOver:
    LEFT = (Layout(version=1, partitions=2), Layout(version=2, partitions=1, generation=20, starts=(12, 4)))
    AGAIN = (*LEFT, Layout(version=3, partitions=2, generation=30, starts=(14,)))

    def read_to_its_end(self, **options: str) -> tuple[Query, FakeStream]:
        """Partition 1 has been left out, and read to its cutover."""
        query = Query(flights({0: (0, 12), 1: (0, 4)}), **options)
        stream = query.log.by_name["flights"]
        stream.layouts = self.LEFT
        assert query.step() == {("flights", 0): (0, 12), ("flights", 1): (0, 4)}
        return query, stream

    @pytest.mark.parametrize("order", ["partition", "key"])
    @pytest.mark.parametrize("strict", ["true", "false"])
    @pytest.mark.parametrize("has_restarted", [True, False])
    def test_a_query_goes_on_when_it_is_removed_and_made_anew(
        self, order: str, strict: str, has_restarted: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = {"order": order, "failOnDataLoss": strict, "groupId": "billing"}
        query, stream = self.read_to_its_end(**options)
        stream.held = {0: (0, 14)}
        assert query.step() == {("flights", 0): (12, 14)}
        assert offsets(query.position) == [14]
        assert query.log.commits[-1] == ("billing", {("flights", 0): 12}), "the group has nothing to do with it either"
        stream.layouts, stream.held, stream.lives = self.AGAIN, {0: (0, 15), 1: (0, 3)}, {1: 29}
        if has_restarted:
            query.restart(**options)
        assert [query.step() for _ in range(2)] == [{("flights", 0): (14, 15)}, {("flights", 1): (0, 3)}]
        assert not caplog.records

    @pytest.mark.parametrize("order", ["partition", "key"])
    @pytest.mark.parametrize("strict", ["true", "false"])
    @pytest.mark.parametrize("log_start", [0, 9])
    def test_a_query_that_stood_still_finds_it_made_anew(
        self, order: str, strict: str, log_start: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = {"order": order, "failOnDataLoss": strict, "groupId": "billing"}
        query, stream = self.read_to_its_end(**options)
        query.restart(**options)
        stream.layouts, stream.held, stream.lives = self.AGAIN, {0: (0, 15), 1: (log_start, 11)}, {1: 29}
        start = query.position
        assert query.step() == {("flights", 0): (12, 15)}
        assert query.log.commits[-1] == ("billing", {("flights", 0): 12}), "4 is no offset of its present life"
        planned = ranges(reader_of(query.log, **options).partitions(start, query.position))
        assert [(each.partition, each.start, each.end) for each in planned] == [(0, 12, 15)]
        assert query.step() == {("flights", 1): (log_start, 11)}
        assert not caplog.records

    def test_a_planned_micro_batch_that_does_not_read_it_is_repeated_without_it(self) -> None:
        query, stream = self.read_to_its_end()
        stream.held[0] = (0, 14)
        start = query.position
        query.step()
        del stream.held[1]
        for lives, held in ({}, {0: (0, 14)}), ({1: 29}, {0: (0, 14), 1: (0, 1)}):
            stream.lives, stream.held, stream.layouts = lives, held, self.AGAIN if lives else self.LEFT
            planned = ranges(reader_of(query.log).partitions(start, query.position))
            assert [(each.partition, each.start, each.end) for each in planned] == [(0, 12, 14)]

    def test_a_planned_micro_batch_that_reads_it_behind_its_cutover_is_an_error_or_read_without_it(self) -> None:
        query, stream = self.read_to_its_end()
        stream.held[1] = (0, 5)
        start = query.position
        assert query.step() == {("flights", 1): (4, 5)}
        del stream.held[1]
        with pytest.raises(TidelogError, match="partition flights/1, which the checkpoint reads"):
            reader_of(query.log).partitions(start, query.position)
        assert reader_of(query.log, failOnDataLoss="false").partitions(start, query.position) == []


class TestLogsThatShrink:
    def test_a_log_that_was_cut_is_told_at_once(self) -> None:
        query = Query(flights({0: (0, 10)}))
        query.step()
        query.log.by_name["flights"].held[0] = (0, 7)
        with pytest.raises(TidelogError, match="read up to 10 but its log ends at 7") as caught:
            query.step()
        assert caught.value.code is Code.LOG_TRUNCATED
        query.restart(failOnDataLoss="false")
        assert query.step() == {}
        query.log.by_name["flights"].held[0] = (0, 9)
        assert query.step() == {("flights", 0): (7, 9)}

    def test_a_micro_batch_that_was_planned_beyond_the_cut_is_told_at_once(self) -> None:
        log = flights({0: (0, 10), 1: (0, 4)})
        reader = reader_of(log, startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, LIMITED)
        log.by_name["flights"].held[0] = (0, 7)
        with pytest.raises(TidelogError, match="planned up to 10 of flights/0, whose log ends at 7 now") as caught:
            reader_of(log).partitions(start, end)
        assert caught.value.code is Code.LOG_TRUNCATED
        rest = ranges(reader_of(log, failOnDataLoss="false").partitions(start, end))
        assert [(each.partition, each.start, each.end) for each in rest] == [(0, 0, 7), (1, 0, 4)]
        log.by_name["flights"].log_ends[0] = 10
        assert ranges(reader_of(log).partitions(start, end))[0].end == 10, "a new leader commits the rest soon"

    def test_a_new_leader_that_does_not_know_yet_what_is_committed_is_waited_for(self) -> None:
        for strict in ("true", "false"):
            query = Query(flights({0: (0, 10)}), failOnDataLoss=strict)
            query.step()
            query.log.by_name["flights"].held[0] = (0, 7)
            query.log.by_name["flights"].log_ends[0] = 12
            assert query.step() == {}
            query.log.by_name["flights"].held[0] = (0, 12)
            assert query.step() == {("flights", 0): (10, 12)}


class TestLimits:
    def query(self, **options: str) -> tuple[Query, Clock]:
        query, clock = Query(flights({0: (0, 10)}), **options), Clock()
        query.reader._clock = clock
        return query, clock

    def grow(self, query: Query, count: int) -> None:
        start, end = query.log.by_name["flights"].held[0]
        query.log.by_name["flights"].held[0] = (start, end + count)

    def test_the_least_that_makes_a_micro_batch(self) -> None:
        query, clock = self.query(minOffsetsPerTrigger="5", maxTriggerDelay="1m")
        assert query.reader.getDefaultReadLimit() == ReadMinRows(5)
        assert query.step() == {("flights", 0): (0, 10)}, "the first one does not wait"
        self.grow(query, 4)
        assert query.step() == {}
        self.grow(query, 1)
        assert query.step() == {("flights", 0): (10, 15)}
        self.grow(query, 1)
        clock.now += 59
        assert query.step() == {}
        clock.now += 1
        assert query.step() == {("flights", 0): (15, 16)}, "the delay is over"
        self.grow(query, 1)
        assert query.step() == {}, "it begins anew with each micro-batch"
        assert query.step(ReadAllAvailable()) == {("flights", 0): (16, 17)}

    def test_the_least_and_the_most(self) -> None:
        query, _ = self.query(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="8")
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(8)
        assert query.step() == {("flights", 0): (0, 8)}
        assert query.step() == {}
        self.grow(query, 9)
        assert query.step() == {("flights", 0): (8, 16)}

    def test_the_most_bytes_are_shared_by_what_waits_in_each_partition(self) -> None:
        query = Query(flights({0: (0, 90), 1: (0, 10), 2: (5, 5)}), maxBytesPerTrigger="1000")
        query.log.record_bytes = {1: 110}
        assert query.reader.getDefaultReadLimit() == ReadMaxBytes(1000)
        # 900 and 1,100 bytes wait: 450 and 550 are read.
        assert query.step() == {("flights", 0): (0, 45), ("flights", 1): (0, 5)}
        asked = query.log.spans_asked
        assert query.step() == {("flights", 0): (45, 90), ("flights", 1): (5, 10)}
        assert query.log.spans_asked == asked + 1, "all of it fits"
        asked = query.log.spans_asked
        assert query.step() == {}
        assert query.log.spans_asked == asked, "nothing waits, and nothing is asked for"

    def test_a_record_that_is_larger_than_the_most_bytes_is_read(self) -> None:
        query = Query(flights({0: (0, 3)}), maxBytesPerTrigger="1")
        assert [query.step() for _ in range(3)] == [{("flights", 0): (n, n + 1)} for n in range(3)]
        both = Query(flights({0: (0, 3), 1: (0, 3)}), maxBytesPerTrigger="1")
        assert both.step() == {("flights", 0): (0, 1), ("flights", 1): (0, 1)}

    def test_a_log_that_is_cut_meanwhile_takes_no_position_back(self) -> None:
        """Or else records were read twice, and the next micro-batch would not find out."""
        query = Query(flights({0: (0, 900), 1: (0, 900)}), maxBytesPerTrigger="1000")
        query.step()
        spans, held = query.log.spans, query.log.by_name["flights"].held

        def cut(wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
            held[0] = (0, 20)
            return spans(wanted)

        query.log.spans = cut  # type: ignore[method-assign]
        assert query.step() == {("flights", 1): (50, 150)}
        with pytest.raises(TidelogError) as caught:
            query.step()
        assert caught.value.code is Code.LOG_TRUNCATED

    def test_bytes_and_offsets_limit_a_micro_batch_together(self) -> None:
        query = Query(flights({0: (0, 90)}), maxBytesPerTrigger="100", maxOffsetsPerTrigger="20")
        assert query.step() == {("flights", 0): (0, 10)}
        query.restart(maxBytesPerTrigger="1000", maxOffsetsPerTrigger="20")
        assert query.step() == {("flights", 0): (10, 30)}
        assert query.step(ReadAllAvailable()) == {("flights", 0): (30, 90)}

    def test_available_now_does_not_wait_for_the_least(self) -> None:
        query, _ = self.query(minOffsetsPerTrigger="500")
        query.step()
        self.grow(query, 1)
        query.reader.prepareForTriggerAvailableNow()
        assert query.step() == {("flights", 0): (10, 11)}

    def test_a_stream_that_is_found_does_not_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_reader, "LIST_SECONDS", 0.0)
        query = Query(flights({0: (0, 10)}), subscribePattern=".*", minOffsetsPerTrigger="5")
        query.step()
        query.log.by_name["trains"] = FakeStream({0: (3, 8)})
        assert query.step() == {}
        assert shown(query.position) == {"flights": [10], "trains": [3]}
        assert query.step() == {("trains", 0): (3, 8)}
        query.log.by_name["trains"].held[0] = (3, 12)
        assert query.step() == {}, "four are too few"


def test_how_far_it_is_behind_is_in_the_progress_report() -> None:
    query = Query(flights({0: (0, 10), 1: (0, 2)}), maxOffsetsPerTrigger="6")
    query.step()
    report = query.reader.reportLatestOffset()
    assert report is not None
    assert offsets(report) == [10, 2]
    behind = {name: value for name, value in report.items() if name.endswith("BehindLatest")}
    assert behind == {"minOffsetsBehindLatest": 1, "maxOffsetsBehindLatest": 5, "avgOffsetsBehindLatest": 3.0}


class TestGroup:
    def test_positions_are_committed_one_micro_batch_behind(self) -> None:
        query = Query(two_streams(), subscribe="flights,trains", groupId="billing")
        query.step()
        query.step()
        query.step()
        assert query.log.commits == [
            ("billing", {("flights", 0): 0, ("trains", 0): 3}),
            ("billing", {("flights", 0): 10, ("trains", 0): 8}),
        ]

    def test_offsets_of_an_earlier_life_are_not_committed(self) -> None:
        query = Query(two_streams(), subscribe="flights,trains", groupId="billing")
        query.step()
        query.log.commits.clear()
        older = {name: dict(at) for name, at in query.position["streams"].items()}
        older["trains"]["incarnation"] -= 1
        query.reader.commit({"v": 1, "streams": older})
        assert query.log.commits == [("billing", {("flights", 0): 10})]

    def test_a_group_with_members_keeps_its_positions_and_the_query_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        query = Query(flights({0: (0, 10)}), groupId="billing")
        query.log.has_members = True
        query.step()
        query.step()
        assert "the positions of the query are not committed: group 'billing' has 1 members" in caplog.text

    def test_nothing_is_committed_without_one(self) -> None:
        query = Query(flights({0: (0, 10)}))
        query.step()
        query.step()
        assert query.log.commits == []


def test_whatever_spark_asks_of_a_reader_that_was_refused_says_why() -> None:
    """Spark's runner shows an UnboundLocalError in place of what `streamReader` raises itself."""
    options = {"servers": "nats://127.0.0.1:1", "subscribe": "flights", "endingOffsets": "latest"}
    reader = TidelogDataSource(options).streamReader(spark_schema(include_headers=False))
    calls: list[Callable[[], object]] = [
        reader.initialOffset,
        reader.getDefaultReadLimit,
        lambda: reader.latestOffset({}, ReadAllAvailable()),
        lambda: reader.partitions({}, {}),
    ]
    for call in calls:
        with pytest.raises(TidelogError, match="have no meaning in a streaming query"):
            call()
    reader.stop()
