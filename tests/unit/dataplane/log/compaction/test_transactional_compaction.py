"""Compaction of a log with transactions: what is committed counts, what is aborted does not, what is open waits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from dataplane.log.compaction.compaction_pass import dirt_of
from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.transaction_table import TransactionTable
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.compacting import append, compact, end, one_pass, rows, stored
from wire.batch import Marker, iter_batches
from wire.types import FIRST_TRANSACTIONAL_ID, Incarnation, Offset, PartitionKey, StreamName

if TYPE_CHECKING:
    from wire.batch import BatchHeader

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=200, tail_bytes=200)
PARTITION = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(2))
LONG_AGO = {"now_ms": 1_000_000, "retention_ms": 0}


class Ledger:
    """A log of which each finished segment ends where a test says so."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.log, _ = PartitionLog.open(HOME, CONFIG, files=self.disk)

    def write(self, key: str, value: str | None, **options: object) -> None:
        """One record; `options` are those of `append`."""
        append(self.log, [(key.encode(), value.encode() if value is not None else None)], **options)  # type: ignore[arg-type]

    def finish_segment(self) -> None:
        self.log.roll()
        self.log.sync()

    def reopen_without_snapshots(self) -> None:
        self.log.close()
        for path, _ in self.disk.files_below(HOME):
            if path.suffix == SNAPSHOT_SUFFIX:
                self.disk.remove(path)
        self.log, report = PartitionLog.open(HOME, CONFIG, files=self.disk)
        assert report.damaged is None

    @property
    def headers(self) -> list[BatchHeader]:
        return [header for _, header in iter_batches(stored(self.log))]

    @property
    def left(self) -> list[str]:
        """OFFSET:KEY=VALUE of each record, OFFSET:-KEY of each tombstone."""
        return [
            f"{offset}:-{(key or b'').decode()}"
            if value is None
            else f"{offset}:{(key or b'').decode()}={value.decode()}"
            for offset, key, value in rows(stored(self.log))
        ]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_an_aborted_tombstone_deletes_nothing(ledger: Ledger) -> None:
    ledger.write("k", "v")
    ledger.write("k", None, transaction=(1, 0, 0))
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    for _ in range(3):
        compact(ledger.log, **LONG_AGO)
    assert ledger.left == ["0:k=v"]
    assert ledger.log.compaction_point.tombstones == 0
    assert ledger.log.compaction_point.deletions_end == 0, "no tombstone that deleted something has gone"


def test_an_aborted_value_supersedes_nothing_and_is_gone(ledger: Ledger) -> None:
    ledger.write("k", "v")
    ledger.write("k", "w", transaction=(1, 0, 0))
    ledger.write("k", "x", transaction=(1, 0, 1))
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    assert compact(ledger.log).done.records == 2
    assert ledger.left == ["0:k=v"]


def test_the_records_of_an_aborted_transaction_go_where_nothing_else_does(ledger: Ledger) -> None:
    ledger.write("a", "1", transaction=(1, 0, 0))
    ledger.write("b", "2")
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    compact(ledger.log)
    assert ledger.left == ["1:b=2"]


def test_a_deleted_key_whose_last_value_was_transactional_stays_deleted(ledger: Ledger) -> None:
    ledger.write("k", "v", transaction=(1, 0, 0))
    end(ledger.log, 1, 0, Marker.COMMIT)
    ledger.write("k", None)
    ledger.finish_segment()
    left = []
    for _ in range(3):
        compact(ledger.log, **LONG_AGO)
        left.append(ledger.left)
    assert left == [["2:-k"], [], []]


def test_a_committed_value_supersedes_and_a_committed_tombstone_deletes(ledger: Ledger) -> None:
    ledger.write("a", "1")
    ledger.write("b", "2")
    ledger.write("a", "3", transaction=(1, 0, 0))
    ledger.write("b", None, transaction=(1, 0, 1))
    end(ledger.log, 1, 0, Marker.COMMIT)
    ledger.finish_segment()
    compact(ledger.log, **LONG_AGO)
    assert ledger.left == ["2:a=3", "3:-b"]
    compact(ledger.log, **LONG_AGO)
    assert ledger.left == ["2:a=3"]


def test_nothing_at_or_above_an_open_transaction_is_compacted(ledger: Ledger) -> None:
    ledger.write("k", "0")
    ledger.write("k", "1")
    ledger.finish_segment()
    ledger.write("k", "2", transaction=(1, 0, 0))
    ledger.finish_segment()
    ledger.write("k", "3")
    ledger.finish_segment()
    finished = ledger.log.segments[:-1]
    assert dirt_of(ledger.log, ledger.log.log_end_offset).total == finished[0].size
    compact(ledger.log)
    assert ledger.log.compaction_point.clean_end == 2
    assert ledger.left == ["1:k=1", "2:k=2", "3:k=3"]
    marker = end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    compact(ledger.log, marker)
    assert ledger.left == ["1:k=1", "2:k=2", "3:k=3"], "the marker may still be cut away, and another come"
    compact(ledger.log, marker + 1)
    assert ledger.left == ["3:k=3"]


def test_what_is_left_of_transactional_batches_is_transactional_and_markers_stay(ledger: Ledger) -> None:
    append(ledger.log, [(b"a", b"1"), (b"b", b"2")], transaction=(1, 0, 0))
    committed = end(ledger.log, 1, 0, Marker.COMMIT)
    append(ledger.log, [(b"c", b"3"), (b"d", b"4")], transaction=(2, 0, 0))
    aborted = end(ledger.log, 2, 0, Marker.ABORT)
    ledger.write("a", "5")
    ledger.finish_segment()
    compact(ledger.log)
    assert ledger.left == ["1:b=2", "6:a=5"]
    assert [(header.base_offset, header.marker) for header in ledger.headers if header.marker] == [
        (committed, Marker.COMMIT),
        (aborted, Marker.ABORT),
    ]
    (partly,) = [header for header in ledger.headers if header.base_offset == 0]
    assert partly.is_transactional
    assert not partly.is_control


def test_the_transactions_of_a_compacted_log_are_learned_again(ledger: Ledger) -> None:
    """An emptied batch of an open transaction still holds the end back, once it is all that is left."""
    ledger.write("a", "1", transaction=(1, 0, 0))
    ledger.write("a", "2", transaction=(2, 0, 0))
    end(ledger.log, 1, 0, Marker.ABORT)
    end(ledger.log, 2, 0, Marker.COMMIT)
    ledger.write("a", "3")
    ledger.finish_segment()
    ledger.write("a", "4", transaction=(1, 1, 0))
    ledger.log.sync()
    ends = [ledger.log.last_stable(Offset(hw)) for hw in range(4, 7)]
    compact(ledger.log)
    ledger.reopen_without_snapshots()
    assert [ledger.log.last_stable(Offset(hw)) for hw in range(4, 7)] == ends
    assert ledger.log.transactions.aborted_count == 0, "none has a record left"


def test_aborted_batches_that_cannot_be_looked_into_are_emptied_and_what_follows_them_is_clean(ledger: Ledger) -> None:
    cipher = BatchCipher(Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),))), PARTITION)
    ledger.write("k", "v")
    ledger.write("k", "w", transaction=(1, 0, 0), cipher=cipher)
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    compact(ledger.log)  # without the master key
    assert ledger.left == ["0:k=v"]
    assert ledger.log.compaction_point.clean_end == 3


def test_transactions_are_forgotten_once_their_records_are_gone_and_not_before(ledger: Ledger) -> None:
    ledger.write("a", "1", transaction=(1, 0, 0))
    ledger.finish_segment()
    ledger.write("a", "2", transaction=(1, 0, 1))
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.log.sync()
    compact(ledger.log)
    ledger.log.swapping.forget_compacted()
    (known,) = ledger.log.transactions.aborted(Offset(0), Offset(10))
    assert (known.producer_id, known.first, known.marker) == (FIRST_TRANSACTIONAL_ID + 1, 0, 2)
    ledger.finish_segment()
    compact(ledger.log)
    assert ledger.log.transactions.aborted_count == 1
    ledger.log.swapping.forget_compacted()
    assert ledger.log.transactions.aborted_count == 0


def test_a_pass_knows_the_transactions_as_of_its_beginning(ledger: Ledger) -> None:
    """A transaction that ends meanwhile is left to the next pass."""
    ledger.write("k", "1")
    ledger.finish_segment()
    ledger.write("k", "2", transaction=(1, 0, 0))
    ledger.finish_segment()
    working = one_pass(ledger.log)
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    for _ in working.steps():
        pass
    assert ledger.left == ["0:k=1", "1:k=2"]
    compact(ledger.log)
    assert ledger.left == ["0:k=1"]


def test_while_a_cut_restores_the_transactions_they_are_neither_asked_nor_forgotten(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut holds the lock of the derived state until that is whole again."""
    ledger.write("k", "1", transaction=(1, 0, 0))
    end(ledger.log, 1, 0, Marker.ABORT)
    ledger.finish_segment()
    lock, last_stable = ledger.log._state.derived.lock, TransactionTable.last_stable
    asked: list[bool] = []

    def noting(self: TransactionTable, high_watermark: Offset) -> Offset:
        asked.append(lock.locked())
        return last_stable(self, high_watermark)

    monkeypatch.setattr(TransactionTable, "last_stable", noting)
    compact(ledger.log)
    assert asked == [True]
    with lock:
        ledger.log.swapping.forget_compacted()
    assert ledger.log.transactions.aborted_count == 1
    ledger.log.swapping.forget_compacted()
    assert ledger.log.transactions.aborted_count == 0
