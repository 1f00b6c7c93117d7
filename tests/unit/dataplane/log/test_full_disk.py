"""A disk without room: the log is as it was, and goes on when there is room again.

The disk is the simulator's, and its size ends somewhere in the writes: a workload meets the end at each of its
bytes, is told NoSpace, tries again with room, and must come to the same log as one that never met it.
"""

from __future__ import annotations

import errno
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.segments.segment import segment_name
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.log.storage.pool import LogPool
from tests.simulation.machines.disk import AMPLE, SimDisk
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.unit.dataplane.log.conftest import Batches
    from wire.types import Buffer

HOME = Path("/log")
PLAIN = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300)
PREALLOCATING = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300, preallocate_bytes=256)
STEP = 41
"""Bytes between two sizes of the disk."""

T = TypeVar("T")


def opened(disk: SimDisk, config: LogConfig) -> PartitionLog:
    log, report = PartitionLog.open(HOME, config, files=disk)
    assert report.damaged is None
    return log


class Workload:
    """Steps that are tried again, with room, when there was none."""

    def __init__(self, capacity: int, batches: Batches, config: LogConfig) -> None:
        self.disk = SimDisk()
        self.disk.capacity = capacity
        self.batches = batches
        self.config = config
        self.refusals = 0
        self.log = self.tried(lambda: opened(self.disk, config))

    def state(self, log: PartitionLog) -> tuple[object, ...]:
        return self.batches.stored(log), log.log_start_offset, log.log_end_offset, log.epochs.entries, log.refusal

    def tried(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except NoSpace:
            self.refusals += 1
            self.disk.capacity = AMPLE
            return step()

    def append(self, count: int, epoch: int) -> None:
        """Two batches in one write, so that one of them may be whole where the write breaks off."""
        log = self.log
        before = self.state(log)
        first = self.batches.one(log.log_end_offset, count, epoch=epoch)
        second = self.batches.one(first.header.end_offset, count, epoch=epoch)

        def both() -> None:
            try:
                log.append([*first.parts, *second.parts], [first.header, second.header])
            except NoSpace:
                assert self.state(log) == before
                self.check_after_a_kill(before)
                raise

        self.tried(both)

    def check_after_a_kill(self, expected: tuple[object, ...]) -> None:
        disk = deepcopy(self.disk)
        disk.kill_process()
        disk.capacity = AMPLE
        assert self.state(opened(disk, self.config)) == expected

    def run(self) -> PartitionLog:
        log = self.log
        for epoch in (1, 2):
            for _ in range(4):
                self.append(2, epoch)
                self.tried(log.sync)
        self.tried(lambda: log.checkpoint_high_watermark(Offset(9)))
        self.tried(lambda: log.truncate(Offset(14)))
        self.tried(lambda: log.assign_epoch(LeaderEpoch(4), log.log_end_offset))
        self.append(3, 4)
        self.tried(lambda: log.checkpoint_high_watermark(Offset(16)))
        self.tried(lambda: log.drop_all(Offset(100)))
        self.append(3, 5)
        self.tried(log.sync)
        return log


@pytest.mark.parametrize("config", [PLAIN, PREALLOCATING], ids=["plain", "preallocating"])
def test_a_disk_that_is_full_at_any_byte_costs_nothing(batches: Batches, config: LogConfig) -> None:
    usual = Workload(AMPLE, batches, config)
    expected = usual.state(usual.run())
    met = 0
    for capacity in range(1, 4000, STEP):
        workload = Workload(capacity, batches, config)
        log = workload.run()
        assert workload.state(log) == expected, f"after a disk of {capacity} bytes"
        met += workload.refusals
        log.close()
        assert workload.state(opened(workload.disk, config)) == expected, f"after a disk of {capacity} bytes"
    assert met > 40


def broken_off(batches: Batches, lacking: int) -> tuple[SimDisk, PartitionLog]:
    """A log whose last segment met the end of the disk in a write of two batches. The next one went into a new segment,
    and all was synced."""
    disk = SimDisk()
    log = opened(disk, PLAIN)
    batches.append(log, 2)
    log.sync()
    large = [batches.one(Offset(2)), batches.one(Offset(3))]
    disk.capacity = disk.used + sum(batch.header.size for batch in large) - lacking
    with pytest.raises(NoSpace):
        log.append([part for batch in large for part in batch.parts], [batch.header for batch in large])
    disk.capacity = AMPLE
    assert log.roll()
    batches.append(log, 4)
    assert log.sync() == 6
    return disk, log


@pytest.mark.parametrize("lacking", [1, 60, 150])
def test_the_rest_of_a_write_that_broke_off_does_not_come_back_with_the_power(batches: Batches, lacking: int) -> None:
    """It would lie in front of records that are durable, and the next open would cut these with it (seed 2379)."""
    disk, log = broken_off(batches, lacking)
    expected = batches.stored(log)
    for seed in range(20):
        after = deepcopy(disk)
        after.lose_power("random", Random(seed))
        again = opened(after, PLAIN)
        assert again.log_end_offset == 6
        assert batches.stored(again) == expected


def test_a_full_segment_ends_where_the_next_one_begins(batches: Batches) -> None:
    """Whatever an older version left behind its end."""
    disk, log = broken_off(batches, 60)
    expected = batches.stored(log)
    disk.kill_process()
    first = HOME / segment_name(0)
    sound = len(disk.synced(first))
    handle = disk.open(first, write=True)
    disk.write(handle, [b"the beginning of a batch"], sound)
    disk.close(handle)
    disk.remove(first.with_suffix(".index"))
    again = opened(disk, PLAIN)
    assert batches.stored(again) == expected
    again.sync()
    assert len(disk.synced(first)) == sound


def test_a_log_that_closes_on_a_full_disk_lets_go_of_its_files(batches: Batches) -> None:
    workload = Workload(AMPLE, batches, PLAIN)
    workload.append(2, 1)
    before = workload.state(workload.log)
    workload.disk.capacity = workload.disk.used
    with pytest.raises(NoSpace):
        workload.log.close()
    assert not workload.disk._open
    workload.disk.capacity = AMPLE
    assert workload.state(opened(workload.disk, PLAIN)) == before


def test_no_room_to_sync_is_final(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system finds its room late, a failed fsync has lost its records from the page cache."""
    workload = Workload(AMPLE, batches, PLAIN)
    workload.append(2, 1)

    def refuse(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(workload.disk, "sync_data", refuse)
    with pytest.raises(LogDamaged, match="No space left"):
        workload.log.sync()
    monkeypatch.undo()
    with pytest.raises(LogDamaged):
        workload.log.sync()


def test_the_rest_of_a_write_that_cannot_be_cut_off_is_final(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(AMPLE, batches, PLAIN)
    workload.append(2, 1)
    workload.disk.capacity = workload.disk.used + 10

    def refuse(_handle: int, _size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(workload.disk, "truncate", refuse)
    with pytest.raises(LogDamaged, match="cutting off"):
        workload.batches.append(workload.log)


def test_an_index_that_found_no_room_is_written_later(batches: Batches) -> None:
    workload = Workload(AMPLE, batches, PLAIN)
    for _ in range(6):
        workload.append(3, 1)
    log = workload.log
    log.sync()
    workload.disk.capacity = workload.disk.used
    with pytest.raises(NoSpace):
        log.checkpoint_high_watermark(Offset(5))
    workload.disk.capacity = AMPLE
    log.checkpoint_high_watermark(Offset(5))
    log.close()
    again = opened(workload.disk, PLAIN)
    assert again.offset_for_timestamp(20_000, Offset(1 << 40)) == 20


@pytest.mark.parametrize("config", [PLAIN, PREALLOCATING], ids=["plain", "preallocating"])
def test_an_open_that_found_no_room_leaves_no_file_open(batches: Batches, config: LogConfig) -> None:
    """It is tried again and again, for as long as the disk is full, for every log."""
    disk = SimDisk()
    log = opened(disk, config)
    batches.fill(log, 60)
    disk.kill_process()
    refused = 0
    for room in range(-400, 400, STEP):
        full = deepcopy(disk)
        full.capacity = full.used + room
        try:
            PartitionLog.open(HOME, config, files=full, pool=LogPool(full, reading=0))
        except NoSpace:
            refused += 1
            assert not full._open
    assert refused


def refusing(disk: SimDisk, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    """No room for files whose names end so."""
    opens = disk.open

    def refuse(path: Path, *, write: bool = False, create: bool = False) -> int:
        if create and path.name.endswith(ending):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opens(path, write=write, create=create)

    monkeypatch.setattr(disk, "open", refuse)


def test_an_index_found_again_ends_where_the_segment_ends_that_is_no_longer_the_last(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that began when it was the last one must not write down the log's end in its place: the next open would
    cut the segments behind it."""
    disk = SimDisk()
    log = opened(disk, PLAIN)
    while len(log.segments) < 2:
        batches.append(log)
    log.sync()
    reader = log.producer_batches(Offset(0))
    next(reader)
    refusing(disk, monkeypatch, ".index")
    while len(log.segments) < 3:
        batches.append(log)
    batches.append(log)
    log.sync()
    monkeypatch.undo()
    list(reader)
    stored, end = batches.stored(log), log.log_end_offset
    log.checkpoint_high_watermark(end)
    disk.kill_process()
    again = opened(disk, PLAIN)
    assert again.log_end_offset == end
    assert batches.stored(again) == stored


def test_old_segments_go_though_there_is_no_room_for_the_epochs(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimDisk()
    log = opened(disk, PLAIN)
    batches.fill(log, 20)
    batches.fill(log, 40, epoch=2)
    log.sync()
    refusing(disk, monkeypatch, "leader-epoch-checkpoint.tmp")
    assert log.remove_before(Offset(30))
    assert sorted(int(name[:20]) for name in disk.names(HOME) if name.endswith(".log")) == [
        segment.base_offset for segment in log.segments
    ]
    monkeypatch.undo()
    log.sync()
    assert [tuple(entry) for entry in opened(disk, PLAIN).epochs.entries] == [(2, 20)]


def test_the_real_file_system_tells_its_size(tmp_path: Path) -> None:
    found = REAL_FILES.space(tmp_path)
    assert found.total > found.free > 0


def test_a_log_that_is_half_given_up_takes_nothing_until_it_has_begun_anew(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record appended to the rest of the old file would be gone with the next start."""
    workload = Workload(AMPLE, batches, PLAIN)
    workload.append(3, 1)
    log, disk = workload.log, workload.disk
    write = disk.write

    def refuse(handle: int, parts: Sequence[Buffer], position: int) -> None:
        if b"offset-checkpoint" in b"".join(parts):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(handle, parts, position)

    monkeypatch.setattr(disk, "write", refuse)
    with pytest.raises(NoSpace):
        log.drop_all(Offset(50))
    with pytest.raises(LogDamaged, match="given up"):
        batches.append(log)
    monkeypatch.undo()
    left = deepcopy(disk)
    log.drop_all(Offset(60))
    batches.append(log)
    assert (log.log_start_offset, log.log_end_offset, log.refusal) == (60, 61, None)
    left.kill_process()
    again = opened(left, PLAIN)
    assert (again.log_start_offset, again.log_end_offset) == (50, 50)
