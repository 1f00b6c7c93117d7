"""Where replicas live, on real brokers: zones, tags, pinned brokers, and leaders that go back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.client.base.exceptions import BadConfig, BadReplicationFactor
from tidelog.server.devcluster import DevCluster

ZONES = {"b1": "east", "b2": "east", "b3": "west", "b4": "west"}
TAGS = {"b1": ["ssd"], "b2": [], "b3": ["ssd"], "b4": ["ssd", "big"]}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    settings: dict[str, dict[str, Any]] = {
        broker: {"zone": zone, "tags": TAGS[broker]} for broker, zone in ZONES.items()
    }
    with DevCluster(tmp_path / "cluster", nodes=4, port=0, settings_of=settings) as running:
        running.wait_ready(2 * LIMIT)
        yield running


async def replicas(client: tidelog.Client, stream: str) -> list[list[str]]:
    return [partition["replicas"] for partition in (await client.describe(stream))["partitions"]]


@pytest.mark.timeout(900)
async def test_replicas_live_where_the_settings_of_a_stream_say(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        brokers = {broker["id"]: broker for broker in (await client.cluster_status())["brokers"]}
        assert {broker: found["zone"] for broker, found in brokers.items()} == ZONES
        assert {broker: sorted(found["tags"]) for broker, found in brokers.items()} == {
            broker: sorted(tags) for broker, tags in TAGS.items()
        }

        await client.create_stream("spread", partitions=8, replication_factor=2)
        assert all({ZONES[broker] for broker in held} == {"east", "west"} for held in await replicas(client, "spread"))

        await client.create_stream("fast", partitions=4, replication_factor=2, config={"require_tags": "ssd"})
        assert all("b1" in held and "b2" not in held for held in await replicas(client, "fast"))
        with pytest.raises(BadReplicationFactor, match="require_tags=big leaves 1 live broker"):
            await client.create_stream("big", replication_factor=2, config={"require_tags": "big"})

        policy = ("--config", "placement=pinned:b2,b4", "--config", "leader_pin=b4")
        status, out, _ = command(cluster, "stream", "create", "pinned", *policy, "--json")
        assert status == 0
        assert [partition["replicas"] for partition in json.loads(out)["partitions"]] == [["b4", "b2"]]
        with pytest.raises(BadConfig, match="leader_pin=b1 is none of the brokers"):
            await client.alter_stream("pinned", config={"leader_pin": "b1"})

        await client.create_stream("beside", partitions=8, config={"placement": "colocation_strict:spread"})
        held, followed = await replicas(client, "beside"), await replicas(client, "spread")
        assert [sorted(each) for each in held] == [sorted(each) for each in followed]

        await client.alter_cluster(config={"default_replication_factor": 6})
        made = await client.create_stream("wide")
        assert made["replication_factor"] == 4
        assert "fewer than default_replication_factor=6" in made["notes"][0]


@pytest.mark.timeout(900)
async def test_leaderships_go_back_to_a_broker_that_was_killed(cluster: DevCluster) -> None:
    stream = "load"
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.alter_cluster(config={"leader_rebalance_delay_ms": 1000})
        await client.create_stream(stream, partitions=6, replication_factor=3, config={"leader_pin": "b2"})
        await wait_in_sync(cluster.nats_url, stream)

        async def leaders() -> set[str | None]:
            return {partition["leader"] for partition in (await client.describe(stream))["partitions"]}

        async def is_led() -> bool:
            return await leaders() == {"b2"}

        assert await is_led()
        async with acked_load(cluster.nats_url, stream, bare=False, partitions=6) as ledger:

            async def acknowledged(more: int) -> None:
                wanted = len(ledger.acked) + more
                await until(lambda: len(ledger.acked) >= wanted, f"{more} acknowledgements")

            await acknowledged(200)
            await asyncio.to_thread(cluster.kill, "b2")
            await acknowledged(200)
            assert "b2" not in await leaders()
            cluster.start_broker("b2")
            await until(is_led, "b2 as the leader of all, by itself")
            await acknowledged(200)

            await client.alter_cluster(config={"auto_leader_rebalance": False})
            await asyncio.to_thread(cluster.kill, "b2")
            await acknowledged(200)
            away = await client.rebalance_leaders()
            left = {each["partition"] for each in away["partitions"] if each["obstacle"]}
            assert left >= {f"{stream}/{number}" for number in range(6)}, "b2 is dead, or not in sync"
            cluster.start_broker("b2")

            async def is_back() -> bool:
                found = await client.rebalance_leaders(dry_run=True)
                able = {each["partition"] for each in found["partitions"] if not each["obstacle"]}
                return able >= {f"{stream}/{number}" for number in range(6)}

            await until(is_back, "b2 in all ISRs")
            status, out, _ = command(cluster, "cluster", "rebalance", "--leaders-only")
            assert status == 0
            assert "move now, a few at a time" in out
            await until(is_led, "b2 as the leader of all")
            await acknowledged(200)
    await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)
