"""A group of three processes reads a stream with the keys in order, while the stream goes to other numbers of
partitions under load, and one of them is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.groups.group_journals import read_journal
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, ReplicatedCluster, observed
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM, GROUP = "orders", "billing"
KEYS = range(24)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    metadata = {**SETTINGS["metadata"], "repartition_adoption_timeout_s": 2}
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings={**SETTINGS, "metadata": metadata}) as running:
        yield running


class Members:
    """Processes of a group, and what they have processed."""

    def __init__(self, server: str, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        journal = self._directory / f"m{len(self.running)}.journal"
        journal.touch()
        command = [sys.executable, "-m", "tests.integration.groups.group_member", "--server", self._server]
        command += ["--stream", STREAM, "--group", GROUP, "--journal", str(journal), "--session", "5"]
        self.running.append(subprocess.Popen(command))

    def stop(self) -> None:
        for member in self.running:
            member.kill()
            member.wait()

    def processed(self) -> dict[int, list[int]]:
        """By key, in the order in which its records were handed out for the first time."""
        lines = [line for path in self._directory.glob("*.journal") for line in read_journal(path)]
        found: dict[int, dict[int, None]] = defaultdict(dict)
        for line in sorted((line for line in lines if line["kind"] == "read"), key=lambda line: float(line["at"])):
            for value in line["values"]:
                key, number = map(int, value.split(":"))
                found[key][number] = None
        return {key: [*numbers] for key, numbers in found.items()}

    def partitions(self) -> set[int]:
        """Of which records were handed out."""
        lines = [line for path in self._directory.glob("*.journal") for line in read_journal(path)]
        return {line["partition"] for line in lines if line["kind"] == "read"}


class Load:
    """Numbers in order under each key, each sent when the one before was acknowledged."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = defaultdict(int)
        self._is_over = asyncio.Event()

    async def write(self, client: tidelog.Client) -> None:
        async with client.producer(STREAM, delivery_timeout_ms=LIMIT * 1000) as producer:
            await asyncio.gather(*(self._write(producer, key) for key in KEYS))

    async def _write(self, producer: tidelog.Producer, key: int) -> None:
        while not self._is_over.is_set():
            await producer.send(b"%d:%d" % (key, self.sent[key]), key=b"%d" % key)
            self.sent[key] += 1
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._is_over.set()


async def repartitioned(cluster: ReplicatedCluster, partitions: int) -> None:
    await cluster.client.repartition(STREAM, partitions)

    async def finished() -> bool:
        status = await cluster.client.repartition_status(STREAM)
        return status["repartition"] is None and status["partitions"] == partitions

    await until(finished, f"the end of the repartition to {partitions}")


async def test_a_group_keeps_keys_in_order_while_members_die(processes: DevCluster, tmp_path: Path) -> None:
    async with observed(processes) as cluster:
        await cluster.client.create_stream(STREAM, partitions=3, replication_factor=3)
        await wait_in_sync(cluster.url, STREAM, timeout=LIMIT)
        members, load = Members(cluster.url, tmp_path), Load()
        writing = asyncio.create_task(load.write(cluster.client))
        try:
            for _ in range(3):
                members.start()
            await until(lambda: members.partitions() >= {0, 1, 2}, "records of all partitions")
            await repartitioned(cluster, 6)
            await until(lambda: members.partitions() == set(range(6)), "records of the new partitions")
            members.running[0].kill()
            await repartitioned(cluster, 4)
            members.start()
            before = sum(map(len, members.processed().values()))
            await until(
                lambda: sum(map(len, members.processed().values())) > before + 500, "records after the last one"
            )
            load.stop()
            await writing
            everything = {key: [*range(count)] for key, count in load.sent.items()}
            await until(lambda: sum(map(len, members.processed().values())) >= sum(load.sent.values()), "all records")
            assert members.processed() == everything
            described = await cluster.client.describe_group(GROUP)
            assert {entry["partition"] for entry in described["progress"]} == set(range(6))
            assert not any(entry["waits_for"] for entry in described["progress"])
        finally:
            load.stop()
            members.stop()
            await asyncio.gather(writing, return_exceptions=True)
