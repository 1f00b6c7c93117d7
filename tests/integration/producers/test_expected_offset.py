"""Records at an expected offset: writers that contend on real brokers, while leaders are killed and stand still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import tidelog
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster

WRITERS = 4
MORE = 100
"""Acknowledged records between two faults."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


class Writers:
    """Each writes a record at the end of the log as it knows it; of those that name the same offset one may win."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.refused: dict[bytes, tidelog.IncorrectOffset] = {}
        self.unknown: list[tidelog.DeliveryTimeout] = []
        self.is_over = False

    async def write(self, client: tidelog.Client, stream: str, name: int) -> None:
        end = number = 0
        async with client.producer(stream, delivery_timeout_ms=2000 * LIMIT) as producer:
            while not self.is_over:
                number += 1
                value = b"%d:%d:%d" % (end, name, number)
                try:
                    receipt = await producer.send(value, expected_offset=end)
                except tidelog.IncorrectOffset as refused:
                    self.refused[value] = refused
                    end = refused.next_offset or 0
                except tidelog.DeliveryTimeout as ended:
                    self.unknown.append(ended)
                    end = (await client.offsets(stream, "latest"))[0]
                else:
                    assert receipt.offset == end
                    assert end not in self.acknowledged, "two records have one offset"
                    self.acknowledged[end] = value
                    end += 1


async def test_each_record_has_the_offset_that_it_expected(cluster: ReplicatedCluster) -> None:
    await cluster.create("cas")
    writers = Writers()
    tasks = [asyncio.create_task(writers.write(cluster.client, "cas", name)) for name in range(WRITERS)]

    async def until_more() -> None:
        wanted = len(writers.acknowledged) + MORE
        await until(
            lambda: any(task.done() for task in tasks) or len(writers.acknowledged) >= wanted,
            f"{MORE} acknowledgements",
        )
        for task in tasks:
            assert not task.done(), task.result()

    for fault in ("kill", "stop", "kill"):
        await until_more()
        leader = await cluster.leader("cas", isr=2)
        if fault == "kill":
            cluster.kill(leader.broker)
            await until_more()
            cluster.start(leader.broker)
        else:
            cluster.stop(leader.broker)
            await until_more()
            cluster.wake(leader.broker)
    await until_more()
    writers.is_over = True
    await asyncio.gather(*tasks)
    await cluster.heal()
    await cluster.assert_identical("cas")
    stored = await cluster.committed("cas")
    for offset, value in enumerate(stored):
        assert value is not None
        assert value.startswith(b"%d:" % offset)
    assert {offset: stored[offset] for offset in writers.acknowledged} == writers.acknowledged
    assert writers.refused
    assert not writers.refused.keys() & {*stored}
    assert all(int(value.split(b":")[0]) != refused.next_offset for value, refused in writers.refused.items())
    assert all(ended.outcome_unknown for ended in writers.unknown)
    assert len(stored) <= len(writers.acknowledged) + len(writers.unknown)


async def test_a_reader_writes_only_if_nothing_came_in_between(cluster: ReplicatedCluster) -> None:
    await cluster.create("account")
    async with cluster.client.producer("account") as producer:
        await producer.send(b"100")
        async with cluster.client.consume("account") as consumer:
            record = await consumer.getone(LIMIT)
            assert record is not None
            await producer.send(b"70")
            with pytest.raises(tidelog.IncorrectOffset, match="gets offset 2, not the expected 1"):
                await producer.send(b"150", expected_offset=consumer.position(0))
            record = await consumer.getone(LIMIT)
            assert record is not None
            assert record.value == b"70"
            await producer.send(b"120", expected_offset=consumer.position(0))
    assert await cluster.committed("account") == [b"100", b"70", b"120"]
