"""A broker remembers as many producers as it may: known ones go on, new ones are refused, and none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, observed
from tidelog.client.base.exceptions import DeliveryTimeout
from tidelog.server.devcluster import DevCluster
from wire.error_details import LIMIT
from wire.errors import Code


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    settings = {**SETTINGS, "storage": {"max_producers_of_all": 3}}
    with dev_cluster(tmp_path, settings=settings) as running:
        yield running


async def test_known_producers_go_on_and_new_ones_are_refused_also_by_the_next_leader(processes: DevCluster) -> None:
    sent: list[bytes] = []
    async with observed(processes) as cluster:
        client = cluster.client
        await client.create_stream("s", replication_factor=3)
        producers = [client.producer("s") for _ in range(3)]
        for life in range(2):
            for index, producer in enumerate(producers):
                sent.append(b"%d in %d" % (index, life))
                await producer.send(sent[-1])
            async with client.producer("s", delivery_timeout_ms=5000) as new:
                with pytest.raises(DeliveryTimeout) as refused:
                    await new.send(b"refused")
            assert refused.value.code is Code.BACKPRESSURE
            assert not refused.value.outcome_unknown
            assert refused.value.detail(LIMIT) == "producers"
            leader = (await client.describe("s"))["partitions"][0]["leader"]
            assert leader is not None
            if not life:
                processes.kill(leader)
        assert [record.value async for record in client.consume("s", stop="latest")] == sent
