"""Streams that are copied within a cluster, while a leader is killed, and copies that ended early."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.base.exceptions import BadRequest, RecordTooLarge, StreamExists
from tidelog.client.producer.partitioner import Partitioner, murmur2
from tidelog.server.devcluster import DevCluster

RECORDS = 3000


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running
        await running.heal()
        for stream in await running.client.streams():
            await running.client.alter_stream(stream["name"], config={"delete_protection": False})


async def fill(cluster: ReplicatedCluster, stream: str, number: int = RECORDS) -> None:
    client = cluster.client
    await client.create_stream(
        stream, partitions=3, config={"compression": "lz4", "delete_protection": True, "segment_bytes": 65536}
    )
    async with client.producer(stream) as producer:
        for each in range(number):
            producer.send_nowait(
                b"value %d" % each if each % 7 else None,
                key=b"key %d" % (each % 20) if each % 3 else None,
                headers={"n": [b"%d" % each, b"again"], "Empty": b""} if each % 5 == 0 else None,
                timestamp=1_700_000_000_000_000_000 + each,
            )
        await producer.flush()
    await cluster.nats.request(stream, b"plain", timeout=LIMIT, headers={"Plain-Header": "x"})


async def contents(client: tidelog.Client, stream: str, **positions: Any) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    async for record in client.consume(stream, **{"start": "earliest", "stop": "latest", **positions}):
        row = record.key, record.value, record.timestamp, record.header_items
        found.setdefault(record.partition, []).append(row)
    return found


async def test_a_copy_has_the_records_and_the_settings(cluster: ReplicatedCluster) -> None:
    client = cluster.client
    await fill(cluster, "source")
    progress: list[tuple[int, int]] = []
    copied = await client.copy_stream("source", "target", on_progress=lambda *at: progress.append(at))
    assert (copied.records, copied.already_there, copied.missed) == (RECORDS + 1, 0, 0)
    assert progress[-1] == (RECORDS + 1, RECORDS + 1)
    before = await contents(client, "source")
    assert await contents(client, "target") == before
    assert copied.by_partition == {number: len(rows) for number, rows in before.items()}
    source, target = await client.describe("source"), await client.describe("target")
    assert source["config"].pop("delete_protection") == "true"
    assert target["config"].pop("delete_protection") == "false"
    assert target["config"] == source["config"]
    assert target["subject"] == "target"
    with pytest.raises(StreamExists, match="go on with a copy that ended early"):
        await client.copy_stream("source", "target")
    with pytest.raises(BadRequest, match="cannot be copied onto itself"):
        await client.copy_stream("source", "source")


async def test_a_copy_with_other_partitions_keeps_the_order_of_each_key(cluster: ReplicatedCluster) -> None:
    client = cluster.client
    await fill(cluster, "source")
    await client.copy_stream("source", "wide", partitions=5, config={"compression": "none"}, replication_factor=1)
    assert (await client.describe("wide"))["config"]["compression"] == "none"

    def by_key(found: dict[int, list[tuple[Any, ...]]]) -> dict[bytes, list[tuple[Any, ...]]]:
        keys: dict[bytes, list[tuple[Any, ...]]] = {}
        for rows in found.values():
            for row in rows:
                if row[0] is not None:
                    keys.setdefault(row[0], []).append(row)
        return keys

    before, after = await contents(client, "source"), await contents(client, "wide")
    assert by_key(before) == by_key(after)
    assert sum(map(len, after.values())) == sum(map(len, before.values()))
    home = Partitioner(range(5))
    assert all(home.for_key(row[0]) == number for number, rows in after.items() for row in rows if row[0] is not None)
    for number in range(3):
        without = [row for row in before[number] if row[0] is None]
        there = [row for row in after[number % 5] if row[0] is None]
        assert [row for row in there if row in set(without)] == without


async def test_a_copy_has_all_records_whose_message_id_came_again(cluster: ReplicatedCluster) -> None:
    """The source knew the id no more when it came again; the copy, which is made in a moment, would know it."""
    client = cluster.client
    await client.create_stream("source", config={"dedup_window_ms": "0"})
    async with client.producer("source") as producer:
        for number in range(3):
            await producer.send(b"%d" % number, msg_id="again")
    copied = await client.copy_stream("source", "target", config={"dedup_window_ms": 60_000})
    assert copied.records == 3
    assert await contents(client, "target") == await contents(client, "source")
    async with client.producer("target") as producer:
        assert not (await producer.send(b"3", msg_id="again")).duplicate, "ids that were copied are not known"
        assert (await producer.send(b"4", msg_id="again")).duplicate


async def test_a_copy_of_a_repartitioned_stream_has_each_key_in_one_partition(cluster: ReplicatedCluster) -> None:
    """Its partitions hold records of layouts that the copy does not have."""
    client = cluster.client
    await client.create_stream("source", partitions=3, partitioner="murmur2")
    keys = [b"k%d" % number for number in range(20)]

    async def is_finished() -> bool | None:
        return True if (await client.repartition_status("source"))["repartition"] is None else None

    async with client.producer("source") as producer:
        for generation, count in enumerate((3, 6, 4)):
            if generation:
                await client.repartition("source", count)
                await until(is_finished, "the repartition is finished")
            sent = [await producer.send(b"%d" % generation, key=key) for key in keys]
            assert [receipt.partition for receipt in sent] == [murmur2(key) % count for key in keys]
    copied = await client.copy_stream("source", "target")
    assert copied.records == 3 * len(keys)
    described = await client.describe("target")
    assert (len(described["partitions"]), described["partitioner"]) == (4, "murmur2")
    found = await contents(client, "target")
    assert sum(map(len, found.values())) == 3 * len(keys)
    for key in keys:
        assert [row[1] for row in found[murmur2(key) % 4] if row[0] == key] == [b"0", b"1", b"2"]
    with pytest.raises(tidelog.BadRequest, match="stream source was repartitioned, so that nothing tells"):
        await client.copy_stream("source", "target", resume=True)


async def test_a_copy_that_ended_early_is_gone_on_with_while_leaders_die(cluster: ReplicatedCluster) -> None:
    client = cluster.client
    await fill(cluster, "source")

    class Stopped(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done > RECORDS // 4:
            raise Stopped

    with pytest.raises(Stopped):
        await client.copy_stream("source", "target", on_progress=stop)
    there = sum((await client.offsets("target", "latest")).values())
    first = await cluster.leader("target", isr=3)
    cluster.kill(first.broker)
    copied = await client.copy_stream("source", "target", resume=True)
    assert copied.already_there >= there
    assert copied.records + copied.already_there == RECORDS + 1
    assert await contents(client, "target") == await contents(client, "source")
    await cluster.heal()
    copied = await client.copy_stream("source", "target", resume=True)
    assert (copied.records, copied.already_there) == (0, RECORDS + 1)
    with pytest.raises(BadRequest, match="holds other records than a copy that began at the same positions would"):
        await client.copy_stream("source", "target", start=5, resume=True)
    with pytest.raises(BadRequest, match="has 3 partitions and source has 3"):
        await client.copy_stream("source", "target", partitions=4, resume=True)


async def test_on_the_command_line(cluster: ReplicatedCluster, processes: DevCluster) -> None:
    await fill(cluster, "source", 100)
    status, out, err = command(processes, "stream", "copy", "source", "target", "--from", "5", "--to", "10")
    assert (status, out, err) == (0, "copied 15 records of source into target\n", "")
    status, out, err = command(
        processes, "stream", "copy", "source", "target", "--from", "5", "--to", "10", "--resume", "--json"
    )
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert (told["records"], told["already_there"], told["missed"]) == (0, 15, 0)
    status, out, err = command(processes, "stream", "copy", "source", "target")
    assert status == 1
    assert "stream target exists" in err
    found = await contents(cluster.client, "target")
    assert found == await contents(cluster.client, "source", start=5, stop=10)


async def test_a_copy_can_write_what_was_published(cluster: ReplicatedCluster) -> None:
    """The limits of a producer hold for plain publishes, too: as many headers, and the size that the headers have when
    a producer writes them."""
    client, limit = cluster.client, 40_000
    await client.create_stream("bordering", config={"max_record_bytes": limit})
    bare = await nats.connect(cluster.url)
    told = await bare.subscribe("told")

    async def publish(lines: int, payload: int) -> str | None:
        block = b"NATS/1.0\r\n" + b"a:1\r\n" * lines + b"\r\n"
        line = b"HPUB bordering told %d %d\r\n" % (len(block), len(block) + payload)
        await bare._send_command(line + block + b"v" * payload + b"\r\n")
        await bare.flush()
        answer = json.loads((await told.next_msg(timeout=LIMIT)).data)
        code: str | None = answer.get("tidelog", {}).get("code")
        return code

    written = 1 + 8 * 4000  # bytes of 4,000 headers of a producer
    try:
        assert await publish(4096, 1) is None
        assert await publish(4097, 1) == "LIMIT_REACHED"
        assert await publish(4000, limit - written) is None
        assert await publish(4000, limit - written + 1) == "RECORD_TOO_LARGE"
    finally:
        await bare.close()
    copied = await client.copy_stream("bordering", "bordered")
    assert copied.records == 2
    assert await contents(client, "bordered") == await contents(client, "bordering")


async def test_a_copy_that_fails_leaves_no_outcome_unread(cluster: ReplicatedCluster) -> None:
    client = cluster.client
    await client.create_stream("wide", partitions=1)
    async with client.producer("wide") as producer:
        await producer.send_many([b"x" * size for size in (10, 10, 5000)])
    unread: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
    with pytest.raises(RecordTooLarge, match=r"record 2 of wide/0 does not fit into the copy narrow: .* raise"):
        await client.copy_stream("wide", "narrow", config={"max_record_bytes": 1000})
    gc.collect()
    await asyncio.sleep(0)
    assert not unread
