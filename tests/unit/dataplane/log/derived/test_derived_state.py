"""The state derived from a log: after an open, after a cut, and when a snapshot is damaged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.broker.replica import repair
from dataplane.log.derived import derived_state
from dataplane.log.derived.log_snapshot import Section, Snapshot, decode_snapshot, encode_snapshot
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.checkpoints import EPOCHS_FILE
from dataplane.log.storage.files import RealFiles
from dataplane.replica.derived.epochs import EpochEntry
from dataplane.replica.derived.producer_table import Duplicate, ProducerLimits, ProducerTable
from dataplane.replica.replica_state_machine import RepairMode
from tests.simulation.machines.disk import SimDisk, Survival
from tests.unit.dataplane.log.power_cuts import cut_power_in_every_call
from tests.views import KEY
from wire.batch import BatchBuilder
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.batch import BatchHeader

FORGETFUL = ProducerLimits(max_producers=2, expiration_ms=5000)
"""Of the three producers here, one is always forgotten; and now and then another one, by time."""
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300, tail_bytes=0, producers=FORGETFUL)


SECOND = 1_000_000_000


class Written:
    """A log to which a few producers have written in turn."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.headers: list[BatchHeader] = []
        self.epoch = 1
        self._sequences: Counter[int] = Counter()

    def append(self, batches: int, *, count: int = 2, size: int = 40, producers: int = 3) -> None:
        for _ in range(batches):
            end = self.log.log_end_offset
            producer = end % producers
            builder = BatchBuilder()
            builder.add_values([b"v" * size] * count)
            built = builder.build(1, producer_id=producer, producer_epoch=0, base_sequence=self._sequences[producer])
            self._sequences[producer] += count
            parts, header = built.stamp(end, LeaderEpoch(self.epoch), (1000 + end - 3 * (end % 4)) * SECOND)
            self.headers.append(header)
            self.log.append(parts, [header])

    def known(self, end: int | None = None) -> object:
        """The producer table of the batches up to `end`."""
        there = (header for header in self.headers if end is None or header.end_offset <= end)
        return ProducerTable(there, limits=self.log.config.producers).known

    def cut(self, offset: int) -> None:
        self.log.truncate(Offset(offset))
        self.headers = [header for header in self.headers if header.end_offset <= self.log.log_end_offset]

    def reopen(self, config: LogConfig = CONFIG) -> int:
        """After the death of the process; from where on batches were looked at."""
        self.log, report = PartitionLog.open(self.log.directory, config)
        assert report.damaged is None
        assert self.log.producers.known == self.known()
        return report.replayed_from


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(PartitionLog.open(tmp_path, CONFIG)[0])


def snapshots(log: PartitionLog) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.snapshot"))


def bases(log: PartitionLog) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.log"))


class TestWhenTheyAreWritten:
    def test_at_the_beginning_of_each_segment_once_the_log_is_durable_up_to_there(self, written: Written) -> None:
        log = written.log
        while len(bases(log)) < 4:
            before, segments = snapshots(log), len(bases(log))
            written.append(1)
            log.write_snapshots()
            assert snapshots(log) == before, "not synced: it would vouch for what a crash takes"
            if len(bases(log)) > segments:
                log.sync()
                log.write_snapshots()
        assert snapshots(log) == bases(log)[1:]
        for offset in snapshots(log):
            found = decode_snapshot((log.directory / f"{offset:020d}.snapshot").read_bytes())
            assert found == Snapshot(Offset(offset), log.epochs.entries, written.known(offset))  # type: ignore[arg-type]

    def test_every_so_many_bytes(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(derived_state, "SNAPSHOT_INTERVAL_BYTES", 500)
        ends = []
        for _ in range(9):
            written.append(1)
            written.log.sync()
            if written.log.snapshot_is_due:
                written.log.write_snapshots()
                ends.append(written.log.log_end_offset)
        assert len(ends) == 3
        assert snapshots(written.log) == ends[-2:], "the two newest stay, and those at beginnings of segments"
        assert written.reopen() == ends[-1]

    def test_at_close(self, written: Written) -> None:
        written.append(4)
        written.log.close()
        assert snapshots(written.log) == [8]
        assert written.reopen() == 8
        written.log.close()
        assert snapshots(written.log) == [8]

    def test_a_snapshot_not_written_in_time_is_forgotten_and_built_from_the_log(self, written: Written) -> None:
        written.append(90)
        written.log.sync()
        written.log.write_snapshots()
        assert len(bases(written.log)) > 5
        assert snapshots(written.log) == bases(written.log)[-2:]
        missing = bases(written.log)[2]
        built = decode_snapshot(written.log.snapshot_at(Offset(missing)))
        assert built == Snapshot(Offset(missing), written.log.epochs.entries, written.known(missing))  # type: ignore[arg-type]
        assert missing in snapshots(written.log)

    def test_one_that_cannot_be_written_costs_nothing_but_time(
        self, written: Written, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written.append(40)
        written.log.sync()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(derived_state, "replace_file", full)
            written.log.write_snapshots()
        assert snapshots(written.log) == []
        assert not written.log.snapshot_is_due
        assert written.log.refusal is None
        assert written.reopen() == 0


class TestOpening:
    def test_it_begins_at_the_newest_and_reads_the_batches_behind(self, written: Written) -> None:
        written.append(40)
        written.log.sync()
        written.log.write_snapshots()
        written.append(5)
        assert written.reopen() == snapshots(written.log)[-1]

    @pytest.mark.parametrize("damage", ["flip", "cut", "rename"])
    def test_a_damaged_one_is_left_and_the_one_before_is_taken(self, written: Written, damage: str) -> None:
        written.append(40)
        written.log.sync()
        written.log.write_snapshots()
        before, newest = snapshots(written.log)[-2:]
        path = written.log.directory / f"{newest:020d}.snapshot"
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 4
        elif damage == "cut":
            del content[-1]
        else:
            content = bytearray((written.log.directory / f"{before:020d}.snapshot").read_bytes())
        path.write_bytes(content)
        _, report = PartitionLog.open(written.log.directory, CONFIG)
        assert report.damaged is None
        assert len(report.damaged_snapshots) == 1
        assert str(path) in report.damaged_snapshots[0]
        assert written.reopen() == before

    def test_without_any_all_batches_are_looked_at(self, written: Written) -> None:
        written.append(40)
        written.log.close()
        for path in written.log.directory.glob("*.snapshot"):
            path.unlink()
        assert written.reopen() == 0

    def test_without_the_one_at_a_log_start_above_0_the_producers_are_partial_from_then_on(
        self, written: Written
    ) -> None:
        written.append(40)
        log = written.log
        assert not log.producers.known.is_partial
        log.remove_before(Offset(bases(log)[2]))
        start = log.log_start_offset
        assert start > 0
        log.close()
        for path in log.directory.glob("*.snapshot"):
            path.unlink()
        log, _ = PartitionLog.open(log.directory, CONFIG)
        assert log.producers.known.is_partial
        log.close()
        shown = {path.name: decode_snapshot(path.read_bytes()) for path in log.directory.glob("*.snapshot")}
        assert shown
        assert all(snapshot.producers.is_partial and not snapshot.carried for snapshot in shown.values())
        log, report = PartitionLog.open(log.directory, CONFIG)
        assert report.replayed_from > start, "the newest snapshot is used"
        assert log.producers.known.is_partial
        sent = decode_snapshot(log.snapshot_at(start))
        assert sent.producers.is_partial, "a follower that begins here is told"
        log.close()

    def test_leader_epochs_whose_file_is_lost_come_from_the_snapshot_and_the_batches_behind(
        self, written: Written
    ) -> None:
        for _ in range(5):
            written.append(9)
            written.epoch += 2
        written.log.sync()
        written.log.write_snapshots()
        written.append(3)
        expected = written.log.epochs.entries
        assert len(expected) == 6
        for first in (
            written.log.directory / f"{0:020d}.log",
            written.log.directory / f"{bases(written.log)[1]:020d}.log",
        ):
            content = first.read_bytes()
            first.write_bytes(bytes(len(content)))  # they are not read
        (written.log.directory / EPOCHS_FILE).unlink()
        log, _ = PartitionLog.open(written.log.directory, CONFIG)
        assert log.epochs.entries == expected

    def test_one_above_the_end_of_the_log_is_not_believed(self, written: Written) -> None:
        written.append(10)
        written.log.sync()
        path = written.log.directory / f"{90:020d}.snapshot"
        path.write_bytes(encode_snapshot(Snapshot(Offset(90))))
        written.reopen()
        assert not path.exists()

    def test_one_below_the_log_start_leaves_a_gap_and_is_not_taken(self, written: Written) -> None:
        written.append(40)
        written.log.sync()
        first = bases(written.log)[1]
        written.log.snapshot_at(Offset(first))
        old = (written.log.directory / f"{first:020d}.snapshot").read_bytes()
        written.log.remove_before(Offset(80))
        for path in written.log.directory.glob("*.snapshot"):
            path.unlink()
        (written.log.directory / f"{first:020d}.snapshot").write_bytes(old)
        log, report = PartitionLog.open(written.log.directory, CONFIG)
        assert report.replayed_from == log.log_start_offset > first


class TestRepair:
    @pytest.mark.parametrize("has_snapshot", [True, False])
    def test_a_log_that_lost_all_and_knows_nothing_of_its_past_begins_at_0(
        self, written: Written, has_snapshot: bool
    ) -> None:
        written.log.install(Snapshot(Offset(100), (EpochEntry(LeaderEpoch(1), Offset(0)),)))
        written.append(3)
        written.log.close()
        if not has_snapshot:
            for path in written.log.directory.glob("*.snapshot"):
                path.unlink()
        segment = written.log.directory / f"{100:020d}.log"
        segment.write_bytes(bytes(segment.stat().st_size))
        log, report = PartitionLog.open(written.log.directory, CONFIG)
        assert report.damaged is not None or log.log_end_offset == 106
        repair(log, KEY, RepairMode.COPY, time_ns=0)
        assert (log.log_start_offset, log.log_end_offset) == ((100, 100) if has_snapshot else (0, 0))


class TestUnknownSections:
    def test_they_are_kept_with_the_offset_at_which_they_hold(self, written: Written) -> None:
        section = Section("queues", 1, Offset(90), b"of a later version")
        epochs = (EpochEntry(LeaderEpoch(1), Offset(3)),)
        written.log.install(Snapshot(Offset(100), epochs, carried=(section,)))
        written.append(40)
        written.log.close()
        for offset in snapshots(written.log):
            found = decode_snapshot((written.log.directory / f"{offset:020d}.snapshot").read_bytes())
            assert found.carried == (section,)


class TestCutting:
    def test_snapshots_above_a_cut_go_before_the_log_is_cut(self, written: Written) -> None:
        written.append(80)
        written.log.sync()
        for base in bases(written.log)[1:]:
            written.log.snapshot_at(Offset(base))
        written.log.write_snapshots()
        cut = bases(written.log)[3] + 5
        written.cut(cut)
        assert snapshots(written.log) == bases(written.log)[1:]
        assert max(snapshots(written.log)) <= written.log.log_end_offset
        assert written.log.producers.known == written.known()
        written.append(30, size=80)
        written.log.sync()
        written.log.write_snapshots()
        written.reopen()

    def test_a_capture_above_the_cut_is_not_written(self, written: Written) -> None:
        while len(bases(written.log)) < 2:
            written.append(1)
        captured = bases(written.log)[-1]
        written.cut(captured - 9)
        written.append(3, count=4, size=1)
        assert written.log.sync() > captured
        written.log.write_snapshots()
        assert captured not in snapshots(written.log)
        for offset in snapshots(written.log):
            found = decode_snapshot((written.log.directory / f"{offset:020d}.snapshot").read_bytes())
            assert found.producers == written.known(offset)

    def test_a_repetition_of_a_cut_batch_is_no_duplicate(self, written: Written) -> None:
        written.append(30, producers=1)
        sequence = written.headers[-1].base_sequence
        assert isinstance(written.log.producers.check(0, 0, sequence, 2), Duplicate)
        written.cut(written.log.log_end_offset - 1)
        assert not isinstance(written.log.producers.check(0, 0, sequence, 2), Duplicate)


class TestTheLogStart:
    def test_a_snapshot_is_there_before_segments_go(self, written: Written) -> None:
        written.append(80)
        known = written.log.producers.known
        written.log.remove_before(Offset(100))
        start = written.log.log_start_offset
        assert 50 < start <= 100
        assert snapshots(written.log)[0] == start
        again, report = PartitionLog.open(written.log.directory, CONFIG)
        assert report.replayed_from == start
        assert again.producers.known == known

    def test_where_none_can_be_written_segments_stay(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        written.append(80)
        written.log.sync()
        written.log.snapshot_at(Offset(bases(written.log)[1]))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(derived_state, "replace_file", full)
        assert len(written.log.remove_before(Offset(100))) == 1
        assert written.log.remove_before(Offset(100)) == ()
        assert written.log.refusal is None


class Rolling(RealFiles):
    """During each read the loop thread wants to begin a segment."""

    def __init__(self) -> None:
        self.log: PartitionLog | None = None
        self.reads = 0

    def read(self, handle: int, size: int, position: int) -> bytes:
        if self.log is not None:
            self.reads += 1
            assert not self.log.roll(), "with the producers of a part of the log"
        return super().read(handle, size, position)


def test_no_segment_begins_while_the_producers_are_learned_anew(tmp_path: Path) -> None:
    files = Rolling()
    written = Written(PartitionLog.open(tmp_path, CONFIG, files=files)[0])
    written.append(60)
    files.log = written.log
    written.cut(50)
    files.log = None
    assert files.reads
    assert written.log.roll()
    written.log.sync()
    written.log.write_snapshots()
    written.reopen()


class Counting(RealFiles):
    """How much is read."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, handle: int, size: int, position: int) -> bytes:
        found = super().read(handle, size, position)
        self.bytes += len(found)
        return found


class TestTheCostOfAnOpen:
    SEGMENTS = LogConfig(segment_bytes=256 << 10, index_interval_bytes=8 << 10, tail_bytes=0)

    @pytest.mark.parametrize("preallocate", [0, 64 << 10])
    def test_it_does_not_grow_with_the_log(self, tmp_path: Path, preallocate: int) -> None:
        """40 segments, a thousandth of their usual size; killed with 100 KB behind the last checkpoint."""
        config = LogConfig(
            segment_bytes=256 << 10, index_interval_bytes=8 << 10, tail_bytes=0, preallocate_bytes=preallocate
        )
        cost = {}
        for segments in (3, 40):
            written = Written(PartitionLog.open(tmp_path / str(segments), config)[0])
            while len(bases(written.log)) <= segments:
                written.append(50, count=1, size=1000)
            written.log.sync()
            written.log.write_snapshots()
            written.log.checkpoint_high_watermark(written.log.log_end_offset)
            written.append(100, count=1, size=1000)
            written.log.sync()
            files = Counting()
            again, report = PartitionLog.open(written.log.directory, config, files=files)
            assert report.damaged is None
            assert report.scanned_bytes <= (100 << 10) + 3 * config.index_interval_bytes
            assert again.producers.known == written.known()
            cost[segments] = files.bytes
        assert cost[40] <= cost[3] + 40 * 32 + (256 << 10), "an index entry for each segment; what came since the roll"
        assert cost[40] < 900 << 10

    def test_after_a_close_next_to_nothing_is_read(self, tmp_path: Path) -> None:
        written = Written(PartitionLog.open(tmp_path, self.SEGMENTS)[0])
        while len(bases(written.log)) <= 40:
            written.append(50, count=1, size=1000)
        written.log.close()
        files = Counting()
        again, report = PartitionLog.open(tmp_path, self.SEGMENTS, files=files)
        assert (report.scanned_bytes, again.producers.known) == (0, written.known())
        assert files.bytes < 16 << 10


HOME = Path("/log")
SMALL = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300, producers=FORGETFUL)


class Workload:
    """All operations that move snapshots; after a crash at any point the producers agree with the remaining batches."""

    INSTALLED = Snapshot(
        Offset(500),
        (EpochEntry(LeaderEpoch(1), Offset(0)), EpochEntry(LeaderEpoch(7), Offset(480))),
        ProducerTable().known,
    )

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.histories: list[list[BatchHeader]] = [[]]
        self.installed: list[bool] = [False]
        """Whether the log is that from before the installation, or from it: both while it is under way."""

    def run(self) -> None:
        written = Written(PartitionLog.open(HOME, SMALL, files=self.disk)[0])
        written.headers = self.histories[-1]
        self._write(written)
        self._cut(written, 30)
        self._write(written)
        written.log.remove_before(Offset(50))
        self._write(written)
        self._cut(written, written.log.log_end_offset - 9)
        written.log.close()
        written.log, _ = PartitionLog.open(HOME, SMALL, files=self.disk)
        self._write(written)
        self.installed = [False, True]
        written.log.install(self.INSTALLED)
        self.installed = [True]
        self.histories = [[]]
        written.headers = self.histories[-1]
        written.epoch += 10
        self._write(written)

    def _write(self, written: Written) -> None:
        for _ in range(3):
            written.append(6, count=2)
            written.log.sync()
            written.log.write_snapshots()
        written.log.checkpoint_high_watermark(written.log.log_end_offset)
        written.append(3)
        written.epoch += 1

    def _cut(self, written: Written, offset: int) -> None:
        self.histories.append([header for header in written.headers if header.end_offset <= offset])
        written.log.truncate(Offset(offset))
        del self.histories[:-1]
        written.headers = self.histories[-1]

    def check(self) -> None:
        log, report = PartitionLog.open(HOME, SMALL, files=self.disk)
        assert report.damaged is None
        is_new = log.log_start_offset >= self.INSTALLED.offset
        assert is_new in self.installed
        before = self.INSTALLED.epochs if is_new else ()
        found = []
        for history in self.histories if not is_new or self.installed == [True] else [[]]:
            there = [header for header in history if header.end_offset <= log.log_end_offset]
            epochs = list(before)
            for header in there:
                if not epochs or epochs[-1].epoch != header.leader_epoch:
                    epochs.append(EpochEntry(header.leader_epoch, header.base_offset))
            below = sum(entry.start < log.log_start_offset for entry in epochs)
            kept = tuple(epochs[max(0, below - 1) :])
            found.append((ProducerTable(there, limits=FORGETFUL).known, kept))
        assert any(log.producers.known == known for known, _ in found), "producers"
        assert any(log.epochs.entries == epochs for _, epochs in found), "epochs"
        assert not [offset for offset in log._state.derived.offsets() if offset > log.log_end_offset]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nothing", "everything", "random"])
def test_power_loss_at_every_system_call(how: Survival) -> None:
    cut_power_in_every_call(Workload, how)
