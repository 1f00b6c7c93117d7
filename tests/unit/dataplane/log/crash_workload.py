"""Workloads of a log until power is lost, and the checks afterwards.

A workload is a list of steps; a step is a method of `Workload` with its arguments. Each step notes its promises twice:
before it begins, as far as a crash in the middle can already show them, and when it is done. A new step is a method, an
entry of `WORKLOADS`, and its promises in `Promises`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.manifest import Manifest, read_manifest
from tests.unit.dataplane.log.conftest import Batches
from wire.batch import iter_batches
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from dataplane.log.recovery.log_recovery import RecoveryReport
    from tests.simulation.machines.disk import SimDisk
    from tests.unit.dataplane.log.conftest import Stamped

DATA = Path("/data")
HOME = DATA / "log"
BATCHES = Batches()

Step: TypeAlias = tuple[str, *tuple[int, ...]]
"""Name of a method of `Workload`, and its arguments."""


@dataclass(slots=True)
class Promises:
    """Promises of the log at one moment, for any crash that follows."""

    histories: list[list[Stamped]] = field(default_factory=lambda: [[]])
    """The log holds a prefix of one of these: the newest, and while a cut is under way, the history before it."""
    starts: set[int] = field(default_factory=lambda: {0})
    """Where the log may begin."""
    durable: int = 0
    """Reported, and not cut since: an end of the log below it is a loss."""
    appended: int = 0
    """Written and not cut since: an end of the log below it, after the death of the process alone, is a loss."""
    high_watermark: int = 0
    is_in_manifest: bool = False
    """The loss of the whole log would be told."""


def open_log(
    disk: SimDisk, config: LogConfig, *, page_cache_survived: bool = False
) -> tuple[PartitionLog, RecoveryReport, Manifest]:
    """Opens it as a broker does, with what the manifest says."""
    manifest = Manifest(disk, DATA, read_manifest(disk, DATA) or {})
    log, report = PartitionLog.open(
        HOME, config, files=disk, page_cache_survived=page_cache_survived, entry=manifest.entry(HOME.name)
    )
    manifest.write()
    return log, report, manifest


class Workload:
    """Drives a log, and notes its promises."""

    def __init__(self, disk: SimDisk, config: LogConfig) -> None:
        self.disk = disk
        self.config = config
        self.promises = Promises()
        self._log: PartitionLog | None = None
        self._manifest: Manifest | None = None
        self._epoch = 1
        self._checkpointed = 0
        """HW of the newest checkpoint; promised with the next write of the manifest."""

    def run(self, steps: list[Step]) -> None:
        self.open()
        for name, *arguments in steps:
            getattr(self, name)(*arguments)

    @property
    def log(self) -> PartitionLog:
        assert self._log is not None
        return self._log

    # ---- steps

    def open(self) -> None:
        self._log, report, self._manifest = open_log(self.disk, self.config)
        self.promises.is_in_manifest = True
        assert report.damaged is None
        assert self.log.log_end_offset >= self.promises.durable
        self.promises.durable = self.log.log_end_offset

    def append(self, times: int, count: int) -> None:
        for _ in range(times):
            batch = BATCHES.one(self.log.log_end_offset, count, epoch=self._epoch)
            self.promises.histories[-1].append(batch)
            self.log.append(batch.parts, [batch.header])
            self.promises.appended = self.log.log_end_offset

    def sync(self) -> None:
        self.promises.durable = self.log.sync()
        assert self.promises.durable == self.log.log_end_offset

    def sync_with_others(self) -> None:
        """As a thread that syncs many logs at a time; one more record is appended meanwhile."""
        handle = self.log.begin_sync()
        if handle is None:  # one fdatasync is not enough, or not needed
            self.sync()
            return
        end = self.log.log_end_offset
        self.append(1, 1)
        (error,) = self.log.files.sync_data_of_each([handle])
        self.promises.durable = self.log.end_sync(error)
        assert self.promises.durable == end

    def roll(self) -> None:
        """By age; nothing happens to an empty segment. Its handle is wanted elsewhere."""
        self.log.roll()
        self.log.put_aside()

    def manifest(self) -> None:
        """Write it, as it is after the checkpoints of a round."""
        assert self._manifest is not None
        self._manifest.write()
        self.promises.high_watermark = max(self.promises.high_watermark, self._checkpointed)

    def snapshots(self) -> None:
        """Write the derived state at the beginnings of segments."""
        self.log.write_snapshots()

    def checkpoint(self, high_watermark: int) -> None:
        """At most up to the durable end, as a replica does it."""
        high_watermark = min(high_watermark, self.promises.durable)
        if high_watermark % 2 or not self.log.checkpoint_at_once(Offset(high_watermark)):
            self.log.checkpoint_high_watermark(Offset(high_watermark))
        self._checkpointed = high_watermark

    def lead(self) -> None:
        promises = self.promises
        self._epoch += 1
        self.log.assign_epoch(LeaderEpoch(self._epoch), self.log.log_end_offset)
        promises.durable = self.log.log_end_offset

    def cut(self, offset: int) -> None:
        promises = self.promises
        kept = [batch for batch in promises.histories[-1] if batch.header.end_offset <= offset]
        promises.histories.append(kept)
        end = max(kept[-1].header.end_offset if kept else 0, self.log.log_start_offset)
        promises.durable, promises.high_watermark = min(promises.durable, end), min(promises.high_watermark, end)
        promises.appended = min(promises.appended, end)
        self._checkpointed = min(self._checkpointed, end)
        assert self.log.truncate(Offset(offset)) == end
        del promises.histories[:-1]
        promises.durable = end

    def cut_at_the_end(self) -> None:
        """Cut no record, and the epoch that has no records."""
        self.cut(self.log.log_end_offset)

    def remove(self, offset: int) -> None:
        """Retention. The removed records may never have been synced."""
        promises = self.promises
        begins = [segment.base_offset for segment in self.log.segments if segment.base_offset <= offset]
        start = begins[-1] if begins else self.log.log_start_offset
        promises.starts.add(start)
        gone = self.log.remove_before(Offset(offset))
        assert [segment.base_offset for segment in gone] == begins[:-1]
        promises.starts = {start}
        promises.high_watermark = max(promises.high_watermark, start)
        promises.durable = max(promises.durable, start)

    def drop(self, start: int) -> None:
        """The leader's log begins behind the end of this one."""
        promises = self.promises
        promises.histories.append([])
        promises.starts |= {0, start}
        promises.durable = promises.high_watermark = promises.appended = 0
        self.log.drop_all(Offset(start))
        self._checkpointed = start
        del promises.histories[:-1]
        promises.starts = {start}
        promises.durable = promises.high_watermark = promises.appended = start

    def restart(self) -> None:
        self.log.close()
        self.manifest()
        self.promises.durable = self.log.log_end_offset
        self.open()

    def by_chance(self, seed: int, steps: int) -> None:
        """So many of the steps above, drawn from the seed and fitted to the log as it is by then."""
        rng = Random(seed)
        for _ in range(steps):
            start, end = self.log.log_start_offset, self.log.log_end_offset
            match rng.choices(
                [
                    "append",
                    "sync",
                    "sync_with_others",
                    "roll",
                    "snapshots",
                    "checkpoint",
                    "lead",
                    "cut",
                    "remove",
                    "drop",
                    "restart",
                ],
                [10, 4, 4, 2, 2, 4, 2, 2, 3, 0.3, 1],
            )[0]:
                case "append":
                    self.append(rng.randint(1, 8), rng.randint(1, 4))
                case "checkpoint":
                    self.checkpoint(rng.randint(self.promises.high_watermark, max(start, end)))
                    if rng.random() < 0.5:
                        self.manifest()
                case "cut":
                    self.cut(rng.randint(start, end))
                case "remove":
                    self.remove(rng.randint(start, end))
                case "drop":
                    self.drop(end + rng.randint(1, 1000))
                case step:
                    getattr(self, step)()


WORKLOADS: dict[str, list[Step]] = {
    "everything": [
        ("append", 3, 2),
        ("sync",),
        ("append", 5, 3),
        ("checkpoint", 5),
        ("sync",),
        ("append", 20, 1),
        ("lead",),
        ("append", 4, 2),
        ("sync_with_others",),
        ("remove", 18),
        ("sync",),
        ("roll",),
        ("snapshots",),
        ("checkpoint", 25),
        ("manifest",),
        ("append", 6, 2),
        ("cut", 35),
        ("lead",),
        ("append", 8, 1),
        ("sync",),
        ("checkpoint", 36),
        ("manifest",),
        ("append", 5, 1),
        ("remove", 30),
        ("cut", 31),
        ("lead",),
        ("append", 12, 2),
        ("sync_with_others",),
        ("sync",),
        ("lead",),
        ("cut_at_the_end",),
        ("restart",),
        ("snapshots",),
        ("append", 9, 3),
        ("remove", 45),
        ("sync",),
        ("checkpoint", 50),
        ("manifest",),
        ("append", 9, 3),
        ("remove", 60),
        ("drop", 1000),
        ("lead",),
        ("append", 10, 2),
        ("sync",),
        ("checkpoint", 1010),
        ("manifest",),
        ("append", 3, 1),
    ],
}


def check(disk: SimDisk, config: LogConfig, promises: Promises, *, page_cache_survived: bool) -> None:
    """Check the disk after a crash. Raises AssertionError."""
    if promises.is_in_manifest and disk.calls % 7 == 0:
        lost = disk.copy()
        lost.remove_tree(HOME)
        assert open_log(lost, config)[1].damaged is not None, "the whole log is lost, and nothing tells"

    log, report, _ = open_log(disk, config, page_cache_survived=page_cache_survived)
    assert (report.damaged, report.damaged_snapshots) == (None, ())
    assert not page_cache_survived or log.log_end_offset >= promises.appended, "in the page cache and lost"
    assert log.log_end_offset >= promises.durable, "reported durable and lost"
    assert log.durable_end == log.log_end_offset
    assert promises.high_watermark <= log.high_watermark <= log.log_end_offset
    start = log.log_start_offset
    assert start in promises.starts
    stored = BATCHES.stored(log)
    _check_content(stored, start, promises)
    assert all(int(name[:20]) >= start for name in disk.names(HOME) if name.endswith((".log", ".index")))
    _check_epochs(log, stored)

    # The durable end that recovery reports is durable: power is lost once more, at once. Only a cut that was
    # interrupted may have to be made again.
    disk.lose_power("nothing", Random(0))
    again, second, _ = open_log(disk, config)
    assert second.damaged is None
    assert again.log_start_offset == start
    stored_again = BATCHES.stored(again)
    assert stored_again.startswith(stored)
    _check_content(stored_again, start, promises)
    if stored_again == stored:
        assert again.epochs.entries == log.epochs.entries
    end = again.log_end_offset
    more = BATCHES.append(again, 2, epoch=9999)
    again.sync()
    assert again.read_from_disk(end, max_bytes=1, end_offset=again.log_end_offset) == more.data


def _check_content(stored: bytes, start: int, promises: Promises) -> None:
    assert any(_from(start, history).startswith(stored) for history in promises.histories), "never written"


def _from(start: int, history: list[Stamped]) -> bytes:
    return b"".join(batch.data for batch in history if batch.header.base_offset >= start)


def _check_epochs(log: PartitionLog, stored: bytes) -> None:
    expected: list[tuple[int, int]] = []
    for _, header in iter_batches(stored):
        if not expected or expected[-1][0] != header.leader_epoch:
            expected.append((header.leader_epoch, header.base_offset))
    start = log.log_start_offset
    entries = [(entry.epoch, max(start, entry.start)) for entry in log.epochs.entries]
    if [begin for _, begin in entries].count(start) > 1 or (entries and not stored and entries[0][1] == start):
        entries = entries[1:] if log.epochs.entries[0].start < start else entries  # of the records before the start
    if len(entries) > len(expected):
        # Of an epoch without records: they were not durable, or cut.
        assert entries[:-1] == expected
        assert entries[-1][1] == log.log_end_offset
    else:
        assert entries == expected
