"""Transactions as programs use them, on real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

import tidelog
import tidelog.sync
from tests.integration.rig.command_line import command
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tests.integration.rig.workload import wait_in_sync
from tests.integration.transactions.told_transactions import all_are_told, until_told
from tidelog.server.devcluster import DevCluster
from wire.internal_records.transaction_records import coordinator_partition
from wire.internal_streams import TRANSACTIONS


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as running:
        yield running


async def values(
    client: tidelog.Client, stream: str, *, read_uncommitted: bool = False, read_from: str = "leader"
) -> list[bytes | None]:
    """What a consumer reads up to the latest offset, sorted; what was decided before is seen."""
    await until_told(client, stream)
    consumer = client.consume(
        stream,
        stop="latest",
        read_uncommitted=read_uncommitted,
        read_from=read_from,  # type: ignore[arg-type]
    )
    return sorted([record.value async for record in consumer], key=lambda value: value or b"")


async def leader_of(client: tidelog.Client, stream: str, partition: int) -> str:
    async def found() -> str | None:
        return (await client.describe(stream))["partitions"][partition]["leader"]

    return await until(found, f"a leader of {stream}/{partition}")


async def coordinator_of(client: tidelog.Client, transactional_id: str) -> str:
    return await leader_of(client, TRANSACTIONS.name, coordinator_partition(transactional_id))


async def test_a_commit_is_visible_when_it_returns_and_an_abort_never(client: tidelog.Client) -> None:
    await client.create_stream("orders", partitions=3)
    await client.create_stream("ledger")
    async with client.producer(transactional_id="visible") as producer:
        expected: list[bytes] = []
        for number in range(10):
            is_kept = number % 3 != 2
            await producer.begin()
            for partition in range(3):
                await producer.send("orders", b"%d-%d" % (number, partition), partition=partition)
            await producer.send("ledger", b"%d" % number)
            before = await values(client, "orders")
            assert before == sorted(expected), "nothing of an open transaction is read"
            assert len(await values(client, "orders", read_uncommitted=True)) == 3 * (number + 1)
            if is_kept:
                await producer.commit()
                expected += [b"%d-%d" % (number, partition) for partition in range(3)]
            else:
                await producer.abort()
            assert await values(client, "orders") == sorted(expected)
    assert await values(client, "ledger") == [b"%d" % number for number in range(10) if number % 3 != 2]
    assert await values(client, "orders", read_from="follower") == sorted(expected)


async def test_deleting_all_records_leaves_those_of_a_transaction_that_is_open(client: tidelog.Client) -> None:
    """ "latest" is what `offsets` calls the end."""
    await client.create_stream("purged")
    async with client.producer("purged") as plain, client.producer(transactional_id="purges") as producer:
        await plain.send(b"before")
        await producer.begin()
        await producer.send("purged", b"within")
        await plain.send(b"behind")
        assert await client.offsets("purged", "latest") == {0: 1}
        (changed,) = await client.delete_records("purged", {0: "latest"})
        assert changed["log_start_offset"] == 1
        with pytest.raises(tidelog.OffsetOutOfRange, match="has a transaction open there"):
            await client.delete_records("purged", {0: 2})
        await producer.commit()
    assert await values(client, "purged") == [b"behind", b"within"]
    await client.delete_records("purged", {0: "latest"})
    assert await values(client, "purged") == []


async def test_many_records_of_pipelined_sends(client: tidelog.Client) -> None:
    await client.create_stream("many", partitions=3)
    async with client.producer(transactional_id="many", streams="many") as producer:
        for batch in range(5):
            async with producer.transaction():
                for number in range(2000):
                    producer.send_nowait("many", b"%d" % (batch * 2000 + number), key=b"%d" % number)
            assert len(await values(client, "many")) == 2000 * (batch + 1)
        with pytest.raises(RuntimeError):
            await _fail_with(producer, "many", 1000)
    found = await values(client, "many")
    assert sorted(int(value or b"-1") for value in found) == list(range(10_000))


async def _fail_with(producer: tidelog.TransactionalProducer, stream: str, records: int) -> None:
    async with producer.transaction():
        for _ in range(records):
            producer.send_nowait(stream, b"lost")
        raise RuntimeError("the program fails")


async def test_the_older_of_two_producers_is_fenced(cluster: DevCluster, client: tidelog.Client) -> None:
    await client.create_stream("fenced")
    async with (
        await tidelog.connect(cluster.nats_url) as other,
        client.producer(transactional_id="twin") as older,
    ):
        await older.begin()
        await older.send("fenced", b"of the older one")
        async with other.producer(transactional_id="twin") as newer:
            async with newer.transaction():
                await newer.send("fenced", b"of the newer one")
            with pytest.raises(tidelog.ProducerFenced):
                await older.send("fenced", b"late")
            with pytest.raises(tidelog.ProducerFenced):
                await older.commit()
            with pytest.raises(tidelog.ProducerFenced):
                await older.begin()
            async with newer.transaction():
                await newer.send("fenced", b"of the newer one, too")
    assert await values(client, "fenced") == [b"of the newer one", b"of the newer one, too"]


async def _move(
    client: tidelog.Client, name: str, *, source: str, target: str, total: int, fails_at: frozenset[int]
) -> None:
    """Reads, and writes what it has read, until `total` records of the source are behind it."""
    async with (
        client.subscribe(source, group="movers", auto_commit=False) as consumer,
        client.producer(transactional_id=name, streams=target) as producer,
    ):
        for attempt in count():
            records = await consumer.getmany(100, timeout=0.5)
            if not records:
                offsets = await consumer.committed()
                if sum(each.offset for each in offsets.values()) >= total:
                    return
                continue
            try:
                async with producer.transaction():
                    for record in records:
                        producer.send_nowait(target, record.value, key=record.key)
                    await producer.send_offsets(group=consumer)
                    if attempt in fails_at:
                        raise RuntimeError("the program fails")
            except (RuntimeError, tidelog.TransactionAborted):
                await consumer.seek_to_committed()


async def test_read_process_write_handles_each_record_once(client: tidelog.Client) -> None:
    total = 2000
    await client.create_stream("raw", partitions=2)
    await client.create_stream("cooked", partitions=2)
    async with client.producer("raw") as producer:
        numbers = [b"%d" % number for number in range(total)]
        await producer.send_many(numbers, keys=numbers)
    async with asyncio.timeout(2 * LIMIT):
        await _move(client, "mover", source="raw", target="cooked", total=total, fails_at=frozenset({2, 3, 7}))
    found = [int(value or b"-1") for value in await values(client, "cooked")]
    assert sorted(found) == list(range(total))
    await until_told(client)
    described = await client.describe_group("movers")
    assert sum(entry["committed"] or 0 for entry in described["progress"]) == total


async def test_a_leader_that_dies_in_mid_transaction(cluster: DevCluster, client: tidelog.Client) -> None:
    await client.create_stream("survives")
    await wait_in_sync(cluster.nats_url, "survives")
    async with client.producer(transactional_id="survivor") as producer:
        for is_kept in (True, False):
            await producer.begin()
            await producer.send("survives", b"before %d" % is_kept)
            leader = await leader_of(client, "survives", 0)
            cluster.kill(leader)
            await producer.send("survives", b"behind %d" % is_kept)
            await (producer.commit() if is_kept else producer.abort())
            assert await values(client, "survives") == [b"before 1", b"behind 1"]
            cluster.start_broker(leader)
            cluster.wait_ready(2 * LIMIT)
            await wait_in_sync(cluster.nats_url, "survives")
        async with producer.transaction():
            await producer.send("survives", b"last")
    assert await values(client, "survives") == [b"before 1", b"behind 1", b"last"]


async def test_a_coordinator_that_dies_at_the_commit(cluster: DevCluster, client: tidelog.Client) -> None:
    await client.create_stream("decided", partitions=2)
    await wait_in_sync(cluster.nats_url, "decided")
    async with client.producer(transactional_id="decides") as producer:
        for number in range(3):
            await producer.begin()
            for partition in range(2):
                await producer.send("decided", b"%d" % number, partition=partition)
            await wait_in_sync(cluster.nats_url, TRANSACTIONS.name)
            coordinator = await coordinator_of(client, "decides")
            committing = asyncio.create_task(producer.commit())
            await asyncio.sleep(0.002 * number)
            cluster.kill(coordinator)
            await committing
            assert await values(client, "decided") == [b"%d" % each for each in range(number + 1) for _ in range(2)]
            cluster.start_broker(coordinator)
            cluster.wait_ready(2 * LIMIT)


async def test_what_is_left_open_is_aborted(cluster: DevCluster, client: tidelog.Client) -> None:
    """By the end of the producer, of its client, of its time, and by its successor."""
    await client.create_stream("left")

    async def leave(name: str, timeout: float = 60.0) -> tuple[tidelog.Client, tidelog.TransactionalProducer]:
        mine = await tidelog.connect(cluster.nats_url)
        producer = mine.producer(transactional_id=name, transaction_timeout=timeout)
        await producer.begin()
        await producer.send("left", name.encode())
        return mine, producer

    first, producer = await leave("closed")
    await producer.close()
    second, _ = await leave("closed-with-its-client")
    await second.close()
    third, late = await leave("too-long", timeout=6.0)
    fourth, _ = await leave("replaced")
    async with client.producer(transactional_id="replaced") as producer, producer.transaction():
        await producer.send("left", b"kept")
    await until(lambda: values(client, "left"))
    with pytest.raises(tidelog.TransactionAborted):
        await late.commit()
    async with late.transaction():
        await late.send("left", b"kept, too")
    assert await values(client, "left") == [b"kept", b"kept, too"]
    for each in (first, third, fourth):
        await each.close()


async def test_wrong_use_is_refused(client: tidelog.Client) -> None:
    await client.create_stream("wrong")
    async with client.producer(transactional_id="wrong") as producer:
        with pytest.raises(tidelog.NotInTransaction):
            await producer.send("wrong", b"-")
        async with producer.transaction():
            with pytest.raises(tidelog.BadRequest):
                await producer.begin()
            with pytest.raises(tidelog.BadRequest):
                await producer.send("wrong", b"-", headers={"Nats-Msg-Id": b"1"})
            await producer.send("wrong", b"once")
            await producer.commit()
            with pytest.raises(tidelog.NotInTransaction):
                await producer.commit()
            with pytest.raises(tidelog.NotInTransaction):
                await producer.send("wrong", b"-")
    with pytest.raises(tidelog.Closed):
        await producer.begin()
    assert await values(client, "wrong") == [b"once"]


def test_without_asyncio(cluster: DevCluster) -> None:
    with tidelog.sync.connect(cluster.nats_url) as client:
        client.create_stream("blocking")
        client.create_stream("blocked-out")
        with client.producer("blocking") as plain:
            plain.send_many([b"1", b"2"])
        with (
            client.subscribe("blocking", group="blocking", auto_commit=False) as consumer,
            client.producer(transactional_id="blocking", streams=["blocked-out"]) as producer,
        ):
            records = consumer.getmany(2, timeout=LIMIT)
            with pytest.raises(RuntimeError):
                _fail_blocking(producer)
            consumer.seek_to_committed()
            records = consumer.getmany(2, timeout=LIMIT)
            with producer.transaction():
                for record in records:
                    producer.send_nowait("blocked-out", record.value)
                producer.send_offsets(group=consumer)
                assert producer.in_transaction
            assert {name: each.offset for name, each in consumer.committed().items()} == {("blocking", 0): 2}
        wait_until(lambda: all_are_told(client.transactions()), "the end of both transactions")
        assert [record.value for record in client.consume("blocked-out", stop="latest")] == [b"1", b"2"]


def _fail_blocking(producer: tidelog.sync.TransactionalProducer) -> None:
    with producer.transaction():
        producer.send("blocked-out", b"lost")
        raise RuntimeError("the program fails")


async def test_the_command_line_reads_what_is_not_committed(cluster: DevCluster, client: tidelog.Client) -> None:
    await client.create_stream("peeked")
    async with client.producer(transactional_id="peeked") as producer:
        await producer.begin()
        await producer.send("peeked", b"open")
        arguments = ("subscribe", "peeked", "--stop", "latest", "--format", "raw")
        committed = await asyncio.to_thread(command, cluster, *arguments)
        everything = await asyncio.to_thread(command, cluster, *arguments, "--read-uncommitted")
        assert [out for _, out, _ in (committed, everything)] == ["", "open\n"]


@pytest.mark.parametrize("when", ["before", "within"])
async def test_a_producer_goes_on_in_a_stream_that_was_deleted_and_made_again(
    cluster: DevCluster, client: tidelog.Client, when: str
) -> None:
    stream = f"made-again-{when}"
    await client.create_stream(stream)
    async with (
        await tidelog.connect(cluster.nats_url) as other,
        client.producer(transactional_id=stream, streams=[stream]) as producer,
    ):
        async with producer.transaction():
            await producer.send(stream, b"in the first life")
        if when == "within":
            await producer.begin()
            await producer.send(stream, b"open in the first life")
        await other.delete_stream(stream)
        await other.create_stream(stream)

        async def is_committed() -> bool:
            try:
                if not producer.in_transaction:
                    await producer.begin()
                producer.send_nowait(stream, b"in the second life")
                await producer.commit()
            except (tidelog.TransactionAborted, tidelog.BadRequest):
                if producer.in_transaction:
                    await producer.abort()
                return False
            return True

        await until(is_committed, "a transaction in the second life of the stream")
    assert await values(client, stream) == [b"in the second life"]
