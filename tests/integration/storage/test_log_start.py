"""A broker is away while retention removes records that it lacks. It comes back, begins at the log start, and leads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.integration.rig.brokers_status import counters_of
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, ReplicatedCluster, observed
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder
from wire.operations.api_operations import PRODUCER_INIT, ProducerIdentity
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.security.batch_proofs import add_batch_proof
from wire.security.tickets import partition_target
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset, StreamName

STREAM = "forgetful"
RECORDS = 60
SIZE = 1000


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    settings = {**SETTINGS, "storage": {"housekeeping_interval": 0.1}}
    with dev_cluster(tmp_path, settings=settings) as running:
        yield running


async def append(cluster: ReplicatedCluster, producer: ProducerIdentity, sequence: int) -> AppendResponse:
    """One record of `producer`, acknowledged by all."""
    builder = BatchBuilder()
    builder.add_values([b"numbered %d" % sequence])
    batch = builder.build(1, producer_id=producer["producer_id"], producer_epoch=0, base_sequence=sequence)
    parts, _ = batch.stamp(Offset(0), LeaderEpoch(0))
    known = await cluster.client.metadata(STREAM)
    target = partition_target(STREAM, known.incarnation, 0, known.partitions[0].incarnation)
    request = AppendRequest(acks=AppendRequest.ALL)
    add_batch_proof(request, bytes.fromhex(producer["key"]), target, parts)
    message = b"".join(bytes(part) for part in encode_append(request, parts))

    async def answered() -> AppendResponse | None:
        answer = await cluster.nats.request(Subjects().append(StreamName(STREAM), 0), message, timeout=LIMIT)
        if answer.status is not None or answer.headers:
            return None  # a new leader does not listen yet
        return AppendResponse.FromString(bytes(answer.data))

    return await until(answered, f"the acknowledgement of number {sequence}")


async def log_start(cluster: ReplicatedCluster) -> int:
    return min((await cluster.client.offsets(STREAM, "earliest")).values())


def first_segment(cluster: ReplicatedCluster, broker: str) -> int:
    return min(int(file.stem) for file in cluster.processes.broker_dir(broker).glob(f"{STREAM}-*/*/*.log"))


def epochs(cluster: ReplicatedCluster, broker: str, start: int) -> dict[int, int]:
    """The epochs from `start` on in its log: start offset and number of each."""
    (folder,) = cluster.processes.broker_dir(broker).glob(f"{STREAM}-*/*")
    with tempfile.TemporaryDirectory() as copies:
        copy = Path(copies) / "log"
        shutil.copytree(folder, copy)
        log, _ = PartitionLog.open(copy, LogConfig(), page_cache_survived=True)
        entries = log.epochs.entries
        log.close()
    return {max(start, entry.start): entry.epoch for entry in entries}


async def test_a_follower_below_the_log_start_takes_over_epochs_and_producers(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        await cluster.create(STREAM, segment_bytes=8192, retention_max_bytes=16384)
        producer = await cluster.client._api.call(PRODUCER_INIT)
        assert [(await append(cluster, producer, number)).base_offset for number in range(3)] == [0, 1, 2]
        before = await cluster.leader(STREAM, isr=3)
        away = cluster.others(before.broker)[0]
        cluster.kill(away)
        acknowledged = await cluster.send(STREAM, *(b"%d " % n + b"." * SIZE for n in range(RECORDS)))

        async def has_forgotten() -> bool:
            return await log_start(cluster) > 3

        await until(has_forgotten, "a log start above the numbered records")

        cluster.start(away)
        await cluster.leader(STREAM, isr=3)
        assert (await counters_of(cluster.client, away))["skip_ahead_total"] == 1

        last = await cluster.leader(STREAM, isr=3)
        while last.broker != away:
            await cluster.client.move_leader(STREAM, 0, away)
            last = await cluster.leader(STREAM, above_epoch=last.leader_epoch, isr=3)
        repeated = [await append(cluster, producer, number) for number in range(3)]
        assert [(each.duplicate, each.base_offset) for each in repeated] == [(True, 0), (True, 1), (True, 2)]

        cluster.kill(before.broker)
        fresh = await append(cluster, producer, 3)
        assert not fresh.duplicate
        assert fresh.base_offset > acknowledged[-1]
        cluster.start(before.broker)
        await cluster.leader(STREAM, isr=3)

        async def read() -> tuple[int, list[bytes | None]] | None:
            """Where the log starts, and all of it, unless records were forgotten meanwhile."""
            start = await log_start(cluster)
            values = await cluster.committed(STREAM)
            return (start, values) if await log_start(cluster) == start else None

        start, values = await until(read, "all records")
        kept = [b"%d " % n + b"." * SIZE for n, offset in enumerate(acknowledged) if offset >= start]
        assert values == [*kept, b"numbered 3"]

        def same_epochs() -> bool:
            highest = max(first_segment(cluster, broker) for broker in cluster.brokers)
            return epochs(cluster, away, highest) == epochs(cluster, before.broker, highest)

        await until(same_epochs, "the same epochs")
