"""Removing the oldest segments, also while they are read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.checkpoints import OffsetCheckpoint, read_epochs, read_offsets, write_offsets
from dataplane.log.storage.files import REAL_FILES, RealFiles
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.log.storage.pool import LogPool
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.dataplane.log.conftest import Batches

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200, tail_bytes=0)
END = Offset(1 << 40)


def opened(path: Path, files: RealFiles = REAL_FILES) -> PartitionLog:
    log, report = PartitionLog.open(path, CONFIG, files=files)
    assert report.damaged is None
    return log


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.log"))


@pytest.fixture
def log(tmp_path: Path, batches: Batches) -> PartitionLog:
    log = opened(tmp_path)
    batches.fill(log, 20)
    batches.fill(log, 40, epoch=2)
    log.sync()
    return log


def test_segments_that_lie_wholly_below_the_offset_go(log: PartitionLog, tmp_path: Path, batches: Batches) -> None:
    before = bases(tmp_path)
    stored = batches.stored(log)
    first_kept = before[3]
    gone = log.remove_before(Offset(first_kept + 1))
    assert [segment.base_offset for segment in gone] == before[:3]
    assert bases(tmp_path) == before[3:]
    assert {int(file.stem) for file in tmp_path.glob("*.index")} <= set(before[3:])
    assert log.log_start_offset == first_kept
    assert stored.endswith(batches.stored(log))
    assert log.log_end_offset == 40
    assert log.remove_before(Offset(first_kept + 1)) == ()


def test_the_last_segment_stays_whatever_is_asked(log: PartitionLog, tmp_path: Path) -> None:
    last = bases(tmp_path)[-1]
    log.remove_before(END)
    assert bases(tmp_path) == [last]
    assert (log.log_start_offset, log.log_end_offset) == (last, 40)


def test_the_log_start_and_its_epochs_are_there_after_a_restart(log: PartitionLog, tmp_path: Path) -> None:
    log.remove_before(Offset(30))
    start = log.log_start_offset
    assert start > 20
    assert [tuple(entry) for entry in log.epochs.entries] == [(2, 20)]
    assert read_epochs(REAL_FILES, tmp_path) == log.epochs.entries
    checkpoint = read_offsets(REAL_FILES, tmp_path)
    assert checkpoint is not None
    assert (checkpoint.log_start_offset, checkpoint.high_watermark) == (start, start)
    again = opened(tmp_path)
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (start, 40, start)
    assert again.epochs.entries == log.epochs.entries
    again.truncate(Offset(35))
    again.checkpoint_high_watermark(Offset(33))
    assert opened(tmp_path).log_start_offset == start


def test_an_epoch_that_is_being_appended_does_not_become_durable_before_its_records(
    log: PartitionLog, tmp_path: Path, batches: Batches
) -> None:
    batches.fill(log, 45, epoch=7)
    log.remove_before(Offset(10))
    assert log.durable_end == 45
    assert read_epochs(REAL_FILES, tmp_path) == log.epochs.entries
    assert log.epochs.latest == 7


def test_below_the_start_readers_are_told_where_it_is(log: PartitionLog) -> None:
    log.remove_before(Offset(30))
    with pytest.raises(TidelogError) as refused:
        log.read_from_disk(Offset(3), max_bytes=100, end_offset=END)
    assert refused.value.code is Code.OFFSET_BEFORE_LOG
    assert refused.value.details["log_start"] == str(log.log_start_offset)


class _Interrupting(RealFiles):
    """Does something before the next segment is opened."""

    def __init__(self) -> None:
        self.then: Callable[[], object] = lambda: None

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        if path.suffix == ".log":
            then, self.then = self.then, lambda: None
            then()
        return super().open(path, write=write, create=create)


def test_a_reader_of_a_removed_segment_is_told_the_log_start(tmp_path: Path, batches: Batches) -> None:
    files = _Interrupting()
    log = opened(tmp_path, files)
    batches.fill(log, 40)
    log.sync()
    for read_at, remove_below in ((3, 12), (12, 30)):
        files.then = partial(log.remove_before, Offset(remove_below))
        with pytest.raises(TidelogError) as refused:
            log.read_from_disk(Offset(read_at), max_bytes=100, end_offset=END)
        assert refused.value.code is Code.OFFSET_BEFORE_LOG
    assert log.refusal is None


def test_a_look_up_by_time_during_the_removal_finds_a_remaining_record(tmp_path: Path, batches: Batches) -> None:
    files = _Interrupting()
    log = opened(tmp_path, files)
    batches.fill(log, 40)
    log.sync()
    files.then = partial(log.remove_before, Offset(30))
    assert log.offset_for_timestamp(1000, END) == log.log_start_offset > 20


def test_the_headers_of_a_log_are_read_on_where_it_now_begins(tmp_path: Path, batches: Batches) -> None:
    log = opened(tmp_path)
    batches.fill(log, 40)
    log.sync()
    headers = log.producer_batches(Offset(0))
    first = next(headers)
    log.remove_before(Offset(30))
    rest = [header.base_offset for header in headers]
    assert first.base_offset == 0
    assert rest[-1] == 39
    assert [offset for offset in rest if offset >= log.log_start_offset] == list(range(log.log_start_offset, 40))


def test_no_handle_of_a_removed_segment_is_kept(tmp_path: Path, batches: Batches) -> None:
    pool = LogPool(REAL_FILES)
    handles = pool.reading
    log, _ = PartitionLog.open(tmp_path, CONFIG, pool=pool)
    batches.fill(log, 40)
    log.sync()
    with handles.borrow(tmp_path / f"{0:020d}.log"):
        log.remove_before(Offset(30))
    batches.stored(log)
    assert {path.stem for path in handles._idle} == {f"{base:020d}" for base in bases(tmp_path)}


class TestAtOpen:
    def test_segments_that_a_crash_left_below_the_start_are_removed(
        self, log: PartitionLog, tmp_path: Path, batches: Batches
    ) -> None:
        old = {file: file.read_bytes() for suffix in ("log", "index") for file in sorted(tmp_path.glob(f"*.{suffix}"))}
        log.remove_before(Offset(30))
        stored = batches.stored(log)
        for file, content in list(old.items())[1:]:
            if int(file.stem) < log.log_start_offset:
                file.write_bytes(content)
        again = opened(tmp_path)
        assert again.log_start_offset == log.log_start_offset == bases(tmp_path)[0]
        assert batches.stored(again) == stored

    def test_a_missing_first_segment_is_damage_and_the_rest_can_be_read(
        self, log: PartitionLog, tmp_path: Path
    ) -> None:
        log.remove_before(Offset(10))
        first, second, *_ = bases(tmp_path)
        (tmp_path / f"{first:020d}.log").unlink()
        content = {file: file.read_bytes() for file in tmp_path.iterdir()}
        again, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged is not None
        assert f"the segment that begins at {first} is missing" in report.damaged
        assert again.log_start_offset == second
        assert again.read_from_disk(Offset(second), max_bytes=100, end_offset=END)
        with pytest.raises(LogDamaged):
            again.append([], [])
        assert again.remove_before(Offset(30)) == ()
        kept = {file: file.read_bytes() for file in tmp_path.iterdir()}
        assert {f: c for f, c in kept.items() if f.suffix != ".index"} == {
            f: c for f, c in content.items() if f.suffix != ".index"
        }, "nothing is cut before the replica has left the ISR"

    def test_a_log_that_held_no_record_any_more_may_lose_its_only_file(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        log.drop_all(Offset(50))
        (tmp_path / f"{50:020d}.log").unlink()
        again = opened(tmp_path)
        assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (50, 50, 50)

    def test_a_checkpoint_of_an_earlier_version_says_nothing_of_the_start(
        self, log: PartitionLog, tmp_path: Path
    ) -> None:
        first, second, *_ = bases(tmp_path)
        log.close()
        write_offsets(REAL_FILES, tmp_path, OffsetCheckpoint(Offset(40), Offset(40)))
        (tmp_path / f"{first:020d}.log").unlink()
        assert opened(tmp_path).log_start_offset == second


def test_an_epoch_without_records_at_the_end_stays(tmp_path: Path, batches: Batches) -> None:
    log = opened(tmp_path)
    batches.fill(log, 40)
    log.assign_epoch(LeaderEpoch(5), Offset(40))
    log.remove_before(Offset(30))
    assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (5, 40)]
    batches.fill(log, 41, epoch=5)
    assert opened(tmp_path).epochs.entries == log.epochs.entries
