"""Verifying a log that no broker uses: clean, damaged, or repaired at the next start; reading on behind damage."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from dataplane.log.derived.installation import INSTALLATION_FILE
from dataplane.log.derived.log_snapshot import Snapshot, decode_snapshot, encode_snapshot, snapshot_name
from dataplane.log.offline.inspection import StoredBatch, Unreadable, read_segment, rebuild_index, show_index
from dataplane.log.offline.log_verification import Kind, PartitionReport, verify_partition
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.recovery.damage import set_mark
from dataplane.log.storage.checkpoints import (
    COMPACTION_FILE,
    EPOCHS_FILE,
    OffsetCheckpoint,
    write_epochs,
    write_offsets,
)
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.derived.epochs import EpochEntry
from tests.unit.dataplane.log.compacting import append, compact
from wire.batch import HEADER_SIZE, parse_header
from wire.batch.header import encode_header
from wire.types import Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

if TYPE_CHECKING:
    from tests.unit.dataplane.log.conftest import Batches

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=300)
KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))
MASTER = MasterKey("2026", b"k" * 32)


def verified(path: Path, keyring: Keyring | None = None) -> PartitionReport:
    return verify_partition(REAL_FILES, path, keyring=keyring, on_bytes=lambda _: None)


def opened(path: Path, config: LogConfig = SMALL) -> PartitionLog:
    log, report = PartitionLog.open(path, config)
    assert report.damaged is None
    return log


def filled(path: Path, batches: Batches) -> None:
    """Two leader epochs, several segments, closed in order with everything committed."""
    log = opened(path)
    batches.fill(log, 12, each=3)
    log.assign_epoch(LeaderEpoch(4), log.log_end_offset)
    batches.fill(log, 24, each=2, epoch=4)
    log.sync()
    log.checkpoint_high_watermark(log.log_end_offset)
    log.close()


def kinds(report: PartitionReport) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.file) for finding in report.findings]


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def flip(file: Path, at: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


class TestClean:
    def test_a_log_that_was_closed_in_order(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        report = verified(tmp_path)
        assert report.is_clean
        assert report.findings == []
        assert (report.log_start_offset, report.log_end_offset) == (0, 24)
        assert (report.segments, report.batches, report.records) == (len(segments(tmp_path)), 10, 24)
        assert report.segments > 2
        assert report.bytes == sum(file.stat().st_size for file in segments(tmp_path))

    def test_a_log_that_was_never_closed(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig(segment_bytes=1000, index_interval_bytes=300, preallocate_bytes=4096))
        batches.fill(log, 30)
        assert verified(tmp_path).findings == []
        log.sync()
        log.checkpoint_high_watermark(log.log_end_offset)
        batches.fill(log, 50)
        report = verified(tmp_path)
        assert report.findings == []
        assert report.log_end_offset == 50
        log.close()

    def test_a_log_that_was_cut_and_goes_on(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        log = opened(tmp_path)
        log.truncate(Offset(15))
        batches.fill(log, 40, epoch=5)
        log.sync()
        log.close()
        assert verified(tmp_path).findings == []

    def test_a_log_that_was_compacted(self, tmp_path: Path) -> None:
        log = opened(tmp_path)
        for n in range(60):
            append(log, [(b"key %d" % (n % 4), b"x" * 40), (None, b"y")], epoch=1 + n // 25)
        log.sync()
        compact(log)
        append(log, [(b"key", b"x")], epoch=3)
        log.sync()
        assert verified(tmp_path).findings == []
        log.close()
        report = verified(tmp_path)
        assert report.findings == []
        assert report.records < report.log_end_offset == 121
        flip(tmp_path / COMPACTION_FILE, 40)
        assert kinds(verified(tmp_path)) == [(Kind.REPAIRABLE, COMPACTION_FILE)]

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert verified(tmp_path).is_clean

    def test_a_torn_write_after_a_crash_is_noted(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        last = segments(tmp_path)[-1]
        last.write_bytes(last.read_bytes() + batches.one(24, epoch=4).data[:-8])
        report = verified(tmp_path)
        assert kinds(report) == [(Kind.NOTE, last.name)]
        assert "bytes are left" in report.findings[0].message
        assert report.is_clean

    def test_reserved_room_is_nothing_to_speak_of(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        last = segments(tmp_path)[-1]
        last.write_bytes(last.read_bytes() + bytes(5000))
        assert verified(tmp_path).findings == []


class TestDamage:
    def test_any_flipped_bit_of_any_file_is_found(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        seen = 0
        for file in sorted(tmp_path.iterdir()):
            content = file.read_bytes()
            for at in range(len(file.name) % 5, len(content), 5):
                flip(file, at, at % 8)
                report = verified(tmp_path)
                assert not report.is_clean, (file.name, at)
                file.write_bytes(content)
                seen += 1
        assert seen > 500
        assert verified(tmp_path).is_clean

    def test_reading_goes_on_behind_a_damaged_header(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        first = segments(tmp_path)[0]
        size = parse_header(first.read_bytes()).size
        flip(first, size + 50)
        report = verified(tmp_path)
        (finding,) = report.findings
        assert (finding.kind, finding.file, finding.position, finding.size) == (Kind.DAMAGE, first.name, size, size)
        assert finding.message.endswith("offsets 3 to 5 are missing")
        assert (report.batches, report.log_end_offset) == (9, 24)

    def test_a_damaged_body_costs_one_batch(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        flip(segments(tmp_path)[0], HEADER_SIZE + 10)
        report = verified(tmp_path)
        assert [finding.position for finding in report.findings] == [0]
        assert "batch of offsets 0 to 2: body has CRC" in report.findings[0].message

    def test_a_missing_segment_in_the_middle(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        gone, following = segments(tmp_path)[1:3]
        gone.unlink()
        gone.with_suffix(".index").unlink()
        assert kinds(verified(tmp_path)) == [(Kind.DAMAGE, following.name)]

    def test_a_missing_first_or_last_segment(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        first, *_, last = segments(tmp_path)
        content = first.read_bytes()
        first.unlink()
        report = verified(tmp_path)
        assert (Kind.DAMAGE, segments(tmp_path)[0].name) in kinds(report)
        assert "the segment that begins at 0 is missing" in report.findings[0].message
        first.write_bytes(content)
        last.unlink()
        report = verified(tmp_path)
        assert Kind.DAMAGE in {finding.kind for finding in report.findings}
        assert "records up to offset 24 were durable or committed here" in report.findings[-1].message

    def test_a_shortened_last_segment_is_damage_where_a_checkpoint_knows_more(
        self, tmp_path: Path, batches: Batches
    ) -> None:
        filled(tmp_path, batches)
        last = segments(tmp_path)[-1]
        last.write_bytes(last.read_bytes()[:-8])
        assert Kind.DAMAGE in {finding.kind for finding in verified(tmp_path).findings}

    def test_a_batch_twice_and_a_leader_epoch_that_falls(self, tmp_path: Path, batches: Batches) -> None:
        log = opened(tmp_path, LogConfig())
        batches.fill(log, 3, epoch=2)
        log.close()
        (file,) = segments(tmp_path)
        file.with_suffix(".index").unlink()
        again = batches.one(2, epoch=2).data
        earlier = batches.one(3, epoch=1).data
        file.write_bytes(file.read_bytes() + again + earlier)
        found = [finding.message for finding in verified(tmp_path).findings if finding.kind is Kind.DAMAGE]
        assert found == [
            "batch of offsets 2 to 2 lies behind offset 2",
            "batch of offsets 3 to 3 is of leader epoch 1, behind one of 2",
        ]

    def test_findings_are_bounded(self, tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
        from dataplane.log.offline import log_verification

        monkeypatch.setattr(log_verification, "MAX_FINDINGS", 2)
        filled(tmp_path, batches)
        for file in segments(tmp_path):
            flip(file, HEADER_SIZE + 1)
        report = verified(tmp_path)
        assert len(report.findings) == 2
        assert report.findings_left_out > 0
        assert not report.is_clean


class TestSmallFiles:
    def test_an_index_that_contradicts_its_segment(self, tmp_path: Path, batches: Batches) -> None:
        from crc32c import crc32c

        filled(tmp_path, batches)
        index = segments(tmp_path)[0].with_suffix(".index")
        content = bytearray(index.read_bytes())
        offset, position, newest = struct.unpack_from("<qqq", content, 32)
        facts = struct.pack("<qqq", offset + 1, position, newest)
        content[32:64] = facts + struct.pack("<II", crc32c(facts), 0)
        index.write_bytes(content)
        (finding,) = verified(tmp_path).findings
        assert (finding.kind, finding.file) == (Kind.REPAIRABLE, index.name)
        assert f"says that the log reaches offset {offset + 1} at byte {position}" in finding.message

    def test_indexes_may_be_missing(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        for file in segments(tmp_path):
            file.with_suffix(".index").unlink()
        assert verified(tmp_path).findings == []

    @pytest.mark.parametrize(
        ("entries", "said"),
        [
            ([(1, 0)], "does not know leader epoch 4, which begins at 12"),
            ([(1, 0), (4, 11)], "leader epoch 4 begins at offset 11; its first batch begins at 12"),
            ([(1, 0), (3, 9), (4, 12)], "leader epoch 3 begins at offset 9; no batch is of it"),
        ],
    )
    def test_leader_epochs_that_contradict_the_batches(
        self, tmp_path: Path, batches: Batches, entries: list[tuple[int, int]], said: str
    ) -> None:
        filled(tmp_path, batches)
        write_epochs(REAL_FILES, tmp_path, [EpochEntry(LeaderEpoch(e), Offset(o)) for e, o in entries])
        (finding,) = verified(tmp_path).findings
        assert (finding.kind, finding.file) == (Kind.REPAIRABLE, EPOCHS_FILE)
        assert said in finding.message

    def test_leader_epochs_without_a_record_are_as_they_should_be(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        log = opened(tmp_path)
        log.assign_epoch(LeaderEpoch(9), log.log_end_offset)
        log.close()
        assert verified(tmp_path).findings == []

    def test_missing_leader_epochs_are_made_anew(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        (tmp_path / EPOCHS_FILE).unlink()
        assert kinds(verified(tmp_path)) == [(Kind.REPAIRABLE, EPOCHS_FILE)]

    def test_a_checkpoint_above_the_log_means_that_records_are_missing(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        write_offsets(REAL_FILES, tmp_path, OffsetCheckpoint(Offset(30), Offset(24), Offset(0)))
        (finding,) = verified(tmp_path).findings
        assert finding.kind is Kind.DAMAGE
        assert "ends at offset 24, but records up to offset 30" in finding.message

    def test_segments_below_the_log_start_are_not_looked_at(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        first, second, *_ = segments(tmp_path)
        write_offsets(REAL_FILES, tmp_path, OffsetCheckpoint(Offset(24), Offset(24), Offset(int(second.stem))))
        flip(first, 3)
        report = verified(tmp_path)
        assert kinds(report) == [(Kind.NOTE, first.name)]
        assert report.log_start_offset == int(second.stem)

    def test_a_snapshot_that_contradicts_the_batches(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        file = max(tmp_path.glob("*.snapshot"))
        snapshot = decode_snapshot(file.read_bytes())
        file.write_bytes(encode_snapshot(replace(snapshot, epochs=snapshot.epochs[:1])))
        (finding,) = verified(tmp_path).findings
        assert (finding.kind, finding.file) == (Kind.REPAIRABLE, file.name)
        assert "by the batches they began at [(4, 12)]" in finding.message
        other = file.with_name(snapshot_name(3))
        file.rename(other)
        (finding,) = verified(tmp_path).findings
        assert (finding.kind, finding.file) == (Kind.REPAIRABLE, other.name)

    def test_a_snapshot_above_the_log_means_that_records_are_missing(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        (tmp_path / snapshot_name(30)).write_bytes(encode_snapshot(Snapshot(Offset(30))))
        assert Kind.DAMAGE in {finding.kind for finding in verified(tmp_path).findings}

    def test_a_mark_of_damage_counts_as_damage(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        set_mark(REAL_FILES, tmp_path, "the scrubber met it")
        (finding,) = verified(tmp_path).findings
        assert finding.kind is Kind.DAMAGE
        assert "the scrubber met it" in finding.message

    def test_where_a_log_is_being_begun_anew_nothing_is_judged(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        flip(segments(tmp_path)[0], 3)
        (tmp_path / INSTALLATION_FILE).write_bytes(encode_snapshot(Snapshot(Offset(100))))
        assert kinds(verified(tmp_path)) == [(Kind.NOTE, INSTALLATION_FILE)]

    def test_quarantine_is_noted(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        (tmp_path / "quarantine").mkdir()
        (tmp_path / "quarantine" / "x.log").write_bytes(b"x")
        (finding,) = verified(tmp_path).findings
        assert (finding.kind, finding.message[-5:]) == (Kind.NOTE, "x.log")


class TestEncrypted:
    def fill(self, path: Path, batches: Batches) -> None:
        log = opened(path)
        cipher = BatchCipher(Keyring(MasterKeys((MASTER,))), KEY)
        for offset in range(5):
            batch = batches.one(offset)
            parts, header = cipher.encrypt(batch.header, batch.parts[1:])
            log.append(parts, [header])
        log.sync()
        log.close()

    def test_keys_in_use_are_counted_and_none_is_needed(self, tmp_path: Path, batches: Batches) -> None:
        self.fill(tmp_path, batches)
        for keyring in (None, Keyring(), Keyring(MasterKeys((MASTER,)))):
            report = verified(tmp_path, keyring)
            assert report.findings == []
            assert report.master_keys == {"2026": 5}

    def test_with_the_key_a_batch_that_does_not_decrypt_is_damage(self, tmp_path: Path, batches: Batches) -> None:
        self.fill(tmp_path, batches)
        first = segments(tmp_path)[0]
        data = first.read_bytes()
        header = parse_header(data)
        first.write_bytes(encode_header(header._replace(producer_id=5, producer_epoch=1, base_sequence=1)) + data[96:])
        assert verified(tmp_path).is_clean, "its CRCs are right"
        (finding,) = verified(tmp_path, Keyring(MasterKeys((MASTER,)))).findings
        assert finding.kind is Kind.DAMAGE
        assert "does not decrypt" in finding.message
        wrong = verified(tmp_path, Keyring(MasterKeys((MasterKey("2026", b"w" * 32),))))
        assert "is not the one of that id" in wrong.findings[0].message


class TestReadSegment:
    def pieces(self, path: Path, content: bytes) -> list[StoredBatch | Unreadable]:
        file = path / "x.log"
        file.write_bytes(content)
        handle = REAL_FILES.open(file)
        try:
            found = [*read_segment(REAL_FILES, handle, 0, len(content))]
        finally:
            REAL_FILES.close(handle)
        at = 0
        for piece in found:
            assert piece.position == at
            at += piece.header.size if isinstance(piece, StoredBatch) else piece.size
        assert at == len(content)
        return found

    def test_batches_larger_than_a_block_and_damage_across_blocks(
        self, tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from dataplane.log.offline import inspection

        monkeypatch.setattr(inspection, "_BLOCK", 256)
        good = [batches.one(n, 1 + n % 3, size=n * 30) for n in range(1, 20)]
        whole = b"".join(b.data for b in good)
        assert [p.header for p in self.pieces(tmp_path, whole) if isinstance(p, StoredBatch)] == [
            b.header for b in good
        ]
        rubbish = b"\x01\x00 no batch" * 80
        found = self.pieces(tmp_path, good[0].data + rubbish + good[1].data + bytes(1024) + good[2].data)
        assert [type(p).__name__ for p in found] == [
            "StoredBatch", "Unreadable", "StoredBatch", "Unreadable", "StoredBatch",
        ]  # fmt: skip
        assert [p.zeros for p in found if isinstance(p, Unreadable)] == [False, True]

    def test_nothing_but_rubbish(self, tmp_path: Path) -> None:
        for content in (b"x", b"\x01" * 1000, bytes(96), bytes(1000)):
            (piece,) = self.pieces(tmp_path, content)
            assert isinstance(piece, Unreadable)
            assert piece.zeros == (not any(content))


class TestRebuildingAnIndex:
    def test_it_says_the_same_as_the_one_that_was_written(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        for file in segments(tmp_path):
            before = show_index(REAL_FILES, file)
            file.with_suffix(".index").write_bytes(b"rubbish")
            assert show_index(REAL_FILES, file).damaged
            rebuild_index(REAL_FILES, file)
            after = show_index(REAL_FILES, file)
            assert not after.damaged
            assert (after.offset, after.position) == (before.offset, before.position) or file == segments(tmp_path)[-1]
            assert after.position == file.stat().st_size
        assert verified(tmp_path).findings == []
        assert opened(tmp_path).log_end_offset == 24

    def test_a_torn_end_stays_outside(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        last = segments(tmp_path)[-1]
        size = last.stat().st_size
        last.write_bytes(last.read_bytes() + b"torn" * 10)
        rebuild_index(REAL_FILES, last)
        assert show_index(REAL_FILES, last).position == size
        assert opened(tmp_path).log_end_offset == 24

    def test_an_index_that_proves_damage_is_kept(self, tmp_path: Path, batches: Batches) -> None:
        filled(tmp_path, batches)
        first = segments(tmp_path)[0]
        flip(first, HEADER_SIZE + 1)
        before = first.with_suffix(".index").read_bytes()
        with pytest.raises(LogDamaged, match="bytes of it were synced"):
            rebuild_index(REAL_FILES, first)
        assert first.with_suffix(".index").read_bytes() == before
