"""How long a producer's window waits for a leader that refuses, or is not there. Time is a number here."""

from __future__ import annotations

from tests.unit.tidelog.client.producer.accumulators import core, fill, refused, resolved, sent
from tidelog.client.base.exceptions import DeliveryTimeout, may_be_written
from tidelog.client.producer.accumulator import Failed, delay
from wire.errors import Code


def test_refusals_end_a_batch_after_the_producers_own_confirm_timeout_and_say_why() -> None:
    acc = core(confirm_timeout=2.0)
    fill(acc, 2)
    a, b = sent(acc)
    acc.on_error(a, 1, refused(Code.BACKPRESSURE, retry_after_ms="900000", limit="producer_byte_rate"), 0.1)
    acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 0.1)
    assert delay(acc, 1.1) == (1.0, "refused: BACKPRESSURE")
    assert acc.next_deadline() == 2.1
    assert acc.tick(2.0) == []
    failures = {effect.batch: effect.error for effect in acc.tick(2.1) if isinstance(effect, Failed)}
    assert failures[a].message == "refused: BACKPRESSURE; given up after 2 s, not written"
    assert isinstance(failures[a], DeliveryTimeout)
    assert (failures[a].code, may_be_written(failures[a])) == (Code.BACKPRESSURE, False)
    assert not may_be_written(failures[b])
    assert delay(acc, 2.1) is None


def test_a_batch_that_was_never_sent_says_what_the_ones_before_it_were_refused_for() -> None:
    acc = core(confirm_timeout=2.0, max_in_flight=1)
    fill(acc, 2)
    (a,) = sent(acc)
    acc.on_error(a, 1, refused(Code.BACKPRESSURE, retry_after_ms="900000"), 0.0)
    messages = [effect.error.message for effect in acc.tick(2.0) if isinstance(effect, Failed)]
    assert messages == ["refused: BACKPRESSURE; given up after 2 s, not written"] * 2


def test_a_confirm_timeout_begins_anew_with_each_success() -> None:
    acc = core(confirm_timeout=2.0)
    fill(acc, 2)
    a, b = sent(acc)
    acc.on_error(a, 1, refused(Code.BACKPRESSURE, retry_after_ms="1000"), 0.0)
    acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 0.0)
    assert sent(acc, 1.0) == [a, b]
    acc.on_acknowledged(a, 0, 1)
    acc.on_error(b, 2, refused(Code.BACKPRESSURE, retry_after_ms="1500"), 1.0)
    assert acc.tick(2.4) == []
    assert sent(acc, 2.5) == [b]
    assert not resolved(acc.tick(3.0)), "its answer is waited for"


def test_a_partition_without_a_leader_says_so_while_it_waits() -> None:
    acc = core(confirm_timeout=2.0)
    fill(acc, 1)
    (a,) = sent(acc)
    acc.on_no_responders(a, 1, 0.1)
    assert delay(acc, 1.1) == (1.0, "partition s/0 has no leader")
    assert not resolved(acc.tick(2.5)), "the delivery timeout bounds that"
