"""A broker that returns catches up within the cluster's budget, while acknowledged writes go on (R89)."""

# Rules: R89.

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM = "load"
BACKLOG = 24 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=3) as running:
        yield running


async def counted(client: tidelog.Client, name: str) -> int:
    return sum((broker["counters"] or {}).get(name, 0) for broker in (await client.cluster_status())["brokers"])


async def test_a_broker_that_was_away_waits_for_the_budget_and_gets_into_the_isr_under_load(
    cluster: DevCluster,
) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        settings = {"network_capacity": "8MB", "replication_budget_fraction": "0.5"}
        assert (await client.alter_cluster(config=settings))["network_capacity"] == "8000000"
        await client.create_stream(STREAM, partitions=1, replication_factor=3)
        await client.create_stream("ballast", partitions=3, replication_factor=3)
        for stream in (STREAM, "ballast"):
            await wait_in_sync(cluster.nats_url, stream)
        controller = (await client.cluster_status())["controller"]
        away = next(broker for broker in cluster.broker_ids if broker != controller)
        await asyncio.to_thread(cluster.kill, away, signal.SIGTERM)
        async with client.producer("ballast", acks="all") as producer:
            for _ in range(BACKLOG // (256 << 10)):
                await asyncio.gather(*(producer.send(os.urandom(64 << 10)) for _ in range(4)))
        async with acked_load(cluster.nats_url, STREAM, bare=False) as ledger:
            cluster.start_broker(away)

            async def is_back() -> bool:
                described = [await client.describe(stream) for stream in (STREAM, "ballast")]
                return all(len(partition["isr"]) == 3 for each in described for partition in each["partitions"])

            await until(is_back, "its return into all ISRs", 4 * LIMIT)
        assert ledger.unknown == 0, "every write was acknowledged"
        assert await counted(client, "catch_up_waits") > 0
        assert await counted(client, "catch_up_bytes") > BACKLOG // 2
    await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)
