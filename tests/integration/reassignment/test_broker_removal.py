"""A broker leaves a cluster for good under acked load, and comes back: processes, real disks, kill -9. Nothing
acknowledged may be missing or twice, and no alert stands because of the broker that is gone."""

# Rules: R86, R92.

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
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

            internal = [each["name"] for each in await client.streams(internal=True) if each["name"] != STREAM]
            for name in (STREAM, *internal):
                await leave(client, name, last, three)
            await until(lambda: nothing_moves(client), "the end of all moves")
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


async def leave(client: tidelog.Client, stream: str, broker: str, others: list[str]) -> None:
    """All partitions of the stream get replicas on other brokers in place of that one."""
    found = await client.describe(stream)
    targets = {}
    for part in found["partitions"]:
        staying = [each for each in part["replicas"] if each != broker]
        if len(staying) < len(part["replicas"]):
            targets[part["partition"]] = [*staying, *(each for each in others if each not in staying)][
                : len(part["replicas"])
            ]
    if targets:
        await client.reassign(stream, targets)


async def is_dead(client: tidelog.Client, broker: str) -> bool:
    return any(each["id"] == broker and each["state"] == "dead" for each in await client.brokers())


async def nothing_moves(client: tidelog.Client) -> bool:
    return (await client.moves())["total"] == 0
