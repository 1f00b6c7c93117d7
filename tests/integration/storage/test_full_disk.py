"""Disks of 20 MB that run full under acknowledged load: real processes on real file systems.

A full disk costs no acknowledged record and no crash. A broker without room gives its leaderships away, leaves the ISR,
and comes back by itself; the last one left serves reads and refuses publishes with NO_SPACE.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of_all, described
from tests.integration.rig.small_disks import (
    MIB,
    partition,
    small_disks,
    until_isr,
    until_led_by_another,
    until_room,
)
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PAUSE = 0.05
"""Of the load: some 200 kB/s, so that a disk runs full in seconds and not at once."""


async def refused(nats: NatsConnection, stream: str) -> str | None:
    """The code for which the leader did not store a plain request; None: it was stored, or not answered, as while the
    leader changes."""
    try:
        answer = await nats.request(stream, b"one:0:", timeout=2)
    except TimeoutError:
        return None
    if answer.status is not None:
        return None
    error: dict[str, Any] | None = json.loads(answer.data).get("tidelog")
    return str(error["details"].get("reason", error["code"])) if error is not None else None


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
async def test_a_full_broker_steps_aside_and_comes_back(tmp_path: Path, kind: str) -> None:
    with small_disks(tmp_path / "cluster", kind) as disks:
        url = disks.processes.nats_url
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3, config={"segment_bytes": str(MIB)})
            await wait_in_sync(url, "s")
            full = str((await partition(client, "s"))["leader"])
            others = [broker for broker in disks.brokers if broker != full]
            disks.fill(full, leave=3 * MIB)
            async with acked_load(url, "s", pause=PAUSE) as ledger:
                await until_led_by_another(client, "s", full)
                await until_isr(client, "s", *others)
                await until_room(client, full, "full")
                before = len(ledger.acked)
                await until(lambda: len(ledger.acked) > before, "acknowledgements without the full broker")
                disks.make_room(full)
                await until_isr(client, "s", *disks.brokers)
                await until_room(client, full, "ample")
            findings = await assert_nothing_lost(url, ledger, disks.processes.data_dirs)
            assert findings.acknowledged > 100
        disks.check_all_are_alive()


async def test_when_all_are_full_reads_go_on_and_publishes_resume_with_room(tmp_path: Path) -> None:
    with small_disks(tmp_path / "cluster") as disks:
        url = disks.processes.nats_url
        nats = await NatsConnection.connect(url, name="observer")
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3, config={"segment_bytes": str(MIB)})
            await wait_in_sync(url, "s")
            for broker in disks.brokers:
                disks.fill(broker, leave=3 * MIB)
            async with acked_load(url, "s", bare=False, pause=PAUSE) as ledger:

                async def no_space() -> bool:
                    return await refused(nats, "s") == "NO_SPACE"

                await until(no_space, "NO_SPACE")
                acknowledged = dict(ledger.acked)
                read = [r.value async for r in client.consume("s", start="earliest", stop="latest")]
                assert set(acknowledged) <= set(read), "not everything that was acknowledged is served"
                await until(no_space, "NO_SPACE, still")
                disks.make_room(*disks.brokers)

                await until(
                    lambda: len(ledger.acked) > len(acknowledged) + 100, "acknowledgements after there was room again"
                )
            ledger.sent.add(b"one:0:")
            stored = {r.value async for r in client.consume("s", start="earliest", stop="latest")}
            assert set(ledger.acked) <= stored
            await wait_in_sync(url, "s")
        await nats.close()
        disks.check_all_are_alive()


async def test_disks_that_others_fill_to_the_last_byte(tmp_path: Path) -> None:
    """Nothing can be written at all: no record, no checkpoint, no Raft entry."""
    with small_disks(tmp_path / "cluster") as disks:
        url = disks.processes.nats_url
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3, config={"segment_bytes": str(MIB)})
            await wait_in_sync(url, "s")
            leader = str((await partition(client, "s"))["leader"])
            async with acked_load(url, "s", pause=PAUSE) as ledger:
                await asyncio.sleep(1.0)
                disks.fill_up(leader)
                await until_led_by_another(client, "s", leader)
                before = len(ledger.acked)

                await until(lambda: len(ledger.acked) > before + 100, "acknowledgements without the full broker")
                for broker in disks.brokers:
                    disks.fill_up(broker)
                await asyncio.sleep(4.0)
                before = len(ledger.acked)
                disks.make_room(*disks.brokers)
                await until(lambda: len(ledger.acked) > before + 100, "acknowledgements after there was room again")
            await assert_nothing_lost(url, ledger, disks.processes.data_dirs)
        disks.check_all_are_alive()


@pytest.mark.parametrize("when", ["before it can ask to be registered", "before it can record that it is"])
async def test_a_broker_that_starts_on_a_full_disk_waits_for_room(tmp_path: Path, when: str) -> None:
    """Nothing is wrong with its replicas: it does not leave the ISR as one that lost something."""
    with small_disks(tmp_path / "cluster") as disks:
        url = disks.processes.nats_url
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3, config={"segment_bytes": str(MIB)})
            await wait_in_sync(url, "s")
            async with acked_load(url, "s", pause=PAUSE) as ledger:
                await asyncio.sleep(1.0)
                broker = str((await partition(client, "s"))["leader"])
                disks.processes.kill(broker)
                await until_led_by_another(client, "s", broker)
                folder = disks.processes.broker_dir(broker)
                disks.fill_up(broker)
                (folder / "reserve").unlink()
                if when == "before it can ask to be registered":
                    disks.fill_up(broker)
                disks.processes.start_broker(broker)
                disks.pids[broker] = disks.processes.pid(broker)
                if when == "before it can record that it is":
                    await until(lambda: _listens(_raft_address(disks.processes, broker)), "the Raft port")
                for _ in range(500):  # what its recovery gives back to the disk is gone at once
                    disks.fill_up(broker)
                    await asyncio.sleep(0.01)
                disks.make_room(broker)
                await until_isr(client, "s", *disks.brokers)
            await assert_nothing_lost(url, ledger, disks.processes.data_dirs)
        disks.check_all_are_alive()


def _raft_address(cluster: DevCluster, broker: str) -> tuple[str, int]:
    host, _, port = tomllib.loads(cluster.config_file(broker).read_text())["raft_address"].rpartition(":")
    return host, int(port)


def _listens(address: tuple[str, int]) -> bool:
    with suppress(OSError), socket.create_connection(address, timeout=1):
        return True
    return False


async def test_a_stream_that_evicts_its_oldest_stays_writable(tmp_path: Path) -> None:
    config = {
        "on_under_capacity": "evict_oldest", "retention_max_bytes": str(1 << 40), "segment_bytes": str(MIB // 2),
        "durability": "accepted",
    }  # fmt: skip
    with small_disks(tmp_path / "cluster") as disks:
        async with await tidelog.connect(disks.processes.nats_url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3, config=config)
            value = bytes(10_000)
            async with client.producer("s", acks="all") as producer:
                for _ in range(40):
                    futures = [producer.send_nowait(value) for _ in range(100)]
                    await asyncio.wait_for(asyncio.gather(*futures), LIMIT)
            (told,) = (await described(client, "s"))["partitions"]
            start = told["log_start_offset"]
            assert start
            assert told["log_end_offset"] == 4000

            async def all_have_evicted() -> bool:
                counted = (await counters_of_all(client)).values()
                return all(counters["evicted_bytes"] > 10 * MIB for counters in counted)

            await until(all_have_evicted, "10 MiB evicted on each broker")
            read = [r.offset async for r in client.consume("s", start="earliest", stop="latest")]
            assert read == list(range(read[0], 4000))
            assert read[0] >= start, "more may have been removed meanwhile"
        disks.check_all_are_alive()
