"""Power is lost before each system call of a workload that appends, compacts, cuts and drops.

After every crash: the newest record of each key is there, up to what was durable, at its offset and with its value;
deleted keys stay deleted; records without a key, and all that was never below a high watermark, are there; a second
recovery changes nothing, no file is left over, and compaction goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.simulation.machines.disk import SimDisk, Survival
from tests.unit.dataplane.log.compacting import Row, append, compact, rows, stored
from tests.unit.dataplane.log.power_cuts import cut_power_in_every_call
from wire.types import LeaderEpoch, Offset

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=200, tail_bytes=300)


class Workload:
    """Drives a log and knows the records that it must hold after a crash at any point."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.log, _ = PartitionLog.open(HOME, CONFIG, files=disk)
        self.appended: list[Row] = []
        self.durable = 0
        self.touched = 0
        """No pass was told of a higher high watermark."""
        self.epoch = 1
        self.is_cut = False
        """Below what is compacted: of a key whose newest record is cut, an older one need not be there."""

    def run(self) -> None:
        self.append("abcabcabdab")
        self.sync()
        self.compact(8)
        self.append("xyzab", tombstones="z")
        self.lead()
        self.append("cdefgcd", tombstones="d")
        self.sync()
        self.compact(self.log.log_end_offset)
        self.compact(self.log.log_end_offset)
        self.cut(self.log.compaction_point.clean_end - 1)
        self.append("ababhij")
        self.sync()
        self.compact(self.log.log_end_offset)
        self.drop(100)
        self.append("ababab")

    def append(self, keys: str, tombstones: str = "") -> None:
        for key in keys:
            offset = self.log.log_end_offset
            value = None if key in tombstones else b"%s at %d " % (key.encode(), offset) + b"." * 40
            name = key.encode() if key != "x" else None
            self.appended.append(Row(offset, name, value))
            append(self.log, [(name, value)], epoch=self.epoch)

    def sync(self) -> None:
        self.durable = self.log.sync()
        self.log.checkpoint_high_watermark(self.durable)

    def compact(self, high_watermark: int) -> None:
        self.touched = max(self.touched, high_watermark)
        compact(self.log, high_watermark, retention_ms=0)

    def lead(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(LeaderEpoch(self.epoch), self.log.log_end_offset)
        self.durable = self.log.log_end_offset

    def cut(self, offset: int) -> None:
        self.durable, self.is_cut = 0, True
        end = self.log.truncate(Offset(offset))
        self.appended = [row for row in rows(stored(self.log)) if row.offset < end]
        self.durable, self.is_cut = end, False
        self.touched = min(self.touched, end)

    def drop(self, start: int) -> None:
        self.durable, self.is_cut = 0, True
        self.log.drop_all(Offset(start))
        self.is_cut = False
        self.appended = []
        self.touched = self.durable = start

    # ---- after the crash

    def check(self) -> None:
        log, report = PartitionLog.open(HOME, CONFIG, files=self.disk)
        assert report.damaged is None
        assert log.log_end_offset >= self.durable
        assert not [name for name in self.disk.names(HOME) if name.endswith(".tmp")]
        left = stored(log)
        self.check_rows(log, rows(left))
        point = log.compaction_point
        assert point.settled_end <= point.clean_end <= log.log_end_offset

        again, second = PartitionLog.open(HOME, CONFIG, files=self.disk)
        assert (second.damaged, second.truncated_bytes) == (None, 0)
        assert (again.log_end_offset, again.epochs.entries) == (log.log_end_offset, log.epochs.entries)
        assert stored(again) == left
        again.checkpoint_high_watermark(again.log_end_offset)
        compact(again, retention_ms=0)
        self.touched = again.log_end_offset
        self.check_rows(again, rows(stored(again)))

    def check_rows(self, log: PartitionLog, found: list[Row]) -> None:
        end = log.log_end_offset
        expected = [row for row in self.appended if row.offset < end]
        assert set(found) <= set(expected), "holds what was never written"
        if self.is_cut:
            return
        newest = {row.key: row for row in expected}
        seen = {row.key: row for row in found}
        for key, row in newest.items():
            assert row.value is None or key is None or seen[key] == row, "the newest record of a key is missing"
        for key, row in seen.items():
            assert newest[key] == row or newest[key].value is not None, "a deleted key came back"
            assert newest[key] == row
        must = {row for row in expected if row.key is None or row.offset >= self.touched}
        assert must <= set(found), "a record is missing that no pass may take"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nothing", "everything", "random"])
def test_power_loss_at_every_system_call(how: Survival) -> None:
    cut_power_in_every_call(Workload, how)
