"""Transactions that one producer prepares and another client commits, against a coordinator in memory."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from tests.unit.tidelog.client.transactions_world import World, until
from tidelog.client.base.exceptions import (
    BadName,
    BadRequest,
    DeliveryTimeout,
    NotInTransaction,
    ProducerFenced,
    StaleCommit,
    TransactionAborted,
)
from tidelog.client.transaction.prepared_transactions import PreparedTransaction
from tidelog.client.transaction.producer_transactions import State
from wire.error_details import OUTCOME
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import END_FAMILY, MAX_MEMBERS


async def prepared(world: World, child: str, *values: bytes) -> PreparedTransaction:
    """Its producer is closed."""
    async with world.producer(f"f~{child}") as producer:
        await producer.begin()
        for value in values:
            await producer.send("s", value)
        found = await producer.prepare()
        assert found is not None
    return found


async def test_what_is_prepared_outlives_its_producer_and_is_committed_together(world: World) -> None:
    one, two = await prepared(world, "1", b"1"), await prepared(world, "2", b"2")
    assert world.readable() == []
    assert world.ends == [], "a producer that has prepared ends nothing"
    sent = [pickle.loads(pickle.dumps(each)) for each in (one, two)]
    assert await world.client.committed_sequence("f") is None
    assert await world.client.last_commit("f") is None
    assert await world.client.commit_prepared("f", sent, sequence=3, metadata="two of them") is True
    assert world.readable() == [b"1", b"2"]
    assert await world.client.commit_prepared("f", sent, sequence=3) is True
    assert await world.client.committed_sequence("f") == 3
    assert await world.client.last_commit("f") == (3, "two of them")
    with pytest.raises(BadRequest, match="metadata has 513 characters, and 512 are kept at most"):
        await world.client.commit_prepared("f", [], sequence=4, metadata="x" * 513)


async def test_a_producer_may_leave_what_is_open_alone(world: World) -> None:
    one = await prepared(world, "1", b"1")
    async with world.producer("f~other") as producer:
        await producer.start(fences=False)
    second = world.producer("f~1")
    with pytest.raises(ProducerFenced, match="f~1 is in use"):
        await second.start(fences=False)
    await second.close()
    assert await world.client.commit_prepared("f", [one], sequence=0) is True
    assert world.readable() == [b"1"]


async def test_others_that_come_with_the_same_number_are_aborted(world: World) -> None:
    assert await world.client.commit_prepared("f", [await prepared(world, "1", b"1")], sequence=3) is True
    assert await world.client.commit_prepared("f", [await prepared(world, "1", b"1 again")], sequence=3) is False
    with pytest.raises(StaleCommit) as caught:
        await world.client.commit_prepared("f", [await prepared(world, "1", b"late")], sequence=2)
    assert not caught.value.outcome_unknown
    assert world.readable() == [b"1"]


async def test_one_that_is_over_keeps_the_others_from_being_committed(world: World) -> None:
    one, two = await prepared(world, "1", b"1"), await prepared(world, "2", b"2")
    world.transactions.time_out("f~1")
    with pytest.raises(TransactionAborted, match="f~1 is not open"):
        await world.client.commit_prepared("f", [one, two], sequence=0)
    assert world.readable() == []


async def test_what_is_prepared_is_aborted_by_a_client(world: World) -> None:
    one = await prepared(world, "1", b"1")
    await prepared(world, "2", b"2")
    assert await world.client.abort_prepared("f", [one]) is True
    assert [each.is_open for each in world.transactions.ids.values()] == [False, True]
    assert await world.client.abort_prepared("f", abort_others=True) is True
    assert [each.is_open for each in world.transactions.ids.values()] == [False, False]
    assert world.readable() == []


async def test_an_abort_says_that_a_commit_before_is_not_known_any_more(world: World) -> None:
    one = await prepared(world, "1", b"1")
    await world.client.commit_prepared("f", [one], sequence=0)
    await prepared(world, "1", b"2")
    assert await world.client.abort_prepared("f", [one]) is False
    assert world.readable() == [b"1"]


async def test_a_transaction_in_which_nothing_was_written_is_not_prepared(world: World) -> None:
    async with world.producer("f~1") as producer:
        await producer.begin()
        assert await producer.prepare() is None
        async with producer.transaction():
            await producer.send("s", b"goes on")
    assert world.readable() == [b"goes on"]


async def test_prepare_waits_for_what_was_sent(world: World) -> None:
    async with world.producer("f~1", linger_ms=1000) as producer:
        await producer.start()
        await producer.begin()
        await producer.send("s", b"opens it")
        waiting = producer.send_nowait("s", b"lingers")
        found = await producer.prepare()
        assert waiting.done()
    assert found is not None
    await world.client.commit_prepared("f", [found], sequence=0)
    assert world.readable() == [b"opens it", b"lingers"]


async def test_a_producer_that_has_prepared_does_nothing_more(world: World) -> None:
    producer = world.producer("f~1")
    found: list[PreparedTransaction | None] = []
    async with producer.transaction():
        await producer.send("s", b"1")
        found.append(await producer.prepare())
    found.append(await producer.prepare())
    assert found[0] is not None
    assert found[0] == found[1], "a call that was cancelled is repeated"
    for call in (producer.send("s", b"2"), producer.commit()):
        with pytest.raises(NotInTransaction, match="is prepared"):
            await call
    for call in (producer.abort(), producer.begin()):
        with pytest.raises(BadRequest, match="is prepared"):
            await call
    await producer.close()
    assert world.ends == []
    assert world.transactions.ids["f~1"].is_open


async def test_the_close_of_the_client_leaves_what_is_prepared(world: World) -> None:
    producer = world.producer("f~1")
    await producer.begin()
    await producer.send("s", b"1")
    await producer.prepare()
    await world.client.close()
    assert world.transactions.ids["f~1"].is_open


async def test_a_prepare_that_is_cancelled_goes_on_and_can_be_aborted_before(world: World) -> None:
    async with world.producer("f~1") as producer:
        await producer.begin()
        await producer.send("s", b"1")
        world.broker.swallow = 1
        producer.send_nowait("s", b"2")
        task = asyncio.ensure_future(producer.prepare())
        await until(lambda: producer._machine.state is State.CLOSING)
        task.cancel()
        with pytest.raises(NotInTransaction, match="is being prepared"):
            await producer.send("s", b"3")
        with pytest.raises(NotInTransaction, match="is prepared"):
            await producer.commit()
        await producer.abort()
    assert world.ends == [False]


async def test_a_record_that_fails_keeps_the_transaction_from_being_prepared(world: World) -> None:
    async with world.producer("f~1") as producer:
        await producer.begin()
        await producer.send("s", b"1")
        world.broker.refusals.append(TidelogError(Code.RECORD_TOO_LARGE, "too large"))
        producer.send_nowait("s", b"2")
        with pytest.raises(TransactionAborted, match="too large"):
            await producer.prepare()
    assert world.ends == [False]


async def test_an_id_of_no_family_cannot_be_prepared(world: World) -> None:
    async with world.producer("billing") as producer, producer.transaction():
        await producer.send("s", b"1")
        with pytest.raises(BadRequest, match="billing~1"):
            await producer.prepare()
    assert world.readable() == [b"1"]


async def test_a_commit_whose_answer_is_lost_is_repeated(world: World) -> None:
    one = await prepared(world, "1", b"1")
    world.transactions.swallow[END_FAMILY] = 1
    assert await world.client.commit_prepared("f", [one], sequence=0) is True


async def test_a_commit_without_an_answer_may_be_carried_out(world: World) -> None:
    one = await prepared(world, "1", b"1")
    world.transactions.swallow[END_FAMILY] = 10
    with pytest.raises(DeliveryTimeout, match="may or may not be committed"):
        await world.client.commit_prepared("f", [one], sequence=0, timeout=0.5)
    world.transactions.swallow[END_FAMILY] = 0
    assert await world.client.commit_prepared("f", [one], sequence=0) is True


@pytest.mark.parametrize("attempt", ["first", "second", "of another call"])
async def test_a_commit_behind_a_later_one_of_which_nothing_is_known_may_be_carried_out(
    world: World, attempt: str
) -> None:
    """Its members have newer producers by now. A broker of an earlier version does not say whether it knows."""
    one = await prepared(world, "1", b"1")
    if attempt == "second":
        world.transactions.swallow[END_FAMILY] = 1
    if attempt == "of another call":
        world.transactions.swallow[END_FAMILY] = 10
        with pytest.raises(DeliveryTimeout):
            await world.client.commit_prepared("f", [one], sequence=0, timeout=0.5)
        world.transactions.swallow[END_FAMILY] = 0
    for details in ([OUTCOME.of("unknown")], ()):
        refusal = TidelogError(Code.STALE_COMMIT, "family 'f' has committed 7", details)
        world.transactions.refusals[END_FAMILY].append(refusal)
        with pytest.raises(StaleCommit, match="has committed 7") as caught:
            await world.client.commit_prepared("f", [one], sequence=0)
        assert caught.value.outcome_unknown
        assert not caught.value.retriable, "another call tells no more"


@pytest.mark.parametrize(
    ("family", "given", "error"),
    [
        ("f", [PreparedTransaction("g~1", 1, 0)], BadRequest),
        ("f", [("f~1", 1)], BadRequest),
        ("f", ["f~1"], BadRequest),
        ("f", [PreparedTransaction(f"f~{number}", 1, 0) for number in range(MAX_MEMBERS + 1)], BadRequest),
        ("f~1", [], BadName),
        ("", [], BadName),
    ],
)
async def test_what_cannot_be_committed_is_refused_before_it_is_sent(
    world: World, family: str, given: list[Any], error: type[TidelogError]
) -> None:
    with pytest.raises(error):
        await world.client.commit_prepared(family, given, sequence=0)
    assert not world.transactions.requests


@pytest.mark.parametrize("sequence", [-1, 1 << 63, 1.5])
async def test_a_sequence_that_is_none_is_refused(world: World, sequence: Any) -> None:
    with pytest.raises(BadRequest, match="sequence"):
        await world.client.commit_prepared("f", [], sequence=sequence)
