"""A compacted stream on three brokers: one is away while records that it lacks are compacted, tombstones too, and comes
back."""

# Rules: R39.

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.rig.brokers_status import counters_of, counters_of_all
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, ReplicatedCluster, observed
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster

STREAM = "states"
KEYS = 8
ROUNDS = 40
PADDING = b"." * 500


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    storage = {"housekeeping_interval": 0.1, "compaction_min_dirty_ratio": 0.1}
    with dev_cluster(tmp_path, settings={**SETTINGS, "storage": storage}) as running:
        yield running


async def write(cluster: ReplicatedCluster, rounds: range) -> None:
    async with cluster.client.producer(STREAM, acks="all") as producer:
        for round_ in rounds:
            for key in range(KEYS):
                producer.send_nowait(b"%d/%d " % (key, round_) + PADDING, key=b"%d" % key)
            await producer.flush()


async def read(cluster: ReplicatedCluster) -> tuple[dict[bytes | None, bytes | None], int]:
    """(the newest value of each key, how many records there are)."""
    newest: dict[bytes | None, bytes | None] = {}
    count = 0
    async for record in cluster.client.consume(STREAM, start="earliest", stop="latest"):
        newest[record.key] = record.value
        count += 1
    return newest, count


async def test_a_returning_follower_has_the_newest_of_each_key_and_nothing_deleted(
    processes: DevCluster,
) -> None:
    async with observed(processes) as cluster:
        await cluster.create(STREAM, segment_bytes=8192, compact="true", tombstone_retention_ms=300)
        async with cluster.client.producer(STREAM, acks="all") as producer:
            await producer.send(b"to be deleted", key=b"gone")
        await write(cluster, range(4))
        before = await cluster.leader(STREAM, isr=3)
        away, third = cluster.others(before.broker)
        cluster.kill(away)
        await cluster.leader(STREAM, isr=2)
        async with cluster.client.producer(STREAM, acks="all") as producer:
            await producer.send(None, key=b"gone")

        written = 4

        async def deletion_is_gone() -> bool:
            nonlocal written
            await write(cluster, range(written, written + 4))  # records are compacted once newer ones follow them
            written += 4
            newest, count = await read(cluster)
            return "gone" not in {(key or b"").decode() for key in newest} and count < written * KEYS / 2

        await until(deletion_is_gone, "the tombstone to be compacted away", 2 * LIMIT)
        expected = {b"%d" % key: b"%d/%d " % (key, written - 1) + PADDING for key in range(KEYS)}
        assert (await read(cluster))[0] == expected

        cluster.start(away)
        last = await cluster.leader(STREAM, isr=3)
        assert (await counters_of(cluster.client, away))["skip_ahead_total"] == 1
        while last.broker != away:
            await cluster.client.move_leader(STREAM, 0, away)
            last = await cluster.leader(STREAM, above_epoch=last.leader_epoch, isr=3)
        newest, count = await read(cluster)
        assert newest == expected
        assert count < written * KEYS / 2

        await write(cluster, range(written, written + 8))

        async def is_compacted_everywhere() -> bool:
            return all(each["compaction_records"] > 0 for each in (await counters_of_all(cluster.client)).values())

        await until(is_compacted_everywhere, "compaction on every broker")
        cluster.kill(before.broker)
        cluster.start(before.broker)
        await cluster.leader(STREAM, isr=3)
        assert (await read(cluster))[0] == {
            b"%d" % key: b"%d/%d " % (key, written + 7) + PADDING for key in range(KEYS)
        }
        assert third in cluster.brokers
