"""What clients of all kinds may expect while a stream goes to another number of partitions: encrypted streams, the port
for Liftbridge's clients, publishers written for JetStream, transactions, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import nats
import pytest
from grpc import StatusCode
from nats.js.api import PubAck
from nats.js.errors import NoStreamResponseError

import tidelog
from tests.integration.liftbridge.liftbridge_stub import Stub, cluster_with_port, stub
from tests.integration.rig.command_line import start_tidelog
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import wait_in_sync
from tests.integration.transactions.told_transactions import until_told
from tidelog.server.devcluster import DevCluster
from wire.batch import iter_batches
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import AckPolicy

OLD = "2026-05 " + "05" * 32
NEW = "2026-11 " + "11" * 32
KEYS = [b"key-%d" % number for number in range(12)]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the master keys of all brokers."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(OLD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[DevCluster]:
    settings = {"metadata": {"repartition_adoption_timeout_s": 1.0}, "storage": {"housekeeping_interval": 0.1}}
    folder = tmp_path_factory.mktemp("cluster")
    with cluster_with_port(folder, settings=settings, master_key_file=keys) as running:
        yield running


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as running:
        yield running


@asynccontextmanager
async def ports(cluster: DevCluster) -> AsyncIterator[list[Stub]]:
    """The port of each broker."""
    addresses = [cluster.liftbridge_address(broker) for broker in cluster.broker_ids]
    async with stub(addresses[0]) as b1, stub(addresses[1]) as b2, stub(addresses[2]) as b3:
        yield [b1, b2, b3]


async def made(client: tidelog.Client, cluster: DevCluster, stream: str, **config: str | int | bool) -> None:
    """Three partitions on all three."""
    await client.create_stream(stream, partitions=3, replication_factor=3, config=config)
    await wait_in_sync(cluster.nats_url, stream, timeout=LIMIT)


async def repartitioned(client: tidelog.Client, stream: str, partitions: int) -> None:
    """Until it is finished."""
    await client.repartition(stream, partitions)

    async def finished() -> bool:
        status = await client.repartition_status(stream)
        return status["repartition"] is None and status["partitions"] == partitions

    await until(finished, f"the end of the repartition to {partitions}")


class Load:
    """Numbers in order under each key, each sent when the one before was acknowledged."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.is_over = False
        self.sent: dict[bytes, list[bytes]] = defaultdict(list)

    async def write(self, client: tidelog.Client) -> None:
        async with client.producer(self._stream, delivery_timeout_ms=LIMIT * 1000) as producer:
            await asyncio.gather(*(self._write(producer, key) for key in KEYS))

    async def _write(self, producer: tidelog.Producer, key: bytes) -> None:
        while not self.is_over:
            value = b"%d" % len(self.sent[key])
            await producer.send(value, key=key)
            self.sent[key].append(value)
            await asyncio.sleep(0.005)

    async def until_more(self, records: int = 20) -> None:
        """Of each key."""
        wanted = {key: len(self.sent[key]) + records for key in KEYS}
        await until(lambda: all(len(self.sent[key]) >= wanted[key] for key in KEYS), "more records of each key")


async def by_key(client: tidelog.Client, stream: str, **options: Any) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    async for record in client.consume(stream, start="earliest", stop="latest", order="key", **options):
        found[record.key].append(record.value)
    return found


# ---------------------------------------------------------------------------------------------------------- encryption
async def test_an_encrypted_stream_while_its_keys_are_rotated(
    cluster: DevCluster, client: tidelog.Client, keys: Path
) -> None:
    await made(client, cluster, "vault", encryption=True)
    load = Load("vault")
    read: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    of_group: dict[bytes | None, list[bytes | None]] = defaultdict(list)

    async def read_on() -> None:
        async for record in client.consume("vault", order="key"):
            read[record.key].append(record.value)

    async def take_part(member: tidelog.Client) -> None:
        async with member.subscribe("vault", group="guards") as consumer:
            async for record in consumer:
                of_group[record.key].append(record.value)

    async def give(*lines: str) -> None:
        keys.write_text("\n".join(lines) + "\n")
        for broker in cluster.broker_ids:
            cluster.kill(broker, signal.SIGHUP)
        ids = ",".join(line.split()[0] for line in lines)

        async def known() -> bool:
            brokers = (await client.cluster_status())["brokers"]
            return {broker["labels"].get("master_keys") for broker in brokers} == {ids}

        await until(known, f"the keys {ids} on all brokers")

    async with await tidelog.connect(cluster.nats_url) as other:
        tasks = [asyncio.create_task(work) for work in (read_on(), take_part(client), take_part(other))]
        writing = asyncio.create_task(load.write(other))
        try:
            await load.until_more()
            await repartitioned(client, "vault", 6)
            await load.until_more()
            await give(OLD, NEW)
            await give(NEW, OLD)
            await repartitioned(client, "vault", 4)
            await load.until_more()
            load.is_over = True
            await writing
            total = sum(map(len, load.sent.values()))
            await until(lambda: min(sum(map(len, each.values())) for each in (read, of_group)) >= total, "all records")
            assert read == of_group == load.sent
        finally:
            load.is_over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, writing, return_exceptions=True)
    assert await by_key(client, "vault", read_from="follower") == load.sent
    logs = [path.read_bytes() for path in sorted(cluster.broker_dir("b1").glob("vault-*/*/*.log"))]
    used = [[log[at + 96 + 24 : at + 96 + 31] for at, _ in iter_batches(log)] for log in logs]
    assert all(header.is_encrypted for log in logs for _, header in iter_batches(log))
    assert all(ids == sorted(ids) for ids in used), "the old key is used no more once the new one is"
    assert {key for ids in used for key in ids} == {b"2026-05", b"2026-11"}


# ---------------------------------------------------------------------------------------------------------- Liftbridge
def publish(partition: int, value: bytes = b"x", **more: Any) -> pb.PublishRequest:
    return pb.PublishRequest(stream="lift", partition=partition, value=value, ackPolicy=AckPolicy.ALL, **more)


async def until_port_knows(port: Stub, partitions: dict[int, bool]) -> None:
    """Until clients hear of these, by number whether they are read-only."""

    async def is_reported() -> bool:
        (stream,) = (await port.call(pb.FetchMetadataRequest(streams=["lift"]))).streamMetadata
        return {number: partition.readonly for number, partition in stream.partitions.items()} == partitions

    await until(is_reported, f"metadata of {partitions}")


async def test_liftbridges_clients(cluster: DevCluster, client: tidelog.Client) -> None:
    await made(client, cluster, "lift")
    async with ports(cluster) as (b1, b2, b3), client.producer(transactional_id="lift") as producer:
        for port in (b1, b2, b3):  # each has a producer of three partitions
            await port.call(publish(2))
        await repartitioned(client, "lift", 6)
        for number, port in zip((3, 4, 5), (b1, b2, b3), strict=True):
            for _ in range(2):
                assert (await port.call(publish(number, b"to a new one"))).ack.partition == number
        await until_port_knows(b2, dict.fromkeys(range(6), False))
        await b1.call(pb.SetCursorRequest(stream="lift", partition=4, cursorId="mine", offset=1))
        await producer.begin()
        await producer.send("lift", b"in a transaction", partition=5)
        reading = [
            asyncio.create_task(
                port.records(pb.SubscribeRequest(stream="lift", partition=number, startPosition=pb.EARLIEST))
            )
            for port, number in ((b1, 4), (b2, 5))
        ]
        await repartitioned(client, "lift", 4)
        for port in (b1, b2, b3):
            await until_port_knows(port, {number: number >= 4 for number in range(6)})
            about = (await port.call(pb.FetchPartitionMetadataRequest(stream="lift", partition=5))).metadata
            assert (about.readonly, about.messagesReceivedTimestamps.latestTimestamp > 0) == (True, True)
            assert [(await port.call(publish(number))).ack.partition for number in (1, 4, 5)] == [1, 0, 1]
        assert await b2.refusal(publish(6)) == (StatusCode.NOT_FOUND, "there is no partition 6 in stream 'lift'")
        status, sentence = await b2.refusal(publish(5, expectedOffset=2))
        assert status is StatusCode.FAILED_PRECONDITION
        assert "takes no records since the stream has 4 partitions" in sentence
        assert "nothing was written" in sentence
        records, status, sentence = await reading[0]
        assert [record.value for record in records] == [b"to a new one"] * 2
        assert (status, sentence) == (StatusCode.RESOURCE_EXHAUSTED, "End of retired partition")
        await b2.records(pb.SubscribeRequest(stream="lift", partition=4))  # which takes as long as the other one's look
        assert not reading[1].done(), "a transaction is open there"
        await producer.commit()
        records, status, _ = await reading[1]
        assert [record.value for record in records][-1] == b"in a transaction"
        assert status is StatusCode.RESOURCE_EXHAUSTED
        # Partition 4 is removed, and made anew.
        await client.delete_records("lift", {4: "latest"})

        async def is_gone() -> bool:
            return 4 not in {each["partition"] for each in (await client.describe("lift"))["partitions"]}

        await until(is_gone, "the removal of partition 4")
        for port in (b1, b2, b3):
            await until_port_knows(port, {number: number >= 4 for number in (0, 1, 2, 3, 5)})
        assert (await b3.call(publish(4))).ack.partition == 0
        for request in (
            pb.FetchPartitionMetadataRequest(stream="lift", partition=4),
            pb.FetchCursorRequest(stream="lift", partition=4, cursorId="mine"),
        ):
            assert (await b1.refusal(request))[0] is StatusCode.NOT_FOUND
        _, status, _ = await b2.records(pb.SubscribeRequest(stream="lift", partition=4))
        assert status is StatusCode.NOT_FOUND
        await repartitioned(client, "lift", 5)
        for port in (b1, b3):
            await until_port_knows(port, {number: number >= 5 for number in range(6)})
        assert (await b3.call(publish(4))).ack.offset == 0
        answer = await b1.call(pb.FetchCursorRequest(stream="lift", partition=4, cursorId="mine"))
        assert answer.offset == -1, "that was another partition"


# ----------------------------------------------------------------------------------------------------------- JetStream
async def test_publishers_written_for_jetstream(cluster: DevCluster, client: tidelog.Client) -> None:
    """They publish to all six partitions by their ids, again while nobody listens, and lose nothing."""
    await made(client, cluster, "jet")
    connection = await nats.connect(cluster.nats_url)
    js = connection.jetstream()
    acknowledged: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    """By subject, value and sequence."""
    is_over = False

    async def published(number: int, msg_id: str, value: bytes, timeout: float = 1.0) -> PubAck:
        subject = f"jet.{number}" if number else "jet"
        while True:
            try:
                return await js.publish(subject, value, headers={"Nats-Msg-Id": msg_id}, timeout=timeout)
            except (NoStreamResponseError, nats.errors.TimeoutError):
                await asyncio.sleep(0.01)

    async def publish_on(number: int) -> None:
        for each in count():
            if is_over:
                return
            value = b"%d:%d" % (number, each)
            ack = await published(number, value.decode(), value)
            acknowledged[number].append((value, ack.seq))

    async def more() -> None:
        wanted = {number: len(acknowledged[number]) + 20 for number in range(6)}
        await until(lambda: all(len(acknowledged[n]) >= wanted[n] for n in wanted), "more acknowledgements")

    await repartitioned(client, "jet", 6)
    publishing = [asyncio.create_task(publish_on(number)) for number in range(6)]
    try:
        for partitions in (4, 2, 5):
            await more()
            await repartitioned(client, "jet", partitions)
        await more()
        is_over = True
        await asyncio.gather(*publishing)
        # Partition 5 has left: its records go to partition 0, where its ids are not known.
        first, again = [await published(5, "known", b"5:known", LIMIT) for _ in range(2)]
        assert (first.duplicate, again.duplicate) == (None, True)
        assert again.seq == first.seq
        acknowledged[5].append((b"5:known", first.seq))
    finally:
        is_over = True
        for task in publishing:
            task.cancel()
        await connection.close()
    stored: dict[bytes, list[int]] = defaultdict(list)
    async for record in client.consume("jet", start="earliest", stop="latest"):
        assert record.value is not None
        stored[record.value].append(record.offset + 1)
    for values in acknowledged.values():
        for value, sequence in values:
            assert sequence in stored[value]


# -------------------------------------------------------------------------------------------------------- transactions
async def test_transactions_that_are_open_at_the_cutover(cluster: DevCluster, client: tidelog.Client) -> None:
    await made(client, cluster, "ledger")

    async def write(producer: tidelog.TransactionalProducer, what: bytes) -> None:
        for key in KEYS:
            await producer.send("ledger", what, key=key)

    for partitions in (6, 2):
        async with (
            client.producer(transactional_id=f"ends-{partitions}") as ends,
            client.producer(transactional_id=f"goes-on-{partitions}") as goes_on,
        ):
            for producer, what in ((ends, b"ended"), (goes_on, b"aborted")):
                await producer.begin()
                await write(producer, what)
            await repartitioned(client, "ledger", partitions)
            await ends.commit()
            with pytest.raises(tidelog.TidelogError, match="begin the transaction again") as refused:
                await write(goes_on, b"aborted")
            assert refused.value.retriable
            with pytest.raises(tidelog.TransactionAborted):
                await goes_on.commit()
            await goes_on.begin()
            await write(goes_on, b"begun again")
            await goes_on.commit()
    await until_told(client, "ledger")
    assert await by_key(client, "ledger") == dict.fromkeys(KEYS, [b"ended", b"begun again"] * 2)


# ---------------------------------------------------------------------------------------------------- the command line
async def test_commands_that_run_meanwhile(cluster: DevCluster, client: tidelog.Client, tmp_path: Path) -> None:
    await made(client, cluster, "lines")
    outputs = {name: tmp_path / name for name in ("reader", "member")}
    arguments = {"reader": ("--order", "key", "--resume", str(tmp_path / "kept")), "member": ("--group", "lines")}
    running: dict[str, subprocess.Popen[str]] = {}

    def start(name: str) -> None:
        with outputs[name].open("a") as output:
            running[name] = start_tidelog(
                "subscribe", "lines", "--json", *arguments[name], "--server", cluster.nats_url, stdout=output
            )

    def read(name: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        *lines, _ = outputs[name].read_text().split("\n")  # behind the last one is nothing, or a part of the next
        for record in map(json.loads, lines):
            found[record["key"]].append(int(record["value"]))
        return found

    for name in outputs:
        start(name)
    publisher = start_tidelog(
        "publish", "lines", "--format", "jsonl", "--server", cluster.nats_url,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert publisher.stdin is not None
    numbers = count()
    sent: list[int] = []

    def feed() -> None:
        assert publisher.stdin is not None
        for number in (next(numbers) for _ in range(20)):
            sent.append(number)
            for key in KEYS:
                publisher.stdin.write(json.dumps({"key": key.decode(), "value": f"{number}"}) + "\n")
        publisher.stdin.flush()

    def is_read() -> bool:
        return all(read(name) == {key.decode(): sent for key in KEYS} for name in outputs)

    try:
        feed()
        await until(is_read, "the first lines")
        await repartitioned(client, "lines", 6)
        feed()
        await until(is_read, "the lines in six partitions")
        running["reader"].send_signal(signal.SIGINT)
        assert await asyncio.to_thread(running["reader"].wait, LIMIT) in (130, -signal.SIGINT)
        feed()
        await repartitioned(client, "lines", 2)
        start("reader")
        feed()
        publisher.stdin.close()
        assert await asyncio.to_thread(publisher.wait, LIMIT) == 0
        await until(is_read, "the last lines")
    finally:
        for process in (publisher, *running.values()):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
