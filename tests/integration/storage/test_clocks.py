"""A broker whose wall clock is an hour or eight days off, ahead or behind, forgets nothing early, whatever it leads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of_all, status_of
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import until
from tests.integration.rig.workload import wait_in_sync
from tests.integration.transactions.told_transactions import until_told
from tidelog.server.devcluster import DevCluster
from wire.internal_streams import GROUPS, TRANSACTIONS

HOUR = 3600
DAY = 24 * HOUR
SETTINGS = {
    "metadata": {"clock_settle_s": 0.5},
    "storage": {"housekeeping_interval": 0.2, "compaction_min_dirty_ratio": 0.1},
}
HALF_AN_HOUR_MS = str(HOUR // 2 * 1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    command = ("-m", "tests.integration.rig.shifted_broker")
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings=SETTINGS, server_command=command) as running:
        yield running


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as client:
        yield client


async def set_clock(cluster: DevCluster, client: tidelog.Client, broker: str, ahead_s: int) -> None:
    cluster.config_file(broker).with_suffix(".toml.ahead").write_text(str(ahead_s))
    wanted = "off" if ahead_s else "agreed"

    async def known() -> bool:
        clock = (await status_of(client, broker)).get("clock")
        return clock is not None and clock["state"] == wanted and abs(clock["ahead_ms"] / 1000 - ahead_s) < 60

    await until(known, f"the clock of {broker}, which is {ahead_s} s ahead, to be {wanted}")


async def lead(client: tidelog.Client, broker: str) -> None:
    """It leads everything: what forgets begins anew with each leader."""
    for stream, partitions in (
        ("aged", 1),
        ("few", 1),
        ("states", 1),
        ("quiet", 1),
        ("napping", 1),
        (GROUPS.name, GROUPS.partitions),
        (TRANSACTIONS.name, 1),
    ):
        for number, partition in enumerate((await client.describe(stream))["partitions"][:partitions]):
            if partition["leader"] != broker:
                await client.move_leader(stream, number, broker)


async def is_paused(client: tidelog.Client, stream: str) -> bool:
    return (await client.describe(stream))["partitions"][0]["paused"]


def first_segment(cluster: DevCluster, broker: str, stream: str) -> int:
    (folder,) = cluster.broker_dir(broker).glob(f"{stream}-*/0-*")
    return min(int(path.stem) for path in folder.glob("*.log"))


async def test_one_clock_of_three_that_is_off_forgets_nothing(cluster: DevCluster, client: tidelog.Client) -> None:
    aged = {"retention_max_age_ms": HALF_AN_HOUR_MS, "dedup_window_ms": HALF_AN_HOUR_MS, "segment_bytes": "4096"}
    await client.create_stream("aged", partitions=1, replication_factor=3, config=aged)
    few = {"retention_max_messages": "10", "segment_bytes": "4096"}
    await client.create_stream("few", partitions=1, replication_factor=3, config=few)
    states = {"compact": "true", "tombstone_retention_ms": HALF_AN_HOUR_MS, "segment_bytes": "4096"}
    await client.create_stream("states", partitions=1, replication_factor=3, config=states)
    # One of them is to be paused after half an hour, by elapsed time, and the other at once.
    await client.create_stream("quiet", replication_factor=3, config={"auto_pause_time_ms": HALF_AN_HOUR_MS})
    await client.create_stream("napping", replication_factor=3, config={"auto_pause_time_ms": "200"})
    for stream in ("aged", "few", "states", "quiet", "napping"):
        await wait_in_sync(cluster.nats_url, stream)
    for broker in cluster.broker_ids:
        await set_clock(cluster, client, broker, 0)
    async with (
        client.producer("aged", acks="all") as producer,
        client.producer("few", acks="all") as others,
        client.producer("states", acks="all") as states_producer,
        client.producer("napping", acks="all") as naps_producer,
        client.producer(transactional_id="busy") as busy,
    ):
        once = await producer.send(b"once", msg_id="once")
        for number in range(30):
            await producer.send(b"%d" % number + b"." * 500)
        await states_producer.send(None, key=b"deleted")
        await client.reset_group("gone", to=7, streams="aged", partitions=[0])
        async with client.producer(transactional_id="idle") as idle, idle.transaction():
            await idle.send("few", b"in a transaction")
        written = 31
        for turn, ahead in enumerate((HOUR, -HOUR, 8 * DAY, -8 * DAY)):
            broker = cluster.broker_ids[turn % 3]
            await set_clock(cluster, client, broker, ahead)
            await lead(client, broker)
            again = await producer.send(b"again", msg_id="once")
            assert (again.duplicate, again.offset) == (True, once.offset), f"{broker} is {ahead} s ahead"
            await producer.send(b"next")
            written += 1
            async with busy.transaction():
                await busy.send("few", b"in another transaction")
                await busy.send_offsets({("aged", 0): written}, group="moving")
            await until(partial(is_paused, client, "napping"), f"a pause at {broker}")
            assert (await naps_producer.send(b"wakes it")).offset == turn
            end = 0
            for _ in range(60):
                end = (await others.send(b"." * 500)).offset

            def has_been_visited(broker: str = broker, end: int = end) -> bool:
                return first_segment(cluster, broker, "few") > end - 30

            await until(has_been_visited, f"limits by number at {broker}")
            assert first_segment(cluster, broker, "aged") == 0
            for _ in range(60):
                end = (await states_producer.send(b"." * 500, key=b"overwritten")).offset

            async def has_been_compacted(end: int = end) -> bool:
                kept = [record async for record in client.consume("states", start="earliest", stop="latest")]
                assert any(record.key == b"deleted" for record in kept)
                return len(kept) < 40 and kept[-1].offset >= end

            await until(has_been_compacted, f"a compaction at {broker}")
            values = [record.value async for record in client.consume("aged", start="earliest", stop="latest")]
            assert len(values) == written
            assert values.count(b"once") == 1
            assert [each["offset"] for each in (await client.describe_group("gone"))["offsets"]] == [7]
            await until_told(client)
            assert (await client.describe_transaction("idle"))["last"] == "committed"
            assert not await is_paused(client, "quiet"), f"{broker} is {ahead} s ahead"
            assert [each["offset"] for each in (await client.describe_group("moving"))["offsets"]] == [written]
            await set_clock(cluster, client, broker, 0)
            assert (await producer.send(b"again", msg_id="once")).duplicate
    counters = await counters_of_all(client)
    assert all(
        counters[broker]["clock_off"] >= least for broker, least in zip(cluster.broker_ids, (2, 1, 1), strict=True)
    )
    assert "ahead of the time on which most brokers agree" in cluster.log_file("b1").read_text()
