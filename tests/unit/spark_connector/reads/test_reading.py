from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from spark_connector.reads.log_port import OffsetRange, PartitionName, Span, StreamExtent
from spark_connector.reads.read_task import JOIN_ROWS, RANGES_AHEAD, TaskSettings, read_ranges
from spark_connector.shared.arrow_rows import spark_schema
from tests.unit.wire.test_errors import MALFORMED
from wire.batch import BatchBuilder, RecordBatch, control_batch
from wire.errors import Code, TidelogError
from wire.types import Incarnation, LeaderEpoch, Offset, StreamName


@dataclass
class OneLog:
    """A partition in memory; `log_start` may move while it is read."""

    batches: list[RecordBatch] = field(default_factory=list)
    log_start: int = 0
    loses_at: tuple[int, int] | None = None
    """(offset, new log start): the effect of retention just before that offset is fetched."""

    @property
    def end(self) -> int:
        return int(self.batches[-1].header.end_offset) if self.batches else 0

    def add(self, count: int, *, control: bool = False) -> None:
        if control:
            encoded = control_batch(1, 1, b"")
        else:
            builder = BatchBuilder()
            builder.add_values([b"%d" % (self.end + i) for i in range(count)])
            encoded = builder.build(1)
        parts, _ = encoded.stamp(Offset(self.end), LeaderEpoch(1))
        self.batches.append(RecordBatch.decode(b"".join(bytes(part) for part in parts)))

    def streams(self) -> list[StreamName]:
        raise NotImplementedError

    def extents(self, streams: Collection[StreamName]) -> Mapping[StreamName, StreamExtent]:
        raise NotImplementedError

    def offsets_at(
        self, times: Mapping[StreamName, Mapping[int, int]]
    ) -> Mapping[StreamName, Mapping[int, Offset | None]]:
        raise NotImplementedError

    def spans(self, wanted: Mapping[PartitionName, tuple[Offset, int]]) -> Mapping[PartitionName, Span]:
        raise NotImplementedError

    def commit_group(self, group: str, offsets: Mapping[PartitionName, Offset]) -> None:
        raise NotImplementedError

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        position = wanted.start
        for batch in self.batches:
            if self.loses_at is not None and self.loses_at[0] <= position:
                self.log_start = self.loses_at[1]
            if position < self.log_start:
                raise TidelogError(Code.OFFSET_BEFORE_LOG, "gone", {"log_start": str(self.log_start)})
            if batch.header.end_offset > position:
                position = batch.header.end_offset
                yield batch

    def close(self) -> None:
        pass


def task(log: OneLog, start: int, end: int, *, strict: bool = True) -> list[pa.RecordBatch]:
    wanted = OffsetRange(StreamName("flights"), Incarnation(1), 3, Incarnation(1), Offset(start), Offset(end))
    return list(read_ranges(log, [wanted], spark_schema(include_headers=False), TaskSettings(1 << 20, strict)))


def offsets(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("start", "end"), [(0, 31), (0, 30), (3, 29), (10, 20), (12, 13), (19, 21), (20, 21), (30, 31)]
)
def test_exactly_the_range_whatever_the_batches(start: int, end: int) -> None:
    log = OneLog()
    log.add(10)
    log.add(10)
    log.add(1, control=True)
    log.add(10)
    found = task(log, start, end)
    assert offsets(found) == [offset for offset in range(start, end) if offset != 20]
    values = [value for batch in found for value in batch.column("value").to_pylist()]
    assert values == [b"%d" % offset for offset in offsets(found)]
    assert all(set(batch.column("partition").to_pylist()) == {3} for batch in found)


def test_small_batches_are_joined_and_large_ones_are_views() -> None:
    log = OneLog()
    for _ in range(100):
        log.add(3)
    assert [batch.num_rows for batch in task(log, 0, 300)] == [300]
    log = OneLog()
    log.add(JOIN_ROWS)
    log.add(JOIN_ROWS + 5)
    found = task(log, 0, log.end)
    assert [batch.num_rows for batch in found] == [JOIN_ROWS, JOIN_ROWS + 5]
    for batch, source in zip(found, log.batches, strict=True):
        mine, theirs = batch.column("value").buffers(), source.to_arrow().column("value").buffers()
        assert [buffer.address for buffer in mine[1:]] == [buffer.address for buffer in theirs[1:]]


def test_records_lost_under_the_task() -> None:
    def losing() -> OneLog:
        log = OneLog(loses_at=(10, 25))
        for _ in range(4):
            log.add(10)
        return log

    with pytest.raises(TidelogError, match="flights/3 is to be read from 10 but its log begins at 25") as caught:
        task(losing(), 0, 40)
    assert caught.value.code is Code.OFFSET_BEFORE_LOG
    assert offsets(task(losing(), 0, 40, strict=False)) == [*range(10), *range(25, 40)]
    assert offsets(task(losing(), 0, 22, strict=False)) == [*range(10)]


class GoneLog(OneLog):
    """The stream is deleted after the first batch was read."""

    code = Code.UNKNOWN_STREAM

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        yield self.batches[0]
        raise TidelogError(self.code, "there is no stream 'flights'")


@pytest.mark.parametrize("code", [Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION, Code.PARTITION_RETIRED])
def test_a_stream_that_is_deleted_under_the_task(code: Code, caplog: pytest.LogCaptureFixture) -> None:
    log = GoneLog()
    log.code = code
    log.add(3)
    log.add(3)
    with pytest.raises(TidelogError, match="there is no stream"):
        task(log, 0, 6)
    assert sum(batch.num_rows for batch in task(log, 0, 6, strict=False)) == 3
    assert "is not read to its end: there is no stream 'flights' (failOnDataLoss=false)" in caplog.text


class CutLog(OneLog):
    """Its last records are gone: whoever asks for them hears so, before the ones that are there were handed out."""

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        if wanted.end > self.end:
            raise TidelogError(Code.LOG_TRUNCATED, f"{wanted} is cut", {"offset": str(self.end)})
        yield from super().fetch(wanted, max_bytes)


def test_the_end_of_a_log_that_was_cut() -> None:
    log = CutLog()
    log.add(10)
    log.add(10)
    with pytest.raises(TidelogError, match="is cut"):
        task(log, 5, 30)
    assert offsets(task(log, 5, 30, strict=False)) == [*range(5, 20)]
    assert offsets(task(log, 20, 30, strict=False)) == []


@pytest.mark.parametrize("log_start", [*MALFORMED, None, "1"])
def test_a_log_start_that_makes_no_sense_is_the_error_that_it_came_with(log_start: str | None) -> None:
    class Refusing(OneLog):
        def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
            details = {} if log_start is None else {"log_start": log_start}
            raise TidelogError(Code.OFFSET_BEFORE_LOG, "gone", details)

    with pytest.raises(TidelogError, match="gone"):
        task(Refusing(), 3, 9, strict=False)


class ManyLogs(OneLog):
    """Partitions with the same content; knows which of them are being fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: set[int] = set()
        self.most_open = 0

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        batches = super().fetch(wanted, max_bytes)
        log = self

        class Fetch:
            def __init__(self) -> None:
                log.open.add(wanted.partition)
                log.most_open = max(log.most_open, len(log.open))

            def __iter__(self) -> Iterator[RecordBatch]:
                return batches

            def close(self) -> None:
                log.open.discard(wanted.partition)

        return Fetch()  # type: ignore[return-value]


def ranges(partitions: int, start: int, end: int) -> list[OffsetRange]:
    life = Incarnation(1)
    return [
        OffsetRange(StreamName("flights"), life, number, life, Offset(start), Offset(end))
        for number in range(partitions)
    ]


def test_several_ranges_one_after_the_other_and_the_next_ones_fetched_ahead() -> None:
    log = ManyLogs()
    for _ in range(4):
        log.add(10)
    found = list(read_ranges(log, ranges(20, 5, 38), spark_schema(include_headers=False), TaskSettings(1 << 20, True)))
    rows = [
        row for batch in found for row in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]
    assert rows == [(partition, offset) for partition in range(20) for offset in range(5, 38)]
    assert len(found) == 1, "small batches of several partitions are joined"
    assert (log.most_open, log.open) == (RANGES_AHEAD, set())


def test_a_task_that_is_left_early_gives_up_what_it_fetches() -> None:
    log = ManyLogs()
    log.add(JOIN_ROWS)
    batches = read_ranges(log, ranges(20, 0, JOIN_ROWS), spark_schema(include_headers=False), TaskSettings(1, True))
    next(iter(batches))
    assert log.open
    batches.close()
    assert log.open == set()
