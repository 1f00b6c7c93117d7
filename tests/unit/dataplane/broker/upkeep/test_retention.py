"""The job: segments end by age, and old ones go, on a real log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataplane.broker.upkeep import retention
from dataplane.broker.upkeep.housekeeping import Progress, Visit
from dataplane.broker.upkeep.retention import SETTLED_MS, Retention
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.segments.retention_limits import NS_PER_MS
from dataplane.log.storage.files import REAL_FILES
from wire.batch import BatchBuilder
from wire.stream_config import StreamConfig
from wire.types import Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

HOUR_MS = 3_600_000
KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


class House:
    """One log, its clock, and the housekeeping's visits to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.job = Retention()
        self.now_ms = 1_700_000_000_000
        self.agrees = True
        """Most brokers agree on the time."""
        self.high_watermark: int | None = None
        self.purged_end = 0
        self.counted: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        self.log, report = PartitionLog.open(self.directory, LogConfig(segment_bytes=1000, tail_bytes=0))
        assert report.damaged is None

    def append(self, number: int = 1, *, at_ms: int | None = None) -> None:
        timestamp = (self.now_ms if at_ms is None else at_ms) * NS_PER_MS
        for _ in range(number):
            builder = BatchBuilder()
            builder.add_record(b"x" * 100, timestamp=timestamp)
            parts, header = builder.build(0).stamp(self.log.log_end_offset, LeaderEpoch(1), self.now_ms * NS_PER_MS)
            self.log.append(parts, [header])

    def visit(self, **config: int) -> Visit:
        end = self.log.log_end_offset
        return Visit(
            key=KEY,
            log=self.log,
            config=StreamConfig(**{"segment_max_age_ms": 0, **config}),  # type: ignore[arg-type]
            high_watermark=end if self.high_watermark is None else Offset(self.high_watermark),
            purged_end=Offset(self.purged_end),
            time_ns=self.now_ms * NS_PER_MS,
            agreed_ns=self.now_ms * NS_PER_MS if self.agrees else None,
            elapsed_ns=self.now_ms * NS_PER_MS,
            stop=threading.Event(),
        )

    def run(self, **config: int) -> int:
        """Rounds until nothing is due, or twenty; the number of steps."""
        for steps in range(20):
            visit = self.visit(**config)
            if not self.job.is_due(visit):
                return steps
            self.step(visit)
        return 20

    def step(self, visit: Visit) -> Progress:
        progress = self.job.run(visit)
        for name, amount in progress.counted.items():
            self.counted[name] = self.counted.get(name, 0) + amount
        if progress.then is not None:
            progress.then()
        return progress

    @property
    def offsets(self) -> tuple[int, int]:
        return self.log.log_start_offset, self.log.log_end_offset


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "log")
    yield house
    house.log.close()


def test_without_limits_there_is_nothing_to_do(house: House) -> None:
    house.append(20)
    house.log.sync()
    house.step(house.visit())
    assert house.run() == 0


def test_old_segments_go_and_are_counted_and_told(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house.append(30)
    old_end = house.log.log_end_offset
    house.now_ms += HOUR_MS
    house.append(20)
    size = house.log.size_bytes
    house.run(retention_max_age_ms=HOUR_MS // 2)
    start, end = house.offsets
    assert old_end - 10 < start <= old_end
    assert end == 50
    assert house.counted["retention_bytes"] == size - house.log.size_bytes
    assert house.counted["retention_segments"] > 1
    assert f"offsets 0 to {start - 1}" in caplog.text
    assert f"older than retention_max_age_ms={HOUR_MS // 2}); the log starts at {start} now" in caplog.text


def test_what_an_operator_deleted_goes_without_any_limit(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    house.append(50)
    house.purged_end = 33
    house.run()
    start, end = house.offsets
    assert 20 < start <= 33
    assert end == 50
    assert "deleted); the log starts at" in caplog.text
    house.high_watermark = 40
    house.purged_end = 50
    house.run()
    assert start < house.log.log_start_offset <= 40, "each replica waits until its own HW has come so far"
    house.high_watermark = None
    house.run()
    assert house.offsets == (50, 50), "the last segment ends, and goes too"
    assert house.log.size_bytes == 0
    assert "segments_ended_by_age" not in house.counted
    house.append(3)
    house.run()
    assert house.offsets == (50, 53)


def test_nothing_uncommitted_goes(house: House) -> None:
    house.append(50)
    house.high_watermark = 20
    house.now_ms += HOUR_MS
    house.run(retention_max_age_ms=1)
    start, end = house.offsets
    assert 0 < start <= 20
    assert end == 50


def test_an_idle_log_ends_up_without_records_and_keeps_its_end(house: House) -> None:
    house.append(25)
    house.now_ms += HOUR_MS
    house.run(retention_max_age_ms=HOUR_MS - 1)
    assert house.offsets == (25, 25)
    assert house.log.size_bytes == 0
    assert len(list(house.directory.glob("*.log"))) == 1
    house.log.close()
    house.open()
    assert house.offsets == (25, 25)
    house.append(1)
    assert house.offsets == (25, 26)


def test_the_last_segment_of_an_idle_log_stays_while_it_is_not_committed(house: House) -> None:
    house.append(3)
    house.high_watermark = 2
    house.now_ms += HOUR_MS
    house.run(retention_max_age_ms=1)
    assert house.offsets == (0, 3)
    assert len(house.log.segments) == 1


class TestEndsByAge:
    def test_a_segment_ends_when_its_first_record_is_old_enough(self, house: House) -> None:
        house.append(2)
        house.run(segment_max_age_ms=HOUR_MS)
        house.now_ms += HOUR_MS - 1
        house.append(1)
        house.run(segment_max_age_ms=HOUR_MS)
        assert len(house.log.segments) == 1
        house.now_ms += 1
        house.run(segment_max_age_ms=HOUR_MS)
        assert [segment.base_offset for segment in house.log.segments] == [0, 3]
        assert house.log.segments[0].is_finished
        assert house.counted == {"segments_ended_by_age": 1}
        assert house.run(segment_max_age_ms=HOUR_MS) == 0, "an empty segment is not old"
        house.append(1)
        house.run(segment_max_age_ms=HOUR_MS)
        assert len(house.log.segments) == 2

    def test_an_import_of_old_records_does_not_end_a_segment_at_every_visit(self, house: House) -> None:
        for _ in range(3):
            house.append(1, at_ms=house.now_ms - 1000 * HOUR_MS)
            house.run(segment_max_age_ms=HOUR_MS)
            house.now_ms += SETTLED_MS // 3 - 1
        assert len(house.log.segments) == 1
        house.now_ms += 3
        house.run(segment_max_age_ms=HOUR_MS)
        assert len(house.log.segments) == 2

    def test_a_first_record_from_the_future_counts_from_when_it_was_seen(self, house: House) -> None:
        house.append(1, at_ms=house.now_ms + 1000 * HOUR_MS)
        house.run(segment_max_age_ms=HOUR_MS)
        house.now_ms += HOUR_MS
        house.run(segment_max_age_ms=HOUR_MS)
        assert len(house.log.segments) == 2

    def test_not_while_somebody_is_busy_with_the_disk(self, house: House) -> None:
        house.append(2)
        with house.log._state.io_lock:
            assert not house.log.roll()
        assert house.log.roll()
        assert not house.log.roll()


def test_a_timestamp_in_the_future_does_not_hold_up_retention_for_ever(house: House) -> None:
    house.append(10, at_ms=house.now_ms + 1000 * HOUR_MS)
    house.append(20)
    house.log.sync()
    house.run(retention_max_age_ms=HOUR_MS)
    assert house.offsets[0] == 0
    house.now_ms += 2 * HOUR_MS
    house.run(retention_max_age_ms=HOUR_MS)
    assert house.offsets == (30, 30)


def test_a_step_removes_no_more_than_it_may(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "REMOVED_IN_A_STEP", 2)
    house.append(40)
    before = len(house.log.segments)
    progress = house.step(house.visit(retention_max_bytes=1))
    assert progress.more
    assert len(house.log.segments) == before - 2
    house.run(retention_max_bytes=1)
    assert len(house.log.segments) == 1


def test_a_disk_that_does_not_remove_ends_the_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.append(40)

    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(type(REAL_FILES), "remove", refuse)
    with pytest.raises(Exception, match="removing old segments"):
        house.step(house.visit(retention_max_bytes=1))
    assert house.log.refusal is not None


def test_while_the_time_is_not_agreed_nothing_goes_for_its_age_and_all_else_does(house: House) -> None:
    """A broker whose clock is eight days ahead of those of most others."""
    house.append(40)
    house.log.sync()
    house.agrees, house.now_ms = False, house.now_ms + 8 * 24 * HOUR_MS
    house.run(retention_max_age_ms=HOUR_MS, segment_max_age_ms=HOUR_MS)
    assert house.offsets == (0, 40)
    assert house.log.segments[-1].size
    house.run(retention_max_age_ms=HOUR_MS, retention_max_messages=20)
    assert house.offsets[0] > 0
    house.purged_end = 40
    house.run(retention_max_age_ms=HOUR_MS)
    assert house.offsets == (40, 40)


def test_the_files_own_dates_do_not_count(house: House) -> None:
    """A broker wrote them while its clock was eight days behind."""
    house.append(10, at_ms=house.now_ms + 1000 * HOUR_MS)
    house.append(20)
    house.log.sync()
    for segment in house.log.segments:
        os.utime(segment.path, ns=((house.now_ms - 8 * 24 * HOUR_MS) * NS_PER_MS,) * 2)
    house.run(retention_max_age_ms=HOUR_MS)
    assert house.offsets[0] == 0
