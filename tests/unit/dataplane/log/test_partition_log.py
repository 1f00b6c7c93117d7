"""Appending, reading, looking up, syncing and cutting on a real disk."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.segments.index import SparseIndex, decode_entries
from dataplane.log.storage.checkpoints import read_epochs
from dataplane.log.storage.files import REAL_FILES, RealFiles
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.log.storage.pool import LogPool
from dataplane.replica.derived.epochs import EpochEntry
from wire.batch import control_batch, iter_batches, parse_header
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.dataplane.log.conftest import Batches
    from wire.types import Buffer

SMALL = LogConfig(segment_bytes=4096, index_interval_bytes=512)
END = Offset(1 << 40)


def opened(path: Path, config: LogConfig = SMALL, files: RealFiles = REAL_FILES) -> PartitionLog:
    log, report = PartitionLog.open(path, config, files=files)
    assert report.damaged is None
    return log


def end_of(block: Buffer | Sequence[Buffer] | None) -> int:
    assert block
    data = block if isinstance(block, (bytes, bytearray, memoryview)) else b"".join(block)
    return max(header.end_offset for _, header in iter_batches(data))


def open_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class TestAppending:
    def test_a_new_log_is_empty(self, tmp_path: Path) -> None:
        log = opened(tmp_path / "a" / "b")
        assert (log.log_start_offset, log.log_end_offset, log.durable_end, log.high_watermark) == (0, 0, 0, 0)
        assert not log.needs_sync
        assert log.read(Offset(0), max_bytes=100, end_offset=END) == []
        assert log.read_from_disk(Offset(0), max_bytes=100, end_offset=END) == b""

    def test_batches_come_back_byte_for_byte_through_rolls(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        written = b"".join(batches.append(log, 1 + n % 5).data for n in range(100))
        assert len(list(tmp_path.glob("*.log"))) > 3
        assert batches.stored(log) == written
        assert log.size_bytes == len(written) == sum(file.stat().st_size for file in tmp_path.glob("*.log"))
        log.close()
        assert batches.stored(opened(tmp_path)) == written

    def test_the_bytes_from_an_offset_on_are_about_those_of_its_batches(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        sizes = [len(batches.append(log, 2).data) for _ in range(100)]
        assert len(log.segments) > 3
        assert log.bytes_from(Offset(0)) == log.size_bytes
        assert log.bytes_from(log.log_end_offset) == log.bytes_from(Offset(1_000_000)) == 0
        largest = max(segment.size for segment in log.segments)
        for at in range(100):
            assert abs(log.bytes_from(Offset(2 * at)) - sum(sizes[at:])) < largest
        for segment in log.segments:
            at = segment.base_offset // 2
            assert log.bytes_from(Offset(segment.base_offset)) == sum(sizes[at:]), "exact where a segment begins"

    def test_parts_may_be_split_anywhere(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        three = [batches.one(0, 2), batches.one(2, 3), batches.one(5, 1, epoch=2)]
        data = b"".join(batch.data for batch in three)
        log.append([data[:50], memoryview(data)[50:300], data[300:]], [batch.header for batch in three])
        assert log.log_end_offset == 6
        assert batches.stored(log) == data
        for batch in three:
            read = log.read(batch.header.base_offset, max_bytes=1, end_offset=END)
            assert read is not None
            assert b"".join(read) == batch.data

    def test_a_batch_may_begin_above_the_end_but_not_below_it(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.append(log, 5)
        above = batches.one(20)
        log.append(above.parts, [above.header])
        with pytest.raises(InvariantViolation, match="does not continue"):
            log.append((below := batches.one(20)).parts, [below.header])
        for offset in (5, 12, 20):
            assert parse_header(log.read_from_disk(Offset(offset), max_bytes=1, end_offset=END)).base_offset == 20
        log.close()
        assert opened(tmp_path).log_end_offset == 21

    def test_a_batch_of_an_older_epoch_is_refused_and_changes_nothing(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.append(log, epoch=3)
        with pytest.raises(InvariantViolation):
            batches.append(log, epoch=2)
        assert log.log_end_offset == 1
        assert log.epochs.entries == (EpochEntry(LeaderEpoch(3), Offset(0)),)

    def test_bytes_that_do_not_match_the_headers_are_refused(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batch = batches.one(0)
        with pytest.raises(InvariantViolation, match="bytes"):
            log.append([*batch.parts, b"more"], [batch.header])
        assert log.size_bytes == 0

    def test_more_parts_than_one_system_call_takes(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig())
        data = batches.one(0, 200).data
        log.append([data[at : at + 3] for at in range(0, len(data), 3)], [parse_header(data)])
        assert batches.stored(log) == data

    def test_the_first_timestamp_of_a_segment_that_was_cut_meanwhile(self, tmp_path: Path, batches: Batches) -> None:
        """It holds nothing, which is no damage."""
        log = opened(tmp_path)
        batches.fill(log, 100)
        last = log.segments[-1].base_offset
        assert log.first_timestamp(last) == 1000 * last
        log.truncate(Offset(last))
        assert (log.segments[-1].base_offset, log.first_timestamp(last)) == (last, None)


class TestReading:
    def test_whole_batches_from_the_one_that_holds_the_offset(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(index_interval_bytes=512))
        batches.fill(log, 100, each=5)
        size = batches.one(50, 5).header.size
        for read in (log.read, log.read_from_disk):
            for offset in (50, 52, 54):
                assert end_of(read(Offset(offset), max_bytes=1, end_offset=END)) == 55
                assert end_of(read(Offset(offset), max_bytes=2 * size, end_offset=END)) == 60
                assert end_of(read(Offset(offset), max_bytes=2 * size - 1, end_offset=END)) == 55

    def test_no_batch_that_ends_above_the_end_offset(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(index_interval_bytes=512))
        batches.fill(log, 100, each=5)
        for read in (log.read, log.read_from_disk):
            assert end_of(read(Offset(50), max_bytes=1 << 20, end_offset=Offset(57))) == 55
            assert end_of(read(Offset(50), max_bytes=1 << 20, end_offset=Offset(60))) == 60
            assert not read(Offset(51), max_bytes=1 << 20, end_offset=Offset(54))
            assert not read(Offset(100), max_bytes=1 << 20, end_offset=END)

    def test_a_batch_larger_than_the_limit_is_returned_alone(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        large = batches.append(log, 3, size=20_000)
        batches.append(log)
        assert log.read_from_disk(Offset(1), max_bytes=10, end_offset=END) == large.data

    def test_batches_outside_of_memory_are_read_from_disk(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(tail_bytes=2000))
        batches.fill(log, 5000)
        assert log.read(Offset(4000), max_bytes=1, end_offset=END) is None
        assert end_of(log.read(Offset(4999), max_bytes=1, end_offset=END)) == 5000
        assert end_of(log.read_from_disk(Offset(4000), max_bytes=1, end_offset=END)) == 4001

    def test_before_the_start_of_the_log(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        log.drop_all(Offset(50))
        batches.append(log)
        with pytest.raises(TidelogError) as caught:
            log.read_from_disk(Offset(49), max_bytes=1, end_offset=END)
        assert caught.value.code is Code.OFFSET_BEFORE_LOG
        assert caught.value.details == {"log_start": "50"}

    def test_a_damaged_header_is_never_served(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(tail_bytes=0))
        batches.fill(log, 10)
        size = batches.one(0).header.size
        with next(tmp_path.glob("*.log")).open("r+b") as file:
            file.seek(5 * size + 1)
            file.write(b"\xff")
        assert end_of(log.read_from_disk(Offset(0), max_bytes=5 * size, end_offset=END)) == 5
        with pytest.raises(CorruptData, match=f"at byte {5 * size}"):
            log.read_from_disk(Offset(5), max_bytes=1, end_offset=END)
        with pytest.raises(CorruptData, match=f"at byte {5 * size}"):
            log.read_from_disk(Offset(0), max_bytes=6 * size, end_offset=END)

    @pytest.mark.parametrize("which_read", [1, 2])
    def test_batches_replaced_during_a_read_are_not_returned(
        self, tmp_path: Path, batches: Batches, which_read: int
    ) -> None:
        class CutsMeanwhile(RealFiles):
            reads = -1

            def read(self, handle: int, size: int, position: int) -> bytes:
                data = super().read(handle, size, position)
                self.reads += self.reads >= 0
                if self.reads == which_read:
                    self.reads = -1
                    log.truncate(Offset(3))
                    batches.fill(log, 10, epoch=2, size=77)
                return data

        files = CutsMeanwhile()
        log = opened(tmp_path, LogConfig(tail_bytes=0), files)
        batches.fill(log, 10)
        files.reads = 0
        block = log.read_from_disk(Offset(5), max_bytes=400, end_offset=END)
        assert files.reads == -1
        assert {header.leader_epoch for _, header in iter_batches(block)} == {2}
        assert parse_header(block).base_offset == 5

    @pytest.mark.slow
    def test_reading_goes_on_while_the_log_is_appended_rolled_synced_and_cut(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        log = opened(tmp_path, LogConfig(segment_bytes=4096, index_interval_bytes=256, tail_bytes=0))
        batches.fill(log, 50)
        epochs = dict.fromkeys(range(50), 1)
        stop = threading.Event()
        failures: list[BaseException] = []
        reads = 0

        def reader() -> None:
            nonlocal reads
            try:
                while not stop.is_set():
                    end = log.log_end_offset
                    offset = Offset(max(0, end - 30))
                    block = log.read_from_disk(offset, max_bytes=3000, end_offset=end)
                    for at, header in iter_batches(block):
                        value = bytes(block[at + 96 : at + header.size])
                        # The record says which epoch wrote it: a mixture of old and new bytes would not match.
                        assert f" of {header.leader_epoch} ".encode() in value
                        assert header.base_offset in epochs
                    reads += 1
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        thread = threading.Thread(target=reader)
        thread.start()
        for epoch in range(2, 60):
            log.sync()
            log.truncate(Offset(log.log_end_offset - 20))
            for _ in range(35):
                epochs[log.log_end_offset] = epoch
                batches.append(log, epoch=epoch)
        stop.set()
        thread.join()
        assert not failures
        assert reads

    def test_open_files_are_bounded(self, tmp_path: Path, batches: Batches) -> None:
        pool = LogPool(REAL_FILES, reading=3)
        log, _ = PartitionLog.open(tmp_path, LogConfig(segment_bytes=4096, tail_bytes=0), pool=pool)
        batches.fill(log, 1000)
        log.sync()
        before = open_handles()
        batches.stored(log)
        assert len(list(tmp_path.glob("*.log"))) > 20
        assert open_handles() <= before + 3
        pool.reading.close()
        assert open_handles() == before


class TestSpans:
    def test_where_so_many_bytes_end(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 500)
        each = log.size_bytes / 500
        assert len(log.segments) > 5
        for log in (log, opened(tmp_path)):  # noqa: B020 - the second time with the indexes on disk
            for begin, count, end in [(0, 100, 500), (0, 1, 500), (7, 250, 400), (499, 1, 500), (123, 300, 500)]:
                found, size = log.span(Offset(begin), int(count * each), Offset(end))
                assert abs(found - min(begin + count, end)) <= 1
                assert abs(size - (end - begin) * each) <= 2 * each

    def test_it_moves_on_and_not_beyond_the_end(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100, each=10, size=400)
        assert log.span(Offset(5), 1, Offset(100))[0] == 6
        assert log.span(Offset(5), 1 << 40, Offset(100))[0] == 100
        assert log.span(Offset(5), 1 << 40, Offset(31))[0] == 31
        assert log.span(Offset(31), 5, Offset(31)) == (31, 0)
        assert log.span(Offset(200), 5, Offset(100)) == (100, 0)
        assert opened(tmp_path / "empty").span(Offset(0), 5, Offset(0)) == (0, 0)

    def test_of_records_that_differ_in_size(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(segment_bytes=1 << 20, index_interval_bytes=512))
        batches.fill(log, 100, size=40)
        small = log.size_bytes
        batches.fill(log, 200, size=2000)
        large = (log.size_bytes - small) / 100
        found, size = log.span(Offset(0), small + int(10 * large), Offset(200))
        assert abs(found - 110) <= 1
        assert abs(size - log.size_bytes) < 10

    def test_below_the_log(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 500)
        log.remove_before(Offset(log.segments[3].base_offset))
        begin = log.log_start_offset
        assert log.span(begin, 1 << 40, Offset(500)) == (500, log.size_bytes)
        with pytest.raises(TidelogError) as caught:
            log.span(Offset(begin - 1), 1, Offset(500))
        assert caught.value.code is Code.OFFSET_BEFORE_LOG


class TestTimestamps:
    def test_the_first_record_of_at_least_that_time(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 500, each=5)
        for wanted, found in [(-5, 0), (0, 0), (1, 1), (7000, 7), (252_001, 253), (499_000, 499), (499_001, None)]:
            assert log.offset_for_timestamp(wanted, END) == found
        log.close()
        assert opened(tmp_path).offset_for_timestamp(252_001, END) == 253

    def test_not_above_the_end_offset(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 50, each=5)
        assert log.offset_for_timestamp(30_000, Offset(31)) == 30
        assert log.offset_for_timestamp(30_000, Offset(30)) is None

    def test_timestamps_need_not_grow(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(segment_bytes=1 << 20, index_interval_bytes=1))
        for offset, timestamps in enumerate([[10, 50], [20, 30], [60, 5], [40, 70]]):
            batch = batches.one(2 * offset, 2, timestamps=timestamps)
            log.append(batch.parts, [batch.header])
        found = {t: log.offset_for_timestamp(t, END) for t in (5, 10, 11, 50, 51, 61, 71)}
        assert found == {5: 0, 10: 0, 11: 1, 50: 1, 51: 4, 61: 7, 71: None}

    def test_control_batches_do_not_count(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        parts, header = control_batch(1, 0, b"", timestamp=9_000_000).stamp(Offset(0), LeaderEpoch(1))
        log.append(parts, [header])
        assert log.offset_for_timestamp(0, END) is None
        batches.append(log)
        assert log.offset_for_timestamp(0, END) == 1


class TestSyncing:
    def test_durable_end_follows_the_sync(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 10)
        assert log.needs_sync
        assert log.durable_end == 0
        assert log.sync() == 10
        assert log.durable_end == 10
        assert not log.needs_sync

    def test_the_page_cache_keeps_the_wanted_and_the_unsynced_bytes(self, tmp_path: Path, batches: Batches) -> None:
        forgotten: list[tuple[int, int]] = []

        class Watched(RealFiles):
            def forget_cached(self, handle: int, position: int, size: int) -> None:
                forgotten.append((position, position + size))
                super().forget_cached(handle, position, size)

        mib = 1 << 20
        log = opened(tmp_path, LogConfig(segment_bytes=64 * mib), Watched())

        def grow(size: int) -> None:
            end = log.size_bytes + size
            while log.size_bytes < end:
                batches.append(log, 16, size=64 << 10)

        grow(8 * mib)
        log.sync()
        assert forgotten == [], "nobody said that it is not wanted"
        log.cached_bytes = 2 * mib
        grow(2 * mib)
        assert forgotten == [], "nothing is while it is not synced"
        log.sync()
        first = log.size_bytes - 2 * mib
        assert forgotten == [(0, first)]
        grow(3 * mib)
        log.sync()
        assert forgotten == [(0, first)], "not a little at a time"
        grow(3 * mib)
        log.sync()
        assert forgotten == [(0, first), (first, log.size_bytes - 2 * mib)]
        log.truncate(Offset(64))
        cut = log.size_bytes
        grow(8 * mib)
        log.sync()
        assert forgotten[2:] == [(cut, log.size_bytes - 2 * mib)], "what is written anew is new"
        log.cached_bytes = None
        grow(8 * mib)
        log.sync()
        assert len(forgotten) == 3
        assert batches.stored(log)

    def test_epochs_are_in_the_batches_that_an_open_reads(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        for epoch in (1, 4, 5):
            batches.append(log, epoch=epoch)
            log.sync()
            log.checkpoint_high_watermark(log.log_end_offset)
        assert not (tmp_path / "leader-epoch-checkpoint").exists()
        assert opened(tmp_path).epochs.entries == log.epochs.entries

    def test_epochs_are_on_disk_before_an_index_entry_behind_their_beginning(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        calls: list[str] = []

        class Watched(RealFiles):
            def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
                if path.suffix == ".index" and create:
                    calls.append("index")
                return super().open(path, write=write, create=create)

            def rename(self, source: Path, target: Path) -> None:
                calls.append(target.name)
                super().rename(source, target)

        log = opened(tmp_path, files=Watched())
        batches.fill(log, 10)
        batches.fill(log, 12, epoch=2)
        log.sync()
        calls.clear()
        log.checkpoint_high_watermark(Offset(3))
        assert calls == ["leader-epoch-checkpoint", "index", "replication-offset-checkpoint"]
        index = SparseIndex(0, decode_entries((tmp_path / f"{0:020d}.index").read_bytes()))
        begun = {entry.epoch for entry in log.epochs.entries if entry.start < index.last.offset}
        assert begun
        assert begun == {entry.epoch for entry in read_epochs(REAL_FILES, tmp_path) or ()}
        batches.fill(log, 30, epoch=3)
        log.close()
        assert read_epochs(REAL_FILES, tmp_path) == log.epochs.entries

    def test_the_tail_is_synced_before_the_epoch_that_follows_it_is_recorded(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        log = opened(tmp_path)
        batches.append(log)
        log.assign_epoch(LeaderEpoch(7), Offset(1))
        assert log.durable_end == 1
        assert log.epochs.entries == (EpochEntry(LeaderEpoch(1), Offset(0)), EpochEntry(LeaderEpoch(7), Offset(1)))
        with pytest.raises(InvariantViolation):
            log.assign_epoch(LeaderEpoch(8), Offset(0))

    def test_an_epoch_without_a_record_ends_with_the_process(self, tmp_path: Path, batches: Batches) -> None:
        """Its leader begins another one."""
        log = opened(tmp_path)
        batches.fill(log, 3)
        log.assign_epoch(LeaderEpoch(7), Offset(3))
        assert opened(tmp_path).epochs.latest == 1

    @pytest.mark.parametrize(("epoch", "entries"), [(1, [(1, 0)]), (8, [(1, 0), (8, 20)])])
    def test_an_epoch_without_a_record_goes_when_a_batch_begins_above_the_end(
        self, tmp_path: Path, batches: Batches, epoch: int, entries: list[tuple[int, int]]
    ) -> None:
        """Compaction left a gap in the log that this one copies."""
        log = opened(tmp_path)
        batches.fill(log, 3)
        log.assign_epoch(LeaderEpoch(7), Offset(3))
        above = batches.one(20, epoch=epoch)
        log.append(above.parts, [above.header])
        assert [*log.epochs.entries] == entries
        assert opened(tmp_path).epochs.entries == log.epochs.entries
        log.sync()
        assert opened(tmp_path).epochs.entries == log.epochs.entries

    def test_a_failed_fsync_is_final(self, tmp_path: Path, batches: Batches) -> None:
        class Failing(RealFiles):
            syncs = 0

            def sync_data(self, handle: int) -> None:
                self.syncs += 1
                raise OSError(errno.EIO, "Input/output error")

        files = Failing()
        log = opened(tmp_path, files=files)
        batch = batches.append(log)
        for attempt in (
            log.sync,
            log.sync,
            lambda: log.checkpoint_high_watermark(Offset(1)),
            lambda: log.truncate(Offset(0)),
            lambda: batches.append(log),
            lambda: log.assign_epoch(LeaderEpoch(2), Offset(1)),
        ):
            with pytest.raises(LogDamaged, match="Input/output error"):
                attempt()
        assert files.syncs == 1
        assert log.durable_end == 0
        assert log.refusal
        assert not log.needs_sync
        assert log.read_from_disk(Offset(0), max_bytes=1, end_offset=END) == batch.data

    def test_a_failed_write_is_final(self, tmp_path: Path, batches: Batches) -> None:
        class Broken(RealFiles):
            broken = False

            def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
                if self.broken:
                    raise OSError(errno.EIO, "Input/output error")
                super().write(handle, parts, position)

        files = Broken()
        log = opened(tmp_path, files=files)
        batches.append(log)
        files.broken = True
        with pytest.raises(LogDamaged, match=r"Input/output error.*nothing is written"):
            batches.append(log)
        files.broken = False
        with pytest.raises(LogDamaged):
            batches.append(log)
        assert log.log_end_offset == 1

    def test_records_written_while_a_sync_runs_are_not_called_durable(self, tmp_path: Path, batches: Batches) -> None:
        class AppendsMeanwhile(RealFiles):
            log: PartitionLog | None = None

            def sync_data(self, handle: int) -> None:
                super().sync_data(handle)
                if self.log is not None:
                    log, self.log = self.log, None
                    batches.fill(log, 200, epoch=2)  # through a roll

        files = AppendsMeanwhile()
        log = opened(tmp_path, files=files)
        batches.fill(log, 3)
        files.log = log
        assert log.sync() == 3
        assert log.needs_sync
        assert log.sync() == 200
        assert [entry.start for entry in log.epochs.entries] == [0, 3]


class TestCutting:
    def test_a_cut_inside_a_batch_takes_the_whole_batch(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100, each=5)
        assert log.truncate(Offset(52)) == 50
        assert log.log_end_offset == log.durable_end == 50
        assert len(batches.stored(log)) == log.size_bytes
        assert log.read(Offset(49), max_bytes=1, end_offset=END) is None
        assert opened(tmp_path).log_end_offset == 50

    @pytest.mark.parametrize("cut", [0, 1, 37, 99, 100])
    def test_the_log_goes_on_where_it_was_cut(self, tmp_path: Path, batches: Batches, cut: int) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100)
        log.sync()
        log.checkpoint_high_watermark(Offset(100))
        assert log.truncate(Offset(cut)) == cut
        assert log.high_watermark == cut
        batches.fill(log, 150, epoch=2)
        expected = b"".join(
            [batches.one(n).data for n in range(cut)] + [batches.one(n, epoch=2).data for n in range(cut, 150)]
        )
        assert batches.stored(log) == expected
        assert [log.offset_for_timestamp(1000 * n, END) for n in range(0, 150, 7)] == list(range(0, 150, 7))
        log.close()
        again = opened(tmp_path)
        assert batches.stored(again) == expected
        assert [entry.start for entry in again.epochs.entries] == ([0, cut] if cut else [0])

    def test_an_epoch_without_records_goes_with_a_cut_at_the_end(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 3)
        log.assign_epoch(LeaderEpoch(7), Offset(3))
        assert log.truncate(Offset(3)) == 3
        assert log.epochs.latest == 1
        assert opened(tmp_path).epochs.latest == 1

    def test_dropping_everything_goes_on_at_the_leaders_start(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100)
        log.sync()
        log.drop_all(Offset(1000))
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.durable_end) == (1000,) * 4
        assert log.epochs.entries == ()
        batches.fill(log, 1010, epoch=5)
        stored = batches.stored(log)
        log.close()
        again = opened(tmp_path)
        assert batches.stored(again) == stored
        assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (1000, 1010, 1000)

    def test_a_cut_before_the_start_removes_every_record(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        log.drop_all(Offset(10))
        batches.fill(log, 20)
        assert log.truncate(Offset(9)) == 10
        assert (log.log_start_offset, log.log_end_offset) == (10, 10)


def test_headers_from_an_offset_on(tmp_path: Path, batches: Batches) -> None:
    log = opened(tmp_path)
    batches.fill(log, 300, each=3)
    assert [header.base_offset for header in log.producer_batches(Offset(100))] == list(range(99, 300, 3))
    assert len(list(log.producer_batches(Offset(0)))) == 100
    assert list(log.producer_batches(Offset(300))) == []
