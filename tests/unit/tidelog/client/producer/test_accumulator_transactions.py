"""A partition of a transactional producer: its session is that of the transaction."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.client.producer.accumulators import CONFIG, core, failure, fill, refused, resolved, sent
from tidelog.client.base.exceptions import StalePartitioning
from tidelog.client.producer.accumulator import PartitionAccumulator, WantSession, WantTicket
from tidelog.client.producer.batches import BatchState, ProducerSession
from tidelog.client.producer.encoding import encode_batch
from wire.batch import Compression
from wire.errors import Code
from wire.types import FIRST_TRANSACTIONAL_ID

SESSION = ProducerSession(FIRST_TRANSACTIONAL_ID, 3)


def in_transaction() -> PartitionAccumulator:
    made = core()
    made.on_session(None)
    made.on_session(SESSION)
    return made


def test_records_wait_for_the_session_of_a_transaction() -> None:
    acc = PartitionAccumulator("s/0", CONFIG, 1)
    fill(acc, 1)
    assert sent(acc) == []
    assert acc.next_deadline() == 0.0
    assert acc.tick(0.0) == [WantSession()]
    assert acc.tick(0.0) == []
    acc.on_session(SESSION)
    (batch,) = sent(acc)
    assert batch.base_sequence == 0
    header = encode_batch(batch, Compression.NONE, dedup=True).header
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch) == SESSION[:2]
    acc.on_acknowledged(batch, 0, 1)
    acc.on_session(None)
    fill(acc, 1)
    assert sent(acc) == [], "the next transaction has a session of its own"
    acc.on_session(SESSION._replace(producer_epoch=4))
    assert [batch.base_sequence for batch in sent(acc)] == [0]


@pytest.mark.parametrize("code", [Code.NOT_IN_TRANSACTION, Code.PRODUCER_FENCED])
def test_a_ticket_that_is_refused_is_replaced_and_the_batch_keeps_its_place(code: Code) -> None:
    acc = in_transaction()
    fill(acc, 2)
    first, second = sent(acc)
    assert acc.on_error(first, 1, refused(code), 0.0) == [WantTicket()]
    assert acc.on_error(second, 1, refused(code), 0.0) == [WantTicket()]
    assert sent(acc, 10.0) == [first, second]
    assert [batch.base_sequence for batch in (first, second)] == [0, 1]
    assert first.session == SESSION


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (Code.STALE_PARTITIONING, {"version": "2"}),
        (Code.PARTITION_DRAINING, {}),
        (Code.PARTITION_RETIRED, {}),
        (Code.UNAVAILABLE, {"version": "1"}),
    ],
)
def test_a_repartition_has_one_class_whichever_way_the_leader_refuses(code: Code, details: dict[str, str]) -> None:
    acc = in_transaction()
    fill(acc, 1)
    (batch,) = sent(acc)
    error = failure(acc.on_error(batch, 1, refused(code, **details), 0.0))
    assert isinstance(error, StalePartitioning)
    assert error.code is Code.STALE_PARTITIONING
    assert "begin the transaction again (" in error.message


@pytest.mark.parametrize("code", [Code.NOT_IN_TRANSACTION, Code.PRODUCER_FENCED])
def test_an_idempotent_producer_has_no_ticket_to_replace(code: Code) -> None:
    acc = core()
    fill(acc, 1)
    (batch,) = sent(acc)
    assert failure(acc.on_error(batch, 1, refused(code), 0.0)).code is code


def test_a_ticket_is_asked_for_until_the_delivery_timeout() -> None:
    acc = in_transaction()
    fill(acc, 1)
    (batch,) = sent(acc)
    acc.on_error(batch, 1, refused(Code.NOT_IN_TRANSACTION), 0.0)
    error = failure(acc.tick(CONFIG.delivery_timeout))
    assert error.code is Code.NOT_IN_TRANSACTION
    assert error.details["outcome"] == "not_written"


def test_a_batch_that_the_leader_has_forgotten_goes_on_under_no_other_id() -> None:
    """Whoever gives out sessions ends the transaction then."""
    acc = in_transaction()
    fill(acc, 1)
    (batch,) = sent(acc)
    batch.doubt()
    sent(acc)
    effects = acc.on_error(batch, 2, refused(Code.UNKNOWN_PRODUCER_ID), 0.0)
    assert effects == [WantSession()]
    assert batch.state is BatchState.SEALED
    assert sent(acc, 10.0) == []


@pytest.mark.parametrize("is_late", [True, False])
def test_what_is_given_up_of_a_transaction_is_not_written(is_late: bool) -> None:
    """Nothing of it will be read, though it may be in the log."""
    acc = in_transaction()
    fill(acc, 2)
    batches = sent(acc)
    batches[0].doubt()
    late = CONFIG.delivery_timeout
    effects = acc.tick(late) if is_late else acc.fail_all(refused(Code.TRANSACTION_ABORTED))
    assert resolved(effects) == batches
    for error in (failure([effect]) for effect in effects):
        assert error.details["outcome"] == "not_written"
        assert "may not" not in error.message
