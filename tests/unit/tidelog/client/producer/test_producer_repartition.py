"""A producer whose stream is repartitioned while it writes, against a broker in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from crc32c import crc32c

from tests.fake_nats import delivered
from tests.unit.tidelog.client.fake_broker import Cluster, FakeBroker
from tests.unit.tidelog.client.transactions_world import World
from tidelog.client.base.exceptions import BadRequest, PartitionRetired, StalePartitioning, TransactionAborted
from tidelog.client.producer import upkeep
from tidelog.client.producer.partitioner import murmur2
from wire.batch import RecordBatch
from wire.errors import Code


def keys_of(broker: FakeBroker, partition: int) -> dict[bytes, list[bytes]]:
    """Values of a partition of `three`, by key."""
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for _, data in broker.logs["three", partition].batches:
        batch = RecordBatch.decode(data)
        assert batch.keys is not None
        for key, value in zip(batch.keys, batch.values, strict=True):
            found[key or b""].append(value or b"")
    return found


KEYS = [b"k%d" % number for number in range(12)]


@pytest.mark.parametrize("partitions", [5, 2])
async def test_refused_records_go_on_by_the_new_layout_and_each_gets_its_receipt(
    cluster: Cluster, partitions: int
) -> None:
    """The producer hears of the layout by the refusal alone."""
    _, broker, client = cluster
    async with client.producer("three") as producer:
        for key in KEYS:
            await producer.send(b"0", key=key)
        broker.repartition("three", partitions)
        futures = [producer.send_nowait(b"%d" % number, key=key) for number in (1, 2) for key in KEYS]
        receipts = await asyncio.gather(*futures)
        later = [await producer.send(b"3", key=key) for key in KEYS]
        assert producer._buffer.used == 0
        assert not producer._has_older
    assert [receipt.partition for receipt in receipts] == [crc32c(key) % partitions for key in KEYS] * 2
    assert [receipt.partition for receipt in later] == [crc32c(key) % partitions for key in KEYS]
    for key in KEYS:
        old, new = crc32c(key) % 3, crc32c(key) % partitions
        if old == new:
            assert keys_of(broker, new)[key] == [b"0", b"1", b"2", b"3"]
        else:
            assert keys_of(broker, old)[key] == [b"0"]
            assert keys_of(broker, new)[key] == [b"1", b"2", b"3"]


async def test_a_batch_that_was_stored_and_not_answered_keeps_its_place_in_the_old_partition(cluster: Cluster) -> None:
    _, broker, client = cluster
    key = next(key for key in KEYS if crc32c(key) % 3 != crc32c(key) % 5)
    async with client.producer("three") as producer:
        broker.mute = 1
        first = producer.send_nowait(b"0", key=key)
        await delivered()
        broker.repartition("three", 5)
        producer._adopt(await client.metadata("three"))
        second = producer.send_nowait(b"1", key=key)
        await delivered()
        assert not keys_of(broker, crc32c(key) % 5)
        producer._on_connection_change(True)  # everything without an answer is sent again
        receipts = await asyncio.gather(first, second)
    assert [receipt.partition for receipt in receipts] == [crc32c(key) % 3, crc32c(key) % 5]
    assert keys_of(broker, crc32c(key) % 3)[key] == [b"0"]
    assert keys_of(broker, crc32c(key) % 5)[key] == [b"1"]


async def test_a_run_ends_in_receipts_of_several_partitions(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        broker.repartition("three", 7)
        keys = [b"k%d" % number for number in range(100)]
        receipts = await producer.send_many([b"v%d" % number for number in range(100)], keys=keys)
        assert producer._buffer.used == 0
    assert sorted(at for receipt in receipts for at in receipt.indices) == [*range(100)]
    for receipt in receipts:
        log = broker.logs["three", receipt.partition].values()
        for place, at in enumerate(receipt.indices):
            assert crc32c(keys[at]) % 7 == receipt.partition
            assert log[receipt.base_offset + place] == b"v%d" % at


async def test_records_without_a_key_go_on_too(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        broker.repartition("three", 4)
        futures = [producer.send_nowait(b"%d" % number) for number in range(5)]
        await producer.flush()
        assert all(future.done() for future in futures)
        (receipt,) = await producer.send_many([b"x", b"y"])
        assert len(receipt.indices) == 2
    assert sum(len(broker.logs["three", partition].values()) for partition in range(4)) == 7


async def test_a_chosen_partition_is_kept_or_refused(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        broker.repartition("three", 2)
        kept = producer.send_nowait(b"a", partition=1, key=b"k")
        lost = producer.send_nowait(b"b", partition=2)
        many = asyncio.ensure_future(producer.send_many([b"c", b"d"], partition=2))
        assert producer.partition_count == 3
        assert (await kept).partition == 1
        assert producer.partition_count == 2
        for failing in (lost, many):
            with pytest.raises(PartitionRetired, match="partition 2 of stream 'three' takes no records") as caught:
                await failing
            assert caught.value.code is Code.PARTITION_RETIRED
            assert caught.value.details["outcome"] == "not_written"
        with pytest.raises(PartitionRetired, match="takes no records since the stream has 2 partitions"):
            await producer.send(b"e", partition=2)
        with pytest.raises(BadRequest, match="it has 0, 1"):
            await producer.send(b"f", partition=3)
    assert broker.logs["three", 2].end == 0
    broker.streams["three"]["partitions"].pop()  # retention has removed it
    async with client.producer("three") as producer:
        with pytest.raises(PartitionRetired, match="partition 2 of stream 'three' takes no records"):
            await producer.send(b"g", partition=2)
        with pytest.raises(BadRequest, match="it has 0, 1"):
            await producer.send(b"h", partition=3)


async def test_a_record_that_expects_an_offset_is_not_written_elsewhere(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        await producer.send(b"a", partition=0)
        broker.repartition("three", 4)
        with pytest.raises(StalePartitioning, match="expected_offset=1 could be written") as caught:
            await producer.send(b"b", partition=0, expected_offset=1)
        assert caught.value.code is Code.STALE_PARTITIONING
        assert caught.value.details["outcome"] == "not_written"
        assert (await producer.send(b"c", partition=0, expected_offset=1)).offset == 1


async def test_close_waits_for_records_that_move(cluster: Cluster) -> None:
    _, broker, client = cluster
    producer = client.producer("three", linger_ms=60_000)
    await producer.start()
    futures = [producer.send_nowait(b"%d" % number, key=key) for number, key in enumerate(KEYS)]
    broker.repartition("three", 5)
    async with asyncio.timeout(20):
        await producer.close()
    assert [future.result().partition for future in futures] == [crc32c(key) % 5 for key in KEYS]


async def test_a_call_that_waits_for_room_while_the_layout_changes_goes_by_the_new_one(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three", buffer_bytes=3000, batch_bytes=1000) as producer:
        keys = [b"k%d" % number for number in range(300)]
        sending = asyncio.ensure_future(producer.send_many([b"v" * 50] * 300, keys=keys))
        await asyncio.sleep(0)
        broker.repartition("three", 5)
        receipts = await sending
        assert producer._buffer.used == 0
    assert sorted(at for receipt in receipts for at in receipt.indices) == [*range(300)]


async def test_a_producer_that_hears_no_refusals_asks_now_and_then(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UNHEARD_CHECK", 0.0)
    _, broker, client = cluster
    async with client.producer("three", acks="none") as producer:
        await producer.send(b"0", key=b"k")
        broker.repartition("three", 5)
        await producer.send(b"is lost, and makes it ask", key=b"k")
        await delivered()
        await producer.send(b"1", key=b"k")
    assert keys_of(broker, crc32c(b"k") % 5)[b"k"] == [b"1"]


async def test_layouts_that_nobody_stored_anything_under_are_left_again(cluster: Cluster) -> None:
    """Somebody invented one."""
    _, broker, client = cluster
    async with client.producer("three") as producer:
        await producer.send(b"0", key=b"k")
        broker.repartition("three", 2)
        invented = await client.metadata("three")
        stream = broker.streams["three"]
        stream["partitioning_version"], stream["layouts"] = 1, stream["layouts"][:1]
        stream["partitions"][2]["state"] = "active"
        producer._adopt(invented)
        assert producer._routes.newest.version == 2
        await producer.send(b"1", key=b"k")
        assert producer._routes.newest.version == 1
    assert keys_of(broker, crc32c(b"k") % 3)[b"k"] == [b"0", b"1"]


async def test_a_repartition_waits_for_a_transaction_that_is_open_and_for_no_other(world: World) -> None:
    async with world.producer() as producer:
        client = world.client

        async def told() -> bool:
            now = await client._metadata.refresh("three")
            return client._metadata.updates.applied() == {"three": now.routing_generation}

        await producer.begin()
        await producer.send("three", b"a", key=b"k")
        world.broker.repartition("three", 5)
        assert not await told()
        await producer.abort()
        assert await told()


async def test_a_transaction_goes_by_the_partitioner_of_the_stream(world: World) -> None:
    world.broker.create("kafka", 6, partitioner="murmur2")
    async with world.producer() as producer, producer.transaction():
        receipts = [await producer.send("kafka", b"a", key=key) for key in KEYS]
    assert [receipt.partition for receipt in receipts] == [murmur2(key) % 6 for key in KEYS]


async def test_a_transaction_that_is_open_is_to_begin_again(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        await producer.send("three", b"a", key=b"k")
        world.broker.repartition("three", 5)
        with pytest.raises(StalePartitioning, match="begin the transaction again"):
            await producer.send("three", b"b", key=b"k")
        with pytest.raises(TransactionAborted, match="repartitioned"):
            await producer.commit()
        async with producer.transaction():
            receipt = await producer.send("three", b"c", key=b"k")
        assert receipt.partition == crc32c(b"k") % 5
    assert world.readable("three", crc32c(b"k") % 5) == [b"c"]


async def test_a_transaction_whose_records_were_written_before_is_committed(world: World) -> None:
    async with world.producer() as producer:
        async with producer.transaction():
            receipt = await producer.send("three", b"a", key=b"k")
            world.broker.repartition("three", 5)
        assert world.readable("three", receipt.partition) == [b"a"]


async def test_a_producer_that_closes_during_the_cutover_finishes_by_the_new_layout(cluster: Cluster) -> None:
    """It hears of the layout while a batch of the old one has no answer."""
    _, broker, client = cluster
    key = next(key for key in KEYS if crc32c(key) % 3 != crc32c(key) % 5)
    producer = client.producer("three")
    await producer.start()
    broker.mute = 1
    first = producer.send_nowait(b"0", key=key)
    await delivered()
    second = producer.send_nowait(b"1", key=key)
    closing = asyncio.create_task(producer.close())
    broker.repartition("three", 5)
    await delivered()
    assert producer._has_older
    producer._on_connection_change(True)  # everything without an answer is sent again
    async with asyncio.timeout(20):
        await closing
    assert [(await future).partition for future in (first, second)] == [crc32c(key) % 3, crc32c(key) % 5]
