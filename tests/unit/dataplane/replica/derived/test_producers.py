"""Idempotent producers: a function of the log."""

from __future__ import annotations

from dataplane.replica.derived.producer_table import (
    MAX_PRODUCERS,
    NOBODY,
    Duplicate,
    Fresh,
    ProducerLimits,
    ProducerTable,
    Rejected,
    decode_producers,
    encode_producers,
    encode_times,
)
from wire.batch import BatchBuilder, BatchHeader
from wire.errors import Code
from wire.types import NO_PRODUCER, REMEMBERED_BATCHES, LeaderEpoch, Offset


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


def test_after_a_truncation_the_table_is_read_from_the_log() -> None:
    headers = [header(0, 0, 3), header(3, 3, 2)]
    table = ProducerTable(headers)
    table.rebuild(headers[:1])
    assert table.check(7, 0, 3, 2) == Fresh(), "the batch that was cut away may come again"


def test_batches_without_a_producer_are_always_fresh_and_not_remembered() -> None:
    table = ProducerTable([header(0, -1, producer=-1)])
    assert len(table) == 0
    assert table.check(-1, -1, -1, 5) == Fresh()


SECOND = 1_000_000_000
SMALL = ProducerLimits(max_producers=3, expiration_ms=10_000)


def written(producer: int, sequence: int, at: int) -> BatchHeader:
    """`at`: seconds of the leader's clock; 0: it does not say."""
    return header(0, sequence, producer=producer)._replace(append_time=at * SECOND)


def code_of(table: ProducerTable, producer: int, sequence: int) -> Code | None:
    """Of the refusal of the producer's next batch; None: it is taken, or known already."""
    verdict = table.check(producer, 0, sequence, 1)
    return verdict.error.code if isinstance(verdict, Rejected) else None


def test_a_producer_silent_for_too_long_is_forgotten_and_told_so_and_its_first_batch_is_not_stored_twice() -> None:
    table = ProducerTable([written(1, 0, 100), written(2, 0, 109)], limits=SMALL)
    assert code_of(table, 1, 1) is None
    table.record(written(2, 1, 110))
    assert code_of(table, 1, 1) is Code.UNKNOWN_PRODUCER_ID
    assert code_of(table, 1, 0) is Code.UNKNOWN_PRODUCER_ID, "a repetition of its first batch"
    assert code_of(table, 3, 0) is None, "a producer that is new"
    assert code_of(table, 3, 1) is Code.OUT_OF_ORDER_SEQUENCE, "its first batch was lost"


def test_time_passes_with_appended_batches_and_no_producer_is_forgotten_by_a_batch_of_its_own() -> None:
    table = ProducerTable([written(1, 0, 100)], limits=SMALL)
    assert table.check(1, 0, 1, 1) == Fresh()
    table.record(written(1, 1, 999))
    assert table.check(1, 0, 1, 1) == Duplicate(Offset(0), Offset(1))
    table.record(written(NO_PRODUCER, -1, 1009))
    assert code_of(table, 1, 2) is Code.UNKNOWN_PRODUCER_ID


def test_a_clock_that_goes_back_makes_no_producer_younger_or_older() -> None:
    table = ProducerTable([written(1, 0, 100), written(2, 0, 50)], limits=SMALL)
    assert [producer.written for producer in table.known.producers.values()] == [100 * SECOND, 100 * SECOND]


def test_too_many_producers_forget_the_longest_silent_one() -> None:
    table = ProducerTable((written(n, 0, 100) for n in (5, 6, 7)), limits=SMALL)
    table.record(written(5, 1, 100))
    table.record(written(8, 0, 100))
    assert list(table.known.producers) == [7, 5, 8]
    assert code_of(table, 6, 1) is Code.UNKNOWN_PRODUCER_ID
    assert code_of(table, 4, 0) is Code.UNKNOWN_PRODUCER_ID, "it may have been forgotten"
    assert code_of(table, 9, 0) is None


def test_the_refusal_says_for_how_long_back_every_producer_is_remembered() -> None:
    table = ProducerTable([written(1, 0, 100), written(2, 0, 103), written(3, 0, 111)], limits=SMALL)
    verdict = table.check(1, 0, 1, 1)
    assert isinstance(verdict, Rejected)
    assert verdict.error.details == {"remembered_ms": "11000"}


def test_batches_without_an_append_time_are_as_old_as_the_first_with_one() -> None:
    table = ProducerTable((written(n, 0, 0) for n in (1, 2, 3, 4)), limits=SMALL)
    assert code_of(table, 1, 1) is Code.UNKNOWN_PRODUCER_ID
    table.record(written(5, 0, 100))
    assert list(table.known.producers) == [3, 4, 5]
    verdict = table.check(1, 0, 1, 1)
    assert isinstance(verdict, Rejected)
    assert verdict.error.details == {"remembered_ms": "0"}
    table.record(written(6, 0, 109))
    assert list(table.known.producers) == [4, 5, 6]
    table.record(written(6, 1, 110))
    assert list(table.known.producers) == [6]


def test_forgotten_producers_are_encoded_too() -> None:
    known = ProducerTable((written(n, 0, 100 + n) for n in range(1, 6)), limits=SMALL).known
    assert known.forgotten == 2
    assert decode_producers(encode_producers(known), encode_times(known)) == known


def test_where_an_earlier_version_knew_as_many_as_it_could_any_of_them_may_be_forgotten() -> None:
    full = ProducerTable(header(n, 0, producer=n) for n in range(MAX_PRODUCERS)).known
    assert decode_producers(encode_producers(full), None).forgotten == MAX_PRODUCERS - 1
    some = ProducerTable([header(0, 0)]).known
    assert decode_producers(encode_producers(some), None) == some


def test_after_a_truncation_no_producer_of_the_remaining_batches_is_forgotten() -> None:
    headers = [written(1, 0, 100), written(2, 0, 105), written(3, 0, 200)]
    table = ProducerTable(headers, limits=SMALL)
    assert code_of(table, 1, 1) is Code.UNKNOWN_PRODUCER_ID
    table.rebuild(headers[:2])
    assert table.check(1, 0, 1, 1) == Fresh()
    assert table.known.forgotten == NO_PRODUCER


def test_a_partial_table_refuses_later_batches_of_unknown_producers_as_forgotten_and_takes_first_ones() -> None:
    table = ProducerTable(limits=SMALL)
    table.restore(NOBODY._replace(is_partial=True), [written(5, 0, 100)])
    assert code_of(table, 4, 3) is Code.UNKNOWN_PRODUCER_ID
    assert code_of(table, 9, 3) is Code.UNKNOWN_PRODUCER_ID
    assert code_of(table, 9, 0) is None, "a producer can begin"
    assert code_of(table, 5, 3) is Code.OUT_OF_ORDER_SEQUENCE, "it is known, and batches of it are missing"
    table.record(written(6, 0, 103))
    verdict = table.check(4, 0, 3, 1)
    assert isinstance(verdict, Rejected)
    assert verdict.error.details == {"remembered_ms": "3000"}, "since the first batch that is there"
