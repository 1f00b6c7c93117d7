"""A namespace has one cluster: a broker that would found a second one stops, and where there are two all brokers say
so."""

# Rules: R41, R70, R86, R90.

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import tidelog
from tests.integration.rig.command_line import start_tidelog, tidelog_command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tests.integration.rig.workload import wait_in_sync
from tidelog.client.base.exceptions import WrongCluster
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster


@contextmanager
def standalone(folder: Path, broker: str, url: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A broker without peers, as in `tidelog server --help`; its output goes to FOLDER.err."""
    with folder.with_suffix(".err").open("w") as said:
        process = start_tidelog(
            *("server", "--id", broker, "--nats", url, "--data-dir", str(folder), *flags), stderr=said
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT)


def said_by_a_refused(folder: Path, broker: str, url: str) -> str:
    """The last sentence of a broker that founds no cluster, and stops."""
    with standalone(folder, broker, url) as process:
        wait_until(lambda: process.poll() is not None or cluster_id(folder), "it stops")
        said = folder.with_suffix(".err").read_text()
        assert process.poll() == 1, f"it goes on, in cluster {cluster_id(folder)}:\n{said}"
    return said.splitlines()[-1]


def cluster_id(folder: Path) -> str:
    """As its broker recorded it; empty before it is registered."""
    try:
        return str(json.loads((folder / "broker.json").read_text())["cluster_id"] or "")
    except (OSError, ValueError):
        return ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster") as cluster:
        yield cluster


async def test_no_second_cluster_beside_a_living_one(cluster: DevCluster, tmp_path: Path) -> None:
    own = cluster_id(cluster.broker_dir("b1"))
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("s", partitions=3)
        before = (await client.describe("s"))["partitions"]
        for broker in ("b9", "b1"):
            folder = tmp_path / f"new-{broker}"
            sentence = said_by_a_refused(folder, broker, cluster.nats_url)
            for words in (own, "namespace 'tidelog'", "--raft-peer", "--namespace"):
                assert words in sentence, sentence
        after = (await client.describe("s"))["partitions"]
        assert [p["leader_epoch"] for p in after] == [p["leader_epoch"] for p in before]
        assert (await client.cluster_status())["other_clusters"] == []
        with standalone(tmp_path / "beside", "b1", cluster.nats_url, "--namespace", "beside") as process:
            wait_until((tmp_path / "beside" / "ready").exists, "it serves in a namespace of its own")
            assert process.poll() is None


@pytest.mark.parametrize(
    ("subject", "reply"), [("tidelog.api.stream.list", " _INBOX.flood"), ("tidelog.metadata.cluster", "")]
)
def test_no_second_cluster_beside_one_that_is_flooded(tmp_path: Path, subject: str, reply: str) -> None:
    """Its only broker works on what came before the questions of the founder for longer than the founder listens."""
    block = f"PUB {subject}{reply} 20\r\n{'x' * 20}\r\n".encode() * 1000
    with dev_cluster(tmp_path / "cluster", nodes=1) as cluster:
        own = cluster_id(cluster.broker_dir("b1"))
        address = urlsplit(cluster.nats_url)
        with socket.create_connection((str(address.hostname), int(address.port or 0))) as stranger:
            stranger.sendall(b'CONNECT {"verbose":false}\r\n')
            for _ in range(800):
                stranger.sendall(block)
            assert own in said_by_a_refused(tmp_path / "new", "b9", cluster.nats_url)


def test_of_two_founders_at_once_one_founds(tmp_path: Path) -> None:
    with EmbeddedNatsServer(port=0, store_dir=tmp_path / "nats") as nats:
        folders = [tmp_path / "one", tmp_path / "two"]
        with standalone(folders[0], "b1", nats.url) as one, standalone(folders[1], "b2", nats.url) as two:
            wait_until(lambda: [p.poll() for p in (one, two)].count(1) == 1, "one of them stops")
            winner = folders[1] if one.poll() is not None else folders[0]
            loser = folders[0] if winner is folders[1] else folders[1]
            wait_until((winner / "ready").exists, "the other one serves")
            assert cluster_id(winner)
            assert not cluster_id(loser)
            assert cluster_id(winner) in loser.with_suffix(".err").read_text()
        with standalone(winner, "b1" if winner is folders[0] else "b2", nats.url) as again:
            wait_until((winner / "ready").exists, "a founder comes back to its cluster")
            assert again.poll() is None


def test_a_founder_that_slept_hears_of_the_cluster_that_was_founded_meanwhile(tmp_path: Path) -> None:
    settings = tmp_path / "slow.toml"
    settings.write_text("[metadata]\nbootstrap_wait_s = 10.0\n")
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    with (
        EmbeddedNatsServer(port=0, store_dir=tmp_path / "nats") as nats,
        standalone(slow, "b1", nats.url, "--config", str(settings)) as sleeper,
    ):
        wait_until((slow / "raft" / "journal").exists, "it has opened its journal")
        time.sleep(6.0)  # its questions have come back so far, and it will have slept beyond its time
        sleeper.send_signal(signal.SIGSTOP)
        with standalone(quick, "b2", nats.url):
            wait_until((quick / "ready").exists, "another cluster is founded")
            time.sleep(5.0)
            sleeper.send_signal(signal.SIGCONT)
            assert sleeper.wait(LIMIT) == 1
            assert cluster_id(quick) in slow.with_suffix(".err").read_text()
        assert not cluster_id(slow)


async def test_two_clusters_that_meet_are_told_to_everybody(cluster: DevCluster, tmp_path: Path) -> None:
    own = cluster_id(cluster.broker_dir("b1"))
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("before")
        for broker in cluster.broker_ids:  # no broker answers the founder
            cluster.kill(broker, signal.SIGSTOP)
        folder = tmp_path / "second"
        with standalone(folder, "b9", cluster.nats_url):
            wait_until((folder / "ready").exists, "the second cluster is founded")
            other = cluster_id(folder)
            for broker in cluster.broker_ids:
                cluster.kill(broker, signal.SIGCONT)
            # A client of the first cluster goes on with it, and its streams are made there alone.
            await client.create_stream("after")
            assert {stream["name"] for stream in await client.streams()} == {"before", "after"}

            async def other_clusters() -> list[Any]:
                return list((await client.cluster_status())["other_clusters"])

            told = await until(other_clusters, "the news of the other cluster")
            assert [entry["cluster_id"] for entry in told] == [other]
            # A new client is answered by both.
            async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as newcomer:

                async def is_refused() -> str:
                    """As soon as the second one has answered."""
                    try:
                        await newcomer.streams()
                    except WrongCluster as error:
                        return error.message
                    return ""

                assert f"{min(own, other)} and {max(own, other)}" in await until(is_refused, "the answers of both")
            listing = ("stream", "list", "--server", cluster.nats_url)
            wait_until(lambda: "both answer" in tidelog_command(*listing).stderr, "a command that is told of both")
            logs = [cluster.log_file(broker).read_text() for broker in cluster.broker_ids]
            assert any("ERROR" in line and other in line for log in logs for line in log.splitlines())
            assert own in folder.with_suffix(".err").read_text()
        # The second one has gone: everything is as it was.
        async with await tidelog.connect(cluster.nats_url) as newcomer:
            assert {stream["name"] for stream in await newcomer.streams()} == {"before", "after"}


async def test_a_majority_with_empty_folders_founds_no_cluster(tmp_path: Path) -> None:
    """They start first, and the voter with the data comes later."""
    with dev_cluster(tmp_path / "cluster") as cluster:
        own = cluster_id(cluster.broker_dir("b3"))
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("kept")
            for broker in cluster.broker_ids:
                cluster.kill(broker)
            unmounted = [cluster.broker_dir(broker) for broker in ("b1", "b2")]
            for folder in unmounted:
                folder.rename(folder.with_suffix(".disk"))
            seen = {broker: len(cluster.log_file(broker).read_bytes()) for broker in cluster.broker_ids}

            started: set[str] = set()

            def says(broker: str, words: str) -> bool:
                started.add(broker)
                for each in started:  # a start without a leader ends after a minute
                    cluster.start_broker(each, replace=each != "b3")
                return words in cluster.log_file(broker).read_bytes()[seen[broker] :].decode()

            for broker in ("b1", "b2"):
                cluster.start_broker(broker, replace=True)
            for broker in ("b1", "b2"):
                await until(partial(says, broker, "founded by all of its voters"), f"{broker} to wait", 4 * LIMIT)
            await until(partial(says, "b3", "started with empty data folders, and may not"), "b3 to say why", 4 * LIMIT)
            await until(partial(says, "b1", "has one of a cluster that was founded"), "b1 to say why", 4 * LIMIT)
            assert [cluster_id(folder) for folder in unmounted] == ["", ""]
            for folder in unmounted:
                cluster.kill(folder.name)
                folder.rename(folder.with_suffix(".wrong"))
                folder.with_suffix(".disk").rename(folder)
                cluster.start_broker(folder.name)
            cluster.wait_ready(4 * LIMIT)
            assert [stream["name"] for stream in await client.streams()] == ["kept"]
            assert (await client.cluster_status())["cluster_id"] == own


async def test_a_lost_majority_is_recovered_from_one_voter(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster") as cluster:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("kept", config={"min_isr": 2})
            async with client.producer("kept") as producer:
                for number in range(100):
                    await producer.send(str(number).encode())
            before = await client.cluster_status()
            for broker in cluster.broker_ids:
                cluster.kill(broker)
            lost, left = [cluster.broker_dir(broker) for broker in ("b1", "b2")], cluster.broker_dir("b3")
            for folder in lost:
                folder.rename(folder.with_suffix(".lost"))
            told = tidelog_command("cluster", "recover", str(left))
            assert (told.returncode, "nothing was changed" in told.stderr) == (1, True)
            assert before["cluster_id"] in told.stderr
            done = tidelog_command("cluster", "recover", str(left), "--accept-loss")
            assert done.returncode == 0, done.stderr
            for folder in lost:
                folder.mkdir()
                shutil.copytree(left / "raft", folder / "raft")
                cluster.start_broker(folder.name, replace=True)
            cluster.start_broker("b3")
            cluster.wait_ready(4 * LIMIT)

            async def all_of_it() -> bool:
                read = [record.value async for record in client.consume("kept", stop="latest")]
                return read == [str(number).encode() for number in range(100)]

            await until(all_of_it, "the records")
            after = await client.cluster_status()
            assert (after["cluster_id"], after["unclean_elections"]) == (before["cluster_id"], 0)
            assert after["generation"] > before["generation"] + 1_000_000

            # A voter that was given up comes back, with the metadata of before: it takes over the present ones.
            cluster.kill("b1")
            lost[0].rename(lost[0].with_suffix(".second"))
            lost[0].with_suffix(".lost").rename(lost[0])
            cluster.start_broker("b1")
            cluster.wait_ready(4 * LIMIT)
            await wait_in_sync(cluster.nats_url, "kept", timeout=LIMIT)
            assert await all_of_it()


@pytest.mark.timeout(600)
async def test_records_that_a_lost_decision_moved_come_back(tmp_path: Path) -> None:
    """The voter was away while two partitions were moved to b4, and their former replicas removed the logs."""
    values = [str(number).encode() for number in range(100)]
    with dev_cluster(tmp_path / "cluster", nodes=4) as cluster:
        async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
            for stream, brokers in (("moved", "b1"), ("half", "b1,b2")):
                await client.create_stream(stream, config={"placement": f"pinned:{brokers}"})
                async with client.producer(stream) as producer:
                    await producer.send_many(values)
            await wait_in_sync(cluster.nats_url, "half", timeout=LIMIT)
            cluster.kill("b3")
            await client.reassign("moved", {0: ["b4"]})
            await client.reassign("half", {0: ["b4", "b2"]})

            async def is_moved() -> bool:
                left = [*cluster.broker_dir("b1").glob("moved-*/*"), *cluster.broker_dir("b1").glob("half-*/*")]
                return not left and (await client.moves())["total"] == 0

            await until(is_moved, "the moves, and the removal of the logs on b1", 4 * LIMIT)
            for broker in ("b1", "b2", "b4"):
                cluster.kill(broker)
            done = tidelog_command("cluster", "recover", str(cluster.broker_dir("b3")), "--accept-loss")
            assert done.returncode == 0, done.stderr
            for broker in ("b1", "b2"):
                folder = cluster.broker_dir(broker)
                shutil.rmtree(folder / "raft")
                shutil.copytree(cluster.broker_dir("b3") / "raft", folder / "raft")
            for broker in cluster.broker_ids:
                cluster.start_broker(broker)
            cluster.wait_ready(4 * LIMIT)

            async def read(stream: str) -> bool:
                return values == [record.value async for record in client.consume(stream, stop="latest")]

            # One replica of half still had its log; of moved nobody leads, and b4 keeps its log.
            await until(lambda: read("half"), "the records of half")
            (offline,) = (await client.cluster_status())["offline"]
            assert (offline["partition"], offline["waits_for"]) == ("moved/0", [])
            assert "b1 has no log of it" in offline["reasons"][0]

            async def kept_logs() -> list[Path]:
                return [*cluster.broker_dir("b4").glob("moved-*/0-*.lost")]

            (kept,) = await until(kept_logs, "the log that b4 keeps")
            election = ("partition", "elect-unclean", "moved", "0")
            told = tidelog_command(*election, "b1", "--server", cluster.nats_url)
            assert (told.returncode, "b1 has no log of it" in told.stderr) == (1, True), told
            await client.reassign("moved", {0: ["b4"]})
            await until(lambda: not kept.exists(), "b4 to take its log back")
            await client.cancel_reassignment("moved", [0])
            await until(kept.exists, "b4 to keep the log again, which is the only one")
            await client.reassign("moved", {0: ["b4"]})
            await until(lambda: not kept.exists(), "b4 to take its log back once more")
            done = tidelog_command(*election, "b4", "--accept-loss", "--yes", "--server", cluster.nats_url)
            assert done.returncode == 0, done.stderr
            await until(lambda: read("moved"), "the records of moved")
            marks = partial(cluster.broker_dir("b4").glob, "moved-*/0-*/taken-back")
            await until(lambda: not [*marks()], "b4 to count its log as any")

            async def is_over() -> bool:
                (partition,) = (await client.describe("moved"))["partitions"]
                return (await client.moves())["total"] == 0 and partition["replicas"] == ["b4"]

            await until(is_over, "the end of the reassignment", 4 * LIMIT)
            assert await read("moved")
            assert (await client.cluster_status())["offline_partitions"] == 0

            # b2 has had no logs but its own since the cluster began anew. What goes while it is down is removed.
            await wait_in_sync(cluster.nats_url, "half", timeout=LIMIT)
            cluster.kill("b2")

            async def is_led_alone() -> bool:
                (partition,) = (await client.describe("half"))["partitions"]
                return (partition["leader"], partition["isr"]) == ("b1", ["b1"])

            await until(is_led_alone, "b1 to lead alone", 4 * LIMIT)
            await client.reassign("half", {0: ["b1", "b4"]})

            async def is_left() -> bool:
                (partition,) = (await client.describe("half"))["partitions"]
                return (await client.moves())["total"] == 0 and partition["replicas"] == ["b1", "b4"]

            await until(is_left, "b2 to be no replica", 4 * LIMIT)
            cluster.start_broker("b2")
            cluster.wait_ready(4 * LIMIT)
            await until(lambda: not [*cluster.broker_dir("b2").glob("half-*/*")], "b2 to remove the log")
            assert await read("half")


async def test_a_cluster_that_begins_anew_with_an_old_voter_removes_no_log_and_loses_no_record(tmp_path: Path) -> None:
    """The voter was away while a stream was made, others got records, and a broker registered."""
    with dev_cluster(tmp_path / "cluster") as cluster:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("kept", config={"min_isr": 2})

            async def lives() -> dict[str, int]:
                brokers = (await client.cluster_status())["brokers"]
                return {each["id"]: each["incarnation"] for each in brokers if each["alive"]}

            cluster.kill("b3")
            before = await lives()

            for broker in ("b2", "b1"):

                async def is_another_life(broker: str = broker) -> bool:
                    now = await lives()
                    return now.keys() == {"b1", "b2"} and now[broker] > before[broker]

                cluster.kill(broker)
                cluster.start_broker(broker)
                await until(is_another_life, f"{broker} to register while b3 is away", 4 * LIMIT)
            await client.create_stream("unheard", replication_factor=2)
            for stream in ("kept", "unheard"):
                async with client.producer(stream) as producer:
                    for number in range(100):
                        await producer.send(str(number).encode())
            for broker in ("b1", "b2"):
                cluster.kill(broker)
            done = tidelog_command("cluster", "recover", str(cluster.broker_dir("b3")), "--accept-loss")
            assert done.returncode == 0, done.stderr
            for broker in ("b1", "b2"):
                folder = cluster.broker_dir(broker)
                shutil.rmtree(folder / "raft")
                shutil.copytree(cluster.broker_dir("b3") / "raft", folder / "raft")
            for broker in cluster.broker_ids:
                cluster.start_broker(broker)
            cluster.wait_ready(4 * LIMIT)

            async def all_of_it() -> bool:
                read = [record.value async for record in client.consume("kept", stop="latest")]
                return read == [str(number).encode() for number in range(100)]

            await until(all_of_it, "the records")
            status = await client.cluster_status()
            assert (status["unclean_elections"], status["offline_partitions"]) == (0, 0)
            assert "unheard" not in {stream["name"] for stream in await client.streams()}
            for broker in ("b1", "b2"):

                async def kept(broker: str = broker) -> list[Path]:
                    return [*cluster.broker_dir(broker).glob("unheard-*/0-*.lost")]

                (log,) = await until(kept, f"the log that {broker} keeps")
                dumped = tidelog_command("log", "dump", "--records", str(log))
                assert dumped.returncode == 0, dumped.stderr
                assert dumped.stdout.splitlines()[-1].endswith("99")
