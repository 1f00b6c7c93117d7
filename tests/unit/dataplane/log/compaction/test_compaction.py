"""Compaction of a log, pass by pass, against a model in a dict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from dataplane.log.compaction.compaction_pass import dirt_of, tombstones_are_due
from dataplane.log.derived.log_snapshot import Snapshot, snapshot_name
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.checkpoints import COMPACTION_FILE, CompactionPoint
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.producer_table import Duplicate, Fresh, ProducerTable
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.compacting import Model, Row, append, compact, one_pass, rows, stored
from wire.batch import BatchBuilder, CompactableBatch, Compression, EncodedBatch, iter_batches, parse_header
from wire.batch.header import MAX_BODY_BYTES
from wire.errors import CorruptData
from wire.types import Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.batch.compacting import BoolArray

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=200, tail_bytes=200)
HOUR_MS = 3_600_000


class Keyed:
    """A log on a simulated disk, and a model of it."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.disk = SimDisk()
        self.config = config
        self.log, _ = PartitionLog.open(HOME, config, files=self.disk)
        self.model = Model()
        self.epoch = 1

    def append(self, *records: tuple[bytes | None, bytes | None], compression: Compression = Compression.NONE) -> None:
        start = self.log.log_end_offset
        append(self.log, records, epoch=self.epoch, compression=compression)
        self.model.rows += [Row(start + n, key, value) for n, (key, value) in enumerate(records)]

    def fill(self, keys: Sequence[str], value: bytes = b"v" * 40) -> None:
        for key in keys:
            self.append((key.encode(), value + str(self.log.log_end_offset).encode()))
        self.log.sync()

    def reopen(self) -> None:
        self.log.close()
        self.log, report = PartitionLog.open(HOME, self.config, files=self.disk)
        assert report.damaged is None

    @property
    def rows(self) -> list[Row]:
        return rows(stored(self.log))

    @property
    def clean_end(self) -> int:
        return self.log.compaction_point.clean_end


@pytest.fixture
def keyed() -> Keyed:
    return Keyed()


keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"d", b""])
values = st.none() | st.binary(max_size=30)
batches = st.lists(st.tuples(keys, values), min_size=1, max_size=6)


A_BATCH_THAT_WOULD_GROW = [
    ("append", [(None, None)], Compression.NONE),
    ("append", [(None, b"\x01\x00\x00\xad"), (b"", None), (None, None)], Compression.LZ4),
    ("append", [(None, None)], Compression.NONE),
    ("append", [(None, None)], Compression.NONE),
    ("append", [(b"a", None)], Compression.NONE),
    ("append", [(b"a", None), (b"", None)], Compression.NONE),
    ("append", [(None, None)], Compression.NONE),
    ("compact", 9, 0),
]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), batches, st.sampled_from(Compression)),
            st.tuples(st.just("compact"), st.integers(0, 60), st.integers(0, 2)),
            st.tuples(st.just("lead"), st.none(), st.none()),
            st.tuples(st.just("reopen"), st.none(), st.none()),
        ),
        max_size=40,
    )
)
@example(A_BATCH_THAT_WOULD_GROW)
def test_the_newest_record_of_each_key_stays_at_its_offset(steps: list) -> None:  # type: ignore[type-arg]
    keyed = Keyed(LogConfig(segment_bytes=400, index_interval_bytes=150, tail_bytes=200))
    high_watermark = 0
    left_whole = 0
    for what, first, second in steps:
        if what == "append":
            keyed.append(*first, compression=second)
        elif what == "lead":
            keyed.epoch += 1
            keyed.log.assign_epoch(LeaderEpoch(keyed.epoch), keyed.log.log_end_offset)
        elif what == "reopen":
            keyed.reopen()
        else:
            keyed.log.sync()
            before = keyed.log.epochs.entries, keyed.log.log_start_offset, keyed.log.log_end_offset
            high_watermark = max(high_watermark, first)
            left_whole += compact(keyed.log, high_watermark, retention_ms=HOUR_MS).done.left_whole
            assert (keyed.log.epochs.entries, keyed.log.log_start_offset, keyed.log.log_end_offset) == before
            assert keyed.clean_end <= high_watermark
        expected = keyed.model.compacted_to(keyed.clean_end)
        if left_whole:
            # `clean_end` stays below a batch that would have grown. Superseded records behind it may be gone already.
            newest = keyed.model.compacted_to(high_watermark)
            assert set(newest) <= set(keyed.rows) <= set(expected)
        else:
            assert keyed.rows == expected
    keyed.disk.remove(HOME / "leader-epoch-checkpoint")
    entries = [entry for entry in keyed.log.epochs.entries if entry.start < keyed.log.log_end_offset]
    keyed.reopen()
    assert list(keyed.log.epochs.entries)[: len(entries)] == entries


def test_nothing_at_or_past_the_high_watermark_nor_in_the_last_segment_is_touched(keyed: Keyed) -> None:
    keyed.fill("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    assert len(keyed.log.swapping.finished_below(Offset(30))) >= 4
    compact(keyed.log, 9)
    assert 0 < keyed.clean_end <= 9
    assert [row.offset for row in keyed.rows if row.offset >= keyed.clean_end] == list(range(keyed.clean_end, 30))
    compact(keyed.log, 30)
    last = keyed.log.swapping.finished_below(Offset(30))[-1][1]
    assert keyed.clean_end == last < 30
    assert [row.offset for row in keyed.rows] == [last - 1, *range(last, 30)]


def test_records_without_a_key_stay(keyed: Keyed) -> None:
    for _ in range(12):
        keyed.append((None, b"bare"), (b"k", b"x" * 50), (None, None))
    keyed.log.sync()
    assert compact(keyed.log).done.records > 0
    assert [row for row in keyed.rows if row.key is None] == [row for row in keyed.model.rows if row.key is None]


def test_a_small_map_takes_several_passes() -> None:
    keyed = Keyed(LogConfig(segment_bytes=200_000, index_interval_bytes=10_000))
    for round_ in range(3):
        for first in range(0, 20_000, 500):
            keyed.append(*((b"%d" % key, b"%d" % round_) for key in range(first, first + 500)))
    keyed.log.sync()
    passes = [compact(keyed.log).done.records]
    ends = [keyed.clean_end]
    while keyed.clean_end < keyed.log.swapping.finished_below(keyed.log.log_end_offset)[-1][1]:
        passes.append(compact(keyed.log).done.records)
        ends.append(keyed.clean_end)
        assert keyed.rows == keyed.model.compacted_to(keyed.clean_end)
    assert len(passes) > 3
    assert ends == sorted(set(ends))


def test_a_log_whose_point_was_lost_is_compacted_anew(keyed: Keyed) -> None:
    keyed.fill("abcabcabcabcabcabc")
    compact(keyed.log)
    before = keyed.rows
    keyed.disk.remove(HOME / COMPACTION_FILE)
    keyed.reopen()
    assert keyed.clean_end == 0
    assert compact(keyed.log).done.records == 0
    assert keyed.rows == before


def test_a_pass_that_is_broken_off_leaves_nothing_and_begins_anew(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    names = {*keyed.disk.names(HOME), *(snapshot_name(end) for _, end in keyed.log.swapping.finished_below(Offset(40)))}
    for steps in range(1, 40):
        steps_of = one_pass(keyed.log, now_ms=1, retention_ms=0).steps()
        if sum(1 for _ in zip(range(steps), steps_of, strict=False)) < steps:
            break
        steps_of.close()
        assert set(keyed.disk.names(HOME)) <= names
        assert {row.key: row for row in keyed.rows} == {row.key: row for row in keyed.model.rows}
    assert steps > 5
    assert keyed.clean_end > 0


def test_a_compacted_log_can_be_opened_cut_and_read_by_time(keyed: Keyed) -> None:
    keyed.fill("abcdefgh" * 5)
    compact(keyed.log)
    keyed.disk.remove(keyed.log.segments[1].index_path)
    left = keyed.rows
    keyed.reopen()
    assert keyed.rows == left
    for row in left:
        assert keyed.log.offset_for_timestamp(1_000 * (row.offset + 1), Offset(40)) == row.offset
    third = keyed.log.segments[2].base_offset
    end = keyed.log.truncate(Offset(third))
    assert keyed.rows == [row for row in left if row.offset < end]
    assert keyed.clean_end <= end


def test_the_point_is_cut_with_the_log(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    compact(keyed.log)
    clean_end = keyed.clean_end
    keyed.log.truncate(Offset(clean_end - 1))
    assert keyed.clean_end == keyed.log.log_end_offset < clean_end
    keyed.model.rows = keyed.rows
    keyed.reopen()
    keyed.fill("ab" * 10)
    compact(keyed.log)
    assert keyed.rows == keyed.model.compacted_to(keyed.clean_end)


def test_a_log_that_is_examined_for_damage_stays_as_it_is_until_it_is_cut(keyed: Keyed) -> None:
    """Where the damage lies is a byte of a file: in a file that was compacted meanwhile it is another place."""
    keyed.fill("ab" * 20)
    log = keyed.log
    steps = one_pass(log).steps()
    next(steps)
    sizes = [segment.size for segment in log.segments]
    damage = log.checking.examine()
    for _ in steps:
        pass
    assert [segment.size for segment in log.segments] == sizes
    log.checking.cut_damage(damage, when_ns=0, lost=False)
    compact(log)
    assert [segment.size for segment in log.segments] != sizes


def test_a_pass_over_a_log_that_is_cut_meanwhile_gives_up(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    for after in range(1, 30):
        other = Keyed()
        other.fill("ab" * 20)
        steps = one_pass(other.log, now_ms=1, retention_ms=0).steps()
        if sum(1 for _ in zip(range(after), steps, strict=False)) < after:
            break
        other.log.truncate(Offset(12))
        other.model.rows = other.rows
        other.fill("cd" * 12)
        for _ in steps:
            pass
        assert other.rows == other.model.rows
        assert other.clean_end == 0
        assert not [name for name in other.disk.names(HOME) if "compacted" in name]
    assert after > 5


def test_a_reader_never_sees_a_mixture_of_old_and_new(keyed: Keyed) -> None:
    """The segment is replaced while a reader is between its look at the index and its read of the file."""
    keyed.fill("abcdefgh" * 5)
    keyed.log.read_from_disk(Offset(2), max_bytes=100, end_offset=Offset(40))  # its index is in memory now
    read = keyed.disk.read
    done: list[int] = []

    def read_late(handle: int, size: int, position: int) -> bytes:
        if not done:
            done.append(1)
            compact(keyed.log)
        return read(handle, size, position)

    keyed.disk.read = read_late  # type: ignore[method-assign]
    block = keyed.log.read_from_disk(Offset(2), max_bytes=10_000, end_offset=Offset(40))
    assert done
    found = rows(bytes(block))
    assert found == [row for row in keyed.rows if row.offset >= 2][: len(found)]


def test_headers_that_are_being_read_go_on_where_they_were(keyed: Keyed) -> None:
    keyed.fill("abcdefgh" * 5)
    headers = keyed.log.producer_batches(Offset(0))
    first = [next(headers) for _ in range(3)]
    compact(keyed.log)
    offsets = [header.base_offset for header in (*first, *headers)]
    assert offsets == sorted(set(offsets))
    assert {0, 1, 2, *(row.offset for row in keyed.rows)} <= set(offsets)


def test_damage_is_not_compacted_away(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    path = keyed.log.segments[1].path
    keyed.disk.flip_bit(path, 150, 3)
    with pytest.raises(CorruptData, match="byte"):
        compact(keyed.log)
    assert keyed.clean_end == 0


def test_producers_are_known_by_the_batches_that_are_left(keyed: Keyed) -> None:
    for number in range(12):
        append(keyed.log, [(b"a", b"x" * 30), (b"b", b"y" * 30)], producer=(7, 2 * number))
    keyed.log.sync()
    compact(keyed.log)
    table = ProducerTable(keyed.log.producer_batches(Offset(0)))
    assert isinstance(table.check(7, 0, 24, 1), Fresh)
    assert table.check(7, 0, 22, 2) == Duplicate(Offset(22), Offset(24))
    kept = [header for header in keyed.log.producer_batches(Offset(0)) if header.record_count < header.offset_count]
    assert kept
    table = ProducerTable(kept[:1])
    assert isinstance(table.check(7, 0, kept[0].base_sequence + 2, 1), Fresh)


# Tombstones


def test_a_tombstone_is_remembered_from_its_first_compaction_on(keyed: Keyed) -> None:
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, now_ms=1_000_000)
    assert [row for row in keyed.rows if row.key == b"a"] == [Row(4, b"a", None)]
    assert keyed.log.compaction_point.deletions_end == 0
    assert not tombstones_are_due(keyed.log, 10_000, 1_009_999)
    compact(keyed.log, now_ms=1_009_999)
    assert [row.offset for row in keyed.rows if row.key == b"a"] == [4]
    assert tombstones_are_due(keyed.log, 10_000, 1_010_000)
    compact(keyed.log, now_ms=1_010_000)
    assert [row for row in keyed.rows if row.key == b"a"] == []
    point = keyed.log.compaction_point
    assert 4 < point.deletions_end <= point.clean_end
    assert not tombstones_are_due(keyed.log, 10_000, 9_999_999)


def test_while_the_time_is_not_agreed_no_tombstone_goes_and_none_is_dated(keyed: Keyed) -> None:
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, now_ms=None, retention_ms=0)
    compact(keyed.log, now_ms=None, retention_ms=0)
    assert [row for row in keyed.rows if row.key == b"a"] == [Row(4, b"a", None)]
    assert not tombstones_are_due(keyed.log, 0, None)
    assert keyed.log.compaction_point.settled_at_ms == 0
    assert tombstones_are_due(keyed.log, 10_000, 1_000_000), "a pass is to date them"
    compact(keyed.log, now_ms=1_000_000)
    assert not tombstones_are_due(keyed.log, 10_000, 1_009_999)
    compact(keyed.log, now_ms=1_010_000)
    assert [row for row in keyed.rows if row.key == b"a"] == []


def test_no_retention_at_all_still_takes_two_passes(keyed: Keyed) -> None:
    """The deleted records must be gone for good before the tombstone goes."""
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, retention_ms=0)
    assert [row.offset for row in keyed.rows if row.key == b"a"] == [4]
    compact(keyed.log, retention_ms=0)
    assert [row.offset for row in keyed.rows if row.key == b"a"] == []


def test_a_deleted_key_does_not_come_back_with_an_emptied_batch(keyed: Keyed) -> None:
    """The first batch of an epoch and the last one of a segment stay, without their records."""
    for epoch in range(2, 8):
        keyed.epoch = epoch
        keyed.fill("a")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, retention_ms=0)
    compact(keyed.log, retention_ms=0)
    assert [row for row in keyed.rows if row.key == b"a"] == []
    assert [entry.epoch for entry in keyed.log.epochs.entries] == list(range(2, 8))


def test_the_log_says_that_tombstones_are_missing_before_one_is(keyed: Keyed) -> None:
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, retention_ms=0)
    steps = one_pass(keyed.log, now_ms=1_000_001, retention_ms=0).steps()
    for _ in steps:
        gone = not any(row.key == b"a" for row in keyed.rows)
        assert not gone or keyed.log.compaction_point.deletions_end > 4
    assert not any(row.key == b"a" for row in keyed.rows)


EPOCH = LeaderEpoch(7)


def test_the_deleted_end_of_a_copy_counts_only_in_the_leader_epoch_in_which_it_was_begun() -> None:
    copy = CompactionPoint.of_copy(Offset(80), EPOCH)
    assert copy.in_role(EPOCH, Offset(20)) == copy
    other = copy.in_role(LeaderEpoch(8), Offset(20))
    assert (other.deletions_end, other.deleted_end, other.copied_in) == (20, 20, 0)
    assert other.copies_deleted_end == 20
    assert copy.in_role(LeaderEpoch(8), Offset(80)) == copy  # all of it is here


def test_another_leader_is_told_the_end_of_this_log_and_so_is_every_later_life(keyed: Keyed) -> None:
    copy = CompactionPoint.of_copy(Offset(33), EPOCH)
    keyed.log.install(Snapshot(Offset(0)), copy)
    keyed.fill("ab" * 6)
    keyed.reopen()
    assert keyed.log.compaction_point == copy
    assert not keyed.log.swapping.is_copy_of_another(EPOCH)
    assert keyed.log.swapping.is_copy_of_another(LeaderEpoch(8))
    keyed.log.swapping.begin_role(LeaderEpoch(8))
    keyed.fill("ab" * 6)
    keyed.reopen()
    assert keyed.log.compaction_point == CompactionPoint(deletions_end=Offset(12), deleted_end=Offset(12))
    assert not keyed.log.swapping.is_copy_of_another(EPOCH)
    keyed.log.truncate(Offset(9))
    assert keyed.log.compaction_point == CompactionPoint(deletions_end=Offset(9), deleted_end=Offset(9))


def test_a_pass_that_began_before_a_role_does_not_bring_back_an_old_point(keyed: Keyed) -> None:
    keyed.log.install(Snapshot(Offset(0)), CompactionPoint.of_copy(Offset(90), EPOCH))
    keyed.fill("ab" * 20)
    steps = one_pass(keyed.log).steps()
    next(steps)
    keyed.log.swapping.begin_role(LeaderEpoch(8))
    for _ in steps:
        pass
    assert keyed.log.compaction_point.deleted_end == 40


def test_a_dropped_log_remembers_the_leader_that_it_is_filled_from(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    compact(keyed.log)
    copy = CompactionPoint.of_copy(Offset(33), EPOCH)
    keyed.log.install(Snapshot(Offset(0)), copy)
    assert keyed.log.compaction_point == copy
    keyed.reopen()
    assert keyed.log.compaction_point == copy
    keyed.log.drop_all(Offset(0))
    keyed.reopen()
    assert keyed.log.compaction_point == CompactionPoint()


def test_a_damaged_point_promises_nothing(keyed: Keyed) -> None:
    keyed.fill("ab" * 20)
    compact(keyed.log)
    keyed.disk.flip_bit(HOME / COMPACTION_FILE, 60, 1)
    keyed.log.checkpoint_high_watermark(Offset(37))
    keyed.reopen()
    assert keyed.log.compaction_point == CompactionPoint(deletions_end=Offset(37))
    compact(keyed.log)
    assert keyed.clean_end > 0


def test_a_damaged_point_does_not_remove_uncommitted_tombstones(keyed: Keyed) -> None:
    """A member of the ISR ends there, and would be refused."""
    keyed.fill("ab" * 20)
    keyed.log.checkpoint_high_watermark(Offset(20))
    compact(keyed.log, 20, retention_ms=0)
    keyed.disk.flip_bit(HOME / COMPACTION_FILE, 60, 1)
    keyed.reopen()
    assert keyed.log.compaction_point.deletions_end == 20
    keyed.log.truncate(Offset(15))
    assert keyed.log.compaction_point.deletions_end == keyed.log.log_end_offset == 15


def test_the_high_watermark_on_disk_is_not_below_a_tombstone_that_is_gone(keyed: Keyed) -> None:
    """It stands for them, where the point is damaged before the HW was written down again."""
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    keyed.log.checkpoint_high_watermark(Offset(3))
    compact(keyed.log, retention_ms=0)
    compact(keyed.log, retention_ms=0)
    assert not any(row.key == b"a" for row in keyed.rows)
    gone_end = keyed.log.compaction_point.deletions_end
    keyed.disk.flip_bit(HOME / COMPACTION_FILE, 60, 1)
    keyed.disk.kill_process()
    keyed.log, _ = PartitionLog.open(HOME, CONFIG, files=keyed.disk)
    assert keyed.log.compaction_point.deletions_end >= gone_end > 4


@pytest.mark.parametrize("high_watermark", range(20, 31))
def test_a_follower_of_a_log_with_a_damaged_point_is_told_when_a_tombstone_has_gone_since(
    high_watermark: int,
) -> None:
    keyed = Keyed()
    keyed.fill("aaaa")
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    keyed.log.checkpoint_high_watermark(Offset(high_watermark))
    keyed.disk.write(keyed.disk.open(HOME / COMPACTION_FILE, write=True, create=True), [b"damaged"], 0)
    keyed.reopen()
    told = keyed.log.compaction_point.copies_deleted_end
    assert told == high_watermark
    for round_ in range(8):
        compact(keyed.log, high_watermark + 4 * round_, retention_ms=0)
        keyed.fill("cdef")
        gone = not any(row.key == b"a" for row in keyed.rows)
        assert not gone or keyed.log.compaction_point.deletions_end > told
    assert not any(row.key == b"a" for row in keyed.rows)


# Encryption


def test_encrypted_batches_are_compacted_and_stay_encrypted(keyed: Keyed) -> None:
    partition = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(2))
    keys = Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),)))
    leader, here, nobody = BatchCipher(keys, partition), BatchCipher(keys, partition), BatchCipher(Keyring(), partition)
    for number in range(40):
        builder = BatchBuilder()
        builder.add_record(b"secret" + b"." * 40, b"ab"[number % 2 :][:1])
        builder.add_record(b"only one", b"%d" % number)
        parts, header = builder.build(1).stamp(keyed.log.log_end_offset, LeaderEpoch(1))
        parts, header = leader.encrypt(header, parts[1:])
        keyed.log.append(parts, [header])
    keyed.log.sync()
    before = rows(here.decrypted(stored(keyed.log)))
    assert compact(keyed.log, cipher=nobody).done.records == 0
    assert keyed.clean_end == 0
    assert compact(keyed.log, cipher=here).done.records > 30
    left = stored(keyed.log)
    assert all(header.is_encrypted for _, header in iter_batches(left))
    assert rows(leader.decrypted(left)) == Model(before).compacted_to(keyed.clean_end)


def test_no_tombstone_goes_while_something_cannot_be_looked_into(keyed: Keyed) -> None:
    """The tombstone may delete a record in the batch that cannot be read."""
    partition = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(2))
    cipher = BatchCipher(Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),))), partition)
    builder = BatchBuilder()
    builder.add_record(b"secret", b"a")
    parts, header = builder.build(1).stamp(keyed.log.log_end_offset, LeaderEpoch(1))
    parts, header = cipher.encrypt(header, parts[1:])
    keyed.log.append(parts, [header])
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    compact(keyed.log, retention_ms=0, cipher=cipher)
    assert keyed.clean_end > 1
    keyed.append((b"a", None))
    keyed.fill("bcdefghijklmnopqrstuvwxyz")
    for _ in range(3):
        compact(keyed.log, retention_ms=0)  # the key is not here for a while
    assert {0, 26} <= {row.offset for row in rows(cipher.decrypted(stored(keyed.log)))}
    assert keyed.clean_end == 0
    for _ in range(3):
        compact(keyed.log, retention_ms=0, cipher=cipher)
    assert not any(row.key == b"a" for row in rows(cipher.decrypted(stored(keyed.log))))


# How large a batch is


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(keys, values), min_size=1, max_size=60), st.sampled_from(Compression), st.booleans()
        ),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
def test_no_batch_is_larger_than_it_was(batches: list, data: st.DataObject) -> None:  # type: ignore[type-arg]
    partition = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(2))
    cipher = BatchCipher(Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),))), partition)
    keyed = Keyed(LogConfig(segment_bytes=800, index_interval_bytes=150, tail_bytes=200))
    sizes: dict[int, int] = {}
    for content, compression, encrypted in [*batches, ([(b"last", b"." * 900)], Compression.NONE, False)]:
        builder = BatchBuilder()
        for key, value in content:
            builder.add_record(value, key)
        start = keyed.log.log_end_offset
        parts, header = builder.build(1, compression=compression).stamp(start, LeaderEpoch(1))
        if encrypted:
            parts, header = cipher.encrypt(header, parts[1:])
        keyed.log.append(parts, [header])
        keyed.log.sync()
        keyed.model.rows += [Row(start + n, key, value) for n, (key, value) in enumerate(content)]
        sizes[start] = header.size
        if data.draw(st.booleans()):
            compact(keyed.log, cipher=cipher, retention_ms=HOUR_MS)
    compact(keyed.log, cipher=cipher, retention_ms=HOUR_MS)
    left = stored(keyed.log)
    for _, header in iter_batches(left):
        assert header.size <= sizes[header.base_offset]
    found = set(rows(cipher.decrypted(left)))
    # A pass looks further than `clean_end`, which lies before the first batch that it left whole: records that were
    # superseded by a record between the two are gone already.
    assert set(keyed.model.compacted_to(keyed.log.log_end_offset)) <= found
    assert found <= set(keyed.model.compacted_to(keyed.clean_end))


def test_a_tombstone_stays_while_its_record_is_in_a_batch_that_would_be_larger_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The size of compressed bytes cannot be told in advance."""
    keyed = Keyed()
    keyed.append((b"a", b"1"), (b"b", b"2"), compression=Compression.ZSTD)
    keyed.fill("cdefghijkl")
    keyed.append((b"a", None))
    keyed.fill("cdefghijklcdefghijkl")
    keep = CompactableBatch.keep

    def larger(batch: CompactableBatch, kept: BoolArray, max_length: int | None = None) -> EncodedBatch | None:
        return None if batch.header.base_offset == 0 else keep(batch, kept, max_length)

    with monkeypatch.context() as patched:
        patched.setattr(CompactableBatch, "keep", larger)
        for round_ in range(4):
            done = compact(keyed.log, now_ms=round_, retention_ms=0).done
            assert done.left_whole == 1
            assert keyed.clean_end == 0
            assert {row.offset for row in keyed.rows if row.key == b"a"} == {0, 12}
    for round_ in range(4, 8):
        compact(keyed.log, now_ms=round_, retention_ms=0)
    assert not any(row.key == b"a" for row in keyed.rows)
    assert keyed.clean_end > 12


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_batch_that_an_older_version_made_too_large_fits_after_the_next_pass(
    monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    partition = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(2))
    cipher = BatchCipher(Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),))), partition)
    keyed = Keyed(LogConfig(segment_bytes=10_000, index_interval_bytes=500, tail_bytes=200))
    builder = BatchBuilder()
    for key in range(200):
        builder.add_record(b"v" * 20, b"%d" % key)
    batch = builder.build(1)
    room = batch.size
    parts, header = batch.stamp(Offset(0), LeaderEpoch(1))
    if encrypted:
        parts, header = cipher.encrypt(header, parts[1:])
    keyed.log.append(parts, [header])
    keyed.append((b"17", b"newer"))
    keyed.append((b"end of a segment", b"." * 10_000))
    keyed.log.sync()
    keep = CompactableBatch.keep
    with monkeypatch.context() as patched:
        patched.setattr(CompactableBatch, "keep", lambda batch, kept, _=None: keep(batch, kept, MAX_BODY_BYTES))
        compact(keyed.log, cipher=cipher)
    before = stored(keyed.log)
    assert parse_header(before).size > header.size
    compact(keyed.log, cipher=cipher)
    assert stored(keyed.log) == before  # not too large for messages
    compact(keyed.log, cipher=cipher, max_batch_bytes=room)
    after = stored(keyed.log)
    assert parse_header(after).size <= header.size
    assert rows(cipher.decrypted(after)) == rows(cipher.decrypted(before))


# Dirty bytes


def test_dirt(keyed: Keyed) -> None:
    assert dirt_of(keyed.log, Offset(0)) == (0, 0)
    keyed.fill("abcdefgh" * 5)
    before = dirt_of(keyed.log, Offset(40))
    assert before.dirty == before.total > 0
    assert before.ratio == 1.0
    compact(keyed.log)
    after = dirt_of(keyed.log, Offset(40))
    assert (after.dirty, after.ratio) == (0, 0.0)
    assert 0 < after.total < before.total
    keyed.fill("abcdefgh" * 5)
    assert 0.5 < dirt_of(keyed.log, Offset(80)).ratio < 1
    assert dirt_of(keyed.log, Offset(40)).dirty == 0


def test_batches_by_which_a_repetition_is_recognised_leave_their_place(keyed: Keyed) -> None:
    """Followers that copy this log get them too. Once the producer is not remembered any more they go."""
    append(keyed.log, [(b"a", b"x" * 30), (b"b", b"y" * 30)], producer=(7, 0))
    for number in range(30):
        append(keyed.log, [(b"a", b"x" * 30), (b"b", b"y" * 30)], producer=(8, 2 * number))
    keyed.log.sync()
    compact(keyed.log)
    copy = ProducerTable(keyed.log.producer_batches(Offset(0)))
    assert copy.known == keyed.log.producers.known
    assert isinstance(copy.check(7, 0, 0, 2), Duplicate)
    place = next(header for header in keyed.log.producer_batches(Offset(0)) if header.producer_id == 7)
    assert (place.is_control, place.end_offset) == (True, 2)
    for number in range(30, 60):
        append(keyed.log, [(b"a", b"x" * 30), (b"b", b"y" * 30)], producer=(8, 2 * number))
    for number in range(1, 7):
        append(keyed.log, [(b"a", b"x" * 30)], producer=(7, 1 + number))
    keyed.log.sync()
    left = [header.base_offset for header in keyed.log.producer_batches(Offset(0)) if header.is_control]
    compact(keyed.log)
    now = [header.base_offset for header in keyed.log.producer_batches(Offset(0)) if header.is_control]
    assert set(left) - set(now)
    assert ProducerTable(keyed.log.producer_batches(Offset(0))).known == keyed.log.producers.known


def test_batches_that_may_still_be_cut_make_no_others_superfluous(keyed: Keyed) -> None:
    """A producer's batches below the HW stay known when five later ones of it, above the HW, are cut."""
    append(keyed.log, [(b"a", b"x" * 30)], producer=(7, 0))
    append(keyed.log, [(b"a", b"x" * 30)], producer=(7, 1))
    for number in range(12):
        append(keyed.log, [(b"a", b"x" * 30), (b"b", b"y" * 30)], producer=(8, 2 * number))
    high_watermark = keyed.log.log_end_offset
    committed = keyed.log.producers.known
    for number in range(2, 9):
        append(keyed.log, [(b"a", b"x" * 30)], producer=(7, number))
    keyed.log.sync()
    assert compact(keyed.log, high_watermark).done.records
    keyed.log.truncate(Offset(high_watermark))
    assert keyed.log.producers.known == committed
    keyed.reopen()
    assert keyed.log.producers.known == committed
    assert ProducerTable(keyed.log.producer_batches(Offset(0))).known == committed


def test_where_an_epoch_begins_is_known_by_the_batches_that_are_left(keyed: Keyed) -> None:
    for epoch in (2, 3, 4):
        keyed.epoch = epoch
        keyed.fill("aaabbbccc" * 2)
    compact(keyed.log)
    left = LeaderEpochCache()
    for header in keyed.log.producer_batches(Offset(0)):
        left.assign(header.leader_epoch, header.base_offset)
    assert left.entries == keyed.log.epochs.entries
    assert len(keyed.rows) < len(keyed.model.rows) / 2
