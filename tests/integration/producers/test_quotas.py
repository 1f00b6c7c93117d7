"""Quotas of streams on real processes: acknowledged producers are slowed and not failed, requests are told how long to
wait, plain publishes above the rate are dropped and counted, and an alteration holds while the stream is used."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of_all, described
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.client import Client
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(Path(tmp_path_factory.mktemp("quotas"))) as running:
        yield running


async def counted(client: Client, counter: str) -> int:
    """Over all brokers."""
    return sum(counters[counter] for counters in (await counters_of_all(client)).values())


async def test_an_acknowledged_producer_is_slowed_and_not_failed(cluster: DevCluster) -> None:
    values = [b"%05d" % number for number in range(1500)]
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
        await client.create_stream("slowed", config={"producer_record_rate": 250})
        began = time.monotonic()
        async with client.producer("slowed", batch_bytes=1000) as producer:
            await asyncio.gather(*(producer.send_nowait(value) for value in values))
        took = time.monotonic() - began
        assert took >= 4.9, "250 come at once, and 250 in each second that follows"
        found = [record.value async for record in client.consume("slowed", start="earliest", stop="latest")]
        assert found == values
        assert await counted(client, "appends_over_quota") > 0

        await client.alter_stream("slowed", unset=["producer_record_rate"])
        async with client.producer("slowed") as producer:
            began = time.monotonic()
            await asyncio.gather(*(producer.send_nowait(value) for value in values))
        assert time.monotonic() - began < took


async def test_plain_publishes_above_the_rate_are_dropped_and_counted_and_requests_are_told(
    cluster: DevCluster,
) -> None:
    size, sent = 100, 20_000
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
        # 116 bytes count for each
        await client.create_stream("dropped", config={"producer_byte_rate": 116 * 1000})
        before = await counted(client, "dropped_over_quota")
        nats = await NatsConnection.connect(cluster.nats_url, name="publisher")
        began = time.monotonic()
        assert nats.publish_raw([(f"PUB dropped {size}\r\n".encode() + bytes(size) + b"\r\n") * sent])
        await nats.flush(timeout=LIMIT)

        async def ends() -> int:
            (partition,) = (await described(client, "dropped"))["partitions"]
            return partition["log_end_offset"] or 0

        async def all_counted() -> bool:
            return await ends() + await counted(client, "dropped_over_quota") - before == sent

        await until(all_counted, f"an account of {sent} records")
        assert 1000 <= await ends() <= 1000 * (time.monotonic() - began + 1) + 1

        async def told() -> bool:
            """The quota has filled meanwhile, so that the first requests may be stored."""
            burst = [nats.request("dropped", b"x" * 30_000, timeout=LIMIT) for _ in range(20)]
            answers = [json.loads(answer.data) for answer in await asyncio.gather(*burst)]
            errors = [answer["tidelog"] for answer in answers if "error" in answer]
            assert {error["code"] for error in errors} <= {"OUTCOME_UNKNOWN"}
            assert {error["details"]["reason"] for error in errors} <= {"BACKPRESSURE"}
            assert {error["details"]["limit"] for error in errors} <= {"producer_byte_rate"}
            return all(int(error["details"]["retry_after_ms"]) > 0 for error in errors) and bool(errors)

        await until(told, "a request above the quota")
        await nats.close()


async def test_new_streams_have_the_clusters_quota(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
        await client.alter_cluster(config={"producer_byte_rate": 12345})
        try:
            made = await client.create_stream("inherits")
            assert made["config"]["producer_byte_rate"] == "12345"
            own = await client.create_stream("own", config={"producer_byte_rate": 0})
            assert own["config"]["producer_byte_rate"] == "0"
        finally:
            await client.alter_cluster(unset=["producer_byte_rate"])
