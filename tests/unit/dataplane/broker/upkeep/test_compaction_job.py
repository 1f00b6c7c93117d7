"""The job: which log is compacted, when, and in steps of bounded length."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.upkeep import compaction_job
from dataplane.broker.upkeep.compaction_job import RETRY_NS, Compaction
from dataplane.broker.upkeep.housekeeping import Progress, Visit
from dataplane.encryption.keyring import Keyring
from dataplane.log.compaction.compaction_pass import CompactionPass
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.segments.retention_limits import NS_PER_MS
from dataplane.log.storage.checkpoints import TEMPORARY_SUFFIX
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.compacting import append, rows, stored
from wire.batch import CompactableBatch, parse_header
from wire.batch.header import MAX_BODY_BYTES
from wire.stream_config import StreamConfig
from wire.types import Incarnation, Offset, PartitionKey, StreamName

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=200, tail_bytes=200)


class House:
    """A few logs, their clock, and the housekeeping's visits to them."""

    def __init__(self, **settings: float) -> None:
        self.disk = SimDisk()
        fast = {"compaction_bytes_per_second": 0, **settings}
        self.job = Compaction(StorageSettings(**fast), Keyring(), lambda: 1 << 20)  # type: ignore[arg-type]
        self.logs: dict[str, PartitionLog] = {}
        self.now_ms = 1_700_000_000_000
        self.agrees = True
        """Most brokers agree on the time."""
        self.counted: dict[str, int] = {}
        self.stop = threading.Event()

    def log(self, name: str, keys: str) -> PartitionLog:
        log, _ = PartitionLog.open(Path("/") / name, CONFIG, files=self.disk)
        self.logs[name] = log
        self.fill(name, keys)
        return log

    def fill(self, name: str, keys: str) -> None:
        for key in keys:
            append(self.logs[name], [(key.encode(), None if key == "-" else b"v" * 60)])
        self.logs[name].sync()

    def visit(self, name: str, *, compact: bool = True, tombstone_retention_ms: int = 60_000) -> Visit:
        return Visit(
            key=PartitionKey(StreamName(name), Incarnation(1), 0, Incarnation(1)),
            log=self.logs[name],
            config=StreamConfig(compact=compact, tombstone_retention_ms=tombstone_retention_ms),
            high_watermark=self.logs[name].log_end_offset,
            time_ns=self.now_ms * NS_PER_MS,
            agreed_ns=self.now_ms * NS_PER_MS if self.agrees else None,
            elapsed_ns=self.now_ms * NS_PER_MS,
            stop=self.stop,
        )

    def round(self) -> list[str]:
        """The logs that were due, and got one step each."""
        due = []
        for name in self.logs:
            visit = self.visit(name)
            if self.job.is_due(visit):
                due.append(name)
                self.step(visit)
        return due

    def step(self, visit: Visit) -> Progress:
        progress = self.job.run(visit)
        for name, amount in progress.counted.items():
            self.counted[name] = self.counted.get(name, 0) + amount
        if progress.then is not None:
            progress.then()
        return progress


@pytest.fixture
def house() -> House:
    return House()


def test_only_compacted_streams_whose_logs_are_dirty(house: House) -> None:
    house.log("a", "xyxyxyxyxyxy")
    assert not house.job.is_due(house.visit("a", compact=False))
    assert house.round() == ["a"]
    assert house.round() == []
    assert house.counted["compaction_passes"] == 1
    assert house.counted["compaction_records"] > 5
    assert house.counted["compaction_segments"] > 1
    assert house.counted["compaction_bytes"] > 500
    house.log("b", "x")
    assert house.round() == []


def test_compacted_batches_are_not_served_from_memory_in_their_old_form(house: House) -> None:
    log, _ = PartitionLog.open(Path("/a"), LogConfig(segment_bytes=600, tail_bytes=1 << 20), files=house.disk)
    house.logs["a"] = log
    house.fill("a", "xyxyxyxyxyxy")
    end = log.log_end_offset
    assert log.read(Offset(0), max_bytes=100, end_offset=end)
    house.round()
    clean_end = log.compaction_point.clean_end
    assert log.read(Offset(clean_end - 1), max_bytes=100, end_offset=end) is None
    assert log.read(clean_end, max_bytes=100, end_offset=end)
    house.fill("a", "xy")
    assert log.read(end, max_bytes=100, end_offset=log.log_end_offset)


def test_not_before_enough_of_it_is_dirty() -> None:
    house = House(compaction_min_dirty_ratio=0.5)
    house.log("a", "abcdefghijklmnopqrstuvwxyz")
    assert house.round() == ["a"]
    house.fill("a", "abcdefgh")
    assert house.round() == []
    house.fill("a", "abcdefghijklmnopqrstuvwxyz")
    assert house.round() == ["a"]


def test_the_dirtiest_first_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    house = House(compaction_min_dirty_ratio=0.1)
    house.log("half", "abcdefghijklm")
    while house.round():
        pass
    house.fill("half", "abcdefghijklm")
    house.log("all", "xyxyxyxyxyxyx")
    house.job.is_due(house.visit("all"))
    steps = []
    while due := house.round():
        assert len(due) == 1
        steps += due
    assert steps == sorted(steps)
    assert set(steps) == {"all", "half"}
    assert steps.count("half") > 3


def test_a_batch_that_nats_does_not_carry_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version made batches larger than they were; somebody asks for one of them."""
    house = House(compaction_min_dirty_ratio=0.9)
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=500, tail_bytes=200)
    log, _ = PartitionLog.open(Path("/a"), config, files=house.disk)
    house.logs["a"] = log
    append(log, [(b"%d" % key, b"v" * 20) for key in range(200)])
    append(log, [(b"17", b"newer")])
    append(log, [(b"end of a segment", b"." * 10_000)])
    log.sync()
    room = parse_header(stored(log)).size
    keep = CompactableBatch.keep
    with monkeypatch.context() as patched:
        patched.setattr(CompactableBatch, "keep", lambda batch, kept, _=None: keep(batch, kept, MAX_BODY_BYTES))
        assert house.round() == ["a"]
    assert parse_header(stored(log)).size > room
    house.job = Compaction(StorageSettings(compaction_bytes_per_second=0), Keyring(), lambda: room)
    assert house.round() == []
    log.swapping.has_too_large_batch = True
    assert house.round() == ["a"]
    assert parse_header(stored(log)).size <= room
    log.swapping.has_too_large_batch = True  # as if that had not helped: not again at once
    assert house.round() == []


def test_a_pass_is_given_up_when_the_stream_is_compacted_no_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    log = house.log("a", "xyxyxyxyxyxy")
    for _ in range(4):
        assert house.step(house.visit("a")).more
    visit = house.visit("a", compact=False)
    assert house.job.is_due(visit)
    assert not house.step(visit).more
    assert not house.job.is_due(visit)
    assert log.compaction_point.clean_end == 0
    assert not [name for name in house.disk.names(log.directory) if name.endswith(TEMPORARY_SUFFIX)]


def test_a_log_that_is_not_visited_any_more_holds_up_no_other(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    house.log("a", "xyxyxyxyxyxy")
    house.log("b", "xyxyxyxyxyxy")
    assert house.round() == ["a"]
    del house.logs["a"]
    assert house.round() == []
    house.now_ms += 61_000
    assert house.round() == ["b"]


def test_a_dirtier_log_whose_replica_failed_holds_up_no_other() -> None:
    """It is still open, and is not visited any more."""
    house = House(compaction_min_dirty_ratio=0.1)
    house.log("less", "abcdefghijklm")
    house.round()
    house.fill("less", "abcdefghijklm")
    house.log("more", "xyxyxyxyxyxyx")
    assert house.job.is_due(house.visit("more"))
    failed = house.logs.pop("more")
    assert house.round() == []
    house.now_ms += 61_000
    assert house.round() == ["less"]
    assert failed.refusal is None


def test_tombstones_are_a_reason_when_their_time_has_come(house: House) -> None:
    log = house.log("a", "xyx-xyabcdefghijk")
    assert house.round() == ["a"]
    house.now_ms += 59_000
    assert house.round() == []
    house.now_ms += 1_000
    assert house.round() == ["a"]
    assert not any(row.value is None for row in rows(stored(log)))
    house.now_ms += 600_000
    assert house.round() == []


def test_a_pass_that_only_waits_for_tombstones_delays_no_other(house: House) -> None:
    """It removes nothing, and from now on the time of the tombstones runs."""
    log = house.log("a", "xyxyxyabcdefghijk")
    assert house.round() == ["a"]
    settled_end = log.compaction_point.settled_end
    house.fill("a", "x-xyxyabcdefghijkabcdefghijk")
    assert house.round() == ["a"]
    house.now_ms += 60_000
    removed = house.counted["compaction_records"]
    assert house.round() == ["a"]
    assert log.compaction_point.settled_end > settled_end
    assert house.counted["compaction_records"] == removed
    house.fill("a", "xyxyxyabcdefghijkabcdefghijk")
    assert house.round() == ["a"]


def test_a_pass_whose_log_is_cut_meanwhile_begins_anew(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    log = house.log("a", "xyxyxyxyxyxy")
    for _ in range(4):
        assert house.step(house.visit("a")).more
    log.drop_all(Offset(0))
    while house.job.is_due(house.visit("a")):
        house.step(house.visit("a"))
    assert "compaction_passes" not in house.counted
    house.fill("a", "xyxyxyxyxyxy")
    assert house.round() == ["a"]


def test_no_room_for_a_new_segment_is_no_damage(house: House) -> None:
    log = house.log("a", "xyxyxyxyxyxy")
    capacity, house.disk.capacity = house.disk.capacity, 0
    assert house.round() == ["a"]
    assert house.counted == {"housekeeping_failures": 1}
    assert log.refusal is None
    assert house.round() == []
    house.disk.capacity = capacity
    house.now_ms += RETRY_NS // NS_PER_MS
    assert house.round() == ["a"]
    assert log.compaction_point.clean_end > 0


def test_it_reads_and_writes_no_faster_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(compaction_bytes_per_second=1000)
    waited: list[float] = []
    monkeypatch.setattr(house.stop, "wait", waited.append)
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 500)
    house.log("a", "xyxyxyxyxyxy")
    while house.round():
        pass
    assert len(waited) > 2
    assert all(wait >= 0.5 for wait in waited)


def test_a_step_ends_when_the_replica_is_being_closed(house: House) -> None:
    house.log("a", "xyxyxyxyxyxy")
    house.stop.set()
    assert house.step(house.visit("a")).more
    assert house.logs["a"].compaction_point.clean_end == 0


@pytest.mark.parametrize("steps", [1, 3, 6, 9, 12])
def test_segments_that_retention_removes_meanwhile_are_left_out(
    house: House, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Else a log that loses a segment during each pass would never be compacted, and keep others from it."""
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    made: list[CompactionPass] = []

    def make(*given: Any, **more: Any) -> CompactionPass:
        made.append(CompactionPass(*given, **more))
        return made[-1]

    monkeypatch.setattr(compaction_job, "CompactionPass", make)
    log = house.log("a", "xyxyxyxyxyxyxyxyxyxy")
    for _ in range(steps):
        assert house.step(house.visit("a")).more
    log.remove_before(Offset(int(log.log_end_offset) // 4))
    removed = log.log_start_offset
    assert removed > 0
    while house.job.is_due(house.visit("a")):
        house.step(house.visit("a"))
    assert len(made) == 1
    assert house.counted["compaction_passes"] == 1
    assert house.counted["compaction_records"] > 0
    assert log.compaction_point.clean_end > removed


def test_a_pass_that_is_overtaken_waits_as_long_as_it_took(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_job, "STEP_BYTES", 1)
    log = house.log("a", "xyxyxyxyxyxy")
    assert house.step(house.visit("a")).more
    house.now_ms += 30_000
    log.drop_all(Offset(0))
    house.fill("a", "xyxyxyxyxyxy")
    while house.step(house.visit("a")).more:
        pass
    assert house.counted["compaction_overtaken"] == 1
    assert not house.job.is_due(house.visit("a"))
    house.now_ms += 30_000
    assert house.job.is_due(house.visit("a"))
