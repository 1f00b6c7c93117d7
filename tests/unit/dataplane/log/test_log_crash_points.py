"""Power is lost before each single system call of a workload that appends, rolls, syncs, checkpoints, cuts and drops,
and removes its oldest segments.

The disk is the simulator's, which says what a crash keeps of what was not synced.

After every crash: nothing that was reported durable is missing, nothing is there that was not written, epochs match the
records, the log takes appends, and a second recovery changes nothing. After the death of the process alone nothing that
was appended is missing either.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.errors import LogDamaged
from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.simulation.disk import SimDisk, Survival
from wire.batch import iter_batches
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from tests.unit.dataplane.log.conftest import Batches, Stamped

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300)
PREALLOCATING = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300, preallocate_bytes=256)


class PowerLoss(BaseException):
    """Not an Exception: nothing in the log may catch it."""


def make_disk(crash_at: int = -1) -> SimDisk:
    disk = SimDisk(crash=PowerLoss)
    disk.crash_at = crash_at
    return disk


class Workload:
    """Drives a log and knows what it must hold after a crash at any point."""

    def __init__(self, disk: SimDisk, batches: Batches, config: LogConfig) -> None:
        self.disk = disk
        self.batches = batches
        self.config = config
        self.log: PartitionLog | None = None
        self.histories: list[list[Stamped]] = [[]]
        """What the log may hold a prefix of: the newest, and while a cut is under way, what it was before."""
        self.starts = {0}
        """Where the log may begin."""
        self.durable = 0
        """Reported, and not cut since: an end of the log below it is a loss."""
        self.appended = 0
        """Written and not cut since: an end of the log below it, after the death of the process alone, is a loss."""
        self.high_watermark = 0
        self.assigned: tuple[int, int] | None = None
        """(epoch, start) that assign_epoch returned for and that no record or cut has replaced."""
        self.unknown_epoch: tuple[int, int] | None = None
        """Being assigned when power was lost: there or not."""
        self.epoch = 1

    def run(self) -> None:
        self.open()
        self.append(3, 2)
        self.sync()
        self.append(5, 3)
        self.checkpoint(5)
        self.sync()
        self.append(20, 1)
        self.lead()
        self.append(4, 2)
        self.remove(18)
        self.sync()
        self.checkpoint(25)
        self.append(6, 2)
        self.cut(35)
        self.lead()
        self.append(8, 1)
        self.sync()
        self.checkpoint(36)
        self.append(5, 1)
        self.remove(30)
        self.cut(31)
        self.lead()
        self.append(12, 2)
        self.sync()
        self.lead()
        self.cut(self.end)
        self.close()
        self.open()
        self.append(9, 3)
        self.remove(45)
        self.sync()
        self.checkpoint(50)
        self.append(9, 3)
        self.remove(60)
        self.drop(1000)
        self.lead()
        self.append(10, 2)
        self.sync()
        self.checkpoint(1010)
        self.append(3, 1)

    @property
    def end(self) -> int:
        assert self.log is not None
        return self.log.log_end_offset

    def open(self) -> None:
        self.log, report = PartitionLog.open(HOME, self.config, files=self.disk)
        assert report.damaged is None
        assert self.log.log_end_offset >= self.durable
        self.durable = self.log.log_end_offset

    def append(self, times: int, count: int) -> None:
        assert self.log is not None
        for _ in range(times):
            batch = self.batches.one(self.end, count, epoch=self.epoch)
            self.histories[-1].append(batch)
            self.assigned = None
            self.log.append(batch.parts, [batch.header])
            self.appended = self.end

    def sync(self) -> None:
        assert self.log is not None
        self.durable = self.log.sync()
        assert self.durable == self.end

    def checkpoint(self, high_watermark: int) -> None:
        assert self.log is not None
        high_watermark = min(high_watermark, self.durable)
        self.log.checkpoint_high_watermark(Offset(high_watermark))
        self.high_watermark = high_watermark

    def lead(self) -> None:
        assert self.log is not None
        self.epoch += 1
        self.unknown_epoch, self.assigned = (self.epoch, self.end), None
        self.log.assign_epoch(LeaderEpoch(self.epoch), Offset(self.end))
        self.durable = self.end
        self.assigned, self.unknown_epoch = self.unknown_epoch, None

    def cut(self, offset: int) -> None:
        assert self.log is not None
        kept = [batch for batch in self.histories[-1] if batch.header.end_offset <= offset]
        self.histories.append(kept)
        end = kept[-1].header.end_offset if kept else 0
        self.durable, self.high_watermark = min(self.durable, end), min(self.high_watermark, end)
        self.appended = min(self.appended, end)
        self.unknown_epoch, self.assigned = self.assigned, None
        assert self.log.truncate(Offset(offset)) == end
        del self.histories[:-1]
        self.unknown_epoch = None
        self.durable = end

    def remove(self, offset: int) -> None:
        """Appended last: what is removed may never have been synced."""
        assert self.log is not None
        begins = [segment.base_offset for segment in self.log._segments if segment.base_offset <= offset]
        assert len(begins) > 1, "nothing to remove: the workload needs more segments"
        self.starts.add(begins[-1])
        gone = self.log.remove_before(Offset(offset))
        assert [segment.base_offset for segment in gone] == begins[:-1]
        self.starts = {begins[-1]}
        self.high_watermark = max(self.high_watermark, begins[-1])
        self.durable = max(self.durable, begins[-1])

    def drop(self, start: int) -> None:
        assert self.log is not None
        self.histories.append([])
        self.starts |= {0, start}
        self.durable = self.high_watermark = self.appended = 0
        self.unknown_epoch, self.assigned = self.assigned, None
        self.log.drop_all(Offset(start))
        del self.histories[:-1]
        self.unknown_epoch = None
        self.starts = {start}
        self.durable = self.high_watermark = self.appended = start

    def close(self) -> None:
        assert self.log is not None
        self.log.close()
        self.durable = self.end

    # ---- after the crash

    def check(self, how: Survival) -> None:
        log, report = PartitionLog.open(HOME, self.config, files=self.disk)
        assert report.damaged is None
        assert how != "everything" or log.log_end_offset >= self.appended, "in the page cache and lost"
        assert log.log_end_offset >= self.durable, "reported durable and lost"
        assert log.durable_end == log.log_end_offset
        assert self.high_watermark <= log.high_watermark <= log.log_end_offset
        start = log.log_start_offset
        assert start in self.starts
        stored = self.batches.stored(log)
        assert any(self._from(start, history).startswith(stored) for history in self.histories), "never written"
        assert all(int(name[:20]) >= start for name in self.disk.names(HOME) if name.endswith((".log", ".index")))
        self._check_epochs(log, stored)

        again, second = PartitionLog.open(HOME, self.config, files=self.disk)
        assert (second.damaged, second.truncated_bytes) == (None, 0)
        assert (again.log_end_offset, again.epochs.entries) == (log.log_end_offset, log.epochs.entries)
        assert self.batches.stored(again) == stored
        more = self.batches.append(again, 2, epoch=99)
        again.sync()
        assert self.batches.stored(again) == stored + more.data

    @staticmethod
    def _from(start: int, history: list[Stamped]) -> bytes:
        return b"".join(batch.data for batch in history if batch.header.base_offset >= start)

    def _check_epochs(self, log: PartitionLog, stored: bytes) -> None:
        expected: list[tuple[int, int]] = []
        for _, header in iter_batches(stored):
            if not expected or expected[-1][0] != header.leader_epoch:
                expected.append((header.leader_epoch, header.base_offset))
        start = log.log_start_offset
        entries = [(entry.epoch, max(start, entry.start)) for entry in log.epochs.entries]
        if [begin for _, begin in entries].count(start) > 1 or (entries and not stored and entries[0][1] == start):
            entries = entries[1:] if log.epochs.entries[0].start < start else entries  # of the records before the start
        if self.assigned is not None and self.assigned[1] == log.log_end_offset:
            assert entries == [*expected, self.assigned]
        elif len(entries) > len(expected):
            # Of an epoch without records: the one in the making, or one whose records were not durable.
            assert entries[:-1] == expected
            assert entries[-1][1] == log.log_end_offset
        else:
            assert entries == expected


@pytest.mark.parametrize("config", [CONFIG, PREALLOCATING], ids=["plain", "preallocating"])
@pytest.mark.parametrize("how", ["nothing", "everything", "all but half of the last write", "random"])
def test_power_loss_at_every_system_call(how: Survival, config: LogConfig, batches: Batches) -> None:
    disk = make_disk()
    Workload(disk, batches, config).run()
    calls = disk.calls
    assert calls > 200
    for crash_at in range(calls):
        for seed in range(2 if how == "random" else 1):
            disk = make_disk(crash_at)
            workload = Workload(disk, batches, config)
            with pytest.raises(PowerLoss):
                workload.run()
            disk.lose_power(how, Random(seed * 10_000 + crash_at))
            try:
                workload.check(how)
            except Exception as error:
                raise AssertionError(f"crash in call {crash_at} of {calls}, {how}, seed {seed}") from error


@pytest.mark.parametrize("how", ["nothing", "everything", "random"])
def test_power_loss_during_recovery_too(how: Survival, batches: Batches) -> None:
    for crash_at in range(61, 400, 17):
        for second in range(40):
            disk = make_disk(crash_at)
            workload = Workload(disk, batches, CONFIG)
            with pytest.raises(PowerLoss):
                workload.run()
            disk.lose_power("random", Random(crash_at))
            disk.calls, disk.crash_at = 0, second
            try:
                PartitionLog.open(HOME, CONFIG, files=disk)
            except PowerLoss:
                disk.lose_power(how, Random(second))
                workload.check("random")
            else:
                break


def test_what_a_failed_fsync_left_in_the_page_cache_is_written_again_at_the_next_open(batches: Batches) -> None:
    """Linux counts pages that could not be written as clean: they read well, and no later fsync writes them."""
    disk = make_disk()
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
