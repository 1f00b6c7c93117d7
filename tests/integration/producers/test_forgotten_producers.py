"""More producers write than a partition remembers: each goes on, and no record is stored twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, observed
from tidelog.client.base.exceptions import DeliveryTimeout
from tidelog.server.devcluster import DevCluster
from wire.errors import Code

ROUNDS = 12


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[DevCluster]:
    settings = {**SETTINGS, "storage": {"max_producers_per_partition": 2}}
    with dev_cluster(tmp_path, settings=settings) as running:
        yield running


async def test_producers_that_are_forgotten_go_on_through_a_change_of_leader(processes: DevCluster) -> None:
    sent: list[bytes] = []
    unknown: set[bytes] = set()
    async with observed(processes) as cluster:
        client = cluster.client
        await client.create_stream("s", replication_factor=3)
        producers = [client.producer("s") for _ in range(4)]
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                leader = (await client.describe("s"))["partitions"][0]["leader"]
                assert leader is not None
                processes.kill(leader)
            for index, producer in enumerate(producers):
                value = b"%d of %d" % (number, index)
                sent.append(value)
                try:
                    await producer.send(value)
                except DeliveryTimeout as error:
                    # The killed leader may have heard it as well, and its successor has forgotten the producer.
                    if error.code is not Code.OUTCOME_UNKNOWN or number != ROUNDS // 2:
                        raise
                    unknown.add(value)
        stored = [record.value async for record in client.consume("s", stop="latest")]
        assert stored == [value for value in sent if value not in unknown or value in stored]
