"""Records without a key: a batch's worth goes to one partition, the next to another, and all get their share."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster, FakeBroker


def counts(broker: FakeBroker) -> list[int]:
    """Records by partition of `three`."""
    return [len(broker.logs["three", partition].values()) for partition in range(3)]


async def test_what_is_given_in_one_go_shares_a_partition_and_the_next_goes_on(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        for given in (5, 7, 2):
            for _ in range(given):
                producer.send_nowait(b"v")
            await producer.flush()
    assert sorted(counts(broker)) == [2, 5, 7]
    assert len(broker.appends) == 3, "a batch each"


async def test_with_linger_records_of_many_turns_share_a_partition(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three", linger_ms=10_000) as producer:
        for _ in range(20):
            producer.send_nowait(b"v")
            await asyncio.sleep(0)
        await producer.flush()
        assert sorted(counts(broker)) == [0, 0, 20]


@pytest.mark.parametrize("way", ["send_nowait", "send_many"])
async def test_a_full_batch_ends_the_turn_of_its_partition(cluster: Cluster, way: str) -> None:
    _, broker, client = cluster
    async with client.producer("three", batch_bytes=1240, linger_ms=10_000) as producer:
        values = [b"v" * 100] * 90  # ten to a batch
        if way == "send_many":
            sending = asyncio.ensure_future(producer.send_many(values))
            await asyncio.sleep(0)
            await producer.flush()
            await sending
        else:
            for value in values:
                producer.send_nowait(value)
            await producer.flush()
    assert counts(broker) == [30, 30, 30]
    assert {header.record_count for _, header in broker.appends} == {10}


async def test_keys_and_explicit_partitions_go_where_they_belong_meanwhile(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("three", linger_ms=10_000) as producer:
        futures = [producer.send_nowait(b"v") for _ in range(5)]
        keyed = producer.send_nowait(b"v", key=b"k")
        chosen = producer.send_nowait(b"v", partition=2)
        futures += [producer.send_nowait(b"v") for _ in range(5)]
        await producer.flush()
    assert len({future.result().partition for future in futures}) == 1
    assert chosen.result().partition == 2
    async with client.producer("three") as other:
        assert (await other.send(b"v", key=b"k")).partition == keyed.result().partition
