"""Client and command line against a real cluster: three broker processes and a real nats-server."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from functools import partial
from typing import Any

import nats
import pytest

import tidelog
import tidelog.sync
from tests.integration.rig.command_line import command, start_tidelog
from tests.integration.rig.waiting import LIMIT, until, wait_until
from tests.integration.rig.workload import wait_in_sync
from tests.integration.transactions.told_transactions import until_told
from tidelog.client.producer.partitioner import murmur2
from tidelog.server.devcluster import DevCluster
from wire.operations.api_operations import BrokerDescription, StreamDescription, StreamList


def printed(cluster: DevCluster, *arguments: str, stdin: str = "") -> Any:
    status, out, err = command(cluster, *arguments, "--json", stdin=stdin)
    assert (status, err) == (0, "")
    return json.loads(out)


async def make(url: str, name: str, partitions: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(name, partitions=partitions, replication_factor=3)
    await wait_in_sync(url, name)


async def leader_of(client: tidelog.Client, stream: str, partition: int) -> str:
    async def found() -> str | None:
        return (await client.describe(stream))["partitions"][partition]["leader"]

    return await until(found, f"a leader of {stream}/{partition}")


async def test_records_published_right_after_the_creation_are_stored(cluster: DevCluster) -> None:
    """A plain publisher is not told of a loss: when `create_stream` returns, every leader listens."""
    count = 100
    plain = await nats.connect(cluster.nats_url)
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("prompt", partitions=count, replication_factor=3, config={"min_isr": "1"})
        subjects = ["prompt", *(f"prompt.{partition}" for partition in range(1, count))]
        answers = await asyncio.gather(*(plain.request(subject, b"first", timeout=LIMIT) for subject in subjects))
        assert [json.loads(answer.data)["offset"] for answer in answers] == [0] * count
        await client.delete_stream("prompt")
    await plain.close()


async def test_the_command_line_from_create_to_delete(cluster: DevCluster) -> None:
    made = printed(
        cluster, "stream", "create", "cli", "--subject", "cli.in", "--partitions", "2", "--config", "min_isr=1"
    )
    assert made["config"]["min_isr"] == "1"
    assert "cli" in {summary["name"] for summary in printed(cluster, "stream", "list")}
    sent = printed(cluster, "publish", "cli", "hello", "--key", "k")
    assert (sent["stream"], sent["offset"]) == ("cli", 0)
    lines = [json.dumps({"key": f"k{i % 5}", "value": str(i), "headers": {"n": str(i)}}) for i in range(200)]
    file = "\n".join(lines)
    assert printed(cluster, "publish", "cli", "--file", "-", "--format", "jsonl", stdin=file)["records"] == 200
    assert printed(cluster, "publish", "cli", stdin="one\r\ntwo\n\nfour")["records"] == 4
    status, out, _ = command(cluster, "subscribe", "cli", "--stop", "latest", "--json")
    assert status == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 205
    assert {r["value"] for r in records} >= {"hello", "one", "two", "", "four"}
    assert {r["headers"]["n"] for r in records if r["headers"]} == {str(i) for i in range(200)}
    for partition in (0, 1):
        offsets = [r["offset"] for r in records if r["partition"] == partition]
        assert offsets == list(range(len(offsets)))
    newest = max(r["timestamp"] for r in records)
    status, out, _ = command(cluster, "subscribe", "cli", "--start", newest, "--stop", "latest")
    assert status == 0
    assert 1 <= len(out.splitlines()) < 205
    status, out, _ = command(cluster, "subscribe", "cli", "--start", "latest", "--limit", "1", "--partition", "0")
    assert (status, len(out.splitlines())) == (0, 1)

    def described() -> Any:
        found = printed(cluster, "stream", "describe", "cli")["partitions"]
        return found if all(partition["high_watermark"] is not None for partition in found) else None

    assert sum(p["high_watermark"] + 1 for p in wait_until(described, "what the leaders tell")) == 205
    assert "cli" in command(cluster, "stream", "describe", "cli")[1]
    assert printed(cluster, "cluster", "status")["streams"] >= 1
    assert printed(cluster, "stream", "delete", "cli", "--yes") == {"deleted": "cli"}


async def test_a_publisher_on_a_pipe_that_is_interrupted_says_what_it_has_published(
    cluster: DevCluster,
) -> None:
    await make(cluster.nats_url, "piped", 1)
    publisher = start_tidelog(
        *("publish", "piped", "--header", "from=pipe", "--server", cluster.nats_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with publisher:
        assert publisher.stdin is not None
        publisher.stdin.write("one\ntwo\nhalf a line")
        publisher.stdin.flush()
        async with (
            await tidelog.connect(cluster.nats_url) as client,
            client.consume("piped", start="earliest") as records,
        ):
            taken = [await records.getone(LIMIT) for _ in range(2)]
        publisher.send_signal(signal.SIGINT)
        out, err = await asyncio.to_thread(publisher.communicate)
    assert [record and (record.value, dict(record.headers)) for record in taken] == [
        (b"one", {"from": b"pipe"}),
        (b"two", {"from": b"pipe"}),
    ]
    assert (publisher.returncode, out) == (130, "")
    assert err.startswith("interrupted: published 2 records, ")


async def until_taken(producer: tidelog.Producer, partition: int, *, is_taken: bool) -> None:
    """A record of 5000 bytes, or until it is refused: a leader may hear of new settings some time later."""

    async def is_reported() -> bool:
        try:
            await producer.send(b"x" * 5000, partition=partition)
        except tidelog.RecordTooLarge:
            return not is_taken
        return is_taken

    await until(is_reported, "the new limit of records")


async def test_a_stream_that_is_there_is_left_as_it_is(cluster: DevCluster) -> None:
    config: dict[str, str | int | bool] = {"min_isr": 1, "retention_max_age_ms": "3600000"}
    async with await tidelog.connect(cluster.nats_url) as client:
        first, second = await asyncio.gather(
            *(client.ensure_stream("kept", partitions=2, config=config) for _ in range(2))
        )
        assert first["incarnation"] == second["incarnation"]
        assert sorted([first["created"], second["created"]]) == [False, True]
        async with client.producer("kept") as producer:
            await producer.send(b"stays")
        assert (await client.ensure_stream("kept", partitions=2))["incarnation"] == first["incarnation"]
        assert sum((await client.offsets("kept", "latest")).values()) == 1
        with pytest.raises(
            tidelog.StreamExists, match=r"exists with min_isr=1, not 2; subject=kept, not k; partitions=2"
        ):
            await client.ensure_stream("kept", subject="k", config={"min_isr": 2})
    create = ("stream", "create", "kept", "--partitions", "2", "--if-not-exists")
    assert command(cluster, *create)[:2] == (
        0,
        "there already is stream kept: subject kept, 2 partitions, replication factor 3\n",
    )
    status, _, err = command(cluster, *create, "--config", "compact=true", "--replication-factor", "1")
    assert status == 1
    assert "exists with" in err
    assert "replication_factor=3, not 1" in err


async def test_bytes_on_disk_and_traffic_are_told(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("measured", partitions=2, config={"segment_bytes": "64KiB"})
        async with client.producer("measured", linger_ms=1) as producer:
            for _ in range(10):
                await producer.send_many([bytes(1000)] * 50)
        taken = [record async for record in client.consume("measured", start="earliest", stop="latest")]
        assert len(taken) == 500

        async def described_whole() -> StreamDescription | None:
            """Once all replicas have told the same size."""
            found = await client.describe("measured")
            sizes = [
                {each.get("bytes_on_disk") for each in partition["replicas_progress"].values()}
                for partition in found["partitions"]
            ]
            return found if all(len(each) == 1 and None not in each for each in sizes) else None

        async def listed_whole() -> StreamList | None:
            found = await client.streams_with_usage()
            return found if found.get("unanswered") == [] else None

        described = await until(described_whole, "three replicas of the same size")
        listed = await until(listed_whole, "what all brokers tell of their streams")

        async def broker_whole(broker: str) -> BrokerDescription | None:
            found = await client.describe_broker(broker)
            return (
                found
                if found.get("traffic") and all(each.get("bytes_on_disk") is not None for each in found["held"])
                else None
            )

        brokers = [await until(partial(broker_whole, broker), f"what {broker} tells") for broker in ("b1", "b2", "b3")]
    on_disk = sum(
        file.stat().st_size
        for broker in cluster.broker_ids
        for file in cluster.broker_dir(broker).glob("measured-*/*/*.log")
    )
    assert described.get("bytes_on_disk") == on_disk > 3 * 500_000
    assert sum(partition.get("bytes_on_disk") or 0 for partition in described["partitions"]) == on_disk
    (summary,) = [stream for stream in listed["streams"] if stream["name"] == "measured"]
    assert summary.get("bytes_on_disk") == on_disk
    held = [replica for broker in brokers for replica in broker["held"] if replica["stream"] == "measured"]
    assert sum(replica.get("bytes_on_disk") or 0 for replica in held) == on_disk
    for told in (described.get("traffic"), summary.get("traffic")):
        assert told is not None
        assert (told["records_in"], told["records_out"]) == (500, 500)
        assert told["bytes_in"] == told["bytes_out"] == on_disk // 3
    assert sum((broker.get("traffic") or {"records_in": 0})["records_in"] for broker in brokers) >= 500

    def shown() -> bool:
        status, out, _ = command(cluster, "stream", "describe", "measured")
        return status == 0 and "in: 500 records" in out and "out: 500 records" in out

    wait_until(shown, "the records that went in and out")


def test_records_with_one_message_id_are_published_where_that_is_asked(cluster: DevCluster) -> None:
    command(cluster, "stream", "create", "ids")
    lines = "".join(json.dumps({"value": str(number), "msg_id": "again"}) + "\n" for number in range(3))
    for option, duplicates, records in (("--dedup", 2, 1), ("--no-dedup", 0, 4)):
        told = printed(cluster, "publish", "ids", "--file", "-", "--format", "jsonl", option, stdin=lines)
        assert (told["records"], told["duplicates"]) == (3, duplicates)
        status, out, _ = command(cluster, "subscribe", "ids", "--stop", "latest", "--json")
        assert (status, len(out.splitlines())) == (0, records)


async def test_every_producer_goes_by_the_partitioner_of_the_stream(cluster: DevCluster) -> None:
    create = ("stream", "create", "kafka", "--partitions", "6", "--partitioner", "murmur2")
    assert (await asyncio.to_thread(printed, cluster, *create))["partitioner"] == "murmur2"
    keys = [b"key %d" % number for number in range(12)]
    lines = "".join(json.dumps({"key": key.decode(), "value": "by file"}) + "\n" for key in keys)
    publish = ("publish", "kafka", "--file", "-", "--format", "jsonl")
    assert (await asyncio.to_thread(command, cluster, *publish, stdin=lines))[0] == 0
    one = await asyncio.to_thread(printed, cluster, "publish", "kafka", "by hand", "--key", keys[0].decode())
    assert one["partition"] == murmur2(keys[0]) % 6

    def block() -> None:
        with tidelog.sync.connect(cluster.nats_url) as client, client.producer("kafka") as producer:
            producer.send_many([b"blocking"] * len(keys), keys=keys)

    await asyncio.to_thread(block)
    async with await tidelog.connect(cluster.nats_url) as client:
        async with client.producer("kafka") as producer:
            await asyncio.gather(*(producer.send(b"waiting", key=key) for key in keys))
        async with client.producer(transactional_id="kafka") as writer, writer.transaction():
            await writer.send_many("kafka", [b"transaction"] * len(keys), keys=keys)
        await until_told(client, "kafka")
        found = [record async for record in client.consume("kafka", stop="latest")]
        assert len(found) == 4 * len(keys) + 1
        assert all(record.partition == murmur2(record.key or b"") % 6 for record in found)
        assert (await client.ensure_stream("kafka", partitions=6))["partitioner"] == "murmur2"
        with pytest.raises(tidelog.StreamExists, match="exists with partitioner=murmur2, not crc32c"):
            await client.ensure_stream("kafka", partitions=6, partitioner="crc32c")
    shown = (await asyncio.to_thread(command, cluster, "stream", "describe", "kafka"))[1]
    assert "subject kafka  partitioner murmur2" in shown


async def test_a_stream_that_was_repartitioned_has_the_partitions_that_keys_are_spread_over(
    cluster: DevCluster,
) -> None:
    """A partition that is left over is none of them."""
    async with await tidelog.connect(cluster.nats_url) as client:
        made = await client.create_stream("narrow", partitions=4)
        async with client.producer("narrow") as producer:
            await producer.send(b"stays", partition=3)
        await client.repartition("narrow", 2)
        kept = await client.ensure_stream("narrow", partitions=2)
        assert kept["incarnation"] == made["incarnation"]
        assert kept["partitions"][-1]["partition"] == 3
        with pytest.raises(tidelog.StreamExists, match="exists with partitions=2, not 4; ask for what is there"):
            await client.ensure_stream("narrow", partitions=4)


async def test_settings_change_while_the_stream_is_used(cluster: DevCluster) -> None:
    await make(cluster.nats_url, "alters", 2)
    async with await tidelog.connect(cluster.nats_url) as client:
        before = await client.describe("alters")
        async with client.producer("alters") as producer:
            await producer.send(b"x" * 5000, partition=0)
            arguments = ("--config", "max_record_bytes=1000", "--config", "retention_max_bytes=100000000")
            changed = printed(cluster, "stream", "alter", "alters", *arguments)
            assert (changed["config"]["max_record_bytes"], changed["config"]["min_isr"]) == ("1000", "2")
            await until_taken(producer, 0, is_taken=False)
        printed(cluster, "stream", "alter", "alters", "--unset", "max_record_bytes")
        async with client.producer("alters") as producer:
            await until_taken(producer, 1, is_taken=True)
        after = await client.describe("alters")
        for old, new in zip(before["partitions"], after["partitions"], strict=True):
            assert (new["leader"], new["leader_epoch"], new["isr"]) == (old["leader"], old["leader_epoch"], old["isr"])
            assert new["epoch"] == old["epoch"] + 2
        await client.delete_stream("alters")


async def test_defaults_of_the_cluster_are_for_new_streams(cluster: DevCluster) -> None:
    assert printed(cluster, "cluster", "alter", "--config", "confirm_timeout_ms=1234") == {
        "config": {"confirm_timeout_ms": "1234"}
    }
    await make(cluster.nats_url, "inherits", 1)
    assert printed(cluster, "stream", "describe", "inherits")["config"]["confirm_timeout_ms"] == "1234"
    assert "confirm_timeout_ms=1234" in command(cluster, "cluster", "status")[1]
    assert printed(cluster, "cluster", "alter", "--unset", "confirm_timeout_ms") == {"config": {}}
    assert printed(cluster, "stream", "delete", "inherits", "--yes") == {"deleted": "inherits"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["stream", "alter", "nosuch", "--config", "compact=true"], "nosuch"),
        (["stream", "create", "few", "--config", "durability=replica_durable:4"], "3 at most"),
        (["stream", "describe", "nosuch"], "nosuch"),
        (["stream", "delete", "nosuch", "--yes"], "nosuch"),
        (["publish", "nosuch", "v"], "nosuch"),
        (["subscribe", "nosuch", "--stop", "latest"], "nosuch"),
        (["stream", "create", "a.b"], "a.b"),
        (["stream", "create", "wide", "--replication-factor", "4"], "number of live brokers, 3"),
        (["stream", "list", "--namespace", "elsewhere"], "no Tidelog broker answers"),
    ],
)
async def test_refusals_are_one_sentence_and_a_status(cluster: DevCluster, arguments: list[str], text: str) -> None:
    status, out, err = command(cluster, *arguments)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert text in err


async def test_every_way_to_produce_and_to_consume(cluster: DevCluster) -> None:
    await make(cluster.nats_url, "ways", 3)
    async with await tidelog.connect(cluster.nats_url) as client:
        values = [b"%d" % i for i in range(20_000)]
        keys = [b"k%d" % (i % 50) for i in range(20_000)]
        async with client.producer("ways", compression="zstd") as producer:
            placed = {
                index: (receipt.partition, receipt.base_offset + place)
                for receipt in await producer.send_many(values, keys=keys)
                for place, index in enumerate(receipt.indices)
            }
            futures = [producer.send_nowait(b"single", headers={"h": b"x"}) for _ in range(1000)]
            await producer.flush()
            assert all(future.done() for future in futures)
        async with client.producer("ways", acks="leader") as producer:
            await producer.send(b"leader")
            with pytest.raises(tidelog.RecordTooLarge):
                await producer.send(b"x" * ((1 << 20) + 1))
        async with client.producer("ways", acks="none") as producer:
            for _ in range(10):
                await producer.send(b"none")

        async def all_committed() -> dict[int, int] | None:
            ends = await client.offsets("ways", "latest")
            return ends if sum(ends.values()) == 21_011 else None

        ends = await until(all_committed, "the commit of all records")
        found = {(r.partition, r.offset): r async for r in client.consume("ways", stop="latest")}
        assert len(found) == 21_011
        for index, place in placed.items():
            assert (found[place].key, found[place].value) == (keys[index], values[index])
        by_columns = [batch async for batch in client.consume("ways", stop="latest").batches()]
        assert sum(map(len, by_columns)) == 21_011
        assert by_columns[0].to_arrow().num_rows == len(by_columns[0])
        middle = {partition: end // 2 for partition, end in ends.items()}
        later = [r async for r in client.consume("ways", start=middle, stop=ends)]
        assert len(later) == sum(ends.values()) - sum(middle.values())
        assert await client.offsets("ways", "earliest") == {0: 0, 1: 0, 2: 0}
        moment = found[0, middle[0]].timestamp
        assert (await client.offsets("ways", moment))[0] <= middle[0]
        await client.delete_stream("ways")
        with pytest.raises(tidelog.UnknownStream):
            await client.offsets("ways", "latest")


async def test_bulk_and_its_reader_go_through_a_leader_kill(cluster: DevCluster) -> None:
    """Full windows of full batches are out when the leader is killed; a consumer follows all the while."""
    await make(cluster.nats_url, "bulk", 1)
    total = 400_000
    values = [b"%08d" % i + b"x" * 120 for i in range(total)]
    async with (
        await tidelog.connect(cluster.nats_url) as client,
        client.producer("bulk", delivery_timeout_ms=LIMIT * 2000) as producer,
    ):
        seen: list[bytes | None] = []

        async def read() -> None:
            async for batch in client.consume("bulk", start=0, stop=total).batches():
                seen.extend(batch.values)

        reading = asyncio.create_task(read())
        sending = asyncio.create_task(producer.send_many(values))
        old = await leader_of(client, "bulk", 0)
        while not seen:
            assert not sending.done()
            await asyncio.sleep(0.001)
        cluster.kill(old)
        receipts = await sending
        await asyncio.wait_for(reading, 2 * LIMIT)
        cluster.start_broker(old)
        assert await leader_of(client, "bulk", 0) != old
        assert seen == values, "each record once, in order"
        assert sorted(i for receipt in receipts for i in receipt.indices) == list(range(total))
        for receipt in receipts:
            assert receipt.base_offset == receipt.indices[0]
        await client.delete_stream("bulk")
