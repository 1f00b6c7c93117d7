"""Leaders chosen by an operator: planned moves lose nothing, unclean elections lose the announced records and nothing
else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tidelog
from spark_connector.reads.read_options import SourceOptions
from spark_connector.reads.stream_reader import TidelogStreamReader
from spark_connector.shared.arrow_rows import spark_schema
from spark_connector.source import open_client_log
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost, wait_in_sync
from tidelog.server.devcluster import DevCluster

BROKERS = 3
STREAM = "load"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", nodes=BROKERS) as running:
        yield running


async def partition_of(client: tidelog.Client) -> Any:
    return (await client.describe(STREAM))["partitions"][0]


async def acked(ledger: Ledger, more: int) -> None:
    """Returns when so many more records are acknowledged."""
    wanted = len(ledger.acked) + more
    await until(lambda: len(ledger.acked) >= wanted, f"{more} acknowledgements")


async def test_moves_under_load_lose_nothing_and_the_old_leader_stays_in_sync(cluster: DevCluster) -> None:
    gaps = []
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=1, replication_factor=BROKERS)
        await wait_in_sync(cluster.nats_url, STREAM)
        async with acked_load(cluster.nats_url, STREAM) as ledger:
            for _ in range(6):
                await acked(ledger, 500)
                old = await partition_of(client)
                target = next(broker for broker in old["isr"] if broker != old["leader"])
                began = time.monotonic()
                moved = await client.move_leader(STREAM, 0, target)
                await acked(ledger, 200)
                gap = ledger.gap_after(0, began)
                assert gap is not None
                gaps.append(gap)
                assert (moved["leader"], moved["leader_epoch"]) == (target, old["leader_epoch"] + 1)
                assert sorted(moved["isr"]) == sorted(old["isr"]), "the old leader stays in the ISR"
    print(f"\nplanned moves: no acknowledged write for {[round(gap * 1e3) for gap in gaps]} ms")
    await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)


async def test_a_move_that_cannot_be_is_refused_in_a_sentence(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=1, replication_factor=BROKERS)
        await wait_in_sync(cluster.nats_url, STREAM)
        old = await partition_of(client)
        leader = old["leader"]
        target = next(broker for broker in old["isr"] if broker != leader)
        for arguments, says in (
            (("nosuch", "0", target), "'nosuch' does not exist"),
            ((STREAM, "7", target), "has partitions 0, not 7"),
            ((STREAM, "0", "b9"), "b9 holds no replica"),
            ((STREAM, "0", leader), f"{leader} leads {STREAM}/0 already"),
        ):
            status, out, err = command(cluster, "partition", "move-leader", *arguments)
            assert (status, out) == (1, "")
            assert says in err
        status, out, err = command(cluster, "partition", "move-leader", STREAM, "0", target, "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["leader"] == target


async def test_a_move_to_a_broker_that_stands_still_leaves_the_old_leader_going(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=1, replication_factor=BROKERS)
        await wait_in_sync(cluster.nats_url, STREAM)
        controller = (await client.cluster_status())["controller"]
        old = await partition_of(client)
        target = next(broker for broker in old["isr"] if broker not in (old["leader"], controller))
        process = cluster.pid(target)
        assert process is not None
        async with client.producer(STREAM, delivery_timeout_ms=2000 * LIMIT) as producer:
            os.kill(process, signal.SIGSTOP)
            try:
                sending = asyncio.ensure_future(producer.send(b"while it stands still"))

                async def appended() -> bool:
                    return bool((await partition_of(client))["log_end_offset"] == 1)

                await until(appended, "the append")
                # It is declared dead in about the time that the leader waits for it.
                with pytest.raises(tidelog.LeaderNotMoved, match=r"did not get to its end|is not in its ISR"):
                    await client.move_leader(STREAM, 0, target)
                assert (await asyncio.wait_for(sending, 2 * LIMIT)).offset == 0
                assert (await asyncio.wait_for(producer.send(b"goes on"), 2 * LIMIT)).offset == 1
            finally:
                os.kill(process, signal.SIGCONT)
        after = await partition_of(client)
        assert (after["leader"], after["leader_epoch"]) == (old["leader"], old["leader_epoch"])
        await wait_in_sync(cluster.nats_url, STREAM)
        assert (await client.move_leader(STREAM, 0, target))["leader"] == target, "nothing of the first one is left"


@pytest.mark.parametrize("victim", ["leader", "target", "controller"])
async def test_a_kill_in_the_middle_of_moves_loses_nothing(cluster: DevCluster, victim: str) -> None:
    """Moves go to and fro under load while one of the brokers in it is killed; the cluster ends where it should."""
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=1, replication_factor=BROKERS)
        await wait_in_sync(cluster.nats_url, STREAM)
        async with acked_load(cluster.nats_url, STREAM) as ledger:
            await acked(ledger, 500)
            old = await partition_of(client)
            controller = (await client.cluster_status())["controller"]
            target = next(broker for broker in old["isr"] if broker not in (old["leader"], controller))
            killed = {"leader": old["leader"], "target": target, "controller": controller}[victim]
            moving = asyncio.ensure_future(client.move_leader(STREAM, 0, target))
            await asyncio.sleep(0.004)
            cluster.kill(killed)
            outcome = (await asyncio.gather(moving, return_exceptions=True))[0]
            print(f"\n{victim} killed in a move: {outcome}")
            assert isinstance(outcome, dict | tidelog.TidelogError)

            async def another_leads() -> bool:
                return (await partition_of(client))["leader"] not in (None, killed)

            await until(another_leads, "another leader")
            await acked(ledger, 200)
            cluster.start_broker(killed)
            await until(lambda: _in_sync(client), "the return")
            found = await partition_of(client)
            last = next(broker for broker in found["isr"] if broker != found["leader"])
            assert (await client.move_leader(STREAM, 0, last))["leader"] == last
    await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)


def streaming_query(cluster: DevCluster) -> TidelogStreamReader:
    """As Spark's driver has it."""
    options = SourceOptions.parse({"servers": cluster.nats_url, "subscribe": STREAM, "startingOffsets": "earliest"})
    return TidelogStreamReader(options.for_stream(), spark_schema(include_headers=False), open_client_log)


async def _in_sync(client: tidelog.Client) -> bool:
    return len((await partition_of(client))["isr"]) == BROKERS


async def test_an_unclean_election_gives_up_the_records_that_it_announced(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(STREAM, partitions=1, replication_factor=2, config={"min_isr": 1})
        await wait_in_sync(cluster.nats_url, STREAM)
        first = await partition_of(client)
        leader = first["leader"]
        behind = next(broker for broker in first["replicas"] if broker != leader)
        async with client.producer(STREAM) as producer:
            for number in range(10):
                await producer.send(b"both %d" % number)
            await wait_in_sync(cluster.nats_url, STREAM)
            cluster.kill(behind)

            async def alone() -> bool:
                return bool((await partition_of(client))["isr"] == [leader])

            await until(alone, "the shrink of the ISR")
            for number in range(10, 25):
                await producer.send(b"one %d" % number)
        consumer = client.consume(STREAM, start="earliest")
        reader = aiter(consumer)
        seen = [(await anext(reader)).offset for _ in range(25)]
        assert seen == list(range(25))
        query = streaming_query(cluster)
        position = await asyncio.to_thread(lambda: query.latestOffset(query.initialOffset(), ReadAllAvailable()))

        cluster.kill(leader)
        cluster.start_broker(behind)

        async def offline() -> bool:
            alive = {b["id"]: b["alive"] for b in (await client.cluster_status())["brokers"]}
            return (await partition_of(client))["leader"] is None and alive[behind] and not alive[leader]

        await until(offline, "the partition without a leader")
        arguments = ("partition", "elect-unclean", STREAM, "0", behind)
        loss = f"records from offset 10 on, which only {leader} (isr, dead) may hold, are given up"

        def announced() -> bool:
            """Once the broker has told in time what it holds."""
            status, out, err = command(cluster, *arguments)
            assert (status, out) == (1, "")
            assert "nothing was changed" in err
            return loss in err

        def announced_as_json() -> bool:
            status, out, _ = command(cluster, *arguments, "--json")
            assert (status, json.loads(out)["elected"]) == (1, False)
            return bool(json.loads(out)["log_end_offset"] == 10)

        wait_until(announced, loss)
        wait_until(announced_as_json, "where the log of the broker ends")
        status, _, err = command(cluster, "partition", "elect-unclean", STREAM, "0", leader, "--accept-loss", "--yes")
        assert (status, "is not a live replica" in err) == (1, True)
        assert (await partition_of(client))["leader"] is None
        assert (await client.cluster_status())["unclean_elections"] == 0

        status, out, err = command(cluster, *arguments, "--accept-loss", "--yes")
        assert (status, err) == (0, "")
        assert f"{behind} leads {STREAM}/0 now: records from offset 10 on" in out
        async with client.producer(STREAM) as producer:
            assert (await producer.send(b"after")).offset == 10
        with pytest.raises(tidelog.LogTruncated):
            await asyncio.wait_for(anext(reader), 30)
        await consumer.aclose()
        with pytest.raises(tidelog.TidelogError, match="load/0 was read up to 25 but its log ends at 11"):
            await asyncio.to_thread(query.latestOffset, position, ReadAllAvailable())
        status, _, err = command(cluster, *arguments, "--accept-loss", "--yes")
        assert (status, f"is led by {behind}" in err) == (1, True)

        cluster.start_broker(leader)
        end = await wait_in_sync(cluster.nats_url, STREAM)
        assert end["partitions"][0]["leader"] == behind
        assert end["partitions"][0]["log_end_offset"] == 11
        moved = await client.move_leader(STREAM, 0, leader)
        assert moved["leader"] == leader
        values = [record.value async for record in client.consume(STREAM, stop="latest")]
        assert values == [b"both %d" % number for number in range(10)] + [b"after"], "the returned one has cut its log"
        assert (await client.cluster_status())["unclean_elections"] == 1
        status, out, _ = command(cluster, "cluster", "status")
        assert "1 unclean election so far" in out
