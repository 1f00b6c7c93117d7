"""A broker, its id and its data folder belong together: a process with another folder does not take the place of a
living one, an empty folder is not taken for one that is lost, and the right folder brings back what it alone holds."""

# Rules: R69.

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.command_line import command, start_tidelog, tidelog_command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster

RECORDS = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("folders")) as cluster:
        yield cluster


async def alone(cluster: DevCluster, client: tidelog.Client, stream: str) -> str:
    """The broker that alone holds this stream, which has RECORDS records."""
    await client.create_stream(stream, replication_factor=1)
    async with client.producer(stream) as producer:
        for number in range(RECORDS):
            await producer.send(str(number).encode())
    return str((await client.describe(stream))["partitions"][0]["leader"])


def start_again(cluster: DevCluster, broker: str, *, replace: bool = False) -> None:
    cluster.start_broker(broker, replace=replace)
    cluster.wait_ready(2 * LIMIT)


async def test_a_disk_that_is_not_mounted_is_told_from_a_new_one(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        broker = await alone(cluster, client, "solo")
        folder = cluster.broker_dir(broker)
        mounted, wrong = folder.with_name("mounted"), folder.with_name("wrong")
        cluster.kill(broker)
        folder.rename(mounted)
        refused = tidelog_command("server", "--config", str(cluster.config_file(broker)), timeout=2 * LIMIT)
        assert refused.returncode == 1
        sentence = refused.stderr.splitlines()[-1]
        for words in (str(folder), f"of {broker} is empty", "1 in sync nowhere else", "--data-dir", "--replace"):
            assert words in sentence, sentence

        # An operator who takes the folder for lost is told what waits for it.
        start_again(cluster, broker, replace=True)
        for arguments, place, said in (
            (("cluster", "status"), 1, f"offline: solo/0, waits for {broker} with its earlier data folder"),
            (
                ("partition", "elect-unclean", "solo", "0", broker),
                2,
                f"which only the earlier data folder of {broker} may hold",
            ),
        ):
            wait_until(lambda: said in " ".join(str(command(cluster, *arguments)[place]).split()), said)  # noqa: B023

        cluster.kill(broker)
        folder.rename(wrong)
        mounted.rename(folder)
        start_again(cluster, broker)
        await until(lambda: is_led(client, "solo"), "the partition to be led")
        read = [record.value async for record in client.consume("solo", start="earliest", stop="latest")]
        assert read == [str(number).encode() for number in range(RECORDS)]
        assert (await client.cluster_status())["unclean_elections"] == 0


async def is_led(client: tidelog.Client, stream: str) -> bool:
    return (await client.describe(stream))["partitions"][0]["leader"] is not None


@pytest.mark.parametrize("folder", ["empty", "copied"])
async def test_a_living_broker_keeps_its_id(cluster: DevCluster, tmp_path: Path, folder: str) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        broker = await alone(cluster, client, f"kept-{folder}")
        before = await incarnations(client)
        other = tmp_path / "other"
        if folder == "copied":
            shutil.copytree(cluster.broker_dir(broker), other)
            (other / "lock").unlink()
        arguments = ("server", "--config", str(cluster.config_file(broker)), "--data-dir", str(other), "--replace")
        refused = tidelog_command(*arguments, timeout=2 * LIMIT)
        assert refused.returncode == 1
        sentence = refused.stderr.splitlines()[-1]
        for words in (f"{broker} is alive", f"process {cluster.pid(broker)} on", str(cluster.broker_dir(broker))):
            assert words in sentence, sentence
        assert await incarnations(client) == before
        assert await is_led(client, f"kept-{folder}")


async def incarnations(client: tidelog.Client) -> dict[str, int]:
    return {broker["id"]: broker["incarnation"] for broker in (await client.cluster_status())["brokers"]}


def test_a_copy_of_a_broker_that_stands_alone_does_not_start_beside_it(tmp_path: Path) -> None:
    """It has a secret of its own life, with which nobody can ask it."""
    with EmbeddedNatsServer(port=0, store_dir=tmp_path / "nats") as nats:
        server = ("server", "--id", "b1", "--nats", nats.url, "--data-dir")
        with (tmp_path / "said").open("w") as said:
            first = start_tidelog(*server, str(tmp_path / "b1"), stderr=said)
        try:
            wait_until((tmp_path / "b1" / "ready").exists, "it serves")
            shutil.copytree(tmp_path / "b1", tmp_path / "copy")
            (tmp_path / "copy" / "lock").unlink()
            refused = tidelog_command(*server, str(tmp_path / "copy"), timeout=2 * LIMIT)
            assert_refused_in_the_end(refused.returncode, refused.stderr, "another process is broker b1", "copy")
            assert first.poll() is None
        finally:
            first.kill()
            first.wait(LIMIT)


def assert_refused_in_the_end(status: int, said: str, *words: str) -> None:
    assert status == 1
    for word in words:
        assert word in said.splitlines()[-1], said
