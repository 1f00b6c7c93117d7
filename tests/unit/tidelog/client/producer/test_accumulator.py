"""The producer's window: order, repetitions, sessions. Time is a number here."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.unit.tidelog.client.producer.accumulators import core, failure, fill, refused, resolved, sent
from tidelog.client.base.exceptions import (
    DeliveryTimeout,
    NotEnoughReplicas,
    OutOfOrderSequence,
    RecordTooLarge,
)
from tidelog.client.producer.accumulator import (
    MAX_SEQUENCE,
    Acknowledged,
    Failed,
    Probe,
    RefreshMetadata,
    WantSession,
)
from tidelog.client.producer.batches import BatchState, ProducerSession
from wire.errors import Code


class TestGathering:
    def test_records_of_one_turn_share_a_batch(self) -> None:
        acc = core()
        for _ in range(3):
            assert not acc.gathering.append(b"v", None, None, None, 10, None, 0.0)
        (batch,) = sent(acc)
        assert len(batch) == 3
        assert batch.size == 30

    def test_a_full_batch_is_sealed_by_the_record_that_does_not_fit(self) -> None:
        acc = core()
        acc.gathering.append(b"a", None, None, None, 90, None, 0.0)
        assert acc.gathering.append(b"b", None, None, None, 20, None, 0.0)
        assert [batch.values for batch in sent(acc)] == [[b"a"], [b"b"]]

    def test_lingering_waits_for_more_unless_flushed_or_full(self) -> None:
        acc = core(linger_ms=500)
        acc.gathering.append(b"a", None, None, None, 10, None, 1.0)
        assert sent(acc, 1.4) == []
        assert acc.next_deadline() == 1.5
        assert len(sent(acc, 1.5)) == 1
        acc.gathering.append(b"b", None, None, None, 10, None, 2.0)
        acc.gathering.seal()
        assert len(sent(acc, 2.0)) == 1

    def test_the_window_holds_five_batches_and_the_rest_waits(self) -> None:
        acc = core()
        fill(acc, 8)
        first = sent(acc)
        assert len(first) == 5
        acc.on_acknowledged(first[0], 0, 1)
        assert len(sent(acc)) == 1

    def test_no_batch_begins_that_would_make_the_leader_forget_an_unresolved_one(self) -> None:
        """Found by simulation (seed 214): the answer to the first was lost, the later ones came."""
        acc = core()
        fill(acc, 8)
        first, *later = sent(acc)
        for batch in later:
            acc.on_acknowledged(batch, batch.base_sequence, 1)
        assert sent(acc) == []
        acc.on_acknowledged(first, 0, 1)
        assert len(sent(acc)) == 3

    def test_sequences_count_records(self) -> None:
        acc = core()
        fill(acc, 3, records=4)
        assert [batch.base_sequence for batch in sent(acc)] == [0, 4, 8]

    def test_without_acknowledgements_nothing_is_numbered_or_kept(self) -> None:
        acc = core("none")
        fill(acc, 7)
        count = 0
        while (batch := acc.next_send(0.0)) is not None:
            assert (batch.session, batch.base_sequence) == (None, -1)
            assert acc.on_published(batch) == [Acknowledged(batch, -1)]
            count += 1
        assert count == 7
        assert acc.is_idle


class TestOrderOfRepetitions:
    def test_after_a_refusal_that_passes_everything_goes_again_in_order(self) -> None:
        acc = core()
        fill(acc, 3)
        a, b, c = sent(acc)
        assert acc.on_error(a, 1, refused(Code.BACKPRESSURE, retry_after_ms="50"), 1.0) == []
        acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0)
        acc.on_error(c, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0)
        assert sent(acc, 1.04) == []
        assert sent(acc, 1.051) == [a, b, c]
        assert [batch.base_sequence for batch in (a, b, c)] == [0, 1, 2]

    def test_out_of_order_before_the_earlier_answer_resends_both_in_order(self) -> None:
        """The new leader got the second batch; the first went down with the old one."""
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        assert acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0) == []
        assert sent(acc, 1.1) == [a, b]

    def test_a_gap_at_a_leader_that_cannot_deny_the_batch_resends_both_in_order_and_as_soon(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        gap = refused(Code.UNAVAILABLE, expected_sequence="0", retry_after_ms="20")
        assert acc.on_error(b, 1, gap, 1.0) == []
        assert sent(acc, 1.011) == [a, b]

    def test_a_later_batch_never_passes_an_earlier_one_that_must_go_again(self) -> None:
        acc = core()
        fill(acc, 3)
        a, b, _ = sent(acc)
        acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 0.0)
        fill(acc, 2)
        order = sent(acc, 1.0)
        assert order[:2] == [a, b]
        assert [batch.base_sequence for batch in order] == sorted(batch.base_sequence for batch in order)

    def test_a_refusal_of_an_older_attempt_changes_nothing(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_reconnected(1.0)
        assert sent(acc, 1.0) == [a]
        assert acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 1.1) == []
        assert a.state is BatchState.SENT

    def test_a_success_of_an_older_attempt_counts(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_reconnected(1.0)
        assert acc.on_acknowledged(a, 12, 1) == [Acknowledged(a, 12)]
        assert sent(acc, 1.0) == []
        assert acc.on_acknowledged(a, 12, 1) == []

    def test_a_publish_that_the_connection_refused_is_tried_again_and_is_not_uncertain(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_publish_refused(a, 0.0, 0.002)
        assert sent(acc, 0.001) == []
        assert acc.next_deadline() == 0.002
        assert sent(acc, 0.002) == [a]
        assert not a.uncertain

    def test_while_refusals_repeat_only_the_first_batch_is_sent(self) -> None:
        acc = core()
        fill(acc, 3)
        now = 0.0
        again = sent(acc, now)
        for attempt in range(1, 5):
            head = acc.pending_batches[0]
            acc.on_error(head, attempt, refused(Code.NOT_ENOUGH_REPLICAS), now)
            for later in acc.pending_batches[1:3]:
                acc.on_error(later, later.attempts, refused(Code.OUT_OF_ORDER_SEQUENCE), now)
            now += 1.0
            again = sent(acc, now)
        assert again == [acc.pending_batches[0]]
        acc.on_acknowledged(again[0], 0, 1)
        assert len(sent(acc, now)) == 2

    def test_a_fenced_epoch_is_asked_again_at_once_under_the_new_one(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        assert acc.on_error(a, 1, refused(Code.FENCED_LEADER_EPOCH, leader_epoch="4"), 0.0) == [RefreshMetadata()]
        assert acc.leader_epoch == 4
        assert sent(acc, 0.0) == [a]
        assert a.sent_epoch == 4


class TestLeaderGone:
    def test_no_responders_stops_sending_until_a_probe_is_answered(self) -> None:
        acc = core()
        fill(acc, 7)
        window = sent(acc)
        acc.on_no_responders(window[0], 1, 1.0)
        assert sent(acc, 5.0) == []
        due = acc.next_deadline()
        assert due is not None
        assert 1.0 < due <= 1.05
        assert Probe() in acc.tick(due)
        acc.on_probe_no_responders(due)
        assert sent(acc, due) == []
        acc.on_probe_answer(2)
        assert sent(acc, due) == window

    def test_an_unanswered_batch_is_probed_and_goes_again_when_the_epoch_is_newer(self) -> None:
        """A kill -9 with the message in hand: no 503 and no answer ever comes."""
        acc = core()
        fill(acc, 2)
        window = sent(acc, 1.0)
        assert acc.tick(1.05) == []
        assert acc.next_deadline() == pytest.approx(1.1)
        assert acc.tick(1.1) == [Probe()]
        acc.on_probe_answer(1)
        assert sent(acc, 1.1) == [], "the same leader is at work; it is waited for"
        assert acc.tick(1.21) == [Probe()]
        acc.on_probe_answer(2)
        assert sent(acc, 1.21) == window

    def test_a_deposed_leaders_answer_to_a_probe_counts_for_nothing(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_error(a, 1, refused(Code.FENCED_LEADER_EPOCH, leader_epoch="5"), 0.0)
        sent(acc, 0.0)
        acc.on_no_responders(a, 2, 0.0)
        assert acc.on_probe_answer(4) == [RefreshMetadata()]
        assert sent(acc, 1.0) == []
        acc.on_metadata(5)
        assert acc.leader_epoch == 5

    def test_an_invented_leader_epoch_silences_the_leader_until_the_metadata_tell(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc, 0.0)
        acc.on_error(a, 1, refused(Code.FENCED_LEADER_EPOCH, leader_epoch=str((1 << 63) - 1)), 0.0)
        assert sent(acc, 0.0) == [a]
        acc.on_metadata(1)
        assert acc.leader_epoch == (1 << 63) - 1, "it was asked for before, and may be older than the leader"
        assert acc.on_probe_answer(1) == [RefreshMetadata()]
        acc.on_metadata(1)
        assert sent(acc, 0.5) == [a]
        assert a.sent_epoch == 1

    @pytest.mark.parametrize(
        ("base_offset", "leader_epoch"), [(-1, 1), (-(1 << 63), 1), ((1 << 63) - 2, 1), (7, 2), (7, (1 << 64) - 1)]
    )
    def test_an_acknowledgement_that_no_leader_gives_is_left_alone(self, base_offset: int, leader_epoch: int) -> None:
        acc = core()
        fill(acc, 1, records=2)
        (a,) = sent(acc, 0.0)
        assert acc.on_acknowledged(a, base_offset, leader_epoch) == []
        assert acc.leader_epoch == 1
        assert acc.on_acknowledged(a, 7, 1) == [Acknowledged(a, 7)], "the leader's own comes later"

    def test_an_answer_that_never_comes_from_a_live_leader_is_asked_for_again(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc, 0.0)
        acc.tick(1.9)
        assert sent(acc, 1.9) == []
        acc.tick(2.0)
        assert sent(acc, 2.0) == [a]

    def test_metadata_is_refreshed_while_there_is_no_leader(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_no_responders(a, 1, 0.0)
        assert RefreshMetadata() not in acc.tick(0.9)
        assert RefreshMetadata() in acc.tick(1.1)

    def test_after_a_lost_connection_everything_out_goes_again(self) -> None:
        acc = core()
        fill(acc, 3)
        window = sent(acc)
        acc.on_reconnected(4.0)
        assert sent(acc, 4.0) == window


class TestEndings:
    def test_too_late_after_an_unanswered_attempt_says_that_the_outcome_is_unknown(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 1)
        sent(acc)
        error = failure(acc.tick(3.0))
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome_unknown
        assert "may or may not" in error.message

    def test_too_late_without_an_attempt_that_reached_anyone_says_not_written(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_no_responders(a, 1, 0.1)
        error = failure(acc.tick(3.0))
        assert isinstance(error, DeliveryTimeout)
        assert not error.outcome_unknown
        assert "no leader" in error.message

    def test_too_late_after_definite_refusals_gives_the_refusal(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_error(a, 1, refused(Code.NOT_ENOUGH_REPLICAS), 0.1)
        assert isinstance(failure(acc.tick(3.0)), NotEnoughReplicas)

    @pytest.mark.parametrize("code", [Code.OUT_OF_ORDER_SEQUENCE, Code.UNAVAILABLE])
    def test_too_late_behind_an_unresolved_batch_says_not_written_and_not_that_records_were_lost(
        self, code: Code
    ) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_error(b, 1, refused(code, expected_sequence="0"), 2.999)
        failures = {effect.batch: effect.error for effect in acc.tick(3.0) if isinstance(effect, Failed)}
        assert isinstance(failures[a], DeliveryTimeout)
        assert failures[a].details == {"outcome": "unknown"}
        assert isinstance(failures[b], DeliveryTimeout)
        assert failures[b].details == {"outcome": "not_written"}
        assert "an earlier batch" in failures[b].message

    def test_a_confirm_timeout_goes_again_and_stays_uncertain(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 1)
        (a,) = sent(acc)
        acc.on_error(a, 1, refused(Code.CONFIRM_TIMEOUT), 0.1)
        assert sent(acc, 0.5) == [a]
        acc.on_error(a, 2, refused(Code.NOT_ENOUGH_REPLICAS), 0.6)
        error = failure(acc.tick(3.0))
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome_unknown

    def test_a_confirm_timeout_of_the_producers_own_ends_the_batch(self) -> None:
        acc = core(confirm_timeout=0.1)
        fill(acc, 1)
        (a,) = sent(acc)
        error = failure(acc.on_error(a, 1, refused(Code.CONFIRM_TIMEOUT), 0.1))
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome_unknown

    def test_a_batch_that_waits_in_line_grows_old_as_well(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 7)
        sent(acc)
        effects = acc.tick(3.0)
        assert len(resolved(effects)) == 7
        assert acc.is_idle

    def test_a_refusal_that_does_not_pass_fails_its_batch_alone(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        assert isinstance(failure(acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)), RecordTooLarge)
        assert acc.pending_batches == [b]

    def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_written(self) -> None:
        acc = core()
        fill(acc, 1)
        (batch,) = sent(acc)
        acc.on_reconnected(1.0)
        sent(acc, 1.0)
        error = failure(acc.on_error(batch, batch.attempts, refused(Code.READONLY), 1.1))
        assert error.code is Code.OUTCOME_UNKNOWN
        assert error.details["reason"] == "READONLY"

    def test_fail_all_says_of_each_batch_whether_it_may_have_been_written(self) -> None:
        acc = core(max_in_flight=2)
        fill(acc, 4)
        a, b = sent(acc)
        acc.on_error(a, 1, refused(Code.BACKPRESSURE), 0.0)
        failures = {e.batch: e.error for e in acc.fail_all(refused(Code.UNKNOWN_STREAM)) if isinstance(e, Failed)}
        assert [error.details["outcome"] for error in failures.values()] == [
            "not_written", "unknown", "not_written", "not_written"
        ]  # fmt: skip
        assert failures[a].message == "refused: UNKNOWN_STREAM"
        assert failures[b].message.endswith("may or may not have been written")
        assert {error.code for error in failures.values()} == {Code.UNKNOWN_STREAM}

    def test_fail_all_leaves_nothing(self) -> None:
        acc = core()
        fill(acc, 8)
        sent(acc)
        assert len(resolved(acc.fail_all(refused(Code.UNKNOWN_STREAM)))) == 8
        assert acc.is_idle
        assert acc.next_deadline() is None


class TestSessions:
    def test_batches_behind_a_failed_one_go_on_under_a_new_session_once_refused(self) -> None:
        acc = core()
        fill(acc, 4)
        a, b, c, d = sent(acc)
        acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)
        assert sent(acc, 1.0) == []
        assert acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0) == [WantSession()]
        assert sent(acc, 1.0) == []
        acc.on_session(ProducerSession(8, 0))
        assert sent(acc, 1.0) == [b, c, d]
        assert [batch.base_sequence for batch in (b, c, d)] == [0, 1, 2]
        assert {batch.session for batch in (b, c, d)} == {ProducerSession(8, 0)}

    def test_a_batch_of_unknown_outcome_is_never_numbered_anew(self) -> None:
        """It would be written twice if its first copy is in the log."""
        acc = core()
        fill(acc, 3)
        a, b, c = sent(acc)
        acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)
        acc.on_reconnected(1.0)
        assert sent(acc, 1.0) == [b, c]
        assert [batch.session for batch in (b, c)] == [ProducerSession(7, 0)] * 2
        assert [batch.base_sequence for batch in (b, c)] == [1, 2]

    def test_a_leader_that_cannot_deny_a_batch_is_asked_again(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)
        gap = refused(Code.UNAVAILABLE, expected_sequence="0", retry_after_ms="20")
        assert acc.on_error(b, 1, gap, 1.0) == [RefreshMetadata()]
        assert sent(acc, 1.019) == []
        assert sent(acc, 1.021) == [b]
        assert (b.session, b.base_sequence) == (ProducerSession(7, 0), 1)
        assert acc.on_error(b, 2, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.1) == [WantSession()]

    def test_nothing_new_starts_in_an_unsound_session(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)
        fill(acc, 1)
        assert sent(acc) == []
        assert acc.on_acknowledged(b, 1, 1) == [Acknowledged(b, 1), WantSession()]
        acc.on_session(ProducerSession(9, 0))
        (c,) = sent(acc)
        assert (c.session, c.base_sequence) == (ProducerSession(9, 0), 0)

    def test_an_idle_partition_asks_for_a_session_when_there_is_something_to_send(self) -> None:
        acc = core()
        fill(acc, 1)
        (a,) = sent(acc)
        assert acc.on_error(a, 1, refused(Code.RECORD_TOO_LARGE), 0.0)[1:] == []
        assert acc.next_deadline() is None
        fill(acc, 1)
        assert acc.next_deadline() == 0.0
        assert acc.tick(0.0) == [WantSession()]
        assert acc.tick(0.0) == [], "once"

    def test_acknowledged_records_that_are_gone_fail_the_next_batch_with_acks_all(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_acknowledged(a, 0, 1)
        # Found by simulation (seed 32): the first attempt may have overtaken the batch in front of it.
        assert acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 0.0) == []
        assert sent(acc, 1.0) == [b]
        error = failure(acc.on_error(b, 2, refused(Code.OUT_OF_ORDER_SEQUENCE), 1.0))
        assert isinstance(error, OutOfOrderSequence)
        assert "lost" in error.message

    def test_with_acks_leader_the_loss_was_agreed_to_and_the_batch_goes_on(self) -> None:
        acc = core("leader")
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_acknowledged(a, 0, 1)
        assert acc.on_error(b, 1, refused(Code.OUT_OF_ORDER_SEQUENCE), 0.0) == [WantSession()]
        acc.on_session(ProducerSession(8, 0))
        assert sent(acc) == [b]
        assert b.base_sequence == 0

    def test_a_forgotten_session_goes_on_under_a_new_one_and_nothing_is_said_to_be_lost(self) -> None:
        acc = core()
        fill(acc, 4)
        a, b, c, d = sent(acc)
        acc.on_acknowledged(a, 0, 1)
        assert acc.on_error(b, 1, refused(Code.UNKNOWN_PRODUCER_ID), 1.0) == [WantSession()]
        assert acc.on_error(c, 1, refused(Code.UNKNOWN_PRODUCER_ID), 1.0) == []
        acc.on_session(ProducerSession(8, 0))
        assert sent(acc, 1.1) == [b, c, d]
        assert [batch.base_sequence for batch in (b, c, d)] == [0, 1, 2]

    def test_sessions_that_are_forgotten_one_after_the_other_are_not_made_in_a_hurry(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 1)
        (a,) = sent(acc)
        due = 0.0
        while due < 2.5:
            acc.on_error(a, a.attempts, refused(Code.UNKNOWN_PRODUCER_ID), due)
            acc.on_session(ProducerSession(8, 0))
            due = acc.next_deadline() or 0.0
            assert sent(acc, due) == [a]
        assert 5 < a.attempts < 40
        acc.on_error(a, a.attempts, refused(Code.UNKNOWN_PRODUCER_ID), due)
        error = failure(acc.tick(3.0))
        assert isinstance(error, DeliveryTimeout)
        assert error.details == {"outcome": "not_written"}
        assert "each new id" in error.message

    def test_a_batch_whose_answer_was_lost_before_its_session_was_forgotten_has_an_unknown_outcome(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_reconnected(1.0)
        assert sent(acc, 1.0) == [a, b]
        error = failure(acc.on_error(a, 2, refused(Code.UNKNOWN_PRODUCER_ID, remembered_ms="500"), 1.1))
        assert isinstance(error, DeliveryTimeout)
        assert error.outcome_unknown
        assert "may or may not" in error.message

    def test_a_batch_of_which_the_leader_would_still_know_was_not_written(self) -> None:
        """It remembers all producers of the last week, and this batch was made a second ago."""
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        acc.on_reconnected(1.0)
        assert sent(acc, 1.0) == [a, b]
        week = str(7 * 24 * 3_600_000)
        assert acc.on_error(a, 2, refused(Code.UNKNOWN_PRODUCER_ID, remembered_ms=week), 1.1) == [WantSession()]
        acc.on_session(ProducerSession(8, 0))
        assert sent(acc, 1.2) == [a, b]

    def test_a_refusal_as_unknown_while_an_earlier_batch_is_unresolved_resends_both_in_order(self) -> None:
        acc = core()
        fill(acc, 2)
        a, b = sent(acc)
        assert acc.on_error(b, 1, refused(Code.UNKNOWN_PRODUCER_ID), 1.0) == []
        assert sent(acc, 1.1) == [a, b]

    def test_too_late_behind_a_batch_of_a_forgotten_session_says_not_written(self) -> None:
        acc = core(delivery_timeout_ms=3000)
        fill(acc, 2)
        _, b = sent(acc)
        acc.on_error(b, 1, refused(Code.UNKNOWN_PRODUCER_ID), 2.999)
        failures = {effect.batch: effect.error for effect in acc.tick(3.0) if isinstance(effect, Failed)}
        assert isinstance(failures[b], DeliveryTimeout)
        assert failures[b].details == {"outcome": "not_written"}

    def test_sequences_do_not_run_over(self) -> None:
        acc = core()
        acc._next_sequence = MAX_SEQUENCE - 1
        fill(acc, 2)
        (a,) = sent(acc)
        assert sent(acc) == []
        assert WantSession() in acc.on_acknowledged(a, 0, 1)


def test_the_deadline_is_never_in_the_past_when_there_is_nothing_to_do() -> None:
    """A timer armed for the past again and again would spin."""
    acc = core()
    fill(acc, 8)
    now = 1.0
    window = sent(acc, now)
    for step in range(60):
        due = acc.next_deadline()
        assert due is not None
        if due <= now:
            acc.tick(now)
            sent(acc, now)
            later = acc.next_deadline()
            assert later is None or later > now, step
        now += 0.05
        if step == 10:
            acc.on_error(window[0], window[0].attempts, refused(Code.NOT_ENOUGH_REPLICAS), now)
        if step == 30:
            acc.on_no_responders(window[0], window[0].attempts, now)
    assert all(a.base_sequence < b.base_sequence for a, b in pairwise(window))
