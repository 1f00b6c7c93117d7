"""Transactions of one partition: a function of the log, and of what is known to be committed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from dataplane.replica.derived.transaction_table import (
    NO_TRANSACTIONS,
    Aborted,
    Ended,
    Open,
    TransactionTable,
    decode_transactions,
    encode_transactions,
)
from wire.batch import BatchBuilder, BatchHeader, Marker, emptied, transaction_marker
from wire.errors import CorruptData
from wire.types import FIRST_TRANSACTIONAL_ID, LeaderEpoch, Offset

ONE, TWO, THREE = FIRST_TRANSACTIONAL_ID, FIRST_TRANSACTIONAL_ID + 1, FIRST_TRANSACTIONAL_ID + 2


def data(base: int, producer: int = ONE, count: int = 1, *, sequence: int = 0, epoch: int = 0) -> BatchHeader:
    builder = BatchBuilder()
    builder.add_values([b"x"] * count)
    batch = builder.build(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
    return batch.stamp(Offset(base), LeaderEpoch(1))[1]


def plain(base: int, count: int = 1) -> BatchHeader:
    builder = BatchBuilder()
    builder.add_values([b"x"] * count)
    return builder.build(1).stamp(Offset(base), LeaderEpoch(1))[1]


def commit(base: int, producer: int = ONE, next_epoch: int = 1) -> BatchHeader:
    return transaction_marker(producer, next_epoch, Marker.COMMIT).stamp(Offset(base), LeaderEpoch(1))[1]


def abort(base: int, producer: int = ONE, next_epoch: int = 1) -> BatchHeader:
    return transaction_marker(producer, next_epoch, Marker.ABORT).stamp(Offset(base), LeaderEpoch(1))[1]


def without_records(header: BatchHeader) -> BatchHeader:
    return emptied(header).header


def test_without_transactions_everything_committed_is_stable() -> None:
    table = TransactionTable([plain(0, 5)])
    assert table.last_stable(Offset(3)) == 3
    assert table.aborted(Offset(0), Offset(5)) == []
    assert table.known is NO_TRANSACTIONS


def test_an_open_transaction_holds_the_stable_end_back_at_its_first_batch() -> None:
    table = TransactionTable([plain(0, 5), data(5, count=2), data(7, sequence=2), plain(8)])
    assert table.last_stable(Offset(9)) == 5
    assert table.last_stable(Offset(4)) == 4, "the HW is lower"
    assert table.opened_at(ONE) == 5
    assert table.opened_at(TWO) is None


def test_the_transaction_that_began_first_holds_it_back() -> None:
    table = TransactionTable([data(0), data(1, TWO), commit(2), data(3, ONE, epoch=1)])
    table.on_committed(Offset(4))
    assert table.last_stable(Offset(4)) == 1
    table.record(abort(4, TWO))
    table.on_committed(Offset(5))
    assert table.last_stable(Offset(5)) == 3


@pytest.mark.parametrize("end", [commit, abort])
def test_one_that_ended_holds_it_back_until_its_marker_is_committed(end: object) -> None:
    """The marker may be lost with this leader; the transaction is open again then."""
    table = TransactionTable([data(0, count=3), commit(3) if end is commit else abort(3)])
    assert table.last_stable(Offset(2)) == 0
    assert table.last_stable(Offset(3)) == 0, "the HW is exclusive"
    assert table.last_stable(Offset(4)) == 4
    table.on_committed(Offset(3))
    assert table.last_stable(Offset(3)) == 0
    table.on_committed(Offset(4))
    assert table.known.ended == ()
    assert table.last_stable(Offset(4)) == 4


def test_one_with_an_earlier_first_batch_makes_those_that_ended_before_superfluous() -> None:
    table = TransactionTable([data(0, TWO), data(1, ONE), commit(2, ONE), commit(3, TWO)])
    assert table.known.ended == (Ended(Offset(0), Offset(3)),)
    assert [table.last_stable(Offset(end)) for end in range(1, 5)] == [0, 0, 0, 4]


def test_several_that_ended_hold_it_back_one_after_the_other() -> None:
    table = TransactionTable([data(0), commit(1), data(2, epoch=1), commit(3, next_epoch=2)])
    assert [table.last_stable(Offset(end)) for end in range(1, 5)] == [0, 2, 2, 4]


def test_a_marker_where_nothing_is_open_changes_nothing() -> None:
    table = TransactionTable([abort(0), commit(1, TWO)])
    assert table.known == NO_TRANSACTIONS
    assert table.last_stable(Offset(2)) == 2


def test_aborted_transactions_are_found_by_their_batches() -> None:
    table = TransactionTable([data(0, count=2), plain(2), abort(3), plain(4), data(5, epoch=1), plain(6)])
    table.record(abort(7, next_epoch=2))
    first, second = Aborted(ONE, Offset(0), Offset(3), Offset(4)), Aborted(ONE, Offset(5), Offset(7), Offset(8))
    assert table.known.aborted == (first, second)
    assert table.aborted(Offset(0), Offset(8)) == [first, second]
    assert table.aborted(Offset(1), Offset(2)) == [first], "the offset lies within a batch"
    assert table.aborted(Offset(3), Offset(5)) == [], "a marker hides nothing"
    assert table.aborted(Offset(3), Offset(6)) == [second]
    assert table.aborted(Offset(8), Offset(9)) == []


def test_a_committed_one_is_not_among_the_aborted() -> None:
    assert TransactionTable([data(0), commit(1)]).known.aborted == ()


def test_one_that_began_early_and_ended_late_is_found_behind_others() -> None:
    headers = [data(0, TWO)]
    for number in range(10):
        headers += [data(1 + 2 * number, epoch=number), abort(2 + 2 * number, next_epoch=number + 1)]
    table = TransactionTable([*headers, abort(21, TWO)])
    assert [each.producer_id for each in table.aborted(Offset(0), Offset(1))] == [TWO]
    assert [each.first for each in table.aborted(Offset(3), Offset(5))] == [3, 0]


def test_a_search_ends_where_nothing_more_can_be_found() -> None:
    headers = [header for at in range(0, 2000, 2) for header in (data(at, epoch=at), abort(at + 1, next_epoch=at + 1))]
    table = TransactionTable(headers)
    assert [each.first for each in table.aborted(Offset(1), Offset(5))] == [2, 4]
    assert all(each.stable == each.marker + 1 for each in table.known.aborted)


def test_one_without_records_left_is_open_and_not_aborted() -> None:
    table = TransactionTable([without_records(data(0, count=3)), without_records(data(3, sequence=3))])
    assert table.known.open == {ONE: Open(Offset(0), False)}
    assert table.last_stable(Offset(4)) == 0
    table.record(abort(4))
    assert table.known.aborted == ()
    table = TransactionTable([without_records(data(0, count=3)), data(3, sequence=3), abort(4)])
    assert [each.first for each in table.known.aborted] == [0]


def test_aborted_ones_whose_records_are_gone_are_forgotten() -> None:
    table = TransactionTable([data(0), abort(1), data(2, epoch=1), abort(3, next_epoch=2)])
    table.forget_aborted(Offset(1))
    assert table.aborted_count == 2, "the marker is not below"
    table.forget_aborted(Offset(2))
    assert [each.first for each in table.known.aborted] == [2]
    table.forget_aborted(Offset(10))
    assert table.known.aborted == ()


def test_what_is_copied_does_not_change_and_can_be_taken_up() -> None:
    table = TransactionTable([data(0), data(1, TWO), abort(2)])
    known = table.known
    table.record(commit(3, TWO))
    table.on_committed(Offset(4))
    table.forget_aborted(Offset(4))
    assert table.known == NO_TRANSACTIONS
    table.restore(known)
    assert table.known == known
    assert table.last_stable(Offset(3)) == 1
    table.validate()
    table.restore(NO_TRANSACTIONS)
    assert table.last_stable(Offset(3)) == 3


def test_the_encoded_state_is_the_state() -> None:
    known = TransactionTable([data(0), data(1, TWO), without_records(data(2, THREE)), abort(3)]).known
    assert [len(piece) for piece in known] == [2, 1, 1]
    assert decode_transactions(encode_transactions(known)) == known
    assert decode_transactions(encode_transactions(NO_TRANSACTIONS)) == NO_TRANSACTIONS


def test_a_state_that_is_cut_or_longer_is_refused() -> None:
    encoded = encode_transactions(TransactionTable([data(0), data(1, TWO), abort(2)]).known)
    for size in range(len(encoded)):
        with pytest.raises(CorruptData):
            decode_transactions(encoded[:size])
    with pytest.raises(CorruptData):
        decode_transactions(encoded + b"\0")


def _random_log(random: Random, length: int) -> Iterator[BatchHeader]:
    producers = [ONE, TWO, THREE]
    for base in range(length):
        producer = random.choice(producers)
        kind = random.random()
        if kind < 0.5:
            yield data(base, producer)
        elif kind < 0.6:
            yield without_records(data(base, producer))
        elif kind < 0.7:
            yield plain(base)
        else:
            yield (commit if kind < 0.85 else abort)(base, producer)


def _stable_by_definition(log: list[BatchHeader], high_watermark: int) -> int:
    """Of the log as it may be cut to the HW at any time: the first batch that belongs to no transaction which ended
    below the HW."""
    ends: dict[int, int] = {}
    stable = high_watermark
    for header in reversed(log):
        if header.marker is not None:
            ends[header.producer_id] = header.base_offset
        elif header.is_transactional and ends.get(header.producer_id, high_watermark) >= high_watermark:
            stable = min(stable, header.base_offset)
    return stable


def _aborted_by_definition(log: list[BatchHeader], start: int, end: int) -> set[int]:
    """Offsets of batches with records."""
    found: set[int] = set()
    outcome: dict[int, Marker] = {}
    for header in reversed(log):
        if header.marker is not None:
            outcome[header.producer_id] = header.marker
        elif (
            not header.is_control
            and header.is_transactional
            and start <= header.base_offset < end
            and outcome.get(header.producer_id) is Marker.ABORT
        ):
            found.add(header.base_offset)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_random_log_is_judged_as_the_definitions_say(seed: int) -> None:
    random = Random(seed)
    log = list(_random_log(random, 60))
    table, committed = TransactionTable(), 0
    for end, header in enumerate(log, 1):
        table.record(header)
        table.validate()
        if random.random() < 0.3:
            committed = random.randint(committed, end)
            table.on_committed(Offset(committed))
        if random.random() < 0.2:
            table.restore(decode_transactions(encode_transactions(table.known)))
        for high_watermark in range(committed, end + 1):
            assert table.last_stable(Offset(high_watermark)) == _stable_by_definition(log[:end], high_watermark)
    for _ in range(50):
        start = random.randrange(60)
        end = random.randint(start, 60)
        found = table.aborted(Offset(start), Offset(end))
        hidden = {
            header.base_offset
            for header in log[start:end]
            if header.is_transactional
            and not header.is_control
            and any(
                each.producer_id == header.producer_id and each.first <= header.base_offset < each.marker
                for each in found
            )
        }
        assert hidden == _aborted_by_definition(log, start, end)
