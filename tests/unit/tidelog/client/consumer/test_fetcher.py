"""One partition of a consumer, step by step."""

from __future__ import annotations

import pytest

from tests.unit.wire.test_errors import MALFORMED
from tidelog.client.base.exceptions import CorruptBatch, LogTruncated, MessageTooLarge, OffsetOutOfRange, UnknownStream
from tidelog.client.base.read_positions import Anchor, AtOffset, AtTime, Position
from tidelog.client.consumer.consumer_config import ConsumerConfig
from tidelog.client.consumer.fetcher import Deliver, PartitionFetcher, Raise, Skip, Wait
from tidelog.client.consumer.follower_sources import REST_NS, FollowerSources
from wire.batch import BatchBuilder, control_batch, emptied, parse_header
from wire.errors import Code, TidelogError
from wire.partition_messages.replication import encode_header
from wire.types import BrokerId, LeaderEpoch, Offset

NOW = 1_000


def fetcher(start: Position, stop: Position | None = None) -> PartitionFetcher:
    return PartitionFetcher("s/0", start, stop, ConsumerConfig(), leader_epoch=1)


def batch(base: int, count: int, epoch: int = 1) -> bytes:
    builder = BatchBuilder()
    builder.add_values([b"%d" % (base + i) for i in range(count)])
    return b"".join(builder.build(5).stamp(Offset(base), LeaderEpoch(epoch))[0])


def answer(*batches: bytes, epoch: int = 1) -> bytes:
    return b"".join([encode_header(LeaderEpoch(epoch), Offset(1000)), *batches])


def looked_up(offset: int, log_start: int = 0) -> dict[str, str]:
    return {"Tidelog-Offset": str(offset), "Tidelog-Log-Start": str(log_start)}


def offsets(outcome: object) -> list[int]:
    assert isinstance(outcome, Deliver)
    return [int(offset) for columns in outcome.batches for offset in columns.offsets]


def raised(outcome: object) -> TidelogError:
    assert isinstance(outcome, Raise)
    return outcome.error


class TestPositions:
    def test_an_offset_is_asked_for_as_it_is(self) -> None:
        ask = fetcher(AtOffset(7)).next_request(NOW)
        assert (ask.request.offset, ask.request.leader_epoch) == (7, 1)
        assert ask.request.max_bytes > 0

    @pytest.mark.parametrize(
        ("start", "position"), [(Anchor.EARLIEST, 50), (Anchor.NEW, 50), (Anchor.LATEST, 49), (AtTime(3), 50)]
    )
    def test_words_and_times_are_looked_up(self, start: Position, position: int) -> None:
        f = fetcher(start)
        ask = f.next_request(NOW)
        assert ask.request.max_bytes == 0
        f.on_answer(answer(), looked_up(50))
        assert f.position == position

    def test_the_newest_record_of_an_empty_log_is_the_next_one(self) -> None:
        f = fetcher(Anchor.LATEST)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(10, log_start=10))
        assert f.position == 10

    def test_a_start_above_the_high_watermark_ends_at_once_when_it_stops_there(self) -> None:
        f = fetcher(AtOffset(60), Anchor.LATEST)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(50))
        assert f.is_done

    def test_a_stop_that_lies_ahead_in_time_is_looked_up_when_it_comes(self) -> None:
        f = fetcher(AtOffset(0), AtTime(NOW + 10_000_000))
        ask = f.next_request(NOW)
        assert ask.request.WhichOneof("position") == "offset"
        assert ask.request.max_wait_ms == 10, "no longer than until then"
        f.on_answer(answer(), None)
        assert f.next_request(NOW + 10_000_000).request.timestamp == NOW + 10_000_000
        f.on_answer(answer(), looked_up(0))
        assert f.is_done


class TestRecords:
    def test_records_come_once_and_in_order(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        assert offsets(f.on_answer(answer(batch(0, 3), batch(3, 2)), None)) == [0, 1, 2, 3, 4]
        f.next_request(NOW)
        assert offsets(f.on_answer(answer(batch(0, 3), batch(3, 2), batch(5, 2)), None)) == [5, 6]
        assert f.position == 7

    def test_a_batch_is_cut_at_the_start_and_at_the_stop(self) -> None:
        f = fetcher(AtOffset(2), AtOffset(6))
        f.next_request(NOW)
        assert offsets(f.on_answer(answer(batch(0, 4), batch(4, 4), batch(8, 4)), None)) == [2, 3, 4, 5]
        assert f.is_done

    def test_the_place_of_an_aborted_transaction_is_passed_over(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        emptied_one = emptied(parse_header(batch(0, 3)))
        outcome = f.on_answer(answer(b"".join(emptied_one.stamp(Offset(0), LeaderEpoch(1))[0])), None)
        assert outcome == Wait(0.0)
        assert f.position == 3

    def test_control_batches_are_passed_over(self) -> None:
        f = fetcher(AtOffset(0), AtOffset(2))
        control = b"".join(control_batch(9, 1, b"x").stamp(Offset(1), LeaderEpoch(1))[0])
        f.next_request(NOW)
        assert offsets(f.on_answer(answer(batch(0, 1), control), None)) == [0]
        assert f.is_done

    def test_the_epoch_of_the_last_record_is_sent_along(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 1, epoch=3), epoch=4), None)
        request = f.next_request(NOW).request
        assert (request.last_record_epoch, request.leader_epoch) == (3, 4)

    def test_an_answer_of_an_older_epoch_changes_nothing(self) -> None:
        f = fetcher(AtOffset(0))
        f.leader_epoch = 5
        f.next_request(NOW)
        assert isinstance(f.on_answer(answer(batch(0, 3), epoch=4), None), Wait)
        assert f.position == 0

    def test_an_invented_leader_epoch_is_forgotten_when_nobody_answers_and_the_metadata_tell(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 3), epoch=1 << 62), None)
        f.on_metadata(1)
        assert f.next_request(NOW).request.leader_epoch == 1 << 62, "it may be newer than the metadata"
        outcomes = [f.on_timeout() for _ in range(4)]
        assert isinstance(outcomes[-1], Wait)
        assert outcomes[-1].refresh
        f.on_metadata(1)
        assert f.next_request(NOW).request.leader_epoch == 1

    @pytest.mark.parametrize("at", [20, 60, 130])
    def test_bytes_that_do_not_match_their_checksum_are_never_handed_out(self, at: int) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        body = bytearray(answer(batch(0, 30)))
        body[at] ^= 1
        error = raised(f.on_answer(bytes(body), None))
        assert isinstance(error, CorruptBatch)
        assert "s/0 at offset 0" in error.message

    def test_a_torn_answer_is_never_handed_out(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        assert isinstance(raised(f.on_answer(answer(batch(0, 30))[:-8], None)), CorruptBatch)


class TestRefusals:
    def test_an_offset_below_the_log_names_the_offset_the_start_and_the_remedy(self) -> None:
        f = fetcher(AtOffset(3))
        f.next_request(NOW)
        error = raised(f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"})))
        assert isinstance(error, OffsetOutOfRange)
        assert "offset 3 of s/0" in error.message
        assert "start at 40 or with 'earliest'" in error.message

    def test_earliest_follows_a_log_start_that_moved_before_the_first_read(self) -> None:
        f = fetcher(Anchor.EARLIEST)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(10, log_start=10))
        f.next_request(NOW)
        f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"}))
        assert f.position == 40

    def test_a_consumer_that_fell_behind_the_log_is_told(self) -> None:
        f = fetcher(Anchor.EARLIEST)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(0))
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 1)), None)
        f.next_request(NOW)
        assert isinstance(
            raised(f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"}))), OffsetOutOfRange
        )

    def test_one_that_skips_gaps_goes_on_at_the_start_and_names_the_missed_offsets(self) -> None:
        f = PartitionFetcher("s/0", Anchor.EARLIEST, None, ConsumerConfig(), leader_epoch=1, skips_gaps=True)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(0))
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 3)), None)
        f.next_request(NOW)
        assert f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"})) == Skip(3, 40)
        request = f.next_request(NOW).request
        assert (request.offset, request.last_record_epoch) == (40, 0)

    def test_what_goes_after_a_gap_was_skipped_is_missed_too(self) -> None:
        f = PartitionFetcher("s/0", Anchor.EARLIEST, None, ConsumerConfig(), leader_epoch=1, skips_gaps=True)
        f.next_request(NOW)
        f.on_answer(answer(), looked_up(0))
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 3)), None)
        f.next_request(NOW)
        assert f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"})) == Skip(3, 40)
        f.next_request(NOW)
        assert f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "60"})) == Skip(40, 60)

    def test_records_behind_the_stop_are_not_missed(self) -> None:
        f = PartitionFetcher("s/0", AtOffset(3), AtOffset(10), ConsumerConfig(), leader_epoch=1, skips_gaps=True)
        f.next_request(NOW)
        assert f.on_error(TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": "40"})) == Skip(3, 10)
        assert f.is_done

    @pytest.mark.parametrize("log_start", ["?", "3", "2", ""])
    def test_a_log_start_that_is_no_gap_is_an_error(self, log_start: str) -> None:
        """Else it would ask for the same offset for ever."""
        f = PartitionFetcher("s/0", AtOffset(3), None, ConsumerConfig(), leader_epoch=1, skips_gaps=True)
        f.next_request(NOW)
        refusal = TidelogError(Code.OFFSET_BEFORE_LOG, "below", {"log_start": log_start})
        assert isinstance(raised(f.on_error(refusal)), OffsetOutOfRange)

    def test_a_cut_log_is_told(self) -> None:
        f = fetcher(AtOffset(9))
        f.next_request(NOW)
        error = raised(f.on_error(TidelogError(Code.LOG_TRUNCATED, "cut", {"offset": "5"})))
        assert isinstance(error, LogTruncated)
        assert "cut at offset 5 below the position 9" in error.message

    @pytest.mark.parametrize("text", MALFORMED)
    def test_details_that_make_no_sense_are_as_if_they_were_not_there(self, text: str) -> None:
        f = fetcher(AtOffset(9))
        f.next_request(NOW)
        epoch = f.leader_epoch
        outcome = f.on_error(TidelogError(Code.BACKPRESSURE, "wait", {"retry_after_ms": text, "leader_epoch": text}))
        assert isinstance(outcome, Wait)
        assert 0 < outcome.seconds < 1
        assert f.leader_epoch == epoch

    def test_a_batch_that_no_message_has_room_for_is_told(self) -> None:
        f = fetcher(AtOffset(9))
        f.next_request(NOW)
        error = raised(f.on_error(TidelogError(Code.MESSAGE_TOO_LARGE, "offset 9: raise max_payload")))
        assert isinstance(error, MessageTooLarge)
        assert f.position == 9

    def test_an_older_epoch_is_asked_again_at_once_under_the_newer_one(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        outcome = f.on_error(TidelogError(Code.FENCED_LEADER_EPOCH, "fenced", {"leader_epoch": "3"}))
        assert outcome == Wait(0.0)
        assert f.next_request(NOW).request.leader_epoch == 3

    def test_passing_refusals_are_asked_again_after_growing_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidelog.client.consumer.fetcher.random", lambda: 1.0)
        f = fetcher(AtOffset(0))
        waits = []
        for _ in range(20):
            f.next_request(NOW)
            outcome = f.on_no_responders()
            assert isinstance(outcome, Wait)
            waits.append(outcome.seconds)
        assert waits == sorted(waits)
        assert 0.01 <= waits[0] < waits[-1] <= 0.1

    def test_a_leader_that_asks_for_patience_gets_it(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        assert f.on_error(TidelogError(Code.BACKPRESSURE, "later", {"retry_after_ms": "500"})) == Wait(0.5)

    def test_lasting_refusals_are_raised_as_their_type(self) -> None:
        f = fetcher(AtOffset(0))
        f.next_request(NOW)
        assert isinstance(raised(f.on_error(TidelogError(Code.UNKNOWN_STREAM, "gone"))), UnknownStream)

    def test_unanswered_requests_are_given_more_time_each_time(self) -> None:
        f = fetcher(AtOffset(0))
        timeouts = []
        for _ in range(8):
            timeouts.append(f.next_request(NOW).timeout)
            assert isinstance(f.on_timeout(), Wait)
        assert timeouts == sorted(timeouts)
        assert timeouts[-1] <= 5.5


B, C = BrokerId("b"), BrokerId("c")


def reading_from_followers(start: Position | None = None, stop: Position | None = None) -> PartitionFetcher:
    """Of b and c, in that order; from offset 0 unless said otherwise."""
    followers = FollowerSources((B, C), 0)
    return PartitionFetcher("s/0", start or AtOffset(0), stop, ConsumerConfig(), leader_epoch=1, followers=followers)


class TestFollowers:
    def test_positions_are_looked_up_at_the_leader_and_records_read_from_a_follower(self) -> None:
        f = reading_from_followers(Anchor.EARLIEST, Anchor.LATEST)
        assert f.next_request(NOW).source is None
        f.on_answer(answer(), looked_up(9))
        assert f.next_request(NOW).source is None
        f.on_answer(answer(), looked_up(0))
        assert f.next_request(NOW).source == B
        assert offsets(f.on_answer(answer(batch(0, 3)), None)) == [0, 1, 2]
        assert f.next_request(NOW).source == B

    def test_by_default_the_leader_is_asked(self) -> None:
        assert fetcher(AtOffset(0)).next_request(NOW).source is None

    @pytest.mark.parametrize(
        "code",
        [
            Code.UNAVAILABLE,
            Code.NOT_LEADER,
            Code.BACKPRESSURE,
            Code.OFFSET_BEFORE_LOG,
            Code.LOG_TRUNCATED,
            Code.WRONG_INCARNATION,
            Code.INTERNAL,
        ],
    )
    def test_whatever_a_follower_refuses_with_another_replica_is_asked_at_once(self, code: Code) -> None:
        f = reading_from_followers()
        f.next_request(NOW)
        f.on_answer(answer(batch(0, 3)), None)
        for expected in (B, C):
            assert f.next_request(NOW).source == expected
            assert f.on_error(TidelogError(code, "no")) == Wait(0.0, refresh=True)
            assert f.position == 3
        last = f.next_request(NOW)
        assert (last.source, last.request.offset) == (None, 3)

    @pytest.mark.parametrize("code", [Code.OFFSET_BEFORE_LOG, Code.LOG_TRUNCATED, Code.WRONG_INCARNATION])
    def test_a_refusal_of_the_leader_is_final(self, code: Code) -> None:
        f = reading_from_followers()
        for _ in range(2):
            f.next_request(NOW)
            f.on_no_responders()
        assert f.next_request(NOW).source is None
        assert raised(f.on_error(TidelogError(code, "no"))).code is code

    def test_a_follower_that_is_gone_or_silent_is_left_for_another(self) -> None:
        f = reading_from_followers()
        assert f.next_request(NOW).source == B
        assert f.on_no_responders() == Wait(0.0, refresh=True)
        first = f.next_request(NOW)
        assert first.source == C
        assert f.on_timeout() == Wait(0.0, refresh=True)
        last = f.next_request(NOW)
        assert (last.source, last.timeout) == (None, first.timeout)

    def test_the_leader_is_waited_for_as_ever(self) -> None:
        f = reading_from_followers()
        for _ in range(2):
            f.next_request(NOW)
            f.on_no_responders()
        f.next_request(NOW)
        outcome = f.on_no_responders()
        assert isinstance(outcome, Wait)
        assert outcome.seconds > 0

    def test_followers_are_tried_again_after_a_while(self) -> None:
        f = reading_from_followers()
        for _ in range(2):
            f.next_request(NOW)
            f.on_timeout()
        assert f.next_request(NOW).source is None
        assert f.next_request(NOW + REST_NS).source == B

    def test_a_lost_connection_of_our_own_is_no_followers_fault(self) -> None:
        f = reading_from_followers()
        f.next_request(NOW)
        assert isinstance(f.on_disconnected(), Wait)
        assert f.next_request(NOW).source == B

    def test_a_follower_in_a_newer_epoch_is_asked_again_with_it(self) -> None:
        f = reading_from_followers()
        f.next_request(NOW)
        f.on_error(TidelogError(Code.FENCED_LEADER_EPOCH, "fenced", {"leader_epoch": "3"}))
        ask = f.next_request(NOW)
        assert (ask.source, ask.request.leader_epoch) == (B, 3)

    def test_an_answer_of_an_older_epoch_is_not_taken(self) -> None:
        f = reading_from_followers()
        f.leader_epoch = 5
        f.next_request(NOW)
        assert f.on_answer(answer(batch(0, 3), epoch=4), None) == Wait(0.0, refresh=True)
        assert f.position == 0
        assert f.next_request(NOW).source == C

    def test_of_an_answer_that_does_not_decode_nothing_is_taken_and_another_replica_asked(self) -> None:
        f = reading_from_followers()
        f.next_request(NOW)
        body = bytearray(answer(batch(0, 3), batch(3, 3)))
        body[-1] ^= 1
        assert f.on_answer(bytes(body), None) == Wait(0.0, refresh=True)
        ask = f.next_request(NOW)
        assert (ask.source, ask.request.offset, ask.request.last_record_epoch) == (C, 0, 0)
        assert offsets(f.on_answer(answer(batch(0, 3), batch(3, 3)), None)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("wanted", [True, False])
def test_every_request_says_whether_what_is_not_committed_is_wanted(wanted: bool) -> None:
    config: ConsumerConfig = ConsumerConfig(read_uncommitted=wanted)
    for start in (Anchor.EARLIEST, Anchor.NEW, AtOffset(3)):
        fetcher = PartitionFetcher("s/0", start, None, config, leader_epoch=1)
        assert fetcher.next_request(0).request.read_uncommitted is wanted


def test_less_is_asked_for_over_a_link_that_is_too_slow() -> None:
    f = fetcher(AtOffset(0))
    whole = f.next_request(NOW).request.max_bytes
    asked = []
    for _ in range(12):
        f.on_timeout()
        asked.append(f.next_request(NOW).request.max_bytes)
    assert asked[:3] == [whole // 2, whole // 4, whole // 8]
    assert asked[-1] == asked[-2] == whole // 256
    for number in range(30):
        f.on_answer(answer(batch(number, 1)), None)
        assert asked[-1] < f.next_request(NOW).request.max_bytes <= whole
    assert f.next_request(NOW).request.max_bytes == whole


def test_how_long_no_replica_has_answered_and_why() -> None:
    f = fetcher(AtOffset(7))
    second = 1_000_000_000
    assert f.delay(second) is None
    f.next_request(second)
    assert f.delay(2 * second) is None, "the request is on its way"
    f.on_no_responders()
    assert f.delay(2 * second) == (1.0, "s/0 has no leader; see `tidelog cluster status`")
    f.next_request(3 * second)
    f.on_timeout()
    assert f.delay(4 * second) == (3.0, "the leader of s/0 does not answer; see `tidelog cluster status`")
    f.next_request(5 * second)
    f.on_error(TidelogError(Code.UNAVAILABLE, "the replica is opening"))
    assert f.delay(6 * second) == (5.0, "s/0: the replica is opening")
    f.on_disconnected()
    assert f.delay(6 * second) == (5.0, "this client is not connected to a NATS server")
    f.next_request(7 * second)
    f.on_answer(answer(), None)
    assert f.delay(8 * second) is None
