"""Brokers that are told to stop hand their leaderships over first: a rolling restart costs no write (R88)."""

# Rules: R88.

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost, wait_in_sync
from tidelog.server.devcluster import DevCluster

PARTITIONS = 12
STREAM = "load"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=3) as running:
        yield running


async def leaders(client: tidelog.Client) -> set[str | None]:
    return {partition["leader"] for partition in (await client.describe(STREAM))["partitions"]}


async def acknowledged(ledger: Ledger, more: int) -> None:
    wanted = len(ledger.acked) + more
    await until(lambda: len(ledger.acked) >= wanted, f"{more} acknowledgements")


async def may_stop(cluster: DevCluster, broker: str) -> bool:
    status, _, _ = await asyncio.to_thread(command, cluster, "cluster", "restart-order", broker)
    return status == 0


async def are_in_step(client: tidelog.Client) -> bool:
    found = (await client.replicas(stream=STREAM))["replicas"]
    return all((replica["lag_records"], replica["lag_bytes"], replica["lag_s"]) == (0, 0, 0.0) for replica in found)


async def is_replicated(client: tidelog.Client) -> bool:
    return all(len(partition["isr"]) == 3 for partition in (await client.describe(STREAM))["partitions"])


async def test_a_rolling_restart_by_sigterm_fails_no_write_and_loses_nothing(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=PARTITIONS, replication_factor=3)
        await wait_in_sync(cluster.nats_url, STREAM)
        async with acked_load(cluster.nats_url, STREAM, bare=False, partitions=PARTITIONS) as ledger:
            for broker in [verdict["broker"] for verdict in await client.restart_order()]:
                await until(partial(may_stop, cluster, broker), f"that {broker} may be stopped")
                await acknowledged(ledger, 1000)
                await asyncio.to_thread(cluster.kill, broker, signal.SIGTERM)
                assert cluster.exit_status(broker) == 0
                assert broker not in await leaders(client)
                told = cluster.log_file(broker).read_text()
                assert f"broker {broker} has handed its leaderships over" in told
                assert f"{broker} stops though it leads" not in told
                await acknowledged(ledger, 1000)
                replicas = (await client.replicas(stream=STREAM, broker=broker))["replicas"]
                assert {replica["state"] for replica in replicas} == {"offline"}
                others = {verdict["broker"]: verdict for verdict in await client.restart_order()}
                assert not any(verdict["may_restart"] for verdict in others.values())
                cluster.start_broker(broker)
                await until(lambda: is_replicated(client), "the ISRs")
        assert ledger.unknown == 0, "every write was acknowledged"
        await until(lambda: are_in_step(client), "that all replicas have everything")
        status, out, err = await asyncio.to_thread(command, cluster, "replica", "list", "--stream", STREAM, "--json")
        assert (status, err) == (0, "")
        replicas = json.loads(out)["replicas"]
        assert sum(replica["state"] == "leading" for replica in replicas) == PARTITIONS
        assert sum(replica["state"] == "in sync" for replica in replicas) == 2 * PARTITIONS
    await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)


async def test_a_second_signal_stops_a_broker_that_waits_for_a_successor(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=PARTITIONS, replication_factor=3)
        await wait_in_sync(cluster.nats_url, STREAM)
        controller = (await client.cluster_status())["controller"]
        broker = next(each for each in cluster.broker_ids if each != controller)
        others = [each for each in cluster.broker_ids if each != broker]
        stopped = [cluster.pid(each) for each in others]
        pid = cluster.pid(broker)
        assert pid is not None
        for each in stopped:
            assert each is not None
            os.kill(each, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGTERM)
            log = cluster.log_file(broker)
            await until(lambda: "leaderships over before it stops" in log.read_text(), "that it hands over")
            os.kill(pid, signal.SIGTERM)
            await until(lambda: cluster.exit_status(broker) == 0, "its end")
        finally:
            for each in stopped:
                assert each is not None
                os.kill(each, signal.SIGCONT)
        assert f"broker {broker} has handed its leaderships over" not in log.read_text()


async def test_partitions_that_nobody_can_take_over_are_named_and_not_waited_for(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("single", partitions=3, replication_factor=1)
        described = (await client.describe("single"))["partitions"]
        broker = next(partition["leader"] for partition in described if partition["leader"] is not None)
        await asyncio.to_thread(cluster.kill, broker, signal.SIGTERM)
        assert cluster.exit_status(broker) == 0
        told = cluster.log_file(broker).read_text()
        number = next(partition["partition"] for partition in described if partition["leader"] == broker)
        assert f"nobody leads these partitions of one replica until {broker} is back" in told
        assert f"single/{number}" in told
        cluster.start_broker(broker)
        await until(lambda: cluster.is_ready(broker), "its return", 2 * LIMIT)
