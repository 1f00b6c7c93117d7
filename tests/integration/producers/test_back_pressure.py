"""Publishers that are quicker than the brokers: slow disks, followers that stand still, brokers that do not
read. Nothing acknowledged is lost, nothing is dropped uncounted where that can be known, and memory stays flat."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of, status_of
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import observed
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer, ends_with_us
from tidelog.server.devcluster import DevCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MIB = 1 << 20
SIZE = 1000
BURST = 500
UNCOMMITTED = 4 * MIB
GROWTH = 96 * MIB
"""Memory of a broker, at most, under any load: its buffers are full then, and stay so."""
SETTINGS: dict[str, dict[str, Any]] = {"replica": {"max_uncommitted_bytes": UNCOMMITTED}}


def memory(pid: int) -> int:
    """Bytes that the process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def flood(url: str, subject: str, count: int) -> None:
    """That many plain publishes, as quickly as the server takes them."""
    nats = await NatsConnection.connect(url, name="publisher")
    burst = f"PUB {subject} {SIZE}\r\n".encode() + bytes(SIZE) + b"\r\n"
    for _ in range(count // BURST):
        await nats.wait_writable()
        assert nats.publish_raw([burst * BURST])
    await nats.flush(timeout=LIMIT)
    await nats.close()


def slow_disk(directory: Path, seconds: float) -> AbstractContextManager[DevCluster]:
    command = ("-m", "tests.integration.rig.slow_broker", str(seconds))
    return dev_cluster(directory, nodes=1, settings=SETTINGS, server_command=command)


async def test_on_a_slow_disk_each_plain_publish_is_stored_or_counted_and_memory_stays_flat(tmp_path: Path) -> None:
    with slow_disk(tmp_path, 1.0) as processes:
        pid = processes.pid("b1")
        assert pid is not None
        async with await tidelog.connect(processes.nats_url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=1)
            await flood(processes.nats_url, "s", 20_000)
            before, sent = memory(pid), 20_000
            for _ in range(5):
                await flood(processes.nats_url, "s", 40_000)
                sent += 40_000
                assert memory(pid) < before + GROWTH

            async def all_counted() -> bool:
                told = await counters_of(client, "b1")
                return told["records_in"] + told["dropped_refused"] == sent

            await until(all_counted, f"an account of {sent} records")
            told = await counters_of(client, "b1")
            assert told["dropped_refused"] > 0, "the disk was not slow enough to show anything"
            assert told["publish_gaps"] == 0


async def test_on_a_slow_disk_an_acknowledged_producer_is_slowed_and_not_failed(tmp_path: Path) -> None:
    values = [b"%07d" % number + bytes(SIZE) for number in range(60_000)]
    with slow_disk(tmp_path, 0.2) as processes:
        pid = processes.pid("b1")
        assert pid is not None
        async with await tidelog.connect(processes.nats_url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=1)
            before = memory(pid)
            async with client.producer("s", buffer_bytes=16 * MIB, delivery_timeout_ms=120_000) as producer:
                done = await producer.send_many(values)
                await producer.flush()
            assert sum(len(receipt.indices) for receipt in done) == len(values)
            assert memory(pid) < before + GROWTH + UNCOMMITTED
            found = [record.value async for record in client.consume("s", start="earliest", stop="latest")]
            assert found == values


async def test_a_flood_of_many_partitions_moves_no_leadership_and_each_plain_publish_is_stored_or_counted(
    tmp_path: Path,
) -> None:
    # The timeouts are long, for a machine that is busy with other things, too.
    settings: dict[str, dict[str, Any]] = {
        "replica": {
            "max_uncommitted_bytes_of_all": 2 * MIB,
            "replica_max_leader_timeout": 20.0,
            "replica_max_lag_time": 30.0,
            "confirm_timeout": 60.0,
        },
        "metadata": {"broker_silence_timeout_s": 20.0, "leader_lease_s": 30.0},
    }
    partitions, rounds, run = 100, 100, 20
    sent = partitions * rounds * run
    with dev_cluster(tmp_path, settings=settings) as processes:
        async with observed(processes) as cluster:
            await cluster.create("s")
            await cluster.client.create_stream("flooded", partitions=partitions, replication_factor=3)

            async def leaders() -> list[tuple[str, int]]:
                described = await wait_in_sync(cluster.url, "flooded", timeout=LIMIT)
                return [(p["leader"], p["leader_epoch"]) for p in described["partitions"]]

            async def total(counter: str) -> int:
                return sum([(await counters_of(cluster.client, broker))[counter] for broker in cluster.brokers])

            async def account() -> bool:
                stored = sum(p["log_end_offset"] or 0 for p in (await cluster.client.describe("flooded"))["partitions"])
                counted = stored + await total("dropped_refused")
                assert counted <= sent
                return counted == sent or await total("publish_gaps") > 0

            before, proposals = await leaders(), await total("isr_proposals")
            async with acked_load(cluster.url, "s", pause=0.02) as ledger:
                nats = await NatsConnection.connect(cluster.url, name="publisher")
                message = f" {SIZE}\r\n".encode() + bytes(SIZE) + b"\r\n"
                for _ in range(rounds):
                    for partition in range(partitions):
                        subject = f"flooded.{partition}" if partition else "flooded"
                        await nats.wait_writable()
                        assert nats.publish_raw([(f"PUB {subject}".encode() + message) * run])
                await nats.flush(timeout=LIMIT)
                await nats.close()
            await until(account, f"an account of {sent} records")
            assert await leaders() == before
            assert await total("isr_proposals") == proposals
            assert await total("dropped_refused") > 0, "it was no flood"
            await assert_nothing_lost(cluster.url, ledger, cluster.processes.data_dirs)


async def test_while_a_follower_stands_still_nothing_acknowledged_is_lost_and_the_leaders_memory_is_bounded(
    tmp_path: Path,
) -> None:
    # Stopped for longer than it takes until its leader drops it, for shorter than until it is declared dead.
    settings = {
        "replica": {
            **SETTINGS["replica"],
            "replica_max_idle_wait": 0.5,
            "replica_max_leader_timeout": 1.5,
            "replica_max_lag_time": 3.0,
        },
        "metadata": {"broker_silence_timeout_s": 30.0, "leader_lease_s": 40.0},
    }
    with dev_cluster(tmp_path, settings=settings) as processes:
        async with observed(processes) as cluster:
            await cluster.create("s")
            await cluster.create("flooded")
            leader = (await cluster.leader("flooded")).broker
            pid = processes.pid(leader)
            assert pid is not None
            before = memory(pid)
            stopped = cluster.others(leader)[0]
            async with acked_load(cluster.url, "s", pause=0.02) as ledger:
                await asyncio.sleep(0.5)
                cluster.stop(stopped)
                for _ in range(8):
                    await flood(cluster.url, "flooded", 10_000)
                    assert memory(pid) < before + GROWTH + 2 * UNCOMMITTED

                # A loaded leader answers before it has read all that nats-server holds for it.
                async def refused() -> bool:
                    return (await counters_of(cluster.client, leader))["dropped_refused"] > 0

                async def out_of_sync() -> bool:
                    return stopped not in (await cluster.leader("flooded")).isr

                await until(refused, "records refused while the leader waits for the follower")
                await until(out_of_sync, "an ISR without the follower that stands still")
                cluster.wake(stopped)
            await assert_nothing_lost(cluster.url, ledger, cluster.processes.data_dirs)


@contextmanager
def lone_broker(directory: Path, nats: EmbeddedNatsServer) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["--id", "b1", "--nats", nats.url, "--data-dir", str(directory / "b1")]
    with (directory / "b1.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", "server", *arguments],
            stdout=log,
            stderr=log,
            preexec_fn=ends_with_us(),  # noqa: PLW1509 - see there
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(LIMIT)


async def test_a_publisher_that_outruns_the_broker_leaves_a_gap_that_is_told(tmp_path: Path) -> None:
    with (
        EmbeddedNatsServer(store_dir=tmp_path / "nats", max_payload=MIB, max_pending=4 * MIB) as nats,
        lone_broker(tmp_path, nats) as process,
    ):
        await until((tmp_path / "b1" / "ready").exists, "a broker that serves")
        async with await tidelog.connect(nats.url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=1)
            async with client.producer("s") as producer:
                await producer.send(b"stored: the broker serves")
            process.send_signal(signal.SIGSTOP)
            await flood(nats.url, "s", 40_000)
            process.send_signal(signal.SIGCONT)

            async def told() -> bool:
                gaps = (await status_of(client, "b1"))["publish_gaps"]
                return gaps is not None and bool(gaps) and gaps[-1]["ended_ns"] is not None

            await until(told, "the gap")
            status = await status_of(client, "b1")
            gaps = status["publish_gaps"]
            assert gaps is not None
            assert [gap["partitions"] for gap in gaps] == [1]
            assert "slow consumer" in gaps[0]["reason"]
            known = await counters_of(client, "b1")
            assert known["publish_gaps"] == 1
            assert known["records_in"] < 40_000
            before = known["records_in"]

            async def goes_on() -> bool:
                await flood(nats.url, "s", BURST)  # refused, and counted, until the broker has heard of its controller
                return (await counters_of(client, "b1"))["records_in"] >= before + BURST

            await until(goes_on, "what is published after the gap")
