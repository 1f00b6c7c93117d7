"""Three metadata planes as processes, a real nats-server, kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.operations.api_operations import OPERATIONS
from wire.subjects import Subjects

SUBJECTS = Subjects()
PATIENT = {"broker_silence_timeout_s": 2 * LIMIT, "leader_lease_s": 3 * LIMIT}
"""Silence proves a death only after the test has ended: what a test sees of a death, refused probes and closed Raft
connections have proved."""


class MetadataCluster:
    def __init__(self, url: str, directory: Path, client: NatsConnection, settings: Mapping[str, float]) -> None:
        self.url, self.directory, self.client, self.settings = url, directory, client, settings
        self.raft = dict(zip(("b1", "b2", "b3"), sorted(free_addresses(3)), strict=True))
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, broker: str, *, voter: bool = True) -> None:
        directory = self.directory / broker
        directory.mkdir(exist_ok=True)
        settings = {
            "broker": broker,
            "nats": self.url,
            "raft": self.raft,
            "directory": str(directory),
            "voter": voter,
            "settings": {"bootstrap_wait_s": 0.5, **self.settings},
        }
        self.processes[broker] = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.integration.rig.metadata_node",
            json.dumps(settings),
            stdout=asyncio.subprocess.PIPE,
        )

    async def registered(self, broker: str) -> None:
        process = self.processes[broker]
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 2 * LIMIT)
        assert line == b"registered\n"

    async def kill(self, broker: str) -> None:
        process = self.processes.pop(broker)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def api(self, endpoint: str, **body: Any) -> Any:
        operation = OPERATIONS[endpoint]
        subject = SUBJECTS.api(endpoint, body.get(operation.named))
        timeout = 5 if operation.writes else 1.0  # one that is carried out while it is repeated is refused
        async with asyncio.timeout(LIMIT):
            while True:
                try:
                    answer = await self.client.request(subject, json.dumps(body).encode(), timeout=timeout)
                except TimeoutError:
                    await asyncio.sleep(0.002)  # without a connection it is raised at once
                    continue
                if answer.status == NO_RESPONDERS:
                    await asyncio.sleep(0.002)
                    continue
                error = TidelogError.from_headers(answer.headers)
                if error is not None:
                    raise error
                return json.loads(answer.data)

    async def partitions(self) -> Any:
        return (await self.api("stream.describe", name="flights"))["partitions"]

    async def moved_from(self, broker: str) -> None:
        async def moved() -> bool:
            known = (await self.api("metadata", stream="flights"))["streams"][0]
            return all(partition["leader"] not in (None, broker) for partition in known["partitions"])

        await until(moved, f"leaders other than {broker}")


@pytest_asyncio.fixture
async def cluster(
    nats_server: EmbeddedNatsServer, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[MetadataCluster]:
    client = await NatsConnection.connect(nats_server.url, name="test")
    made = MetadataCluster(nats_server.url, tmp_path, client, getattr(request, "param", {}))
    try:
        for broker in made.raft:
            await made.start(broker)
        for broker in made.raft:
            await made.registered(broker)
        yield made
    finally:
        for broker in [*made.processes]:
            await made.kill(broker)
        await client.close()


@pytest.mark.parametrize("cluster", [PATIENT], indirect=True)
async def test_a_killed_broker_loses_its_leaderships_before_the_silence_timeout(cluster: MetadataCluster) -> None:
    form = await cluster.api(
        "stream.create", name="flights", subject="flights", partitions=3, replication_factor=3, config={}
    )
    assert sorted(partition["leader"] for partition in form["partitions"]) == ["b1", "b2", "b3"]
    for wanted in ("other", "controller"):
        controller = (await cluster.api("cluster.status"))["controller"]
        victim = controller if wanted == "controller" else next(b for b in cluster.raft if b != controller)
        await cluster.kill(victim)
        await cluster.moved_from(victim)
        after = await cluster.partitions()
        assert all(victim not in partition["isr"] for partition in after if len(partition["isr"]) > 1)
        await cluster.start(victim)
        await cluster.registered(victim)


async def test_the_whole_group_killed_comes_back_with_its_state(cluster: MetadataCluster) -> None:
    await cluster.api("stream.create", name="flights", subject="flights", partitions=2, replication_factor=3, config={})
    await cluster.api("stream.create", name="gone", subject="gone", partitions=1, replication_factor=1, config={})
    await cluster.api("stream.delete", name="gone")
    before = (await cluster.api("metadata", stream="flights"))["streams"][0]
    for broker in cluster.raft:
        await cluster.kill(broker)
    for broker in cluster.raft:
        await cluster.start(broker)
    for broker in cluster.raft:
        await cluster.registered(broker)
    after = (await cluster.api("metadata", stream="flights"))["streams"][0]
    assert [stream["name"] for stream in (await cluster.api("stream.list"))["streams"]] == ["flights"]
    assert after["incarnation"] == before["incarnation"]
    for old, new in zip(before["partitions"], after["partitions"], strict=True):
        assert new["leader"] is not None
        # No process goes on with a LeaderEpoch of an earlier life.
        assert new["leader_epoch"] > old["leader_epoch"]


@pytest.mark.parametrize("cluster", [PATIENT], indirect=True)
async def test_an_observer_leads_and_its_death_is_found_by_probes(cluster: MetadataCluster) -> None:
    await cluster.start("o1", voter=False)
    await cluster.registered("o1")
    form = await cluster.api(
        "stream.create", name="flights", subject="flights", partitions=4, replication_factor=4, config={}
    )
    assert "o1" in [partition["leader"] for partition in form["partitions"]]
    voters = {broker["id"]: broker["voter"] for broker in (await cluster.api("cluster.status"))["brokers"]}
    assert voters == {"b1": True, "b2": True, "b3": True, "o1": False}
    await cluster.kill("o1")
    await cluster.moved_from("o1")


async def test_a_long_loss_of_nats_ends_no_broker(cluster: MetadataCluster, nats_server: EmbeddedNatsServer) -> None:
    form = await cluster.api(
        "stream.create", name="flights", subject="flights", partitions=3, replication_factor=3, config={}
    )
    before = (await cluster.api("cluster.status"))["brokers"]
    nats_server.kill()
    # Long enough for the controller to change: a controller without a connection gives up its controller epoch.
    await asyncio.sleep(6)
    nats_server.start()
    after = (await cluster.api("cluster.status"))["brokers"]
    assert [(b["id"], b["alive"], b["incarnation"]) for b in after] == [
        (b["id"], True, b["incarnation"]) for b in before
    ]
    await asyncio.sleep(3)
    known = (await cluster.api("metadata", stream="flights"))["streams"][0]
    assert [(p["leader"], p["leader_epoch"]) for p in known["partitions"]] == [
        (p["leader"], p["leader_epoch"]) for p in form["partitions"]
    ]


async def test_the_api_is_a_micro_service(cluster: MetadataCluster) -> None:
    async def answered() -> Message | None:
        answer = await cluster.client.request("$SRV.PING.tidelog", b"", timeout=LIMIT)
        return answer if answer.status != NO_RESPONDERS else None

    answer = await until(answered, "an answer of the service")
    assert json.loads(answer.data)["name"] == "tidelog"
