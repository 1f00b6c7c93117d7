"""Deleting a partition frees its disk, and the next partition of that name never shows its records; at any crash."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.data_dir import DataDir
from tests.simulation.machines.disk import SURVIVALS, PowerLoss, SimDisk, Survival
from wire.types import BrokerId, Incarnation, Offset, PartitionKey, StreamName

if TYPE_CHECKING:
    from tests.unit.dataplane.log.conftest import Batches

HOME = Path("/data")
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200)
END = Offset(1 << 40)


def key(incarnation: int) -> PartitionKey:
    return PartitionKey(StreamName("s"), Incarnation(incarnation), 0, Incarnation(incarnation))


OLD, NEW = key(1), key(2)
STREAM = HOME / "s-1"
"""Of the old partition."""


def opened(disk: SimDisk) -> DataDir:
    return DataDir.open(HOME, BrokerId("b"), files=disk)


def log_of(data_dir: DataDir, which: PartitionKey) -> PartitionLog:
    log, report = PartitionLog.open(data_dir.partition_directory(which), CONFIG, files=data_dir.files)
    assert report.damaged is None
    return log


def filled(disk: SimDisk, batches: Batches) -> DataDir:
    """With a log of many segments, the oldest of which retention removed."""
    data_dir = opened(disk)
    log = log_of(data_dir, OLD)
    batches.fill(log, 40, size=100)
    log.sync()
    log.remove_before(Offset(20))
    assert (len(log.segments) > 3, log.log_start_offset) == (True, 18)
    log.close()
    return data_dir


def bytes_below(disk: SimDisk, text: str) -> int:
    return sum(size for path, size in disk.files_below(HOME) if text in str(path))


def test_a_log_that_is_set_aside_is_no_log_of_the_broker_any_more_and_keeps_its_bytes(batches: Batches) -> None:
    disk = SimDisk()
    data_dir = filled(disk, batches)
    before = bytes_below(disk, "/0-1/")
    kept = data_dir.remove_partition(OLD, sets_aside=True)
    assert kept is not None
    data_dir.close()
    for _ in range(2):
        again = opened(disk)
        assert again.list_partitions() == []
        assert again.remove_partition(OLD, sets_aside=True) is None
        again.close()
    assert bytes_below(disk, str(kept)) == before > 0


def test_a_log_of_the_same_partition_is_set_aside_beside_the_one_of_before(batches: Batches) -> None:
    disk = SimDisk()
    data_dir = filled(disk, batches)
    names = []
    for _ in range(3):
        kept = data_dir.remove_partition(OLD, sets_aside=True)
        assert kept is not None
        names.append(kept.name)
        log_of(data_dir, OLD).close()
    assert names == ["0-1.lost", "0-1.lost-2", "0-1.lost-3"]
    assert len({bytes_below(disk, f"/{name}/") for name in names}) > 1, "the first one is full"
    data_dir.close()
    assert opened(disk).list_partitions() == [OLD]


def test_a_log_that_is_taken_back_knows_how_far_it_was_committed(batches: Batches) -> None:
    """It left the manifest, and the process that takes it back is another one."""
    disk = SimDisk()
    data_dir = opened(disk)
    log, _ = PartitionLog.open(
        data_dir.partition_directory(OLD), CONFIG, files=disk, pool=data_dir.pool, entry=data_dir.manifest_entry(OLD)
    )
    batches.fill(log, 5)
    log.sync()
    log.checkpoint_high_watermark(Offset(4))
    log.close()
    data_dir.file_checkpoint(OLD)
    data_dir.manifest_entry(OLD).remove()
    data_dir.write_manifest()
    kept = data_dir.remove_partition(OLD, sets_aside=True)
    data_dir.close()
    disk.lose_power(SURVIVALS[0], Random(1))
    again = opened(disk)
    assert again.take_back(OLD) == kept
    assert again.take_back(OLD) is None, "the partition has a log"
    disk.lose_power(SURVIVALS[0], Random(1))
    entry = again.manifest_entry(OLD)
    assert entry.committed is None
    log, report = PartitionLog.open(again.partition_directory(OLD), CONFIG, files=disk, pool=again.pool, entry=entry)
    assert report.damaged is None
    assert (log.log_end_offset, log.high_watermark) == (5, 4)


def test_of_several_logs_that_were_set_aside_the_newest_is_taken_back(batches: Batches) -> None:
    disk = SimDisk()
    data_dir = opened(disk)
    assert data_dir.take_back(OLD) is None
    for records in (3, 2):
        log = log_of(data_dir, OLD)
        batches.fill(log, records)
        log.close()
        assert data_dir.remove_partition(OLD, sets_aside=True) is not None
    assert data_dir.take_back(NEW) is None, "it is of another life of the stream"
    assert data_dir.take_back(OLD) == data_dir.partition_directory(OLD).with_name("0-1.lost-2")
    assert log_of(data_dir, OLD).log_end_offset == 2


@pytest.mark.parametrize("how", SURVIVALS)
def test_a_log_that_is_taken_back_is_known_as_such_whatever_a_crash_leaves(how: Survival, batches: Batches) -> None:
    crash_at, done = 0, False
    while not done:
        disk = SimDisk()
        data_dir = filled(disk, batches)
        data_dir.remove_partition(OLD, sets_aside=True)
        disk.crash_in(crash_at)
        try:
            data_dir.take_back(OLD)
            done = True
        except PowerLoss:
            pass
        disk.lose_power(how, Random(crash_at))
        again = opened(disk)
        assert again.is_taken_back(OLD) is (OLD in again.list_partitions())
        if not done:
            again.take_back(OLD)
        assert again.is_taken_back(OLD)
        log, report = PartitionLog.open(again.partition_directory(OLD), CONFIG, files=disk)
        assert (report.damaged, report.is_taken_back, log.log_end_offset) == (None, True, 40)
        log.close()
        crash_at += 1
    assert crash_at > 5


@pytest.mark.parametrize("how", SURVIVALS)
def test_a_log_that_was_taken_back_and_counts_is_a_log_as_any(how: Survival, batches: Batches) -> None:
    crash_at, done = 0, False
    while not done:
        disk = SimDisk()
        data_dir = filled(disk, batches)
        data_dir.remove_partition(OLD, sets_aside=True)
        data_dir.take_back(OLD)
        disk.crash_in(crash_at)
        try:
            data_dir.count(OLD)
            done = True
        except PowerLoss:
            pass
        disk.lose_power(how, Random(crash_at))
        again = opened(disk)
        assert not (done and again.is_taken_back(OLD))
        again.count(OLD)
        again.count(OLD)
        assert not again.is_taken_back(OLD)
        log, report = PartitionLog.open(again.partition_directory(OLD), CONFIG, files=disk)
        assert (report.damaged, report.is_taken_back, log.log_end_offset) == (None, False, 40)
        crash_at += 1
    assert crash_at > 1


def test_the_disk_is_free_and_the_new_life_is_empty(batches: Batches) -> None:
    disk = SimDisk()
    data_dir = filled(disk, batches)
    assert bytes_below(disk, "s-1") > 1000
    data_dir.remove_partition(OLD)
    assert not disk.is_directory(STREAM)
    assert data_dir.list_partitions() == []
    log = log_of(data_dir, NEW)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert log.read_from_disk(Offset(0), max_bytes=1000, end_offset=END) == b""


@pytest.mark.parametrize("how", SURVIVALS)
def test_a_crash_anywhere_leaves_the_partition_or_nothing_of_it(how: Survival, batches: Batches) -> None:
    crash_at, done = 0, False
    while not done:
        disk = SimDisk()
        data_dir = filled(disk, batches)
        disk.crash_in(crash_at)
        try:
            data_dir.remove_partition(OLD)
            batches.fill(log_of(data_dir, NEW), 3, epoch=9)
            done = True
        except PowerLoss:
            pass
        disk.lose_power(how, Random(crash_at))
        again = opened(disk)
        listed = again.list_partitions()
        if OLD in listed:
            assert NEW not in listed
            log = log_of(again, OLD)
            assert (log.log_start_offset, log.log_end_offset) == (18, 40), "not begun: all of it is there"
            assert batches.stored(log)
        else:
            assert not disk.is_directory(STREAM), "what a crash interrupted is finished at the next start"
        fresh = log_of(again, NEW)
        assert fresh.log_end_offset in (0, 1, 2, 3)
        assert b" of 1 " not in fresh.read_from_disk(Offset(0), max_bytes=10_000, end_offset=END)
        crash_at += 1
    assert crash_at > 5


BESIDE = replace(OLD, partition=1, partition_incarnation=Incarnation(3))


def begins_in_front_of(call: int, batches: Batches) -> bool:
    """Of the removal of the other partition. False: the removal makes fewer system calls."""
    disk = SimDisk()
    data_dir = filled(disk, batches)
    begins_at, has_begun = disk.calls + call, False

    def begin() -> None:
        nonlocal has_begun
        if disk.calls == begins_at and not has_begun:
            has_begun = True
            log = log_of(data_dir, BESIDE)
            batches.fill(log, 3, epoch=9)
            log.sync()

    disk.before_call = begin
    data_dir.remove_partition(OLD)
    if has_begun:
        assert data_dir.list_partitions() == [BESIDE]
        assert log_of(data_dir, BESIDE).log_end_offset == 3
    return has_begun


def test_a_partition_that_begins_while_the_last_other_one_of_its_stream_is_removed_keeps_its_folder(
    batches: Batches,
) -> None:
    """As when a repartition is cancelled and begun anew."""
    calls = 0
    while begins_in_front_of(calls, batches):
        calls += 1
    assert calls > 3
