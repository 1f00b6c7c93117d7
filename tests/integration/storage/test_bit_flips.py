"""Real brokers, and bits that flip on their disks while they run: consumers get only written records, the replica
heals by itself. And a whole cluster's life with damage: restarts, the Raft journal, the last copy."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidelog
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.manifest import read_manifest
from tests.integration.failover.test_leader_by_operator import partition_of
from tests.integration.rig.brokers_status import counters_of
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import until, wait_until
from tests.integration.rig.workload import wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.batch import iter_batches

STREAM = "load"
RECORDS = 400
SETTINGS = {
    "storage": {"housekeeping_interval": 0.2, "scrub_bytes_per_second": 50_000_000, "scrub_interval": 0.5},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "cluster", settings=SETTINGS) as running:
        yield running


def value(number: int) -> bytes:
    return b"record %d " % number + b"." * 200


async def fill(client: tidelog.Client, replicas: int) -> None:
    """Small segments, one record in a batch."""
    await client.create_stream(STREAM, partitions=1, replication_factor=replicas, config={"segment_bytes": 16384})
    async with client.producer(STREAM, acks="all") as producer:
        for number in range(RECORDS):
            await producer.send(value(number))


def segments(cluster: DevCluster, broker: str) -> list[Path]:
    return sorted(cluster.broker_dir(broker).glob(f"{STREAM}-*/*/*.log"))


def flip(path: Path, offset: int, rng: random.Random) -> None:
    """A bit anywhere in the batch of that offset."""
    content = bytearray(path.read_bytes())
    for at, header in iter_batches(bytes(content)):
        if header.base_offset == offset:
            content[at + rng.randrange(header.size)] ^= 1 << rng.randrange(8)
            with path.open("r+b") as file:
                file.write(content)
            return
    raise AssertionError(f"{path} does not hold offset {offset}")


async def read_all(client: tidelog.Client, **start: Any) -> None:
    read = 0
    async for record in client.consume(STREAM, start="earliest", stop="latest", **start):
        assert (record.offset, record.value) == (read, value(read))
        read += 1
    assert read == RECORDS


async def read_into(seen: list[int], client: tidelog.Client) -> None:
    async for record in client.consume(STREAM, start="earliest"):
        assert record.value == value(record.offset)
        seen.append(record.offset)


@pytest.mark.parametrize("whose", ["leader", "follower"])
async def test_bits_flip_while_the_brokers_run(cluster: DevCluster, whose: str) -> None:
    rng = random.Random(3)
    async with await tidelog.connect(cluster.nats_url) as client:
        await fill(client, 3)
        await wait_in_sync(cluster.nats_url, STREAM)
        first = await partition_of(client)
        victim = next(b for b in first["replicas"] if (b == first["leader"]) == (whose == "leader"))
        cluster.kill(victim, signal.SIGSTOP)  # else it might find the first one, and cut the others, meanwhile
        for path in segments(cluster, victim)[:4]:
            flip(path, int(path.stem) + 5, rng)
        cluster.kill(victim, signal.SIGCONT)
        await read_all(client)
        await read_all(client, read_from="follower")

        async def healed() -> bool:
            return (await counters_of(client, victim))["damage_repaired"] >= 1

        await until(healed, "the repair")
        await wait_in_sync(cluster.nats_url, STREAM)
        logs = {b: b"".join(path.read_bytes() for path in segments(cluster, b)) for b in first["replicas"]}
        assert len(set(logs.values())) == 1

        async def told() -> Any:
            said = (await partition_of(client))["replicas_progress"].get(victim, {})
            return said if said.get("quarantined") else None

        said = await until(told, f"what {victim} tells of its log")
        assert said["damage"] is None
        assert said["quarantined"]["latest"]["sound_end"] == 5
        assert (await counters_of(client, victim))["damage_found"] == 1
        for words, sentence in (
            (("stream", "describe", STREAM), f"{victim} cut damage out of partition 0 1 time"),
            (("cluster", "status"), f"{victim} has met damage 1 time"),
        ):
            wait_until(lambda: sentence in command(cluster, *words)[1], sentence)  # noqa: B023 - waited for here


async def test_a_damaged_raft_journal_is_set_aside_and_synchronised_anew(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await fill(client, 3)
        cluster.kill("b2")
        journal = cluster.broker_dir("b2") / "raft" / "journal"
        content = bytearray(journal.read_bytes())
        content[len(content) // 2] ^= 4
        journal.write_bytes(content)
        cluster.start_broker("b2")
        kept = journal.parent / "damaged" / "1-journal"

        # It counts as in sync until its death is noticed.
        await until(lambda: kept.exists() and journal.exists(), "the damaged file to be set aside")
        assert kept.read_bytes() == content
        await wait_in_sync(cluster.nats_url, STREAM)
        await read_all(client)


async def test_the_last_copy_is_read_around_the_damage_until_an_operator_accepts_the_loss(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await fill(client, 1)
        leader = (await partition_of(client))["leader"]
        assert leader is not None
        damaged = segments(cluster, leader)[1]
        offset = int(damaged.stem) + 3

        async def known_to_be_committed() -> bool:
            """After a restart, too."""
            entries = read_manifest(REAL_FILES, damaged.parents[2]) or {}
            return entries[str(damaged.parent.relative_to(damaged.parents[2]))].high_watermark == RECORDS

        await until(known_to_be_committed, "the checkpoint")
        flip(damaged, offset, random.Random(1))

        async def offline() -> bool:
            return (await partition_of(client))["leader"] is None

        await until(offline, "the withdrawal")
        cluster.kill(leader)  # its memory is sound
        cluster.start_broker(leader)
        arguments = ("partition", "elect-unclean", STREAM, "0", leader)

        await until(
            lambda: f"records from offset {offset} to {RECORDS - 1}" in command(cluster, *arguments)[2],
            "what is given up",
        )
        seen: list[int] = []
        with pytest.raises(tidelog.TidelogError, match="is damaged here"):
            await read_into(seen, client)
        assert seen
        assert seen == list(range(len(seen)))
        assert len(seen) <= offset
        last = RECORDS - 20
        above = [record.value async for record in client.consume(STREAM, start=last, stop=RECORDS)]
        assert above == [value(number) for number in range(last, RECORDS)]

        status, out, err = command(cluster, *arguments, "--accept-loss", "--yes", "--json")
        assert (status, err, json.loads(out)["elected"]) == (0, "", True)
        async with client.producer(STREAM, acks="all") as producer:
            assert (await producer.send(b"goes on")).offset == offset
        kept = [record.value async for record in client.consume(STREAM, start="earliest", stop="latest")]
        assert kept == [*(value(number) for number in range(offset)), b"goes on"]
