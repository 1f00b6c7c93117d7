"""Records that are written at an expected offset or not at all."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tests.unit.tidelog.client.producer.accumulators import core, failure, refused, resolved, sent
from tidelog.client.base.exceptions import BadRequest, DeliveryTimeout, IncorrectOffset, may_be_written
from tidelog.client.producer.accumulator import PartitionAccumulator, WantSession
from tidelog.client.producer.batches import ProducerSession
from wire.errors import Code, TidelogError


class TestWindow:
    @staticmethod
    def expect(acc: PartitionAccumulator, offset: int) -> None:
        acc.gathering.append_expecting(offset, b"e", None, None, None, 10, None, 0.0)

    @staticmethod
    def record(acc: PartitionAccumulator) -> None:
        acc.gathering.append(b"v", None, None, None, 10, None, 0.0)

    def test_a_batch_that_expects_an_offset_has_one_record_and_is_alone_in_the_window(self) -> None:
        acc = core()
        self.record(acc)
        self.expect(acc, 1)
        self.expect(acc, 2)
        self.record(acc)
        self.record(acc)
        seen = []
        while not acc.is_idle:
            (batch,) = sent(acc)
            assert acc.next_deadline() > 0.0, "it does not wait in a loop"  # type: ignore[operator]
            seen.append((batch.values, batch.expected_offset, batch.base_sequence))
            acc.on_acknowledged(batch, 0, 1)
        assert seen == [([b"v"], None, 0), ([b"e"], 1, 1), ([b"e"], 2, 2), ([b"v", b"v"], None, 3)]

    def test_one_that_is_refused_leaves_its_sequence_to_the_next(self) -> None:
        acc = core()
        self.expect(acc, 1)
        self.expect(acc, 7)
        (batch,) = sent(acc)
        error = failure(effects := acc.on_error(batch, 1, refused(Code.INCORRECT_OFFSET, last_offset="6"), 1.0))
        assert isinstance(error, IncorrectOffset)
        assert error.next_offset == 7
        assert not may_be_written(error)
        assert not [effect for effect in effects if isinstance(effect, WantSession)]
        (second,) = sent(acc, 1.0)
        assert (second.base_sequence, second.session) == (0, ProducerSession(7, 0))

    def test_with_an_attempt_that_has_no_answer_its_outcome_is_unknown(self) -> None:
        """The leader that refuses the repetition does not know what became of the attempt before."""
        acc = core()
        self.expect(acc, 1)
        self.record(acc)
        (batch,) = sent(acc)
        acc.on_reconnected(1.0)
        assert sent(acc, 2.0) == [batch]
        effects = acc.on_error(batch, 2, refused(Code.INCORRECT_OFFSET, last_offset="6"), 2.0)
        assert failure(effects).code is Code.OUTCOME_UNKNOWN
        assert may_be_written(failure(effects))
        assert [effect for effect in effects if isinstance(effect, WantSession)], "its sequence may be used up"

    def test_a_repetition_that_was_stored_is_acknowledged(self) -> None:
        acc = core()
        self.expect(acc, 1)
        (batch,) = sent(acc)
        acc.on_reconnected(1.0)
        sent(acc, 2.0)
        assert resolved(acc.on_acknowledged(batch, 1, 1)) == [batch]

    def test_a_leader_that_refuses_what_expects_nothing_ends_the_session(self) -> None:
        acc = core()
        self.record(acc)
        (batch,) = sent(acc)
        self.record(acc)
        effects = acc.on_error(batch, 1, refused(Code.INCORRECT_OFFSET, last_offset="6"), 1.0)
        assert isinstance(failure(effects), IncorrectOffset)
        assert [effect for effect in effects if isinstance(effect, WantSession)]


async def test_a_record_gets_the_offset_or_is_not_written(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        assert (await producer.send(b"a", expected_offset=0)).offset == 0
        with pytest.raises(IncorrectOffset) as refused:
            await producer.send(b"b", expected_offset=0)
        assert refused.value.next_offset == 1
        assert (await producer.send(b"b", expected_offset=1)).offset == 1
        with pytest.raises(IncorrectOffset):
            await producer.send(b"far", expected_offset=7)
        assert (await producer.send(b"c")).offset == 2
    assert broker.logs["s", 0].values() == [b"a", b"b", b"c"]
    assert broker.producers_made == 1, "a refusal costs no new id"


async def test_the_next_offset_of_an_empty_log_is_told(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s") as producer:
        with pytest.raises(IncorrectOffset) as refused:
            await producer.send(b"a", expected_offset=1)
    assert refused.value.next_offset == 0


async def test_records_around_it_keep_their_order(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        futures = [producer.send_nowait(b"%d" % i, expected_offset=i if i % 3 == 0 else None) for i in range(20)]
        receipts = await asyncio.gather(*futures)
    assert [receipt.offset for receipt in receipts] == list(range(20))
    assert broker.logs["s", 0].values() == [b"%d" % i for i in range(20)]


async def test_of_two_writers_one_wins(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as one, client.producer("s") as other:
        outcomes = await asyncio.gather(
            *(producer.send(b"x", expected_offset=0) for producer in (one, other)), return_exceptions=True
        )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["IncorrectOffset", "Receipt"]
    assert broker.logs["s", 0].values() == [b"x"]


async def test_one_that_was_written_and_not_answered_is_acknowledged(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        broker.mute = 1
        sending = asyncio.create_task(producer.send(b"a", expected_offset=0))
        while broker.mute:  # noqa: ASYNC110 - the broker has no event for it
            await asyncio.sleep(0.001)
        broker.kill()
        broker.take_over()
        assert (await sending).offset == 0
    assert broker.logs["s", 0].values() == [b"a"]


async def test_without_an_answer_its_outcome_is_unknown(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", delivery_timeout_ms=300) as producer:
        broker.kill()
        with pytest.raises(DeliveryTimeout):
            await producer.send(b"a", expected_offset=0)


async def test_a_leader_that_does_not_know_keeps_the_record_waiting(cluster: Cluster) -> None:
    """The answer to a request that names no LeaderEpoch, from a leader that may have been deposed."""
    _, broker, client = cluster
    async with client.producer("s") as producer:
        broker.refusals = [TidelogError(Code.OUTCOME_UNKNOWN, "perhaps")]
        assert (await producer.send(b"a", expected_offset=0)).offset == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"expected_offset": -1, "partition": 0}, "expected_offset=-1"),
        ({"expected_offset": "3", "partition": 0}, "expected_offset='3'"),
        ({"expected_offset": 1 << 63, "partition": 0}, "expected_offset="),
        ({"expected_offset": 0}, "give the record a partition, or a key"),
    ],
)
async def test_a_slip_is_named(cluster: Cluster, arguments: dict[str, object], text: str) -> None:
    _, _, client = cluster
    async with client.producer("three") as producer:
        with pytest.raises(BadRequest, match=text):
            await producer.send(b"a", **arguments)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=text):
            producer.send_nowait(b"a", **arguments)  # type: ignore[arg-type]
        assert producer._buffer.used == 0


async def test_without_acknowledgements_it_is_refused(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", acks="none") as producer:
        with pytest.raises(BadRequest, match="acks='none'"):
            await producer.send(b"a", expected_offset=0)
