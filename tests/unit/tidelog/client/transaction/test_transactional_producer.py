"""A transactional producer against brokers and coordinators in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.fake_nats import delivered
from tests.unit.tidelog.client.fake_transactions import FakeTransaction
from tests.unit.tidelog.client.transactions_world import World, until
from tidelog.client.base.exceptions import (
    BadName,
    BadRequest,
    BufferFull,
    Closed,
    DeliveryTimeout,
    IncorrectOffset,
    NotInTransaction,
    ProducerFenced,
    TransactionAborted,
    UnknownStream,
)
from tidelog.client.transaction import transaction_session
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from tidelog.server.coordinators.transactions.transaction_shard import MAX_HELD
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import ADD_OFFSETS, ADD_PARTITIONS, END, INIT
from wire.protobuf.transactions_pb2 import InitRequest
from wire.types import FIRST_TRANSACTIONAL_ID


async def fail_in_transaction(producer: TransactionalProducer) -> None:
    async with producer.transaction():
        await producer.send("s", b"lost")
        raise RuntimeError("no")


async def test_records_of_several_streams_are_committed_together(world: World) -> None:
    async with world.producer() as producer:
        async with producer.transaction():
            one = await producer.send("s", b"1", key=b"k", headers={"h": b"v"})
            many = await producer.send_many("three", [b"2", b"3"], partition=1)
            waiting = [producer.send_nowait("three", b"%d" % number, partition=2) for number in range(3)]
            assert not world.readable()
        assert [(await each).offset for each in waiting] == [0, 1, 2]
    assert (one.partition, one.offset) == (0, 0)
    assert [(each.partition, each.base_offset) for each in many] == [(1, 0)]
    assert world.readable() == [b"1"]
    assert world.readable("three", 1) == [b"2", b"3"]
    assert world.readable("three", 2) == [b"0", b"1", b"2"]
    assert world.ends == [True]


async def test_each_transaction_has_an_epoch_and_sequences_from_0(world: World) -> None:
    async with world.producer() as producer:
        for number in range(3):
            async with producer.transaction():
                for _ in range(2):
                    await producer.send("s", b"%d" % number)
    headers = [header for _, header in world.broker.appends]
    assert {header.producer_id for header in headers} == {FIRST_TRANSACTIONAL_ID}
    assert [(header.producer_epoch, header.base_sequence) for header in headers] == [
        (epoch, sequence) for epoch in range(3) for sequence in range(2)
    ]
    assert all(header.is_transactional for header in headers)
    assert len(world.adds) == 3, "a partition is added once in each transaction"


async def test_partitions_that_are_wanted_together_are_added_together(world: World) -> None:
    async with world.producer() as producer, producer.transaction():
        await producer.send("three", b"-", partition=0)
        waiting = [producer.send_nowait("three", b"-", partition=number) for number in (1, 2)]
        await asyncio.gather(*waiting)
    assert [sorted(of.partition for of in add.partitions) for add in world.adds] == [[0], [1, 2]]


async def test_a_transaction_takes_in_many_streams_a_few_at_a_time(world: World) -> None:
    """The coordinator holds some requests of an id at once, and refuses more."""
    streams = [f"s{number}" for number in range(3 * transaction_session.MAX_ADDS)]
    for stream in streams:
        world.broker.create(stream)
    held = world.transactions.held[ADD_PARTITIONS]
    world.transactions.holds.add(ADD_PARTITIONS)
    async with world.producer() as producer, producer.transaction():
        waiting = [asyncio.create_task(producer.send(stream, b"-")) for stream in streams]
        await until(lambda: len(held) == transaction_session.MAX_ADDS)
        await delivered()
        assert len(held) == transaction_session.MAX_ADDS < MAX_HELD
        world.transactions.release(ADD_PARTITIONS)
        await asyncio.gather(*waiting)
    assert sorted(add.partitions[0].stream for add in world.adds) == sorted(streams)


async def test_a_partition_does_not_wait_for_the_ticket_of_another(world: World) -> None:
    async with world.producer() as producer, producer.transaction():
        await producer.send("three", b"-", partition=0)
        world.transactions.holds.add(ADD_PARTITIONS)
        later = producer.send_nowait("three", b"-", partition=1)
        await producer.send("three", b"-", partition=0)
        await until(lambda: bool(world.transactions.held[ADD_PARTITIONS]))
        assert not later.done()
        world.transactions.release(ADD_PARTITIONS)


async def test_an_exception_aborts_and_the_producer_goes_on(world: World) -> None:
    async with world.producer() as producer:
        with pytest.raises(RuntimeError, match="no"):
            await fail_in_transaction(producer)
        seen = [producer.in_transaction]
        async with producer.transaction():
            seen.append(producer.in_transaction)
            await producer.send("s", b"kept")
    assert seen == [False, True]
    assert world.readable() == [b"kept"]
    assert world.ends == [False, True]


async def test_an_abort_gives_up_what_is_not_acknowledged(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"written")
        world.broker.swallow = 1
        waiting = producer.send_nowait("s", b"on its way")
        await until(lambda: not world.broker.swallow)
        await producer.abort()
        with pytest.raises(TransactionAborted, match="its program has aborted it") as caught:
            await waiting
        assert caught.value.details["outcome"] == "not_written"
        await producer.abort()
        async with producer.transaction():
            await producer.send("s", b"next")
    assert world.readable() == [b"next"]


async def test_a_transaction_that_nothing_was_sent_in_ends_without_its_coordinator(world: World) -> None:
    async with world.producer() as producer:
        for _ in range(2):
            async with producer.transaction():
                pass
        await producer.begin()
        await producer.abort()
    assert not world.ends
    assert not world.adds


async def test_wrong_use_is_refused_in_a_sentence(world: World) -> None:
    async with world.producer() as producer:
        for call in (lambda: producer.send("s", b"-"), producer.commit, lambda: producer.send_offsets({}, group="g")):
            with pytest.raises(NotInTransaction, match="no transaction of 'billing' is open"):
                await call()
        with pytest.raises(NotInTransaction):
            producer.send_nowait("s", b"-")
        await producer.begin()
        with pytest.raises(BadRequest, match="is open already"):
            await producer.begin()
        with pytest.raises(BadRequest, match="has not been opened"):
            producer.send_nowait("s", b"-")
        with pytest.raises(UnknownStream):
            await producer.send("nosuch", b"-")
        with pytest.raises(BadRequest, match="message id"):
            await producer.send("s", b"-", headers={"Nats-Msg-Id": b"1"})
        with pytest.raises(BadRequest, match="offsets are needed"):
            await producer.send_offsets(group="g")
        await producer.send("s", b"1")
        await producer.commit()
        with pytest.raises(NotInTransaction, match="could be committed"):
            await producer.commit()
    assert world.readable() == [b"1"], "what was refused has not harmed the transaction"
    with pytest.raises(Closed, match="'billing' is closed"):
        await producer.begin()
    with pytest.raises(BadRequest, match=r"name 's' in its send\(\)"):
        world.client.producer("s", transactional_id="billing")  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match=r"transaction_timeout=0\.01 is outside"):
        world.producer(transaction_timeout=0.01)
    with pytest.raises(BadRequest, match="acks, durability, confirm_timeout and dedup"):
        world.client.producer(transactional_id="billing", acks="leader")  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match="streams and transaction_timeout"):
        world.client.producer("s", transaction_timeout=1.0)  # type: ignore[call-overload]
    with pytest.raises(TidelogError, match="transactional id"):
        world.producer("no.dots")


async def test_the_newer_of_two_producers_goes_on(world: World) -> None:
    older, newer = world.producer(), world.producer()
    await older.start()
    await older.begin()
    await older.send("s", b"of the older one")
    await newer.start()
    async with newer.transaction():
        await newer.send("s", b"of the newer one")
    with pytest.raises(ProducerFenced) as caught:
        await older.send("s", b"late")
    assert caught.value.details["outcome"] == "not_written"
    for call in (older.commit, older.begin):
        with pytest.raises(ProducerFenced):
            await call()
    await older.abort()
    assert world.readable() == [b"of the newer one"]


async def test_the_older_one_hears_it_at_its_commit_too(world: World) -> None:
    older, newer = world.producer(), world.producer()
    await older.begin()
    await older.send("s", b"of the older one")
    await newer.start()
    with pytest.raises(ProducerFenced):
        await older.commit()
    assert not world.readable()


@pytest.mark.parametrize("call", ["send", "commit", "send_offsets"])
async def test_a_transaction_that_was_open_for_too_long_is_aborted(world: World, call: str) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"lost")
        world.transactions.time_out("billing")
        if call == "send":
            with pytest.raises(TransactionAborted):
                await producer.send("s", b"lost, too")
        if call == "send_offsets":
            with pytest.raises(TransactionAborted):
                await producer.send_offsets({("s", 0): 1}, group="g")
        with pytest.raises(TransactionAborted, match="open for longer than its timeout") as caught:
            await producer.commit()
        assert caught.value.details["outcome"] == "not_written"
        async with producer.transaction():
            await producer.send("s", b"next")
    assert world.readable() == [b"next"]


async def test_a_record_that_fails_dooms_its_transaction(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.broker.refusals = [TidelogError(Code.READONLY, "nothing is taken")]
        failed = producer.send_nowait("s", b"two")
        other = producer.send_nowait("s", b"three", partition=0, expected_offset=1)
        with pytest.raises(TidelogError, match="nothing is taken") as refused:
            await failed
        assert refused.value.details["outcome"] == "not_written"
        with pytest.raises(TransactionAborted, match="nothing is taken"):
            await other
        with pytest.raises(TransactionAborted, match="nothing is taken"):
            await producer.send("s", b"four")
        with pytest.raises(TransactionAborted, match="nothing is taken") as caught:
            await producer.commit()
        assert caught.value.__cause__ is failed.exception()
        async with producer.transaction():
            await producer.send("s", b"next")
    assert world.readable() == [b"next"]
    assert world.ends == [False, True]


async def test_an_offset_that_is_not_the_expected_one_dooms_it(world: World) -> None:
    async with world.producer() as producer:
        with pytest.raises(IncorrectOffset):
            async with producer.transaction():
                await producer.send("s", b"one", expected_offset=5)
    assert not world.readable()


async def test_a_commit_waits_for_what_was_sent(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.broker.refusals = [TidelogError(Code.NOT_ENOUGH_REPLICAS, "not now")] * 3
        waiting = producer.send_nowait("s", b"two")
        await producer.commit()
        assert waiting.done()
    assert world.readable() == [b"one", b"two"]


async def test_a_lingering_batch_leaves_with_the_commit(world: World) -> None:
    async with world.producer(linger_ms=60_000) as producer:
        await producer.begin()
        await world.client.metadata("s")
        sending = asyncio.create_task(producer.send("s", b"one"))
        await until(lambda: bool(world.adds) or not producer._work.is_done)
        await producer.commit()
        await sending
    assert world.readable() == [b"one"]


async def test_a_ticket_that_is_not_valid_any_more_is_replaced(world: World) -> None:
    async with world.producer() as producer, producer.transaction():
        await producer.send("s", b"one")
        world.transactions.secret = 2
        await asyncio.gather(*(producer.send("s", b"%d" % number) for number in range(3)))
        await producer.send_offsets({("s", 0): 1}, group="g")
    assert world.readable() == [b"one", b"0", b"1", b"2"]


async def test_requests_are_repeated_until_the_coordinator_has_moved(world: World) -> None:
    fake = world.transactions
    fake.kill()
    producer = world.producer()
    starting = asyncio.create_task(producer.start())
    await until(lambda: fake.looked_for > 0)
    fake.start()
    await starting
    for kind in (ADD_PARTITIONS, END):
        fake.refusals[kind] = [TidelogError(Code.UNAVAILABLE, "it moves")]
    async with producer.transaction():
        await producer.send("s", b"one")
    assert world.readable() == [b"one"]


@pytest.mark.parametrize("how", ["swallow", "drop"])
async def test_answers_and_requests_may_be_lost(world: World, how: str) -> None:
    lost = world.transactions.swallow if how == "swallow" else world.transactions.drop
    for kind in (INIT, ADD_PARTITIONS, END):
        lost[kind] = 1
    async with world.producer() as producer:
        for number in range(2):
            async with producer.transaction():
                await producer.send("s", b"%d" % number)
            lost[ADD_PARTITIONS] = lost[END] = 1
    assert world.readable() == [b"0", b"1"]


async def test_a_commit_without_an_answer_is_never_told_as_aborted(world: World) -> None:
    async with world.producer(delivery_timeout_ms=1000) as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.transactions.swallow[END] = 100
        with pytest.raises(DeliveryTimeout, match=r"call commit\(\) again") as caught:
            await producer.commit()
        assert caught.value.outcome_unknown
        with pytest.raises(DeliveryTimeout):
            await producer.begin()
        with pytest.raises(BadRequest, match="cannot be aborted any more"):
            await producer.abort()
        with pytest.raises(NotInTransaction):
            await producer.send("s", b"two")
        world.transactions.swallow[END] = 0
        await producer.commit()
        async with producer.transaction():
            await producer.send("s", b"two")
    assert world.readable() == [b"one", b"two"]


async def test_a_commit_that_reached_nobody_was_not_carried_out(world: World) -> None:
    async with world.producer(delivery_timeout_ms=1000) as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.transactions.kill()
        with pytest.raises(TransactionAborted) as caught:
            await producer.commit()
        assert caught.value.details["outcome"] == "not_written"
        world.transactions.start()
        async with producer.transaction():
            await producer.send("s", b"two")
    assert world.readable() == [b"two"]
    assert world.ends == [False, True], "the one before was aborted first"


async def test_a_commit_that_left_before_the_connection_was_lost_may_be_carried_out(world: World) -> None:
    async with world.producer(delivery_timeout_ms=1000) as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.transactions.swallow[END] = 1
        committing = asyncio.create_task(producer.commit())
        await until(lambda: world.ends == [True])
        world.transport.lose()
        with pytest.raises(DeliveryTimeout):
            await committing
        world.transport.come_back()
        await producer.commit()
    assert world.readable() == [b"one"]


async def test_a_producer_fenced_while_it_commits_does_not_know(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.transactions.swallow[END] = 1
        committing = asyncio.create_task(producer.commit())
        await until(lambda: world.ends == [True])
        await world.producer().start()
        with pytest.raises(ProducerFenced, match="may or may not be") as caught:
            await committing
        assert caught.value.details["outcome"] == "unknown"
    assert world.readable() == [b"one"]


async def test_a_commit_that_is_cancelled_goes_on(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.transactions.holds.add(END)
        committing = asyncio.create_task(producer.commit())
        await until(lambda: bool(world.transactions.held[END]))
        committing.cancel()
        beginning = asyncio.create_task(producer.begin())
        await delivered()
        assert not beginning.done(), "it waits for the outcome"
        world.transactions.release(END)
        await beginning
        await producer.send("s", b"two")
        await producer.commit()
    assert world.readable() == [b"one", b"two"]


async def test_a_commit_does_not_wait_for_ever_for_a_producer_that_is_closed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_session, "CLOSE_TIMEOUT", 0.0)
    producer = world.producer()
    await producer.begin()
    await producer.send("s", b"one")
    world.transactions.holds.add(END)
    committing = asyncio.create_task(producer.commit())
    await until(lambda: bool(world.transactions.held[END]))
    await producer.close()
    async with asyncio.timeout(30):
        with pytest.raises(Closed, match="may or may not be committed"):
            await committing


async def test_nor_do_offsets_whose_ticket_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_session, "CLOSE_TIMEOUT", 0.0)
    producer = world.producer()
    await producer.begin()
    world.transactions.holds.add(ADD_OFFSETS)
    sending = asyncio.create_task(producer.send_offsets({("s", 0): 1}, group="g"))
    await until(lambda: bool(world.transactions.held[ADD_OFFSETS]))
    committing = asyncio.create_task(producer.commit())
    await delivered()
    await producer.close()
    async with asyncio.timeout(30):
        for waiting in (sending, committing):
            with pytest.raises((Closed, TransactionAborted)):
                await waiting


async def cancelled_commit(world: World, producer: TransactionalProducer) -> None:
    """The coordinator answers afterwards."""
    await producer.begin()
    await producer.send("s", b"one")
    world.transactions.holds.add(END)
    committing = asyncio.create_task(producer.commit())
    await until(lambda: bool(world.transactions.held[END]))
    committing.cancel()
    world.transactions.release(END)
    await delivered()


async def test_the_outcome_of_a_commit_that_was_cancelled_is_told_by_another_one(world: World) -> None:
    async with world.producer() as producer:
        await cancelled_commit(world, producer)
        await producer.commit()
        with pytest.raises(NotInTransaction):
            await producer.commit()
    assert world.readable() == [b"one"]


async def test_a_transaction_whose_commit_went_on_cannot_be_aborted(world: World) -> None:
    async with world.producer() as producer:
        await cancelled_commit(world, producer)
        with pytest.raises(BadRequest, match="is committed"):
            await producer.abort()
        await producer.begin()
        await producer.abort()
    assert world.readable() == [b"one"]


@pytest.mark.parametrize("asked", [TransactionalProducer.begin, TransactionalProducer.commit])
async def test_the_failure_of_a_commit_that_was_cancelled_is_raised_by_the_next_call(
    world: World, asked: Callable[[TransactionalProducer], Awaitable[None]]
) -> None:
    async with world.producer() as producer:
        world.transactions.refusals[END].append(TidelogError(Code.TRANSACTION_ABORTED, "it was open for too long"))
        await cancelled_commit(world, producer)
        with pytest.raises(TransactionAborted, match="too long"):
            await asked(producer)
        async with producer.transaction():
            await producer.send("s", b"two")
    assert world.readable() == [b"two"]


async def test_an_abort_while_the_records_of_a_commit_are_waited_for(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.broker.swallow = 1
        producer.send_nowait("s", b"two")
        committing = asyncio.create_task(producer.commit())
        await until(lambda: not world.broker.swallow)
        await producer.abort()
        with pytest.raises(TransactionAborted):
            await committing
    assert not world.readable()


async def test_an_abort_or_a_commit_within_the_block_ends_it(world: World) -> None:
    async with world.producer() as producer:
        async with producer.transaction():
            await producer.send("s", b"aborted")
            await producer.abort()
        async with producer.transaction():
            await producer.send("s", b"committed")
            await producer.commit()
    assert world.readable() == [b"committed"]


@pytest.mark.parametrize("who", ["producer", "client"])
async def test_closing_aborts_what_is_open(world: World, who: str) -> None:
    producer = world.producer()
    await producer.begin()
    await producer.send("s", b"one")
    world.broker.swallow = 1
    waiting = producer.send_nowait("s", b"two")
    await (producer if who == "producer" else world.client).close()
    assert world.ends == [False]
    with pytest.raises(TransactionAborted):
        await waiting
    await producer.close()


async def test_a_stream_that_was_made_anew_is_opened_anew(world: World) -> None:
    async with world.producer() as producer:
        async with producer.transaction():
            await producer.send("s", b"one")
        world.broker.streams["s"]["incarnation"] = 99
        world.broker.refusals = [TidelogError(Code.WRONG_INCARNATION, "another one")]
        with pytest.raises(TidelogError):
            async with producer.transaction():
                await producer.send("s", b"two")
        await until(lambda: any(writer.failure for writer in producer._work.writers))
        async with producer.transaction():
            await producer.send("s", b"three")
    assert world.adds[-1].partitions[0].stream_incarnation == 99


async def test_calls_that_wait_for_room_end_with_the_transaction(world: World) -> None:
    async with world.producer(buffer_bytes=200) as producer:
        await producer.begin()
        await producer.send("s", b"one")
        world.broker.swallow = 1
        producer.send_nowait("s", b"x" * 150)
        waiting = asyncio.create_task(producer.send("s", b"y" * 150))
        await delivered()
        with pytest.raises(BufferFull, match="transactions of 'billing'"):
            producer.send_nowait("s", b"z" * 150)
        await producer.abort()
        with pytest.raises(TransactionAborted):
            await waiting
        async with producer.transaction():
            await producer.send("s", b"y" * 150)


async def test_answers_that_no_coordinator_gives_are_refused(world: World) -> None:
    world.transactions.ids["billing"] = FakeTransaction(7)
    with pytest.raises(TidelogError, match="gave out id 7"):
        await world.producer().start()


async def test_it_tells_which_partitions_do_not_show_it_yet(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.transactions.waits_for = ["s/0"]
    async with world.producer() as producer, producer.transaction():
        await producer.send("s", b"one")
    assert "is committed, and s/0 do not show it yet" in caplog.text


async def test_init_says_who_asks_and_for_how_long(world: World) -> None:
    async with world.producer(transaction_timeout=2.5):
        pass
    (init,) = [request for request in world.transactions.requests if isinstance(request, InitRequest)]
    assert (init.transactional_id, init.timeout_ms, init.client, init.cluster_id) == ("billing", 2500, "test", "c1")


@pytest.mark.parametrize("name", ["", "a b", "a.b", "*", "a" * 65, 5])
async def test_an_operator_names_an_id_that_cannot_be_one(world: World, name: str) -> None:
    for call in (world.client.describe_transaction, world.client.abort_transaction):
        with pytest.raises(BadName, match="transactional id"):
            await call(name)
