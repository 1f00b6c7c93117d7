"""A repair leaves the kept part of a damaged log synced, even where an earlier life of the process did not sync it."""

from __future__ import annotations

from pathlib import Path

from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.conftest import Batches

HOME = Path("/data/s")


def test_records_below_the_damage_that_were_never_synced_are_synced_by_the_cut() -> None:
    disk, batches, config = SimDisk(), Batches(), LogConfig(segment_bytes=4096)
    disk.make_directory(HOME)
    log, _ = PartitionLog.open(HOME, config, files=disk)
    batches.fill(log, 60)
    disk.kill_process()
    disk.flip_bit(log.segments[-1].path, 200, 0)
    log, report = PartitionLog.open(HOME, config, files=disk, page_cache_survived=True)
    assert report.damaged is not None
    log.checking.cut_damage(log.checking.examine(), when_ns=1, lost=False)
    assert [len(disk.synced(segment.path)) for segment in log.segments] == [s.size for s in log.segments]
    batches.fill(log, 70)
    assert log.sync() == 70
    assert [len(disk.synced(segment.path)) for segment in log.segments] == [s.size for s in log.segments]
