"""Idempotent producers: a function of the log."""

from __future__ import annotations

from dataplane.replica.producers import Duplicate, Fresh, ProducerTable, Rejected
from wire.batch import BatchBuilder, BatchHeader
from wire.errors import Code
from wire.types import REMEMBERED_BATCHES, LeaderEpoch, Offset


def header(base: int, sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0) -> BatchHeader:
    builder = BatchBuilder()
    builder.add_values([b"x"] * count)
    batch = builder.build(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return batch.stamp(Offset(base), LeaderEpoch(1))[1]


def test_the_next_sequence_is_fresh_and_the_same_again_a_duplicate_of_the_original() -> None:
    table = ProducerTable([header(0, 0, 3)])
    assert table.check(7, 0, 3, 2) == Fresh()
    assert table.check(7, 0, 0, 3) == Duplicate(Offset(0), Offset(3))


def test_a_gap_is_refused_so_that_a_lost_batch_is_not_overtaken() -> None:
    verdict = ProducerTable([header(0, 0, 3)]).check(7, 0, 4, 1)
    assert isinstance(verdict, Rejected)
    assert verdict.error.code is Code.OUT_OF_ORDER_SEQUENCE
    assert verdict.error.details["expected_sequence"] == "3"


def test_an_unknown_producer_begins_at_zero() -> None:
    assert ProducerTable().check(7, 0, 0, 1) == Fresh()
    assert isinstance(ProducerTable().check(7, 0, 1, 1), Rejected)


def test_an_older_epoch_is_fenced() -> None:
    verdict = ProducerTable([header(0, 0, epoch=2)]).check(7, 1, 1, 1)
    assert isinstance(verdict, Rejected)
    assert verdict.error.code is Code.PRODUCER_FENCED


def test_only_the_last_batches_are_remembered() -> None:
    table = ProducerTable(header(i, i) for i in range(REMEMBERED_BATCHES + 1))
    assert isinstance(table.check(7, 0, 0, 1), Rejected)
    assert table.check(7, 0, 1, 1) == Duplicate(Offset(1), Offset(2))


def test_after_a_truncation_the_log_says_what_is_known() -> None:
    headers = [header(0, 0, 3), header(3, 3, 2)]
    table = ProducerTable(headers)
    table.rebuild(headers[:1])
    assert table.check(7, 0, 3, 2) == Fresh(), "the batch that was cut away may come again"


def test_batches_without_a_producer_are_always_fresh_and_not_remembered() -> None:
    table = ProducerTable([header(0, -1, producer=-1)])
    assert len(table) == 0
    assert table.check(-1, -1, -1, 5) == Fresh()
