"""Message ids of Tidelog's producer on real brokers: sent again by another call, another producer, after a failover."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pytest

import tidelog
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import until
from tidelog.client.base.records import BatchReceipt
from tidelog.server.devcluster import DevCluster

RECORDS = 400


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


async def values(client: tidelog.Client, stream: str) -> list[bytes | None]:
    return [record.value async for record in client.consume(stream, start="earliest", stop="latest")]


async def test_a_list_of_records_that_is_sent_again_is_written_once(cluster: ReplicatedCluster) -> None:
    await cluster.client.create_stream("lists", partitions=3, replication_factor=3)
    values = [b"%d" % number for number in range(9000)]
    ids = [None if number % 100 == 0 else f"id-{number}" for number in range(9000)]
    offsets: list[dict[int, tuple[int, int]]] = []
    receipts: list[BatchReceipt] = []
    async with cluster.client.producer("lists") as producer:
        for _ in range(2):
            receipts = await producer.send_many(values, keys=values, msg_ids=ids)
            offsets.append({})
            for receipt in receipts:
                own = {index: receipt.base_offset + at for at, index in enumerate(receipt.indices)}
                for index, offset in {**own, **receipt.duplicates}.items():
                    offsets[-1][index] = receipt.partition, offset
    assert sum(len(receipt.duplicates) for receipt in receipts) == 9000 - 90
    for number in range(9000):
        assert (offsets[0][number] == offsets[1][number]) == (number % 100 != 0)
    records = [record async for record in cluster.client.consume("lists", start="earliest", stop="latest")]
    assert len(records) == 9000 + 90
    assert {(r.partition, r.offset): r.value for r in records} == {
        at: values[index] for found in offsets for index, at in found.items()
    }


@pytest.mark.parametrize("durability", ["durable", "accepted"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_a_batch_keeps_the_records_that_are_new(
    cluster: ReplicatedCluster, durability: str, compression: Literal["none", "zstd"]
) -> None:
    name = f"mixed-{compression}-{durability}"
    await cluster.create(name, durability=durability)
    async with cluster.client.producer(name, compression=compression) as producer:
        first = await producer.send(b"a", msg_id="1")
        assert (first.offset, first.duplicate) == (0, False)
        futures = [producer.send_nowait(b"%d" % number, msg_id=str(number % 5)) for number in range(10)]
        futures.append(producer.send_nowait(b"no id", headers={"h": b"v"}))
        receipts = await asyncio.gather(*futures)
        again = await producer.send(b"b", msg_id=b"4", headers={"h": b"v"})
    duplicates = [(receipt.duplicate, receipt.offset) for receipt in receipts]
    assert duplicates[:5] == [(False, 1), (True, 0), (False, 3), (False, 4), (False, 5)]
    assert duplicates[5:] == [(True, 1), (True, 0), (True, 3), (True, 4), (True, 5), (False, 11)]
    assert (again.offset, again.duplicate) == (5, True)
    records = [record async for record in cluster.client.consume(name, start="earliest", stop="latest")]
    assert [(r.offset, r.value) for r in records] == [
        (0, b"a"),
        (1, b"0"),
        (3, b"2"),
        (4, b"3"),
        (5, b"4"),
        (11, b"no id"),
    ]
    assert records[0].headers == {"Nats-Msg-Id": b"1"}


async def test_a_window_that_is_over_or_off_lets_records_in_again(cluster: ReplicatedCluster) -> None:
    await cluster.create("short", dedup_window_ms=6000)
    await cluster.create("off", dedup_window_ms=0)
    async with cluster.client.producer("short") as short, cluster.client.producer("off") as off:
        assert not (await off.send(b"v", msg_id="1")).duplicate
        assert not (await off.send(b"v", msg_id="1")).duplicate
        assert not (await short.send(b"v", msg_id="1")).duplicate
        assert (await short.send(b"v", msg_id="1")).duplicate

        async def over() -> bool:
            return not (await short.send(b"v", msg_id="1")).duplicate

        await until(over, "the end of the window")
        assert await values(cluster.client, "short") == [b"v", b"v"]


async def test_writers_that_send_everything_twice_while_leaders_are_killed(cluster: ReplicatedCluster) -> None:
    """Two producers send the same records; each gets the receipt of the one that is stored, and each is stored once."""
    await cluster.create("twice", dedup_window_ms=600_000)
    receipts: list[dict[int, int]] = [{}, {}]

    async def write(which: int) -> None:
        async with cluster.client.producer("twice", delivery_timeout_ms=60_000) as producer:
            for number in range(RECORDS):
                receipts[which][number] = (await producer.send(b"%d" % number, msg_id=f"{number}")).offset

    writers = [asyncio.create_task(write(which)) for which in range(2)]
    for share in (0.2, 0.5, 0.8):
        await until(lambda: len(receipts[0]) > share * RECORDS, "progress")  # noqa: B023 - awaited here
        leader = await cluster.leader("twice")
        cluster.kill(leader.broker)
        await until(lambda: len(receipts[0]) > (share + 0.1) * RECORDS, "progress without it")  # noqa: B023
        await cluster.heal()
    await asyncio.gather(*writers)
    assert receipts[0] == receipts[1]
    stored = Counter(await values(cluster.client, "twice"))
    assert stored == Counter({b"%d" % number: 1 for number in range(RECORDS)})
