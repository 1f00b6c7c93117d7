"""Power is lost before each single system call of a workload that appends, rolls, syncs, checkpoints, cuts and drops.

The disk below keeps, per file, what was synced and the operations since; per folder, the names that were synced and the
changes since. A crash keeps of the rest nothing, everything (as a kill of the process does), everything but the second
half of the last write, or a random choice: of writes any subset, in any order, torn anywhere; of names a prefix.

After every crash: nothing that was reported durable is missing, nothing is there that was not written, epochs match the
records, the log takes appends, and a second recovery changes nothing. After the death of the process alone nothing that
was appended is missing either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from wire.batch import iter_batches
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.unit.dataplane.log.conftest import Batches, Stamped
    from wire.transport import Buffer

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300)
PREALLOCATING = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300, preallocate_bytes=256)


class PowerLoss(BaseException):
    """Not an Exception: nothing in the log may catch it."""


@dataclass(eq=False)
class DiskFile:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(position, bytes), or (length, None) for a change of length; not synced yet."""

    def apply(self, position: int, data: bytes | None) -> None:
        if data is None:
            del self.content[position:]
            self.content.extend(bytes(position - len(self.content)))
        else:
            self.content.extend(bytes(max(0, position - len(self.content))))
            self.content[position : position + len(data)] = data

    def change(self, position: int, data: bytes | None) -> None:
        self.pending.append((position, data))
        self.apply(position, data)

    def sync(self) -> None:
        self.synced = bytes(self.content)
        self.pending.clear()

    def crash(self, survives: Callable[[list[tuple[int, bytes | None]]], list[tuple[int, bytes | None]]]) -> None:
        kept = survives(self.pending)
        self.content = bytearray(self.synced)
        for position, data in kept:
            self.apply(position, data)
        self.sync()


class CrashingDisk:
    """A FileSystem in memory. `crash_at`: the number of the changing call that power is lost in."""

    def __init__(self) -> None:
        self.crash_at = -1
        self.calls = 0
        self.names_now: dict[Path, dict[str, DiskFile]] = {HOME.parent: {}}
        self.names_synced: dict[Path, dict[str, DiskFile]] = {HOME.parent: {}}
        self.name_changes: dict[Path, list[tuple[str, DiskFile | None]]] = {HOME.parent: []}
        self.open_files: dict[int, DiskFile] = {}
        self.next_handle = 3

    # ---- the crash

    def step(self) -> bool:
        """True in the call that does not return."""
        self.calls += 1
        if 0 <= self.crash_at < self.calls - 1:
            raise PowerLoss
        return self.calls - 1 == self.crash_at

    def lose_power(self, how: str, rng: Random) -> None:
        def survives(pending: list[tuple[int, bytes | None]]) -> list[tuple[int, bytes | None]]:
            if how == "nothing":
                return []
            if how == "everything":
                return pending
            if how == "all but half of the last write":
                return [*pending[:-1], *(torn(change, 0.5) for change in pending[-1:])]
            kept = [torn(change, rng.random()) if rng.random() < 0.3 else change for change in pending]
            return [change for change in kept if rng.random() < 0.6]

        def torn(change: tuple[int, bytes | None], where: float) -> tuple[int, bytes | None]:
            position, data = change
            return change if data is None else (position, data[: int(len(data) * where)])

        for directory, changes in self.name_changes.items():
            names = self.names_synced[directory]
            count = {"nothing": 0, "random": rng.randint(0, len(changes))}.get(how, len(changes))
            for name, file in changes[:count]:
                _rename(names, name, file)
            changes.clear()
            self.names_now[directory] = dict(names)
            for file in names.values():
                file.crash(survives)
        self.open_files.clear()
        self.crash_at = -1

    # ---- FileSystem

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        file = self.names_now.get(path.parent, {}).get(path.name)
        if file is None:
            if not create:
                raise FileNotFoundError(path)
            crashes = self.step()
            file = DiskFile()
            self._change_name(path, file)
            if crashes:
                raise PowerLoss
        self.next_handle += 1
        self.open_files[self.next_handle] = file
        return self.next_handle

    def close(self, handle: int) -> None:
        del self.open_files[handle]

    def size(self, handle: int) -> int:
        return len(self.open_files[handle].content)

    def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
        self._change(handle, position, b"".join(parts))

    def truncate(self, handle: int, size: int) -> None:
        self._change(handle, size, None)

    def preallocate(self, handle: int, position: int, size: int) -> None:
        self._change(handle, position + size, None)

    def _change(self, handle: int, position: int, data: bytes | None) -> None:
        crashes = self.step()
        self.open_files[handle].change(position, data)
        if crashes:
            raise PowerLoss

    def read(self, handle: int, size: int, position: int) -> bytes:
        return bytes(self.open_files[handle].content[position : position + size])

    def sync_data(self, handle: int) -> None:
        if self.step():
            raise PowerLoss
        self.open_files[handle].sync()

    def sync_all(self, handle: int) -> None:
        self.sync_data(handle)

    def names(self, directory: Path) -> list[str]:
        return sorted(self.names_now.get(directory, {}))

    def is_directory(self, path: Path) -> bool:
        return path in self.names_now

    def make_directory(self, path: Path) -> None:
        if path not in self.names_now:
            if self.step():
                raise PowerLoss
            self.names_now[path], self.names_synced[path], self.name_changes[path] = {}, {}, []

    def sync_directory(self, path: Path) -> None:
        if self.step():
            raise PowerLoss
        self.names_synced[path] = dict(self.names_now[path])
        self.name_changes[path].clear()

    def rename(self, source: Path, target: Path) -> None:
        assert source.parent == target.parent
        crashes = self.step()
        file = self.names_now[source.parent][source.name]
        # One change: a rename is atomic. The old name goes with the new one's coming.
        self.name_changes[source.parent].append((f"{source.name}\0{target.name}", file))
        _rename(self.names_now[source.parent], f"{source.name}\0{target.name}", file)
        if crashes:
            raise PowerLoss

    def remove(self, path: Path) -> None:
        if path.name in self.names_now[path.parent]:
            crashes = self.step()
            self._change_name(path, None)
            if crashes:
                raise PowerLoss

    def _change_name(self, path: Path, file: DiskFile | None) -> None:
        self.name_changes[path.parent].append((path.name, file))
        _rename(self.names_now[path.parent], path.name, file)

    def remove_tree(self, path: Path) -> None:
        raise NotImplementedError

    def lock(self, path: Path) -> int | None:
        raise NotImplementedError

    def boot_id(self) -> str:
        return "boot"


def _rename(names: dict[str, DiskFile], name: str, file: DiskFile | None) -> None:
    source, _, target = name.partition("\0")
    if file is None or target:
        names.pop(source, None)
    if file is not None:
        names[target or source] = file


class Workload:
    """Drives a log and knows what it must hold after a crash at any point."""

    def __init__(self, disk: CrashingDisk, batches: Batches, config: LogConfig) -> None:
        self.disk = disk
        self.batches = batches
        self.config = config
        self.log: PartitionLog | None = None
        self.histories: list[list[Stamped]] = [[]]
        """What the log may hold a prefix of: the newest, and while a cut is under way, what it was before."""
        self.starts = {0}
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
        self.sync()
        self.checkpoint(25)
        self.append(6, 2)
        self.cut(35)
        self.lead()
        self.append(8, 1)
        self.sync()
        self.checkpoint(36)
        self.cut(20)
        self.lead()
        self.append(12, 2)
        self.sync()
        self.lead()
        self.cut(self.end)
        self.close()
        self.open()
        self.append(9, 3)
        self.sync()
        self.checkpoint(50)
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

    def drop(self, start: int) -> None:
        assert self.log is not None
        self.histories.append([])
        self.starts.add(start)
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

    def check(self, how: str) -> None:
        log, report = PartitionLog.open(HOME, self.config, files=self.disk)
        assert report.damaged is None
        assert how != "everything" or log.log_end_offset >= self.appended, "in the page cache and lost"
        assert log.log_end_offset >= self.durable, "reported durable and lost"
        assert log.durable_end == log.log_end_offset
        assert self.high_watermark <= log.high_watermark <= log.log_end_offset
        assert log.log_start_offset in self.starts
        stored = self.batches.stored(log)
        written = [b"".join(batch.data for batch in history) for history in self.histories]
        assert any(content.startswith(stored) for content in written), "holds what was never written"
        self._check_epochs(log, stored)

        again, second = PartitionLog.open(HOME, self.config, files=self.disk)
        assert (second.damaged, second.truncated_bytes) == (None, 0)
        assert (again.log_end_offset, again.epochs.entries) == (log.log_end_offset, log.epochs.entries)
        assert self.batches.stored(again) == stored
        more = self.batches.append(again, 2, epoch=99)
        again.sync()
        assert self.batches.stored(again) == stored + more.data

    def _check_epochs(self, log: PartitionLog, stored: bytes) -> None:
        expected: list[tuple[int, int]] = []
        for _, header in iter_batches(stored):
            if not expected or expected[-1][0] != header.leader_epoch:
                expected.append((header.leader_epoch, header.base_offset))
        entries = [tuple(entry) for entry in log.epochs.entries]
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
def test_power_loss_at_every_system_call(how: str, config: LogConfig, batches: Batches) -> None:
    disk = CrashingDisk()
    Workload(disk, batches, config).run()
    calls = disk.calls
    assert calls > 200
    for crash_at in range(calls):
        for seed in range(2 if how == "random" else 1):
            disk = CrashingDisk()
            disk.crash_at = crash_at
            workload = Workload(disk, batches, config)
            with pytest.raises(PowerLoss):
                workload.run()
            disk.lose_power(how, Random(seed * 10_000 + crash_at))
            try:
                workload.check(how)
            except Exception as error:
                raise AssertionError(f"crash in call {crash_at} of {calls}, {how}, seed {seed}") from error


@pytest.mark.parametrize("how", ["nothing", "everything", "random"])
def test_power_loss_during_recovery_too(how: str, batches: Batches) -> None:
    for crash_at in range(61, 400, 17):
        for second in range(40):
            disk = CrashingDisk()
            disk.crash_at = crash_at
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
