"""Replicas are spread anew, and their number changes, under acked load: four processes, real disks, kill -9. Nothing
acknowledged may be missing or twice."""

# Rules: R84, R91.

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, nothing_moves, wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM = "load"
PARTITIONS = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=4, settings={"metadata": {"moves_per_broker": 2}}) as running:
        yield running


@pytest.mark.timeout(900)
async def test_an_empty_broker_gets_its_share_while_the_controller_is_killed(cluster: DevCluster) -> None:
    *three, last = cluster.broker_ids
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=3)
        await client.reassign(STREAM, {number: [*three[number % 3 :], *three[: number % 3]] for number in range(8)})
        await until(lambda: nothing_moves(client), "partitions on the first three brokers")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        async with acked_load(url, STREAM, partitions=PARTITIONS) as ledger:
            await until(lambda: len(ledger.acked) > 2000, "records before the rebalance")
            plan = await client.rebalance(dry_run=True)
            of_stream = [move for move in plan["plan"] if move["stream"] == STREAM]
            assert sum(last in move["added"] for move in of_stream) == PARTITIONS * 3 // 4
            assert plan["bytes_to_copy"] > 0
            assert plan["begun"] == 0
            assert await nothing_moves(client)

            begun = await client.rebalance()
            assert begun["begun"] == begun["partitions"] == plan["partitions"]
            controller = (await client.cluster_status())["controller"]
            assert controller is not None
            cluster.kill(controller)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the controller")
            cluster.start_broker(controller)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)
            await until(lambda: nothing_moves(client), "the end of all moves")
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes to the new replicas")
        description = await wait_in_sync(url, STREAM, timeout=LIMIT)
        assert spread(description, cluster) == 0
        again = await client.rebalance(dry_run=True)
        assert again["partitions"] == 0
    findings = await assert_nothing_lost(url, ledger, cluster.data_dirs)
    assert findings.acknowledged > 2000


@pytest.mark.timeout(900)
async def test_the_replication_factor_grows_and_shrinks_while_records_come(cluster: DevCluster) -> None:
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=2)
        async with acked_load(url, STREAM, partitions=PARTITIONS) as ledger:
            await until(lambda: len(ledger.acked) > 1000, "records before the factor grows")
            asked = await client.alter_replication_factor(STREAM, 3, dry_run=True)
            assert (asked["min_isr"], asked["min_isr_then"]) == (1, 2)
            assert asked["plan"]["copies"] == PARTITIONS
            assert (await client.describe(STREAM))["replication_factor"] == 2
            begun = await client.alter_replication_factor(STREAM, 3)
            assert begun["plan"]["begun"] == PARTITIONS
            controller = (await client.cluster_status())["controller"]
            assert controller is not None
            cluster.kill(controller)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the controller")
            cluster.start_broker(controller)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)
            await until(lambda: nothing_moves(client), "three replicas of each partition")
            grown = await client.describe(STREAM)
            assert all(len(part["replicas"]) == 3 for part in grown["partitions"])
            assert grown["config"]["min_isr"] == "2"
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes to three replicas")

            with pytest.raises(tidelog.BadReplicationFactor, match="above the number of live brokers"):
                await client.alter_replication_factor(STREAM, 5)
            await client.alter_replication_factor(STREAM, 1)
            await until(lambda: nothing_moves(client), "one replica of each partition")
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes to one replica")
            await client.alter_replication_factor(STREAM, 2)
            await until(lambda: nothing_moves(client), "two replicas of each partition")
        description = await wait_in_sync(url, STREAM, timeout=LIMIT)
        assert all(len(part["replicas"]) == 2 for part in description["partitions"])
        assert description["config"]["min_isr"] == "1"
    findings = await assert_nothing_lost(url, ledger, cluster.data_dirs)
    assert findings.acknowledged > 1000


def spread(description: Mapping[str, Any], cluster: DevCluster) -> int:
    held = Counter(broker for part in description["partitions"] for broker in part["replicas"])
    counts = [held[broker] for broker in cluster.broker_ids]
    return max(counts) - min(counts)
