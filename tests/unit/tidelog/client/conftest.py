"""A client of a broker in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster, make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.fake_transactions import FakeTransactions
from tests.unit.tidelog.client.transactions_world import World
from tidelog.client.cluster import coordinator_link
from wire.operations.api_operations import GROUP_COORDINATOR


@pytest.fixture
async def cluster() -> Cluster:
    """With the streams `s`, of one partition, and `three`."""
    transport, broker, client = make()
    broker.create("s", 1)
    broker.create("three", 3)
    return transport, broker, client


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """The same, with coordinators of groups and of transactions."""
    monkeypatch.setattr(coordinator_link, "ATTEMPT_TIMEOUT", 0.3)
    transport, broker, client = make()
    broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
    transport.listen(broker.subjects.api(GROUP_COORDINATOR.name), lambda m: broker._on_api(GROUP_COORDINATOR.name, m))
    broker.create("s", 1)
    broker.create("three", 3)
    streams = {name: (made["incarnation"], len(made["partitions"])) for name, made in broker.streams.items()}
    transactions = FakeTransactions(transport, broker)
    yield World(transport, broker, transactions, FakeCoordinator(transport, streams), client)
    await client.close()
