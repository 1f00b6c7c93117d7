"""The pool of many logs bounds open files and the memory of indexes, for any number of partitions."""

from __future__ import annotations

import itertools
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.files import REAL_FILES, RealFiles
from dataplane.log.storage.log_errors import NoSpace
from dataplane.log.storage.pool import RESERVED_FILES, LoadedIndexes, LogPool, WriteHandles
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.dataplane.log.conftest import Batches

END = Offset(1 << 40)
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200, tail_bytes=0)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) - 1


@contextmanager
def limited_to(more: int) -> Iterator[None]:
    """The process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (number for number in itertools.count() if not Path(f"/proc/self/fd/{number}").exists())
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, more, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class _Unsynced(RealFiles):
    """Without fsync: thousands of them would only take time."""

    def sync_data(self, handle: int) -> None:
        pass

    def sync_all(self, handle: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def test_two_thousand_partitions_live_with_a_hundred_open_files(tmp_path: Path, batches: Batches) -> None:
    number = 2000
    files = _Unsynced()
    pool = LogPool(files, reading=20, writing=40)
    before = open_files()
    with limited_to(100):
        logs = [PartitionLog.open(tmp_path / str(n), CONFIG, files=files, pool=pool)[0] for n in range(number)]
        assert open_files() <= before + 20, "who has written nothing yet holds no handle for writing"
        for _ in range(2):
            for log in logs:
                batches.append(log, 3)
                log.sync()
        for log in logs:
            assert log.read_from_disk(Offset(0), max_bytes=100, end_offset=END)
        assert open_files() <= before + 60
        for log in logs:
            log.close()
    pool.reading.close()
    assert open_files() <= before, "files of earlier tests may be closed meanwhile"


def test_a_log_whose_handle_was_put_aside_goes_on_where_it_was(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, CONFIG)
    written = b""
    for _ in range(30):
        written += batches.append(log).data
        log.sync()
        assert log.put_aside()
        assert not any(segment.has_handle for segment in log.segments)
    assert batches.stored(log) == written
    log.close()
    again, report = PartitionLog.open(tmp_path, CONFIG)
    assert report.damaged is None
    assert batches.stored(again) == written


def test_unsynced_files_are_not_closed(tmp_path: Path, batches: Batches) -> None:
    """An error of its fsync would be lost."""
    log, _ = PartitionLog.open(tmp_path, CONFIG)
    batches.append(log)
    assert not log.put_aside()
    assert log.segments[-1].has_handle
    log.sync()
    with log._state.io_lock:
        assert not log.put_aside(), "a sync is under way"
    assert log.put_aside()


def test_with_too_many_logs_unsynced_appends_are_refused_until_one_is_synced(tmp_path: Path, batches: Batches) -> None:
    pool = LogPool(REAL_FILES, writing=4)
    logs = [PartitionLog.open(tmp_path / str(n), CONFIG, pool=pool)[0] for n in range(7)]
    for log in logs[:6]:
        batches.append(log)
    with pytest.raises(NoSpace, match="6 logs are written to, and none of them is synced"):
        batches.append(logs[6])
    assert logs[6].refusal is None
    assert logs[6].log_end_offset == 0
    logs[0].sync()
    batches.append(logs[6])
    batches.append(logs[6])
    assert sum(log.segments[-1].has_handle for log in logs) == 6
    assert not logs[0].segments[-1].has_handle


def test_no_more_open_files_is_no_failure(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, CONFIG)
    with limited_to(0), pytest.raises(NoSpace):
        batches.append(log)
    batches.append(log)
    assert log.log_end_offset == 1


class _Log:
    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self.written_to = False
        self.can = True
        self._asked = asked

    def put_aside(self) -> bool:
        self._asked.append(self.name)
        return self.can


class TestWriteHandles:
    def test_a_log_written_to_gets_a_second_chance(self) -> None:
        asked: list[str] = []
        a, b, c, d = (_Log(name, asked) for name in "abcd")
        handles = WriteHandles(2)
        handles.take(a)
        handles.take(b)
        a.written_to = True
        handles.take(c)
        assert asked == ["b"]
        assert not a.written_to
        handles.take(d)
        assert asked == ["b", "a"]

    def test_one_that_is_closed_is_not_asked(self) -> None:
        asked: list[str] = []
        a, b, c = (_Log(name, asked) for name in "abc")
        handles = WriteHandles(2)
        handles.take(a)
        handles.take(b)
        handles.closed(a)
        handles.take(c)
        assert asked == []


class _Segment:
    def __init__(self, size: int) -> None:
        self.index_bytes = size
        self.dropped = 0

    def drop_index(self) -> None:
        self.dropped += 1


class TestLoadedIndexes:
    def test_indexes_unused_for_longest_are_dropped(self) -> None:
        indexes = LoadedIndexes(100)
        a, b, c = _Segment(40), _Segment(40), _Segment(40)
        for segment in (a, b, a, c):
            indexes.used(segment)
        assert (a.dropped, b.dropped, c.dropped) == (0, 1, 0)
        indexes.forget(a)
        indexes.used(b)
        assert (a.dropped, b.dropped, c.dropped) == (0, 1, 0)

    def test_one_that_is_larger_than_all_room_is_kept_while_it_is_the_only_one(self) -> None:
        indexes = LoadedIndexes(100)
        large, small = _Segment(1000), _Segment(1)
        indexes.used(large)
        assert not large.dropped
        indexes.used(small)
        assert large.dropped


def test_reading_many_segments_keeps_few_indexes(tmp_path: Path, batches: Batches) -> None:
    pool = LogPool(REAL_FILES, index_bytes=400)
    log, _ = PartitionLog.open(tmp_path, CONFIG, pool=pool)
    batches.fill(log, 200)
    log.sync()
    assert all(segment.index is None for segment in log.segments[:-1]), "what is finished is on the disk"
    stored = batches.stored(log)
    assert sum(segment.index_bytes for segment in log.segments[:-1]) <= 400
    assert batches.stored(log) == stored
    log.remove_before(Offset(150))
    assert set(pool.indexes._segments) <= set(log.segments)


def test_a_look_up_opens_one_segment_however_many_there_are(tmp_path: Path, batches: Batches) -> None:
    opened: list[str] = []

    class Watched(RealFiles):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
            opened.append(path.name)
            return super().open(path, write=write, create=create)

    files = Watched()
    log, _ = PartitionLog.open(tmp_path, CONFIG, files=files, pool=LogPool(files, reading=0))
    batches.fill(log, 200)
    log.sync()
    assert len(log.segments) > 30
    looks_up: tuple[Callable[[], object], ...] = (
        lambda: log.offset_for_timestamp(100_000, END),
        lambda: log.read_from_disk(Offset(60), max_bytes=100, end_offset=END),
    )
    for look_up in looks_up:
        opened.clear()
        look_up()
        assert len(opened) == 2, "an index and its segment"
        assert len({name.partition(".")[0] for name in opened}) == 1
    assert log.offset_for_timestamp(100_000, END) == 100


def test_the_shares_of_a_pool_leave_room_for_everything_else() -> None:
    for open_files in (256, 1024, 65_536, 1 << 20):
        pool = LogPool.within(REAL_FILES, open_files)
        most = pool.reading._capacity + pool.writing._capacity * 3 // 2
        assert most <= max(open_files - RESERVED_FILES, 32)
