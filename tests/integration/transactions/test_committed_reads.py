"""What readers of all kinds see beside transactions, on real brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import tidelog
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.transactions.told_transactions import until_told
from tidelog.server.devcluster import DevCluster


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as running:
        yield running


@pytest.fixture
async def producer(client: tidelog.Client) -> AsyncIterator[tidelog.TransactionalProducer]:
    async with client.producer(transactional_id="writer") as running:
        yield running


@pytest.mark.parametrize("read_from", ["leader", "follower"])
async def test_a_consumer_that_waits_behind_an_open_transaction_gets_it_with_its_commit(
    client: tidelog.Client, producer: tidelog.TransactionalProducer, read_from: str
) -> None:
    stream = f"waits-{read_from}"
    await client.create_stream(stream)
    async with client.producer(stream) as plain, client.consume(stream, read_from=read_from) as consumer:  # type: ignore[arg-type]
        await plain.send(b"before")
        first = await asyncio.wait_for(consumer.getone(), LIMIT)
        await producer.begin()
        await producer.send(stream, b"one")
        await plain.send(b"between")
        await producer.send(stream, b"two")
        waiting = asyncio.ensure_future(consumer.getone())
        await plain.send(b"behind")  # the HW moves on, and the consumer goes on waiting
        assert await client.offsets(stream, "latest") == {0: 1}
        assert await client.offsets(stream, "latest", read_uncommitted=True) == {0: 5}
        assert not waiting.done()
        await producer.commit()
        found = [first, await asyncio.wait_for(waiting, LIMIT)]
        found += [await asyncio.wait_for(consumer.getone(), LIMIT) for _ in range(3)]
    assert [record.value for record in found if record is not None] == [
        b"before",
        b"one",
        b"between",
        b"two",
        b"behind",
    ]


async def test_groups_copies_and_times_pass_over_what_was_aborted(
    client: tidelog.Client, producer: tidelog.TransactionalProducer
) -> None:
    await client.create_stream("mixed")
    now = time.time_ns()
    async with client.producer("mixed") as plain:
        for number, commits in enumerate([True, False, True, False]):
            await producer.begin()
            await producer.send("mixed", b"%d" % number, timestamp=tidelog.AtTime(now + number))
            await (producer.commit() if commits else producer.abort())
        await plain.send(b"plain", timestamp=tidelog.AtTime(now + 10))
    await until_told(client, "mixed")
    kept = [b"0", b"2", b"plain"]
    assert [await client.offsets("mixed", tidelog.AtTime(now + n)) for n in (0, 1, 3)] == [{0: 0}, {0: 4}, {0: 8}]
    async with client.subscribe("mixed", group="readers") as member:
        records = [await asyncio.wait_for(member.getone(), LIMIT) for _ in kept]
        assert [record.value for record in records if record is not None] == kept
        await member.commit()
    copied = await client.copy_stream("mixed", "copy")
    assert copied.records == 3
    assert [record.value async for record in client.consume("copy", stop="latest")] == kept
    (entry,) = (await client.describe_group("readers"))["offsets"]
    assert entry["offset"] == 9, "the end: nothing is left"


async def test_an_open_transaction_is_shown_where_it_holds_consumers_back(
    client: tidelog.Client, producer: tidelog.TransactionalProducer
) -> None:
    await client.create_stream("held")
    await producer.begin()
    await producer.send("held", b"x")

    async def shown(last_stable: int, high_watermark: int) -> bool:
        (partition,) = (await client.describe("held"))["partitions"]
        return (partition.get("last_stable_offset"), partition["high_watermark"]) == (last_stable, high_watermark)

    await until(lambda: shown(0, 0), "the open transaction")
    await producer.abort()
    await until(lambda: shown(2, 1), "its end")
