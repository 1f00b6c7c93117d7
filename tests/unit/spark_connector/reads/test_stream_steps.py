"""Whatever happens between micro-batches, a query reads each committed record once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMinRows

from spark_connector.reads import stream_reader
from spark_connector.reads.read_options import SourceOptions
from spark_connector.reads.stream_reader import TidelogStreamReader
from spark_connector.shared.arrow_rows import spark_schema
from tests.unit.spark_connector.reads.fake_log import FakeLogs, FakeStream

LIMITED = ReadMinRows(1)
"""Anything but ReadAllAvailable: the reader goes by its options."""
EVENTS = ("grow", "new leader", "new stream", "restart", "crash", "available now", "everything")


@dataclass
class World:
    """A query of a pattern, and the logs that it reads. Micro-batches are of at most seven offsets."""

    log: FakeLogs = field(default_factory=lambda: FakeLogs({"s0": FakeStream({0: (2, 5), 1: (0, 0)})}))
    read: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of each partition, the offset up to which it was read."""
    number: int = 1

    def __post_init__(self) -> None:
        self.restart()
        self.position = self.reader.initialOffset()

    def restart(self) -> None:
        options = {"servers": "nats://a:1", "subscribePattern": "s.*", "startingOffsets": "earliest"}
        parsed = SourceOptions.parse(options | {"maxOffsetsPerTrigger": "7"}).for_stream()
        self.reader = TidelogStreamReader(parsed, spark_schema(include_headers=False), lambda _: self.log)

    def happen(self, event: str, size: int) -> None:
        partition = size % 2
        stream = self.log.by_name[f"s{size % self.number}"]
        start, end = stream.held[partition]
        if event == "grow":
            stream.held[partition] = (start, max(end, stream.log_ends.pop(partition, 0)) + size)
        elif event == "new leader":
            known = max(start, end - size)
            stream.log_ends[partition] = max(end, stream.log_ends.get(partition, 0))
            stream.held[partition] = (start, known)
        elif event == "new stream":
            self.log.by_name[f"s{self.number}"] = FakeStream({0: (size, size + 3), 1: (0, size)})
            self.number += 1
        elif event == "restart":
            self.restart()
        elif event == "crash":
            end_of_batch = self.reader.latestOffset(self.position, LIMITED)
            self.restart()
            self._read(end_of_batch)
        elif event == "available now":
            self.restart()
            self.reader.prepareForTriggerAvailableNow()
            self.settle()
            self.restart()
        else:
            self.step(ReadAllAvailable())

    def step(self, limit: ReadLimit = LIMITED) -> bool:
        """A micro-batch; False: nothing has moved."""
        end = self.reader.latestOffset(self.position, limit)
        if end == self.position:
            return False
        self._read(end)
        return True

    def _read(self, end: dict[str, object]) -> None:
        for task in self.reader.partitions(self.position, end):
            for each in sorted(task.value, key=lambda part: part.start):
                held = self.log.by_name[each.stream]
                first = self.read.get((each.stream, each.partition), held.held[each.partition][0])
                assert each.start == first, "a gap, or a record that is read twice"
                known = max(held.held[each.partition][1], held.log_ends.get(each.partition, 0))
                assert each.end <= known, "beyond what was committed"
                self.read[each.stream, each.partition] = each.end
        self.position = end

    def settle(self) -> None:
        for _ in range(500):
            if not self.step():
                return
        raise AssertionError("it does not come to an end")


@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 12)), max_size=15))
@settings(max_examples=150, deadline=None)
def test_each_record_is_read_once(events: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_reader, "IDLE_SECONDS", 0.0)
        patch.setattr(stream_reader, "LIST_SECONDS", 0.0)
        world = World()
        for event, size in events:
            world.happen(event, size)
        for stream in world.log.by_name.values():
            for partition, (start, end) in stream.held.items():
                stream.held[partition] = (start, max(end, stream.log_ends.pop(partition, 0)))
        world.settle()
        for name, stream in world.log.by_name.items():
            for partition, (start, end) in stream.held.items():
                assert world.read.get((name, partition), start) == end
