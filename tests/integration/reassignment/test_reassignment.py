"""Partitions get other replicas under acked load: four processes, real disks, kill -9. Nothing acknowledged may be
missing or twice, and the files of removed replicas go."""

# Rules: R84, R86.

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
PARTITIONS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    settings = {"metadata": {"moves_per_broker": 2}}
    with dev_cluster(tmp_path / "cluster", nodes=4, settings=settings) as running:
        yield running


def folders(cluster: DevCluster, broker: str) -> list[str]:
    return sorted(path.name for path in cluster.broker_dir(broker).glob(f"{STREAM}-*/*"))


@pytest.mark.timeout(900)
async def test_all_partitions_move_while_the_controller_and_a_source_are_killed(cluster: DevCluster) -> None:
    first, *others = cluster.broker_ids
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=3)
        before = dict.fromkeys(range(PARTITIONS), cluster.broker_ids[:3])
        await client.reassign(STREAM, before)
        await until(lambda: nothing_moves(client), "partitions on the first three brokers")
        await wait_in_sync(url, STREAM, timeout=LIMIT)
        async with acked_load(url, STREAM, partitions=PARTITIONS) as ledger:
            await until(lambda: len(ledger.acked) > 2000, "records before the move")
            after = {number: [*others[number % 3 :], *others[: number % 3]] for number in range(PARTITIONS)}
            plan = (await client.reassign(STREAM, after, dry_run=True))["plan"]
            assert [move["added"] for move in plan] == [[others[-1]]] * PARTITIONS
            assert [move["removed"] for move in plan] == [[first]] * PARTITIONS
            assert all(move["bytes_to_copy"] for move in plan)
            await client.reassign(STREAM, after)
            found = await client.moves(STREAM)
            assert found["total"] == len(found["moves"]) > 0

            controller = (await client.cluster_status())["controller"]
            assert controller is not None
            cluster.kill(controller)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the controller")
            cluster.start_broker(controller)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)

            leaders = {part["leader"] for part in (await client.describe(STREAM))["partitions"]}
            source = next(
                broker for broker in sorted(filter(None, leaders)) if broker != controller or len(leaders) == 1
            )
            cluster.kill(source)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes without the source")
            cluster.start_broker(source)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)

            await until(lambda: nothing_moves(client), "the end of all moves")
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 200, "writes to the new replicas")
        description = await wait_in_sync(url, STREAM, timeout=LIMIT)
        assert {part["partition"]: part["replicas"] for part in description["partitions"]} == after
        await until(lambda: not folders(cluster, first), "no files of the stream where it was removed")
        assert all(len(folders(cluster, broker)) == PARTITIONS for broker in others)
    findings = await assert_nothing_lost(url, ledger, cluster.data_dirs)
    assert findings.acknowledged > 2000


async def test_a_move_to_a_broker_that_dies_is_given_up_and_begun_again(cluster: DevCluster) -> None:
    *three, last = cluster.broker_ids
    url = cluster.nats_url
    async with await tidelog.connect(url, api_timeout=LIMIT) as client:
        await client.create_stream(STREAM, subject=STREAM, partitions=1, replication_factor=3)
        await client.reassign(STREAM, {0: three})
        await until(lambda: nothing_moves(client), "the partition on the first three brokers")
        async with acked_load(url, STREAM) as ledger:
            await until(lambda: len(ledger.acked) > 500, "records before the move")
            cluster.kill(last)
            with pytest.raises(tidelog.BadRequest, match=r"is not known|is not alive"):
                await client.reassign(STREAM, {0: [last, "nobody", three[0]]})
            cluster.start_broker(last)
            await asyncio.to_thread(cluster.wait_ready, LIMIT)
            await client.reassign(STREAM, {0: [last, *three[1:]]})
            await client.cancel_reassignment(STREAM)
            await until(lambda: nothing_moves(client), "the end of the cancelled move")
            (part,) = (await client.describe(STREAM))["partitions"]
            assert {*part["replicas"]} in ({*three}, {last, *three[1:]})
            await client.reassign(STREAM, {0: [last, *three[1:]]})
            await until(lambda: nothing_moves(client), "the end of the move")
        description = await wait_in_sync(url, STREAM, timeout=LIMIT)
        assert description["partitions"][0]["replicas"] == [last, *three[1:]]
        await until(lambda: not folders(cluster, three[0]), "no files of the stream where it was removed")
    await assert_nothing_lost(url, ledger, cluster.data_dirs)
