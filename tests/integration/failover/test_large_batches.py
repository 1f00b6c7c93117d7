"""Batches as large as NATS carries, on three real brokers: compacted, copied from the start, and met by a server that
carries less."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, ReplicatedCluster, observed
from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder, BatchHeader, Compression, EncodedBatch, iter_batches
from wire.errors import TidelogError
from wire.messaging.transport import NO_RESPONDERS
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

STREAM = "states"
ROOM = 1024
"""What a message holds beside the largest batch."""


def cluster_of(directory: Path, max_payload: int, keys: Path | None = None) -> AbstractContextManager[DevCluster]:
    storage = {"housekeeping_interval": 0.1, "compaction_min_dirty_ratio": 0.01, "compaction_bytes_per_second": 0}
    settings = {**SETTINGS, "storage": storage}
    return dev_cluster(directory, settings=settings, master_key_file=keys, max_payload=max_payload)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    """nats-server as it is configured by default, for messages of 1 MiB."""
    keys = tmp_path / "keys"
    keys.write_text("2026-05 " + "05" * 32 + "\n")
    with cluster_of(tmp_path / "cluster", 1 << 20, keys) as running:
        yield running


def full_batch(number: int, largest: int, random: Random, compression: Compression) -> EncodedBatch:
    """Keys of its own and values that do not compress; with 4 bytes more a record it would not fit a message."""
    builder = BatchBuilder()
    count = (largest - 200) // (60 + 9 + 8)
    for index in range(count):
        builder.add_record(random.randbytes(60), key_of(number, index))
    batch = builder.build(1, compression=compression)
    assert batch.size <= largest
    assert compression is not Compression.NONE or batch.size + 4 * count > largest + ROOM
    return batch


def key_of(batch: int, index: int) -> bytes:
    return b"%02d/%06d" % (batch, index)


async def append(nats: NatsConnection, stream: str, batch: EncodedBatch) -> int:
    """Its base offset."""
    subject = Subjects().append(StreamName(stream), 0)
    parts = encode_append(AppendRequest(), batch.stamp(Offset(0), LeaderEpoch(0))[0])
    while True:
        answer = await nats.request(subject, b"".join(parts), timeout=LIMIT)
        if answer.status != NO_RESPONDERS:
            error = TidelogError.from_headers(answer.headers)
            assert error is None, error
            return int(AppendResponse.FromString(answer.data).base_offset)


def stored(cluster: ReplicatedCluster, stream: str, broker: str) -> list[BatchHeader]:
    return [header for _, header in iter_batches(cluster.on_disk(stream, broker))]


async def newest_of_each_key(
    cluster: ReplicatedCluster, stream: str, read_from: str = "leader"
) -> tuple[dict[bytes | None, bytes | None], int]:
    newest: dict[bytes | None, bytes | None] = {}
    count = 0
    consumer = cluster.client.consume(stream, start="earliest", stop="latest", read_from=read_from)  # type: ignore[arg-type]
    async with asyncio.timeout(2 * LIMIT):
        async for batch in consumer.batches():
            newest.update(zip(batch.keys, batch.values, strict=True))
            count += len(batch.keys)
    return newest, count


@pytest.mark.parametrize(
    ("compression", "encryption"), [(Compression.NONE, False), (Compression.NONE, True), (Compression.LZ4, False)]
)
async def test_a_compacted_log_of_full_batches_is_read_and_copied_from_the_start(
    processes: DevCluster, compression: Compression, encryption: bool
) -> None:
    random = Random(7)
    async with observed(processes) as cluster:
        settings = {"encryption": "true"} if encryption else {}
        await cluster.create(STREAM, segment_bytes=2_500_000, compact="true", **settings)
        largest = cluster.nats.max_payload - ROOM
        sizes: dict[int, int] = {}
        expected: dict[bytes | None, bytes | None] = {}
        for number in range(8):
            batch = full_batch(number, largest, random, compression)
            sizes[await append(cluster.nats, STREAM, batch)] = batch.size + (112 if encryption else 0)
        expected, _ = await newest_of_each_key(cluster, STREAM)
        async with cluster.client.producer(STREAM, acks="all") as producer:
            for number in range(6):
                expected[key_of(number, 17)] = b"newer"
                await producer.send(b"newer", key=key_of(number, 17))
        for number in (8, 9, 10):  # which ends the segment with the newer ones
            batch = full_batch(number, largest, random, compression)
            sizes[await append(cluster.nats, STREAM, batch)] = batch.size + (112 if encryption else 0)
        expected, _ = await newest_of_each_key(cluster, STREAM)

        async def is_compacted() -> bool:
            lost = [
                sum(header.record_count < header.offset_count for header in stored(cluster, STREAM, broker))
                for broker in cluster.brokers
            ]
            return min(lost) >= 6

        await until(is_compacted, "six batches to lose a record on every broker", 2 * LIMIT)
        for broker in cluster.brokers:
            for header in stored(cluster, STREAM, broker):
                assert header.size <= sizes.get(header.base_offset, header.size)

        read = await newest_of_each_key(cluster, STREAM)
        assert read == (expected, len(expected))

        leader = await cluster.leader(STREAM, isr=3)
        away = cluster.others(leader.broker)[0]
        cluster.kill(away)
        shutil.rmtree(processes.broker_dir(away))
        processes.start_broker(away, replace=True)
        end = leader.log_end_offset
        await cluster.until_replica(STREAM, away, lambda r: r.log_end_offset == end, f"{away} to copy the log")
        await cluster.leader(STREAM, isr=3)
        assert sum(h.record_count for h in stored(cluster, STREAM, away) if not h.is_control) == len(expected)
        await cluster.client.move_leader(STREAM, 0, away)
        await cluster.leader(STREAM, above_epoch=leader.leader_epoch, isr=3)
        assert await newest_of_each_key(cluster, STREAM) == (expected, len(expected))
        assert await newest_of_each_key(cluster, STREAM, "follower") == (expected, len(expected))


async def test_where_nats_carries_less_than_is_stored_everybody_is_told_until_it_carries_it_again(
    tmp_path: Path,
) -> None:
    random = Random(8)
    with cluster_of(tmp_path, 4 << 20) as processes:
        async with observed(processes) as cluster:
            await cluster.create(STREAM)
            await cluster.send(STREAM, b"small")
            place = await append(
                cluster.nats, STREAM, full_batch(0, cluster.nats.max_payload - ROOM, random, Compression.NONE)
            )
            expected = await newest_of_each_key(cluster, STREAM)
            leader = await cluster.leader(STREAM, isr=3)
            away = cluster.others(leader.broker)[0]
            cluster.kill(away)
            shutil.rmtree(processes.broker_dir(away))

            processes.nats.stop()
            processes.nats._max_payload = 1 << 20
            processes.nats.start()
            await until(
                lambda: cluster.nats.is_connected and cluster.nats.max_payload == 1 << 20,
                "the connection to the server that carries less",
            )
            processes.start_broker(away, replace=True)

            async def stopped() -> str | None:
                [partition] = (await cluster.client.describe(STREAM))["partitions"]
                return partition["replicas_progress"][away]["stopped"]

            why = await until(stopped, f"{away} to say why it cannot copy")
            assert f"what lies at offset {place} of " in why
            assert "raise max_payload" in why
            with pytest.raises(tidelog.MessageTooLarge, match=f"what lies at offset {place} of ") as caught:
                await newest_of_each_key(cluster, STREAM)
            assert caught.value.code is tidelog.Code.MESSAGE_TOO_LARGE
            began = time.monotonic()
            before = (await counters_of(cluster.client, away))["answers_too_large"]
            assert before > 0
            await asyncio.sleep(3)
            more = (await counters_of(cluster.client, away))["answers_too_large"] - before
            assert more <= 6 * (time.monotonic() - began), "it asks at network speed"

            processes.nats.stop()
            processes.nats._max_payload = 4 << 20
            processes.nats.start()
            await cluster.leader(STREAM, isr=3)
            assert await newest_of_each_key(cluster, STREAM) == expected

            async def goes_on() -> bool:
                return await stopped() is None

            await until(goes_on, f"{away} that tells no reason any more")
