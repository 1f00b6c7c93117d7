"""Transactional producers: markers end their epochs, and they are remembered for as long as a late batch may come."""

from __future__ import annotations

import pytest

from dataplane.replica.derived import producer_table
from dataplane.replica.derived.producer_table import (
    NOBODY,
    TRANSACTIONAL_MS,
    Duplicate,
    Fresh,
    KnownProducers,
    ProducerLimits,
    ProducerTable,
    Rejected,
    decode_producers,
    decode_transactional,
    encode_producers,
    encode_times,
    encode_transactional,
)
from dataplane.replica.derived.transaction_table import decode_transactions, encode_transactions
from tests.unit.dataplane.replica.derived.test_producers import header
from tests.unit.dataplane.replica.derived.test_transactions import ONE, TWO, abort, commit, data
from wire.batch import BatchHeader
from wire.error_details import LIMIT
from wire.errors import Code, CorruptData, TidelogError
from wire.security.tickets import LIFETIME_S
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, Offset

HOUR = 3600 * 1_000_000_000
SILENT = ProducerLimits(max_producers=3, expiration_ms=1000)


def at(header: BatchHeader, hours: float) -> BatchHeader:
    """Appended when the leader's clock said so; hours since 1970."""
    return header._replace(append_time=int(hours * HOUR))


def code_of(table: ProducerTable, producer: int, epoch: int, sequence: int) -> Code | None:
    verdict = table.check(producer, epoch, sequence, 1)
    return verdict.error.code if isinstance(verdict, Rejected) else None


def refusal(table: ProducerTable, producer: int, *, epoch: int = 0, hours: float = 0) -> TidelogError | None:
    return table.refuse_transaction(producer, epoch, int(hours * HOUR))


def test_a_marker_ends_the_epoch_of_its_producer_and_the_next_one_begins_at_0() -> None:
    table = ProducerTable([data(0, count=3)])
    assert table.check(ONE, 0, 0, 3) == Duplicate(Offset(0), Offset(3))
    table.record(abort(3))
    assert code_of(table, ONE, 0, 3) is Code.PRODUCER_FENCED
    assert code_of(table, ONE, 0, 0) is Code.PRODUCER_FENCED, "a repetition comes too late, too"
    assert table.check(ONE, 1, 0, 3) == Fresh()
    assert code_of(table, ONE, 1, 1) is Code.OUT_OF_ORDER_SEQUENCE
    assert table.epoch_of(ONE) == 1
    table.record(data(4, epoch=1))
    assert table.check(ONE, 1, 0, 1) == Duplicate(Offset(4), Offset(5))
    assert table.check(ONE, 1, 1, 1) == Fresh()
    table.validate()


def test_a_marker_of_a_producer_that_never_wrote_here_fences_its_late_batches() -> None:
    table = ProducerTable([commit(0, TWO, next_epoch=8)])
    assert code_of(table, TWO, 7, 0) is Code.PRODUCER_FENCED
    assert table.check(TWO, 8, 0, 1) == Fresh()
    table.validate()


def test_transactional_producers_do_not_make_an_ordinary_one_old() -> None:
    """The ids of ordinary ones are below: none of them could begin any more, had a transactional one been forgotten."""
    table = ProducerTable([at(data(0), 1), at(abort(1), 1)], limits=SILENT)
    table.record(at(header(2, 0, producer=1), 9))
    assert table.epoch_of(ONE) is None, "it is forgotten"
    assert table.known.forgotten == NO_PRODUCER
    assert code_of(table, 2, 0, 0) is None
    assert code_of(table, ONE, 5, 0) is None, "it has a ticket"


def test_ordinary_producers_forget_no_transactional_ones() -> None:
    table = ProducerTable([at(data(0), 1), *(at(header(n, 0, producer=n), 1) for n in range(1, 9))], limits=SILENT)
    assert len(table.known.producers) == 3
    assert table.epoch_of(ONE) == 0


def test_one_is_remembered_for_longer_than_its_ticket_is_valid_however_short_the_expiration() -> None:
    assert TRANSACTIONAL_MS / 1000 >= 2 * LIFETIME_S
    table = ProducerTable([at(data(0), 1), at(commit(1), 1)], limits=SILENT)
    table.record(at(header(2, -1, producer=NO_PRODUCER, epoch=-1), 2.99))
    assert table.epoch_of(ONE) == 1
    table.record(at(header(3, -1, producer=NO_PRODUCER, epoch=-1), 3))
    assert table.epoch_of(ONE) is None


def test_one_is_remembered_as_long_as_others_where_that_is_longer() -> None:
    limits = ProducerLimits(expiration_ms=10 * 3_600_000)
    table = ProducerTable([at(data(0), 1), at(commit(1), 1)], limits=limits)
    table.record(at(header(2, -1, producer=NO_PRODUCER, epoch=-1), 10.9))
    assert table.epoch_of(ONE) == 1
    table.record(at(header(3, -1, producer=NO_PRODUCER, epoch=-1), 11))
    assert table.epoch_of(ONE) is None


def test_one_is_remembered_while_its_transaction_is_open() -> None:
    table = ProducerTable([at(data(0), 1), at(data(1, TWO), 1), at(commit(2, TWO), 1)], limits=SILENT)
    table.record(at(header(3, -1, producer=NO_PRODUCER, epoch=-1), 99))
    assert table.epoch_of(ONE) == 0
    assert table.epoch_of(TWO) is None, "it stands behind the other one"
    table.validate()
    assert table.known == table_of(table.known).known
    table.record(at(commit(4), 100))
    table.record(at(header(5, -1, producer=NO_PRODUCER, epoch=-1), 101.9))
    assert code_of(table, ONE, 0, 1) is Code.PRODUCER_FENCED


def test_when_too_many_are_known_a_new_one_is_refused_until_one_may_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_table, "MAX_TRANSACTIONAL", 2)
    table = ProducerTable([at(data(0, ONE), 1), at(data(1, TWO), 1), at(commit(2, TWO), 1)])
    third = FIRST_TRANSACTIONAL_ID + 2
    refused = refusal(table, third, hours=2.9)
    assert refused is not None
    assert (refused.code, refused.detail(LIMIT)) == (Code.LIMIT_REACHED, "transactional_producers")
    assert refusal(table, ONE, hours=2.9) is None, "it is known"
    assert refusal(table, TWO, epoch=1, hours=2.9) is None
    assert refusal(table, third, hours=3) is None, "by then another one may be forgotten"
    table.record(at(data(3, third), 3))
    assert set(table.known.transactional) == {ONE, third}, "the one whose transaction is open stays"
    table.validate()


def test_the_end_of_a_transaction_is_recorded_of_any_number_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_table, "MAX_TRANSACTIONAL", 1)
    table = ProducerTable([at(data(0, ONE), 1), at(abort(1, TWO), 1)])
    assert code_of(table, TWO, 0, 0) is Code.PRODUCER_FENCED
    assert table.epoch_of(ONE) == 0


def test_when_too_many_were_aborted_no_transaction_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_table, "MAX_ABORTED", 2)
    table = ProducerTable([data(0), data(1, TWO), abort(2), data(3, epoch=1), abort(4, next_epoch=2)])
    refused = refusal(table, ONE, epoch=2)
    assert refused is not None
    assert (refused.code, refused.detail(LIMIT)) == (Code.LIMIT_REACHED, "aborted_transactions")
    assert refusal(table, TWO) is None, "its transaction is open"
    table.transactions.forget_aborted(Offset(3))
    assert refusal(table, ONE, epoch=2) is None


def test_a_transaction_does_not_begin_in_front_of_the_missing_end_of_the_one_before() -> None:
    table = ProducerTable([data(0)])
    assert refusal(table, ONE) is None
    refused = refusal(table, ONE, epoch=1)
    assert refused is not None
    assert refused.code is Code.TRANSACTION_ABORTED
    table.record(abort(1, next_epoch=2))
    assert refusal(table, ONE, epoch=2) is None


def table_of(known: KnownProducers) -> ProducerTable:
    """Through its encoded form."""
    decoded = decode_producers(encode_producers(known), encode_times(known))
    table = ProducerTable()
    table.restore(
        decoded._replace(
            transactional=decode_transactional(encode_transactional(known)),
            transactions=decode_transactions(encode_transactions(known.transactions)),
        )
    )
    return table


def test_the_encoded_state_is_the_state() -> None:
    batches = [at(data(0, count=2), 1), at(header(2, 0, producer=5), 2), at(data(3, TWO), 3), at(abort(4, TWO), 4)]
    table = ProducerTable(batches)
    assert len(table) == 3
    again = table_of(table.known)
    assert again.known == table.known
    assert [each.written for each in again.known.transactional.values()] == [HOUR, 4 * HOUR]
    again.validate()


def test_a_piece_that_is_cut_or_longer_is_refused() -> None:
    encoded = encode_transactional(ProducerTable([data(0), abort(1)]).known)
    for size in range(len(encoded)):
        with pytest.raises(CorruptData):
            decode_transactional(encoded[:size])
    with pytest.raises(CorruptData):
        decode_transactional(encoded + b"\0")


def test_what_is_copied_does_not_change() -> None:
    table = ProducerTable([data(0)])
    known = table.known
    table.record(commit(1))
    table.record(data(2, TWO))
    assert list(known.transactional) == [ONE]
    assert known.transactional[ONE].epoch == 0
    assert known.references == 1
    table.restore(known)
    assert table.known == known
    table.restore(NOBODY)
    assert table.known == NOBODY
