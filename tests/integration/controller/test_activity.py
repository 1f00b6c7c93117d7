"""The activity stream of a real cluster: every event once and in order, while controllers and leaders are killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import observed
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.base.exceptions import UnknownStream
from tidelog.server.devcluster import DevCluster


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    settings = {"metadata": {"activity_stream": True}, "replica": {"replica_max_lag_time": 5.0}}
    with dev_cluster(tmp_path, settings=settings) as running:
        yield running


async def told(client: tidelog.Client) -> list[dict[str, Any]]:
    """All that is recorded up to now, of streams that are not Tidelog's own."""
    try:
        events = [dict(event) async for event in client.activity(follow=False)]
    except UnknownStream:
        return []
    return [event for event in events if not str(event.get("stream", "")).startswith("__")]


async def test_every_event_once_through_changes_of_the_controller(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        client = cluster.client
        await client.create_stream("flights", partitions=3, config={"retention_max_bytes": 1 << 20})
        await client.alter_stream("flights", config={"min_isr": 1})

        async def controller() -> str:
            return (await client.cluster_status())["controller"] or ""

        for _ in range(2):
            killed = await until(controller, "a controller")
            cluster.kill(killed)

            async def another(killed: str = killed) -> bool:
                return await controller() not in ("", killed)

            await until(another, "another controller")
            await client.set_readonly("flights", partitions=[1])
            await client.set_readonly("flights", False)
            await cluster.heal()
            await cluster.leader("flights", isr=3)
        await client.delete_records("flights", {0: "latest"})
        await client.delete_stream("flights")

        async def complete() -> list[dict[str, Any]] | None:
            events = await told(client)
            return events if any(event["event"] == "stream_deleted" for event in events) else None

        events = await until(complete, "the deletion in the activity stream", timeout=LIMIT)
        positions = [(event["generation"], event["index"]) for event in events]
        assert positions == sorted(set(positions))
        kinds = [event["event"] for event in events]
        assert kinds.count("stream_created") == 1
        assert [event["config"] for event in events if event["event"] == "stream_altered"] == [{"min_isr": "1"}]
        assert (kinds.count("readonly_set"), kinds.count("readonly_lifted")) == (2, 2)
        assert kinds.count("broker_died") >= 2
        assert kinds.count("controller_changed") >= 3
        assert {"leader_changed", "isr_shrunk", "isr_expanded"} <= set(kinds)
        assert "events_lost" not in kinds
        changes = [event for event in events if event["event"] == "leader_changed" and event["partition"] == 0]
        epochs = [event["leader_epoch"] for event in changes]
        assert epochs == list(range(2, 2 + len(epochs))), "no change of a leader is missing"

        cluster.kill(*cluster.brokers)
        await cluster.heal()
        await client.create_stream("later")

        async def later() -> bool:
            return any(event.get("stream") == "later" for event in await told(client))

        await until(later, "an event after all brokers were killed")
        status, out, err = command(processes, "activity", "--stream", "flights", "--json")
        assert (status, err) == (0, "")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["id"] for line in lines] == [event["id"] for event in events if event.get("stream") == "flights"]
        status, out, err = command(processes, "activity", "--stream", "later")
        assert (status, err) == (0, "")
        assert "stream_created" in out
        assert "partition_count=1" in out


async def test_events_are_followed(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        await cluster.client.create_stream("first")
        await until(lambda: _has(cluster.client, "first"), "the first event")
        found = []

        async def follow() -> None:
            async for event in cluster.client.activity(start="new"):
                found.append(event)
                if event.get("stream", "").startswith("second"):
                    return

        following = asyncio.create_task(follow())
        number = 0
        async with asyncio.timeout(LIMIT):
            while not following.done():  # the first ones may be made before it reads
                number += 1
                await cluster.client.create_stream(f"second-{number}")
                await asyncio.wait({following}, timeout=0.2)
        await following
        assert all(event.get("stream") != "first" for event in found)


async def _has(client: tidelog.Client, stream: str) -> bool:
    return any(event.get("stream") == stream for event in await told(client))


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, nodes=1) as running:
        assert command(running, "stream", "create", "s")[0] == 0
        status, out, err = command(running, "activity")
        assert (status, out) == (1, "")
        assert "activity_stream = true" in err
        assert "__activity" not in command(running, "stream", "list", "--internal")[1]
