"""What a task of Spark reads, and by which connection, from a real cluster: no Spark in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import tidelog
from spark_connector.reads.client_log import ClientLog, Isolation
from spark_connector.reads.log_port import OffsetRange
from spark_connector.reads.read_options import SourceOptions
from spark_connector.reads.read_task import TaskSettings, read_ranges
from spark_connector.reads.stream_reader import TidelogStreamReader
from spark_connector.shared.arrow_rows import spark_schema
from spark_connector.shared.connections import Address, Cluster, KeptConnections
from spark_connector.shared.retrying import Patience
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.transactions.told_transactions import until_told
from tidelog.server.devcluster import DevCluster
from wire.errors import Code, TidelogError
from wire.types import Incarnation, Offset, StreamName

LEVELS = [Isolation(), Isolation(read_from="follower")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def pool() -> Iterator[KeptConnections]:
    kept = KeptConnections()
    yield kept
    kept.close()


def log_of(cluster: DevCluster, pool: KeptConnections, isolation: Isolation = LEVELS[0]) -> ClientLog:
    return ClientLog(Cluster(Address((cluster.nats_url,), "tidelog", None, ()), Patience(60), pool), isolation)


def whole(log: ClientLog, stream: str) -> list[OffsetRange]:
    """All that the log tells as readable."""
    extent = log.extents([StreamName(stream)])[StreamName(stream)]
    return [
        OffsetRange(extent.stream, extent.incarnation, partition, held.incarnation, held.log_start, held.end)
        for partition, held in extent.partitions.items()
    ]


def values(log: ClientLog, ranges: list[OffsetRange]) -> list[bytes]:
    schema = spark_schema(include_headers=False, columns=["value"])
    batches = read_ranges(log, ranges, schema, TaskSettings(1 << 20, fail_on_data_loss=True))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_transactions(cluster: DevCluster, pool: KeptConnections) -> None:
    """Committed, aborted and open ones, between records without any: the aborted ones more than an answer holds."""

    async def write_and_read() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("ledger", subject="ledger", partitions=1, replication_factor=3)
            plain = client.producer("ledger", acks="all")
            await plain.send(b"plain 1")
            async with client.producer(transactional_id="writer", streams="ledger") as producer:
                async with producer.transaction():
                    await producer.send("ledger", b"committed 1")
                with suppress(ZeroDivisionError):
                    async with producer.transaction():
                        for _ in range(60):
                            await producer.send("ledger", b"aborted".ljust(100_000))
                        raise ZeroDivisionError
                async with producer.transaction():
                    await producer.send("ledger", b"committed 2")
                await plain.send(b"plain 2")
                async with producer.transaction():
                    await producer.send("ledger", b"open")
                    await producer.flush()
                    await plain.send(b"plain 3")
                    await asyncio.to_thread(check_while_open)
            await until_told(client, "ledger")
            await plain.close()

    settled = [b"plain 1", b"committed 1", b"committed 2", b"plain 2"]

    def check_while_open() -> None:
        for isolation in LEVELS:
            log = log_of(cluster, pool, isolation)
            assert values(log, whole(log, "ledger")) == settled, isolation
        log = log_of(cluster, pool, Isolation(read_uncommitted=True))
        everything = values(log, whole(log, "ledger"))
        assert [value for value in everything if not value.startswith(b"aborted")] == [*settled, b"open", b"plain 3"]
        assert len(everything) == len(settled) + 60 + 2

    asyncio.run(write_and_read())
    for isolation in LEVELS:
        log = log_of(cluster, pool, isolation)
        assert values(log, whole(log, "ledger")) == [*settled, b"open", b"plain 3"], isolation


async def fill(url: str, stream: str, count: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(stream, subject=stream, partitions=4, replication_factor=3)
        async with client.producer(stream, acks="all") as producer:
            for partition in range(4):
                await producer.send_many([b"%d/%d" % (partition, i) for i in range(count)], partition=partition)


def test_a_connection_serves_task_after_task(cluster: DevCluster, pool: KeptConnections) -> None:
    asyncio.run(fill(cluster.nats_url, "tasks", 100))
    log = log_of(cluster, pool)
    ranges = whole(log, "tasks")
    expected = [b"%d/%d" % (partition, i) for partition in range(4) for i in range(100)]
    assert values(log, ranges) == expected
    first = log.cluster.connection()
    # A task that fails, and one that is left in the midst.
    other = [OffsetRange(each.stream, Incarnation(each.stream_incarnation + 1), *_rest(each)) for each in ranges]
    with pytest.raises(TidelogError) as caught:
        values(log_of(cluster, pool), other)
    assert caught.value.code is Code.WRONG_INCARNATION
    schema = spark_schema(include_headers=False)
    left = read_ranges(log, ranges, schema, TaskSettings(1 << 20, fail_on_data_loss=True))
    left.close()
    # While nothing is read its server goes away, as an idle connection may.
    cluster.nats.kill()
    cluster.nats.start()
    assert values(log_of(cluster, pool), ranges) == expected
    assert log.cluster.connection() is first


def _rest(of: OffsetRange) -> tuple[int, Incarnation, Offset, Offset]:
    return of.partition, of.partition_incarnation, of.start, of.end


def test_a_stream_is_repartitioned_in_mid_query(cluster: DevCluster, pool: KeptConnections) -> None:
    """With order=key: each key's records come in their order, in micro-batches or within one partition of one."""

    async def write(client: tidelog.Client, first: int) -> None:
        async with client.producer("routes", acks="all") as producer:
            for number in range(first, first + 60):
                producer.send_nowait(b"%d" % number, key=b"k%d" % (number % 12))
            await producer.flush()

    async def write_all() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            for first in (60, 120):
                await write(client, first)
            await client.repartition("routes", 5)
            for first in (180, 240):
                await write(client, first)

    async def begin() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("routes", partitions=2, replication_factor=3)
            await write(client, 0)

    given = {"servers": cluster.nats_url, "subscribe": "routes", "startingOffsets": "earliest", "order": "key"}
    schema = spark_schema(include_headers=False, columns=["key", "value"])
    log = log_of(cluster, pool, Isolation(in_key_order=True))
    reader = TidelogStreamReader(SourceOptions.parse(given).for_stream(), schema, lambda _: log)
    newest: dict[bytes, int] = {}
    read: list[int] = []
    asyncio.run(begin())
    position = reader.initialOffset()
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(asyncio.run, write_all())
        deadline = time.monotonic() + 300
        while len(read) < 300:
            assert time.monotonic() < deadline, f"{len(read)} records after {position}"
            if writing.done():
                writing.result()
            end = reader.latestOffset(position, ReadAllAvailable())
            of_key: dict[bytes, tuple[int, list[int]]] = {}
            for task in reader.partitions(position, end):
                for each in task.value:
                    batches = [*read_ranges(log, [each], schema, TaskSettings(1 << 20, fail_on_data_loss=True))]
                    for row in [row for batch in batches for row in batch.to_pylist()]:
                        key, value = row["key"], row["value"]
                        partition, numbers = of_key.setdefault(key, (each.partition, []))
                        assert partition == each.partition, "between partitions of a micro-batch there is no order"
                        numbers.append(int(value))
            for key, (_, numbers) in of_key.items():
                assert numbers == sorted(numbers)
                assert numbers[0] > newest.get(key, -1)
                newest[key] = numbers[-1]
                read += numbers
            position = end
        writing.result()
    assert sorted(read) == [*range(300)]
