"""The cluster of docker-compose.yml, used from the host: the leader's container dies, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import pytest

import tidelog
from tests.docker.conftest import BROKERS, HEALTHY_WITHIN_S, ComposeCluster
from tests.integration.rig.waiting import until

# The first test waits for the broker image to be built, from nothing on a new machine.
pytestmark = pytest.mark.timeout(600)

RECORDS = 3_000
KEYS = 40
BACK_WITHIN_S = 60.0


def test_the_cluster_is_healthy_soon_after_up(compose_cluster: ComposeCluster) -> None:
    print(f"healthy {compose_cluster.healthy_after_s:.1f} s after up")
    assert compose_cluster.healthy_after_s < HEALTHY_WITHIN_S


async def test_acknowledged_records_are_read_back_after_the_leaders_container_is_killed(
    compose_cluster: ComposeCluster,
) -> None:
    acknowledged: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    """(partition, offset) -> key, value"""
    async with await tidelog.connect(compose_cluster.url) as client:
        created = await client.create_stream("orders", subject="orders", partitions=3, replication_factor=3)
        assert [sorted(partition["replicas"]) for partition in created["partitions"]] == [list(BROKERS)] * 3

        async with client.producer("orders", acks="all") as producer:

            async def publish(numbers: range) -> float:
                """Send one after the other, each acknowledged; returns the longest wait, seconds."""
                longest = 0.0
                for number in numbers:
                    key, value = f"key-{number % KEYS}".encode(), f"value-{number:06}".encode()
                    began = time.monotonic()
                    receipt = await producer.send(value, key=key)
                    longest = max(longest, time.monotonic() - began)
                    assert (receipt.partition, receipt.offset) not in acknowledged, f"{receipt} was given out twice"
                    acknowledged[receipt.partition, receipt.offset] = key, value
                return longest

            await publish(range(RECORDS // 2))
            leader = (await client.describe("orders"))["partitions"][0]["leader"]
            assert leader in BROKERS
            killing = asyncio.create_task(asyncio.to_thread(compose_cluster.kill, leader))
            longest_wait_s = await publish(range(RECORDS // 2, RECORDS))
            await killing
        print(f"{leader} killed; longest wait for an acknowledgement {longest_wait_s:.2f} s")
        assert compose_cluster.health(leader) == "exited"

        async def failed_over() -> bool:
            """The last records may have been acknowledged before the kill."""
            partition = (await client.describe("orders"))["partitions"][0]
            return partition["leader"] in set(BROKERS) - {leader} and leader not in partition["isr"]

        await until(failed_over, f"a leader and an ISR without {leader}")

        read: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
        per_key: dict[bytes | None, list[bytes | None]] = defaultdict(list)
        async for record in client.consume("orders", start="earliest", stop="latest"):
            assert (record.partition, record.offset) not in read, f"{record} was read twice"
            read[record.partition, record.offset] = record.key, record.value
            per_key[record.key].append(record.value)
        assert {position: read.get(position) for position in acknowledged} == acknowledged
        assert len(read) == RECORDS, "a record was stored twice, or one that nobody sent"
        assert len(per_key) == KEYS
        # Values grow with time, and one key stays in one partition.
        assert all(values == sorted(values, key=lambda value: value or b"") for values in per_key.values())

        await asyncio.to_thread(compose_cluster.start, leader)
        deadline = time.monotonic() + BACK_WITHIN_S
        while any(len(each["isr"]) < 3 for each in (await client.describe("orders"))["partitions"]):
            assert time.monotonic() < deadline, f"{leader} did not return to every ISR within {BACK_WITHIN_S:.0f} s"
            await asyncio.sleep(0.2)
