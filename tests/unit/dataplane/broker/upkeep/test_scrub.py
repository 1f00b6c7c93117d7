"""The scrubber reads every synced byte of every log again, at a bounded rate, and finds damage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.upkeep import scrub
from dataplane.broker.upkeep.housekeeping import Progress, Visit
from dataplane.broker.upkeep.scrub import STEP_BYTES, Scrubber
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.files import RealFiles
from tests.unit.dataplane.log.compacting import append, compact
from wire.batch import BatchBuilder
from wire.errors import CorruptData
from wire.stream_config import StreamConfig
from wire.types import Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

RATE = 1_000_000


class Reads(RealFiles):
    """Counts the bytes read."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, handle: int, size: int, position: int) -> bytes:
        data = super().read(handle, size, position)
        self.bytes += len(data)
        return data


class House:
    """Logs, their clock, and the housekeeping's visits to them."""

    def __init__(self, directory: Path, rate: int = RATE, interval: float = 0.0) -> None:
        self.directory = directory
        self.files = Reads()
        settings = StorageSettings(scrub_bytes_per_second=rate, scrub_interval=interval)
        self.job = Scrubber(settings, Random(1))
        self.now = 1000.0
        self.stop = threading.Event()

    def log(self, name: str, records: int = 60, *, synced: bool = True) -> PartitionLog:
        log, _ = PartitionLog.open(self.directory / name, LogConfig(segment_bytes=2000, tail_bytes=0), files=self.files)
        for _ in range(records):
            builder = BatchBuilder()
            builder.add_record(b"x" * 100, timestamp=1)
            parts, header = builder.build(0).stamp(log.log_end_offset, LeaderEpoch(1))
            log.append(parts, [header])
        if synced:
            log.sync()
        return log

    def visit(self, log: PartitionLog) -> Visit:
        return Visit(
            key=PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1)),
            log=log,
            config=StreamConfig(),
            high_watermark=log.log_end_offset,
            time_ns=int(self.now * 1e9),
            agreed_ns=None,
            elapsed_ns=int(self.now * 1e9),
            stop=self.stop,
        )

    def step(self, log: PartitionLog) -> Progress | None:
        visit = self.visit(log)
        return self.job.run(visit) if self.job.is_due(visit) else None

    def steps(self, *logs: PartitionLog, until: Callable[[], bool], seconds: int = 1000) -> int:
        """Bytes read, visiting each log every second."""
        read = 0
        for _ in range(seconds):
            for log in logs:
                progress = self.step(log)
                read += progress.counted["scrubbed_bytes"] if progress is not None else 0
            if until():
                return read
            self.now += 1
        raise AssertionError("never")


def flip(log: PartitionLog, segment: int, at: int = -20) -> None:
    path = log.segments[segment].path
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("number", range(5))
def test_damage_is_found_wherever_it_is(tmp_path: Path, number: int) -> None:
    house = House(tmp_path)
    log = house.log("a")
    assert len(log.segments) >= 5
    flip(log, (0, 1, len(log.segments) // 2, -2, -1)[number])
    with pytest.raises(CorruptData, match="is damaged at byte"):
        house.steps(log, until=lambda: house.job.completed_at_ns(log) is not None)


def test_a_pass_reads_every_byte_once(tmp_path: Path) -> None:
    house = House(tmp_path)
    log = house.log("a")
    assert house.steps(log, until=lambda: house.job.completed_at_ns(log) is not None) == log.size_bytes


def test_unsynced_bytes_are_left_alone(tmp_path: Path) -> None:
    house = House(tmp_path)
    log = house.log("a", synced=False)
    flip(log, 1)
    assert house.steps(log, until=lambda: house.job.completed_at_ns(log) is not None) == 0


def test_the_rate_is_kept_over_all_logs(tmp_path: Path) -> None:
    house = House(tmp_path, rate=2000)
    logs = [house.log(name) for name in "abc"]
    house.files.bytes = 0
    before = house.now
    read = house.steps(*logs, until=lambda: all(house.job.completed_at_ns(log) is not None for log in logs))
    assert read == sum(log.size_bytes for log in logs)
    # The first step may be a whole one, the time for it passes afterwards.
    assert read - STEP_BYTES <= 2000 * (house.now - before)
    house.now += 3600  # nothing is saved up
    assert house.job._allowed <= STEP_BYTES


def test_no_log_is_read_twice_before_all_were_read_once(tmp_path: Path) -> None:
    house = House(tmp_path, rate=500)
    first, second = house.log("a"), house.log("b")
    house.steps(first, second, until=lambda: house.job.completed_at_ns(first) is not None)
    done = house.job.completed_at_ns(first)
    house.steps(first, second, until=lambda: house.job.completed_at_ns(second) is not None)
    assert house.job.completed_at_ns(first) == done


def test_a_log_that_is_not_visited_any_more_holds_up_no_other(tmp_path: Path) -> None:
    house = House(tmp_path)
    damaged, sound = house.log("a"), house.log("b")
    house.step(sound)
    house.job.is_due(house.visit(damaged))  # it is known
    house.steps(sound, until=lambda: house.job._logs[sound].passes >= 3)


def test_a_pass_begins_no_sooner_than_the_interval_after_the_last(tmp_path: Path) -> None:
    house = House(tmp_path, interval=100.0)
    log = house.log("a")
    house.steps(log, until=lambda: house.job.completed_at_ns(log) is not None)
    house.now += 99
    assert house.step(log) is None
    house.now += 2
    assert house.step(log) is not None


def test_it_stops_when_it_is_told_to(tmp_path: Path) -> None:
    house = House(tmp_path)
    log = house.log("a")
    visit = house.visit(log)
    assert house.job.is_due(visit)
    house.stop.set()
    progress = house.job.run(visit)
    assert progress.counted["scrubbed_bytes"] < 2000


def test_a_cut_log_and_removed_segments_are_no_damage(tmp_path: Path) -> None:
    house = House(tmp_path)
    log = house.log("a")
    house.step(log)
    log.truncate(Offset(20))
    log.remove_before(Offset(15))
    house.steps(log, until=lambda: house.job._logs[log].passes >= 3)


def test_off(tmp_path: Path) -> None:
    house = House(tmp_path, rate=0)
    assert house.step(house.log("a")) is None


def test_a_segment_that_is_compacted_while_it_is_read_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte position is one of the old file: in the new one no batch need begin there."""
    monkeypatch.setattr(scrub, "STEP_BYTES", 300)
    house = House(tmp_path)
    log, _ = PartitionLog.open(tmp_path / "keyed", LogConfig(segment_bytes=2000, tail_bytes=0), files=house.files)
    for number in range(40):
        append(log, [(b"key", b"x" * (50 + number))])
    log.sync()
    while house.job._logs.get(log) is None or house.job._logs[log].position == 0:
        assert house.step(log) is not None
        house.now += 1
    house.job._logs[log].segment = 0
    compact(log)
    while house.job._logs[log].passes == 0:
        house.step(log)
        house.now += 1
    assert log.refusal is None
