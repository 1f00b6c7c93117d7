"""Opening a log with a torn tail, reserved room, damage in the middle, or lost or damaged side files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.recovery.damage import Quarantine, read_mark, set_mark
from dataplane.log.segments.index import ENTRY_SIZE
from dataplane.log.storage.checkpoints import OffsetCheckpoint, read_epochs, read_offsets, write_offsets
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.log_errors import LogDamaged
from wire.errors import InvariantViolation
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.dataplane.log.conftest import Batches

CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=512)
END = Offset(1 << 40)


def opened(path: Path, config: LogConfig = CONFIG) -> PartitionLog:
    log, report = PartitionLog.open(path, config)
    assert report.damaged is None
    return log


def killed(path: Path, batches: Batches, *, records: int = 100, checkpoint: int | None = None) -> bytes:
    """The content of a log whose process was killed: it is never closed."""
    log = opened(path)
    batches.fill(log, records // 2)
    batches.fill(log, records, epoch=2)
    if checkpoint is not None:
        log.sync()
        log.checkpoint_high_watermark(Offset(checkpoint))
    return batches.stored(log)


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def change(path: Path, at: int, data: bytes = b"\xff\xff") -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(data)


class TestAfterAKill:
    def test_everything_is_found_and_durable(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches)
        log = opened(tmp_path)
        assert batches.stored(log) == stored
        assert log.durable_end == log.log_end_offset == 100
        assert [tuple(entry) for entry in log.epochs.entries] == [(1, 0), (2, 50)]
        assert read_epochs(REAL_FILES, tmp_path) == log.epochs.entries

    def test_only_records_after_the_last_checkpoint_are_scanned(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(index_interval_bytes=512))
        batches.fill(log, 2000)
        log.sync()
        log.checkpoint_high_watermark(Offset(1000))
        size = batches.append(log).header.size
        _, report = PartitionLog.open(tmp_path, CONFIG)
        assert size <= report.scanned_bytes <= size + 512 + size
        assert report.checkpoint_high_watermark == 1000
        _, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.scanned_bytes <= 512 + size

    def test_nothing_is_scanned_after_a_close(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100)
        log.close()
        _, report = PartitionLog.open(tmp_path, CONFIG)
        assert (report.scanned_bytes, report.truncated_bytes) == (0, 0)

    @pytest.mark.parametrize("left", [1, 50, 95, 96, 100, 140])
    def test_a_torn_batch_is_cut(self, tmp_path: Path, batches: Batches, left: int) -> None:
        stored = killed(tmp_path, batches)
        with segments(tmp_path)[-1].open("ab") as file:
            file.write(batches.one(100).data[:left])
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged is None
        assert report.truncated_bytes == left
        assert batches.stored(log) == stored
        batches.append(log, epoch=3)
        assert opened(tmp_path).log_end_offset == 101

    def test_a_batch_with_a_wrong_body_is_cut(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        change(segments(tmp_path)[-1], -10)
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert (log.log_end_offset, report.damaged) == (99, None)
        assert report.truncated_bytes == batches.one(99).header.size

    def test_zeros_are_reserved_room_and_the_end_of_the_log(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches)
        with segments(tmp_path)[-1].open("ab") as file:
            file.write(bytes(10_000))
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert (report.damaged, report.truncated_bytes) == (None, 0)
        assert batches.stored(log) == stored

    def test_room_reserved_ahead_is_given_back(self, tmp_path: Path, batches: Batches) -> None:
        config = LogConfig(segment_bytes=4096, preallocate_bytes=2048)
        log = opened(tmp_path, config)
        batches.fill(log, 30)
        assert segments(tmp_path)[-1].stat().st_size > log.segments[-1].size
        stored = batches.stored(log)
        assert batches.stored(opened(tmp_path, config)) == stored
        log.close()
        assert sum(path.stat().st_size for path in segments(tmp_path)) == len(stored)

    def test_a_torn_batch_in_a_segment_that_was_rolled_but_not_synced(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        second = segments(tmp_path)[1]
        change(second, -10)
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged is None
        assert segments(tmp_path)[-1] == second
        assert log.log_end_offset < 100
        assert batches.stored(log) == b"".join(
            batches.one(n, epoch=1 + n // 50).data for n in range(log.log_end_offset)
        )

    def test_files_of_an_unfinished_write_are_removed(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        (tmp_path / "leader-epoch-checkpoint.tmp").write_bytes(b"half")
        (tmp_path / "00000000000000999999.index").write_bytes(b"half")
        opened(tmp_path)
        assert not list(tmp_path.glob("*.tmp"))
        assert not (tmp_path / "00000000000000999999.index").exists()


class TestWhatAKillLeaves:
    """The page cache has survived: everything but a write that was broken off is damage."""

    def survived(self, path: Path) -> tuple[PartitionLog, str | None]:
        log, report = PartitionLog.open(path, CONFIG, page_cache_survived=True)
        return log, report.damaged

    @pytest.mark.parametrize("left", [1, 63, 64, 65, 100, 140])
    def test_a_write_that_was_broken_off_is_cut(self, tmp_path: Path, batches: Batches, left: int) -> None:
        stored = killed(tmp_path, batches)
        assert left < batches.one(100).header.size
        with segments(tmp_path)[-1].open("ab") as file:
            file.write(batches.one(100).data[:left])
        log, damaged = self.survived(tmp_path)
        assert damaged is None
        assert batches.stored(log) == stored

    def test_any_flipped_bit_is_damage(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, records=8)
        (segment,) = segments(tmp_path)
        for at in range(0, len(stored), 11):
            change(segment, at, bytes([stored[at] ^ 16]))
            log, damaged = self.survived(tmp_path)
            assert damaged is not None
            assert str(log.log_end_offset) in damaged
            assert stored.startswith(batches.stored(log))
            change(segment, at, stored[at : at + 1])
        assert batches.stored(self.survived(tmp_path)[0]) == stored

    def test_a_sound_segment_behind_a_torn_one_is_damage(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        torn = segments(tmp_path)[1]
        os.truncate(torn, torn.stat().st_size - 9)
        assert self.survived(tmp_path)[1] is not None

    def test_zeros_behind_the_log_are_damage(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        with segments(tmp_path)[-1].open("ab") as file:
            file.write(bytes(200))
        assert self.survived(tmp_path)[1] is not None


class TestTheMark:
    def test_a_marked_log_is_read_only_until_the_damage_is_cut(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100)
        log.close()
        stored = batches.stored(opened(tmp_path))
        set_mark(REAL_FILES, tmp_path, "a reader met it")
        set_mark(REAL_FILES, tmp_path, "another reader met it")
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged == "a reader met it"
        assert batches.stored(log) == stored
        with pytest.raises(LogDamaged):
            batches.append(log)
        log.checking.cut_damage(log.checking.examine(), when_ns=0, lost=False)
        assert read_mark(REAL_FILES, tmp_path) is None
        assert batches.stored(log) == stored
        batches.append(log)
        assert opened(tmp_path).log_end_offset == 101

    def test_nothing_is_cut_from_a_marked_log(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        change(segments(tmp_path)[-1], -10)
        set_mark(REAL_FILES, tmp_path, "a reader met it")
        before = [path.read_bytes() for path in segments(tmp_path)]
        assert PartitionLog.open(tmp_path, CONFIG)[1].damaged == "a reader met it"
        assert [path.read_bytes() for path in segments(tmp_path)] == before

    def test_a_mark_that_cannot_be_read_is_a_mark(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches)
        (tmp_path / "damaged").write_bytes(b"\xff\x00")
        assert PartitionLog.open(tmp_path, CONFIG)[1].damaged
        (tmp_path / "damaged").write_bytes(b"")
        assert PartitionLog.open(tmp_path, CONFIG)[1].damaged


class TestDamage:
    """Durable or committed records are not cut, and no record is appended, until the replica has left the ISR."""

    def check_unsound(self, path: Path, batches: Batches, sound_end: int, stored: bytes) -> None:
        before = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix != ".index"}
        log, report = PartitionLog.open(path, CONFIG)
        assert report.damaged is not None
        assert str(sound_end) in report.damaged
        assert (log.log_end_offset, report.truncated_bytes) == (sound_end, 0)
        assert stored.startswith(batches.stored(log))
        assert not log.needs_sync
        with pytest.raises(LogDamaged):
            batches.append(log, epoch=9)
        log.checkpoint_high_watermark(Offset(0))
        log.close()
        assert {file.name: file.read_bytes() for file in path.iterdir() if file.suffix != ".index"} == before
        assert PartitionLog.open(path, CONFIG)[1].damaged == report.damaged

    def repaired(self, path: Path, batches: Batches) -> PartitionLog:
        log, _ = PartitionLog.open(path, CONFIG)
        end = log.log_end_offset
        with pytest.raises(InvariantViolation):
            log.truncate(end)
        damage = log.checking.examine()
        assert damage.sound_end == end
        report = log.checking.cut_damage(damage, when_ns=0, lost=False)
        assert (report["sound_end"], report["known_end"]) == (end, damage.known_end)
        assert log.log_end_offset == end
        batches.fill(log, 150, epoch=9)
        expected = [batches.one(n, epoch=1 + n // 50).data for n in range(end)]
        expected += [batches.one(n, epoch=9).data for n in range(end, 150)]
        assert batches.stored(log) == b"".join(expected)
        log.sync()
        again = opened(path)
        assert batches.stored(again) == b"".join(expected)
        return again

    def test_of_a_body_below_the_recovery_point(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        change(segments(tmp_path)[-1], -10)
        self.check_unsound(tmp_path, batches, 99, stored)
        self.repaired(tmp_path, batches)
        (report,) = Quarantine(REAL_FILES, tmp_path).reports()
        (rest,) = report["kept"]
        assert rest["file"] == f"000001-{report['file']}.from-{report['first_byte']}"
        kept = (tmp_path / "quarantine" / rest["file"]).read_bytes()
        assert (len(kept), rest["bytes"], report["dropped_bytes"]) == (batches.one(99).header.size,) * 2 + (0,)

    def test_of_a_header_below_the_high_watermark(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 5)
        log.checkpoint_high_watermark(Offset(4))  # committed by others, not synced here
        change(segments(tmp_path)[0], 3 * batches.one(0).header.size)
        self.check_unsound(tmp_path, batches, 3, batches.stored(opened_unchecked(tmp_path)))

    def test_a_segment_that_became_shorter(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        second = segments(tmp_path)[1]
        os.truncate(second, second.stat().st_size - 10)
        end = int(segments(tmp_path)[2].stem) - 1
        self.check_unsound(tmp_path, batches, end, stored)
        count = len(segments(tmp_path))
        self.repaired(tmp_path, batches)
        (report,) = Quarantine(REAL_FILES, tmp_path).reports()
        assert len(report["kept"]) == count - 2 + 1

    def test_a_missing_segment(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        gone = segments(tmp_path)[1]
        gone.unlink()
        self.check_unsound(tmp_path, batches, int(gone.stem), stored)
        self.repaired(tmp_path, batches)

    def test_a_copy_in_place_of_a_missing_beginning_is_not_below_the_log_start(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        """The checkpoint written with the cut says where the log begins after it, not where the rest of it began."""
        killed(tmp_path, batches, checkpoint=90)
        segments(tmp_path)[0].unlink()
        log, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged is not None
        log.checking.cut_damage(log.checking.examine(), when_ns=0, lost=False)
        assert (log.log_start_offset, log.log_end_offset) == (0, 0)
        batches.fill(log, 3)
        log.sync()
        again = opened(tmp_path)
        assert (again.log_start_offset, again.log_end_offset) == (0, 3)

    def test_a_missing_end(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        gone = segments(tmp_path)[-1]
        gone.unlink()
        self.check_unsound(tmp_path, batches, int(gone.stem), stored)
        self.repaired(tmp_path, batches)

    def test_a_segment_that_begins_within_the_one_before_it(self, tmp_path: Path, batches: Batches) -> None:
        """No crash does that, so nothing is cut, though nothing vouches for it."""
        killed(tmp_path, batches)
        last = segments(tmp_path)[-1]
        last.rename(last.with_name(f"{int(last.stem) - 1:020d}.log"))
        _, report = PartitionLog.open(tmp_path, CONFIG)
        assert report.damaged is not None
        assert f"the next segment begins at {int(last.stem) - 1}" in report.damaged
        assert segments(tmp_path)[-1].stem == f"{int(last.stem) - 1:020d}"

    def test_no_segments_at_all(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        for path in segments(tmp_path):
            path.unlink()
        self.check_unsound(tmp_path, batches, 0, stored)
        self.repaired(tmp_path, batches)

    def test_dropping_everything_ends_it_too(self, tmp_path: Path, batches: Batches) -> None:
        killed(tmp_path, batches, checkpoint=10)
        change(segments(tmp_path)[-1], -10)
        log, _ = PartitionLog.open(tmp_path, CONFIG)
        log.drop_all(Offset(500))
        batches.append(log, epoch=9)
        assert opened(tmp_path).log_end_offset == 501

    def test_met_in_a_log_that_is_open(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path)
        batches.fill(log, 100)
        log.sync()
        second = segments(tmp_path)[1]
        change(second, 3 * batches.one(0).header.size - 10)
        damage = log.checking.examine()
        end = int(second.stem) + 2
        assert (damage.file, damage.first_byte) == (second.name, 2 * batches.one(0).header.size)
        assert (damage.sound_end, damage.known_end) == (end, 100)
        behind = [path.read_bytes() for path in segments(tmp_path)[2:]]
        report = log.checking.cut_damage(damage, when_ns=1_700_000_000_000_000_000, lost=False)
        assert report["when"] == "2023-11-14T22:13:20.000+00:00"
        kept = [(tmp_path / "quarantine" / piece["file"]).read_bytes() for piece in report["kept"]]
        assert kept[1:] == behind
        assert log.log_end_offset == end
        batches.fill(log, 120, epoch=2)
        assert batches.stored(log) == b"".join(batches.one(n, epoch=1 + (n >= end)).data for n in range(120))

    def test_no_checkpoint_after_a_loss_of_power(self, tmp_path: Path, batches: Batches) -> None:
        stored = killed(tmp_path, batches, checkpoint=10)
        (tmp_path / "replication-offset-checkpoint").unlink()
        self.check_unsound(tmp_path, batches, 100, stored)
        self.repaired(tmp_path, batches)

    def test_a_log_that_was_never_checkpointed_has_a_checkpoint(self, tmp_path: Path) -> None:
        opened(tmp_path)
        assert read_offsets(REAL_FILES, tmp_path) is not None

    def test_bits_flipped_anywhere_below_the_recovery_point_are_never_served(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        """The damage lies in the segment that is scanned. (Readers find damage in the body of a finished segment.)"""
        stored = killed(tmp_path, batches, records=10, checkpoint=10)
        (segment,) = segments(tmp_path)
        index = segment.with_suffix(".index")
        index.unlink()
        for at in range(0, len(stored), 7):
            change(segment, at, bytes([stored[at] ^ 4]))
            log, report = PartitionLog.open(tmp_path, CONFIG)
            assert report.damaged is not None
            sound = batches.stored(log)
            assert stored.startswith(sound)
            assert len(sound) <= at
            change(segment, at, stored[at : at + 1])
        index.unlink(missing_ok=True)
        assert batches.stored(opened(tmp_path)) == stored


def opened_unchecked(path: Path) -> PartitionLog:
    return PartitionLog.open(path, CONFIG)[0]


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _tear(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 9)


def _flip(path: Path) -> None:
    middle = path.stat().st_size // 2
    change(path, middle, bytes([path.read_bytes()[middle] ^ 1]))


@pytest.mark.parametrize("spoil", [_remove, _empty, _tear, _flip])
class TestSideFiles:
    """Index, leader epochs and checkpoint can be lost or damaged: the records say it all again."""

    @pytest.mark.parametrize("pattern", ["*.index", "leader-epoch-checkpoint", "replication-offset-checkpoint"])
    @pytest.mark.parametrize("closed", [True, False])
    def test_are_found_again(
        self, tmp_path: Path, batches: Batches, spoil: Callable[[Path], None], pattern: str, closed: bool
    ) -> None:
        log = opened(tmp_path)
        batches.fill(log, 50)
        batches.fill(log, 100, epoch=2)
        log.sync()
        log.checkpoint_high_watermark(Offset(60))
        stored = batches.stored(log)
        if closed:
            log.close()
        for path in tmp_path.glob(pattern):
            spoil(path)
        again, report = PartitionLog.open(tmp_path, CONFIG, page_cache_survived=True)
        assert report.damaged is None
        assert batches.stored(again) == stored
        assert again.epochs.entries == log.epochs.entries
        assert [again.offset_for_timestamp(1000 * n, END) for n in range(100)] == list(range(100))
        assert again.high_watermark == (0 if pattern == "replication-offset-checkpoint" else 60)
        batches.append(again, epoch=5)
        again.close()
        assert read_epochs(REAL_FILES, tmp_path) == again.epochs.entries
        checkpoint = read_offsets(REAL_FILES, tmp_path)
        assert checkpoint is not None
        assert checkpoint.recovery_point == 101
        third, report = PartitionLog.open(tmp_path, CONFIG)
        assert (report.damaged, report.scanned_bytes) == (None, 0)
        assert third.log_end_offset == 101


def test_an_epoch_beyond_the_end_of_the_log_is_dropped(tmp_path: Path, batches: Batches) -> None:
    killed(tmp_path, batches)
    log = opened(tmp_path)
    log.assign_epoch(LeaderEpoch(7), Offset(100))
    change(segments(tmp_path)[-1], -10)
    for path in tmp_path.glob("*.index"):
        path.unlink()
    write_offsets(REAL_FILES, tmp_path, OffsetCheckpoint(Offset(0), Offset(0)))  # lowered, as before a cut
    again = opened(tmp_path)
    assert again.log_end_offset == 99
    assert again.epochs.latest == 2


def test_an_index_of_another_segment_is_not_believed(tmp_path: Path, batches: Batches) -> None:
    stored = killed(tmp_path, batches, checkpoint=10)
    first, second = sorted(tmp_path.glob("*.index"))[:2]
    second.write_bytes(first.read_bytes())
    log = opened(tmp_path)
    assert batches.stored(log) == stored
    assert len(second.read_bytes()) >= ENTRY_SIZE
