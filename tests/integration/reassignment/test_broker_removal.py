"""A broker is drained, or dies, and leaves a cluster for good under acked load: processes, real disks, kill -9. Nothing
acknowledged may be missing or twice, and no alert stands because of the broker that is gone."""

# Rules: R86, R92, R93.

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, nothing_moves, wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM = "load"
PARTITIONS = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=4) as running:
        yield running


@pytest.mark.timeout(900)
async def test_a_dead_broker_is_removed_and_comes_back_as_a_new_one(cluster: DevCluster) -> None:
    *three, last = cluster.broker_ids
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=3)
        before = {number: [last, *three[number % 3 :], *three[: number % 3]][:3] for number in range(PARTITIONS)}
        await client.reassign(STREAM, before)
        await until(lambda: nothing_moves(client), "partitions on the last broker")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        async with acked_load(url, STREAM, partitions=PARTITIONS) as ledger:
            await until(lambda: len(ledger.acked) > 1000, "records before the death")
            with pytest.raises(tidelog.BadRequest, match="is alive"):
                await client.remove_broker(last)
            cluster.kill(last)
            await until(lambda: is_dead(client, last), "the death")
            with pytest.raises(tidelog.BadRequest, match=f"It is a replica of .*{STREAM}/0, "):
                await client.remove_broker(last)
            assert last in {each["id"] for each in await client.brokers()}

            await client.drain_broker(last)
            await until(lambda: nothing_moves(client), "the end of all moves")
            await until(lambda: is_empty(client, last), "no replicas on it")
            await client.remove_broker(last)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the broker")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        status = await client.cluster_status()
        assert [each["id"] for each in status["brokers"]] == three
        assert all(each["alive"] for each in status["brokers"])
        assert (status["under_replicated"], status["offline_partitions"]) == (0, 0)

        cluster.start_broker(last)
        await asyncio.to_thread(cluster.wait_ready, LIMIT)
        assert [each["replicas"] for each in await client.brokers() if each["id"] == last] == [0]
        await until(
            lambda: not [*cluster.broker_dir(last).glob(f"{STREAM}-*/*")], "no files of what is not its any more"
        )
    findings = await assert_nothing_lost(url, ledger, cluster.data_dirs)
    assert findings.acknowledged > 1000


@pytest.mark.timeout(900)
async def test_a_broker_is_drained_while_the_controller_is_killed_and_removed(
    cluster: DevCluster,
) -> None:
    *three, last = cluster.broker_ids
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=2)
        both = {number: [last, three[number % 3]] for number in range(PARTITIONS)}
        await client.reassign(STREAM, both)
        await until(lambda: nothing_moves(client), "partitions on the last broker")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        async with acked_load(url, STREAM, partitions=PARTITIONS) as ledger:
            await until(lambda: len(ledger.acked) > 1000, "records before the drain")
            plan = (await client.drain_broker(last, dry_run=True))["plan"]
            assert {last} == {broker for move in plan["plan"] for broker in move["removed"]}
            assert plan["bytes_to_copy"] > 0
            assert (await client.drain_broker(last))["draining"]
            controller = (await client.cluster_status())["controller"]
            assert controller is not None
            cluster.kill(controller)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the controller")
            cluster.start_broker(controller)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)
            await until(lambda: is_empty(client, last), "no replicas on it")
            await client.create_stream("later", partitions=2, replication_factor=3)
            assert await is_empty(client, last)
            await until(lambda: nothing_moves(client), "the end of all moves")
            await until(lambda: not folders(cluster, last), "no files of what was given away")
            cluster.kill(last)
            await until(lambda: is_dead(client, last), "the death")
            await client.remove_broker(last)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the broker")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        status = await client.cluster_status()
        assert [each["id"] for each in status["brokers"]] == three
        assert (status["under_replicated"], status["offline_partitions"]) == (0, 0)
    findings = await assert_nothing_lost(url, ledger, cluster.data_dirs)
    assert findings.acknowledged > 1000


def folders(cluster: DevCluster, broker: str) -> list[Path]:
    return [*cluster.broker_dir(broker).glob(f"{STREAM}-*/*")]


async def is_empty(client: tidelog.Client, broker: str) -> bool:
    return [each["replicas"] for each in await client.brokers() if each["id"] == broker] == [0]


async def is_dead(client: tidelog.Client, broker: str) -> bool:
    return any(each["id"] == broker and each["state"] == "dead" for each in await client.brokers())
