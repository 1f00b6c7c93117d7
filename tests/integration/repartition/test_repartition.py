"""A stream goes to more partitions and to fewer while it is written to, by producers with keys and by plain requests,
and while leaders are killed."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, ReplicatedCluster, observed
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM = "orders"
KEYS = [b"key %d" % number for number in range(24)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    metadata = {**SETTINGS["metadata"], "repartition_adoption_timeout_s": 2}
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings={**SETTINGS, "metadata": metadata}) as running:
        yield running


class Writer:
    """Sends numbers in order under each key, until it is stopped."""

    def __init__(self, client: tidelog.Client) -> None:
        self._client = client
        self._is_over = False
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)
        """Values that were acknowledged, in order."""
        self.partitions: set[int] = set()
        """Of the receipts since it was last emptied."""

    async def run(self) -> None:
        async with self._client.producer(STREAM, delivery_timeout_ms=LIMIT * 1000) as producer:
            await asyncio.gather(*(self._write(producer, key) for key in KEYS))

    async def _write(self, producer: tidelog.Producer, key: bytes) -> None:
        while not self._is_over:
            value = b"%d" % len(self.sent[key])
            receipt = await producer.send(value, key=key)
            self.sent[key].append(value)
            self.partitions.add(receipt.partition)
            await asyncio.sleep(0.002)

    def stop(self) -> None:
        self._is_over = True


@asynccontextmanager
async def written(cluster: ReplicatedCluster) -> AsyncIterator[Writer]:
    await cluster.client.create_stream(STREAM, partitions=3, replication_factor=3)
    await wait_in_sync(cluster.url, STREAM, timeout=LIMIT)
    writer = Writer(cluster.client)
    writing = asyncio.create_task(writer.run())
    try:
        await until(lambda: len(writer.sent) == len(KEYS), "records of all keys")
        yield writer
    finally:
        writer.stop()
        await writing


async def repartitioned(cluster: ReplicatedCluster, partitions: int) -> None:
    """Until it is finished."""
    await cluster.client.repartition(STREAM, partitions)

    async def finished() -> bool:
        status = await cluster.client.repartition_status(STREAM)
        return status["repartition"] is None and status["partitions"] == partitions

    await until(finished, f"the end of the repartition to {partitions}")


async def asked(cluster: ReplicatedCluster, subject: str, value: bytes) -> int:
    """The partition that took a plain request. Nobody listens for a moment when partitions leave, or leaders change."""

    async def answered() -> dict[str, Any]:
        answer = await cluster.nats.request(subject, value, timeout=LIMIT)
        return {} if answer.status is not None else dict(json.loads(answer.data))

    receipt = await until(answered, f"a receipt from {subject}")
    assert "error" not in receipt, receipt
    return int(receipt["partition"])


async def assert_in_order(cluster: ReplicatedCluster, writer: Writer, plain: list[bytes]) -> None:
    """Every acknowledged record once, those of each key in the order of acknowledgement, and all plain ones."""
    read: dict[bytes | None, list[bytes]] = defaultdict(list)
    async for record in cluster.client.consume(STREAM, start="earliest", stop="latest", order="key"):
        read[record.key].append(record.value or b"")
    assert {key: read[key] for key in KEYS} == writer.sent
    assert sorted(read[None]) == sorted(plain)


async def test_a_stream_grows_and_shrinks_under_producers_and_plain_requests(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        plain: list[bytes] = []

        async def ask(subject: str) -> int:
            plain.append(f"{subject} {len(plain)}".encode())
            return await asked(cluster, subject, plain[-1])

        async with written(cluster) as writer:
            assert [await ask(subject) for subject in (STREAM, f"{STREAM}.1", f"{STREAM}.2")] == [0, 1, 2]
            await repartitioned(cluster, 6)
            writer.partitions.clear()
            assert [await ask(f"{STREAM}.{number}") for number in (1, 3, 5)] == [1, 3, 5]
            await until(lambda: writer.partitions == set(range(6)), "receipts from all six partitions")
            await repartitioned(cluster, 2)
            writer.partitions.clear()
            subjects = [STREAM, *(f"{STREAM}.{number}" for number in range(1, 6))]
            assert [await ask(subject) for subject in subjects] == [0, 1, 0, 1, 0, 1]
            await until(lambda: writer.partitions == {0, 1}, "receipts from both partitions")
            described = await cluster.client.describe(STREAM)
            assert [each["state"] for each in described["partitions"]] == ["active"] * 2 + ["retired"] * 4
            await repartitioned(cluster, 5)
            assert [await ask(f"{STREAM}.{number}") for number in (2, 4, 5)] == [2, 4, 0]
        await assert_in_order(cluster, writer, plain)


async def killed_while_repartitioned(
    cluster: ReplicatedCluster, number: int, partitions: int, *, wait_for_cutover: bool
) -> None:
    """The leader of a partition: before or after the cutover, perhaps before its report."""

    async def cut_over() -> bool:
        return (await cluster.client.repartition_status(STREAM))["partitions"] == partitions

    async def begun() -> bool:
        """It is decided by then: with a broker dead there would be too few for new partitions."""
        return (await cluster.client.repartition_status(STREAM))["repartition"] is not None or await cut_over()

    described = await cluster.client.describe(STREAM)
    leader = described["partitions"][number]["leader"]
    assert leader is not None
    moving = asyncio.create_task(repartitioned(cluster, partitions))
    await until(cut_over if wait_for_cutover else begun, "the cutover")
    cluster.kill(leader)
    await until(cut_over, "the cutover")
    cluster.start(leader)
    await cluster.until_alive(*cluster.brokers)
    await moving
    await wait_in_sync(cluster.url, STREAM, timeout=LIMIT)


async def test_leaders_are_killed_while_a_stream_is_repartitioned(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        async with written(cluster) as writer:
            for number, partitions, wait_for in ((0, 6, False), (1, 2, True), (0, 4, True)):
                await killed_while_repartitioned(cluster, number, partitions, wait_for_cutover=wait_for)
        await assert_in_order(cluster, writer, [])
