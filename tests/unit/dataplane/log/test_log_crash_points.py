"""Power is lost at each single system call of a workload; see crash_points.py. More of it: scripts/crash-points.

After every crash: nothing that was reported durable is missing, nothing is there that was not written, epochs match the
records, what recovery reports survives another loss of power, and the log takes appends. After the death of the process
alone nothing that was appended is missing either.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.log_errors import LogDamaged
from tests.simulation.machines.disk import PowerLoss, SimDisk
from tests.unit.dataplane.log.crash_points import CONFIG, PREALLOCATING, try_every_crash, try_second_crashes
from tests.unit.dataplane.log.crash_workload import HOME, WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.dataplane.log.conftest import Batches


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("config", [CONFIG, PREALLOCATING], ids=["plain", "preallocating"])
def test_power_loss_at_every_system_call(workload: str, config: LogConfig) -> None:
    assert try_every_crash(WORKLOADS[workload], config) > 200


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_power_loss_during_recovery_too(workload: str) -> None:
    assert try_second_crashes(WORKLOADS[workload], every=97) > 200


def test_power_loss_in_a_workload_drawn_by_chance() -> None:
    assert try_every_crash([("by_chance", 4, 15)], seed=4) > 200


class _DiesInFolderSyncs(SimDisk):
    dies = False

    def sync_directory(self, path: Path) -> None:
        if self.dies:
            raise PowerLoss
        super().sync_directory(path)


def test_segments_whose_names_a_crash_left_unsynced_are_synced_before_they_count_as_durable(
    batches: Batches,
) -> None:
    """The process dies before the names of new segments are synced; so does the next one, when it has written the
    checkpoint that vouches for them; the third finds nothing to write."""
    disk = _DiesInFolderSyncs()
    log, _ = PartitionLog.open(HOME, CONFIG, files=disk)
    batches.fill(log, 2)
    log.sync()
    batches.fill(log, 30)
    disk.dies = True
    with pytest.raises(PowerLoss):
        log.sync()
    disk.kill_process()
    with pytest.raises(PowerLoss):
        PartitionLog.open(HOME, CONFIG, files=disk)
    disk.kill_process()
    disk.dies = False
    again, _ = PartitionLog.open(HOME, CONFIG, files=disk)
    assert again.durable_end == 30
    disk.lose_power("nothing", Random(1))
    last, report = PartitionLog.open(HOME, CONFIG, files=disk)
    assert (last.log_end_offset, report.damaged) == (30, None)


def test_records_that_a_failed_fsync_left_in_the_page_cache_are_written_at_the_next_open(
    batches: Batches,
) -> None:
    """Linux counts pages that could not be written as clean: they read well, and no later fsync writes them."""
    disk = SimDisk()
    log, _ = PartitionLog.open(HOME, CONFIG, files=disk)
    batches.fill(log, 9)
    log.sync()
    batches.fill(log, 30)
    disk.failing_syncs = 1
    with pytest.raises(LogDamaged):
        log.sync()
    disk.kill_process()
    again, _ = PartitionLog.open(HOME, CONFIG, files=disk)
    assert (again.log_end_offset, again.durable_end) == (30, 30)
    disk.lose_power("nothing", Random(1))
    last, report = PartitionLog.open(HOME, CONFIG, files=disk)
    assert report.damaged is None
    assert last.log_end_offset == 30
