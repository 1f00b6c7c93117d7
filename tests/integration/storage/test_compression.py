"""Compression from end to end: a stream's setting, a producer's choice, the command line's flag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.command_line import tidelog_command
from tests.integration.rig.dev_cluster import dev_cluster
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.batch import Compression, RecordBatch, iter_batches

VALUE = b"again and again " * 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("compression"), nodes=1) as running:
        yield running


def on_disk(cluster: DevCluster, stream: str) -> list[Compression]:
    (file,) = cluster.broker_dir("b1").glob(f"{stream}-*/*/*.log")
    data = Path(file).read_bytes()
    assert {value for at, _ in iter_batches(data) for value in RecordBatch.decode(data, at).values} == {VALUE}
    return [header.compression for _, header in iter_batches(data)]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
async def test_plain_publishes_are_compressed_as_the_stream_says(cluster: DevCluster, codec: str) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(codec, replication_factor=1, config={"compression": codec})
        async with client.producer(codec) as producer:  # as the stream says; it waits for the leader
            await producer.send(VALUE)
        nats = await NatsConnection.connect(cluster.nats_url)
        for _ in range(3):
            assert (await nats.request(codec, VALUE, timeout=30)).status is None
        await nats.close()
        async with client.producer(codec, compression="none") as producer:
            await producer.send(VALUE)
        done = tidelog_command("publish", codec, VALUE.decode(), "--server", cluster.nats_url, "--compression", "lz4")
        assert done.returncode == 0, done
        assert [r.value async for r in client.consume(codec, stop="latest")] == [VALUE] * 6
    own = Compression[codec.upper()]
    assert on_disk(cluster, codec) == [own, own, own, own, Compression.NONE, Compression.LZ4]


def test_an_unknown_compression_is_refused_by_name(cluster: DevCluster) -> None:
    done = tidelog_command("stream", "create", "x", "--config", "compression=gzip", "--server", cluster.nats_url)
    assert done.returncode == 1
    assert "compression='gzip' is neither 'none' nor 'lz4' nor 'zstd'" in done.stderr
